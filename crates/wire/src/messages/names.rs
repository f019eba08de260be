//! Names: directories, links, lookups.

use super::inode::{At, Attr, DirChange, FileKind, LayoutWish};
use crate::body::Added;
use crate::claims::Caller;

/// Bits of [`RenameRequest::flags`], as in renameat2(2).
pub mod rename_flags {
    /// Fail if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Swap the two names.
    pub const EXCHANGE: u32 = 2;
}

crate::message! {
    /// See [`crate::Op::Lookup`].
    pub struct LookupRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// What.
        pub at: At,
        /// Whether a symbolic link at the end is followed.
        pub follow: bool,
    }

    /// See [`crate::Op::Mkdir`].
    pub struct MkdirRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`](super::UMASK_SHIFT).
        pub mode: u32,
        /// Default layout of new files in it.
        pub layout: Option<LayoutWish>,
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
    }

    /// See [`crate::Op::Mknod`].
    pub struct MknodRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Fifo, socket or device.
        pub kind: FileKind,
        /// Permission bits, umask applied; or with the umask, see [`UMASK_SHIFT`](super::UMASK_SHIFT).
        pub mode: u32,
        /// Device number.
        pub rdev: u32,
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
    }

    /// See [`crate::Op::Symlink`].
    pub struct SymlinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Where it points.
        pub target: Vec<u8>,
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
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
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
    }

    /// See [`crate::Op::Unlink`].
    pub struct UnlinkRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
    }

    /// Reply to [`crate::Op::Unlink`].
    pub struct RemovedReply {
        /// The directory after the removal, for clients that watch and gave its inode and one name. A repetition of the
        /// request is not told.
        pub parent: Option<Attr>,
        /// The directory, where the request asks for it and is not a repetition.
        pub dir: Added<Option<DirChange>>,
    }

    /// See [`crate::Op::Rmdir`].
    pub struct RmdirRequest {
        /// On whose behalf.
        pub caller: Caller,
        /// The name.
        pub at: At,
        /// Whether to return the directory before and after, if it is given by inode and one name.
        pub with_dir: Added<bool>,
    }

    /// Reply to [`crate::Op::Rmdir`].
    pub struct RmdirReply {
        /// The directory above, where the request asks for it.
        pub dir: Added<Option<DirChange>>,
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
        /// Whether to return the directories before and after, if each is given by inode and one name.
        pub with_dirs: Added<bool>,
    }

    /// Reply to [`crate::Op::Rename`].
    pub struct RenamedReply {
        /// The directory of the old name, where the request asks for it.
        pub from: Added<Option<DirChange>>,
        /// That of the new name.
        pub to: Added<Option<DirChange>>,
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
        /// Entries that are made from now on have this cookie or a higher one. A listing ends before the one of its first page.
        pub until: Added<u64>,
    }

    /// A place among all names: the one after it is looked at next. Zeros: before all.
    #[derive(Copy, Default)]
    pub struct NamePlace {
        /// Inode of the directory.
        pub dir: u64,
        /// Cookie of the entry.
        pub cookie: u64,
    }

    /// See [`crate::Op::FindPaths`].
    pub struct FindPathsRequest {
        /// Of these inodes: at most [`FIND_INODES_MAX`](crate::limits::FIND_INODES_MAX).
        pub inodes: Vec<u64>,
        /// Where to look on.
        pub after: NamePlace,
    }

    /// An inode that was found.
    pub struct FoundPath {
        /// The inode.
        pub ino: u64,
        /// A path of it, from the root on.
        pub path: Vec<u8>,
    }

    /// Reply to [`FindPathsRequest`].
    pub struct FindPathsReply {
        /// The inodes with a name in the part that was looked at.
        pub found: Vec<FoundPath>,
        /// Where to go on; absent: all names were looked at, or all inodes are found.
        pub next: Option<NamePlace>,
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
}
