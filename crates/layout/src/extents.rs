//! Walks [`Regions`] block by block.
//!
//! Every regular form is one nest of loops around a block of adjacent bytes. Loops that only continue the
//! block are folded into it. In a C-ordered 4 × 3 array of 8-byte elements, the first two rows need no loop,
//! and the first two columns need one:
//!
//! ```text
//!   for row in 0..2 { for column in 0..3 { 8 bytes at 24 row + 8 column } }   =>   48 bytes at 0
//!   for row in 0..4 { for column in 0..2 { 8 bytes at 24 row + 8 column } }   =>   for row in 0..4 {
//!                                                                                     16 bytes at 24 row }
//! ```

use std::ops::Range;

use crate::joined::{Joined, Run};
use crate::region::{Extent, Level, Order, Region, Regions};

/// The form of a part of a request, for walking.
#[derive(Debug, Clone)]
pub(crate) enum Form<'a> {
    Nest(Nest),
    List(&'a [Extent]),
    Repeat(Repetition<'a>),
}

/// The fields of a [`Region::Repeat`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Repetition<'a> {
    pub(crate) offset: u64,
    pub(crate) count: u64,
    pub(crate) stride_bytes: i64,
    pub(crate) body: &'a Regions,
}

impl<'a> Form<'a> {
    pub(crate) fn of(region: &'a Region) -> Form<'a> {
        Form::Nest(match region {
            Region::Contiguous(extent) => {
                Nest { offset: extent.offset, block_bytes: extent.bytes, loops: Vec::new() }
            }
            Region::Strided { offset, levels, .. } if levels.iter().any(|level| level.count == 0) => {
                Nest::nothing(*offset)
            }
            Region::Strided { offset, block_bytes, levels } => {
                Nest::fold(*offset, *block_bytes, levels.iter().rev().copied())
            }
            Region::Subarray { offset, dims, starts, counts, element_bytes, order } => {
                let axes =
                    dims.iter().zip(starts).zip(counts).map(|((&dim, &start), &count)| (dim, start, count));
                match order {
                    Order::C => Nest::of_array(*offset, *element_bytes, axes.rev()),
                    Order::Fortran => Nest::of_array(*offset, *element_bytes, axes),
                }
            }
            Region::List(extents) => return Form::List(extents),
            Region::Repeat { offset, count, stride_bytes, body } => {
                let (offset, count, stride_bytes) = (*offset, *count, *stride_bytes);
                return Form::Repeat(Repetition { offset, count, stride_bytes, body });
            }
        })
    }
}

/// A regular region in normal form. Loops are innermost first; none has a count of 0 or 1.
#[derive(Debug, Clone)]
pub(crate) struct Nest {
    pub(crate) offset: u64,
    /// Adjacent bytes in each innermost step; 0 when the region has no bytes at all.
    pub(crate) block_bytes: u64,
    pub(crate) loops: Vec<Level>,
}

impl Nest {
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
    pub(crate) fn fold(offset: u64, mut block_bytes: u64, levels: impl Iterator<Item = Level>) -> Nest {
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

    /// The number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        if self.block_bytes == 0 { 0 } else { self.loops.iter().map(|level| level.count).product() }
    }
}

/// The remaining blocks of a [`Nest`].
#[derive(Debug, Clone)]
struct NestCursor {
    nest: Nest,
    /// Counters of the loops around the innermost one, innermost first.
    outer_indices: Vec<u64>,
    /// The offset of the current run of the innermost loop.
    run_offset: u64,
    /// Remaining blocks of the current run.
    run_left: u64,
    /// The offset of the next of them.
    next_offset: u64,
    stride_bytes: i64,
}

impl NestCursor {
    fn new(nest: Nest) -> NestCursor {
        let innermost = nest.loops.first();
        NestCursor {
            outer_indices: vec![0; nest.loops.len().saturating_sub(1)],
            run_offset: nest.offset,
            run_left: if nest.block_bytes == 0 { 0 } else { innermost.map_or(1, |level| level.count) },
            next_offset: nest.offset,
            stride_bytes: innermost.map_or(0, |level| level.stride_bytes),
            nest,
        }
    }

    #[inline]
    fn next(&mut self) -> Option<Extent> {
        if self.run_left == 0 && !self.next_run() {
            return None;
        }
        let block = Extent { offset: self.next_offset, bytes: self.nest.block_bytes };
        self.run_left -= 1;
        self.next_offset = self.next_offset.wrapping_add_signed(self.stride_bytes);
        Some(block)
    }

    fn next_run(&mut self) -> bool {
        let Some((innermost, outer)) = self.nest.loops.split_first() else { return false };
        for (level, index) in outer.iter().zip(&mut self.outer_indices) {
            if *index + 1 < level.count {
                *index += 1;
                self.run_offset = self.run_offset.wrapping_add_signed(level.stride_bytes);
                self.next_offset = self.run_offset;
                self.run_left = innermost.count;
                return true;
            }
            self.run_offset = self.run_offset.wrapping_sub(index.wrapping_mul(level.stride_bytes as u64));
            *index = 0;
        }
        false
    }

    /// Skips `blocks` blocks, or as many as are left. Returns their number. O(loops).
    fn skip_blocks(&mut self, blocks: u64) -> u64 {
        if blocks <= self.run_left {
            self.run_left -= blocks;
            self.next_offset = self.next_offset.wrapping_add(blocks.wrapping_mul(self.stride_bytes as u64));
            return blocks;
        }
        let Some((innermost, outer)) = self.nest.loops.split_first() else {
            return std::mem::take(&mut self.run_left);
        };
        let runs_passed = outer
            .iter()
            .zip(&self.outer_indices)
            .rev()
            .fold(0, |runs, (level, index)| runs * level.count + index);
        let passed = runs_passed * innermost.count + (innermost.count - self.run_left);
        let skipped = blocks.min(self.nest.blocks() - passed);
        // The last skipped block stays within its run, even if it ends all of them.
        let last = passed + skipped - 1;
        let mut run = last / innermost.count;
        self.run_offset = self.nest.offset;
        for (level, index) in outer.iter().zip(&mut self.outer_indices) {
            *index = run % level.count;
            run /= level.count;
            self.run_offset = self.run_offset.wrapping_add(index.wrapping_mul(level.stride_bytes as u64));
        }
        let run_passed = last % innermost.count + 1;
        self.run_left = innermost.count - run_passed;
        self.next_offset = self.run_offset.wrapping_add(run_passed.wrapping_mul(self.stride_bytes as u64));
        skipped
    }

    /// In an ascending nest: skips the blocks that end at or below `offset`. Returns how many bytes of the
    /// stream that was. O(loops).
    fn skip_below(&mut self, offset: u64) -> u64 {
        let Some((innermost, outer)) = self.nest.loops.split_first() else { return 0 };
        let (mut first, mut below) = (self.nest.offset, 0);
        for level in self.nest.loops.iter().rev() {
            let step = level.stride_bytes.unsigned_abs().max(1);
            let index = (offset.saturating_sub(first) / step).min(level.count - 1);
            below = below * level.count + index;
            first += index * step;
        }
        below += u64::from(first + self.nest.block_bytes <= offset);
        let indices = outer.iter().zip(&self.outer_indices).rev();
        let runs_passed = indices.fold(0, |runs, (level, index)| runs * level.count + index);
        let passed = runs_passed * innermost.count + (innermost.count - self.run_left);
        self.skip_blocks(below.saturating_sub(passed)) * self.nest.block_bytes
    }

    /// Skips blocks in `gap`, up to the end of the current run, at once. Returns how many bytes of the stream
    /// that was.
    fn skip_in(&mut self, gap: &Range<u64>) -> u64 {
        if self.run_left == 0 {
            return 0;
        }
        let next = Extent { offset: self.next_offset, bytes: self.nest.block_bytes };
        let blocks = repetitions_in(gap, next, self.stride_bytes, self.run_left);
        self.skip_blocks(blocks);
        blocks * self.nest.block_bytes
    }
}

/// How many of `count` consecutive repetitions of `first` are in `gap`, from the first one on.
fn repetitions_in(gap: &Range<u64>, first: Extent, stride_bytes: i64, count: u64) -> u64 {
    if first.offset < gap.start || first.end() > gap.end {
        return 0;
    }
    let room = if stride_bytes > 0 { gap.end - first.end() } else { first.offset - gap.start };
    match stride_bytes.unsigned_abs() {
        0 => count,
        step => (room / step + 1).min(count),
    }
}

#[derive(Debug, Clone)]
enum PartCursor<'a> {
    Nest(NestCursor),
    List {
        extents: std::slice::Iter<'a, Extent>,
        /// The origin of their offsets.
        origin: u64,
    },
}

impl PartCursor<'_> {
    fn nothing() -> Self {
        PartCursor::List { extents: [].iter(), origin: 0 }
    }

    #[inline]
    fn next(&mut self) -> Option<Extent> {
        match self {
            PartCursor::Nest(nest) => nest.next(),
            PartCursor::List { extents, origin } => {
                let extent = extents.find(|extent| extent.bytes > 0)?;
                Some(Extent { offset: extent.offset.wrapping_add(*origin), bytes: extent.bytes })
            }
        }
    }

    /// In an ascending part: skips the blocks that end at or below `offset`, and returns their bytes.
    fn skip_below(&mut self, offset: u64) -> u64 {
        match self {
            PartCursor::Nest(nest) => nest.skip_below(offset),
            PartCursor::List { extents, origin } => {
                let below = |extent: &Extent| extent.end().wrapping_add(*origin) <= offset;
                let mut bytes = 0;
                while let Some((extent, after)) = extents.as_slice().split_first()
                    && (extent.bytes == 0 || below(extent))
                {
                    bytes += extent.bytes;
                    *extents = after.iter();
                }
                bytes
            }
        }
    }
}

/// A repeat that a cursor has entered.
#[derive(Debug, Clone)]
struct OpenRepeat<'a> {
    parts: &'a [Region],
    stride_bytes: i64,
    /// Including the current one.
    iterations_left: u64,
    /// The origin of offsets of the current iteration.
    origin: u64,
    /// The extent around the bytes of one iteration, from its origin.
    span: Extent,
    /// Bytes of one iteration.
    bytes: u64,
    /// The position in the request stream where the current iteration ends.
    stream_end: u64,
    /// The parts after this one, and the origin of their offsets.
    parts_after: std::slice::Iter<'a, Region>,
    origin_after: u64,
}

impl OpenRepeat<'_> {
    /// How many iterations are entirely in `gap`, the current one first.
    fn iterations_in(&self, gap: &Range<u64>) -> u64 {
        let current = Extent { offset: self.origin.wrapping_add(self.span.offset), ..self.span };
        repetitions_in(gap, current, self.stride_bytes, self.iterations_left)
    }

    /// Skips `iterations` iterations, fewer than are left.
    fn skip(&mut self, iterations: u64) {
        self.iterations_left -= iterations;
        self.stream_end += iterations * self.bytes;
        self.origin = self.origin.wrapping_add(iterations.wrapping_mul(self.stride_bytes as u64));
    }
}

/// Equal blocks at equal distances, adjacent in the request stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StridedRun {
    /// Position of the first block in the request stream.
    pub stream_offset: u64,
    /// Where the first block begins.
    pub offset: u64,
    /// Bytes in a block.
    pub bytes: u64,
    /// Distance from one block to the next; may be negative or zero.
    pub stride_bytes: i64,
    /// Number of blocks.
    pub count: u64,
}

/// A position in the blocks of some regions, in request order.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    /// The remaining parts of the request, or of the innermost open repeat.
    parts: std::slice::Iter<'a, Region>,
    /// The origin of their offsets.
    origin: u64,
    part: PartCursor<'a>,
    /// Outermost first.
    repeats: Vec<OpenRepeat<'a>>,
    /// The rest of the current block; empty only at the end.
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

    pub(crate) fn over(parts: &'a [Region]) -> Cursor<'a> {
        let mut cursor = Cursor {
            parts: parts.iter(),
            origin: 0,
            part: PartCursor::nothing(),
            repeats: Vec::new(),
            block: Extent { offset: 0, bytes: 0 },
            stream_offset: 0,
        };
        cursor.load_block();
        cursor
    }

    /// The current block, without the skipped part.
    #[inline]
    pub(crate) fn block(&self) -> Option<Extent> {
        (self.block.bytes > 0).then_some(self.block)
    }

    /// The position of the current block in the request stream.
    pub(crate) fn stream_offset(&self) -> u64 {
        self.stream_offset
    }

    /// Advances to the next block.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.stream_offset += self.block.bytes;
        self.load_block();
    }

    /// Skips the current block, which is in `gap`, and at low cost also following blocks in `gap`. May stop
    /// early.
    pub(crate) fn skip_in(&mut self, gap: Range<u64>) {
        let mut in_gap = self.repeats.iter().map(|repeat| repeat.iterations_in(&gap)).enumerate();
        if let Some((depth, iterations)) = in_gap.find(|(_, iterations)| *iterations > 0) {
            self.skip_iterations(depth, iterations);
        } else {
            self.stream_offset += self.block.bytes;
            if let PartCursor::Nest(nest) = &mut self.part {
                self.stream_offset += nest.skip_in(&gap);
            }
        }
        self.load_block();
    }

    /// The current block and those that follow it at equal distances, as far as they are of its size.
    #[inline]
    pub(crate) fn run(&self) -> Option<StridedRun> {
        let block = self.block()?;
        let (stride_bytes, more) = match &self.part {
            PartCursor::Nest(nest) if nest.nest.block_bytes == block.bytes => {
                (nest.stride_bytes, nest.run_left)
            }
            _ => (0, 0),
        };
        let Extent { offset, bytes } = block;
        Some(StridedRun { stream_offset: self.stream_offset, offset, bytes, stride_bytes, count: 1 + more })
    }

    /// Advances over `blocks` blocks of the current run.
    #[inline]
    pub(crate) fn advance_blocks(&mut self, blocks: u64) {
        if let (PartCursor::Nest(nest), 2..) = (&mut self.part, blocks) {
            self.stream_offset += nest.skip_blocks(blocks - 1) * nest.nest.block_bytes;
        }
        self.advance();
    }

    /// In ascending regions: skips the blocks that end at or below `offset`. O(loops) in a regular part, one
    /// step per extent in a list, and one step for all whole iterations of a repeat.
    pub(crate) fn skip_below(&mut self, offset: u64) {
        while self.block.bytes > 0 && self.block.end() <= offset {
            let gap = 0..offset;
            let mut below = self.repeats.iter().map(|repeat| repeat.iterations_in(&gap)).enumerate();
            if let Some((depth, iterations)) = below.find(|(_, iterations)| *iterations > 0) {
                self.skip_iterations(depth, iterations);
            } else {
                self.stream_offset += self.block.bytes;
                self.stream_offset += self.part.skip_below(offset);
            }
            self.load_block();
        }
    }

    /// Skips `bytes` of the stream: O(loops) within a regular part, one step per extent in a list, and one
    /// step for all whole iterations of a repeat.
    pub(crate) fn advance_bytes(&mut self, mut bytes: u64) {
        while bytes >= self.block.bytes && self.block.bytes > 0 {
            bytes -= self.block.bytes;
            self.stream_offset += self.block.bytes;
            if let PartCursor::Nest(nest) = &mut self.part {
                let skipped = nest.skip_blocks(bytes / nest.nest.block_bytes) * nest.nest.block_bytes;
                bytes -= skipped;
                self.stream_offset += skipped;
            }
            bytes -= self.skip_whole_iterations(bytes);
            self.load_block();
        }
        let within = bytes.min(self.block.bytes);
        self.block.split_front(within);
        self.stream_offset += within;
    }

    /// Skips the rest of the current iteration and whole iterations after it, in the outermost repeat where
    /// that is at most `bytes`. The current block must be passed. Returns the number of bytes.
    fn skip_whole_iterations(&mut self, bytes: u64) -> u64 {
        let stream_offset = self.stream_offset;
        let rest_of = |repeat: &OpenRepeat| repeat.stream_end - stream_offset;
        let Some(depth) = self.repeats.iter().position(|repeat| rest_of(repeat) <= bytes) else { return 0 };
        let repeat = &self.repeats[depth];
        let whole = (bytes - rest_of(repeat)) / repeat.bytes;
        self.skip_iterations(depth, 1 + whole.min(repeat.iterations_left - 1));
        self.stream_offset - stream_offset
    }

    /// Advances to the end of the `iterations`-th iteration of the repeat at `depth`, counted from the
    /// current one, without loading the block that follows.
    fn skip_iterations(&mut self, depth: usize, iterations: u64) {
        self.repeats.truncate(depth + 1);
        let repeat = &mut self.repeats[depth];
        repeat.skip(iterations - 1);
        self.stream_offset = repeat.stream_end;
        self.parts = [].iter();
        self.part = PartCursor::nothing();
    }

    #[inline]
    fn load_block(&mut self) {
        self.block = match self.part.next() {
            Some(block) => block,
            None => self.first_block_of_next_part(),
        };
    }

    fn first_block_of_next_part(&mut self) -> Extent {
        self.part = PartCursor::nothing();
        loop {
            if let Some(region) = self.parts.next() {
                self.open(region);
            } else if !self.next_iteration() {
                return Extent { offset: self.block.end(), bytes: 0 };
            }
            if let Some(block) = self.part.next() {
                return block;
            }
        }
    }

    fn open(&mut self, region: &'a Region) {
        match Form::of(region) {
            Form::Nest(nest) => {
                let offset = nest.offset.wrapping_add(self.origin);
                self.part = PartCursor::Nest(NestCursor::new(Nest { offset, ..nest }));
            }
            Form::List(extents) => {
                self.part = PartCursor::List { extents: extents.iter(), origin: self.origin }
            }
            Form::Repeat(Repetition { offset, count, stride_bytes, body }) => {
                let Some(span) = body.span().filter(|_| count > 0) else { return };
                let (bytes, origin) = (body.total_bytes(), self.origin.wrapping_add(offset));
                let parts_after = std::mem::replace(&mut self.parts, body.parts.iter());
                self.repeats.push(OpenRepeat {
                    parts: &body.parts,
                    stride_bytes,
                    iterations_left: count,
                    origin,
                    span,
                    bytes,
                    stream_end: self.stream_offset + bytes,
                    parts_after,
                    origin_after: std::mem::replace(&mut self.origin, origin),
                });
            }
        }
    }

    /// Starts the next iteration of the innermost repeat, or leaves it. Returns false if there is none.
    fn next_iteration(&mut self) -> bool {
        let Some(repeat) = self.repeats.last_mut() else { return false };
        if repeat.iterations_left > 1 {
            repeat.skip(1);
            self.origin = repeat.origin;
            self.parts = repeat.parts.iter();
        } else if let Some(over) = self.repeats.pop() {
            self.parts = over.parts_after;
            self.origin = over.origin_after;
        }
        true
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

/// The extents of some [`Regions`] in request order. Adjacent ones are joined, empty ones omitted.
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
