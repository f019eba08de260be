//! The way to the memory of a request over shared memory.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;

use weft_reactor::yield_now;
use weft_wire::limits::UNIT_BYTES_MAX;

use super::client_memory::{ClientMemory, Described, Direction};
use crate::error::ConnError;
use crate::runs::{Cursor, IOV_MAX, IoVecs};
use crate::server::{BulkInfo, LocalMemory, ServerBulk, Source, SourceKind, slices};
use crate::stream::ServerStream;
use crate::stream_bulk::StreamBulk;

/// Pieces that [`ServerBulk::local`] lists; with more, moving by `put` and `get` in batches is no slower.
const LOCAL_PIECES_MAX: usize = 4 * IOV_MAX;

/// The way to the memory of a request over shared memory.
pub struct ShmBulk {
    pub(super) way: Way,
    pub(super) stream: Rc<ServerStream>,
    pub(super) client: Rc<ClientMemory>,
}

pub(super) enum Way {
    /// Small: on the socket.
    Streamed(StreamBulk),
    /// Remote memory, and a place in it with its share offset, so that units in order need no search.
    Described { described: Described, cursor: (Cursor, u64) },
}

impl std::fmt::Debug for ShmBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.way {
            Way::Streamed(bulk) => write!(f, "ShmBulk {{ streamed: {bulk:?} }}"),
            Way::Described { described, .. } => write!(f, "ShmBulk {{ described: {:?} }}", described.runs),
        }
    }
}

impl ShmBulk {
    /// Moves a unit; `local` gives what is left of the local side after so many bytes, at most [`UNIT_BYTES_MAX`] at once.
    ///
    /// # Safety
    /// The pieces that `local` gives are memory that may be read (put) or written (get) by a system call.
    async unsafe fn transfer(
        &mut self,
        share_offset: u64,
        bytes: u64,
        direction: Direction,
        mut local: impl FnMut(&mut IoVecs, usize),
    ) -> Result<(), ConnError> {
        let Way::Described { described, .. } = &self.way else { return Ok(()) };
        described.check(&self.stream, share_offset, bytes)?;
        let mut done = 0;
        while done < bytes {
            done += {
                let mut pieces = IoVecs::new();
                local(&mut pieces, done as usize);
                // SAFETY: as the caller promises.
                unsafe { self.transfer_some(share_offset + done, direction, &pieces) }?
            };
            if done < bytes {
                yield_now().await;
            }
        }
        Ok(())
    }

    async fn put_slices(&mut self, share_offset: u64, data: &[IoSlice<'_>]) -> Result<(), ConnError> {
        let bytes = data.iter().map(|part| part.len() as u64).sum();
        let local = |pieces: &mut IoVecs, done: usize| pieces.push_rest(data.iter().map(Deref::deref), done);
        // SAFETY: the pieces are parts of borrowed slices, and a put only reads them.
        unsafe { self.transfer(share_offset, bytes, Direction::Put, local) }.await
    }

    /// Moves what one system call takes of a unit that was checked: how many bytes.
    ///
    /// # Safety
    /// The local pieces are memory that may be read (put) or written (get) by a system call.
    unsafe fn transfer_some(
        &mut self,
        share_offset: u64,
        direction: Direction,
        local: &IoVecs,
    ) -> Result<u64, ConnError> {
        let Way::Described { described, cursor } = &mut self.way else { return Ok(0) };
        if !self.client.is_there(&self.stream) {
            self.stream.close();
            return Err(self.stream.closed_error());
        }
        let mut at = described.place(*cursor, share_offset);
        // SAFETY: as the caller promises.
        let moved = unsafe { described.batch(self.client.process, &at, direction, local) }
            .map_err(|source| ConnError::ClientMemory { peer: self.stream.peer_text(), source })?;
        at.advance(&described.runs, moved as u64);
        *cursor = (at, share_offset + moved as u64);
        Ok(moved as u64)
    }

    /// # Safety
    /// The pieces lie in mappings that stay until this returns.
    async unsafe fn transfer_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<(), ConnError> {
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        // Every batch goes on where the one before ended: the pieces before that are looked at once.
        let (mut first, mut before) = (0, 0);
        let local = |vecs: &mut IoVecs, done: usize| {
            while first < pieces.len() && before + pieces[first].1 <= done {
                before += pieces[first].1;
                first += 1;
            }
            let mut skip = done - before;
            for (base, bytes) in &pieces[first..] {
                let left = (bytes - skip).min(UNIT_BYTES_MAX - vecs.bytes());
                if !vecs.push(base.as_ptr().wrapping_add(skip), left) || vecs.bytes() == UNIT_BYTES_MAX {
                    return;
                }
                skip = 0;
            }
        };
        // SAFETY: as the caller promises; only the kernel touches the pages.
        unsafe { self.transfer(share_offset, bytes, Direction::Put, local) }.await
    }
}

impl ServerBulk for ShmBulk {
    fn info(&self) -> BulkInfo {
        match &self.way {
            // Small: what is mapped is not worth looking up.
            Way::Streamed(bulk) => BulkInfo { mapped: false, ..bulk.info() },
            Way::Described { described, .. } => {
                BulkInfo { mapped: true, ..BulkInfo::copies(described.bytes) }
            }
        }
    }

    fn local(&self, share_offset: u64, bytes: u64) -> Option<LocalMemory<'_>> {
        let Way::Described { described, cursor } = &self.way else { return None };
        described.check(&self.stream, share_offset, bytes).ok()?;
        let mut pieces: Vec<(NonNull<u8>, usize)> = Vec::new();
        let mut all_local = true;
        described.place(*cursor, share_offset).walk(&described.runs, bytes, |segment, address, bytes| {
            match NonNull::new(address as usize as *mut u8) {
                Some(base) if segment != 0 && pieces.len() < LOCAL_PIECES_MAX => {
                    pieces.push((base, bytes as usize));
                }
                _ => all_local = false,
            }
            all_local
        });
        all_local.then(|| LocalMemory::new(pieces, Some(&self.client.is_gone)))
    }

    fn is_gone(&self) -> bool {
        self.stream.is_closed()
    }

    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError> {
        if matches!(source.0, SourceKind::Mapped(_)) && !self.info().mapped {
            return Err(source.0.refused(self.stream.peer_text()));
        }
        if let Way::Streamed(bulk) = &mut self.way {
            return bulk.put(share_offset, source).await;
        }
        match source.0 {
            SourceKind::Slices(data) => self.put_slices(share_offset, data).await,
            SourceKind::Kept { pieces, keeper: _keeper } => {
                // SAFETY: the keeper lives as long as this future.
                let data = unsafe { slices(pieces) };
                self.put_slices(share_offset, &data).await
            }
            // SAFETY: as whoever made the source promised.
            SourceKind::Mapped(pieces) => unsafe { self.transfer_mapped(share_offset, pieces).await },
            other => Err(other.refused(self.stream.peer_text())),
        }
    }

    unsafe fn get_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let Way::Described { described, .. } = &self.way else {
            let peer = self.stream.peer_text();
            return Err(ConnError::Mechanism { peer, what: "receive into mapped pages; see its BulkInfo" });
        };
        let bytes = pieces.iter().map(|(_, bytes)| *bytes as u64).sum();
        described.check(&self.stream, share_offset, bytes)?;
        let mut batch = IoVecs::new();
        pieces.iter().all(|(base, bytes)| {
            let part = (*bytes).min(UNIT_BYTES_MAX - batch.bytes());
            batch.push(base.as_ptr(), part) && part == *bytes
        });
        // SAFETY: as the caller promises.
        unsafe { self.transfer_some(share_offset, Direction::Get, &batch) }
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        if let Way::Streamed(bulk) = &mut self.way {
            return bulk.get(share_offset, buffers).await;
        }
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let local = |pieces: &mut IoVecs, done: usize| pieces.push_rest_mut(buffers, done);
        // SAFETY: the pieces are parts of the caller's exclusively borrowed buffers.
        unsafe { self.transfer(share_offset, bytes, Direction::Get, local) }.await
    }

    async fn discard(self) -> Result<(), ConnError> {
        match self.way {
            Way::Streamed(bulk) => bulk.discard().await,
            Way::Described { .. } => Ok(()),
        }
    }
}
