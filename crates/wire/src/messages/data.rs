//! Operations of the I/O servers on file bytes.
//!
//! A request names regions of the *file*; the server works out its own share of them from the layout in the capability and the
//! slot that it has in it (PVFS 3.2's I/O stream). Bytes of the share travel in request order.

use crate::security::Capability;
use weft_layout::Regions;

/// Bits of the `flags` of reads and writes.
pub mod io_flags {
    /// Acknowledge only what is durable.
    pub const SYNC: u32 = 1;
    /// The data file is accessed once for each piece.
    pub const ACCESS_EACH: u32 = 2;
    /// The data file is accessed in few large extents, of which the pieces are copied (data sieving; NC 5.1).
    pub const ACCESS_SIEVE: u32 = 4;
    /// The pieces are copied from and to mapped pages of the data file, as far as they are in memory.
    pub const ACCESS_MAPPED: u32 = 8;
    /// The three ways of access. At most one is set; with none the server chooses by its cost model.
    pub const ACCESS: u32 = ACCESS_EACH | ACCESS_SIEVE | ACCESS_MAPPED;
    /// All bits that are known.
    pub const KNOWN: u32 = SYNC | ACCESS;
}

crate::message! {
    /// What a server did to its data file for one request (NC, table 6).
    pub struct IoWork {
        /// Ways of access that were used: the bits `ACCESS_*` of [`io_flags`]; 0 for one contiguous extent.
        pub methods: u32,
        /// Reading accesses to the data file.
        pub reads: u64,
        /// Writing accesses to the data file.
        pub writes: u64,
        /// Bytes that these read and wrote, wanted or not.
        pub accessed_bytes: u64,
        /// Time from the first access to the end of the last, with what was moved meanwhile.
        pub busy_ns: u64,
    }

    /// See [`crate::Op::Read`].
    pub struct ReadRequest {
        /// The right to read, with the layout.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// See [`io_flags`].
        pub flags: u32,
        /// What is wanted, in request order.
        pub regions: Regions,
    }

    /// Answer to [`ReadRequest`]; data inline in its payload, or delivered before it.
    pub struct ReadReply {
        /// How far the share was delivered: all of it, or up to the last byte that lies below the end of the local data
        /// file. What is behind is either beyond the file's end or a hole: the client knows which from the file's size.
        pub filled_bytes: u64,
        /// Size of the local data file.
        pub local_bytes: u64,
        /// How it was done.
        pub work: IoWork,
    }

    /// See [`crate::Op::Write`].
    pub struct WriteRequest {
        /// The right to write, with the layout.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// See [`io_flags`].
        pub flags: u32,
        /// Where it goes, in request order.
        pub regions: Regions,
    }

    /// Answer to [`WriteRequest`].
    pub struct WriteReply {
        /// Bytes of the share that are in the file.
        pub written_bytes: u64,
        /// Size of the local data file now.
        pub local_bytes: u64,
        /// How it was done.
        pub work: IoWork,
    }

    /// See [`crate::Op::Sync`].
    pub struct SyncRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// See [`crate::Op::Size`].
    pub struct SizeRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// What a server knows of its part of a file.
    pub struct DataSize {
        /// Size of the local data file; 0 where there is none.
        pub local_bytes: u64,
        /// Space that it takes.
        pub allocated_bytes: u64,
        /// When it was last written, seconds and nanoseconds since 1970; 0 where there is none.
        pub mtime: crate::messages::Time,
    }

    /// See [`crate::Op::Truncate`].
    pub struct TruncateRequest {
        /// The right to write.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// New size of the whole file.
        pub file_bytes: u64,
    }

    /// See [`crate::Op::Punch`].
    pub struct RangeRequest {
        /// The right to write.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// Beginning in the whole file.
        pub offset: u64,
        /// Length in the whole file.
        pub bytes: u64,
    }

    /// See [`crate::Op::Allocate`].
    pub struct AllocateRequest {
        /// The right to write.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// Beginning in the whole file.
        pub offset: u64,
        /// Length in the whole file.
        pub bytes: u64,
        /// Whether the local size stays as it is.
        pub keep_size: bool,
    }

    /// See [`crate::Op::Space`].
    pub struct SpaceRequest {}

    /// Answer to [`SpaceRequest`].
    pub struct SpaceReply {
        /// Size of the disk.
        pub space_bytes: u64,
        /// Free on it.
        pub free_bytes: u64,
        /// Free for users other than root.
        pub available_bytes: u64,
    }

    /// See [`crate::Op::RemoveObjects`].
    pub struct RemoveObjectsRequest {
        /// Inodes whose data files go.
        pub inos: Vec<u64>,
    }

    /// See [`crate::Op::ListObjects`].
    pub struct ListObjectsRequest {
        /// 0, or the cursor of the page before.
        pub cursor: u64,
        /// Most entries wanted.
        pub entries_max: u32,
    }

    /// A data file.
    pub struct ObjectInfo {
        /// Its inode.
        pub ino: u64,
        /// Its size.
        pub bytes: u64,
        /// When it was last written, seconds since 1970.
        pub mtime_s: i64,
    }

    /// Answer to [`ListObjectsRequest`].
    pub struct ListObjectsReply {
        /// A page of them.
        pub objects: Vec<ObjectInfo>,
        /// For the next page; 0: there is none.
        pub cursor: u64,
    }
}
