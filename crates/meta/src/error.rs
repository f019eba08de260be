//! What a metadata operation can fail with. No errno here: the front doors (FUSE, C, NFS) translate once.

use crate::open_counter::CounterChange;
use crate::quota::QuotaExceeded;
use thiserror::Error;

/// Why the engine could not do what was asked. After a failed commit or sync the engine refuses every later
/// commit: what is on disk is then unknown, and only a restart (which replays the journal) tells.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The store below could not read, write or open its files.
    #[error("metadata store: cannot {action}: {reason}; check the disk under the metadata directory")]
    Store {
        /// What was being done.
        action: &'static str,
        /// The store's own words.
        reason: String,
    },
    /// A commit or sync failed earlier, so nothing more is accepted.
    #[error("metadata store: an earlier write failed, nothing more is accepted until a restart")]
    Poisoned,
    /// A file of the store is not as it was left, so the store is not opened; nothing was changed.
    #[error(
        "metadata store: {path} is damaged{}: {expected}; nothing was changed. Check the disk, and restore the \
         metadata directory from a backup; docs/semantics.md, 'A damaged metadata store', says what else can be done",
        offset.map_or(String::new(), |offset| format!(" at byte {offset}"))
    )]
    Damaged {
        /// The file.
        path: String,
        /// Where in it, if that is known.
        offset: Option<u64>,
        /// What should have been there.
        expected: String,
    },
    /// The disk is full. Nothing was written; removals may still find room.
    #[error(
        "metadata store: the disk under the metadata directory is full; remove files or free space on it"
    )]
    Full,
    /// What the operation has read was changed by others before its commit, or must first be fetched. Nothing was
    /// written: run it again.
    #[error("metadata store: others keep changing what this operation reads; try again")]
    Conflict,
    /// A value does not have the form its key promises.
    #[error("metadata store: the value under key {key} is damaged at '{field}'; run weft fsck")]
    Decode {
        /// The key, readable (kind letter, then hexadecimal).
        key: String,
        /// The field at which decoding stopped.
        field: &'static str,
    },
    /// The store holds no file system, or one of another format.
    #[error("metadata store: {0}")]
    Format(String),
}

impl EngineError {
    /// The store below could not do something.
    pub(crate) fn store(action: &'static str, reason: impl std::fmt::Display) -> EngineError {
        EngineError::Store { action, reason: reason.to_string() }
    }
}

/// Why an operation on the namespace was refused.
#[derive(Debug, Error)]
pub enum MetaError {
    /// A component of the path, or the last one, does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("already exists")]
    Exists,
    /// A component used as a directory is none.
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not apply to directories.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The permission bits do not allow it.
    #[error("permission denied")]
    Access,
    /// Only the owner or root may do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// A name over 255 bytes, a path over 4096 or a symlink target over 4095.
    #[error("name too long")]
    NameTooLong,
    /// More than 40 symbolic links, or one where none may be followed.
    #[error("too many levels of symbolic links")]
    Loop,
    /// The inode number, session or epoch given no longer exists.
    #[error("stale file handle: the file is gone")]
    Stale,
    /// An argument makes no sense; the text says which.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The file or directory is in use in a way that forbids this.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// The file already has as many links as can be counted.
    #[error("too many links")]
    TooManyLinks,
    /// The bytes of this file lie with its inode, and are to be spread first.
    #[error("the bytes of inode {ino} lie with it; they go to I/O servers first")]
    Small {
        /// The file.
        ino: u64,
    },
    /// No such extended attribute.
    #[error("no such attribute")]
    NoXattr,
    /// The extended attribute's value is over 64 KiB.
    #[error("extended attribute too big")]
    XattrTooBig,
    /// The name space or kind of file is not supported for this operation.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The metadata disk is full.
    #[error("no space left on the server: the disk under the metadata directory is full")]
    NoSpace,
    /// A directory, or a file with several names, would go from one directory tree with a quota to another, or into or out of one.
    #[error("the other directory is of another tree with a quota: copy it and remove the old one")]
    OtherTree,
    /// A limit of a user, a group or a directory tree is reached.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// No inode can be made any more.
    #[error("all inode numbers of shard {shard} have been given out: nothing can be made there any more")]
    NoNumbers {
        /// Whose they were.
        shard: u16,
    },
    /// A counter would leave its range.
    #[error(
        "the counter is {before}, and {change} does not lead to a number from 0 to {}; it stays as it is",
        crate::open_counter::COUNTER_MAX
    )]
    Counter {
        /// What it is.
        before: u64,
        /// What was asked for.
        change: CounterChange,
    },
    /// A client has too many counters of one file.
    #[error("one client has too many counters of this file; close those opens of it that are not needed")]
    TooManyCounters,
    /// The store failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
