//! Cutting a request into windows: slices of its stream that are themselves regions, and stay compact.
//!
//! ```text
//!   blocks of 2 bytes, two loops     ## ##   ## ##   ## ##   ## ##
//!   stream                           0       4       8       12
//!   window of 12 bytes from 1 on      # ##   ## ##   ## ##   #
//!   its parts                         a b    |----c----|     d
//! ```
//!
//! Whole iterations of the outer loop are one part (c), however many they are. At either end the inner loops are
//! cut in the same way: `b` is the whole inner iterations that are left of the first outer one, and `a` and `d`
//! are cut blocks.

use std::ops::Range;

use crate::extents::Nest;
use crate::region::{Extent, Level, Region, Regions};

/// Cuts [`Regions`] from front to back. All windows together cost one pass over a list, not one pass each.
///
/// ```
/// use weft_layout::{Extent, Regions};
///
/// // File and memory side of a request, cut at the same places into windows of at most two descriptors.
/// let file = Regions::list([Extent::new(0, 10), Extent::new(100, 10), Extent::new(200, 10)]);
/// let memory = Regions::contiguous(0, 30);
/// let (mut file, mut memory) = (file.cutter(), memory.cutter());
/// let mut sizes = Vec::new();
/// while !file.is_at_end() {
///     let bytes = file.fit(1 << 20, 2).min(memory.fit(1 << 20, 2));
///     assert_eq!(file.take(bytes).total_bytes(), memory.take(bytes).total_bytes());
///     sizes.push(bytes);
/// }
/// assert_eq!(sizes, [20, 10]);
/// ```
#[derive(Debug, Clone)]
pub struct Cutter<'a> {
    /// What is not passed yet. The first part has bytes left, and so has its extent `passed_extents` if it is
    /// a list.
    parts: &'a [Region],
    /// Extents of the first part that are passed, if it is a list.
    passed_extents: usize,
    /// Bytes that are passed of the first part, or of its extent `passed_extents` if it is a list.
    passed_bytes: u64,
    stream_offset: u64,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(regions: &'a Regions) -> Cutter<'a> {
        let mut cutter =
            Cutter { parts: &regions.parts, passed_extents: 0, passed_bytes: 0, stream_offset: 0 };
        cutter.drop_finished();
        cutter
    }

    /// Where in the request stream the next window begins.
    pub fn stream_offset(&self) -> u64 {
        self.stream_offset
    }

    /// Whether all bytes are passed.
    pub fn is_at_end(&self) -> bool {
        self.parts.is_empty()
    }

    /// Passes over `bytes` bytes, or as many as there are.
    pub fn skip(&mut self, mut bytes: u64) {
        while bytes > 0 && !self.is_at_end() {
            bytes -= self.pass_in_part(bytes);
        }
    }

    /// The next `bytes` bytes, or as many as there are.
    pub fn take(&mut self, mut bytes: u64) -> Regions {
        let mut parts = Vec::new();
        while bytes > 0
            && let Some(part) = self.parts.first()
        {
            let (first_extent, start) = (self.passed_extents, self.passed_bytes);
            let passed = self.pass_in_part(bytes);
            bytes -= passed;
            match Nest::of(part) {
                Ok(_) if passed == part.total_bytes() => parts.push(part.clone()),
                Ok(nest) => {
                    nest_window(
                        nest.offset,
                        nest.block_bytes,
                        &nest.loops,
                        start..start + passed,
                        &mut parts,
                    );
                }
                Err(extents) => parts.push(list_window(&extents[first_extent..], start, passed)),
            }
        }
        Regions { parts }
    }

    /// How many of the next `max_bytes` bytes can be [taken](Cutter::take) as at most `max_descriptors`
    /// descriptors, where a regular part is one and each extent of a list is one. At least 1, unless at the
    /// end or a bound is 0; not always the most possible.
    pub fn fit(&self, max_bytes: u64, max_descriptors: usize) -> u64 {
        let mut rest = self.clone();
        let (mut bytes_left, mut descriptors_left) = (max_bytes, max_descriptors);
        while bytes_left > 0
            && descriptors_left > 0
            && let Some(part) = rest.parts.first()
        {
            let (taken, descriptors) = match Nest::of(part) {
                Err(extents) => {
                    list_fit(&extents[rest.passed_extents..], rest.passed_bytes, bytes_left, descriptors_left)
                }
                Ok(nest) => {
                    let total_bytes = part.total_bytes();
                    let wanted = bytes_left.min(total_bytes - rest.passed_bytes);
                    let cut_parts_max = if wanted == total_bytes { 1 } else { 2 * nest.loops.len() + 1 };
                    if cut_parts_max <= descriptors_left {
                        (wanted, cut_parts_max)
                    } else if bytes_left < max_bytes {
                        break;
                    } else {
                        let block_left = nest.block_bytes - rest.passed_bytes % nest.block_bytes;
                        (wanted.min(block_left), descriptors_left)
                    }
                }
            };
            bytes_left -= taken;
            descriptors_left -= descriptors;
            rest.skip(taken);
        }
        max_bytes - bytes_left
    }

    /// Passes over up to `bytes` bytes of the first part, and returns how many it were.
    fn pass_in_part(&mut self, bytes: u64) -> u64 {
        let mut left = bytes;
        match &self.parts[0] {
            Region::List(extents) => {
                while left > 0
                    && let Some(extent) = extents.get(self.passed_extents)
                {
                    let passed = left.min(extent.bytes - self.passed_bytes);
                    left -= passed;
                    self.passed_bytes += passed;
                    if self.passed_bytes == extent.bytes {
                        self.passed_extents += 1;
                        self.passed_bytes = 0;
                    }
                }
            }
            regular => {
                let passed = left.min(regular.total_bytes() - self.passed_bytes);
                left -= passed;
                self.passed_bytes += passed;
            }
        }
        self.stream_offset += bytes - left;
        self.drop_finished();
        bytes - left
    }

    fn drop_finished(&mut self) {
        while let Some((part, next_parts)) = self.parts.split_first() {
            let has_more = match part {
                Region::List(extents) => {
                    let empty_extents =
                        extents[self.passed_extents..].iter().take_while(|extent| extent.bytes == 0).count();
                    self.passed_extents += empty_extents;
                    self.passed_extents < extents.len()
                }
                regular => self.passed_bytes < regular.total_bytes(),
            };
            if has_more {
                return;
            }
            self.parts = next_parts;
            (self.passed_extents, self.passed_bytes) = (0, 0);
        }
    }
}

/// How many of the `bytes` bytes from `start` on of a list are in its first `max_extents` extents, and in how
/// many.
fn list_fit(extents: &[Extent], start: u64, bytes: u64, max_extents: usize) -> (u64, usize) {
    let (mut taken, mut taken_extents, mut skip) = (0, 0, start);
    for extent in extents {
        if taken == bytes || taken_extents == max_extents {
            break;
        }
        let here = (extent.bytes - skip).min(bytes - taken);
        taken += here;
        taken_extents += usize::from(here > 0);
        skip = 0;
    }
    (taken, taken_extents)
}

/// Appends the part `range` of the stream of a nest of `loops`, innermost first. Of the outermost loop this
/// is the end of one iteration, then whole ones, then the beginning of one; the two ends are windows of the
/// loops inside.
fn nest_window(offset: u64, block_bytes: u64, loops: &[Level], range: Range<u64>, parts: &mut Vec<Region>) {
    let Some((outer, inner)) = loops.split_last() else {
        let extent = Extent { offset: offset + range.start, bytes: range.end - range.start };
        return parts.push(Region::Contiguous(extent));
    };
    let iteration_bytes = block_bytes * inner.iter().map(|level| level.count).product::<u64>();
    let iteration_offset = |index: u64| offset.wrapping_add(index.wrapping_mul(outer.stride_bytes as u64));
    let (first, first_skip) = (range.start / iteration_bytes, range.start % iteration_bytes);
    let (last, last_bytes) = (range.end / iteration_bytes, range.end % iteration_bytes);
    if first == last {
        return nest_window(iteration_offset(first), block_bytes, inner, first_skip..last_bytes, parts);
    }
    let first_whole = if first_skip == 0 { first } else { first + 1 };
    if first_skip > 0 {
        nest_window(iteration_offset(first), block_bytes, inner, first_skip..iteration_bytes, parts);
    }
    if first_whole < last {
        let whole = Level { count: last - first_whole, ..*outer };
        let levels =
            std::iter::once(whole).chain(inner.iter().rev().copied()).filter(|level| level.count > 1);
        parts.push(Region::Strided {
            offset: iteration_offset(first_whole),
            block_bytes,
            levels: levels.collect(),
        });
    }
    if last_bytes > 0 {
        nest_window(iteration_offset(last), block_bytes, inner, 0..last_bytes, parts);
    }
}

/// The `bytes` bytes from `start` on of the stream of a list, none of them past its end.
fn list_window(extents: &[Extent], start: u64, bytes: u64) -> Region {
    let (mut skip, mut left) = (start, bytes);
    let mut window = Vec::new();
    for extent in extents {
        if left == 0 {
            break;
        }
        if skip >= extent.bytes {
            skip -= extent.bytes;
            continue;
        }
        let taken = left.min(extent.bytes - skip);
        window.push(Extent { offset: extent.offset + skip, bytes: taken });
        left -= taken;
        skip = 0;
    }
    Region::List(window)
}
