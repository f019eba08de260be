//! Open files: creating, opening and closing them, and their sizes.

use super::inode::{At, Attr, LayoutWish, ROOT_INO, WriteReport};
use crate::body::Added;
use crate::claims::{Caller, Capability};

/// Bits of rights and of access.
pub mod rights {
    /// Read file bytes.
    pub const READ: u32 = 1;
    /// Write file bytes.
    pub const WRITE: u32 = 2;
}

crate::message! {
    /// See [`crate::Op::Create`].
    pub struct CreateRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`](super::UMASK_SHIFT).
        pub mode: u32,
        /// Fail if the name exists.
        pub exclusive: bool,
        /// Layout, if it differs from the directory's default.
        pub layout: Option<LayoutWish>,
        /// [`rights`] to open with; 0: do not open.
        pub access: u32,
        /// Whether the sender knows of small files: then a new one may begin as such. One that is there is made striped for who
        /// does not.
        pub small: Added<bool>,
        /// As [`OpenRequest::append`].
        pub append: Added<bool>,
    }

    /// See [`crate::Op::CreateUnnamed`].
    pub struct CreateUnnamedRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The directory that it would have a name in, which gives it what new files there get.
        pub dir: At,
        /// Whether a symbolic link at the end is followed.
        pub follow: bool,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`](super::UMASK_SHIFT).
        pub mode: u32,
        /// It never gets a name.
        pub exclusive: bool,
        /// Layout, if it differs from the directory's default.
        pub layout: Option<LayoutWish>,
        /// [`rights`] to open with, at least one.
        pub access: u32,
        /// Whether it may begin as a small file.
        pub small: bool,
    }

    /// See [`crate::Op::Open`].
    pub struct OpenRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// What.
        pub at: At,
        /// Whether a symbolic link at the end is followed.
        pub follow: bool,
        /// [`rights`]; 0: only a capability to query the size, with nothing to close.
        pub access: u32,
        /// Whether the sender knows of small files. For who does not the file is made striped.
        pub small: Added<bool>,
        /// To be executed: read with the permission to execute, instead of that to read.
        pub execute: Added<bool>,
        /// Every write goes to the end; what is append-only is not opened to be written otherwise.
        pub append: Added<bool>,
    }

    /// An open file.
    pub struct OpenReply {
        /// Its attributes.
        pub attr: Attr,
        /// For the I/O servers. Without rights if nothing was opened (enough to query the size). Absent if it
        /// is not a file.
        pub capability: Option<Capability>,
        /// Whether this call created it.
        pub created: bool,
        /// The directory after a creation, for clients that watch and gave its inode and one name.
        pub parent: Option<Attr>,
        /// The run of the session ([`ProveReply::epoch`](super::ProveReply)) in which the file counts as
        /// open. In a repeated reply it may be an earlier one; then the client must reopen the file.
        pub run: u64,
        /// How many bytes the file may have and lie with its inode ([`crate::Op::WriteSmall`]); 0 if it is striped, which it stays.
        pub small_bytes: Added<u32>,
    }

    /// Identifies an open within its session.
    pub struct OpenId {
        /// The run of the session in which it was counted; 0: none.
        pub run: u64,
        /// A number that the client chooses, unique in the session.
        pub number: u64,
    }

    /// An open that has ended.
    pub struct ClosedFile {
        /// Which file.
        pub ino: u64,
        /// The rights it was open with.
        pub access: u32,
        /// What was written since the last report, if anything.
        pub report: Option<WriteReport>,
        /// The open. If it does not count as open in this run of the session, it is not ended either.
        pub id: OpenId,
    }

    /// See [`crate::Op::Close`].
    pub struct CloseRequest {
        /// The closes: 1 to [`CLOSES_PER_MESSAGE_MAX`](crate::limits::CLOSES_PER_MESSAGE_MAX).
        pub files: Vec<ClosedFile>,
    }

    /// See [`crate::Op::Report`].
    pub struct ReportRequest {
        /// Which file.
        pub ino: u64,
        /// What was written.
        pub report: WriteReport,
    }

    /// See [`crate::Op::Reopen`].
    pub struct ReopenRequest {
        /// The file, proved by the capability of its open.
        pub capability: Capability,
        /// The open. If it counts as open already, it is not counted again; its capability is renewed.
        pub id: OpenId,
        /// As in [`OpenRequest::small`].
        pub small: Added<bool>,
    }

    /// See [`crate::Op::TruncateBegin`].
    pub struct TruncateBeginRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which file.
        pub at: At,
        /// The capability of an open for writing by the caller, if any; then permission bits do not matter.
        pub held: Option<Capability>,
        /// The new size.
        pub file_bytes: u64,
    }

    /// See [`crate::Op::TruncateCommit`].
    pub struct TruncateCommitRequest {
        /// Proves the right to truncate.
        pub capability: Capability,
        /// The size of the data files now.
        pub file_bytes: u64,
        /// The epoch that [`crate::Op::TruncateBegin`] returned.
        pub epoch: u64,
    }

    /// See [`crate::Op::Settle`].
    pub struct SettleRequest {
        /// Any right on the file.
        pub capability: Capability,
        /// The size found.
        pub file_bytes: u64,
        /// The epoch of the attributes that were read before asking the I/O servers.
        pub epoch: u64,
    }
}

impl CloseRequest {
    /// The inode of the first close. All are of inodes with the same owner.
    pub(crate) fn first_ino(&self) -> u64 {
        self.files.first().map_or(ROOT_INO, |file| file.ino)
    }
}
