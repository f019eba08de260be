//! Bytes on an I/O server: where the pieces of files that live on this server are kept, and the memory
//! they pass through.
//!
//! ```text
//!   DataFiles   ino -> data file; handles, cached windows, "missing reads as empty"
//!      |
//!     Disk      the seam: RingDisk (io_uring) | PlainDisk | MemDisk | FaultDisk<any of them>
//!      |
//!   DIR/data/xx/yy/<ino>            BufferPool   bounded memory for data on its way, fair among clients
//! ```
//!
//! A data file is a plain local file that holds one server's strips of one file, back to back: the byte
//! at local offset `n` is byte `n` of the file, and the local size is the size of the file, exactly.
//! What was never written reads as zeros, and is a hole where the local file system has holes.
//!
//! Nothing here knows of striping, clients' rights or the network. Reads that are in the page cache and
//! all writes happen on the calling thread, since a trip through a ring costs more than the copy;
//! reads that have to wait for the device and `fdatasync` go through the reactor's io_uring, many at
//! once, and meanwhile the thread serves others.
//!
//! [`PlainDisk`] and [`RingDisk`] keep the same format, described in [`directory`]; a server may use
//! either on the same directory, one at a time.

mod buffers;
pub mod calibrate;
pub mod cost;
mod data_files;
pub mod directory;
mod disk;
mod error;
mod fault;
mod guard;
mod handles;
pub mod limits;
mod memory;
mod plain;
mod ranges;
mod residency;
mod ring_disk;
pub mod state;
pub mod sums;
mod unsynced;
mod windows;

pub use buffers::{Buffer, BufferPool, PoolStats, ZoneKeeper};
pub use data_files::{DataFile, DataFiles, DataFilesStats, RangeTurn};
pub use directory::{Directory, Identity, SumsDirectory};
pub use disk::{Disk, ObjectInfo, Seek, Space};
pub use error::{Operation, StorageError};
pub use fault::{FaultDisk, FaultPlan};
pub use guard::{MemoryGone, guarded};
pub use memory::{MemDisk, MemFile};
pub use plain::{LocalFile, PlainDisk};
pub use ring_disk::RingDisk;
pub use state::{RandomId, Seen, State, StateFile};
pub use weft_layout::Extent;
pub use windows::MappedPieces;
