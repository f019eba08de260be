//! Cuts a request into windows: slices of its stream that are regions themselves, and stay compact.
//!
//! ```text
//!   blocks of 2 bytes, two loops     ## ##   ## ##   ## ##   ## ##
//!   stream                           0       4       8       12
//!   window of 12 bytes from 1 on      # ##   ## ##   ## ##   #
//!   its parts                         a b    |----c----|     d
//! ```
//!
//! Whole iterations of the outer loop are one part (c), however many there are. At both ends the inner loops
//! are cut in the same way: `b` is the remaining whole inner iterations of the first outer one, and `a` and
//! `d` are cut blocks. A repeat is cut likewise: a window of one body, a shorter repeat, and a window of one
//! body.

use std::ops::Range;

use crate::extents::{Form, Nest, Repetition};
use crate::region::{Extent, Level, Region, Regions};

/// Cuts [`Regions`] from front to back. All windows together cost one pass over a list.
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
    /// The rest of the first part. It has bytes, unless all bytes are passed.
    front: Front<'a>,
    /// The parts after it.
    parts: &'a [Region],
    stream_offset: u64,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(regions: &'a Regions) -> Cutter<'a> {
        let mut cutter =
            Cutter { front: Front::List(ListFront::of(&[])), parts: &regions.parts, stream_offset: 0 };
        cutter.drop_finished();
        cutter
    }

    /// The position of the next window in the request stream.
    pub fn stream_offset(&self) -> u64 {
        self.stream_offset
    }

    /// Whether all bytes are passed.
    pub fn is_at_end(&self) -> bool {
        self.front.is_finished()
    }

    /// Skips `bytes` bytes, or as many as there are.
    pub fn skip(&mut self, bytes: u64) {
        self.pass(bytes, None);
    }

    /// Takes the next `bytes` bytes, or as many as there are.
    pub fn take(&mut self, bytes: u64) -> Regions {
        let mut parts = Vec::new();
        self.pass(bytes, Some(&mut parts));
        Regions { parts }
    }

    /// How many of the next `max_bytes` bytes can be [taken](Cutter::take) as at most `max_descriptors`
    /// descriptors, where a regular part counts as one, each extent of a list as one, and a repeat as one
    /// more than its body. At least 1, unless at the end or a limit is 0; not always the maximum.
    pub fn fit(&self, max_bytes: u64, max_descriptors: usize) -> u64 {
        self.fit_within(max_bytes, max_descriptors).0
    }

    /// [`fit`](Cutter::fit), and the number of descriptors.
    fn fit_within(&self, max_bytes: u64, max_descriptors: usize) -> (u64, usize) {
        let mut rest = self.clone();
        let (mut bytes, mut descriptors) = (0, 0);
        while bytes < max_bytes && descriptors < max_descriptors && !rest.is_at_end() {
            let (bytes_left, descriptors_left) = (max_bytes - bytes, max_descriptors - descriptors);
            let Some((here, taking)) = rest.front.fit(bytes_left, descriptors_left, bytes == 0) else {
                break;
            };
            rest.skip(here);
            bytes += here;
            descriptors += taking;
        }
        (bytes, descriptors)
    }

    /// Passes `bytes` bytes, or as many as there are, and appends them to `window`. Returns their number.
    fn pass(&mut self, bytes: u64, mut window: Option<&mut Vec<Region>>) -> u64 {
        let mut left = bytes;
        while left > 0 && !self.is_at_end() {
            left -= self.front.pass(left, window.as_deref_mut());
            self.drop_finished();
        }
        self.stream_offset += bytes - left;
        bytes - left
    }

    fn drop_finished(&mut self) {
        while self.front.is_finished()
            && let Some((part, parts_after)) = self.parts.split_first()
        {
            self.front = Front::of(part);
            self.parts = parts_after;
        }
    }
}

/// The rest of a part.
#[derive(Debug, Clone)]
enum Front<'a> {
    Nest(NestFront<'a>),
    List(ListFront<'a>),
    Repeat(Box<RepeatFront<'a>>),
}

impl<'a> Front<'a> {
    fn of(part: &'a Region) -> Front<'a> {
        match Form::of(part) {
            Form::Nest(nest) => {
                Front::Nest(NestFront { part, nest, total_bytes: part.total_bytes(), passed_bytes: 0 })
            }
            Form::List(extents) => Front::List(ListFront::of(extents)),
            Form::Repeat(repetition) => Front::Repeat(Box::new(RepeatFront::of(repetition))),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Front::Nest(nest) => nest.passed_bytes == nest.total_bytes,
            Front::List(list) => list.extents.is_empty(),
            Front::Repeat(repeat) => repeat.begun.is_none() && repeat.whole_left() == 0,
        }
    }

    /// Passes up to `bytes` bytes, appends them to `window`, and returns their number.
    fn pass(&mut self, bytes: u64, window: Option<&mut Vec<Region>>) -> u64 {
        match self {
            Front::Nest(nest) => nest.pass(bytes, window),
            Front::List(list) => list.pass(bytes, window),
            Front::Repeat(repeat) => repeat.pass(bytes, window),
        }
    }

    /// How many of the next `bytes` bytes can be taken as at most `max_descriptors` descriptors, and the
    /// number of descriptors. At least 1 byte if `must`, else `None` if it is better not to start.
    fn fit(&self, bytes: u64, max_descriptors: usize, must: bool) -> Option<(u64, usize)> {
        match self {
            Front::Nest(nest) => nest.fit(bytes, max_descriptors, must),
            Front::List(list) => Some(list.fit(bytes, max_descriptors)),
            Front::Repeat(repeat) => Some(repeat.fit(bytes, max_descriptors)),
        }
    }
}

#[derive(Debug, Clone)]
struct NestFront<'a> {
    part: &'a Region,
    nest: Nest,
    total_bytes: u64,
    passed_bytes: u64,
}

impl NestFront<'_> {
    fn pass(&mut self, bytes: u64, window: Option<&mut Vec<Region>>) -> u64 {
        let start = self.passed_bytes;
        let passed = bytes.min(self.total_bytes - start);
        self.passed_bytes += passed;
        match window {
            Some(parts) if passed == self.total_bytes => parts.push(self.part.clone()),
            Some(parts) => {
                let Nest { offset, block_bytes, loops } = &self.nest;
                nest_window(*offset, *block_bytes, loops, start..start + passed, parts);
            }
            None => {}
        }
        passed
    }

    fn fit(&self, bytes: u64, max_descriptors: usize, must: bool) -> Option<(u64, usize)> {
        let wanted = bytes.min(self.total_bytes - self.passed_bytes);
        let descriptors_max = if wanted == self.total_bytes { 1 } else { 2 * self.nest.loops.len() + 1 };
        if descriptors_max <= max_descriptors {
            return Some((wanted, descriptors_max));
        }
        let block_left = self.nest.block_bytes - self.passed_bytes % self.nest.block_bytes;
        must.then(|| (wanted.min(block_left), max_descriptors))
    }
}

#[derive(Debug, Clone)]
struct ListFront<'a> {
    /// The first one has bytes that are not passed.
    extents: &'a [Extent],
    /// Passed bytes of the first one.
    passed_bytes: u64,
}

impl<'a> ListFront<'a> {
    fn of(extents: &'a [Extent]) -> ListFront<'a> {
        let mut list = ListFront { extents, passed_bytes: 0 };
        list.drop_empty();
        list
    }

    fn pass(&mut self, bytes: u64, window: Option<&mut Vec<Region>>) -> u64 {
        let mut left = bytes;
        let mut taken = Vec::new();
        while left > 0
            && let Some((extent, extents_after)) = self.extents.split_first()
        {
            let here = left.min(extent.bytes - self.passed_bytes);
            if window.is_some() {
                taken.push(Extent { offset: extent.offset + self.passed_bytes, bytes: here });
            }
            left -= here;
            self.passed_bytes += here;
            if self.passed_bytes == extent.bytes {
                self.extents = extents_after;
                self.passed_bytes = 0;
                self.drop_empty();
            }
        }
        if let Some(parts) = window {
            parts.push(Region::List(taken));
        }
        bytes - left
    }

    fn drop_empty(&mut self) {
        while let Some((Extent { bytes: 0, .. }, extents_after)) = self.extents.split_first() {
            self.extents = extents_after;
        }
    }

    fn fit(&self, bytes: u64, max_extents: usize) -> (u64, usize) {
        let (mut taken, mut taken_extents, mut passed_bytes) = (0, 0, self.passed_bytes);
        for extent in self.extents {
            if taken == bytes || taken_extents == max_extents {
                break;
            }
            let here = (extent.bytes - passed_bytes).min(bytes - taken);
            taken += here;
            taken_extents += usize::from(here > 0);
            passed_bytes = 0;
        }
        (taken, taken_extents)
    }
}

#[derive(Debug, Clone)]
struct RepeatFront<'a> {
    repetition: Repetition<'a>,
    body_bytes: u64,
    body_descriptors: usize,
    /// Iterations that are passed or started.
    iterations: u64,
    /// The rest of the last of them.
    begun: Option<Cutter<'a>>,
}

impl<'a> RepeatFront<'a> {
    fn of(repetition: Repetition<'a>) -> RepeatFront<'a> {
        let body_bytes = repetition.body.total_bytes();
        let body_descriptors = descriptors(repetition.body);
        let iterations = if body_bytes == 0 { repetition.count } else { 0 };
        RepeatFront { repetition, body_bytes, body_descriptors, iterations, begun: None }
    }

    fn whole_left(&self) -> u64 {
        self.repetition.count - self.iterations
    }

    fn pass(&mut self, bytes: u64, mut window: Option<&mut Vec<Region>>) -> u64 {
        let mut left = bytes - self.pass_begun(bytes, window.as_deref_mut());
        let whole = (left / self.body_bytes).min(self.whole_left());
        if whole > 0 {
            if let Some(parts) = window.as_deref_mut() {
                self.push_whole(whole, parts);
            }
            self.iterations += whole;
            left -= whole * self.body_bytes;
        }
        if left > 0 && self.whole_left() > 0 {
            self.begun = Some(self.repetition.body.cutter());
            self.iterations += 1;
            left -= self.pass_begun(left, window);
        }
        bytes - left
    }

    fn pass_begun(&mut self, bytes: u64, mut window: Option<&mut Vec<Region>>) -> u64 {
        let Some(rest) = &mut self.begun else { return 0 };
        let parts_before = window.as_ref().map_or(0, |parts| parts.len());
        let passed = rest.pass(bytes, window.as_deref_mut());
        if rest.is_at_end() {
            self.begun = None;
        }
        let offset = self.iteration_offset(self.iterations - 1);
        window.into_iter().flat_map(|parts| &mut parts[parts_before..]).for_each(|part| part.shift(offset));
        passed
    }

    /// Appends the next `count` iterations.
    fn push_whole(&self, count: u64, parts: &mut Vec<Region>) {
        let offset = self.iteration_offset(self.iterations);
        let Repetition { stride_bytes, body, .. } = self.repetition;
        if count > 1 {
            return parts.push(Region::Repeat { offset, count, stride_bytes, body: body.clone() });
        }
        let mut parts_of_one = body.cutter().take(self.body_bytes).parts;
        parts_of_one.iter_mut().for_each(|part| part.shift(offset));
        parts.append(&mut parts_of_one);
    }

    fn iteration_offset(&self, index: u64) -> u64 {
        self.repetition.offset.wrapping_add(index.wrapping_mul(self.repetition.stride_bytes as u64))
    }

    fn fit(&self, bytes: u64, max_descriptors: usize) -> (u64, usize) {
        if let Some(rest) = &self.begun {
            return rest.fit_within(bytes, max_descriptors);
        }
        let whole = (bytes / self.body_bytes).min(self.whole_left());
        if whole > 0 && self.body_descriptors < max_descriptors {
            return (whole * self.body_bytes, self.body_descriptors + 1);
        }
        let (here, taking) =
            self.repetition.body.cutter().fit_within(bytes.min(self.body_bytes), max_descriptors);
        // Another whole one would make a repeat of two, with all descriptors of the body.
        (here, if here == self.body_bytes { max_descriptors } else { taking })
    }
}

/// The `bytes` bytes from position `start` on of the stream of a repeat.
pub(crate) fn window_of_repeat(repetition: Repetition<'_>, start: u64, bytes: u64) -> Regions {
    let mut parts = Vec::new();
    let mut repeat = RepeatFront::of(repetition);
    repeat.pass(start, None);
    repeat.pass(bytes, Some(&mut parts));
    Regions { parts }
}

/// The number of descriptors that [`Cutter::fit`] counts.
fn descriptors(regions: &Regions) -> usize {
    let of_part = |part: &Region| match part {
        Region::List(extents) => extents.len(),
        Region::Repeat { body, .. } => 1 + descriptors(body),
        Region::Contiguous(_) | Region::Strided { .. } | Region::Subarray { .. } => 1,
    };
    regions.parts.iter().map(of_part).sum()
}

/// Appends the part `range` of the stream of a nest of `loops`, innermost first. For the outermost loop this
/// is the end of one iteration, whole iterations, and the beginning of one. The two ends are windows of the
/// inner loops.
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
        let levels = std::iter::once(whole).chain(inner.iter().rev().copied());
        let levels: Vec<Level> = levels.filter(|level| level.count > 1).collect();
        let offset = iteration_offset(first_whole);
        parts.push(match levels[..] {
            [] => Region::Contiguous(Extent { offset, bytes: block_bytes }),
            _ => Region::Strided { offset, block_bytes, levels },
        });
    }
    if last_bytes > 0 {
        nest_window(iteration_offset(last), block_bytes, inner, 0..last_bytes, parts);
    }
}
