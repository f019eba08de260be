//! The metadata store as a whole: its size, its check, its backup.

use crate::Added;
use crate::claims::Caller;

crate::message! {
    /// See [`crate::Op::FileCount`].
    pub struct FileCountRequest {
        /// The inode that was asked about; 0: the whole file system.
        pub ino: Added<u64>,
    }

    /// Reply to [`FileCountRequest`].
    pub struct FileCountReply {
        /// Inodes in use.
        pub files: u64,
        /// Where the inode is in a directory tree whose limits are its size: these.
        pub tree: Added<Option<TreeSpace>>,
    }

    /// A directory tree whose limits are its size.
    pub struct TreeSpace {
        /// Its limit of bytes; 0: none.
        pub space_bytes: u64,
        /// What is used of it.
        pub used_bytes: u64,
        /// Its limit of inodes; 0: none.
        pub files_max: u64,
        /// Its inodes.
        pub files: u64,
    }

    /// See [`crate::Op::SyncMeta`].
    pub struct SyncMetaRequest {}

    /// See [`crate::Op::Check`].
    pub struct CheckRequest {
        /// Root, or the owner of the root directory.
        pub caller: Caller,
        /// The check: a random number. An unknown number starts a check.
        pub check: u64,
        /// How many findings the caller already has.
        pub known: u32,
    }

    /// A finding.
    pub struct FindingInfo {
        /// What is wrong, and where.
        pub text: String,
        /// Whether `weft fsck --repair` may be able to repair it.
        pub repairable: bool,
    }

    /// Reply to [`CheckRequest`].
    pub struct CheckReply {
        /// Records of the namespace examined so far; each is examined once or twice.
        pub records: u64,
        /// Data files examined so far.
        pub data_files: u64,
        /// Whether the check is complete.
        pub finished: bool,
        /// Why it was aborted; empty: it was not.
        pub failure: String,
        /// All findings so far.
        pub found: u32,
        /// A page of findings, from the first that the caller does not have.
        pub findings: Vec<FindingInfo>,
    }

    /// See [`crate::Op::Treat`].
    pub struct TreatRequest {
        /// Root, or the owner of the root directory.
        pub caller: Caller,
        /// A finished check.
        pub check: u64,
        /// The index of the finding, from 0.
        pub finding: u32,
        /// Whether a file may be left without data that it has lost. Since version 9.
        pub accept_loss: Added<bool>,
    }

    /// Reply to [`TreatRequest`].
    pub struct TreatReply {
        /// See [`treatment`].
        pub treatment: u8,
    }

    /// See [`crate::Op::Backup`].
    pub struct BackupRequest {
        /// Root, or the owner of the root directory.
        pub caller: Caller,
        /// The backup: a random number. An unknown number starts a backup of the names as they are then.
        pub backup: u64,
        /// The last key that the caller has received; empty at first.
        pub after: Vec<u8>,
    }

    /// A record of the metadata store.
    pub struct BackupRecord {
        /// Its key.
        pub key: Vec<u8>,
        /// Its value.
        pub value: Vec<u8>,
    }

    /// Reply to [`BackupRequest`].
    pub struct BackupReply {
        /// The cluster.
        pub cluster: [u8; 16],
        /// The metadata storage.
        pub storage: [u8; 16],
        /// When the backup was started, seconds since 1970.
        pub taken_s: u64,
        /// Approximate number of files and directories in it.
        pub inodes: u64,
        /// Whether there are no more records.
        pub finished: bool,
        /// A page of records, by key.
        pub records: Vec<BackupRecord>,
    }
}

/// Values of [`TreatReply::treatment`].
pub mod treatment {
    /// Repaired.
    pub const REPAIRED: u8 = 0;
    /// It no longer held.
    pub const GONE: u8 = 1;
    /// Not repaired: it cannot be, or another finding must be repaired first.
    pub const LEFT: u8 = 2;
}
