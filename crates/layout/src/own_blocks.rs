//! The parts of a request that one slot owns, block by block; what is between them is passed over.

use std::ops::Range;

use thiserror::Error;

use crate::extents::Cursor;
use crate::region::{Extent, Regions};
use crate::striping::Layout;

/// The part of one block of the request on one slot. Its bytes are adjacent in the data file, since the bytes
/// between them are on other slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBlock {
    pub share_offset: u64,
    pub local_offset: u64,
    pub bytes: u64,
    /// Added to a logical offset within the block, this gives the position in the stream (modulo 2^64).
    pub stream_minus_logical: u64,
}

/// The blocks of a request that have bytes on one slot.
#[derive(Debug, Clone)]
pub(crate) struct OwnBlocks<'a> {
    layout: Layout,
    slot: u16,
    pub cursor: Cursor<'a>,
    share_offset: u64,
    /// The first block, if it was cut to start in the middle of the share.
    first: Option<OwnBlock>,
    round: Round,
}

/// A stripe: the one in which the last short block began. Most blocks begin in it too, or in the next one,
/// which saves divisions.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Its offset in the file.
    logical: u64,
    /// The offset of the slot's strip in the data file.
    local: u64,
    /// The offset of the slot's strip within the stripe.
    strip_start: u64,
    strip_bytes: u64,
    stripe_bytes: u64,
}

impl Round {
    fn first(layout: &Layout, slot: u16) -> Round {
        let strip_bytes = u64::from(layout.strip_bytes());
        let strip_start = u64::from(slot) * strip_bytes;
        Round { logical: 0, local: 0, strip_start, strip_bytes, stripe_bytes: layout.stripe_bytes() }
    }

    /// Moves to the stripe of `offset`.
    #[inline]
    fn go_to(&mut self, offset: u64) {
        let ahead = offset.wrapping_sub(self.logical);
        if ahead < self.stripe_bytes {
            return;
        }
        if ahead < 2 * self.stripe_bytes {
            self.logical += self.stripe_bytes;
            self.local += self.strip_bytes;
        } else {
            let index = offset / self.stripe_bytes;
            self.logical = index * self.stripe_bytes;
            self.local = index * self.strip_bytes;
        }
    }

    /// How many bytes of the slot's strip are below `offset`, which is in this stripe or at its end.
    #[inline]
    fn own_below(&self, offset: u64) -> u64 {
        (offset - self.logical).saturating_sub(self.strip_start).min(self.strip_bytes)
    }

    /// The bytes of other slots around `offset`, which is in this stripe and not on the slot.
    fn gap_around(&self, offset: u64) -> Range<u64> {
        let others_bytes = self.stripe_bytes - self.strip_bytes;
        let strip = self.logical.saturating_add(self.strip_start);
        let end = if offset < strip { strip } else { strip.saturating_add(self.stripe_bytes) };
        end.saturating_sub(others_bytes)..end
    }
}

impl<'a> OwnBlocks<'a> {
    pub fn over(layout: &Layout, slot: u16, cursor: Cursor<'a>) -> OwnBlocks<'a> {
        let round = Round::first(layout, slot);
        OwnBlocks { layout: *layout, slot, cursor, share_offset: 0, first: None, round }
    }

    pub fn from(layout: &Layout, slot: u16, regions: &'a Regions, share_offset: u64) -> OwnBlocks<'a> {
        if slot >= layout.server_count() {
            return OwnBlocks::over(layout, slot, Cursor::empty());
        }
        let mut blocks = OwnBlocks::over(layout, slot, Cursor::new(regions));
        if share_offset > 0 {
            blocks.first = blocks.by_ref().find(|block| block.share_offset + block.bytes > share_offset);
        }
        if let Some(first) = &mut blocks.first {
            let skipped = share_offset - first.share_offset;
            first.share_offset += skipped;
            first.local_offset += skipped;
            first.bytes -= skipped;
        }
        blocks
    }

    /// Local offset and number of the slot's bytes in `block`.
    #[inline]
    fn own(&mut self, block: Extent) -> (u64, u64) {
        if block.bytes < self.round.stripe_bytes {
            self.round.go_to(block.offset);
            if block.end() - self.round.logical <= self.round.stripe_bytes {
                let start = self.round.own_below(block.offset);
                return (self.round.local + start, self.round.own_below(block.end()) - start);
            }
        }
        let local = self.layout.local_size(self.slot, block.offset);
        (local, self.layout.local_size(self.slot, block.end()) - local)
    }

    /// Examines the current block, and moves past it. `None` at the end, `Some(None)` if it has nothing on
    /// the slot.
    #[inline]
    fn step(&mut self) -> Option<Option<OwnBlock>> {
        let block = self.cursor.block()?;
        let stream_minus_logical = self.cursor.stream_offset().wrapping_sub(block.offset);
        let (local_offset, bytes) = self.own(block);
        if bytes == 0 {
            self.round.go_to(block.offset);
            self.cursor.skip_in(self.round.gap_around(block.offset));
            return Some(None);
        }
        let share_offset = self.share_offset;
        self.share_offset += bytes;
        self.cursor.advance();
        Some(Some(OwnBlock { share_offset, local_offset, bytes, stream_minus_logical }))
    }

    /// As `next`, but examines at most `steps` blocks, and counts them down.
    pub fn next_within(&mut self, steps: &mut u32) -> Result<Option<OwnBlock>, OutOfSteps> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        while *steps > 0 {
            *steps -= 1;
            match self.step() {
                Some(None) => {}
                found => return Ok(found.flatten()),
            }
        }
        Err(OutOfSteps)
    }
}

/// A search has used up its steps. The next call continues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the search for the next run is not finished")]
pub struct OutOfSteps;

impl Iterator for OwnBlocks<'_> {
    type Item = OwnBlock;

    fn next(&mut self) -> Option<OwnBlock> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            if let Some(block) = self.step()? {
                return Some(block);
            }
        }
    }
}
