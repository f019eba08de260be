//! What can go wrong with storage, said once.

use std::io;
use std::path::PathBuf;

use crate::emptied::Emptied;

/// What was being done to a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Opening or creating it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making it durable.
    Sync,
    /// Setting its size.
    Truncate,
    /// Punching a hole.
    Punch,
    /// Allocating space.
    Allocate,
    /// Looking for data or holes.
    Seek,
    /// Copying from or to it.
    Copy,
    /// Asking for its size.
    Size,
    /// Removing it.
    Remove,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "sync",
            Operation::Truncate => "truncate",
            Operation::Punch => "punch a hole into",
            Operation::Allocate => "allocate space for",
            Operation::Seek => "look for holes in",
            Operation::Copy => "copy",
            Operation::Size => "get the size of",
            Operation::Remove => "remove",
        })
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The local file system refused an operation on a data file.
    #[error("cannot {operation} data file {ino:016x}: {source}")]
    File {
        /// What was tried.
        operation: Operation,
        /// The file's inode number.
        ino: u64,
        /// The local error.
        source: io::Error,
    },
    /// The local file system refused an operation on the storage as a whole.
    #[error("cannot {what} the storage directory: {source}")]
    Whole {
        /// What was tried.
        what: &'static str,
        /// The local error.
        source: io::Error,
    },
    /// The storage directory could not be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Directory {
        /// What was tried.
        what: &'static str,
        /// The path concerned.
        path: PathBuf,
        /// The local error.
        source: io::Error,
    },
    /// Another server runs on this directory.
    #[error("{} is in use by another server (process {holder}): stop that one first, or give this one its own directory", path.display())]
    InUse {
        /// The storage directory.
        path: PathBuf,
        /// The process that holds it, as it wrote it down.
        holder: String,
    },
    /// There is nothing where a storage is expected.
    #[error(
        "{} holds no storage of this server: {found}. If its disk is not mounted, or its path is wrong, mend that. To make a \
         new, empty storage there: weft serve --format", path.display()
    )]
    NoStorage {
        /// The storage directory.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// Most data files are missing.
    #[error(
        "the data files are gone: of {} data files that this server had and that were looked for, {} are missing below {}{}. Mount the \
         disk that belongs there, or put the data files back, and start the server again; nothing was changed. If they are lost for \
         good, have the storage replaced (weft help recovery), or start the server once with weft serve --accept-loss: then reading \
         what is lost fails with EIO",
        emptied.looked_for, emptied.missing, path.display(),
        if emptied.is_bare { ", which is empty: probably a disk is not mounted there" } else { "" }
    )]
    Emptied {
        /// The data directory.
        path: PathBuf,
        /// How many were looked for, and how many are missing.
        emptied: Emptied,
    },
    /// What a data file held is gone: its storage was replaced.
    #[error(
        "the data of inode {ino} that this server had is lost: its storage was replaced after the file was made; truncate the \
         file to nothing to use it again"
    )]
    Lost {
        /// The file's inode number.
        ino: u64,
    },
    /// A data file is gone that must be there.
    #[error(
        "the data of inode {ino} that this server had is lost: its data file is missing; put the data file back, restore the file \
         from a copy, or truncate it to nothing to use it again"
    )]
    Missing {
        /// The file's inode number.
        ino: u64,
    },
    /// A data file ends before data that has checksums.
    #[error(
        "data of inode {ino} that this server had is lost: its data file ends at byte {bytes}, and it had data up to byte {had_bytes}; \
         restore the file from a copy, or truncate it to nothing to use it again"
    )]
    Cut {
        /// The file's inode number.
        ino: u64,
        /// How long its data file is.
        bytes: u64,
        /// Up to where it had data, in whole blocks.
        had_bytes: u64,
    },
    /// A data file has the checksums of another inode.
    #[error(
        "the data file of inode {ino} has the checksums of inode {other}: the data files were swapped, or their checksums; put back \
         what belongs together, restore the file from a copy, or truncate it to nothing to use it again"
    )]
    Foreign {
        /// The file's inode number.
        ino: u64,
        /// That of the checksums.
        other: u64,
    },
    /// What a data file holds is not what was written to it.
    #[error(
        "the data of inode {ino} is damaged on this server's disk: {bytes} bytes from {offset} on of its data file do not fit \
         their checksum"
    )]
    Damaged {
        /// The file's inode number.
        ino: u64,
        /// Where in the data file the first block begins that is wrong.
        offset: u64,
        /// How long that and those behind it are together, in whole blocks.
        bytes: u64,
    },
    /// The directory belongs to another server, another cluster or another version, or to no Weft at all.
    #[error("{} is not this server's storage: {reason}", path.display())]
    WrongDirectory {
        /// The storage directory.
        path: PathBuf,
        /// What does not fit, and what to do.
        reason: String,
    },
}

impl StorageError {
    /// The local errno, for the reply to a client (`EIO` where there is none).
    pub fn errno(&self) -> i32 {
        match self {
            StorageError::File { source, .. }
            | StorageError::Whole { source, .. }
            | StorageError::Directory { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            StorageError::InUse { .. } => libc::EBUSY,
            StorageError::WrongDirectory { .. }
            | StorageError::NoStorage { .. }
            | StorageError::Emptied { .. } => libc::EINVAL,
            StorageError::Lost { .. }
            | StorageError::Missing { .. }
            | StorageError::Cut { .. }
            | StorageError::Foreign { .. }
            | StorageError::Damaged { .. } => libc::EIO,
        }
    }

    /// Whether the data that was there is gone, or another file's is in its place.
    pub fn is_loss(&self) -> bool {
        use StorageError::{Cut, Foreign, Lost, Missing};
        matches!(self, Lost { .. } | Missing { .. } | Cut { .. } | Foreign { .. })
    }

    /// Whether the disk, or the quota on it, is full.
    pub fn is_full(&self) -> bool {
        [libc::ENOSPC, libc::EDQUOT].contains(&self.errno())
    }
}
