//! Where the bytes of a file are stored, and which of them a request means. Pure: no I/O, no clock, no wire
//! format.
//!
//! The concepts, with one module each:
//!
//! - a [`Layout`] assigns a file's strips to servers in turn ([`striping`]);
//! - [`Regions`] describe the bytes of a request, compactly and in request order ([`region`]);
//! - a [`Datatype`] is such a description as in MPI, built from smaller ones; it becomes regions
//!   ([`datatype`]);
//! - a [`View`] is a part of a file, described by a datatype that repeats to its end, and accessed like a
//!   file ([`view`]); a [`Partition`], PVFS's strided view, is a special case ([`partition`]);
//! - the intersection of layout and regions is what one server must do for one request ([`stream`]);
//! - the number of an inode says which metadata server owns it ([`shard_of`]).
//!
//! ```text
//!   request stream   0........10........20........30     regions, end to end: what the program sees
//!                    |  A  |     B      |  C  |   D |
//!   logical file     ..A....BBBB..CC......D..            the same bytes where the file has them
//!   slot 1 holds          [strip]       [strip]
//!   share of slot 1       ^ the bytes of the request inside its strips, in request order
//!   local file of slot 1  [strip][strip]                 its strips, end to end
//! ```
//!
//! Positions on these four number lines are never mixed. A name that ends in `stream_offset`, `share_offset`
//! or `local_offset` says which line it is on. A plain `offset` is in the logical file, or in memory for the
//! memory side of a request.
//!
//! # Trust
//!
//! [`Layout::new`], [`Regions::validate`] and the constructors of [`Datatype`] and [`View`] check numbers
//! from outside. After these checks no arithmetic of this crate can overflow.
#![forbid(unsafe_code)]

mod axes;
mod chain;
pub mod datatype;
mod extents;
mod joined;
mod own_blocks;
pub mod partition;
mod pattern;
pub mod region;
mod shard;
mod share_bytes;
pub mod sparse;
pub mod stream;
mod strided_runs;
pub mod striping;
pub mod view;
mod window;

pub use axes::{Axis, array_regions};
pub use chain::ChainId;
pub use datatype::{Datatype, DatatypeError};
pub use extents::{Extents, StridedRun};
pub use own_blocks::OutOfSteps;
pub use partition::{Partition, PartitionError};
pub use region::{Extent, Level, OFFSET_LIMIT, Order, Region, RegionError, Regions};
pub use shard::{NUMBER_BITS, ROOT_SHARD, first_ino_of, shard_of};
pub use share_bytes::{share_bytes, share_has};
pub use sparse::{SlotSeek, file_size, next_data, next_hole, slot_shift};
pub use stream::{
    LocalRun, LocalRuns, MemoryRuns, Piece, Pieces, StreamError, StreamRun, StreamRuns, local_runs,
    local_runs_from, memory_runs, memory_runs_from, pieces, pieces_from, stream_runs, stream_runs_from,
};
pub use strided_runs::StridedRuns;
pub use striping::{Layout, LayoutError, STRIP_BYTES_MAX, STRIP_BYTES_UNIT};
pub use view::{View, ViewError};
pub use window::Cutter;
