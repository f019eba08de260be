//! Operations of the metadata server.
//!
//! A name is an [`At`]: an inode and a path relative to it. The server walks the path, so every operation is
//! one round trip, however deep the path.

use crate::codec::{DecodeError, Reader, Vetting, Wire, Writer};
use crate::security::Capability;
use weft_layout::Layout;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// Bits of rights and of access.
pub mod rights {
    /// Read file bytes.
    pub const READ: u32 = 1;
    /// Write file bytes.
    pub const WRITE: u32 = 2;
}

/// Shift of the umask in the mode of a new file (`umask << UMASK_SHIFT`). Its bits are cleared if the
/// directory has no default access control list; otherwise that list applies instead.
pub const UMASK_SHIFT: u32 = 16;

/// Bits of [`SetAttrRequest::valid`].
pub mod attr_valid {
    /// Permission bits.
    pub const MODE: u32 = 1;
    /// Owner.
    pub const UID: u32 = 2;
    /// Group.
    pub const GID: u32 = 4;
    /// Access time as given.
    pub const ATIME: u32 = 8;
    /// Modification time as given.
    pub const MTIME: u32 = 16;
    /// Access time as of the server's clock.
    pub const ATIME_NOW: u32 = 32;
    /// Modification time as of the server's clock.
    pub const MTIME_NOW: u32 = 64;
    /// All bits that are known.
    pub const KNOWN: u32 = 127;
}

/// Bits of [`RenameRequest::flags`], as in renameat2(2).
pub mod rename_flags {
    /// Fail if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Swap the two names.
    pub const EXCHANGE: u32 = 2;
}

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

/// Kind of an inode, in [`Attr::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A file with striped data.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A Unix socket's name.
    Socket = 5,
    /// A character device.
    Character = 6,
    /// A block device.
    Block = 7,
}

impl Wire for FileKind {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Writer) {
        (*self as u8).put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match u8::get(input)? {
            1 => FileKind::File,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::Fifo,
            5 => FileKind::Socket,
            6 => FileKind::Character,
            7 => FileKind::Block,
            _ => return Err(DecodeError::Value("unknown kind of file")),
        })
    }
    fn sample(_seed: &mut u64) -> Self {
        FileKind::File
    }
}

/// The user that a request is made for. The server replaces what the client claims by what the client's key
/// allows ([`Vetting`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Wire for Caller {
    const BYTES_MIN: usize = 12;
    fn put(&self, out: &mut Writer) {
        self.uid.put(out);
        self.gid.put(out);
        self.groups.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Caller { uid: u32::get(input)?, gid: u32::get(input)?, groups: Vec::get(input)? })
    }
    fn sample(seed: &mut u64) -> Self {
        Caller { uid: u32::sample(seed), gid: u32::sample(seed), groups: Vec::sample(seed) }
    }
    const VETTED: bool = true;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        vetting.caller(self);
    }
}

crate::message! {
    /// A point in time.
    pub struct Time {
        /// Seconds since 1970.
        pub seconds: i64,
        /// 0 … 999,999,999.
        pub nanoseconds: u32,
    }

    /// A name: a path relative to a directory. An empty path is the inode itself.
    pub struct At {
        /// The directory to begin at.
        pub dir: u64,
        /// Components separated by `/`.
        pub path: Vec<u8>,
    }

    /// Attributes of an inode.
    pub struct Attr {
        /// Inode number; never reused.
        pub ino: u64,
        /// Distinguishes uses of a number.
        pub generation: u64,
        /// What it is.
        pub kind: FileKind,
        /// Permission bits with set-id and sticky bits.
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Hard links.
        pub nlink: u32,
        /// Device number of a special file.
        pub rdev: u32,
        /// Size; with `size_live`, a lower bound.
        pub size: u64,
        /// Whether somebody may be writing. Then the I/O servers know the size: the greatest end over the
        /// data files.
        pub size_live: bool,
        /// Changes whenever the file's writers or its size change; for [`SettleRequest`].
        pub epoch: u64,
        /// Last access.
        pub atime: Time,
        /// Last change of contents.
        pub mtime: Time,
        /// Last change of attributes.
        pub ctime: Time,
        /// Creation.
        pub btime: Time,
        /// A file's layout, or a directory's default for new files.
        pub layout: Option<Layout>,
    }

    /// A requested layout; 0 means the default.
    pub struct LayoutWish {
        /// Strip size.
        pub strip_bytes: u32,
        /// Servers.
        pub server_count: u16,
        /// First server plus one; 0: the metadata server spreads files over the servers.
        pub first_server_plus_1: u16,
    }

    /// See [`crate::Op::Lookup`].
    pub struct LookupRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// What.
        pub at: At,
        /// Whether a symbolic link at the end is followed.
        pub follow: bool,
    }

    /// Attributes.
    pub struct AttrReply {
        /// The attributes of the inode.
        pub attr: Attr,
    }

    /// See [`crate::Op::GetAttr`].
    pub struct InodeRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which.
        pub ino: u64,
    }

    /// See [`crate::Op::SetAttr`].
    pub struct SetAttrRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The file. A symbolic link at the end is followed if `follow`.
        pub at: At,
        /// See `at`.
        pub follow: bool,
        /// Which of the fields are set ([`attr_valid`]).
        pub valid: u32,
        /// Permission bits.
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Access time.
        pub atime: Time,
        /// Modification time.
        pub mtime: Time,
        /// What this client's opens of the inode wrote since their last report, if `at` is an inode without a
        /// path. It is applied before the change, in the same batch.
        pub report: Option<WriteReport>,
    }

    /// See [`crate::Op::Create`].
    pub struct CreateRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`].
        pub mode: u32,
        /// Fail if the name exists.
        pub exclusive: bool,
        /// Layout, if it differs from the directory's default.
        pub layout: Option<LayoutWish>,
        /// [`rights`] to open with; 0: do not open.
        pub access: u32,
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
    }

    /// Identifies an open within its session.
    pub struct OpenId {
        /// The run of the session in which it was counted; 0: none.
        pub run: u64,
        /// A number that the client chooses, unique in the session.
        pub number: u64,
    }

    /// A writer's report of its writes.
    pub struct WriteReport {
        /// The greatest end of its writes.
        pub end_bytes: u64,
        /// Whether to set the modification time to now.
        pub touch: bool,
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
    }

    /// See [`crate::Op::Mkdir`].
    pub struct MkdirRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`].
        pub mode: u32,
        /// Default layout of new files in it.
        pub layout: Option<LayoutWish>,
    }

    /// See [`crate::Op::Mknod`].
    pub struct MknodRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Fifo, socket or device.
        pub kind: FileKind,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`].
        pub mode: u32,
        /// Device number.
        pub rdev: u32,
    }

    /// See [`crate::Op::Symlink`].
    pub struct SymlinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Where it points.
        pub target: Vec<u8>,
    }

    /// See [`crate::Op::Readlink`].
    pub struct ReadlinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The link.
        pub at: At,
    }

    /// Reply to [`crate::Op::Readlink`].
    pub struct ReadlinkReply {
        /// Where it points.
        pub target: Vec<u8>,
    }

    /// See [`crate::Op::Link`].
    pub struct LinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The existing file.
        pub from: At,
        /// Whether a symbolic link at the end of `from` is followed.
        pub follow: bool,
        /// The new name.
        pub to: At,
    }

    /// See [`crate::Op::Unlink`].
    pub struct UnlinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
    }

    /// Reply to [`crate::Op::Unlink`].
    pub struct RemovedReply {
        /// The directory after the removal, for clients that watch and gave its inode and one name.
        pub parent: Option<Attr>,
    }

    /// See [`crate::Op::Rmdir`].
    pub struct RmdirRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
    }

    /// See [`crate::Op::Rename`].
    pub struct RenameRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The old name.
        pub from: At,
        /// The new one.
        pub to: At,
        /// See [`rename_flags`].
        pub flags: u32,
    }

    /// See [`crate::Op::ReadDir`].
    pub struct ReadDirRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The directory.
        pub ino: u64,
        /// 0, or the cookie of the last entry seen.
        pub after: u64,
        /// Limit of entries.
        pub entries_max: u32,
        /// Whether to return attributes.
        pub with_attrs: bool,
    }

    /// A name in a directory.
    pub struct Entry {
        /// The name.
        pub name: Vec<u8>,
        /// Its inode.
        pub ino: u64,
        /// What it is.
        pub kind: FileKind,
        /// The position after it; never used for another entry of this directory.
        pub cookie: u64,
        /// Its attributes, if requested.
        pub attr: Option<Attr>,
    }

    /// Reply to [`ReadDirRequest`].
    pub struct ReadDirReply {
        /// A page, without `.` and `..`.
        pub entries: Vec<Entry>,
        /// Whether this was the last page.
        pub end: bool,
        /// Inode of the parent directory.
        pub parent: u64,
    }

    /// See [`crate::Op::Access`].
    pub struct AccessRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// What.
        pub at: At,
        /// Whether a symbolic link at the end is followed.
        pub follow: bool,
        /// 4 read, 2 write, 1 execute, as in access(2).
        pub mask: u32,
    }

    /// See [`crate::Op::GetXattr`].
    pub struct GetXattrRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which inode.
        pub ino: u64,
        /// Attribute's name.
        pub name: Vec<u8>,
    }

    /// A value.
    pub struct XattrReply {
        /// The value.
        pub value: Vec<u8>,
    }

    /// See [`crate::Op::SetXattr`].
    pub struct SetXattrRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which inode.
        pub ino: u64,
        /// Attribute's name.
        pub name: Vec<u8>,
        /// Its value.
        pub value: Vec<u8>,
        /// 1: it must not exist; 2: it must exist, as in setxattr(2).
        pub flags: u32,
    }

    /// See [`crate::Op::ListXattrs`].
    pub struct ListXattrsRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which inode.
        pub ino: u64,
    }

    /// Reply to [`ListXattrsRequest`].
    pub struct ListXattrsReply {
        /// The names.
        pub names: Vec<Vec<u8>>,
    }

    /// See [`crate::Op::RemoveXattr`].
    pub struct RemoveXattrRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which inode.
        pub ino: u64,
        /// Attribute's name.
        pub name: Vec<u8>,
    }

    /// See [`crate::Op::SetLayout`].
    pub struct SetLayoutRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The directory, or a file that was never written.
        pub at: At,
        /// The layout; none removes the directory's default.
        pub layout: Option<LayoutWish>,
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

    /// See [`crate::Op::FileCount`].
    pub struct FileCountRequest {}

    /// Reply to [`FileCountRequest`].
    pub struct FileCountReply {
        /// Inodes in use.
        pub files: u64,
    }

    /// See [`crate::Op::SyncMeta`].
    pub struct SyncMetaRequest {}

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
