//! From what has ended to completions.

use weft_rdma::RECEIVE;
use weft_verbs::{Fabric, MemoryPiece, WorkDone, WorkKind, WorkStatus};
use weft_wire::Kind;
use weft_wire::messages::MemoryRun;

use crate::error::LinkError;
use crate::frame_limits::FrameLimits;
use crate::link::Completion;
use crate::runs::Cursor;
use crate::verbs::assembly::Step;
use crate::verbs::envelope::{ENVELOPE_BYTES, Envelope, Lend, MESSAGE_BYTES, PartKind};

use super::*;

impl<F: Fabric> Inner<F> {
    /// Takes all that has ended. Says whether there was anything.
    pub(super) fn poll(&mut self) -> Result<bool, LinkError> {
        let mut any = false;
        loop {
            let done = self.requester.poll().map_err(|error| self.posted_error(error))?;
            if done.is_empty() {
                return Ok(any);
            }
            any = true;
            let mut posts = Vec::new();
            for one in &done {
                self.take_done(one, &mut posts)?;
            }
            if self.requester.ended().is_none() && !posts.is_empty() {
                // SAFETY: what was in these slots has been taken out; they are the adapter's again.
                let posted = unsafe { self.requester.post_receives(&posts) };
                posted.map_err(|error| self.posted_error(error))?;
                posts.iter().for_each(|_| self.credits.dealt_with());
            }
        }
    }

    fn take_done(&mut self, done: &WorkDone, posts: &mut Vec<(u64, MemoryPiece)>) -> Result<(), LinkError> {
        if done.status != WorkStatus::Ok {
            self.requester.note_end(match done.status {
                WorkStatus::Flushed => "the connection has ended".to_string(),
                status => format!("RDMA work failed: {status:?}"),
            });
            return Ok(());
        }
        match done.kind {
            WorkKind::Sent => self.note_ended(done.id),
            WorkKind::ReceivedImmediate(_) => {
                return Err(self.protocol("it wrote with immediate data"));
            }
            WorkKind::Received | WorkKind::ReceivedInvalidate(_) => {
                let ended = match done.kind {
                    WorkKind::ReceivedInvalidate(key) => Some(key),
                    _ => None,
                };
                let slot = (done.id & !RECEIVE) as usize;
                // SAFETY: the receive has ended, and the slot is posted again only after this.
                let message = unsafe { self.receives.read(slot, done.bytes as usize) };
                self.take_part(message, ended)?;
                posts.push((done.id, self.receives.piece(slot, MESSAGE_BYTES)));
            }
        }
        Ok(())
    }

    /// `ended`: the key whose validity the message has ended.
    fn take_part(&mut self, message: &[u8], ended: Option<u32>) -> Result<(), LinkError> {
        let Some(envelope) = Envelope::decode(message) else {
            return Err(self.protocol("a message has no envelope"));
        };
        if self.credits.received(envelope.credits).is_err() {
            return Err(self.protocol("it sent more than it had credits for"));
        }
        if envelope.kind == PartKind::Credits {
            return if ended.is_none() { Ok(()) } else { Err(self.not_its_key()) };
        }
        if envelope.kind == PartKind::Lend {
            if ended.is_some() {
                return Err(self.not_its_key());
            }
            let mut each = Lend::decode_all(&message[ENVELOPE_BYTES..]).into_iter();
            return each.try_for_each(|told| self.take_lent(told));
        }
        let mut assembler = std::mem::take(&mut self.assembler);
        let step = assembler.part(envelope.kind, &message[ENVELOPE_BYTES..], &FrameLimits::client());
        self.assembler = assembler;
        let step = step.map_err(|source| LinkError::Stream { peer: self.peer.clone(), source })?;
        self.take_step(step, ended)
    }

    fn not_its_key(&self) -> LinkError {
        self.protocol("it ended a key that is not of the request that it answers")
    }

    fn take_step(&mut self, step: Step<'_>, ended: Option<u32>) -> Result<(), LinkError> {
        let Step { header, payload_at, payload, whole } = step;
        let Some(at) = self.pending.iter().position(|pending| pending.request_id == header.request_id) else {
            return Err(self.protocol("it answered a request that is not under way"));
        };
        if self.pending[at].reply.is_some() {
            return Err(self.protocol("it answered a request twice"));
        }
        let reply = header.kind == Kind::Reply;
        if !payload.is_empty() {
            let outside = self.protocol("it sent data outside of the memory it was given");
            let pending = &mut self.pending[at];
            let offset = (if reply { 0 } else { header.share_offset }).saturating_add(payload_at);
            if offset.checked_add(payload.len() as u64).is_none_or(|end| end > pending.bytes) {
                return Err(outside);
            }
            // SAFETY: the caller of `submit` keeps these pieces valid until the completion.
            unsafe { place(&pending.memory, offset, payload) };
            self.adapter.transfers.copied(payload.len());
            pending.delivered_bytes += payload.len() as u64;
        }
        let Some(body) = whole.filter(|_| reply) else {
            return if ended.is_none() { Ok(()) } else { Err(self.not_its_key()) };
        };
        if self.pending[at].moved.as_ref().is_some_and(Moved::is_under_way) {
            return Err(self.protocol("it answered a request for which it still lends memory"));
        }
        if let Some(key) = ended {
            let window = self.pending[at].windows.take(key).ok_or_else(|| self.not_its_key())?;
            self.free_windows([window]);
        }
        self.request_credits =
            self.request_credits.saturating_add(header.credit).min(self.request_credits_max);
        self.pending[at].reply = Some((header, body));
        self.complete(at);
        Ok(())
    }

    /// Gives the completion of a request that is sent and answered, and whose memory no work uses and no key
    /// reaches.
    pub(super) fn complete(&mut self, at: usize) {
        let pending = &self.pending[at];
        if !pending.sent || pending.waits_for.is_some() || pending.reply.is_none() {
            return;
        }
        if !self.keys_have_ended(at) {
            return;
        }
        let pending = self.pending.swap_remove(at);
        let Pending { reply, mut delivered_bytes, staging, memory, bytes, .. } = pending;
        let Some((header, body)) = reply else { return };
        let well = header.status == weft_wire::Status::Ok;
        let filled_bytes = if well { header.share_offset.min(bytes) } else { 0 };
        if let Some(slot) = staging {
            if delivered_bytes == 0 {
                // What lies behind it in the slot is of requests before.
                // SAFETY: the server has answered and writes no more; the slot is this request's.
                let data = unsafe { self.staging.read(slot, filled_bytes as usize) };
                // SAFETY: the caller of `submit` keeps these pieces valid until the completion.
                unsafe { place(&memory, 0, data) };
                self.adapter.transfers.copied(data.len());
            }
            self.staging_free.push(slot);
        }
        if pending.described_put {
            delivered_bytes = filled_bytes;
        }
        self.fast_free.extend(pending.fast);
        self.ready.push(Completion { header, body, delivered_bytes });
    }
}

/// Copies data into pieces, from a share offset on.
///
/// # Safety
/// The runs are tidy, lie in this process, hold that much, and nobody else uses their memory.
unsafe fn place(runs: &[MemoryRun], share_offset: u64, data: &[u8]) {
    let mut left = data;
    Cursor::at(runs, share_offset).walk(runs, data.len() as u64, |_, address, bytes| {
        let (part, rest) = left.split_at(bytes as usize);
        // SAFETY: as the caller promises; a walk never exceeds what was asked for.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), address as usize as *mut u8, part.len()) };
        left = rest;
        true
    });
}
