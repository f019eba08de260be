//! Every bound of this crate, with the reasons.

pub use weft_buffers::{BUFFER_BYTES_MAX, BUFFER_BYTES_MIN};

/// Buffer memory of one server, in bytes, unless told otherwise.
pub const BUFFER_POOL_BYTES: usize = 32 << 20;

/// Open data files that a server keeps, unless told otherwise. Each has two descriptors, one of them for checksums.
pub const OPEN_FILES: usize = 512;

/// Bytes of one cached window into a data file. Windows begin at multiples of it.
pub const WINDOW_BYTES: u64 = 64 << 20;

/// Windows a server keeps mapped. 4 GiB of addresses, not of memory.
pub const WINDOWS_MAX: usize = 64;

/// Longest single read that brings bytes of a data file into the page cache, in bytes.
pub const FETCH_BYTES_MAX: u64 = 1 << 20;

/// Pieces of memory in one system call (`IOV_MAX` of Linux).
pub const IOV_MAX: usize = 1024;

/// Objects in one page of a listing: bounds the time the listing holds up its thread.
pub const LIST_MAX: usize = 4096;

const _: () = assert!(BUFFER_POOL_BYTES >= 4 * BUFFER_BYTES_MAX);
const _: () = assert!(WINDOW_BYTES.is_power_of_two() && WINDOW_BYTES >= BUFFER_BYTES_MAX as u64);
