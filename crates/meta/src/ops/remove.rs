//! unlink and rmdir. A file whose last name goes while it is open becomes an orphan: reachable by number until the
//! last close. One that somebody may be about to open is reachable for a moment (`lately.rs`).

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, Timestamp};
use crate::op::Op;
use crate::permission::require_removable;
use crate::walk::{At, End, Follow, Walked};

impl<E: Engine> Op<'_, E> {
    /// Removes the name of anything but a directory. Returns the inode number it led to.
    pub fn unlink(&mut self, caller: &Caller, now: Timestamp, at: At) -> Result<u64, MetaError> {
        self.unlink_keeping(caller, now, at, |_, _| false)
    }

    /// As [`unlink`](Op::unlink). An inode without a further name can still be used by number for a moment, where `keep` says of
    /// directory and inode that somebody may be about to.
    pub fn unlink_keeping(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        at: At,
        keep: impl FnOnce(u64, u64) -> bool,
    ) -> Result<u64, MetaError> {
        self.attempt(|op| match op.walk(caller, at, Follow::Never)? {
            Walked::Itself { .. } => Err(MetaError::IsDirectory),
            Walked::Name { entry: None, .. } => Err(MetaError::NotFound),
            Walked::Name { dir, name, entry: Some(entry), slash } => {
                let inode = op.need(entry.ino)?;
                // What is wrong with the path is told before what is forbidden, and that before what is wrong with the inode.
                if slash {
                    let is_dir = inode.is_dir();
                    return Err(if is_dir { MetaError::IsDirectory } else { MetaError::NotDirectory });
                }
                require_removable(caller, &dir, &inode)?;
                if inode.is_dir() {
                    return Err(MetaError::IsDirectory);
                }
                let above = dir.ino;
                op.remove_entry(now, dir, &name, &entry);
                op.drop_link(now, inode, above, keep)?;
                Ok(entry.ino)
            }
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, caller: &Caller, now: Timestamp, at: At) -> Result<u64, MetaError> {
        self.attempt(|op| match op.walk(caller, at, Follow::Never)? {
            Walked::Itself { end: End::Root, .. } => Err(MetaError::Busy("the root")),
            Walked::Itself { end: End::Dot, .. } => Err(MetaError::Invalid("the last name is '.'")),
            Walked::Itself { end: End::DotDot, .. } => Err(MetaError::NotEmpty),
            Walked::Itself { end: End::Empty, .. } => Err(MetaError::NotFound),
            Walked::Name { entry: None, .. } => Err(MetaError::NotFound),
            Walked::Name { mut dir, name, entry: Some(entry), .. } => {
                let inode = op.need(entry.ino)?;
                require_removable(caller, &dir, &inode)?;
                if !inode.is_dir() {
                    return Err(MetaError::NotDirectory);
                }
                if inode.entries != 0 {
                    return Err(MetaError::NotEmpty);
                }
                dir.nlink -= 1;
                op.remove_entry(now, dir, &name, &entry);
                op.purge(&inode)?;
                Ok(entry.ino)
            }
        })
    }

    fn remove_entry(&mut self, now: Timestamp, mut dir: Inode, name: &[u8], entry: &Entry) {
        dir.entries -= 1;
        dir.mtime = now;
        dir.ctime = now;
        self.delete_entry(dir.ino, name, entry);
        self.put_inode(dir);
    }
}
