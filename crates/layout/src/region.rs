//! Regions: compact descriptions of bytes in order.
//!
//! A request describes bytes by [`Regions`], a sequence of parts. The bytes of the parts, end to end, are the
//! *request stream*: the order in which the program means them. A part is an extent, nested strides, a block
//! of an n-d array, a list, or any of these repeated as a whole. So a slice of a NumPy array or an MPI
//! datatype takes a few words, however many pieces it has. The same type describes the memory side of a
//! request, with offsets from some base address.
//!
//! ```text
//!   Strided { offset: 8, block_bytes: 2, levels: [3 × stride 16, 2 × stride 4] }         (outermost first)
//!
//!   offset   8   12          24  28          40  44
//!            ##..##..........##..##..........##..##
//!   stream   01  23          45  67          89  AB
//!
//!   Repeat { offset: 8, count: 3, stride_bytes: 16, body: [List [1 × 0, 3 × 5], Contiguous 2 × 2] }
//!
//!   offset   8    13         24   29         40   45
//!            #.##.###........#.##.###........#.##.###
//!   stream   0 45 123        6 AB 789        C GH DEF
//! ```
//!
//! ```
//! use weft_layout::{Extent, Order, Regions};
//!
//! // a[1:3, 2:4] of a C-ordered array of 4 × 5 doubles that begins at byte 1000.
//! let slice = Regions::subarray(1000, vec![4, 5], vec![1, 2], vec![2, 2], 8, Order::C);
//! slice.validate(1, 8)?;
//! assert_eq!(slice.total_bytes(), 32);
//! let extents: Vec<Extent> = slice.extents().collect();
//! assert_eq!(extents, [Extent::new(1056, 16), Extent::new(1096, 16)]);
//!
//! // The same request cut into bounded ones.
//! let extents: Vec<Extent> = slice.window(8, 16).extents().collect();
//! assert_eq!(extents, [Extent::new(1064, 8), Extent::new(1096, 8)]);
//! # Ok::<(), weft_layout::RegionError>(())
//! ```

use thiserror::Error;

use crate::extents::{Extents, Form, Repetition};
use crate::window::Cutter;

/// Every offset and every count of bytes is below this: the range of a signed 64-bit file offset.
pub const OFFSET_LIMIT: u64 = 1 << 63;

/// Adjacent bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where they begin.
    pub offset: u64,
    /// How many there are.
    pub bytes: u64,
}

impl Extent {
    /// `bytes` bytes from `offset` on.
    pub const fn new(offset: u64, bytes: u64) -> Extent {
        Extent { offset, bytes }
    }

    /// The offset after the last byte. Saturates.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }
}

/// One loop of a strided region: `count` repetitions, each `stride_bytes` after the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Level {
    /// Number of repetitions; 0 makes the region empty.
    pub count: u64,
    /// Distance from the start of one to the start of the next; may be negative or zero.
    pub stride_bytes: i64,
}

/// The order of an array's elements in memory and in the file: the index that varies fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last one.
    C,
    /// The first one.
    Fortran,
}

/// One part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Region {
    /// Adjacent bytes.
    Contiguous(Extent),
    /// A block of adjacent bytes, repeated by nested loops.
    Strided {
        /// Where the first block begins.
        offset: u64,
        /// Bytes in a block.
        block_bytes: u64,
        /// The loops, outermost first. None: one block.
        levels: Vec<Level>,
    },
    /// A rectangular block of an n-d array.
    Subarray {
        /// Where the whole array begins.
        offset: u64,
        /// Size of the whole array in elements, one per dimension.
        dims: Vec<u64>,
        /// First index of the block, one per dimension.
        starts: Vec<u64>,
        /// Size of the block in elements, one per dimension.
        counts: Vec<u64>,
        /// Bytes in an element.
        element_bytes: u64,
        /// The storage order of the array, and of its elements in the request stream.
        order: Order,
    },
    /// A list of extents.
    List(Vec<Extent>),
    /// Regions of any form, repeated as a whole. (For a single block, [`Region::Strided`] means the same and
    /// is faster to walk.)
    Repeat {
        /// The origin of the offsets of `body` in the first repetition.
        offset: u64,
        /// Number of repetitions; 0 makes the region empty.
        count: u64,
        /// Distance from the start of one to the start of the next; may be negative or zero.
        stride_bytes: i64,
        /// What is repeated.
        body: Regions,
    },
}

impl Region {
    /// Number of bytes, 0 if it is empty. Saturates.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Region::Contiguous(extent) => extent.bytes,
            Region::Strided { block_bytes, levels, .. } => {
                saturating_product(*block_bytes, levels.iter().map(|level| level.count))
            }
            Region::Subarray { counts, element_bytes, .. } => {
                saturating_product(*element_bytes, counts.iter().copied())
            }
            Region::List(extents) => extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.bytes)),
            Region::Repeat { count, body, .. } => body.total_bytes().saturating_mul(*count),
        }
    }

    fn validate(&self, bounds: &mut Bounds) -> Result<(), RegionError> {
        let part = bounds.part;
        let levels = match self {
            Region::Strided { levels, .. } => levels.len(),
            Region::Subarray { dims, .. } => dims.len(),
            Region::Contiguous(_) | Region::List(_) => 0,
            Region::Repeat { .. } => 1,
        };
        let levels = bounds.outer_levels + levels;
        if levels > bounds.max_levels {
            return Err(RegionError::TooManyLevels { part, levels, max_levels: bounds.max_levels });
        }
        match self {
            Region::Subarray { dims, starts, counts, .. } => validate_axes(part, dims, starts, counts)?,
            Region::Repeat { body, .. } => {
                bounds.outer_levels += 1;
                body.validate_parts(bounds)?;
                bounds.outer_levels -= 1;
            }
            Region::Contiguous(_) | Region::Strided { .. } | Region::List(_) => {}
        }
        let total_bytes = self.total_bytes();
        if total_bytes >= OFFSET_LIMIT {
            return Err(RegionError::TooManyBytes { part });
        }
        if total_bytes == 0 || self.is_in_range() { Ok(()) } else { Err(RegionError::OutOfRange { part }) }
    }

    /// Whether all bytes of a region that is not empty are at offsets below [`OFFSET_LIMIT`].
    fn is_in_range(&self) -> bool {
        match self {
            Region::Contiguous(extent) => extent.end() <= OFFSET_LIMIT,
            Region::Strided { offset, block_bytes, levels } => reach(*offset, *block_bytes, levels).is_some(),
            Region::Subarray { offset, dims, element_bytes, .. } => {
                let array_bytes = saturating_product(*element_bytes, dims.iter().copied());
                offset.saturating_add(array_bytes) <= OFFSET_LIMIT
            }
            Region::List(extents) => {
                extents.iter().all(|extent| extent.bytes == 0 || extent.end() <= OFFSET_LIMIT)
            }
            Region::Repeat { offset, count, stride_bytes, body } => {
                let body_end = body.span().map_or(0, |span| span.end());
                reach(*offset, body_end, &[Level { count: *count, stride_bytes: *stride_bytes }]).is_some()
            }
        }
    }

    /// The smallest extent around all bytes of a valid region.
    pub(crate) fn span(&self) -> Option<Extent> {
        match Form::of(self) {
            Form::Nest(nest) if nest.block_bytes == 0 => None,
            Form::Nest(nest) => reach(nest.offset, nest.block_bytes, &nest.loops),
            Form::List(extents) => span_of_list(extents),
            Form::Repeat(Repetition { count: 0, .. }) => None,
            Form::Repeat(Repetition { offset, count, stride_bytes, body }) => {
                let span = body.span()?;
                reach(offset + span.offset, span.bytes, &[Level { count, stride_bytes }])
            }
        }
    }

    pub(crate) fn piece_count(&self) -> u64 {
        match Form::of(self) {
            Form::Nest(nest) => nest.blocks(),
            Form::List(extents) => extents.iter().filter(|extent| extent.bytes > 0).count() as u64,
            Form::Repeat(repetition) => repetition.body.piece_count().saturating_mul(repetition.count),
        }
    }

    /// Number of parts in bodies, not counting itself.
    fn inner_part_count(&self) -> usize {
        match self {
            Region::Repeat { body, .. } => body.part_count(),
            _ => 0,
        }
    }

    /// Adds `bytes` to every offset (modulo 2^64).
    pub(crate) fn shift(&mut self, bytes: u64) {
        match self {
            Region::Contiguous(extent) => extent.offset = extent.offset.wrapping_add(bytes),
            Region::Strided { offset, .. }
            | Region::Subarray { offset, .. }
            | Region::Repeat { offset, .. } => {
                *offset = offset.wrapping_add(bytes);
            }
            Region::List(extents) => {
                for extent in extents {
                    extent.offset = extent.offset.wrapping_add(bytes);
                }
            }
        }
    }
}

/// Remaining limits of a validation, and its position.
struct Bounds {
    max_parts: usize,
    max_levels: usize,
    /// Parts seen so far, including those of bodies.
    parts: usize,
    /// Index of the outermost part.
    part: usize,
    /// Repeats around the current part.
    outer_levels: usize,
}

/// The regions of a request: a sequence of parts.
///
/// Parts can be combined in any way; [`validate`](Regions::validate) says whether the result is valid. The
/// other methods, and the functions of [`stream`](crate::stream), are for valid regions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Regions {
    /// The parts in request order.
    pub parts: Vec<Region>,
}

/// Why regions are not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RegionError {
    /// The request has too many parts.
    #[error(
        "{parts} or more region parts in one request: at most {max_parts}; split the request or use a list"
    )]
    TooManyParts {
        /// Parts that were counted, including those of repeated bodies.
        parts: usize,
        /// Parts allowed.
        max_parts: usize,
    },
    /// A part is nested too deeply.
    #[error("region part {part} has {levels} levels or dimensions: at most {max_levels}")]
    TooManyLevels {
        /// Index of the part.
        part: usize,
        /// Its levels or dimensions, each repeat around them counted as one.
        levels: usize,
        /// Levels allowed.
        max_levels: usize,
    },
    /// The three lists of a subarray differ in length.
    #[error(
        "region part {part}: subarray with {dims} dims, {starts} starts and {counts} counts; give one each per \
         dimension"
    )]
    DimensionMismatch {
        /// Index of the part.
        part: usize,
        /// Number of dims.
        dims: usize,
        /// Number of starts.
        starts: usize,
        /// Number of counts.
        counts: usize,
    },
    /// A subarray is not within its array.
    #[error(
        "region part {part}: {count} elements from {start} on are not within the {dim} of dimension {axis}"
    )]
    OutsideArray {
        /// Index of the part.
        part: usize,
        /// Index of the dimension.
        axis: usize,
        /// First element.
        start: u64,
        /// Number of elements.
        count: u64,
        /// Size of the array in this dimension.
        dim: u64,
    },
    /// A part has bytes below 0, or at 2^63 or above.
    #[error("region part {part} exceeds the offsets 0 to 2^63")]
    OutOfRange {
        /// Index of the part.
        part: usize,
    },
    /// The request, up to this part, has 2^63 bytes or more.
    #[error("region part {part} brings the request to 2^63 bytes or more; split the request")]
    TooManyBytes {
        /// Index of the part.
        part: usize,
    },
}

impl Regions {
    /// One extent.
    pub fn contiguous(offset: u64, bytes: u64) -> Regions {
        Region::Contiguous(Extent { offset, bytes }).into()
    }

    /// The same regions, `bytes` further on; `None` if they would reach beyond 2^64.
    pub fn shifted(&self, bytes: u64) -> Option<Regions> {
        self.span().map_or(Some(0), |span| span.offset.checked_add(span.bytes)?.checked_add(bytes))?;
        let mut shifted = self.clone();
        shifted.parts.iter_mut().for_each(|part| part.shift(bytes));
        Some(shifted)
    }

    /// A list of extents.
    pub fn list(extents: impl Into<Vec<Extent>>) -> Regions {
        Region::List(extents.into()).into()
    }

    /// Blocks of `block_bytes`, the first at `offset`, repeated by `levels`, outermost first.
    pub fn strided(offset: u64, block_bytes: u64, levels: impl Into<Vec<Level>>) -> Regions {
        Region::Strided { offset, block_bytes, levels: levels.into() }.into()
    }

    /// The block of `counts` elements from index `starts` on, of an array of `dims` elements of
    /// `element_bytes` each that begins at `offset`.
    pub fn subarray(
        offset: u64,
        dims: impl Into<Vec<u64>>,
        starts: impl Into<Vec<u64>>,
        counts: impl Into<Vec<u64>>,
        element_bytes: u64,
        order: Order,
    ) -> Regions {
        let (dims, starts, counts) = (dims.into(), starts.into(), counts.into());
        Region::Subarray { offset, dims, starts, counts, element_bytes, order }.into()
    }

    /// These regions, followed by `next`.
    pub fn then(mut self, next: Regions) -> Regions {
        self.parts.extend(next.parts);
        self
    }

    /// `body` repeated `count` times, the first time with its offset 0 at `offset`, each `stride_bytes` after
    /// the one before.
    pub fn repeat(offset: u64, count: u64, stride_bytes: i64, body: Regions) -> Regions {
        Region::Repeat { offset, count, stride_bytes, body }.into()
    }

    /// Checks everything that the rest of this crate relies on:
    ///
    /// - at most `max_parts` parts, where a list is one part and parts of repeated bodies count;
    ///
    /// - at most `max_levels` levels or dimensions each, where each repeat around them counts;
    ///
    /// - subarrays within their arrays;
    ///
    /// - every byte, and the beginning of every repetition, at an offset below 2^63;
    ///
    /// - fewer than 2^63 bytes in total.
    ///
    /// A part without bytes may be anywhere.
    pub fn validate(&self, max_parts: usize, max_levels: usize) -> Result<(), RegionError> {
        let mut bounds = Bounds { max_parts, max_levels, parts: 0, part: 0, outer_levels: 0 };
        self.validate_parts(&mut bounds)
    }

    fn validate_parts(&self, bounds: &mut Bounds) -> Result<(), RegionError> {
        bounds.parts += self.parts.len();
        if bounds.parts > bounds.max_parts {
            return Err(RegionError::TooManyParts { parts: bounds.parts, max_parts: bounds.max_parts });
        }
        let mut total_bytes = 0u64;
        for (index, region) in self.parts.iter().enumerate() {
            if bounds.outer_levels == 0 {
                bounds.part = index;
            }
            region.validate(bounds)?;
            total_bytes = total_bytes.saturating_add(region.total_bytes());
            if total_bytes >= OFFSET_LIMIT {
                return Err(RegionError::TooManyBytes { part: bounds.part });
            }
        }
        Ok(())
    }

    /// Number of parts, including those of repeated bodies.
    pub fn part_count(&self) -> usize {
        self.parts.iter().map(|part| 1 + part.inner_part_count()).sum()
    }

    /// Number of bytes in the request stream. O(1) per part, except for lists. Saturates.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.total_bytes()))
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.total_bytes() == 0)
    }

    /// Upper limit of the number of extents: [`extents`](Regions::extents) may join some. O(1) per part,
    /// except for lists. Walking a request takes at most this many steps and one per strip, so servers limit
    /// this number.
    pub fn piece_count(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.piece_count()))
    }

    /// The smallest extent around all bytes; `None` if there are none. O(1) per part, except for lists.
    pub fn span(&self) -> Option<Extent> {
        self.parts.iter().filter_map(Region::span).reduce(around)
    }

    /// The extent, if these regions are just one. Empty regions are an empty extent.
    pub fn as_contiguous(&self) -> Option<Extent> {
        let extent = self.extents().next().unwrap_or_default();
        (extent.bytes == self.total_bytes()).then_some(extent)
    }

    /// The extents in request order, with adjacent ones joined.
    pub fn extents(&self) -> Extents<'_> {
        self.extents_from(0)
    }

    /// The extents from position `stream_offset` of the request stream on. Finding it takes O(levels) in a
    /// regular part, one step per extent in a list, and the steps of one repetition in a repeat.
    pub fn extents_from(&self, stream_offset: u64) -> Extents<'_> {
        Extents::from_stream_offset(self, stream_offset)
    }

    /// The `bytes` bytes from position `start` of the request stream on, or as many as there are. A regular
    /// part that is cut becomes at most `2 × levels + 1` regular parts. A repeat becomes parts of one body at
    /// both ends of a shorter repeat. To cut a long request into many windows, use
    /// [`cutter`](Regions::cutter).
    pub fn window(&self, start: u64, bytes: u64) -> Regions {
        let mut cutter = self.cutter();
        cutter.skip(start);
        cutter.take(bytes)
    }

    /// Cuts these regions into consecutive windows, in one pass.
    pub fn cutter(&self) -> Cutter<'_> {
        Cutter::new(self)
    }
}

impl From<Region> for Regions {
    fn from(region: Region) -> Regions {
        Regions { parts: vec![region] }
    }
}

impl From<Extent> for Regions {
    fn from(extent: Extent) -> Regions {
        Region::Contiguous(extent).into()
    }
}

fn saturating_product(first: u64, factors: impl Iterator<Item = u64>) -> u64 {
    factors.fold(first, u64::saturating_mul)
}

fn validate_axes(part: usize, dims: &[u64], starts: &[u64], counts: &[u64]) -> Result<(), RegionError> {
    if dims.len() != starts.len() || dims.len() != counts.len() {
        let (dims, starts, counts) = (dims.len(), starts.len(), counts.len());
        return Err(RegionError::DimensionMismatch { part, dims, starts, counts });
    }
    for (axis, ((&dim, &start), &count)) in dims.iter().zip(starts).zip(counts).enumerate() {
        if start.checked_add(count).is_none_or(|end| end > dim) {
            return Err(RegionError::OutsideArray { part, axis, start, count, dim });
        }
    }
    Ok(())
}

/// The extent from the lowest to the highest byte of a block moved by `levels`; `None` if that exceeds the
/// offsets 0 to 2^63. No count may be 0.
fn reach(offset: u64, block_bytes: u64, levels: &[Level]) -> Option<Extent> {
    let (mut lowest, mut highest_end) = (i128::from(offset), i128::from(offset) + i128::from(block_bytes));
    for level in levels {
        let moved = i128::from(level.count - 1) * i128::from(level.stride_bytes);
        let end = if moved < 0 { &mut lowest } else { &mut highest_end };
        *end = end.checked_add(moved)?;
    }
    let within = lowest >= 0 && highest_end <= i128::from(OFFSET_LIMIT);
    within.then(|| Extent { offset: lowest as u64, bytes: (highest_end - lowest) as u64 })
}

fn span_of_list(extents: &[Extent]) -> Option<Extent> {
    let (mut first, mut end) = (u64::MAX, 0);
    for extent in extents {
        // What is empty may be anywhere.
        first = first.min(if extent.bytes > 0 { extent.offset } else { u64::MAX });
        end = end.max(if extent.bytes > 0 { extent.end() } else { 0 });
    }
    (first < end).then(|| Extent { offset: first, bytes: end - first })
}

fn around(a: Extent, b: Extent) -> Extent {
    let offset = a.offset.min(b.offset);
    Extent { offset, bytes: a.end().max(b.end()) - offset }
}
