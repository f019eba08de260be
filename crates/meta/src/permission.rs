//! The permission rules of POSIX (XBD 4.5 "File Access Permissions"), in one place.

use crate::MetaError;
use crate::caller::Caller;
use crate::flags::require_alterable;
use crate::inode::{Inode, STICKY};

/// Access mask: read (4).
pub const READ: u32 = 4;
/// Access mask: write (2).
pub const WRITE: u32 = 2;
/// Access mask: execute a file, search a directory (1).
pub const EXECUTE: u32 = 1;

impl Caller {
    pub(crate) fn owns(&self, inode: &Inode) -> bool {
        self.is_root() || self.uid == inode.uid
    }
}

/// Whether `caller` may do all of `mask` with `inode`. Only the first class that matches counts: an owner without
/// the bit is refused even if others have it. An access control list takes the place of the bits. Root may all, but executes only what somebody may.
pub(crate) fn allows(caller: &Caller, inode: &Inode, mask: u32) -> bool {
    if caller.is_root() {
        return mask & EXECUTE == 0 || inode.is_dir() || inode.mode & 0o111 != 0;
    }
    if let Some(acl) = &inode.acl {
        return acl.allows(caller, (inode.uid, inode.gid), mask);
    }
    let granted = if caller.uid == inode.uid {
        inode.mode >> 6
    } else if caller.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    granted & mask == mask
}

/// What is immutable is written by nobody.
pub(crate) fn require(caller: &Caller, inode: &Inode, mask: u32) -> Result<(), MetaError> {
    if mask & WRITE != 0 && inode.is_immutable() {
        return Err(MetaError::NotPermitted);
    }
    if allows(caller, inode, mask) { Ok(()) } else { Err(MetaError::Access) }
}

/// Changing the entries of `dir`.
pub(crate) fn require_change(caller: &Caller, dir: &Inode) -> Result<(), MetaError> {
    require(caller, dir, WRITE | EXECUTE)
}

/// Removing or renaming `child` of `dir`: for whoever may change the directory; in a sticky one only for the owner of the file, of the
/// directory, or root; in an append-only one for nobody, as what is append-only or immutable itself.
pub(crate) fn require_removable(caller: &Caller, dir: &Inode, child: &Inode) -> Result<(), MetaError> {
    require_change(caller, dir)?;
    require_alterable(child)?;
    if dir.is_append_only() {
        return Err(MetaError::NotPermitted);
    }
    if dir.mode & STICKY == 0 || caller.owns(dir) || caller.owns(child) {
        Ok(())
    } else {
        Err(MetaError::NotPermitted)
    }
}
