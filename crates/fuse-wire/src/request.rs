//! Requests of the kernel.

use crate::fields::{Fields, Malformed};
use crate::reply::FileTime;

/// Numbers of operations that are examined before a request is decoded.
pub mod opcode {
    /// The first request of a connection.
    pub const INIT: u32 = 26;

    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// Bits of `valid` in a request to set attributes.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// A write of pages that a program changed through a mapping.
const WRITE_CACHE: u32 = 1 << 0;
/// A write that clears set-id bits.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// A lock of flock(2), not of fcntl(2).
const LOCK_FLOCK: u32 = 1 << 0;

/// Properties of a write besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteManner {
    /// The write clears set-id bits.
    pub clear_set_id: bool,
    /// It writes back pages that a program changed through a mapping; the kernel keeps them until it is done.
    pub written_back: bool,
    /// Flags of the open file as they are now: `fcntl` changes some after the open.
    pub flags: i32,
}

/// The header of a request: the caller, the operation and the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole request, as it comes through the device.
    pub length: u32,
    /// The operation. It determines the rest of the request.
    pub opcode: u32,
    /// Identifies the request in its reply.
    pub unique: u64,
    /// The inode, by the number that the file system assigned to it.
    pub node: u64,
    /// File-system user of the calling thread.
    pub uid: u32,
    /// File-system group of the calling thread.
    pub gid: u32,
    /// The calling thread; 0 for the kernel itself, or for a thread that this process cannot see.
    pub pid: u32,
}

impl Header {
    /// Length of a header.
    pub const BYTES: usize = 40;

    // Fuzzed by fuse: tests/protocol.rs
    /// Decodes the header at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut fields = Fields(bytes.get(..Self::BYTES).ok_or(Malformed("the header"))?);
        Ok(Header {
            length: fields.u32("the length")?,
            opcode: fields.u32("the operation")?,
            unique: fields.u64("the number of the request")?,
            node: fields.u64("the inode")?,
            uid: fields.u32("the user")?,
            gid: fields.u32("the group")?,
            pid: fields.u32("the process")?,
        })
    }

    /// Whether the kernel only reports inodes that it has forgotten. It may report many at once.
    pub fn is_forget(&self) -> bool {
        matches!(self.opcode, opcode::FORGET | opcode::BATCH_FORGET)
    }
}

/// A new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(FileTime),
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permissions, with set-id bits and the sticky bit.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last write.
    pub mtime: Option<SetTime>,
    /// The open file of the call, if any.
    pub handle: Option<u64>,
}

/// A lock to set, remove or test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: u64,
    /// Its owner: a number of the kernel's.
    pub owner: u64,
    /// Its first byte.
    pub first: u64,
    /// Its last byte; 2⁶³ − 1 for the end, wherever it is.
    pub last: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: u32,
    /// Process of the owner.
    pub pid: u32,
    /// Whether it is a lock of flock(2), not of fcntl(2).
    pub flock: bool,
}

/// A copy between two open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRange {
    /// The source: open file and offset in bytes.
    pub from: (u64, u64),
    /// The target: open file and offset in bytes.
    pub to: (u64, u64),
    /// The length in bytes.
    pub bytes: u64,
    /// Whether the reply has a 64-bit count (Linux 6.18).
    pub wide: bool,
}

/// Inodes that the kernel forgets, each with the number of lookups to subtract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let mut fields = Fields(self.0);
        let forgotten = (fields.u64("the inode").ok()?, fields.u64("the lookups").ok()?);
        self.0 = fields.0;
        Some(forgotten)
    }
}

/// A request after its header. If a request has a name, the header's inode is the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Operations and arguments are named after the system calls.
pub enum Request<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    ForgetMany(Forgets<'a>),
    GetAttributes,
    SetAttributes(SetAttributes),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_dir: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: i32,
    },
    Create {
        name: &'a [u8],
        flags: i32,
        mode: u32,
        umask: u32,
    },
    /// `O_TMPFILE`: a file without a name in a directory. Its arguments are those of `Create`; the name means nothing.
    CreateUnnamed {
        flags: i32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        bytes: u32,
        flags: i32,
    },
    Write {
        handle: u64,
        offset: u64,
        data: &'a [u8],
        manner: WriteManner,
    },
    Flush {
        handle: u64,
        owner: u64,
    },
    Release {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    Fallocate {
        handle: u64,
        offset: u64,
        bytes: u64,
        mode: i32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: i32,
    },
    CopyRange(CopyRange),
    GetLock(LockRequest),
    SetLock {
        lock: LockRequest,
        wait: bool,
    },
    OpenDirectory,
    ReadDirectory {
        handle: u64,
        position: u64,
        bytes: u32,
        with_attributes: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    FsyncDirectory,
    GetXattr {
        name: &'a [u8],
        bytes: u32,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    ListXattrs {
        bytes: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    /// An ioctl(2) that the kernel passes on, with its argument where that is read.
    Ioctl {
        command: u32,
        data: &'a [u8],
    },
    StatFs,
    /// The thread that waits for the reply to request `unique` has a signal to handle.
    Interrupt {
        unique: u64,
    },
    Destroy,
    /// Unknown or unused operations.
    Other,
}

impl Request<'_> {
    /// The name in logs, similar to its system call.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Lookup { .. } => "lookup",
            Request::Forget { .. } => "forget",
            Request::ForgetMany(_) => "forget",
            Request::GetAttributes => "getattr",
            Request::SetAttributes(_) => "setattr",
            Request::ReadLink => "readlink",
            Request::Symlink { .. } => "symlink",
            Request::MakeNode { .. } => "mknod",
            Request::MakeDirectory { .. } => "mkdir",
            Request::Unlink { .. } => "unlink",
            Request::RemoveDirectory { .. } => "rmdir",
            Request::Rename { .. } => "rename",
            Request::Link { .. } => "link",
            Request::Open { .. } => "open",
            Request::Create { .. } => "create",
            Request::CreateUnnamed { .. } => "tmpfile",
            Request::Read { .. } => "read",
            Request::Write { .. } => "write",
            Request::Flush { .. } => "flush",
            Request::Release { .. } => "release",
            Request::Fsync { .. } => "fsync",
            Request::Fallocate { .. } => "fallocate",
            Request::Seek { .. } => "lseek",
            Request::CopyRange(_) => "copy_file_range",
            Request::GetLock(_) => "getlk",
            Request::SetLock { .. } => "setlk",
            Request::OpenDirectory => "opendir",
            Request::ReadDirectory { .. } => "readdir",
            Request::ReleaseDirectory { .. } => "releasedir",
            Request::FsyncDirectory => "fsyncdir",
            Request::GetXattr { .. } => "getxattr",
            Request::SetXattr { .. } => "setxattr",
            Request::ListXattrs { .. } => "listxattr",
            Request::RemoveXattr { .. } => "removexattr",
            Request::Access { .. } => "access",
            Request::Ioctl { .. } => "ioctl",
            Request::StatFs => "statfs",
            Request::Interrupt { .. } => "interrupt",
            Request::Destroy => "destroy",
            Request::Other => "other",
        }
    }
}

/// Bytes of the arguments of an operation.
fn argument_bytes(operation: u32) -> usize {
    use opcode::*;
    match operation {
        FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | SETXATTR | GETXATTR | LISTXATTR | ACCESS
        | INTERRUPT | BATCH_FORGET => 8,
        GETATTR | MKNOD | FSYNC | FSYNCDIR | CREATE | TMPFILE | RENAME2 => 16,
        RELEASE | RELEASEDIR | FLUSH | LSEEK => 24,
        FALLOCATE | IOCTL => 32,
        READ | WRITE | READDIR | READDIRPLUS => 40,
        GETLK | SETLK | SETLKW => 48,
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => 56,
        SETATTR => 88,
        _ => 0,
    }
}

/// Splits what follows a header in the device into arguments, and names or data.
pub fn split(operation: u32, body: &[u8]) -> (&[u8], &[u8]) {
    body.split_at(argument_bytes(operation).min(body.len()))
}

impl<'a> Request<'a> {
    /// Decodes the arguments of the operation `header.opcode`, and its names or data. Bytes after them are
    /// ignored, since a newer kernel may send more.
    pub fn decode(header: &Header, arguments: &[u8], data: &'a [u8]) -> Result<Request<'a>, Malformed> {
        use opcode::*;
        let mut args = Fields(arguments);
        let mut data = Fields(data);
        Ok(match header.opcode {
            LOOKUP => Request::Lookup { name: data.name("the name")? },
            FORGET => Request::Forget { lookups: args.u64("the lookups")? },
            BATCH_FORGET => {
                let count = args.u32("the count")? as usize;
                Request::ForgetMany(Forgets(data.data(count.saturating_mul(16), "an inode")?))
            }
            GETATTR => Request::GetAttributes,
            SETATTR => Request::SetAttributes(set_attributes(&mut args)?),
            READLINK => Request::ReadLink,
            SYMLINK => Request::Symlink { name: data.name("the name")?, target: data.name("the target")? },
            MKNOD => Request::MakeNode {
                mode: args.u32("the mode")?,
                device: args.u32("the device")?,
                umask: args.u32("the umask")?,
                name: data.name("the name")?,
            },
            MKDIR => Request::MakeDirectory {
                mode: args.u32("the mode")?,
                umask: args.u32("the umask")?,
                name: data.name("the name")?,
            },
            UNLINK => Request::Unlink { name: data.name("the name")? },
            RMDIR => Request::RemoveDirectory { name: data.name("the name")? },
            RENAME => Request::Rename {
                new_dir: args.u64("the directory")?,
                flags: 0,
                name: data.name("the name")?,
                new_name: data.name("the new name")?,
            },
            RENAME2 => Request::Rename {
                new_dir: args.u64("the directory")?,
                flags: args.u32("the flags")?,
                name: data.name("the name")?,
                new_name: data.name("the new name")?,
            },
            LINK => Request::Link { node: args.u64("the inode")?, name: data.name("the name")? },
            OPEN => Request::Open { flags: args.u32("the flags")? as i32 },
            CREATE => Request::Create {
                flags: args.u32("the flags")? as i32,
                mode: args.u32("the mode")?,
                umask: args.u32("the umask")?,
                name: data.name("the name")?,
            },
            TMPFILE => Request::CreateUnnamed {
                flags: args.u32("the flags")? as i32,
                mode: args.u32("the mode")?,
                umask: args.u32("the umask")?,
            },
            READ => {
                let (handle, offset) = (args.u64("the open file")?, args.u64("the offset")?);
                let (bytes, _read_flags) = (args.u32("the size")?, args.u32("the kind of read")?);
                let (_lock_owner, flags) = (args.u64("the owner")?, args.u32("the flags")? as i32);
                Request::Read { handle, offset, bytes, flags }
            }
            WRITE => {
                let (handle, offset) = (args.u64("the open file")?, args.u64("the offset")?);
                let (bytes, kind) = (args.u32("the size")?, args.u32("the kind of write")?);
                let (_lock_owner, flags) = (args.u64("the owner")?, args.u32("the flags")? as i32);
                let data = data.data(bytes as usize, "the data")?;
                let clear_set_id = kind & WRITE_KILL_SUIDGID != 0;
                let manner = WriteManner { clear_set_id, written_back: kind & WRITE_CACHE != 0, flags };
                Request::Write { handle, offset, data, manner }
            }
            FLUSH => {
                let handle = args.u64("the open file")?;
                args.u64("padding")?;
                Request::Flush { handle, owner: args.u64("the owner")? }
            }
            RELEASE => Request::Release { handle: args.u64("the open file")? },
            FSYNC => Request::Fsync { handle: args.u64("the open file")? },
            FALLOCATE => Request::Fallocate {
                handle: args.u64("the open file")?,
                offset: args.u64("the offset")?,
                bytes: args.u64("the length")?,
                mode: args.u32("the mode")? as i32,
            },
            LSEEK => Request::Seek {
                handle: args.u64("the open file")?,
                offset: args.u64("the offset")?,
                whence: args.u32("whence")? as i32,
            },
            COPY_FILE_RANGE | COPY_FILE_RANGE_64 => {
                let from = (args.u64("the open file")?, args.u64("the offset")?);
                args.u64("the inode")?;
                let to = (args.u64("the open file")?, args.u64("the offset")?);
                let wide = header.opcode == COPY_FILE_RANGE_64;
                Request::CopyRange(CopyRange { from, to, bytes: args.u64("the length")?, wide })
            }
            GETLK => Request::GetLock(lock_request(&mut args)?),
            SETLK => Request::SetLock { lock: lock_request(&mut args)?, wait: false },
            SETLKW => Request::SetLock { lock: lock_request(&mut args)?, wait: true },
            OPENDIR => Request::OpenDirectory,
            READDIR | READDIRPLUS => Request::ReadDirectory {
                handle: args.u64("the open directory")?,
                position: args.u64("the position")?,
                bytes: args.u32("the size")?,
                with_attributes: header.opcode == READDIRPLUS,
            },
            RELEASEDIR => Request::ReleaseDirectory { handle: args.u64("the open directory")? },
            FSYNCDIR => Request::FsyncDirectory,
            GETXATTR => Request::GetXattr { bytes: args.u32("the size")?, name: data.name("the name")? },
            SETXATTR => {
                let (bytes, flags) = (args.u32("the size")? as usize, args.u32("the flags")? as i32);
                let name = data.name("the name")?;
                Request::SetXattr { name, value: data.data(bytes, "the value")?, flags }
            }
            LISTXATTR => Request::ListXattrs { bytes: args.u32("the size")? },
            REMOVEXATTR => Request::RemoveXattr { name: data.name("the name")? },
            ACCESS => Request::Access { mask: args.u32("the mask")? },
            IOCTL => {
                let (_handle, _flags) = (args.u64("the open file")?, args.u32("the flags")?);
                let (command, _argument) = (args.u32("the command")?, args.u64("the argument")?);
                let bytes = args.u32("the size")? as usize;
                Request::Ioctl { command, data: data.data(bytes, "what the argument leads to")? }
            }
            STATFS => Request::StatFs,
            INTERRUPT => Request::Interrupt { unique: args.u64("the number of the request")? },
            DESTROY => Request::Destroy,
            _ => Request::Other,
        })
    }
}

fn lock_request(args: &mut Fields<'_>) -> Result<LockRequest, Malformed> {
    Ok(LockRequest {
        handle: args.u64("the open file")?,
        owner: args.u64("the owner")?,
        first: args.u64("the first byte")?,
        last: args.u64("the last byte")?,
        kind: args.u32("the kind")?,
        pid: args.u32("the process")?,
        flock: args.u32("the flags")? & LOCK_FLOCK != 0,
    })
}

fn set_attributes(args: &mut Fields<'_>) -> Result<SetAttributes, Malformed> {
    let what = "an attribute";
    let valid = args.u32(what)?;
    args.u32(what)?;
    let (handle, size, _lock_owner) = (args.u64(what)?, args.u64(what)?, args.u64(what)?);
    let (atime, mtime, _ctime) = (args.u64(what)?, args.u64(what)?, args.u64(what)?);
    let (atime_nanoseconds, mtime_nanoseconds, _) = (args.u32(what)?, args.u32(what)?, args.u32(what)?);
    let mode = args.u32(what)?;
    args.u32(what)?;
    let (uid, gid) = (args.u32(what)?, args.u32(what)?);
    let has = |bit: u32| valid & bit != 0;
    let time = |bit: u32, now: u32, seconds: u64, nanoseconds: u32| {
        let given = SetTime::To(FileTime { seconds: seconds as i64, nanoseconds });
        has(bit).then_some(if has(now) { SetTime::Now } else { given })
    };
    Ok(SetAttributes {
        mode: has(valid::MODE).then_some(mode),
        uid: has(valid::UID).then_some(uid),
        gid: has(valid::GID).then_some(gid),
        size: has(valid::SIZE).then_some(size),
        atime: time(valid::ATIME, valid::ATIME_NOW, atime, atime_nanoseconds),
        mtime: time(valid::MTIME, valid::MTIME_NOW, mtime, mtime_nanoseconds),
        handle: has(valid::HANDLE).then_some(handle),
    })
}
