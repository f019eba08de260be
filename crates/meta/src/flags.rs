//! Flags of files and directories that bind everybody, root too, as Linux has them (chattr(1), `FS_IOC_SETFLAGS`).
//!
//! ```text
//!                          immutable                       append-only
//!   contents               not opened to be written        opened to be written with O_APPEND alone, not truncated
//!   names of a directory   none is made or removed         made, and not removed
//!   its own name           not removed, moved or linked    the same
//!   attributes             none changes                    none but times that are set to now
//! ```
//!
//! Who has a file open already goes on. Root sets and takes away these two; owners keep what is no more than a note for
//! programs (`NO_DUMP`, `NO_ATIME`).

use crate::MetaError;
use crate::inode::Inode;

/// Bits of an inode, as in linux/fs.h.
pub type InodeFlags = u8;

/// Nothing about it changes.
pub const IMMUTABLE: InodeFlags = 0x10;
/// It only grows.
pub const APPEND_ONLY: InodeFlags = 0x20;
/// Backup programs leave it out.
pub const NO_DUMP: InodeFlags = 0x40;
/// Reading does not set the time of access; it never does.
pub const NO_ATIME: InodeFlags = 0x80;

const KNOWN: u32 = (IMMUTABLE | APPEND_ONLY | NO_DUMP | NO_ATIME) as u32;

/// Flags as they are sent, or why these cannot be set.
pub(crate) fn parse(bits: u32) -> Result<InodeFlags, MetaError> {
    match bits & !KNOWN {
        0 => Ok(bits as InodeFlags),
        _ => Err(MetaError::NotSupported("a flag other than append-only, immutable, no-dump and no-atime")),
    }
}

impl Inode {
    pub(crate) fn is_immutable(&self) -> bool {
        self.flags & IMMUTABLE != 0
    }

    pub(crate) fn is_append_only(&self) -> bool {
        self.flags & APPEND_ONLY != 0
    }
}

/// Its own name, its attributes and its size may change.
pub(crate) fn require_alterable(inode: &Inode) -> Result<(), MetaError> {
    if inode.flags & (IMMUTABLE | APPEND_ONLY) == 0 { Ok(()) } else { Err(MetaError::NotPermitted) }
}
