//! The part of a process that has bytes to move: it copies them from and to areas on its node, and packs
//! messages for aggregators on others.

use crate::codec::RunWriter;
use crate::engine::Request;
use crate::memory::{Direction, Memory};
use crate::plan::Plan;
use crate::walk::{AreaRun, ShareWalk};

/// The request of this process, slot by slot.
pub(crate) struct Own<'a> {
    slots: Vec<OwnSlot<'a>>,
    /// Walks for the lists that are sent ahead of the bytes, where there are any.
    lists: Vec<ShareWalk<'a>>,
}

struct OwnSlot<'a> {
    walk: ShareWalk<'a>,
    memory: Memory<'a>,
    /// The position to begin every round with, where the request is not ascending.
    begin: Option<Memory<'a>>,
}

impl<'a> Own<'a> {
    /// The bytes of `request`; `ascends`: those of the file are ascending.
    pub fn new(plan: &Plan, request: &Request<'a>, ascends: bool, sends_lists: bool) -> Own<'a> {
        let Request { base, memory, file } = *request;
        let walk = |slot| ShareWalk::new(&plan.layout, &plan.rounds, slot, file, ascends);
        let memory = Memory::user(base, memory);
        let slot = |slot| OwnSlot {
            walk: walk(slot),
            memory: memory.clone(),
            begin: (!ascends).then(|| memory.clone()),
        };
        let all = 0..plan.layout.server_count();
        let lists = if sends_lists { all.clone().map(walk).collect() } else { Vec::new() };
        Own { slots: all.map(slot).collect(), lists }
    }

    /// Whether its aggregators need lists.
    pub fn sends_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    /// Moves the bytes of `slot` in `round` from or to its area.
    ///
    /// # Safety
    /// The area is valid for what `direction` says, and so is the memory of the request; no other process
    /// touches these bytes of the area meanwhile, but to write other values for the same request.
    pub unsafe fn copy(&mut self, direction: Direction, slot: u16, round: u64, area: *mut u8) {
        self.slots[usize::from(slot)].each(round, |memory, run| {
            // SAFETY: the caller's promise; runs are within the area.
            unsafe { memory.transfer(direction, area, &run) };
        });
    }

    /// Appends the bytes of `slot` in `round` to a message.
    ///
    /// # Safety
    /// The memory of the request is valid for reads.
    pub unsafe fn pack(&mut self, slot: u16, round: u64, message: &mut Vec<u8>) {
        self.slots[usize::from(slot)].each(round, |memory, run| {
            let begin = message.len();
            let bytes = run.total_bytes() as usize;
            message.reserve(bytes);
            // SAFETY: there is room for the run; transfer fills all of it.
            unsafe {
                memory.transfer(Direction::Write, message.as_mut_ptr().add(begin), &in_message(&run));
                message.set_len(begin + bytes);
            }
        });
    }

    /// Takes the bytes of `slot` in `round` from the front of a message. `false`: it is too short.
    ///
    /// # Safety
    /// The memory of the request is valid for writes.
    pub unsafe fn unpack(&mut self, slot: u16, round: u64, message: &mut &mut [u8]) -> bool {
        let mut is_complete = true;
        self.slots[usize::from(slot)].each(round, |memory, run| {
            let Some(bytes) = message.split_off_mut(..run.total_bytes() as usize) else {
                is_complete = false;
                return;
            };
            // SAFETY: the message has the bytes of the run, and the caller's promise.
            unsafe { memory.transfer(Direction::Read, bytes.as_mut_ptr(), &in_message(&run)) };
        });
        is_complete
    }

    /// Number of bytes of these slots in `round`, which was not moved yet.
    pub fn bytes_in(&self, slots: impl Iterator<Item = u16>, round: u64) -> u64 {
        slots.map(|slot| self.slots[usize::from(slot)].walk.bytes_in(round)).sum()
    }

    /// The lists of these slots in `round`.
    pub fn lists(&mut self, slots: impl Iterator<Item = u16>, round: u64) -> Vec<u8> {
        let mut message = Vec::new();
        for slot in slots {
            let mut writer = RunWriter::new(&mut message);
            self.lists[usize::from(slot)].round(round, |run| writer.push(&run));
            writer.finish();
        }
        message
    }
}

impl<'a> OwnSlot<'a> {
    #[inline]
    fn each(&mut self, round: u64, mut each: impl FnMut(&mut Memory<'a>, AreaRun)) {
        if let Some(begin) = &self.begin {
            self.memory = begin.clone();
        }
        let memory = &mut self.memory;
        self.walk.round(round, |run| each(memory, run));
    }
}

/// The pieces of a run one after the other, as in a message.
fn in_message(run: &AreaRun) -> AreaRun {
    AreaRun { area_offset: 0, bytes: run.total_bytes(), stride_bytes: 0, count: 1, ..*run }
}
