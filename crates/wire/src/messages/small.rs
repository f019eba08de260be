//! Small files, whose bytes lie with the inode on the metadata server, and the way they go to I/O servers.

use super::inode::{Attr, Time};
use crate::body::Added;
use crate::claims::{Caller, Capability};
use weft_layout::Layout;

crate::message! {
    /// See [`crate::Op::ReadSmall`].
    pub struct ReadSmallRequest {
        /// The right to read, or any right if no byte is asked for.
        pub capability: Capability,
        /// Where to begin.
        pub offset: u64,
        /// How many bytes at most.
        pub bytes: u32,
    }

    /// Reply to [`crate::Op::ReadSmall`].
    pub struct ReadSmallReply {
        /// The file is striped: its bytes are on the I/O servers, and nothing else here counts.
        pub striped: bool,
        /// Size of the file.
        pub file_bytes: u64,
        /// The bytes, as far as the file goes.
        pub data: Vec<u8>,
    }

    /// See [`crate::Op::WriteSmall`].
    pub struct WriteSmallRequest {
        /// The right to write.
        pub capability: Capability,
        /// Where they belong.
        pub offset: u64,
        /// Whether the reply is to wait until they are durable.
        pub durable: bool,
        /// The bytes, which end within the bound that [`OpenReply::small_bytes`](super::OpenReply::small_bytes) says.
        pub data: Vec<u8>,
        /// The times that the file is to have after it, where its owner asks.
        pub times: Added<Option<NewTimes>>,
    }

    /// Times that are set by hand.
    pub struct NewTimes {
        /// On whose behalf: the owner.
        pub caller: Caller,
        /// Time of the last access.
        pub atime: Time,
        /// Time of the last modification.
        pub mtime: Time,
    }

    /// Reply to [`crate::Op::WriteSmall`].
    pub struct WriteSmallReply {
        /// The file after it; absent if it is striped, and nothing was written.
        pub attr: Option<Attr>,
        /// Whether the file has the times that were asked for.
        pub has_times: Added<bool>,
    }

    /// See [`crate::Op::SyncSmall`].
    pub struct SyncSmallRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// Reply to [`crate::Op::SyncSmall`].
    pub struct SyncSmallReply {
        /// The file is striped: its bytes are on the I/O servers, which are to be asked.
        pub striped: bool,
    }

    /// See [`crate::Op::Spread`].
    pub struct SpreadRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// See [`crate::Op::PlaceObject`].
    pub struct PlaceObjectRequest {
        /// Which file.
        pub ino: u64,
        /// How it is striped.
        pub layout: Layout,
        /// Whether the reply is to wait until they are durable.
        pub durable: bool,
        /// All bytes of the file, which are in its first strip.
        pub data: Vec<u8>,
    }
}
