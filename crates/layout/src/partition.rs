//! The partitioned-file view: a regularly strided part of a file that is accessed like a file.
//!
//! It is the "partitioned-file interface" of PVFS 3.3 (figure 3), with its three parameters.
//!
//! ```text
//!   file      |--- offset ---|## gsize ##|.........|###########|.........|###########|....
//!                            |------ stride ------|
//!   view                     | group 0   | group 1   | group 2   | ...
//! ```
//!
//! ```
//! use weft_layout::{Extent, Partition};
//!
//! let view = Partition::new(100, 10, 40)?;
//! // Bytes 5 to 28 of the view: the end of group 0, the whole of group 1, the beginning of group 2.
//! let regions = view.regions(5, 23)?;
//! assert_eq!(
//!     regions.extents().collect::<Vec<_>>(),
//!     [Extent::new(105, 5), Extent::new(140, 10), Extent::new(180, 8)],
//! );
//! # Ok::<(), weft_layout::PartitionError>(())
//! ```

use thiserror::Error;

use crate::pattern::repeat;
use crate::region::{Level, OFFSET_LIMIT, Regions};

/// A view of a file: groups of `group_bytes`, the first at `offset`, each `stride_bytes` after the one
/// before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Partition {
    offset: u64,
    group_bytes: u64,
    stride_bytes: u64,
}

/// Why a partition, or a request in it, is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// The groups would be empty, overlap, or exceed the largest offset.
    #[error(
        "partition with offset {offset}, groups of {group_bytes} bytes and a stride of {stride_bytes}: needs \
         1 <= group <= stride, and offset and stride below 2^63"
    )]
    Parameters {
        /// The offset of the first group, in bytes.
        offset: u64,
        /// Bytes in a group.
        group_bytes: u64,
        /// Bytes from the start of one group to the start of the next.
        stride_bytes: u64,
    },
    /// A request exceeds the largest file offset.
    #[error("{bytes} bytes at {position} of a partition exceed file offset 2^63")]
    OutOfRange {
        /// Position in the view.
        position: u64,
        /// Requested bytes.
        bytes: u64,
    },
}

impl Partition {
    /// A view, with all three values in bytes. Groups may be adjacent (`group_bytes == stride_bytes`: the
    /// file from `offset` on) but not overlap.
    pub const fn new(offset: u64, group_bytes: u64, stride_bytes: u64) -> Result<Partition, PartitionError> {
        let fits = offset < OFFSET_LIMIT && stride_bytes < OFFSET_LIMIT;
        if !fits || group_bytes == 0 || group_bytes > stride_bytes {
            return Err(PartitionError::Parameters { offset, group_bytes, stride_bytes });
        }
        Ok(Partition { offset, group_bytes, stride_bytes })
    }

    /// The offset of the first group in the file, in bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes in a group (PVFS: gsize).
    pub const fn group_bytes(&self) -> u64 {
        self.group_bytes
    }

    /// Bytes from the start of one group to the start of the next.
    pub const fn stride_bytes(&self) -> u64 {
        self.stride_bytes
    }

    /// The file offset of the byte at `position` of the view, `None` from 2^63 on.
    pub fn file_offset(&self, position: u64) -> Option<u64> {
        let group_start = (position / self.group_bytes).checked_mul(self.stride_bytes)?;
        let offset = self.offset.checked_add(group_start)?.checked_add(position % self.group_bytes)?;
        (offset < OFFSET_LIMIT).then_some(offset)
    }

    /// The size of the view of a file of `file_bytes` bytes.
    pub fn view_size(&self, file_bytes: u64) -> u64 {
        let after_offset = file_bytes.saturating_sub(self.offset);
        let in_last_group = (after_offset % self.stride_bytes).min(self.group_bytes);
        after_offset / self.stride_bytes * self.group_bytes + in_last_group
    }

    /// The file regions of `bytes` bytes at `position` of the view: at most three parts, for the end of one
    /// group, whole groups, and the beginning of one.
    pub fn regions(&self, position: u64, bytes: u64) -> Result<Regions, PartitionError> {
        if bytes == 0 {
            return Ok(Regions::default());
        }
        let out_of_range = PartitionError::OutOfRange { position, bytes };
        let last = position.checked_add(bytes - 1).ok_or(out_of_range)?;
        self.file_offset(last).ok_or(out_of_range)?;
        let groups = Level { count: last / self.group_bytes + 1, stride_bytes: self.stride_bytes as i64 };
        let mut groups = repeat(&Regions::contiguous(0, self.group_bytes), groups);
        groups.shift(self.offset);
        Ok(Regions::from(groups).window(position, bytes))
    }
}
