//! Notices of changes to clients that cache.

/// Bits of [`Change::what`].
pub mod changed {
    /// Attributes other than size and times of the data.
    pub const ATTRIBUTES: u32 = 1;
    /// The data of a file, its size or its writers.
    pub const DATA: u32 = 2;
    /// The name in [`super::Change::name`] of this directory.
    pub const NAME: u32 = 4;
    /// All of this directory's names. The client gets no more notices of it until it asks for something in
    /// it.
    pub const ALL_NAMES: u32 = 8;
}

crate::message! {
    /// See [`crate::Op::Watch`].
    pub struct WatchRequest {
        /// The epoch of the last reply; 0 at first.
        pub epoch: u64,
        /// `last` of the last reply: the client has invalidated what these changes made stale.
        pub acknowledged: u64,
        /// Whether to reply at once.
        pub at_once: bool,
        /// The client no longer caches anything, and stops watching.
        pub end: bool,
    }

    /// Reply to [`WatchRequest`].
    pub struct WatchReply {
        /// The epoch of this watch. It differs from the previous one if changes may have been missed.
        pub epoch: u64,
        /// The client must invalidate everything. Leases start again.
        pub reset: bool,
        /// Number of the last of the changes.
        pub last: u64,
        /// What has changed for this client.
        pub changes: Vec<Change>,
    }

    /// A change of something that the client may have cached.
    pub struct Change {
        /// The inode, or the directory of the names.
        pub ino: u64,
        /// See [`changed`].
        pub what: u32,
        /// The name, if a name has changed.
        pub name: Vec<u8>,
    }
}
