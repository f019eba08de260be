//! Bytes on an I/O server: where the pieces of files that live on this server are kept, and the memory
//! they pass through.
//!
//! ```text
//!   DataFiles   ino -> data file; handles, cached windows, "missing reads as empty"
//!      |
//!     Disk      the seam: LocalDisk | MemDisk | FaultDisk<either>
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
//! A [`LocalDisk`] waits for its device by one of two engines ([`DiskEngine`]). Both keep the same format, described
//! in [`directory`]; a server may use either on the same directory, one at a time.

pub mod calibrate;
pub mod cost;
mod data_file;
mod data_files;
pub mod directory;
mod disk;
mod emptied;
mod engine;
mod error;
mod fault;
mod guard;
mod handles;
mod held;
mod identity;
pub mod limits;
mod local_disk;
mod local_file;
mod mapped;
mod marks;
mod measure;
mod memory;
mod note;
mod ranges;
mod residency;
pub mod state;
pub mod sums;
mod sums_directory;
mod sync_all;
mod syncs;
mod tree;
mod unsynced;
mod window;
mod windows;

pub use data_file::DataFile;
pub use data_files::{DataFiles, DataFilesStats};
pub use directory::Directory;
pub use disk::{Disk, ObjectInfo, Seek, Space};
pub use emptied::Emptied;
pub use engine::DiskEngine;
pub use error::{Operation, StorageError};
pub use fault::{FaultDisk, FaultPlan};
pub use guard::{MemoryGone, guarded};
pub use identity::{FORMAT_VERSION, Identity};
pub use local_disk::LocalDisk;
pub use local_file::LocalFile;
pub use mapped::{MappedPieces, MappedRun};
pub use memory::{MemDisk, MemFile};
pub use ranges::Turn;
pub use state::{RandomId, Seen, State, StateFile};
pub use sums_directory::SumsDirectory;
pub use weft_buffers::{Buffer, BufferPool, PoolStats, ZoneKeeper};
pub use weft_layout::Extent;
