//! What operations of the file system take and give: errors as errno, inodes and open files for the kernel.

use std::time::Duration;
use weft_client::SetTime;
use weft_wire::messages::Attr;

/// Bits of a mode that let a program act for its owner or group.
pub(crate) const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;

/// An error as the kernel wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl From<weft_client::Error> for Errno {
    fn from(error: weft_client::Error) -> Errno {
        let errno = error.errno();
        crate::trouble::of_server(errno, &error);
        Errno(errno)
    }
}

/// Result of an operation of the file system.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// An inode as the kernel is to have it.
pub(crate) struct Told {
    /// Its attributes, with the kernel's number for it.
    pub(crate) attr: Attr,
    /// The space that it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
    /// How long they may be cached.
    pub(crate) attr_valid: Duration,
    /// How long the name may be cached.
    pub(crate) entry_valid: Duration,
}

/// What a name leads to.
pub(crate) enum Found {
    /// An inode.
    Inode(Told),
    /// Nothing, for so long.
    Nothing { entry_valid: Duration },
}

/// An open file as the kernel is to have it.
pub(crate) struct Opened {
    /// Number for later requests.
    pub(crate) handle: u64,
    /// Bypass the page cache.
    pub(crate) direct_io: bool,
    /// Pages cached before are still good.
    pub(crate) keep_cache: bool,
}

/// Attributes to set.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
}
