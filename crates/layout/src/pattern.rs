//! Patterns: bytes in some order around an origin, always in the most compact form that is found.
//!
//! ```text
//!   built as                                               kept as
//!   3 × (2 × (4 bytes, every 4), every 8)                  Contiguous 24
//!   3 × (2 × (4 bytes, every 8), every 16)                 Strided 4, [6 × 8]
//!   extents 4 at 0, 4 at 6, 4 at 100, 4 at 106             Strided 4, [2 × 100, 2 × 6]
//!   1000 × (extents 4 at 0, 8 at 8; every 32)              Repeat 1000 × 32 of List [4 at 0, 8 at 8]
//! ```
//!
//! Offsets may be negative here: a pattern is regions whose lowest byte is at 0, and the offset of that byte.

use crate::extents::{Form, Nest};
use crate::region::{Extent, Level, OFFSET_LIMIT, Region, Regions};

/// Irregular patterns of up to this many pieces are repeated by a longer list, which is faster to walk.
const UNROLLED_PIECES_MAX: u64 = 16;
/// From this many on, equal pieces at equal distances are kept as a loop: 128 loops and 128 lists between
/// them, which fit one request, have more pieces than a single list could have.
const RUN_PIECES_MIN: usize = 64;

/// Bytes in order, at offsets from -2^63 to 2^63.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    /// Offset of the lowest byte, 0 if there is none.
    lowest: i64,
    /// In normal form, the lowest byte at offset 0. No part is empty.
    regions: Regions,
    /// Distance from the lowest to the highest byte.
    span_bytes: u64,
    total_bytes: u64,
}

impl Pattern {
    pub(crate) fn nothing() -> Pattern {
        Pattern { lowest: 0, regions: Regions::default(), span_bytes: 0, total_bytes: 0 }
    }

    /// `bytes` adjacent bytes from 0 on; `None` from 2^63 on.
    pub(crate) fn contiguous(bytes: u64) -> Option<Pattern> {
        let mut sum = Sum::new();
        sum.push_extent(0, bytes)?;
        sum.finish()
    }

    pub(crate) fn lowest(&self) -> i64 {
        self.lowest
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn span_bytes(&self) -> u64 {
        self.span_bytes
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The extent, if there is only one.
    pub(crate) fn as_contiguous(&self) -> Option<(i64, u64)> {
        matches!(self.regions.parts[..], [Region::Contiguous(_)]).then_some((self.lowest, self.total_bytes))
    }

    /// Whether it is one nest of loops.
    pub(crate) fn is_regular(&self) -> bool {
        matches!(self.regions.parts[..], [Region::Contiguous(_) | Region::Strided { .. }])
    }

    /// The regions, with offset 0 of the pattern at `origin`; `None` if that exceeds the offsets 0 to 2^63.
    pub(crate) fn at(&self, origin: u64) -> Option<Regions> {
        if self.total_bytes == 0 {
            return Some(Regions::default());
        }
        let first = origin.checked_add_signed(self.lowest)?;
        first.checked_add(self.span_bytes).filter(|end| *end <= OFFSET_LIMIT)?;
        let mut regions = self.regions.clone();
        regions.parts.iter_mut().for_each(|part| part.shift(first));
        Some(regions)
    }

    /// This pattern `count` times, each `stride_bytes` after the one before; `None` if that is too large.
    pub(crate) fn repeated(&self, count: u64, stride_bytes: i64) -> Option<Pattern> {
        if count == 0 || self.total_bytes == 0 {
            return Some(Pattern::nothing());
        }
        if count == 1 {
            return Some(self.clone());
        }
        let moved = i128::from(stride_bytes) * i128::from(count - 1);
        let span_bytes = u64::try_from(moved.unsigned_abs() + u128::from(self.span_bytes)).ok()?;
        let total_bytes = self.total_bytes.checked_mul(count)?;
        if span_bytes >= OFFSET_LIMIT || total_bytes >= OFFSET_LIMIT {
            return None;
        }
        let lowest = i64::try_from(i128::from(self.lowest) + moved.min(0)).ok()?;
        lowest.checked_add_unsigned(span_bytes)?;
        if !self.is_regular() && self.regions.piece_count().saturating_mul(count) <= UNROLLED_PIECES_MAX {
            let mut sum = Sum::new();
            for index in 0..count as i64 {
                sum.push(self, index * stride_bytes)?;
            }
            return sum.finish();
        }
        let mut regions = Regions::from(repeat(&self.regions, Level { count, stride_bytes }));
        let first = if stride_bytes < 0 { span_bytes - self.span_bytes } else { 0 };
        regions.parts.iter_mut().for_each(|part| part.shift(first));
        Some(Pattern { lowest, regions, span_bytes, total_bytes })
    }

    /// Whether every byte is at a higher offset than all before it. O(parts), plus a step per extent of
    /// lists.
    pub(crate) fn is_ascending(&self) -> bool {
        is_ascending(&self.regions)
    }
}

impl Regions {
    /// Whether the bytes are in ascending order, each at most once. `false` for a list that has an empty
    /// extent out of order. O(1) per part, except for lists.
    pub fn is_ascending(&self) -> bool {
        is_ascending(self)
    }
}

/// `regions`, the lowest byte at 0, repeated by `level`.
pub(crate) fn repeat(regions: &Regions, level: Level) -> Region {
    match &regions.parts[..] {
        [part @ (Region::Contiguous(_) | Region::Strided { .. })] => match Form::of(part) {
            Form::Nest(nest) => region_of(Nest::fold(
                nest.offset,
                nest.block_bytes,
                nest.loops.iter().copied().chain([level]),
            )),
            Form::List(_) | Form::Repeat(_) => unreachable!("these two are nests"),
        },
        [Region::Repeat { offset, count, stride_bytes, body }]
            if i64::try_from(*count).ok().and_then(|count| stride_bytes.checked_mul(count))
                == Some(level.stride_bytes) =>
        {
            let count = count * level.count;
            Region::Repeat { offset: *offset, count, stride_bytes: *stride_bytes, body: body.clone() }
        }
        _ => Region::Repeat {
            offset: 0,
            count: level.count,
            stride_bytes: level.stride_bytes,
            body: regions.clone(),
        },
    }
}

fn region_of(nest: Nest) -> Region {
    let Nest { offset, block_bytes, loops } = nest;
    if loops.is_empty() {
        return Region::Contiguous(Extent { offset, bytes: block_bytes });
    }
    Region::Strided { offset, block_bytes, levels: loops.into_iter().rev().collect() }
}

fn is_ascending(regions: &Regions) -> bool {
    let mut end = 0;
    regions.parts.iter().all(|part| {
        let Some(span) = part.span() else { return true };
        let begins_after = span.offset >= end;
        end = span.end();
        begins_after && is_part_ascending(part)
    })
}

fn is_part_ascending(part: &Region) -> bool {
    match Form::of(part) {
        Form::Nest(nest) => {
            let mut span_bytes = i128::from(nest.block_bytes);
            nest.loops.iter().all(|level| {
                let clears = i128::from(level.stride_bytes) >= span_bytes;
                span_bytes += i128::from(level.stride_bytes) * i128::from(level.count - 1);
                clears
            })
        }
        Form::List(extents) => extents.windows(2).all(|pair| pair[0].end() <= pair[1].offset),
        Form::Repeat(repetition) => {
            let body = repetition.body;
            let span_bytes = body.span().map_or(0, |span| span.bytes);
            let clears = u64::try_from(repetition.stride_bytes).is_ok_and(|stride| stride >= span_bytes);
            (clears || repetition.count <= 1) && is_ascending(body)
        }
    }
}

/// A sequence of patterns. Their offsets are modulo 2^64 until the lowest is known.
pub(crate) struct Sum {
    parts: Vec<Region>,
    /// Extents that are not a part yet.
    extents: Vec<Extent>,
    lowest: i64,
    /// After the highest byte.
    end: i64,
    total_bytes: u64,
}

impl Sum {
    pub(crate) fn new() -> Sum {
        Sum { parts: Vec::new(), extents: Vec::new(), lowest: i64::MAX, end: i64::MIN, total_bytes: 0 }
    }

    /// `None` if that is too large, as in the other methods.
    pub(crate) fn push(&mut self, pattern: &Pattern, origin: i64) -> Option<()> {
        if pattern.total_bytes == 0 {
            return Some(());
        }
        let lowest = origin.checked_add(pattern.lowest)?;
        self.cover(lowest, pattern.span_bytes, pattern.total_bytes)?;
        for part in &pattern.regions.parts {
            self.push_part(part, lowest as u64);
        }
        Some(())
    }

    pub(crate) fn push_extent(&mut self, offset: i64, bytes: u64) -> Option<()> {
        if bytes > 0 {
            self.cover(offset, bytes, bytes)?;
            self.join(Extent { offset: offset as u64, bytes });
        }
        Some(())
    }

    fn cover(&mut self, lowest: i64, span_bytes: u64, total_bytes: u64) -> Option<()> {
        self.lowest = self.lowest.min(lowest);
        self.end = self.end.max(lowest.checked_add_unsigned(span_bytes)?);
        self.total_bytes = self.total_bytes.checked_add(total_bytes).filter(|sum| *sum < OFFSET_LIMIT)?;
        Some(())
    }

    fn push_part(&mut self, part: &Region, by: u64) {
        let moved = |extent: &Extent| Extent { offset: extent.offset.wrapping_add(by), bytes: extent.bytes };
        match part {
            Region::Contiguous(extent) => self.join(moved(extent)),
            Region::List(extents) => extents.iter().for_each(|extent| self.join(moved(extent))),
            regular if regular.piece_count() <= UNROLLED_PIECES_MAX => {
                let one = Regions::from(regular.clone());
                one.extents().for_each(|extent| self.join(moved(&extent)));
            }
            long => {
                self.flush();
                let mut part = long.clone();
                part.shift(by);
                self.parts.push(part);
            }
        }
    }

    fn join(&mut self, extent: Extent) {
        match self.extents.last_mut() {
            Some(last) if last.offset.wrapping_add(last.bytes) == extent.offset => last.bytes += extent.bytes,
            _ => self.extents.push(extent),
        }
    }

    /// Turns the extents into parts: loops where possible, lists of the rest.
    fn flush(&mut self) {
        let extents = std::mem::take(&mut self.extents);
        if let Some(nest) = nest_of(&extents) {
            return self.parts.push(region_of(nest));
        }
        let (mut listed, mut at) = (0, 0);
        while at < extents.len() {
            let run = run_length(&extents[at..]);
            if run >= RUN_PIECES_MIN {
                self.push_list(&extents[listed..at]);
                self.parts.extend(nest_of(&extents[at..at + run]).map(region_of));
                listed = at + run;
            }
            // The last piece of a short run may start a long one.
            at += if run >= RUN_PIECES_MIN { run } else { (run - 1).max(1) };
        }
        self.push_list(&extents[listed..]);
    }

    fn push_list(&mut self, extents: &[Extent]) {
        match extents {
            [] => {}
            [extent] => self.parts.push(Region::Contiguous(*extent)),
            _ => self.parts.push(Region::List(extents.to_vec())),
        }
    }

    pub(crate) fn finish(mut self) -> Option<Pattern> {
        if self.total_bytes == 0 {
            return Some(Pattern::nothing());
        }
        self.flush();
        let span_bytes = u64::try_from(i128::from(self.end) - i128::from(self.lowest)).ok()?;
        if span_bytes >= OFFSET_LIMIT {
            return None;
        }
        let mut parts = self.parts;
        parts.iter_mut().for_each(|part| part.shift((self.lowest as u64).wrapping_neg()));
        let (lowest, total_bytes) = (self.lowest, self.total_bytes);
        Some(Pattern { lowest, regions: Regions { parts }, span_bytes, total_bytes })
    }
}

/// How many extents from the first one on have equal sizes and distances. At least 1.
fn run_length(extents: &[Extent]) -> usize {
    let distance = |pair: &[Extent]| pair[1].offset.wrapping_sub(pair[0].offset);
    let Some(first_pair) = extents.get(..2) else { return extents.len() };
    let stride = distance(first_pair);
    let continues = |pair: &&[Extent]| pair[1].bytes == extents[0].bytes && distance(pair) == stride;
    1 + extents.windows(2).take_while(continues).count()
}

/// The nest of loops that describes these extents in order, if there is one.
fn nest_of(extents: &[Extent]) -> Option<Nest> {
    let first = extents.first()?;
    let mut loops = Vec::new();
    let mut starts: Vec<Extent> = extents.to_vec();
    while starts.len() > 1 {
        let run = run_length(&starts);
        let runs = starts.chunks_exact(run);
        let stride = starts[1].offset.wrapping_sub(starts[0].offset);
        let is_whole = run > 1
            && runs.remainder().is_empty()
            && runs.clone().all(|each| {
                run_length(each) == run
                    && each[0].bytes == first.bytes
                    && each[1].offset.wrapping_sub(each[0].offset) == stride
            });
        if !is_whole {
            return None;
        }
        loops.push(Level { count: run as u64, stride_bytes: stride as i64 });
        starts = runs.map(|each| each[0]).collect();
    }
    Some(Nest { offset: first.offset, block_bytes: first.bytes, loops })
}
