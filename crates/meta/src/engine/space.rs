//! Room on the disk: how much is free, and blocks that a journal has ahead of its end.
//!
//! ```text
//!   0.jnl   batches ───────────────┤ ahead: allocated, empty │
//!                                  └ end    AHEAD_BYTES       ┘
//! ```
//!
//! Other programs may fill the disk at any moment, so a look at what is free promises nothing. What a journal has ahead
//! nobody can take: when the disk is full, removals and what goes with them are written there.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Free space below which nothing is added any more (on a small disk, a quarter of it): room for compaction, which writes
/// before it deletes.
const RESERVED_BYTES: u64 = 128 * 1024 * 1024;
/// What the journal has ahead (on a small disk, a sixteenth of it).
const AHEAD_BYTES: u64 = 16 * 1024 * 1024;
/// A disk below this is small: there the journal is emptied when it has an eighth of it, long before fjall would.
const SMALL_BYTES: u64 = 512 * 1024 * 1024;
/// How long a journal may become that fjall does not look after.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a disk has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

impl Free {
    /// Looks; `None` where the file system does not tell.
    pub fn look(directory: &Path) -> Option<Free> {
        let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
        let mut stat = MaybeUninit::<libc::statvfs>::uninit();
        // SAFETY: `path` is a C string and `stat` a buffer of the size the call fills; both live through it.
        if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call has succeeded, so it has filled the buffer.
        let stat = unsafe { stat.assume_init() };
        Some(Free {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    pub fn reserved_bytes(&self) -> u64 {
        RESERVED_BYTES.min(self.total_bytes / 4)
    }

    pub fn ahead_bytes(&self) -> u64 {
        AHEAD_BYTES.min(self.total_bytes / 16)
    }

    pub fn is_small(&self) -> bool {
        self.total_bytes < SMALL_BYTES
    }

    /// How long a journal may become before it is emptied.
    pub fn journal_bytes_max(&self) -> u64 {
        JOURNAL_BYTES_MAX.min(self.total_bytes / 8)
    }

    /// Whether there is so little that tables can hardly be written.
    pub fn is_nearly_full(&self) -> bool {
        self.free_bytes < self.reserved_bytes() / 2
    }

    pub fn has_room(&self) -> bool {
        self.free_bytes > self.reserved_bytes()
    }

    /// Whether tables of so many bytes can be written anew before they are deleted, beside a full journal.
    pub fn can_compact(&self, tables_bytes: u64) -> bool {
        !self.is_small() || self.free_bytes > tables_bytes + self.journal_bytes_max()
    }

    /// Whether it may be full before the next look.
    pub fn is_low(&self) -> bool {
        self.free_bytes < 8 * self.reserved_bytes()
    }
}

/// What came of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allocated {
    Yes,
    NoRoom,
    /// The file system cannot do it.
    Unknown,
}

/// Gives a file blocks from `at` on, without changing its length.
pub(super) fn allocate(file: &File, at: u64, bytes: u64) -> Allocated {
    if bytes == 0 {
        return Allocated::Yes;
    }
    let fd = file.as_raw_fd();
    loop {
        // SAFETY: the descriptor is open for as long as `file` lives; no memory is passed.
        if unsafe { libc::fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, at as i64, bytes as i64) } == 0 {
            return Allocated::Yes;
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error if is_full(&error) => return Allocated::NoRoom,
            _ => return Allocated::Unknown,
        }
    }
}

/// Whether an error says that the disk, or a quota, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn a_small_disk_keeps_room_to_write_all_tables_anew() {
        let free = Free { free_bytes: 12 * MIB, total_bytes: 24 * MIB };
        assert!(free.has_room() && free.can_compact(8 * MIB));
        assert!(!free.can_compact(9 * MIB), "an eighth of the disk is the journal's");
        let large = Free { free_bytes: 200 * MIB, total_bytes: 1024 * MIB };
        assert!(large.can_compact(800 * MIB), "there it is done in parts");
    }
}
