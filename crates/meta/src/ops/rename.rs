//! rename, with the rules of POSIX and Linux's two variants.
//!
//! ```text
//!   a -> b      b free            entry moves
//!   a -> b      b a file          b's file loses this name, then the entry moves
//!   a -> b      b an empty dir    only if a is a directory; b is deleted, then the entry moves
//!   a <-> b     exchange          both names stay where they are and lead to the other's inode
//! ```

use crate::MetaError;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::inode::{Entry, Inode, ROOT_INO, Timestamp};
use crate::op::Op;
use crate::permission::{WRITE, require, require_change, require_removable};
use crate::walk::{At, End, Follow, Walked};

/// What happens to an existing new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// The rename fails with `Exists`.
    NoReplace,
    /// Both names swap what they lead to; both must exist.
    Exchange,
}

/// Levels above a directory that is moved, or moved into: looking at them holds up everybody else.
const DEPTH_MAX: u32 = 1 << 14;

/// One side of a rename.
struct Side {
    dir: Inode,
    name: Vec<u8>,
    entry: Option<Entry>,
    inode: Option<Inode>,
    slash: bool,
}

impl<E: Engine> Op<'_, E> {
    /// Moves `from` to `to`. Returns the number of the moved inode and, if one was replaced, of that.
    pub fn rename(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        from: At,
        to: At,
        mode: RenameMode,
    ) -> Result<(u64, Option<u64>), MetaError> {
        self.rename_keeping(caller, now, from, to, mode, |_, _| false)
    }

    /// As [`rename`](Op::rename). A file that is replaced and has no further name can still be used by number for a moment, where
    /// `keep` says of directory and inode that somebody may be about to.
    pub fn rename_keeping(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        from: At,
        to: At,
        mode: RenameMode,
        keep: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(u64, Option<u64>), MetaError> {
        self.attempt(|op| {
            let (from, to) = (op.walk(caller, from, Follow::Never)?, op.walk(caller, to, Follow::Never)?);
            let (source, target) = (op.side(from, mode)?, op.side(to, mode)?);
            let (Some(entry), Some(moved)) = (source.entry, source.inode.clone()) else {
                return Err(MetaError::NotFound);
            };
            op.check_paths(&source, &moved, &target, mode)?;
            if target.inode.as_ref().is_some_and(|replaced| replaced.ino == moved.ino) {
                return Ok((moved.ino, None));
            }
            check_permissions(caller, &source, &moved, &target, mode)?;
            let replaced = target.inode.as_ref().map(|inode| inode.ino);
            match mode {
                RenameMode::Exchange => op.exchange(now, source, target)?,
                _ => op.move_entry(now, source, &entry, moved, target, keep)?,
            }
            Ok((entry.ino, replaced))
        })
    }

    fn side(&mut self, walked: Walked, mode: RenameMode) -> Result<Side, MetaError> {
        match walked {
            Walked::Itself { end: End::Empty, .. } => Err(MetaError::NotFound),
            Walked::Itself { .. } if mode == RenameMode::NoReplace => Err(MetaError::Exists),
            Walked::Itself { .. } => Err(MetaError::Busy("the last name is '.', '..' or '/'")),
            Walked::Name { dir, name, entry, slash } => {
                let inode = match entry {
                    Some(entry) => Some(self.need(entry.ino)?),
                    None => None,
                };
                Ok(Side { dir, name, entry, inode, slash })
            }
        }
    }

    /// What is wrong with the paths, which Linux tells before what is forbidden.
    fn check_paths(
        &mut self,
        source: &Side,
        moved: &Inode,
        target: &Side,
        mode: RenameMode,
    ) -> Result<(), MetaError> {
        let exchange = mode == RenameMode::Exchange;
        let other = target.inode.as_ref();
        match other {
            Some(_) if mode == RenameMode::NoReplace => return Err(MetaError::Exists),
            None if exchange => return Err(MetaError::NotFound),
            Some(other) if exchange && target.slash && !other.is_dir() => {
                return Err(MetaError::NotDirectory);
            }
            _ => {}
        }
        if (source.slash || target.slash && !exchange) && !moved.is_dir() {
            return Err(MetaError::NotDirectory);
        }
        if moved.is_dir() && self.is_within(target.dir.ino, moved.ino)? {
            return Err(MetaError::Invalid("a directory cannot move into itself"));
        }
        let above = other.filter(|other| other.is_dir() && other.ino != moved.ino);
        if let Some(above) = above
            && self.is_within(source.dir.ino, above.ino)?
        {
            return Err(match exchange {
                true => MetaError::Invalid("a directory cannot change places with what it holds"),
                false => MetaError::NotEmpty,
            });
        }
        Ok(())
    }

    /// Whether directory `ino` is `ancestor` or below it.
    fn is_within(&mut self, mut ino: u64, ancestor: u64) -> Result<bool, MetaError> {
        for _ in 0..DEPTH_MAX {
            if ino == ancestor {
                return Ok(true);
            }
            if ino == ROOT_INO {
                return Ok(false);
            }
            ino = self.need_dir(ino)?.parent;
        }
        Err(MetaError::NotSupported("moving directories more than 16384 levels deep"))
    }

    fn move_entry(
        &mut self,
        now: Timestamp,
        source: Side,
        entry: &Entry,
        mut moved: Inode,
        target: Side,
        keep: impl FnOnce(u64, u64) -> bool,
    ) -> Result<(), MetaError> {
        let (old_dir, new_dir) = (source.dir.ino, target.dir.ino);
        self.delete_entry(old_dir, &source.name, entry);
        self.count_entry(now, old_dir, -1, moved.is_dir())?;
        if let (Some(old_entry), Some(replaced)) = (target.entry, target.inode) {
            self.delete_entry(new_dir, &target.name, &old_entry);
            self.count_entry(now, new_dir, -1, replaced.is_dir())?;
            if replaced.is_dir() {
                self.purge(&replaced)?;
            } else {
                self.drop_link(now, replaced, new_dir, keep)?;
            }
        }
        self.move_to_tree(&mut moved, target.dir.tree)?;
        // Within a directory it stays where it is in a listing, so that nobody meets it twice.
        let cookie = if old_dir == new_dir { entry.cookie } else { self.take_cookie() };
        self.put_entry(new_dir, &target.name, Entry { cookie, ..*entry });
        self.count_entry(now, new_dir, 1, moved.is_dir())?;
        if moved.is_dir() {
            moved.parent = new_dir;
        }
        moved.ctime = now;
        self.put_inode(moved);
        Ok(())
    }

    fn exchange(&mut self, now: Timestamp, source: Side, target: Side) -> Result<(), MetaError> {
        let (Some(first), Some(second)) = (source.entry, target.entry) else {
            return Err(MetaError::NotFound);
        };
        let sides = [(&source, second, first.cookie), (&target, first, second.cookie)];
        for (side, incoming, cookie) in sides {
            let leaving = side.inode.as_ref().is_some_and(Inode::is_dir);
            self.put_entry(side.dir.ino, &side.name, Entry { cookie, ..incoming });
            self.count_entry(now, side.dir.ino, -1, leaving)?;
            let mut inode = self.need(incoming.ino)?;
            self.count_entry(now, side.dir.ino, 1, inode.is_dir())?;
            if inode.is_dir() {
                inode = self.need(incoming.ino)?;
                inode.parent = side.dir.ino;
            }
            self.move_to_tree(&mut inode, side.dir.tree)?;
            inode.ctime = now;
            self.put_inode(inode);
        }
        Ok(())
    }

    /// One entry more or less in `dir`; a subdirectory counts as a link of its parent.
    fn count_entry(&mut self, now: Timestamp, dir: u64, change: i32, is_dir: bool) -> Result<(), MetaError> {
        let mut dir = self.need_dir(dir)?;
        dir.entries = dir.entries.saturating_add_signed(i64::from(change));
        if is_dir {
            dir.nlink = dir.nlink.saturating_add_signed(change);
        }
        dir.mtime = now;
        dir.ctime = now;
        self.put_inode(dir);
        Ok(())
    }
}

/// What is forbidden, and what cannot take another's place.
fn check_permissions(
    caller: &Caller,
    source: &Side,
    moved: &Inode,
    target: &Side,
    mode: RenameMode,
) -> Result<(), MetaError> {
    let exchange = mode == RenameMode::Exchange;
    require_removable(caller, &source.dir, moved)?;
    match &target.inode {
        Some(other) => require_removable(caller, &target.dir, other)?,
        None => require_change(caller, &target.dir)?,
    }
    match target.inode.as_ref().map(Inode::is_dir) {
        Some(false) if moved.is_dir() && !exchange => return Err(MetaError::NotDirectory),
        Some(true) if !moved.is_dir() && !exchange => return Err(MetaError::IsDirectory),
        _ => {}
    }
    // The name `..` of a directory with another parent changes.
    if source.dir.ino != target.dir.ino {
        let other = target.inode.as_ref().filter(|_| exchange);
        let mut directories = [Some(moved), other].into_iter().flatten().filter(|inode| inode.is_dir());
        directories.try_for_each(|inode| require(caller, inode, WRITE))?;
    }
    match &target.inode {
        Some(other) if !exchange && other.is_dir() && other.entries > 0 => Err(MetaError::NotEmpty),
        _ => Ok(()),
    }
}
