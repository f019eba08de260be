//! File views: the part of a file that a datatype selects, accessed like a file.
//!
//! A view begins at a displacement in the file. From there its *filetype* repeats to the end of the file,
//! once per extent. Its bytes, in order, are the bytes of the view. (MPI 4.0, section 14.3. Positions are in
//! bytes here; elementary types are up to the caller.)
//!
//! ```text
//!   filetype   resized (0, 10, structure ((0, 2 bytes), (4, 3 bytes)))     ##..###...
//!
//!   file       |- displacement -|##..###...|##..###...|##..###...|##..##   ends here
//!   view                        |01  234   |56  789   |ab  cde   |fg  hi      19 bytes
//! ```
//!
//! ```
//! use weft_layout::{Datatype, Extent, View};
//!
//! let (two, three) = (Datatype::bytes(2)?, Datatype::bytes(3)?);
//! let filetype = Datatype::resized(0, 10, &Datatype::structure(&[(0, 1, &two), (4, 1, &three)])?)?;
//! let view = View::new(100, filetype)?;
//! let extents: Vec<Extent> = view.regions(3, 5)?.extents().collect();
//! assert_eq!(extents, [Extent::new(105, 2), Extent::new(110, 2), Extent::new(114, 1)]);
//! assert_eq!((view.file_offset(3), view.view_size(136)), (Some(105), 19));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use thiserror::Error;

use crate::datatype::Datatype;
use crate::extents::{Form, Nest, Repetition};
use crate::partition::Partition;
use crate::pattern::{Pattern, repeat};
use crate::region::{Level, OFFSET_LIMIT, Region, Regions};
use crate::window::window_of_repeat;

/// A filetype that repeats from a displacement on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    displacement: u64,
    /// One instance of the filetype.
    tile: Pattern,
    /// The file offset of its lowest byte, the first time.
    first: u64,
    /// Distance from one instance to the next.
    stride_bytes: u64,
    /// Whether the same byte of the file may be seen more than once.
    overlaps: bool,
}

/// Why a view, or a request in it, is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ViewError {
    /// The filetype has no bytes, so the view would be empty.
    #[error("a filetype without bytes; a view needs at least one")]
    Empty,
    /// The first instance begins before the file, or beyond the largest offset.
    #[error("view at {displacement}, with the first byte of the filetype at {lowest}: not within 0 to 2^63")]
    Displaced {
        /// Displacement of the view, in bytes.
        displacement: u64,
        /// The offset of the filetype's lowest byte from its origin.
        lowest: i64,
    },
    /// The bytes of the filetype are not in ascending order, or overlap.
    #[error("a filetype whose bytes are not in ascending order or overlap; order its blocks by displacement")]
    NotAscending,
    /// A block of the filetype, or of its next instance, begins before the previous block does.
    #[error("a filetype whose blocks do not begin in ascending order; order them by displacement")]
    Descending,
    /// An instance of the filetype begins before the previous one ends.
    #[error(
        "a filetype that reaches over {span_bytes} bytes with an extent of {extent_bytes}: it would overlap its \
             repetitions; resize it"
    )]
    Overlapping {
        /// Distance from its lowest to its highest byte.
        span_bytes: u64,
        /// Distance from one instance to the next.
        extent_bytes: i64,
    },
    /// A request exceeds the largest file offset.
    #[error("{bytes} bytes at {position} of a view exceed file offset 2^63")]
    OutOfRange {
        /// Position in the view.
        position: u64,
        /// Requested bytes.
        bytes: u64,
    },
}

impl View {
    /// The view of the instances of `filetype` from `displacement` (in bytes) on. The bytes of the filetype
    /// must be in ascending order and not overlap, within an instance and with the next one.
    pub fn new(displacement: u64, filetype: Datatype) -> Result<View, ViewError> {
        let view = View::at(displacement, &filetype)?;
        if !view.tile.is_ascending() {
            return Err(ViewError::NotAscending);
        }
        let (extent_bytes, (_, span_bytes)) = (filetype.extent_bytes(), filetype.true_extent());
        if u64::try_from(extent_bytes).is_ok_and(|stride_bytes| stride_bytes >= span_bytes) {
            Ok(view)
        } else {
            Err(ViewError::Overlapping { span_bytes, extent_bytes })
        }
    }

    /// The view of a file that is only read: blocks may overlap, within an instance and with the next one. They
    /// must begin in ascending order within an instance (MPI 4.0, section 14.3).
    pub fn for_reading(displacement: u64, filetype: Datatype) -> Result<View, ViewError> {
        match View::new(displacement, filetype.clone()) {
            Err(ViewError::NotAscending | ViewError::Overlapping { .. }) => {}
            decided => return decided,
        }
        let (extent_bytes, (_, span_bytes)) = (filetype.extent_bytes(), filetype.true_extent());
        if extent_bytes <= 0 {
            return Err(ViewError::Overlapping { span_bytes, extent_bytes });
        }
        let view = View { overlaps: true, ..View::at(displacement, &filetype)? };
        if view.tile.regions().extents().is_sorted_by_key(|extent| extent.offset) {
            Ok(view)
        } else {
            Err(ViewError::Descending)
        }
    }

    /// The instances of a filetype, whatever their order. The stride of a negative extent is 0.
    fn at(displacement: u64, filetype: &Datatype) -> Result<View, ViewError> {
        let (lowest, _) = filetype.true_extent();
        if filetype.size_bytes() == 0 {
            return Err(ViewError::Empty);
        }
        let first = displacement.checked_add_signed(lowest).filter(|first| *first < OFFSET_LIMIT);
        let first = first.ok_or(ViewError::Displaced { displacement, lowest })?;
        let stride_bytes = u64::try_from(filetype.extent_bytes()).unwrap_or(0);
        Ok(View { displacement, tile: filetype.pattern().clone(), first, stride_bytes, overlaps: false })
    }

    /// Whether the view may show the same byte of the file more than once, as only
    /// [`View::for_reading`] allows.
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// The offset of the view in the file, in bytes.
    pub fn displacement(&self) -> u64 {
        self.displacement
    }

    /// The file offset of the byte at `position` of the view, `None` from 2^63 on.
    pub fn file_offset(&self, position: u64) -> Option<u64> {
        let tile_bytes = self.tile.total_bytes();
        let start = (position / tile_bytes).checked_mul(self.stride_bytes)?;
        let within = self.tile.regions().extents_from(position % tile_bytes).next_at_most(1)?;
        let offset = self.first.checked_add(start)?.checked_add(within.offset)?;
        (offset < OFFSET_LIMIT).then_some(offset)
    }

    /// The size of the view of a file of `file_bytes` bytes. If the view overlaps itself: how many of its bytes
    /// come before the first one that is beyond the end of the file.
    pub fn view_size(&self, file_bytes: u64) -> u64 {
        let after_first = file_bytes.saturating_sub(self.first);
        if self.overlaps {
            return self.overlapping_size(after_first);
        }
        let in_last_tile = bytes_below(self.tile.regions(), after_first % self.stride_bytes);
        after_first / self.stride_bytes * self.tile.total_bytes() + in_last_tile
    }

    fn overlapping_size(&self, after_first: u64) -> u64 {
        let tile = self.tile.regions();
        let span_bytes = self.tile.span_bytes();
        let whole = after_first.checked_sub(span_bytes).map_or(0, |rest| rest / self.stride_bytes + 1);
        let limit = after_first.saturating_sub(whole * self.stride_bytes);
        let mut below = whole * self.tile.total_bytes();
        for extent in tile.extents() {
            below += limit.saturating_sub(extent.offset).min(extent.bytes);
            if extent.end() > limit {
                break;
            }
        }
        below
    }

    /// The file regions of `bytes` bytes at `position` of the view: the end of one instance of the filetype,
    /// whole instances as one repeated part, and the beginning of one. With a regular filetype at most `2 ×
    /// levels + 3` parts.
    pub fn regions(&self, position: u64, bytes: u64) -> Result<Regions, ViewError> {
        if bytes == 0 {
            return Ok(Regions::default());
        }
        let out_of_range = ViewError::OutOfRange { position, bytes };
        let last = position.checked_add(bytes - 1).ok_or(out_of_range)?;
        let tile_bytes = self.tile.total_bytes();
        let is_in_range = if self.overlaps {
            // The last byte of the request need not be the highest one.
            let last_tile = (last / tile_bytes).checked_mul(self.stride_bytes);
            let begin = last_tile.and_then(|start| start.checked_add(self.first));
            let end = begin.and_then(|begin| begin.checked_add(self.tile.span_bytes()));
            end.is_some_and(|end| end <= OFFSET_LIMIT)
        } else {
            self.file_offset(last).is_some()
        };
        is_in_range.then_some(()).ok_or(out_of_range)?;
        let (first_tile, start) = (position / tile_bytes, position % tile_bytes);
        let offset = self.first + first_tile * self.stride_bytes;
        let (count, stride_bytes) = (last / tile_bytes - first_tile + 1, self.stride_bytes as i64);
        let tile = self.tile.regions();
        if self.tile.is_regular() {
            let mut tiles = repeat(tile, Level { count, stride_bytes });
            tiles.shift(offset);
            return Ok(Regions::from(tiles).window(start, bytes));
        }
        Ok(window_of_repeat(Repetition { offset, count, stride_bytes, body: tile }, start, bytes))
    }
}

impl From<Partition> for View {
    fn from(partition: Partition) -> View {
        let group = Pattern::contiguous(partition.group_bytes()).expect("a group is within a stride");
        View {
            displacement: partition.offset(),
            tile: group,
            first: partition.offset(),
            stride_bytes: partition.stride_bytes(),
            overlaps: false,
        }
    }
}

/// How many bytes of ascending regions are below `limit`.
fn bytes_below(regions: &Regions, limit: u64) -> u64 {
    let in_part = |part: &Region| match Form::of(part) {
        Form::Nest(nest) => bytes_below_in_nest(&nest, limit),
        Form::List(extents) => {
            let below = extents.partition_point(|extent| extent.end() <= limit);
            let cut = extents.get(below).map_or(0, |extent| limit.saturating_sub(extent.offset));
            extents[..below].iter().map(|extent| extent.bytes).sum::<u64>() + cut
        }
        Form::Repeat(Repetition { offset, count, stride_bytes, body }) => {
            let begun = limit.saturating_sub(offset) / (stride_bytes as u64).max(1);
            let whole = begun.min(count - 1);
            let last = offset + whole * stride_bytes as u64;
            whole * body.total_bytes() + bytes_below(body, limit.saturating_sub(last))
        }
    };
    regions.parts.iter().map(in_part).sum()
}

fn bytes_below_in_nest(nest: &Nest, limit: u64) -> u64 {
    let mut below = 0;
    let mut left = limit.saturating_sub(nest.offset);
    let mut iteration_bytes = nest.blocks() * nest.block_bytes;
    for level in nest.loops.iter().rev() {
        iteration_bytes /= level.count;
        let whole = (left / level.stride_bytes as u64).min(level.count - 1);
        below += whole * iteration_bytes;
        left -= whole * level.stride_bytes as u64;
    }
    below + left.min(nest.block_bytes)
}
