//! Where the bytes of a file live, and which of them a request means. Pure: no I/O, no clock, no wire.
//!
//! Three ideas, one module each, and a fourth that joins them:
//!
//! - a [`Layout`] deals a file's strips out to servers, round after round ([`striping`]);
//! - [`Regions`] say which bytes a request is about, compactly and in request order ([`region`]);
//! - a [`Partition`] is PVFS's strided view of a file, which becomes regions ([`partition`]);
//! - the intersection of the first two is what one server must do for one request ([`stream`]).
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
//! Positions in these four number lines never mix: a name that ends in `stream_offset`, `share_offset` or
//! `local_offset` says which line it is on, and a plain `offset` is in the logical file (or, for the memory
//! side of a request, in memory).
//!
//! # Trust
//!
//! [`Layout::new`] and [`Regions::validate`] are where numbers from outside are checked. Behind them no
//! arithmetic of this crate can overflow.
#![forbid(unsafe_code)]

mod extents;
mod joined;
pub mod partition;
pub mod region;
pub mod stream;
pub mod striping;
mod window;

pub use extents::Extents;
pub use partition::{Partition, PartitionError};
pub use region::{Extent, Level, OFFSET_LIMIT, Order, Region, RegionError, Regions};
pub use stream::{
    LocalRun, LocalRuns, MemoryRuns, Piece, Pieces, StreamError, StreamRun, StreamRuns, local_runs,
    local_runs_from, memory_runs, memory_runs_from, pieces, pieces_from, share_bytes, share_has, stream_runs,
    stream_runs_from,
};
pub use striping::{Layout, LayoutError, STRIP_BYTES_MAX, STRIP_BYTES_UNIT};
pub use window::Cutter;
