//! The way to a client's memory by the stream of its connection.

use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::rc::Rc;

use weft_wire::Header;
use weft_wire::limits::UNIT_BYTES_MAX;

use crate::error::ConnError;
use crate::runs::IoVecs;
use crate::server::{BulkInfo, LocalMemory, ServerBulk, Source, SourceKind, slices};
use crate::stream::{PayloadOwner, ServerStream};

/// The way to a client's memory by the stream of its connection: the whole of TCP, and what is small on a Unix socket.
pub struct StreamBulk {
    stream: Rc<ServerStream>,
    request: Header,
    owns_payload: bool,
    /// Share offset of the next byte of payload.
    position: u64,
}

impl std::fmt::Debug for StreamBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamBulk {{ bytes: {}, position: {} }}", self.request.payload_bytes, self.position)
    }
}

impl StreamBulk {
    pub(crate) fn new(stream: &Rc<ServerStream>, request: Header) -> StreamBulk {
        let owns_payload = request.payload_bytes > 0;
        if owns_payload {
            stream.owner.set(PayloadOwner::Bulk);
        }
        StreamBulk { stream: stream.clone(), request, owns_payload, position: 0 }
    }

    async fn put_slices(&self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = data.iter().map(|part| part.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.stream.send_message(self.request.data(share_offset, bytes), &[], data).await
    }

    /// Whether a part of the payload lies within it, and was not taken yet.
    fn check(&self, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        if share_offset < self.position {
            let (peer, what) = (
                self.stream.peer_text(),
                "go back in a streamed payload: it is read in the order of the share",
            );
            return Err(ConnError::Mechanism { peer, what });
        }
        let end = share_offset.saturating_add(bytes);
        if end > self.request.payload_bytes {
            let peer = self.stream.peer_text();
            return Err(ConnError::Range { peer, bytes: self.request.payload_bytes, end });
        }
        Ok(())
    }

    /// Throws away what is before a part of the payload.
    async fn go_to(&mut self, share_offset: u64, bytes: u64) -> Result<(), ConnError> {
        self.check(share_offset, bytes)?;
        self.stream.skip(share_offset - self.position).await?;
        self.position = share_offset;
        Ok(())
    }
}

impl ServerBulk for StreamBulk {
    fn info(&self) -> BulkInfo {
        BulkInfo { files: true, mapped: true, ..BulkInfo::copies(self.request.payload_bytes) }
    }

    fn local(&self, _share_offset: u64, _bytes: u64) -> Option<LocalMemory<'_>> {
        None
    }

    fn is_gone(&self) -> bool {
        self.stream.is_closed()
    }

    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError> {
        match source.0 {
            SourceKind::Slices(data) => self.put_slices(share_offset, data).await,
            SourceKind::Kept { pieces, keeper: _keeper } => {
                // SAFETY: the keeper lives as long as this future.
                let data = unsafe { slices(pieces) };
                self.put_slices(share_offset, &data).await
            }
            SourceKind::Mapped(pieces) => {
                // SAFETY: mapped until this future ends. Only the kernel looks at the bytes.
                let data = unsafe { slices(pieces) };
                self.put_slices(share_offset, &data).await
            }
            SourceKind::File { file, offset, bytes } => {
                let mut done = 0;
                while done < bytes {
                    let unit_bytes = (bytes - done).min(UNIT_BYTES_MAX as u64);
                    let header = self.request.data(share_offset + done, unit_bytes);
                    self.stream.send_file_unit(header, file, offset + done).await?;
                    done += unit_bytes;
                }
                Ok(())
            }
        }
    }

    async fn arrival(&mut self, share_offset: u64) -> Result<(), ConnError> {
        self.go_to(share_offset, 0).await?;
        self.stream.payload_has_come().await
    }

    unsafe fn get_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        self.check(share_offset, bytes)?;
        if share_offset > self.position || bytes == 0 {
            return Ok(0);
        }
        let mut rest = IoVecs::new();
        pieces.iter().all(|(base, bytes)| rest.push(base.as_ptr(), *bytes));
        // SAFETY: as the caller promises.
        let moved = unsafe { self.stream.take_now(&mut rest) }? as u64;
        self.position += moved;
        self.owns_payload = self.position < self.request.payload_bytes;
        Ok(moved)
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.go_to(share_offset, bytes).await?;
        self.stream.take(buffers).await?;
        self.position = share_offset + bytes;
        self.owns_payload = self.position < self.request.payload_bytes;
        Ok(())
    }

    async fn discard(mut self) -> Result<(), ConnError> {
        if self.owns_payload {
            self.stream.skip(u64::MAX).await?;
            self.owns_payload = false;
        }
        Ok(())
    }
}

impl Drop for StreamBulk {
    fn drop(&mut self) {
        if self.owns_payload {
            self.stream.owner.set(PayloadOwner::Nobody);
            self.stream.payload_free.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::PeerInfo;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;
    use weft_reactor::{Reactor, ReactorOptions, sleep};
    use weft_wire::Op;

    fn somebody() -> PeerInfo {
        PeerInfo {
            transport: "test".into(),
            address: "here".into(),
            process_id: None,
            user_id: None,
            group_ids: Vec::new(),
        }
    }

    #[test]
    fn pages_that_are_gone_cut_the_stream_and_kill_nobody() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a new mapping; the file is empty, so none of its pages can be had.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let pieces = [(NonNull::new(base.cast::<u8>()).unwrap(), 4096)];
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = Rc::new(ServerStream::new(ours.into(), true, somebody()).unwrap());
            let mut bulk = StreamBulk::new(&stream, Header::request(Op::Read, 1));
            // SAFETY: mapped until the end of this test.
            unsafe { bulk.put(0, Source::mapped(&pieces)).await }.unwrap_err();
            assert!(stream.is_closed());
        });
        // SAFETY: nobody uses the mapping any more.
        unsafe { libc::munmap(base, 4096) };
    }

    #[test]
    fn a_payload_is_taken_into_mapped_pieces_as_it_comes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = Rc::new(ServerStream::new(ours.into(), true, somebody()).unwrap());
            stream.prove();
            let header = Header { payload_bytes: 20, ..Header::request(Op::Write, 1) };
            theirs.write_all(&header.encode()).unwrap();
            theirs.write_all(&[1; 10]).unwrap();
            let (header, _) = stream.message(false).await.unwrap();
            let mut bulk = StreamBulk::new(&stream, header);
            let mut memory = [0u8; 20];
            let base = NonNull::from(&mut memory).cast::<u8>();
            // SAFETY: parts of this memory, which nobody else uses until it is looked at.
            let take = |bulk: &mut StreamBulk, at: usize| unsafe {
                bulk.get_mapped(at as u64, &[(base.add(at), 20 - at)]).unwrap()
            };
            bulk.arrival(0).await.unwrap();
            assert_eq!(take(&mut bulk, 0), 10);
            assert_eq!(take(&mut bulk, 10), 0, "the rest has not come");
            theirs.write_all(&[2; 10]).unwrap();
            bulk.arrival(10).await.unwrap();
            assert_eq!(take(&mut bulk, 10), 10);
            assert_eq!(memory[..10], [1; 10]);
            assert_eq!(memory[10..], [2; 10]);
        });
    }

    #[test]
    fn news_between_a_short_read_and_the_wait_for_more_is_not_lost() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let stream = ServerStream::new(ours.into(), true, somebody()).unwrap();
            stream.prove();
            stream.set_stall_timeout(Duration::from_millis(500));
            let header = Header { payload_bytes: 20, ..Header::request(Op::Write, 1) };
            theirs.write_all(&header.encode()).unwrap();
            theirs.write_all(&[1; 10]).unwrap();
            stream.message(false).await.unwrap();
            let mut half = [0; 10];
            stream.take(&mut [IoSliceMut::new(&mut half)]).await.unwrap();
            // The socket is known to be empty; the rest comes while nobody waits for it.
            theirs.write_all(&[2; 10]).unwrap();
            sleep(Duration::from_millis(20)).await;
            stream.take(&mut [IoSliceMut::new(&mut half)]).await.unwrap();
            assert_eq!(half, [2; 10]);
        });
    }
}
