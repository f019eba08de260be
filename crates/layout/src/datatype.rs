//! Datatypes: layouts of bytes built from smaller ones, as in MPI, and their conversion to [`Regions`].
//!
//! A type is bytes at displacements from an origin, in order, and two bounds. An array of the type has one
//! instance per *extent*, the distance from its lower to its upper bound. The bounds enclose the bytes,
//! unless [`resized`](Datatype::resized) or [`subarray`](Datatype::subarray) have set them. (MPI: A
//! Message-Passing Interface Standard, version 4.0, chapter 5. As there, types that are built on set bounds
//! keep to them.)
//!
//! ```text
//!   field  = bytes(4)                          ####                          size 4, extent 4
//!   pair   = structure (0, 1, field)           ####....####                  size 8, extent 12
//!                      (8, 1, field)
//!   record = resized (0, 16, pair)             ####....####....              size 8, extent 16
//!   contiguous (3, record)                     ####....####....####....####....####....####....
//! ```
//!
//! A type is kept in the most compact form that is found, however it was built: dense bytes are one extent,
//! nested loops are levels, and regular lists are loops. Everything else is a repeated list.
//!
//! ```
//! use weft_layout::{Datatype, Order, Region};
//!
//! // A 2 × 2 tile of a 4 × 4 array of doubles, built in three ways.
//! let double = Datatype::bytes(8)?;
//! let tile = Datatype::subarray(&[4, 4], &[0, 0], &[2, 2], Order::C, &double)?;
//! let rows = Datatype::vector(2, 2, 4, &double)?;
//! let listed = Datatype::indexed(&[(0, 2), (4, 2)], &double)?;
//! assert_eq!(tile.regions(1000, 1)?, rows.regions(1000, 1)?);
//! assert_eq!(tile.regions(1000, 1)?, listed.regions(1000, 1)?);
//! // They differ in where the next one is.
//! assert_eq!((tile.extent_bytes(), rows.extent_bytes()), (128, 48));
//!
//! // A million records with two fields each: one repeat of a list of two.
//! let fields = Datatype::structure(&[(0, 1, &Datatype::bytes(2)?), (8, 1, &double)])?;
//! let record = Datatype::resized(0, 32, &fields)?;
//! let regions = record.regions(0, 1_000_000)?;
//! assert!(matches!(regions.parts[..], [Region::Repeat { count: 1_000_000, stride_bytes: 32, .. }]));
//! assert_eq!((regions.part_count(), regions.piece_count()), (2, 2_000_000));
//! # Ok::<(), weft_layout::DatatypeError>(())
//! ```

use thiserror::Error;

use crate::pattern::{Pattern, Sum};
use crate::region::{Order, Regions};

/// A layout of bytes that can be repeated, combined and placed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Datatype {
    pattern: Pattern,
    /// `None` if there are neither bytes nor set bounds.
    bounds: Option<Bounds>,
}

/// Why a datatype is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DatatypeError {
    /// It has 2^63 bytes or more, or extends as far.
    #[error("a datatype with 2^63 bytes or more, or with an extent or displacement beyond +-2^63")]
    TooLarge,
    /// The three lists of a subarray differ in length.
    #[error(
        "subarray datatype with {dims} dims, {starts} starts and {counts} counts; give one each per dimension"
    )]
    DimensionMismatch {
        /// Number of dims.
        dims: usize,
        /// Number of starts.
        starts: usize,
        /// Number of counts.
        counts: usize,
    },
    /// A subarray is not within its array.
    #[error(
        "subarray datatype: {count} elements from {start} on are not within the {dim} of dimension {axis}"
    )]
    OutsideArray {
        /// Index of the dimension.
        axis: usize,
        /// First element.
        start: u64,
        /// Number of elements.
        count: u64,
        /// Size of the array in this dimension.
        dim: u64,
    },
    /// At the requested place it exceeds the offsets 0 to 2^63.
    #[error("{count} instances of a datatype at {offset} exceed the offsets 0 to 2^63")]
    OutOfRange {
        /// The origin of the first one.
        offset: u64,
        /// Their number.
        count: u64,
    },
}

/// The bounds of a type, for types that are built from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Bounds {
    lower: i64,
    upper: i64,
    /// Whether they were set. Otherwise they enclose the bytes.
    are_set: bool,
}

impl Bounds {
    fn new(lower: i128, upper: i128, are_set: bool) -> Option<Bounds> {
        i64::try_from(upper - lower).ok()?;
        Some(Bounds { lower: i64::try_from(lower).ok()?, upper: i64::try_from(upper).ok()?, are_set })
    }

    fn moved(self, by: i64) -> Option<Bounds> {
        let by = i128::from(by);
        Bounds::new(i128::from(self.lower) + by, i128::from(self.upper) + by, self.are_set)
    }

    fn repeated(self, count: u64, stride_bytes: i64) -> Option<Bounds> {
        let moved = i128::from(count - 1) * i128::from(stride_bytes);
        let (lower, upper) = (i128::from(self.lower), i128::from(self.upper));
        Bounds::new(lower + moved.min(0), upper + moved.max(0), self.are_set)
    }

    /// Bounds that enclose both, or those of the one whose bounds are set.
    fn with(self, other: Bounds) -> Option<Bounds> {
        if self.are_set != other.are_set {
            return Some(if self.are_set { self } else { other });
        }
        let (lower, upper) = (self.lower.min(other.lower), self.upper.max(other.upper));
        Bounds::new(lower.into(), upper.into(), self.are_set)
    }
}

impl Datatype {
    /// `bytes` adjacent bytes: any elementary type.
    pub fn bytes(bytes: u64) -> Result<Datatype, DatatypeError> {
        Datatype::around(Pattern::contiguous(bytes).ok_or(DatatypeError::TooLarge)?)
    }

    /// `count` instances of `element`, one extent apart.
    pub fn contiguous(count: u64, element: &Datatype) -> Result<Datatype, DatatypeError> {
        element.repeated(count, element.extent_bytes())
    }

    /// `count` blocks of `block_count` adjacent elements, `stride_elements` extents from the beginning of one
    /// block to that of the next.
    pub fn vector(
        count: u64,
        block_count: u64,
        stride_elements: i64,
        element: &Datatype,
    ) -> Result<Datatype, DatatypeError> {
        if count <= 1 {
            return Datatype::hvector(count, block_count, 0, element);
        }
        let stride_bytes = stride_elements.checked_mul(element.extent_bytes());
        Datatype::hvector(count, block_count, stride_bytes.ok_or(DatatypeError::TooLarge)?, element)
    }

    /// [`vector`](Datatype::vector), with the stride in bytes.
    pub fn hvector(
        count: u64,
        block_count: u64,
        stride_bytes: i64,
        element: &Datatype,
    ) -> Result<Datatype, DatatypeError> {
        Datatype::contiguous(block_count, element)?.repeated(count, stride_bytes)
    }

    /// Blocks of adjacent elements, each given as (displacement in extents of the element, number of
    /// elements).
    pub fn indexed(blocks: &[(i64, u64)], element: &Datatype) -> Result<Datatype, DatatypeError> {
        let extent_bytes = element.extent_bytes();
        let in_bytes = |&(displacement, count): &(i64, u64)| match count {
            0 => Some((0, 0)),
            _ => Some((displacement.checked_mul(extent_bytes)?, count)),
        };
        let blocks: Option<Vec<_>> = blocks.iter().map(in_bytes).collect();
        Datatype::hindexed(&blocks.ok_or(DatatypeError::TooLarge)?, element)
    }

    /// [`indexed`](Datatype::indexed), with the displacements in bytes.
    pub fn hindexed(blocks: &[(i64, u64)], element: &Datatype) -> Result<Datatype, DatatypeError> {
        Datatype::sum(blocks.iter().map(|&(displacement_bytes, count)| (displacement_bytes, count, element)))
    }

    /// Blocks of adjacent elements of several types, each given as (displacement in bytes, number of
    /// elements, element). Nothing is aligned or padded.
    pub fn structure(fields: &[(i64, u64, &Datatype)]) -> Result<Datatype, DatatypeError> {
        Datatype::sum(fields.iter().copied())
    }

    /// The block of `counts` elements from index `starts` on, of an array of `dims` elements. Its bounds are
    /// those of the whole array, from 0 on.
    pub fn subarray(
        dims: &[u64],
        starts: &[u64],
        counts: &[u64],
        order: Order,
        element: &Datatype,
    ) -> Result<Datatype, DatatypeError> {
        if dims.len() != starts.len() || dims.len() != counts.len() {
            let (dims, starts, counts) = (dims.len(), starts.len(), counts.len());
            return Err(DatatypeError::DimensionMismatch { dims, starts, counts });
        }
        let mut axes: Vec<(u64, u64, u64)> = Vec::with_capacity(dims.len());
        for (axis, ((&dim, &start), &count)) in dims.iter().zip(starts).zip(counts).enumerate() {
            if start.checked_add(count).is_none_or(|end| end > dim) {
                return Err(DatatypeError::OutsideArray { axis, start, count, dim });
            }
            axes.push((dim, start, count));
        }
        if order == Order::C {
            axes.reverse();
        }
        Datatype::of_array(&axes, element).ok_or(DatatypeError::TooLarge)
    }

    /// `axes` are (dim, start, count), fastest varying first.
    fn of_array(axes: &[(u64, u64, u64)], element: &Datatype) -> Option<Datatype> {
        let mut pattern = element.pattern.clone();
        let (mut stride_bytes, mut first) = (element.extent_bytes(), 0i64);
        for &(dim, start, count) in axes {
            pattern = pattern.repeated(count, stride_bytes)?;
            first = first.checked_add(stride_bytes.checked_mul(i64::try_from(start).ok()?)?)?;
            stride_bytes = stride_bytes.checked_mul(i64::try_from(dim).ok()?)?;
        }
        let mut sum = Sum::new();
        sum.push(&pattern, first)?;
        let bounds = Bounds::new(0, stride_bytes.into(), true)?;
        Some(Datatype { pattern: sum.finish()?, bounds: Some(bounds) })
    }

    /// The same bytes, with the lower bound at `lower_bound_bytes` and the upper one `extent_bytes` after it.
    pub fn resized(
        lower_bound_bytes: i64,
        extent_bytes: i64,
        element: &Datatype,
    ) -> Result<Datatype, DatatypeError> {
        let lower = i128::from(lower_bound_bytes);
        let bounds = Bounds::new(lower, lower + i128::from(extent_bytes), true);
        let bounds = Some(bounds.ok_or(DatatypeError::TooLarge)?);
        Ok(Datatype { pattern: element.pattern.clone(), bounds })
    }

    /// Number of bytes of an instance.
    pub fn size_bytes(&self) -> u64 {
        self.pattern.total_bytes()
    }

    /// Distance from one instance to the next in an array of them.
    pub fn extent_bytes(&self) -> i64 {
        self.bounds.map_or(0, |bounds| bounds.upper - bounds.lower)
    }

    /// The lower bound of an instance, from its origin.
    pub fn lower_bound_bytes(&self) -> i64 {
        self.bounds.map_or(0, |bounds| bounds.lower)
    }

    /// The offset of the lowest byte from the origin, and the distance from there to the end of the highest
    /// byte: the memory that an instance accesses.
    pub fn true_extent(&self) -> (i64, u64) {
        (self.pattern.lowest(), self.pattern.span_bytes())
    }

    /// The regions of `count` consecutive instances, with the origin of the first one at `offset`. They are
    /// valid, except for the number of parts and levels, and compact: a regular pattern is one part, for any
    /// `count`.
    pub fn regions(&self, offset: u64, count: u64) -> Result<Regions, DatatypeError> {
        let out_of_range = DatatypeError::OutOfRange { offset, count };
        let pattern = self.pattern.repeated(count, self.extent_bytes()).ok_or(out_of_range)?;
        pattern.at(offset).ok_or(out_of_range)
    }

    pub(crate) fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// The type of these bytes, with bounds that enclose them.
    fn around(pattern: Pattern) -> Result<Datatype, DatatypeError> {
        let lower = i128::from(pattern.lowest());
        let bounds = match pattern.total_bytes() {
            0 => None,
            _ => Bounds::new(lower, lower + i128::from(pattern.span_bytes()), false),
        };
        Ok(Datatype { pattern, bounds })
    }

    fn repeated(&self, count: u64, stride_bytes: i64) -> Result<Datatype, DatatypeError> {
        let pattern = self.pattern.repeated(count, stride_bytes).ok_or(DatatypeError::TooLarge)?;
        let bounds = match self.bounds.filter(|_| count > 0) {
            Some(bounds) => Some(bounds.repeated(count, stride_bytes).ok_or(DatatypeError::TooLarge)?),
            None => None,
        };
        Ok(Datatype { pattern, bounds })
    }

    fn sum<'a>(fields: impl Iterator<Item = (i64, u64, &'a Datatype)>) -> Result<Datatype, DatatypeError> {
        let fields: Vec<_> = fields.filter(|field| field.1 > 0).collect();
        Datatype::of_fields(&fields).ok_or(DatatypeError::TooLarge)
    }

    /// `fields` are (displacement in bytes, number of elements, element); no number is 0.
    fn of_fields(fields: &[(i64, u64, &Datatype)]) -> Option<Datatype> {
        let (mut sum, mut bounds) = (Sum::new(), None::<Bounds>);
        let mut cached = None::<(u64, &Datatype, Datatype)>;
        let mut rest = fields;
        while let Some(&(displacement_bytes, count, element)) = rest.first() {
            let block = match cached.take() {
                Some((of_count, of_element, block))
                    if of_count == count && std::ptr::eq(of_element, element) =>
                {
                    block
                }
                _ => Datatype::contiguous(count, element).ok()?,
            };
            let (run, stride_bytes) = uniform_run(rest);
            let taken = match block.pattern.as_contiguous() {
                Some((lowest, bytes)) => {
                    sum.push_extent(displacement_bytes.checked_add(lowest)?, bytes)?;
                    1
                }
                None if run >= 3 => {
                    sum.push(&block.pattern.repeated(run as u64, stride_bytes)?, displacement_bytes)?;
                    run
                }
                None => {
                    sum.push(&block.pattern, displacement_bytes)?;
                    1
                }
            };
            if let Some(of_block) = block.bounds {
                let here = of_block.repeated(taken as u64, stride_bytes)?.moved(displacement_bytes)?;
                bounds = Some(match bounds {
                    Some(bounds) => bounds.with(here)?,
                    None => here,
                });
            }
            cached = Some((count, element, block));
            rest = &rest[taken..];
        }
        Some(Datatype { pattern: sum.finish()?, bounds })
    }
}

/// How many of the first fields are equal and at equal distances, and the distance. At least 1.
fn uniform_run(fields: &[(i64, u64, &Datatype)]) -> (usize, i64) {
    let distance = |pair: &[(i64, u64, &Datatype)]| pair[1].0.checked_sub(pair[0].0);
    let is_alike =
        |pair: &[(i64, u64, &Datatype)]| pair[1].1 == pair[0].1 && std::ptr::eq(pair[1].2, pair[0].2);
    let Some(stride_bytes) = fields.get(..2).and_then(distance) else { return (1, 0) };
    let alike = fields.windows(2).take_while(|pair| is_alike(pair) && distance(pair) == Some(stride_bytes));
    (1 + alike.count(), stride_bytes)
}
