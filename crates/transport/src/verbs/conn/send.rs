//! Messages and what goes before them, in the order of asking.

use std::io::IoSlice;
use std::task::Poll;
use std::time::Duration;

use weft_rdma::{BOUNCE_BYTES, Held, Slot, Writes};
use weft_reactor::timeout;
use weft_verbs::Fabric;
use weft_wire::limits::STALL_TIMEOUT_MS;
use weft_wire::{HEADER_BYTES, Header};

use super::state::{ConnInner, Deferred};
use crate::error::ConnError;
use crate::verbs::envelope::{ENVELOPE_BYTES, Envelope, PartKind};

impl<F: Fabric> ConnInner<F> {
    /// Writes an envelope and what comes next of a message into a slot; returns the bytes of both.
    pub(super) fn fill(
        &self,
        slot: &mut Slot<F::Device>,
        kind: PartKind,
        message: &[&[u8]],
        at: &mut Parts,
    ) -> usize {
        let credits = self.credits.borrow_mut().spend();
        // SAFETY: the slot is new, so no work uses it.
        let (envelope, room) = unsafe { slot.fill() }.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind }.encode());
        ENVELOPE_BYTES + at.take(message, room)
    }

    /// Waits for a credit for a part of a message.
    pub(super) async fn credit(&self) -> Result<(), ConnError> {
        let wait = std::future::poll_fn(|cx| {
            if let Err(error) = self.check_open() {
                return Poll::Ready(Err(error));
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
                self.fail("it takes no replies".into());
                Err(ConnError::Stalled { peer: self.peer_text(), timeout_ms: STALL_TIMEOUT_MS })
            }
        }
    }

    /// Sends a message in this task's turn, behind `before`, whose last pieces are posted together with its
    /// first part. Its last part ends the validity of a key of the client's, if one is given.
    pub(in crate::verbs) async fn send_message(
        &self,
        mut header: Header,
        body: &[u8],
        payload: &[IoSlice<'_>],
        before: Vec<Writes<F>>,
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
        let joined = self.credits.borrow().may_send();
        let written = self.channel.write_before(before, joined).await;
        let mut before = written.map_err(|ended| self.of_channel(ended))?;
        while at.sent < total {
            self.credit().await?;
            let mut slot = self.port().message_slot().await;
            let writes = std::mem::take(&mut before);
            let room = self.channel.room(writes.len() + 1).await;
            let kind = if at.sent == 0 { PartKind::First } else { PartKind::Further };
            let bytes = self.fill(&mut slot, kind, &message, &mut at);
            let ends_key = key.filter(|_| at.sent == total);
            let sent = self.channel.send(room, writes, slot, bytes, ends_key);
            sent.map_err(|ended| self.of_channel(ended))?;
        }
        Ok(())
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
        let mut before = Vec::with_capacity(deferred.len());
        for Deferred { share_offset, pieces, bytes, held } in deferred {
            let Some(described) = described else { continue };
            // SAFETY: what it holds keeps the pieces ([`super::state::Request::defer`],
            // [`ConnInner::bounced`]).
            before.push(unsafe {
                self.channel.writes(&pieces, described.pieces(share_offset, bytes), held).await
            });
        }
        if let (Some(number), Some(fast)) = (request.fast, &self.fast) {
            fast.used.borrow_mut()[usize::from(number)] = false;
        }
        // An adapter without windows may not know how to end keys of others; then the client does it.
        let can_end = self.channel.limits().windows;
        let key = described.and_then(|described| described.last_key()).filter(|_| can_end);
        self.send_message(header, body, payload, before, key).await
    }

    /// Inline data for memory that was described, in a registered buffer.
    async fn bounced(&self, payload: &[IoSlice<'_>], bytes: usize) -> Deferred<F> {
        let mut slot = self.port().bounce_slot().await;
        // SAFETY: the slot is new, so no work uses it.
        let memory = unsafe { slot.fill() };
        let mut at = 0;
        for part in payload {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.port_state.transfers.copied(bytes);
        let pieces = vec![slot.piece(bytes)];
        Deferred { share_offset: 0, pieces, bytes: bytes as u64, held: Held::Slot(slot) }
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
