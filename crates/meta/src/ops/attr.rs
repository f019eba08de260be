//! stat, access, and changes of mode, owner and times.

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::flags::require_alterable;
use crate::inode::{Attr, Inode, MODE_MASK, SET_GID, Timestamp};
use crate::op::Op;
use crate::permission::{EXECUTE, READ, WRITE, allows, require};
use crate::walk::{At, Follow};

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation; whoever may write may set it.
    Now,
    /// A given time; only the owner and root may set it.
    At(Timestamp),
}

/// The attributes to change; what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
}

impl<E: Engine> Op<'_, E> {
    /// The attributes of what `at` names; a symbolic link in the last place is followed if `follow`.
    pub fn stat(&mut self, caller: &Caller, at: At, follow: bool) -> Result<Attr, MetaError> {
        let follow = if follow { Follow::Always } else { Follow::BeforeSlash };
        let inode = self.resolve(caller, at, follow)?;
        Ok(self.attr_of(&inode))
    }

    /// The attributes of an inode by number; needs no permission.
    pub fn getattr(&mut self, ino: u64) -> Result<Attr, MetaError> {
        let inode = self.need(ino)?;
        Ok(self.attr_of(&inode))
    }

    /// Checks that the caller may do all of `mask` (`READ`, `WRITE`, `EXECUTE`; 0: that it exists).
    pub fn access(&mut self, caller: &Caller, at: At, follow: bool, mask: u32) -> Result<(), MetaError> {
        if mask & !(READ | WRITE | EXECUTE) != 0 {
            return Err(MetaError::Invalid("access mask"));
        }
        let follow = if follow { Follow::Always } else { Follow::BeforeSlash };
        let inode = self.resolve(caller, at, follow)?;
        require(caller, &inode, mask)
    }

    /// Changes mode, owner, group and times (chmod, chown, utimensat) as POSIX and Linux allow it. Sizes change by
    /// `truncate_begin` instead.
    pub fn setattr(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        follow: bool,
        change: &SetAttr,
    ) -> Result<Attr, MetaError> {
        let follow = if follow { Follow::Always } else { Follow::BeforeSlash };
        self.attempt(|op| {
            let mut inode = op.resolve(caller, at, follow)?;
            require_changeable(&inode, change)?;
            if change_owner(caller, &mut inode, change)? {
                op.drop_capability(&mut inode)?;
            }
            change_mode(caller, &mut inode, change)?;
            change_times(caller, now, &mut inode, change)?;
            if *change != SetAttr::default() {
                inode.ctime = now;
                op.put_inode(inode.clone());
            }
            Ok(op.attr_of(&inode))
        })
    }
}

/// What is append-only keeps all but times that are set to now; what is immutable keeps these, too.
fn require_changeable(inode: &Inode, change: &SetAttr) -> Result<(), MetaError> {
    let is_now = |time: Option<SetTime>| time.is_none_or(|time| time == SetTime::Now);
    let only_touches = (change.mode, change.uid, change.gid) == (None, None, None)
        && is_now(change.atime)
        && is_now(change.mtime);
    if *change == SetAttr::default() || only_touches && !inode.is_immutable() {
        return Ok(());
    }
    require_alterable(inode)
}

/// Only root gives files away; the owner may pass them to a group he is in. Set-id bits of anything but a directory
/// fall, even for root, as on Linux; a mode given in the same call is applied after. Whether that was asked for.
fn change_owner(caller: &Caller, inode: &mut Inode, change: &SetAttr) -> Result<bool, MetaError> {
    if change.uid.is_none() && change.gid.is_none() {
        return Ok(false);
    }
    let uid_changes = change.uid.is_some_and(|uid| uid != inode.uid);
    let gid_foreign = change.gid.is_some_and(|gid| gid != inode.gid && !caller.in_group(gid));
    if !caller.is_root() && (!caller.owns(inode) || uid_changes || gid_foreign) {
        return Err(MetaError::NotPermitted);
    }
    let trusted_with_group = caller.is_root() || caller.in_group(inode.gid);
    inode.uid = change.uid.unwrap_or(inode.uid);
    inode.gid = change.gid.unwrap_or(inode.gid);
    if !inode.is_dir() {
        inode.drop_set_id(trusted_with_group);
    }
    Ok(true)
}

/// Who is not in the file's group cannot make it set-group-id.
fn change_mode(caller: &Caller, inode: &mut Inode, change: &SetAttr) -> Result<(), MetaError> {
    let Some(mode) = change.mode else { return Ok(()) };
    if !caller.owns(inode) {
        return Err(MetaError::NotPermitted);
    }
    inode.mode = mode & MODE_MASK;
    if !caller.is_root() && !caller.in_group(inode.gid) {
        inode.mode &= !SET_GID;
    }
    if let Some(acl) = &mut inode.acl {
        acl.set_mode(inode.mode);
    }
    Ok(())
}

fn change_times(
    caller: &Caller,
    now: Timestamp,
    inode: &mut Inode,
    change: &SetAttr,
) -> Result<(), MetaError> {
    let times = [change.atime, change.mtime];
    if times == [None, None] {
        return Ok(());
    }
    if !caller.owns(inode) {
        if times != [Some(SetTime::Now), Some(SetTime::Now)] {
            return Err(MetaError::NotPermitted);
        }
        if !allows(caller, inode, WRITE) {
            return Err(MetaError::Access);
        }
    }
    let resolve = |time: Option<SetTime>, old: Timestamp| match time {
        None => Ok(old),
        Some(SetTime::Now) => Ok(now),
        Some(SetTime::At(time)) if time.nanos < 1_000_000_000 => Ok(time),
        Some(SetTime::At(_)) => Err(MetaError::Invalid("nanoseconds of a time")),
    };
    inode.atime = resolve(change.atime, inode.atime)?;
    inode.mtime = resolve(change.mtime, inode.mtime)?;
    Ok(())
}
