//! Operations of the I/O servers on file bytes.
//!
//! A request describes regions of the *file*. The server computes its own share of them from the layout in
//! the capability and its slot in it (PVFS 3.2's I/O stream). Bytes of the share are sent in request order.

use crate::Added;
use crate::security::Capability;
use weft_layout::{Layout, Regions};

/// Actions on a scrub.
pub mod scrub_action {
    /// Report its progress.
    pub const REPORT: u8 = 0;
    /// Start a new one; a running one ends.
    pub const BEGIN: u8 = 1;
    /// End it.
    pub const END: u8 = 2;
}

/// Kinds of findings of a scrub.
pub mod scrub_found {
    /// Data does not match its checksum.
    pub const DATA: u8 = 0;
    /// The data file ends before data that it used to have.
    pub const SHORT: u8 = 1;
    /// Checksums are damaged; the data may be intact.
    pub const SUMS: u8 = 2;
    /// The checksums of a data file are missing.
    pub const NO_SUMS: u8 = 3;
    /// The data file is missing. Unless the file is gone, too: then a crash has interrupted its removal.
    pub const MISSING: u8 = 4;
    /// The checksums belong to another inode, and probably the data.
    pub const FOREIGN: u8 = 5;
}

/// Bits of the `flags` of reads and writes.
pub mod io_flags {
    /// Acknowledge only what is durable.
    pub const SYNC: u32 = 1;
    /// The data file is accessed once per piece.
    pub const ACCESS_EACH: u32 = 2;
    /// The data file is accessed in few large extents; the pieces are copied (data sieving; NC 5.1).
    pub const ACCESS_SIEVE: u32 = 4;
    /// The pieces are copied from and to mapped pages of the data file that are in memory.
    pub const ACCESS_MAPPED: u32 = 8;
    /// The three access methods. At most one is set; with none, the server chooses by its cost model.
    pub const ACCESS: u32 = ACCESS_EACH | ACCESS_SIEVE | ACCESS_MAPPED;
    /// All bits that are known.
    pub const KNOWN: u32 = SYNC | ACCESS;
}

/// The loss epoch in the reply to a change that is already durable.
pub const LOSS_EPOCH_DURABLE: u64 = 0;

/// The [`SpaceReply::disk_id`] of a disk that the host cannot identify.
pub const UNKNOWN_DISK: [u8; 16] = [0; 16];

crate::message! {
    /// What a server did to its data file for one request (NC, table 6).
    pub struct IoWork {
        /// Access methods that were used: the bits `ACCESS_*` of [`io_flags`]; 0 for one contiguous extent.
        pub methods: u32,
        /// Reading accesses to the data file.
        pub reads: u64,
        /// Writing accesses to the data file.
        pub writes: u64,
        /// Bytes that these read and wrote, including gaps.
        pub accessed_bytes: u64,
        /// Time from the start of the first access to the end of the last one, including data transfer
        /// meanwhile.
        pub busy_ns: u64,
    }

    /// See [`crate::Op::Read`].
    pub struct ReadRequest {
        /// The capability to read, with the layout.
        pub capability: Capability,
        /// This server's slot in the layout.
        pub slot: u16,
        /// See [`io_flags`].
        pub flags: u32,
        /// What to read, in request order.
        pub regions: Regions,
    }

    /// Reply to [`ReadRequest`]. Data is inline in its payload, or delivered before it.
    pub struct ReadReply {
        /// The delivered length of the share: all of it, or up to the last byte before the end of the local
        /// data file. Bytes after it are beyond the end of the file, or a hole. The client can tell from the
        /// file's size.
        pub filled_bytes: u64,
        /// Size of the local data file.
        pub local_bytes: u64,
        /// How it was done.
        pub work: IoWork,
    }

    /// See [`crate::Op::Write`].
    pub struct WriteRequest {
        /// The capability to write, with the layout.
        pub capability: Capability,
        /// This server's slot in the layout.
        pub slot: u16,
        /// See [`io_flags`].
        pub flags: u32,
        /// Where to write, in request order.
        pub regions: Regions,
    }

    /// Reply to [`WriteRequest`].
    pub struct WriteReply {
        /// Bytes of the share that were written.
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

    /// Reply to [`SyncAllRequest`].
    pub struct SyncAllReply {
        /// Changes whenever the server may have lost acknowledged changes, of any data file, that were not
        /// yet durable. The sync made everything durable that was changed since a previously known number
        /// only if both numbers are equal.
        pub loss_epoch: u64,
    }

    /// See [`crate::Op::Size`].
    pub struct SizeRequest {
        /// Any right on the file.
        pub capability: Capability,
    }

    /// A server's part of a file.
    pub struct DataSize {
        /// Size of the local data file; 0 if there is none.
        pub local_bytes: u64,
        /// Space that it uses.
        pub allocated_bytes: u64,
        /// When it was last written; 0 if there is no data file.
        pub mtime: crate::messages::Time,
        /// Changes whenever the server may have lost acknowledged changes of the data file that were not yet
        /// durable. The reply to a change has the epoch from before the change, or [`LOSS_EPOCH_DURABLE`].
        /// The reply to [`SyncRequest`] has the epoch from after the sync. A sync made a change durable only
        /// if both are equal.
        pub loss_epoch: u64,
    }

    /// See [`crate::Op::Truncate`].
    pub struct TruncateRequest {
        /// The right to write.
        pub capability: Capability,
        /// This server's slot in the layout.
        pub slot: u16,
        /// New size of the whole file.
        pub file_bytes: u64,
    }

    /// See [`crate::Op::Punch`].
    pub struct RangeRequest {
        /// The right to write.
        pub capability: Capability,
        /// This server's slot in the layout.
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
        /// This server's slot in the layout.
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
        /// This server's slot in the layout.
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
        /// This server's slot in the layout.
        pub slot: u16,
        /// The offset in the whole file to search from.
        pub offset: u64,
    }

    /// Reply to [`SeekRequest`]. Offsets are in the local data file. None is before the slot's first byte at
    /// or after the requested offset.
    pub struct SeekReply {
        /// The next data; `None` if there are only holes.
        pub data_offset: Option<u64>,
        /// The next hole: at the latest the end of the data file, or the requested offset if that is after
        /// it.
        pub hole_offset: u64,
        /// Size of the local data file; 0 if there is none.
        pub local_bytes: u64,
    }

    /// See [`crate::Op::CopyRange`].
    pub struct CopyRangeRequest {
        /// The capability to read the source.
        pub from: Capability,
        /// This server's slot in its layout.
        pub from_slot: u16,
        /// The offset in the whole file.
        pub from_offset: u64,
        /// The capability to write the target.
        pub to: Capability,
        /// This server's slot in its layout.
        pub to_slot: u16,
        /// The offset in the whole file.
        pub to_offset: u64,
        /// Length in the whole file.
        pub bytes: u64,
    }

    /// Reply to [`CopyRangeRequest`].
    pub struct CopyRangeReply {
        /// Bytes that were copied. The rest of the share were holes.
        pub copied_bytes: u64,
        /// Size of the target's local data file.
        pub local_bytes: u64,
        /// As [`DataSize::loss_epoch`], of the target before the copy.
        pub loss_epoch: u64,
    }

    /// See [`crate::Op::Space`].
    pub struct SpaceRequest {}

    /// Reply to [`SpaceRequest`].
    pub struct SpaceReply {
        /// Size of the disk.
        pub space_bytes: u64,
        /// Free space.
        pub free_bytes: u64,
        /// Free space for users other than root.
        pub available_bytes: u64,
        /// Identifies the disk among those of all hosts, so that one that several servers use counts once;
        /// zeros: unknown.
        pub disk_id: [u8; 16],
    }

    /// See [`crate::Op::Explain`].
    pub struct ExplainRequest {
        /// The capability to read or to write, as explained.
        pub capability: Capability,
        /// This server's slot in the layout.
        pub slot: u16,
        /// Whether to explain a write instead of a read.
        pub write: bool,
        /// [`io_flags::SYNC`] or 0.
        pub flags: u32,
        /// Regions of the file, in request order.
        pub regions: Regions,
    }

    /// What one access method is expected to cost for a server's share of a request.
    pub struct PlanReport {
        /// Its bit `ACCESS_*` of [`io_flags`].
        pub method: u32,
        /// Windows for which it would be chosen.
        pub chosen_windows: u64,
        /// Windows for which it is possible.
        pub possible_windows: u64,
        /// Time for all windows for which it is possible.
        pub cost_ns: u64,
        /// Accesses to the data file in those.
        pub accesses: u64,
        /// Bytes that they would read and write.
        pub accessed_bytes: u64,
    }

    /// Reply to [`ExplainRequest`].
    pub struct ExplainReply {
        /// Pieces of the share in the data file.
        pub pieces: u64,
        /// Bytes of the share.
        pub bytes: u64,
        /// Windows: parts of the share that are planned one by one.
        pub windows: u64,
        /// Windows of one piece, where there is no choice.
        pub single_windows: u64,
        /// Groups of pieces that sieving would access.
        pub groups: u64,
        /// Approximate bytes of the share in the page cache.
        pub cached_bytes: u64,
        /// Size of the local data file.
        pub local_bytes: u64,
        /// Expected time of the chosen methods, corrected by earlier observations.
        pub chosen_cost_ns: u64,
        /// All access methods.
        pub plans: Vec<PlanReport>,
    }

    /// See [`crate::Op::Scrub`].
    pub struct ScrubRequest {
        /// One of [`scrub_action`].
        pub action: u8,
        /// Limit of bytes read per second; 0: as in the cluster file.
        pub bytes_per_s: u64,
        /// How many findings the caller already has.
        pub known: u32,
    }

    /// A finding of a scrub.
    pub struct ScrubFinding {
        /// Inode number.
        pub ino: u64,
        /// The offset in the data file.
        pub offset: u64,
        /// The length.
        pub bytes: u64,
        /// One of [`scrub_found`].
        pub kind: u8,
    }

    /// Reply to [`ScrubRequest`].
    pub struct ScrubReply {
        /// The number of this scrub.
        pub number: u64,
        /// Whether it is running.
        pub is_running: bool,
        /// When it started, seconds since 1970.
        pub begun_s: i64,
        /// When the last complete one ended; 0: never.
        pub finished_s: i64,
        /// Data files that it has read.
        pub files: u64,
        /// Bytes that it has read.
        pub bytes: u64,
        /// Blocks of 4 KiB that had no checksum, as in files from older versions, and have one now.
        pub adopted_blocks: u64,
        /// Why it could not read something; empty: it could.
        pub failure: String,
        /// Number of findings.
        pub found: u32,
        /// Findings from the first one that the caller does not have.
        pub findings: Vec<ScrubFinding>,
        /// Those of `adopted_blocks` that had a checksum before, which was lost. Since version 9.
        pub readopted_blocks: Added<u64>,
    }

    /// See [`crate::Op::Calibrate`].
    pub struct CalibrateRequest {
        /// Whether to measure again first.
        pub measure: bool,
    }

    /// A point of a [`CurveReport`].
    pub struct CurvePoint {
        /// Length of an access.
        pub bytes: u64,
        /// What it costs.
        pub ns: u64,
    }

    /// The cost of one kind of access, by its length.
    pub struct CurveReport {
        /// Its name in the model.
        pub name: String,
        /// The points, by rising length.
        pub points: Vec<CurvePoint>,
    }

    /// Reply to [`CalibrateRequest`].
    pub struct CalibrateReply {
        /// When it was measured, seconds since 1970; 0: never, these are default values.
        pub measured_s: i64,
        /// Cost of the first touch of a mapped page to read it.
        pub page_fault_ns: u64,
        /// Cost of the first touch of a mapped page to write it.
        pub page_fault_write_ns: u64,
        /// Cost of a page that a write adds to a file, beyond the write.
        pub new_page_ns: u64,
        /// Cost of locking and unlocking a range.
        pub lock_ns: u64,
        /// Longest gap that a read of cached data includes.
        pub read_gap_cached_bytes: u64,
        /// The same where it has to come from the device.
        pub read_gap_device_bytes: u64,
        /// Longest gap that a write to cached pages includes.
        pub write_gap_cached_bytes: u64,
        /// The same where it has to come from the device.
        pub write_gap_device_bytes: u64,
        /// All kinds of access.
        pub curves: Vec<CurveReport>,
    }

    /// See [`crate::Op::RemoveObjects`].
    pub struct RemoveObjectsRequest {
        /// Inodes whose data files are removed.
        pub inos: Vec<u64>,
    }

    /// See [`crate::Op::ListObjects`].
    pub struct ListObjectsRequest {
        /// 0, or the cursor of the previous page.
        pub cursor: u64,
        /// Limit of entries.
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

    /// Reply to [`ListObjectsRequest`].
    pub struct ListObjectsReply {
        /// A page of data files.
        pub objects: Vec<ObjectInfo>,
        /// Cursor of the next page; 0: there is none.
        pub cursor: u64,
        /// With the last page: those that the last scrub has missed. Since version 9.
        pub missing: Added<Vec<u64>>,
    }

    /// See [`crate::Op::StatObjects`].
    pub struct StatObjectsRequest {
        /// Inodes.
        pub inos: Vec<u64>,
    }

    /// A data file that exists.
    pub struct ObjectSize {
        /// Its inode.
        pub ino: u64,
        /// Its size.
        pub bytes: u64,
    }

    /// Reply to [`StatObjectsRequest`].
    pub struct StatObjectsReply {
        /// The data files that exist; for servers of the cluster only.
        pub objects: Vec<ObjectSize>,
        /// The inodes that have lost data on this server. Since version 9.
        pub lost: Added<Vec<u64>>,
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
        /// The layout when the data file was created.
        pub layout: Layout,
    }

    /// Reply to [`NotedLayoutsRequest`].
    pub struct NotedLayoutsReply {
        /// The layouts of data files that exist and record one.
        pub layouts: Vec<NotedLayout>,
    }
}
