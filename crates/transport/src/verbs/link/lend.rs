//! Data that this side moves: between the caller's pieces and memory that the server lends.
//!
//! ```text
//!   server lends a part ─► [ lent ] ─► RDMA Writes from the pieces, or RDMA Reads into them, as far as queue and budget allow
//!                                      all posted (Writes) or ended (Reads) ─► Send with Invalidate: given back
//! ```
//!
//! A part is given back in the same order on the wire in which it was written. It is not given back before
//! its Reads have ended: an answer that was lost is asked for again, and the key has to be valid then.

use weft_rdma::{Batch, Chain, RemotePiece};
use weft_verbs::{Device, Fabric, MemoryPiece, Work};
use weft_wire::messages::{LentMemory, MemoryRun};

use crate::error::LinkError;
use crate::registration::Pinned;
use crate::runs::Cursor;
use crate::verbs::choose::Direction;
use crate::verbs::envelope::{Lend, PartKind};
use crate::verbs::lend::{LENT_MAX, LENT_WORK_BYTES_MAX};

use super::*;

/// A request whose data this side moves.
pub(super) struct Moved {
    /// The caller's memory, all of it registered.
    runs: MemoryRuns,
    bytes: u64,
    /// Into the caller's memory.
    read: bool,
    /// Parts that are lent for it now.
    open: usize,
}

impl Moved {
    pub(super) fn new(runs: MemoryRuns, bytes: u64, direction: Direction) -> Moved {
        Moved { runs, bytes, read: direction == Direction::Put, open: 0 }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.open > 0
    }
}

/// Memory that the server has lent.
pub(super) struct LentPart {
    request_id: u64,
    remote_key: u32,
    read: bool,
    chain: Chain,
    /// Links from here on are still to be posted.
    next: usize,
    /// The last piece of work that is posted.
    last_work: u64,
}

impl<F: Fabric> Inner<F> {
    /// Pieces that one work request on lent memory has; fewer than two are no use.
    pub(super) fn lent_pieces_max(&self, direction: Direction) -> usize {
        let limits = self.adapter.device.limits();
        match direction {
            Direction::Get => limits.send_pieces_max,
            Direction::Put => limits.read_pieces_max,
        }
    }

    /// What the server is told of a request whose data this side moves.
    pub(super) fn lent_memory(&self, runs: &[MemoryRun], bytes: u64, direction: Direction) -> LentMemory {
        let regular = runs.first().filter(|first| runs.iter().all(|run| run.bytes == first.bytes));
        let of = |run: &MemoryRun| run.bytes.saturating_mul(self.lent_pieces_max(direction) as u64);
        let step_bytes = regular.map_or(0, of).min(LENT_WORK_BYTES_MAX);
        LentMemory { bytes, step_bytes: step_bytes as u32, write: direction == Direction::Get }
    }

    /// The server lends a part.
    pub(super) fn take_lent(&mut self, told: Lend) -> Result<(), LinkError> {
        let wrong = self.protocol("it lent memory that was not asked for");
        let at = self.pending.iter().position(|pending| pending.request_id == told.request_id);
        let Some(pending) = at.map(|at| &mut self.pending[at]).filter(|pending| pending.reply.is_none())
        else {
            return Err(wrong);
        };
        let (Some(moved), Some(pinned)) = (&mut pending.moved, &pending.pinned) else { return Err(wrong) };
        let end = told.share_offset.checked_add(told.bytes.into());
        if self.lent.len() >= LENT_MAX || told.bytes == 0 || end.is_none_or(|end| end > moved.bytes) {
            return Err(wrong);
        }
        let Some(pieces) = registered(pinned, &moved.runs, told.share_offset, told.bytes.into()) else {
            return Err(RunsError::NotRegistered.into());
        };
        moved.open += 1;
        let direction = if moved.read { Direction::Put } else { Direction::Get };
        let Lend { request_id, address, bytes, remote_key, .. } = told;
        let (read, whole) = (moved.read, RemotePiece { address, bytes: bytes.into(), remote_key });
        let chain = Chain::bounded(&pieces, [whole], self.lent_pieces_max(direction), LENT_WORK_BYTES_MAX);
        self.lent.push_back(LentPart { request_id, remote_key, read, chain, next: 0, last_work: 0 });
        Ok(())
    }

    /// Adds the work on lent parts to the batch, in their order, and gives back those that are done.
    pub(super) fn move_lent(&mut self, batch: &mut Batch) {
        let mut waiting = VecDeque::new();
        while let Some(mut part) = self.lent.pop_front() {
            let all = self.post_part(&mut part, batch);
            if !all || !self.give_back(&part, batch) {
                waiting.push_back(part);
            }
            if !all {
                break;
            }
        }
        waiting.append(&mut self.lent);
        self.lent = waiting;
    }

    /// Adds the work of a part; false if there is no room for all of it.
    fn post_part(&mut self, part: &mut LentPart, batch: &mut Batch) -> bool {
        while let Some(link) = part.chain.links.get(part.next) {
            let bytes = part.chain.bytes(link);
            if !self.has_room() || !self.budget.allows(bytes) {
                return false;
            }
            let (remote_address, remote_key) = (link.remote_address, link.remote_key);
            let work = if part.read {
                Work::Read { remote_address, remote_key }
            } else {
                Work::Write { remote_address, remote_key }
            };
            part.next += 1;
            let last = part.read && part.next == part.chain.links.len();
            let signalled = self.budget.post(bytes) || last;
            let pieces = part.chain.pieces(link).iter().copied();
            part.last_work = self.requester.add(batch, work, pieces, Freed::Lent(bytes), signalled);
        }
        true
    }

    /// Gives a part back of which all work is posted; false if that has to wait.
    fn give_back(&mut self, part: &LentPart, batch: &mut Batch) -> bool {
        let is_under_way = self.requester.is_under_way(part.last_work);
        if (part.read && is_under_way) || !self.credits.may_send() || !self.has_room() {
            return false;
        }
        let Some(slot) = self.sends_free.pop() else { return false };
        let bytes = self.fill(slot, PartKind::GiveBack, |_| 0);
        let piece = self.sends.piece(slot, bytes);
        let work = Work::SendInvalidate { remote_key: part.remote_key };
        let number = self.requester.add(batch, work, [piece], Freed::Send(slot), true);
        if let Some(pending) = self.pending.iter_mut().find(|one| one.request_id == part.request_id) {
            // The caller's memory may be sent from again until all of this is acknowledged.
            pending.waits_for = Some(number);
            if let Some(moved) = &mut pending.moved {
                moved.open -= 1;
            }
        }
        true
    }
}

/// The caller's pieces of a part of the share, with their keys; `None` if one is not registered.
fn registered<D: Device>(
    pinned: &Pinned<D>,
    runs: &[MemoryRun],
    share_offset: u64,
    bytes: u64,
) -> Option<Vec<MemoryPiece>> {
    let (mut pieces, mut all) = (Vec::new(), true);
    Cursor::at(runs, share_offset).walk(runs, bytes, |_, mut address, mut bytes| {
        while bytes > 0 && all {
            // A piece that no region holds lies in several that touch.
            let region = pinned.find(address, bytes).or_else(|| {
                let begun = pinned.regions().iter().filter(|region| region.address <= address);
                begun.max_by_key(|region| region.address + region.bytes)
            });
            let left = region.map_or(0, |region| (region.address + region.bytes).saturating_sub(address));
            let (part, local_key) =
                (bytes.min(left).min(u32::MAX.into()), region.map_or(0, |region| region.local_key));
            all = part > 0;
            pieces.push(MemoryPiece { address, bytes: part as u32, local_key });
            address += part;
            bytes -= part;
        }
        all
    });
    all.then_some(pieces)
}
