//! What is waiting to be sent, as far as credits, slots and the queue allow.

use weft_rdma::Batch;
use weft_verbs::{Fabric, Work};

use crate::error::LinkError;
use crate::runs::Cursor;
use crate::verbs::envelope::{ENVELOPE_BYTES, Envelope, PartKind};

use super::*;

impl<F: Fabric> Inner<F> {
    /// Sends what credits, slots and the queue allow, with one ring of the doorbell.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        let mut batch = Batch::default();
        let keys_end = self.end_keys(&mut batch);
        self.move_lent(&mut batch);
        // Requests that came one after the other could keep keys valid for ever.
        while keys_end && let Some(message) = self.outgoing.pop_front() {
            let (left, more) = self.send_some(message, &mut batch);
            if let Some(message) = left {
                self.outgoing.push_front(message);
            }
            if !more {
                break;
            }
        }
        if self.credits.wants_to_tell()
            && self.has_room()
            && let Some(slot) = self.sends_free.pop()
        {
            self.fill(slot, PartKind::Credits, |_| 0);
            let piece = self.sends.piece(slot, ENVELOPE_BYTES);
            self.requester.add(&mut batch, Work::Send, [piece], Freed::Send(slot), false);
        }
        // SAFETY: slots stay registered and are not used again until their work has ended; of the caller's
        // memory the completion waits.
        unsafe { self.requester.post(&batch) }.map_err(|error| self.posted_error(error))
    }

    pub(super) fn has_room(&self) -> bool {
        self.requester.has_room_for(1)
    }

    /// Adds parts of a message to the batch. Returns what is left of it, and whether more may be sent.
    fn send_some(&mut self, mut message: Outgoing, batch: &mut Batch) -> (Option<Outgoing>, bool) {
        let total = message.head.len() as u64 + message.data_bytes;
        while message.sent < total {
            if !self.credits.may_send() || !self.has_room() {
                return (Some(message), false);
            }
            if let Way::Parts { binds } = &mut message.way
                && !self.bind(binds, batch)
            {
                return (Some(message), false);
            }
            let sent = match &message.way {
                Way::Parts { .. } => self.send_part(&mut message, total, batch),
                Way::FastCopied { buffer, staging } => {
                    let (buffer, staging) = (*buffer, *staging);
                    self.write_copied(&mut message, buffer, staging, batch);
                    true
                }
                Way::FastGathered { .. } => self.write_gathered(&mut message, batch),
            };
            if !sent {
                return (Some(message), false);
            }
        }
        self.note_sent(message.request_id);
        (None, true)
    }

    /// Writes an envelope, and what `write` puts behind it, into a slot; returns the bytes of both.
    pub(super) fn fill(
        &mut self,
        slot: usize,
        kind: PartKind,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> usize {
        let credits = self.credits.spend();
        // SAFETY: the slot was free, so no work uses it.
        let memory = unsafe { self.sends.fill(slot) };
        let (envelope, rest) = memory.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind }.encode());
        ENVELOPE_BYTES + write(rest)
    }

    fn send_part(&mut self, message: &mut Outgoing, total: u64, batch: &mut Batch) -> bool {
        let Some(slot) = self.sends_free.pop() else { return false };
        let kind = if message.sent == 0 { PartKind::First } else { PartKind::Further };
        let bytes = self.fill(slot, kind, |room| message.take(total, room));
        let piece = self.sends.piece(slot, bytes);
        self.requester.add(batch, Work::Send, [piece], Freed::Send(slot), false);
        true
    }

    fn fast_work(&self, buffer: u16) -> Work {
        let remote_address = self.fast.address + u64::from(buffer) * u64::from(self.fast.bytes);
        Work::WriteImmediate { remote_address, remote_key: self.fast.remote_key, immediate: buffer.into() }
    }

    /// Envelope, head and data one behind the other in a staging slot.
    fn write_copied(&mut self, message: &mut Outgoing, buffer: u16, staging: usize, batch: &mut Batch) {
        let credits = self.credits.spend();
        let total = message.head.len() as u64 + message.data_bytes;
        // SAFETY: the slot was taken for this request and no work uses it.
        let memory = unsafe { self.staging.fill(staging) };
        let (envelope, rest) = memory.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind: PartKind::First }.encode());
        let bytes = ENVELOPE_BYTES + message.take(total, rest);
        let piece = self.staging.piece(staging, bytes);
        let work = self.fast_work(buffer);
        self.requester.add(batch, work, [piece], Freed::Staging(staging), false);
    }

    /// Envelope and head from a send slot, data from where the caller has it.
    fn write_gathered(&mut self, message: &mut Outgoing, batch: &mut Batch) -> bool {
        let Some(slot) = self.sends_free.pop() else { return false };
        let Way::FastGathered { buffer, pieces } = &mut message.way else { return false };
        let (buffer, pieces) = (*buffer, std::mem::take(pieces));
        let bytes = self.fill(slot, PartKind::First, |room| {
            room[..message.head.len()].copy_from_slice(&message.head);
            message.head.len()
        });
        message.sent = message.head.len() as u64 + message.data_bytes;
        let pieces = [self.sends.piece(slot, bytes)].into_iter().chain(pieces);
        let fast = self.fast_work(buffer);
        let work = self.requester.add(batch, fast, pieces, Freed::Send(slot), true);
        let request_id = message.request_id;
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.request_id == request_id) {
            pending.waits_for = Some(work);
        }
        true
    }

    fn note_sent(&mut self, request_id: u64) {
        if let Some(at) = self.pending.iter().position(|pending| pending.request_id == request_id) {
            self.pending[at].sent = true;
            self.complete(at);
        }
    }

    /// Work up to this number has ended.
    pub(super) fn note_ended(&mut self, number: u64) {
        for freed in self.requester.take_ended(number) {
            match freed {
                Freed::Send(slot) => self.sends_free.push(slot),
                Freed::Staging(slot) => self.staging_free.push(slot),
                Freed::Lent(bytes) => self.budget.ended(bytes),
                Freed::Local => {}
            }
        }
        for at in (0..self.pending.len()).rev() {
            if self.pending[at].waits_for.is_some_and(|work| work <= number) {
                self.pending[at].waits_for = None;
                self.complete(at);
            }
        }
    }
}

impl Outgoing {
    /// Copies what comes next into `room`, as much as fits; returns how much.
    pub(super) fn take(&mut self, total: u64, room: &mut [u8]) -> usize {
        let bytes = (total - self.sent).min(room.len() as u64) as usize;
        let head_left = (self.head.len() as u64).saturating_sub(self.sent).min(bytes as u64) as usize;
        let (head, data) = room[..bytes].split_at_mut(head_left);
        let head_at = self.sent.min(self.head.len() as u64) as usize;
        head.copy_from_slice(&self.head[head_at..head_at + head_left]);
        if !data.is_empty() {
            let from = self.sent + head_left as u64 - self.head.len() as u64;
            let mut to = data;
            Cursor::at(&self.data, from).walk(&self.data, to.len() as u64, |_, address, bytes| {
                let (part, rest) = std::mem::take(&mut to).split_at_mut(bytes as usize);
                let memory = address as usize as *const u8;
                // SAFETY: the caller of `submit` keeps its pieces valid until the completion, which waits
                // until all is sent.
                unsafe { std::ptr::copy_nonoverlapping(memory, part.as_mut_ptr(), part.len()) };
                to = rest;
                true
            });
        }
        self.sent += bytes as u64;
        bytes
    }
}
