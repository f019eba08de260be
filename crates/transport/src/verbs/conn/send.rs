//! Messages and what goes before them, in the order of asking.

use std::io::IoSlice;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weft_reactor::timeout;
use weft_verbs::{Device, Fabric, MemoryPiece, Work};
use weft_wire::limits::STALL_TIMEOUT_MS;
use weft_wire::{HEADER_BYTES, Header};

use crate::error::ConnError;
use crate::verbs::batch::Batch;
use crate::verbs::chain::Chain;
use crate::verbs::envelope::{ENVELOPE_BYTES, Envelope, PartKind};
use crate::verbs::thread::{BOUNCE_BYTES, Slot};

use super::*;

impl<F: Fabric> ConnInner<F> {
    /// Writes an envelope and what comes next of a message into a slot; returns the piece of both.
    pub(super) fn fill(
        &self,
        slot: &mut Slot<F>,
        kind: PartKind,
        message: &[&[u8]],
        at: &mut Parts,
    ) -> MemoryPiece {
        let credits = self.credits.borrow_mut().spend();
        // SAFETY: the slot is new, so no work uses it.
        let (envelope, room) = unsafe { slot.fill() }.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind }.encode());
        let bytes = ENVELOPE_BYTES + at.take(message, room);
        slot.piece(bytes)
    }

    /// Waits for a credit for a part of a message.
    pub(super) async fn credit(&self) -> Result<(), ConnError> {
        let wait = std::future::poll_fn(|cx| {
            if self.failed.is_set() {
                return Poll::Ready(Err(self.error()));
            }
            if self.credits.borrow().may_send() {
                return Poll::Ready(Ok(()));
            }
            *self.credit_waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        match timeout(Duration::from_millis(STALL_TIMEOUT_MS), wait).await {
            Ok(result) => result,
            Err(_) => {
                self.fail(Cause::Broken("it takes no replies".into()));
                Err(ConnError::Stalled { peer: self.peer_text(), timeout_ms: STALL_TIMEOUT_MS })
            }
        }
    }

    /// Sends a message in this task's turn, behind `before`, whose last pieces are posted together with its first part. Its last
    /// part ends the validity of a key of the client's, if one is given.
    pub(in crate::verbs) async fn send_message(
        &self,
        mut header: Header,
        body: &[u8],
        payload: &[IoSlice<'_>],
        before: Vec<Before<F>>,
        key: Option<u32>,
    ) -> Result<(), ConnError> {
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        header.body_bytes = body.len() as u32;
        header.payload_bytes = payload_bytes as u64;
        let head = header.encode();
        let message: Vec<&[u8]> =
            [&head[..], body].into_iter().chain(payload.iter().map(|part| &**part)).collect();
        let total = HEADER_BYTES + body.len() + payload_bytes;
        let mut at = Parts::default();
        let _turn = self.sending.lock().await;
        self.check_open()?;
        let mut before = self.send_before(before).await?;
        while at.sent < total {
            self.credit().await?;
            let mut slot = self.port.message_slot().await;
            let Before { chain, first, freed } = before.take().unwrap_or_default();
            let links = &chain.links[first..];
            self.room.acquire(links.len() + 1).await.forget();
            let mut batch = Batch::default();
            self.add_links(&mut batch, &chain, links, false, false);
            let kind = if at.sent == 0 { PartKind::First } else { PartKind::Further };
            let piece = self.fill(&mut slot, kind, &message, &mut at);
            let work = match key.filter(|_| at.sent == total) {
                Some(remote_key) => Work::SendInvalidate { remote_key },
                None => Work::Send,
            };
            self.add_work(&mut batch, work, [piece], true);
            // SAFETY: slots and keepers live until the work has ended; they hold all its memory.
            unsafe { self.post(&batch, vec![Freed::Shared(freed), Freed::Slot(slot)]) }?;
        }
        Ok(())
    }

    /// Writes what is to be written before a message, but for an end of it that fits one post with the message; all of it, if
    /// the message has to wait for credits.
    async fn send_before(&self, before: Vec<Before<F>>) -> Result<Option<Before<F>>, ConnError> {
        let may_send = self.credits.borrow().may_send();
        let mut waiting = before.into_iter().peekable();
        while let Some(Before { chain, mut first, freed }) = waiting.next() {
            let most = self.batch_max();
            let kept = if may_send && waiting.peek().is_none() { most } else { 0 };
            while chain.links.len() - first > kept {
                let links = &chain.links[first..chain.links.len().min(first + most)];
                self.room.acquire(links.len()).await.forget();
                let mut batch = Batch::default();
                self.add_links(&mut batch, &chain, links, false, true);
                // SAFETY: what holds the memory is held until the end of this work too.
                unsafe { self.post(&batch, vec![Freed::Shared(freed.clone())]) }?;
                first += links.len();
            }
            if kept > 0 {
                return Ok(Some(Before { chain, first, freed }));
            }
        }
        Ok(None)
    }

    pub(super) async fn reply(
        &self,
        header: Header,
        body: &[u8],
        payload: &[IoSlice<'_>],
    ) -> Result<(), ConnError> {
        self.check_open()?;
        let request = self.requests.borrow_mut().remove(&header.request_id);
        let Some(request) = request else {
            return self.send_message(header, body, payload, Vec::new(), None).await;
        };
        let bytes: usize = payload.iter().map(|part| part.len()).sum();
        let mut deferred = request.deferred.take();
        let described = request.described.as_ref();
        let payload = match described {
            Some(described) if bytes > 0 && bytes as u64 <= described.bytes().min(BOUNCE_BYTES as u64) => {
                deferred.push(self.bounced(payload, bytes).await);
                &[]
            }
            _ => payload,
        };
        let mut before = Vec::new();
        for Deferred { share_offset, pieces, bytes, freed } in deferred {
            let Some(described) = described else { continue };
            let pieces_max = self.port.device.limits().send_pieces_max;
            let chain = Chain::new(&pieces, described.pieces(share_offset, bytes), pieces_max);
            let turn = self.port.schedule.turn(self.number, bytes).await;
            before.push(Before { chain, first: 0, freed: Rc::new(vec![freed, Freed::Turn(turn)]) });
        }
        if let (Some(number), Some(fast)) = (request.fast, &self.fast) {
            fast.used.borrow_mut()[usize::from(number)] = false;
        }
        // An adapter without windows may not know how to end keys of others; then the client does it.
        let can_end = self.port.device.limits().windows;
        let key = described.and_then(|described| described.last_key()).filter(|_| can_end);
        self.send_message(header, body, payload, before, key).await
    }

    /// Inline data for memory that was described, in a registered buffer.
    async fn bounced(&self, payload: &[IoSlice<'_>], bytes: usize) -> Deferred<F> {
        let mut slot = self.port.bounce_slot().await;
        // SAFETY: the slot is new, so no work uses it.
        let memory = unsafe { slot.fill() };
        let mut at = 0;
        for part in payload {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.port.transfers.copied(bytes);
        let pieces = vec![slot.piece(bytes)];
        Deferred { share_offset: 0, pieces, bytes: bytes as u64, freed: Freed::Slot(slot) }
    }
}

/// How far a message is sent.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) sent: usize,
}

impl Parts {
    /// Copies what comes next into `room`, as much as fits; returns how much.
    pub(super) fn take(&mut self, message: &[&[u8]], room: &mut [u8]) -> usize {
        let (mut skip, mut filled) = (self.sent, 0);
        for part in message {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let bytes = (part.len() - skip).min(room.len() - filled);
            room[filled..filled + bytes].copy_from_slice(&part[skip..skip + bytes]);
            filled += bytes;
            skip = 0;
            if filled == room.len() {
                break;
            }
        }
        self.sent += filled;
        filled
    }
}
