//! Quotas: limits and usage of users, groups and directory trees, and what writers may add.

use crate::claims::{Caller, Capability};

/// Kinds of subjects, in [`SetQuotaRequest::kind`] and [`QuotaRow::kind`].
pub mod quota_kind {
    /// A user, by uid; `u32::MAX`: each user without limits of its own.
    pub const USER: u8 = 0;
    /// A group, by gid; `u32::MAX`: each group without limits of its own.
    pub const GROUP: u8 = 1;
    /// A directory tree, by the inode number of its directory.
    pub const TREE: u8 = 2;
}

crate::message! {
    /// See [`crate::Op::Reserve`].
    pub struct ReserveRequest {
        /// The right to write.
        pub capability: Capability,
        /// The end that is wanted, in bytes from the beginning of the file.
        pub end_bytes: u64,
    }

    /// Reply to [`crate::Op::Reserve`].
    pub struct ReserveReply {
        /// The same, up to that end at least.
        pub capability: Capability,
    }

    /// Limits; 0: none.
    pub struct QuotaLimits {
        /// Never exceeded, in bytes.
        pub hard_bytes: u64,
        /// May be exceeded for the time of grace.
        pub soft_bytes: u64,
        /// Inodes, never exceeded.
        pub hard_files: u64,
        /// Inodes; may be exceeded for the time of grace.
        pub soft_files: u64,
        /// The time of grace, in seconds.
        pub grace_s: u32,
        /// Of a tree: whether its limits are what statfs shows in it.
        pub in_statfs: bool,
    }

    /// See [`crate::Op::SetQuota`].
    pub struct SetQuotaRequest {
        /// See [`quota_kind`].
        pub kind: u8,
        /// Which of that kind.
        pub id: u64,
        /// Its limits; absent: none of its own any more.
        pub limits: Option<QuotaLimits>,
    }

    /// See [`crate::Op::CountUsage`].
    pub struct CountUsageRequest {}

    /// See [`crate::Op::ListQuotas`].
    pub struct ListQuotasRequest {
        /// On whose behalf: who is not root is shown itself and its groups, and all trees.
        pub caller: Caller,
        /// The kind to begin with, or that of the last one that is known.
        pub kind: u8,
        /// The id of the last one that is known.
        pub id: u64,
        /// Whether to begin with `kind` and `id` themselves, not behind them.
        pub inclusive: bool,
        /// Rows in the reply, at most [`QUOTA_ROWS_MAX`](crate::limits::QUOTA_ROWS_MAX).
        pub rows_max: u32,
    }

    /// Usage and limits of one subject.
    pub struct QuotaRow {
        /// See [`quota_kind`].
        pub kind: u8,
        /// Which of that kind.
        pub id: u64,
        /// Path of a tree, if it can be told.
        pub path: Option<Vec<u8>>,
        /// Sum of the sizes of its files.
        pub used_bytes: u64,
        /// Its inodes.
        pub used_files: u64,
        /// Bytes that writers may add without asking.
        pub reserved_bytes: u64,
        /// The limits that count.
        pub limits: Option<QuotaLimits>,
        /// Whether they are its own, not those of everyone.
        pub is_own: bool,
        /// Since when it is over its soft limit of bytes, in seconds since 1970; 0: it is not.
        pub bytes_over_s: u64,
        /// The same for inodes.
        pub files_over_s: u64,
    }

    /// Reply to [`crate::Op::ListQuotas`].
    pub struct ListQuotasReply {
        /// Whether usage is counted at all.
        pub is_on: bool,
        /// While all usage is being counted: inodes that are.
        pub counted: u64,
        /// While all usage is being counted: inodes there are; 0: it is exact.
        pub to_count: u64,
        /// In order of kind and id.
        pub rows: Vec<QuotaRow>,
        /// Whether there are no more.
        pub is_last: bool,
    }

    /// See [`crate::Op::MarkTree`].
    pub struct MarkTreeRequest {
        /// The directory that is, or was, the tree.
        pub tree: u64,
        /// The directory to mark: that one first, then those of the replies.
        pub dir: u64,
        /// Whether what is in it is of the tree from now on, or not any more.
        pub on: bool,
        /// Where the page begins, from the reply before; 0 at first.
        pub after: u64,
    }

    /// Reply to [`crate::Op::MarkTree`].
    pub struct MarkTreeReply {
        /// Subdirectories, to be marked, too.
        pub directories: Vec<u64>,
        /// Entries of this page.
        pub entries: u32,
        /// Where the next page begins; absent after the last.
        pub next: Option<u64>,
    }
}
