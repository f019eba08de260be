//! The client's end.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::Waker;

use weft_wire::limits::{BODY_BYTES_MAX, CREDITS_PER_CONNECTION};
use weft_wire::{Header, Kind};

use super::wires::{Memory, PEER, Wires};
use crate::error::{FrameError, LinkError};
use crate::link::OWN_REQUEST_IDS;
use crate::link::{Bulk, Completion, Link, LinkKind};
use crate::runs::MemoryRuns;
use crate::segment::{KnownSegments, Segment};

/// A client's end.
pub struct MemoryLink {
    pub(super) wire: Arc<Wires>,
    pub(super) segments: KnownSegments,
}

impl Link for MemoryLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Memory
    }

    fn peer(&self) -> &str {
        PEER
    }

    fn fd(&self) -> RawFd {
        self.wire.event.as_raw_fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn credits(&self) -> u16 {
        self.wire.lock().credits
    }

    fn set_credits(&mut self, credits: u16) {
        self.wire.lock().credits = credits.min(CREDITS_PER_CONNECTION);
    }

    unsafe fn submit(&mut self, mut header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        let (mut runs, is_get) = match bulk {
            Bulk::None => (MemoryRuns::new(), true),
            Bulk::Put(memory) => (memory.runs, false),
            Bulk::Get(memory) => (memory.runs, true),
        };
        let bytes = self.segments.resolve(&mut runs)?;
        let mut state = self.wire.lock();
        let refuse = |what| Err(LinkError::Request { peer: PEER.into(), what });
        if !state.open {
            return Err(LinkError::Closed { peer: PEER.into() });
        }
        if header.kind != Kind::Request || header.request_id >= OWN_REQUEST_IDS || body.len() > BODY_BYTES_MAX
        {
            return refuse("only requests with a caller's number and a body within the limit are sent");
        }
        if state.memory(header.request_id).is_some() {
            return refuse("its number is in use by a request under way");
        }
        state.credits = state.credits.checked_sub(1).ok_or(LinkError::NoCredit { peer: PEER.into() })?;
        header.body_bytes = body.len() as u32;
        header.payload_bytes = if is_get { bytes } else { 0 };
        state.memory.push(Memory { request_id: header.request_id, runs, bytes, is_get, delivered_bytes: 0 });
        state.requests.push_back((header, body.to_vec()));
        state.count_message();
        let waker = state.server_waker.take();
        let open = state.open;
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        if !open {
            self.wire.close();
        }
        Ok(())
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut count = [0u8; 8];
        // SAFETY: 8 live bytes; nothing to read is no error here.
        unsafe { libc::read(self.wire.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        let mut state = self.wire.lock();
        for completion in state.completions.drain(..).collect::<Vec<_>>() {
            state.credits =
                state.credits.saturating_add(completion.header.credit).min(CREDITS_PER_CONNECTION);
            done.push(completion);
        }
        if state.open {
            return Ok(());
        }
        Err(LinkError::Stream { peer: PEER.into(), source: FrameError::Closed })
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.segments.add(segment, false);
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        self.segments.remove(id);
        Ok(())
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.wire.close();
    }
}
