//! Operations of the I/O servers on file bytes.
//!
//! A request names regions of the *file*; the server works out its own share of them from the layout in the capability and the
//! slot that it has in it (PVFS 3.2's I/O stream). Bytes of the share travel in request order.

use crate::security::Capability;
use weft_layout::{Layout, Regions};

/// What is wanted with a scrub.
pub mod scrub_action {
    /// To hear of it.
    pub const REPORT: u8 = 0;
    /// A new one begins; one that goes on ends.
    pub const BEGIN: u8 = 1;
    /// It ends.
    pub const END: u8 = 2;
}

/// What a scrub has found.
pub mod scrub_found {
    /// Data does not fit its checksum.
    pub const DATA: u8 = 0;
    /// The data file ends before data that it had.
    pub const SHORT: u8 = 1;
    /// Checksums are damaged; the data may be sound.
    pub const SUMS: u8 = 2;
    /// The checksums of a data file are gone.
    pub const NO_SUMS: u8 = 3;
}

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

/// The loss epoch in the answer to a change that is durable already.
pub const LOSS_EPOCH_DURABLE: u64 = 0;

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
        /// As [`DataSize::loss_epoch`], before the write.
        pub loss_epoch: u64,
        /// How it was done.
        pub work: IoWork,
    }

    /// See [`crate::Op::Sync`].
    pub struct SyncRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// See [`crate::Op::SyncAll`].
    pub struct SyncAllRequest {}

    /// Answer to [`SyncAllRequest`].
    pub struct SyncAllReply {
        /// Another number whenever the server may have lost acknowledged changes of any data file that were not yet durable. The sync made
        /// durable what was changed since the last number that is known only if both are equal.
        pub loss_epoch: u64,
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
        /// Another number whenever the server may have lost acknowledged changes of the data file that were not yet durable.
        /// The answer to a change has the epoch from before the change, or [`LOSS_EPOCH_DURABLE`]; the answer to
        /// [`SyncRequest`] that from after the sync. A sync made a change durable only if both are equal.
        pub loss_epoch: u64,
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

    /// See [`crate::Op::Zero`].
    pub struct ZeroRequest {
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

    /// See [`crate::Op::Seek`].
    pub struct SeekRequest {
        /// Any right on the file.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// From where in the whole file.
        pub offset: u64,
    }

    /// Answer to [`SeekRequest`]; offsets are of the local data file, and none lies before the first byte of the slot at or
    /// after the one asked for.
    pub struct SeekReply {
        /// Where data is next; `None`: there are only holes.
        pub data_offset: Option<u64>,
        /// Where there is no data next; the end of the data file at the latest, or the offset asked for where that is behind it.
        pub hole_offset: u64,
        /// Size of the local data file; 0 where there is none.
        pub local_bytes: u64,
    }

    /// See [`crate::Op::CopyRange`].
    pub struct CopyRangeRequest {
        /// The right to read the one file.
        pub from: Capability,
        /// Which part of its layout this server has.
        pub from_slot: u16,
        /// Beginning in the whole of it.
        pub from_offset: u64,
        /// The right to write the other.
        pub to: Capability,
        /// Which part of its layout this server has.
        pub to_slot: u16,
        /// Beginning in the whole of it.
        pub to_offset: u64,
        /// Length in the whole file.
        pub bytes: u64,
    }

    /// Answer to [`CopyRangeRequest`].
    pub struct CopyRangeReply {
        /// Bytes that were copied; what is missing of the share were holes.
        pub copied_bytes: u64,
        /// Size of the local data file that was written.
        pub local_bytes: u64,
        /// As [`DataSize::loss_epoch`], of that file before the copy.
        pub loss_epoch: u64,
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
        /// Tells the disk from others, also of other hosts, so that one that several servers use counts once; zeros: unknown.
        pub disk_id: [u8; 16],
    }

    /// See [`crate::Op::Explain`].
    pub struct ExplainRequest {
        /// The right to read or to write, as is explained.
        pub capability: Capability,
        /// Which part of the layout this server has.
        pub slot: u16,
        /// Whether a write is explained, not a read.
        pub write: bool,
        /// [`io_flags::SYNC`] or 0.
        pub flags: u32,
        /// Of the file, in request order.
        pub regions: Regions,
    }

    /// What one way of access is expected to cost for a server's share of a request.
    pub struct PlanReport {
        /// Its bit `ACCESS_*` of [`io_flags`].
        pub method: u32,
        /// Windows that would be accessed so.
        pub chosen_windows: u64,
        /// Windows that could be.
        pub possible_windows: u64,
        /// Time for all windows that could be.
        pub cost_ns: u64,
        /// Accesses to the data file in these.
        pub accesses: u64,
        /// Bytes that they would read and write.
        pub accessed_bytes: u64,
    }

    /// Answer to [`ExplainRequest`].
    pub struct ExplainReply {
        /// Pieces of the share in the data file.
        pub pieces: u64,
        /// Bytes of the share.
        pub bytes: u64,
        /// Parts of the share that are planned one by one.
        pub windows: u64,
        /// Those of one piece, where there is nothing to choose.
        pub single_windows: u64,
        /// Groups of pieces that sieving would access.
        pub groups: u64,
        /// Bytes of the share that are in the page cache, about.
        pub cached_bytes: u64,
        /// Size of the local data file.
        pub local_bytes: u64,
        /// Time that the chosen ways are expected to take, with what was observed before counted in.
        pub chosen_cost_ns: u64,
        /// Every way of access.
        pub plans: Vec<PlanReport>,
    }

    /// See [`crate::Op::Scrub`].
    pub struct ScrubRequest {
        /// One of [`scrub_action`].
        pub action: u8,
        /// At most so many bytes a second; 0: as many as the cluster file says.
        pub bytes_per_s: u64,
        /// Findings that are known already, from the first on.
        pub known: u32,
    }

    /// Something that a scrub has found.
    pub struct ScrubFinding {
        /// Inode number.
        pub ino: u64,
        /// Where in the data file.
        pub offset: u64,
        /// How much of it.
        pub bytes: u64,
        /// One of [`scrub_found`].
        pub kind: u8,
    }

    /// Answer to [`ScrubRequest`].
    pub struct ScrubReply {
        /// Tells this scrub from others.
        pub number: u64,
        /// It goes on.
        pub is_running: bool,
        /// When it began, seconds since 1970.
        pub begun_s: i64,
        /// When the last whole one ended; 0: there was none.
        pub finished_s: i64,
        /// Data files that it has read.
        pub files: u64,
        /// Bytes of them.
        pub bytes: u64,
        /// Blocks of 4 KiB that had no checksum, as in files from before there were any, and have one now.
        pub adopted_blocks: u64,
        /// Why it could not read something, if so.
        pub failure: String,
        /// Number of findings.
        pub found: u32,
        /// Some of them, from the first one that is not known on.
        pub findings: Vec<ScrubFinding>,
    }

    /// See [`crate::Op::Calibrate`].
    pub struct CalibrateRequest {
        /// Whether it is to be measured anew first.
        pub measure: bool,
    }

    /// A point of a [`CurveReport`].
    pub struct CurvePoint {
        /// Length of an access.
        pub bytes: u64,
        /// What it costs.
        pub ns: u64,
    }

    /// What one kind of access costs, by its length.
    pub struct CurveReport {
        /// Its name in the model.
        pub name: String,
        /// Lengths rising.
        pub points: Vec<CurvePoint>,
    }

    /// Answer to [`CalibrateRequest`].
    pub struct CalibrateReply {
        /// When it was measured, seconds since 1970; 0: never, these are defaults.
        pub measured_s: i64,
        /// Entering a page of a mapping to read it.
        pub page_fault_ns: u64,
        /// Entering a page of a mapping to write it.
        pub page_fault_write_ns: u64,
        /// What a page costs that a write adds to a file, beyond the write.
        pub new_page_ns: u64,
        /// Taking and leaving the lock of a range.
        pub lock_ns: u64,
        /// Longest gap that is read over in a read of cached data.
        pub read_gap_cached_bytes: u64,
        /// The same where it has to come from the device.
        pub read_gap_device_bytes: u64,
        /// Longest gap that is read and written over in a write to cached pages.
        pub write_gap_cached_bytes: u64,
        /// The same where it has to come from the device.
        pub write_gap_device_bytes: u64,
        /// All kinds of access.
        pub curves: Vec<CurveReport>,
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

    /// See [`crate::Op::StatObjects`].
    pub struct StatObjectsRequest {
        /// Inodes.
        pub inos: Vec<u64>,
    }

    /// A data file that is there.
    pub struct ObjectSize {
        /// Its inode.
        pub ino: u64,
        /// Its size.
        pub bytes: u64,
    }

    /// Answer to [`StatObjectsRequest`].
    pub struct StatObjectsReply {
        /// Those that are there.
        pub objects: Vec<ObjectSize>,
    }

    /// See [`crate::Op::NotedLayouts`].
    pub struct NotedLayoutsRequest {
        /// Inodes.
        pub inos: Vec<u64>,
    }

    /// How the file of a data file is striped.
    pub struct NotedLayout {
        /// Its inode.
        pub ino: u64,
        /// As it was when the data file was made.
        pub layout: Layout,
    }

    /// Answer to [`NotedLayoutsRequest`].
    pub struct NotedLayoutsReply {
        /// Of those that are there and tell.
        pub layouts: Vec<NotedLayout>,
    }
}
