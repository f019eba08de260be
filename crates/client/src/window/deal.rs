//! Deals lists like cards, in one pass over file and memory: each server gets, and is sent, only the extents
//! that it has bytes of.
//!
//! ```text
//!   list      a b c d e f g h                       memory   0 1 2 3 4 5 6 7
//!   hands     io0: a d g      runs of memory 0 3 6          until a hand is full: 4,096 extents, 8,192 runs,
//!             io1: b c e f h  1‥2 4‥5 7                     or the largest share; that is the window
//! ```

use std::sync::Arc;

use weft_layout::{Extent, Extents, Layout, Region, Regions};
use weft_wire::limits::{LIST_EXTENTS_MAX, MEMORY_RUNS_MAX};
use weft_wire::messages::MemoryRun;
use weft_wire::{Wire, Writer};

use super::memory::{Memory, MemoryWalk};
use super::runs;
use super::share::{Common, PACK_WINDOW_BYTES, Share};
use crate::access::Movement;

/// Deals extents to servers.
pub(super) struct Dealer<'a> {
    file: Extents<'a>,
    memory: MemoryWalk<'a>,
    /// What is left of the extent that is being dealt.
    rest: Extent,
    /// Pieces of the file and of memory in one window, at most.
    pieces_max: (usize, usize),
    hands: Vec<Hand>,
    /// Hands that the current extent went to.
    dealt_to: Vec<u16>,
    slots: Slots,
}

/// What one server has got.
#[derive(Default)]
struct Hand {
    extents: Vec<Extent>,
    runs: Vec<MemoryRun>,
    bytes: u64,
}

/// Which slot has which strip, without divisions where strips are powers of two.
struct Slots {
    strip_bytes: u64,
    shift: Option<u32>,
    count: u64,
}

impl Slots {
    fn of(layout: &Layout) -> Slots {
        let strip_bytes = u64::from(layout.strip_bytes());
        let shift = strip_bytes.is_power_of_two().then(|| strip_bytes.trailing_zeros());
        Slots { strip_bytes, shift, count: u64::from(layout.server_count()) }
    }

    /// The slot of an offset, and how many bytes the strip still has there.
    fn at(&self, offset: u64) -> (usize, u64) {
        let strip = self.shift.map_or_else(|| offset / self.strip_bytes, |shift| offset >> shift);
        let slot = if self.count.is_power_of_two() { strip & (self.count - 1) } else { strip % self.count };
        (slot as usize, self.strip_bytes - (offset - strip * self.strip_bytes))
    }
}

/// How much of a window has been dealt.
#[derive(Default)]
struct Dealt {
    bytes: u64,
    memory_pieces: u64,
    full: bool,
}

impl<'a> Dealer<'a> {
    pub(super) fn new(
        layout: &Layout,
        file: &'a Regions,
        memory: Memory<'a>,
        pieces_max: (usize, usize),
    ) -> Dealer<'a> {
        Dealer {
            file: file.extents(),
            memory: memory.walk(),
            rest: Extent::new(0, 0),
            pieces_max,
            hands: (0..layout.server_count()).map(|_| Hand::default()).collect(),
            dealt_to: Vec::new(),
            slots: Slots::of(layout),
        }
    }

    pub(super) fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<Vec<Share>> {
        let mut dealt = Dealt::default();
        let mut file_pieces = 0;
        while !dealt.full && file_pieces < self.pieces_max.0 {
            if self.rest.bytes == 0 {
                let Some(extent) = self.file.next() else { break };
                self.rest = extent;
            }
            self.deal_extent(common, base, &mut dealt);
            file_pieces += 1;
        }
        (dealt.bytes > 0).then(|| self.collect(common))
    }

    /// Deals the current extent as far as hands have room.
    fn deal_extent(&mut self, common: &Common, base: u64, dealt: &mut Dealt) {
        let start = self.rest.offset;
        while self.rest.bytes > 0 && !dealt.full {
            let (slot, strip_left) = self.slots.at(self.rest.offset);
            let hand = &mut self.hands[slot];
            let room = common.reach.share_bytes_max - hand.bytes;
            // Packing is looked at often enough not to pass over the end of a packed window by much.
            let step = PACK_WINDOW_BYTES - dealt.bytes % PACK_WINDOW_BYTES;
            let part = self.rest.bytes.min(strip_left).min(room).min(step);
            if part == 0 || hand.extents.len() == LIST_EXTENTS_MAX {
                dealt.full = true;
                break;
            }
            let mut left = part;
            while left > 0 && !dealt.full && hand.runs.len() < MEMORY_RUNS_MAX {
                let Some(piece) = self.memory.next_at_most(left) else { break };
                let new = runs::push(&mut hand.runs, base.wrapping_add(piece.offset), piece.bytes);
                dealt.memory_pieces += u64::from(new);
                left -= piece.bytes;
                dealt.full = self.pieces_max.1 == 1;
            }
            let taken = part - left;
            dealt.full |= left > 0;
            if taken > 0 && !self.dealt_to.contains(&(slot as u16)) {
                self.dealt_to.push(slot as u16);
            }
            hand.bytes += taken;
            self.rest = Extent::new(self.rest.offset + taken, self.rest.bytes - taken);
            dealt.bytes += taken;
            dealt.full |= dealt.bytes >= PACK_WINDOW_BYTES
                && (common.movement == Movement::Pack
                    || common.packs_pieces(dealt.bytes, dealt.memory_pieces));
        }
        let extent = Extent::new(start, self.rest.offset - start);
        for slot in self.dealt_to.drain(..) {
            self.hands[usize::from(slot)].extents.push(extent);
        }
    }

    fn collect(&mut self, common: &Arc<Common>) -> Vec<Share> {
        let mut shares = Vec::with_capacity(self.hands.len());
        for (slot, hand) in self.hands.iter_mut().enumerate().filter(|(_, hand)| hand.bytes > 0) {
            let Hand { extents, runs, bytes } = std::mem::take(hand);
            let extent = if let [extent] = extents.as_slice() { Some(*extent) } else { None };
            let part = extent.map_or_else(|| Region::List(extents), Region::Contiguous);
            let mut out = Writer::new();
            Regions::from(part).put(&mut out);
            let share = common.share(slot as u16, bytes, Arc::new(out.into_bytes()), runs);
            shares.push(Share { extent, ..share });
        }
        shares
    }
}

/// The shares of an extent, however many requests they take.
pub(super) fn deal_all(common: &Arc<Common>, file: &Regions, memory: &Regions, base: u64) -> Vec<Share> {
    let memory = Memory::Regions(memory);
    let mut dealer = Dealer::new(&common.layout, file, memory, (usize::MAX, usize::MAX));
    std::iter::from_fn(|| dealer.next(common, base)).flatten().collect()
}
