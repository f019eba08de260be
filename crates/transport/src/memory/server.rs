//! The server's end.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weft_reactor::sleep;
use weft_wire::limits::BODY_BYTES_UNPROVEN_MAX;
use weft_wire::messages::ErrorDetail;
use weft_wire::{Header, Status, body};

use super::wires::{MemoryEnd, Wires};
use crate::error::ConnError;
use crate::link::Completion;
use crate::runs::Cursor;
use crate::server::{BulkInfo, Incoming, LocalMemory, PeerInfo, ServerBulk, ServerConn, Source, SourceKind};

/// A server's end.
#[derive(Clone)]
pub struct MemoryConn {
    end: Rc<ConnEnd>,
}

struct ConnEnd {
    wire: Arc<Wires>,
    random: Cell<u64>,
}

impl Drop for ConnEnd {
    fn drop(&mut self) {
        self.wire.close();
    }
}

impl MemoryConn {
    /// On the current reactor.
    pub fn from_end(end: MemoryEnd) -> MemoryConn {
        MemoryConn { end: Rc::new(ConnEnd { wire: end.wire, random: Cell::new(end.seed) }) }
    }

    fn closed(&self) -> ConnError {
        ConnError::Closed { peer: self.peer().to_string() }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&self) -> u64 {
        let state = self.end.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.end.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    async fn next_request(&self) -> Result<(Header, Vec<u8>, bool), ConnError> {
        std::future::poll_fn(|cx| {
            let mut state = self.end.wire.lock();
            if !state.open {
                return Poll::Ready(Err(self.closed()));
            }
            if let Some((header, body)) = state.requests.pop_front() {
                return Poll::Ready(Ok((header, body, state.proven)));
            }
            state.server_waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl ServerConn for MemoryConn {
    type Bulk = MemoryBulk;

    async fn recv(&self) -> Result<Incoming<MemoryBulk>, ConnError> {
        let (header, body, proven) = self.next_request().await?;
        if !proven && (body.len() > BODY_BYTES_UNPROVEN_MAX || header.payload_bytes > 0) {
            let text = "more than is taken before the proof of the key".to_string();
            self.reply(header.reply(Status::TooBig), &body::encode(&ErrorDetail { text }), &[]).await?;
            self.close();
            return Err(self.closed());
        }
        let bulk =
            MemoryBulk { conn: self.clone(), request_id: header.request_id, bytes: header.payload_bytes };
        Ok(Incoming { header, body, bulk })
    }

    async fn reply(&self, mut header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        if self.end.wire.delay_ms_max > 0 {
            sleep(Duration::from_millis(self.random() % (self.end.wire.delay_ms_max + 1))).await;
        }
        header.body_bytes = body.len() as u32;
        header.payload_bytes = payload.iter().map(|part| part.len() as u64).sum();
        let mut bulk = MemoryBulk { conn: self.clone(), request_id: header.request_id, bytes: 0 };
        bulk.copy(0, payload.iter().map(|part| (part.as_ptr().cast_mut(), part.len())), false)?;
        let mut state = self.end.wire.lock();
        let Some(at) = state.memory.iter().position(|memory| memory.request_id == header.request_id) else {
            return Err(self.closed());
        };
        let memory = state.memory.swap_remove(at);
        state.completions.push(Completion {
            header,
            body: body.to_vec(),
            delivered_bytes: memory.delivered_bytes,
        });
        state.count_message();
        let open = state.open;
        drop(state);
        if open {
            self.end.wire.wake_client();
        } else {
            self.close();
        }
        Ok(())
    }

    fn prove(&self) {
        self.end.wire.lock().proven = true;
    }

    fn peer(&self) -> PeerInfo {
        let address = "in this process".to_string();
        PeerInfo {
            transport: "memory".into(),
            address,
            process_id: Some(std::process::id()),
            user_id: None,
            group_ids: Vec::new(),
        }
    }

    fn close(&self) {
        self.end.wire.close();
    }
}

/// The way to the memory of a request in the same process.
pub struct MemoryBulk {
    conn: MemoryConn,
    request_id: u64,
    bytes: u64,
}

impl std::fmt::Debug for MemoryBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryBulk {{ bytes: {} }}", self.bytes)
    }
}

impl MemoryBulk {
    /// Copies between parts of the server's memory and the client's pieces, under the connection's lock.
    fn copy(
        &mut self,
        share_offset: u64,
        parts: impl Iterator<Item = (*mut u8, usize)>,
        from_client: bool,
    ) -> Result<(), ConnError> {
        let mut state = self.conn.end.wire.lock();
        if !state.open {
            return Err(self.conn.closed());
        }
        let peer = || self.conn.peer().to_string();
        let mut end = share_offset;
        for (base, bytes) in parts.filter(|(_, bytes)| *bytes > 0) {
            let Some(memory) = state.memory(self.request_id) else { return Err(self.conn.closed()) };
            let start = end;
            end += bytes as u64;
            if end > memory.bytes || memory.is_get != from_client {
                return Err(ConnError::Range { peer: peer(), bytes: memory.bytes, end });
            }
            let mut at = base;
            Cursor::at(&memory.runs, start).walk(&memory.runs, bytes as u64, |_, address, bytes| {
                let client = address as usize as *mut u8;
                // SAFETY: the client keeps its pieces valid until the completion is queued or the link
                // dropped, both of which take the lock held here; the parts are the caller's buffers, and a
                // walk never exceeds them.
                unsafe {
                    let (from, to) = if from_client { (client, at) } else { (at, client) };
                    std::ptr::copy_nonoverlapping(from, to, bytes as usize);
                    at = at.add(bytes as usize);
                }
                true
            });
            if !from_client {
                memory.delivered_bytes += bytes as u64;
            }
        }
        Ok(())
    }
}

impl ServerBulk for MemoryBulk {
    fn info(&self) -> BulkInfo {
        BulkInfo::copies(self.bytes)
    }

    fn local(&self, share_offset: u64, bytes: u64) -> Option<LocalMemory<'_>> {
        if !self.conn.end.wire.lends {
            return None;
        }
        let mut state = self.conn.end.wire.lock();
        let memory = state.memory(self.request_id)?;
        if share_offset.checked_add(bytes)? > memory.bytes {
            return None;
        }
        let mut pieces = Vec::new();
        Cursor::at(&memory.runs, share_offset).walk(&memory.runs, bytes, |_, address, bytes| {
            pieces.extend(NonNull::new(address as usize as *mut u8).map(|base| (base, bytes as usize)));
            true
        });
        if !memory.is_get {
            memory.delivered_bytes += bytes;
        }
        Some(LocalMemory::new(pieces, None))
    }

    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError> {
        match source.0 {
            SourceKind::Slices(data) => {
                let parts = data.iter().map(|part| (part.as_ptr().cast_mut(), part.len()));
                self.copy(share_offset, parts, false)
            }
            SourceKind::Kept { pieces, keeper: _keeper } => {
                let parts = pieces.iter().map(|(base, bytes)| (base.as_ptr(), *bytes));
                self.copy(share_offset, parts, false)
            }
            other => Err(other.refused(self.conn.peer().to_string())),
        }
    }

    unsafe fn get_mapped(
        &mut self,
        _share_offset: u64,
        _pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let peer = self.conn.peer().to_string();
        Err(ConnError::Mechanism { peer, what: "receive into mapped pages; see its BulkInfo" })
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        self.copy(share_offset, buffers.iter_mut().map(|part| (part.as_mut_ptr(), part.len())), true)
    }

    async fn discard(self) -> Result<(), ConnError> {
        Ok(())
    }
}
