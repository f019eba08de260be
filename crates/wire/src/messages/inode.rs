//! Inodes and their attributes.
//!
//! A name is an [`At`]: an inode and a path relative to it. The server walks the path, so every operation is
//! one round trip, however deep the path.

use crate::body::Added;
use crate::claims::{Caller, Vetting};
use crate::codec::{DecodeError, Reader, Wire, Writer};
use weft_layout::Layout;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// The extended attribute with a program's capabilities, which a change of its contents takes away.
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// The flags of a file or directory (chattr(1)) as an extended attribute: 4 bytes, little-endian, with the bits of
/// `FS_IOC_SETFLAGS`.
pub const FLAGS_XATTR: &[u8] = b"weft.flags";

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
        /// Changes whenever the file's writers or its size change; for [`SettleRequest`](super::SettleRequest).
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

    /// What of a directory a change of its names moves.
    pub struct DirState {
        /// Size.
        pub size: u64,
        /// Last change of names.
        pub mtime: Time,
        /// Last change of attributes.
        pub ctime: Time,
    }

    /// A directory before and after a change of its names, both of the change's own transaction.
    pub struct DirChange {
        /// Before.
        pub before: DirState,
        /// After.
        pub after: Attr,
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

    /// Attributes.
    pub struct AttrReply {
        /// The attributes of the inode.
        pub attr: Attr,
        /// The directory of a name that was made, where the request asks for it.
        pub dir: Added<Option<DirChange>>,
    }

    /// See [`crate::Op::GetAttr`].
    pub struct InodeRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// Which.
        pub ino: u64,
    }

    /// A writer's report of its writes.
    pub struct WriteReport {
        /// The greatest end of its writes.
        pub end_bytes: u64,
        /// Whether to set the modification time to now.
        pub touch: bool,
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
}
