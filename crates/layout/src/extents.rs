//! Walking [`Regions`] block by block.
//!
//! Every regular form is one nest of loops around a block of adjacent bytes, with the loops that only continue
//! the block folded into it. In a C-ordered 4 × 3 array of 8-byte elements, the first two rows need no loop at
//! all, and the first two columns need one:
//!
//! ```text
//!   for row in 0..2 { for column in 0..3 { 8 bytes at 24 row + 8 column } }   =>   48 bytes at 0
//!   for row in 0..4 { for column in 0..2 { 8 bytes at 24 row + 8 column } }   =>   for row in 0..4 {
//!                                                                                     16 bytes at 24 row }
//! ```

use std::ops::Range;

use crate::joined::{Joined, Run};
use crate::region::{Extent, Level, Order, Region, Regions};

/// A regular region in normal form. Loops are innermost first; none has a count of 0 or 1.
#[derive(Debug, Clone)]
pub(crate) struct Nest {
    pub(crate) offset: u64,
    /// Adjacent bytes in each innermost step; 0 when the region has no bytes at all.
    pub(crate) block_bytes: u64,
    pub(crate) loops: Vec<Level>,
}

impl Nest {
    /// The normal form of `region`, or its extents when it is an explicit list.
    pub(crate) fn of(region: &Region) -> Result<Nest, &[Extent]> {
        match region {
            Region::Contiguous(extent) => {
                Ok(Nest { offset: extent.offset, block_bytes: extent.bytes, loops: Vec::new() })
            }
            Region::Strided { offset, levels, .. } if levels.iter().any(|level| level.count == 0) => {
                Ok(Nest::nothing(*offset))
            }
            Region::Strided { offset, block_bytes, levels } => {
                Ok(Nest::fold(*offset, *block_bytes, levels.iter().rev().copied()))
            }
            Region::Subarray { offset, dims, starts, counts, element_bytes, order } => {
                let axes =
                    dims.iter().zip(starts).zip(counts).map(|((&dim, &start), &count)| (dim, start, count));
                Ok(match order {
                    Order::C => Nest::of_array(*offset, *element_bytes, axes.rev()),
                    Order::Fortran => Nest::of_array(*offset, *element_bytes, axes),
                })
            }
            Region::List(extents) => Err(extents),
        }
    }

    /// `axes` are (dim, start, count), fastest varying first.
    fn of_array(
        offset: u64,
        element_bytes: u64,
        axes: impl Iterator<Item = (u64, u64, u64)> + Clone,
    ) -> Nest {
        if axes.clone().any(|(_, _, count)| count == 0) {
            return Nest::nothing(offset);
        }
        let mut stride_bytes = element_bytes;
        let mut first_offset = offset;
        let loops = axes.map(|(dim, start, count)| {
            let level = Level { count, stride_bytes: stride_bytes as i64 };
            first_offset += start * stride_bytes;
            stride_bytes *= dim;
            level
        });
        let nest = Nest::fold(0, element_bytes, loops);
        Nest { offset: first_offset, ..nest }
    }

    fn nothing(offset: u64) -> Nest {
        Nest { offset, block_bytes: 0, loops: Vec::new() }
    }

    /// Folds `levels`, innermost first and none of them with a count of 0, around a block.
    fn fold(offset: u64, mut block_bytes: u64, levels: impl Iterator<Item = Level>) -> Nest {
        let mut loops: Vec<Level> = Vec::new();
        for level in levels {
            if block_bytes == 0 {
                return Nest::nothing(offset);
            }
            let continues = |inner: &Level| {
                i64::try_from(inner.count).ok().and_then(|count| inner.stride_bytes.checked_mul(count))
                    == Some(level.stride_bytes)
            };
            match loops.last_mut() {
                _ if level.count == 1 => {}
                None if u64::try_from(level.stride_bytes) == Ok(block_bytes) => block_bytes *= level.count,
                Some(inner) if continues(inner) => inner.count *= level.count,
                _ => loops.push(level),
            }
        }
        Nest { offset, block_bytes, loops }
    }

    /// How many blocks there are.
    pub(crate) fn blocks(&self) -> u64 {
        if self.block_bytes == 0 { 0 } else { self.loops.iter().map(|level| level.count).product() }
    }
}

/// The blocks of a [`Nest`] that are still to come.
#[derive(Debug, Clone)]
struct NestCursor {
    nest: Nest,
    /// Loop counters of the next block, innermost first.
    indices: Vec<u64>,
    next_offset: u64,
    blocks_total: u64,
    blocks_left: u64,
}

impl NestCursor {
    fn new(nest: Nest) -> NestCursor {
        let blocks = nest.blocks();
        NestCursor {
            indices: vec![0; nest.loops.len()],
            next_offset: nest.offset,
            blocks_total: blocks,
            blocks_left: blocks,
            nest,
        }
    }

    fn next(&mut self) -> Option<Extent> {
        if self.blocks_left == 0 {
            return None;
        }
        let block = Extent { offset: self.next_offset, bytes: self.nest.block_bytes };
        self.blocks_left -= 1;
        for (level, index) in self.nest.loops.iter().zip(&mut self.indices) {
            if *index + 1 < level.count {
                *index += 1;
                self.next_offset = self.next_offset.wrapping_add_signed(level.stride_bytes);
                break;
            }
            self.next_offset = self.next_offset.wrapping_sub(index.wrapping_mul(level.stride_bytes as u64));
            *index = 0;
        }
        Some(block)
    }

    /// Passes over `blocks` blocks, of which there must be as many left. O(loops).
    fn skip_blocks(&mut self, blocks: u64) {
        self.blocks_left -= blocks;
        let mut position = self.blocks_total - self.blocks_left;
        self.next_offset = self.nest.offset;
        for (level, index) in self.nest.loops.iter().zip(&mut self.indices) {
            *index = position % level.count;
            position /= level.count;
            self.next_offset = self.next_offset.wrapping_add(index.wrapping_mul(level.stride_bytes as u64));
        }
    }

    /// Passes over blocks that lie in `gap`, as far as the current run of the innermost loop goes, all at
    /// once. Returns how many bytes of the stream that was.
    fn skip_in(&mut self, gap: Range<u64>) -> u64 {
        let (Some(inner), Some(&index)) = (self.nest.loops.first(), self.indices.first()) else { return 0 };
        let first_end = self.next_offset + self.nest.block_bytes;
        let is_first_in = gap.start <= self.next_offset && first_end <= gap.end;
        if self.blocks_left == 0 || inner.stride_bytes <= 0 || !is_first_in {
            return 0;
        }
        let in_gap = (gap.end - first_end) / inner.stride_bytes as u64 + 1;
        let blocks = in_gap.min(inner.count - index);
        self.skip_blocks(blocks);
        blocks * self.nest.block_bytes
    }
}

#[derive(Debug, Clone)]
enum PartCursor<'a> {
    Nest(NestCursor),
    List(std::slice::Iter<'a, Extent>),
}

impl<'a> PartCursor<'a> {
    fn of(region: &'a Region) -> PartCursor<'a> {
        match Nest::of(region) {
            Ok(nest) => PartCursor::Nest(NestCursor::new(nest)),
            Err(extents) => PartCursor::List(extents.iter()),
        }
    }

    fn next(&mut self) -> Option<Extent> {
        match self {
            PartCursor::Nest(nest) => nest.next(),
            PartCursor::List(extents) => extents.find(|extent| extent.bytes > 0).copied(),
        }
    }
}

/// A position in the blocks of some regions, in request order.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    parts: std::slice::Iter<'a, Region>,
    part: PartCursor<'a>,
    /// What is left of the current block; empty only at the end.
    block: Extent,
    stream_offset: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(regions: &'a Regions) -> Cursor<'a> {
        Cursor::over(&regions.parts)
    }

    /// A cursor that is at its end from the beginning.
    pub(crate) fn empty() -> Cursor<'a> {
        Cursor::over(&[])
    }

    fn over(parts: &'a [Region]) -> Cursor<'a> {
        let none = PartCursor::List([].iter());
        let mut cursor = Cursor {
            parts: parts.iter(),
            part: none,
            block: Extent { offset: 0, bytes: 0 },
            stream_offset: 0,
        };
        cursor.load_block();
        cursor
    }

    /// The current block, without what was passed over of it.
    pub(crate) fn block(&self) -> Option<Extent> {
        (self.block.bytes > 0).then_some(self.block)
    }

    /// Where in the request stream the current block begins.
    pub(crate) fn stream_offset(&self) -> u64 {
        self.stream_offset
    }

    /// Goes to the next block.
    pub(crate) fn advance(&mut self) {
        self.stream_offset += self.block.bytes;
        self.load_block();
    }

    /// Goes past the current block and, cheaply, past those that follow it and end at or before `limit`
    /// without beginning before it. May stop early.
    pub(crate) fn skip_to(&mut self, limit: u64) {
        self.stream_offset += self.block.bytes;
        if let PartCursor::Nest(nest) = &mut self.part {
            self.stream_offset += nest.skip_in(self.block.offset..limit);
        }
        self.load_block();
    }

    /// Passes over `bytes` of the stream: O(loops) within a regular part, one step per extent in a list.
    pub(crate) fn advance_bytes(&mut self, mut bytes: u64) {
        while bytes >= self.block.bytes && self.block.bytes > 0 {
            bytes -= self.block.bytes;
            self.stream_offset += self.block.bytes;
            if let PartCursor::Nest(nest) = &mut self.part {
                let blocks = (bytes / nest.nest.block_bytes).min(nest.blocks_left);
                let skipped = blocks * nest.nest.block_bytes;
                nest.skip_blocks(blocks);
                bytes -= skipped;
                self.stream_offset += skipped;
            }
            self.load_block();
        }
        let within = bytes.min(self.block.bytes);
        self.block.split_front(within);
        self.stream_offset += within;
    }

    fn load_block(&mut self) {
        self.block = loop {
            if let Some(block) = self.part.next() {
                break block;
            }
            match self.parts.next() {
                Some(region) => self.part = PartCursor::of(region),
                None => break Extent { offset: self.block.end(), bytes: 0 },
            }
        };
    }
}

impl Iterator for Cursor<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let block = self.block()?;
        self.advance();
        Some(block)
    }
}

impl Run for Extent {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn join(&mut self, next: &Extent) -> bool {
        let touches = self.end() == next.offset;
        if touches {
            self.bytes += next.bytes;
        }
        touches
    }

    fn split_front(&mut self, bytes: u64) -> Extent {
        let front = Extent { offset: self.offset, bytes };
        self.offset += bytes;
        self.bytes -= bytes;
        front
    }
}

/// The extents of some [`Regions`] in request order: neighbours that touch are joined, empty ones left out.
#[derive(Debug, Clone)]
pub struct Extents<'a>(Joined<Cursor<'a>, Extent>);

impl<'a> Extents<'a> {
    pub(crate) fn from_stream_offset(regions: &'a Regions, stream_offset: u64) -> Extents<'a> {
        let mut cursor = Cursor::new(regions);
        cursor.advance_bytes(stream_offset);
        Extents(Joined::new(cursor))
    }

    /// The next extent, or its first `max_bytes` bytes if it is longer; the rest comes next. `None` at the
    /// end, and for a `max_bytes` of 0.
    pub fn next_at_most(&mut self, max_bytes: u64) -> Option<Extent> {
        self.0.next_at_most(max_bytes)
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        self.0.next_run()
    }
}
