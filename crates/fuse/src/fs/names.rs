//! Names and attributes.

use super::listing::name_key;
use super::{NEW_MODE, WeftFs};
use crate::coherence::{Changing, Coherence};
use crate::outcome::{Changes, Errno, Found, Outcome, Told};
use crate::places::Place;
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use weft_client::{At, Client, OpenOptions, SetAttr, c};
use weft_gateway::{Asked, LEASE, Process};
use weft_wire::messages::{Attr, FileKind};

/// Threads remembered, of each sixteenth of all, that were told that a directory is gone.
const GONE_MAX: usize = 64;

impl WeftFs {
    pub(crate) fn lookup(&self, who: Process, parent: u64, name: &OsStr) -> Outcome<Found> {
        let dir = self.ino(parent);
        let asked = self.coherence.ask();
        if name == "." || name == ".." {
            return self.lookup_by_handle(who, &asked, parent, name == "..");
        }
        self.coherence.looking(who.pid);
        let nothing = |left: Duration| {
            let most = left.min(self.behaviour.entry_timeout);
            Ok(Found::Nothing { entry_valid: self.coherence.may_cache_name(&asked, dir, most) })
        };
        if let Some(left) = self.coherence.is_missing(&asked, dir, name.as_bytes()) {
            return nothing(left);
        }
        if let Some((asked, attr)) = self.listed_before(who, dir, name) {
            return Ok(Found::Inode(self.tell_entry(&asked, parent, attr)));
        }
        let client = self.callers.client(who);
        match client.stat(self.at(parent, name), false) {
            Ok(attr) => {
                let attr = self.with_own_changes(&client, &asked, attr)?;
                if attr.kind == FileKind::Directory {
                    self.coherence.found_directory(attr.ino, place(dir, name), who.pid);
                }
                Ok(Found::Inode(self.tell_entry(&asked, parent, attr)))
            }
            Err(error) if error.errno() == libc::ENOENT => {
                self.coherence.asked_in(&asked, dir);
                nothing(LEASE)
            }
            Err(error) => Err(self.in_directories(who, &[parent], error.into())),
        }
    }

    /// An inode that the kernel has the number of, from a handle of open_by_handle_at(2), or a directory's parent: it asks for `.`
    /// and `..` for that only. It compares the generation.
    fn lookup_by_handle(&self, who: Process, asked: &Asked, node: u64, above: bool) -> Outcome<Found> {
        let client = self.callers.client(who);
        let mut ino = self.ino(node);
        if above && ino != self.root_ino {
            // The right to list it is not needed to know where it is.
            ino = self.callers.root().read_dir_page(ino, (0, 0), 1, false)?.parent;
        }
        let attr = self.with_own_changes(&client, asked, client.getattr(ino)?)?;
        Ok(Found::Inode(self.tell_entry(asked, node, attr)))
    }

    /// `attr` as the reply to `asked` had them, or newer ones where this mount has written to the file and not reported it, or
    /// has changed something meanwhile.
    pub(super) fn with_own_changes(&self, client: &Client, asked: &Asked, attr: Attr) -> Outcome<Attr> {
        let reported = match attr.kind {
            FileKind::File => self.report_writes(attr.ino)?,
            _ => None,
        };
        match reported {
            Some(attr) if !attr.size_live => Ok(attr),
            None if !self.reports.changed_since(attr.ino, asked.at()) => Ok(attr),
            _ => Ok(client.getattr(attr.ino)?),
        }
    }

    pub(crate) fn getattr(&self, who: Process, node: u64) -> Outcome<Told> {
        let ino = self.ino(node);
        let asked = self.coherence.ask();
        if let Some((attr, left)) = self.coherence.directory(&asked, ino) {
            return Ok(self.told(&asked, attr, left));
        }
        let attr = match self.report_writes(ino)? {
            Some(attr) if !attr.size_live => Ok(attr),
            _ => self.callers.client(who).getattr(ino),
        };
        match attr.map_err(Errno::from) {
            Ok(attr) => Ok(self.tell(&asked, attr)),
            Err(errno) => self.told_of_removed(&asked, ino, errno),
        }
    }

    /// A directory that is in use here, as working directory or open, while the servers say by `errno` that they have it no
    /// more.
    fn told_of_removed(&self, asked: &Asked, ino: u64, errno: Errno) -> Outcome<Told> {
        let is_gone = errno.0 == libc::ESTALE;
        let removed = is_gone.then(|| self.coherence.removed_directory(ino)).flatten().ok_or(errno)?;
        Ok(self.told(asked, removed, LEASE))
    }

    pub(crate) fn setattr(
        &self,
        who: Process,
        node: u64,
        handle: Option<u64>,
        changes: Changes,
    ) -> Outcome<Told> {
        let ino = self.ino(node);
        let client = self.callers.client(who);
        let (at, asked) = (Instant::now(), self.coherence.ask());
        if let Some(size) = changes.size {
            self.report_writes(ino)?;
            self.truncate(&client, who, ino, handle, size)?;
        }
        let identities = self.callers.identities();
        let wanted = SetAttr {
            mode: changes.mode.map(|mode| mode & 0o7777),
            uid: changes.uid.map(|uid| identities.users.there(uid)),
            gid: changes.gid.map(|gid| identities.groups.there(gid)),
            atime: changes.atime,
            mtime: changes.mtime,
        };
        if wanted == SetAttr::default() {
            self.report_writes(ino)?;
            let attr = client.getattr(ino)?;
            self.coherence.attributes_set(ino);
            return Ok(self.tell(&asked, attr));
        }
        // Where the kernel does not check, the server has to.
        let unchanged = self.last_replies.unchanged(ino, &wanted).filter(|_| identities.kernel_checks());
        if let Some((asked, attr)) = unchanged.filter(|(asked, _)| !self.coherence.valid(asked).is_zero()) {
            return Ok(self.tell(&asked, attr));
        }
        self.last_replies.forget(ino);
        let alone = self.reports.alone(ino);
        let changed = client.report_and_setattr(ino, &wanted);
        self.reports.changed(ino);
        self.set_id_changed(ino);
        drop(alone);
        let attr = match changed.map_err(Errno::from) {
            Ok(attr) => attr,
            Err(errno) => {
                if errno.0 == libc::ESTALE {
                    self.coherence.set_removed_directory(ino, &wanted);
                }
                return self.told_of_removed(&asked, ino, errno);
            }
        };
        self.last_replies.note(at, &asked, &attr);
        self.coherence.attributes_set(ino);
        Ok(self.tell(&asked, attr))
    }

    /// The contents of a file, or what belongs to it, are another now.
    pub(super) fn changed(&self, ino: u64) {
        self.epochs.changed(ino);
        self.last_replies.forget(ino);
    }

    fn truncate(
        &self,
        client: &Client,
        who: Process,
        ino: u64,
        handle: Option<u64>,
        size: u64,
    ) -> Outcome<()> {
        let open = handle.and_then(|handle| self.file(handle).ok()).filter(|open| open.writable);
        let truncated = match &open {
            Some(open) => open.file.truncate(size),
            None => client.truncate(At::ino(ino), size),
        };
        self.changed(ino);
        self.reports.changed(ino);
        truncated?;
        match open {
            Some(open) => self.changed_by(who, &open),
            None => Ok(()),
        }
    }

    pub(crate) fn readlink(&self, who: Process, node: u64) -> Outcome<Vec<u8>> {
        Ok(self.callers.client(who).readlink(At::ino(self.ino(node)))?)
    }

    pub(crate) fn mknod(
        &self,
        who: Process,
        parent: u64,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Outcome<Told> {
        let client = self.callers.client(who);
        let (_changing, asked) = self.making(parent, name);
        let at = self.at(parent, name);
        let Some(kind) = c::special_kind(mode).map_err(Errno)? else {
            let options = OpenOptions::new().write(true).create_new(true).mode(mode & NEW_MODE);
            let file = self.named(who, &[parent], client.open(at, &options))?;
            let attr = file.attr();
            self.closing.close(file)?;
            return Ok(self.tell_entry(&asked, parent, attr));
        };
        let attr = self.named(who, &[parent], client.mknod(at, kind, mode & NEW_MODE, rdev))?;
        Ok(self.tell_entry(&asked, parent, attr))
    }

    pub(crate) fn mkdir(&self, who: Process, parent: u64, name: &OsStr, mode: u32) -> Outcome<Told> {
        let (_changing, asked) = self.making(parent, name);
        let made = self.callers.client(who).mkdir(self.at(parent, name), mode & NEW_MODE);
        let attr = self.named(who, &[parent], made)?;
        self.coherence.found_directory(attr.ino, place(self.ino(parent), name), who.pid);
        self.coherence.made_directory(&asked, &attr);
        Ok(self.tell_entry(&asked, parent, attr))
    }

    pub(crate) fn unlink(&self, who: Process, parent: u64, name: &OsStr) -> Outcome<()> {
        self.last_replies.forget_all();
        let dir = self.ino(parent);
        let _changing = self.coherence.changing(dir);
        let asked = self.coherence.ask();
        let removed = self.callers.client(who).unlink_in(self.at(parent, name));
        self.reports.changed(dir);
        self.names_taken.changed(name_key(dir, name.as_bytes()));
        match self.named(who, &[parent], removed)? {
            Some(parent) => self.coherence.note_directory(&asked, &parent),
            None => self.coherence.directory_changed(dir),
        }
        self.coherence.removed(dir, name.as_bytes());
        Ok(())
    }

    pub(crate) fn rmdir(&self, who: Process, parent: u64, name: &OsStr) -> Outcome<()> {
        self.last_replies.forget_all();
        let dir = self.ino(parent);
        let _changing = self.coherence.changing(dir);
        let removed = self.callers.client(who).rmdir(self.at(parent, name));
        self.reports.changed(dir);
        self.names_taken.changed(name_key(dir, name.as_bytes()));
        self.coherence.directory_changed(dir);
        self.coherence.directory_removed();
        self.named(who, &[parent], removed)?;
        self.coherence.removed(dir, name.as_bytes());
        Ok(())
    }

    pub(crate) fn symlink(&self, who: Process, parent: u64, name: &OsStr, target: &[u8]) -> Outcome<Told> {
        let (_changing, asked) = self.making(parent, name);
        let made = self.callers.client(who).symlink(self.at(parent, name), target);
        let attr = self.named(who, &[parent], made)?;
        Ok(self.tell_entry(&asked, parent, attr))
    }

    /// To be called before a name is made in a directory.
    pub(super) fn making(&self, parent: u64, name: &OsStr) -> (Making<'_>, Asked) {
        let dir = self.ino(parent);
        self.coherence.adding(dir, name.as_bytes());
        let followed = Cell::new(false);
        let making =
            Making { _changing: self.coherence.changing(dir), coherence: &self.coherence, dir, followed };
        (making, self.coherence.ask())
    }

    pub(crate) fn rename(
        &self,
        who: Process,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
    ) -> Outcome<()> {
        self.last_replies.forget_all();
        let (from, to) = (self.at(parent, name), self.at(new_parent, new_name));
        let (_old, _new) = (self.making(parent, name), self.making(new_parent, new_name));
        let renamed = self.callers.client(who).rename(from, to, flags);
        self.coherence.directory_removed();
        let places = [place(self.ino(parent), name), place(self.ino(new_parent), new_name)];
        for place in &places {
            self.reports.changed(place.0);
            self.names_taken.changed(name_key(place.0, &place.1));
        }
        self.named(who, &[parent, new_parent], renamed)?;
        let exchanged = flags & weft_wire::messages::rename_flags::EXCHANGE != 0;
        let [from, to] = places;
        self.coherence.moved(from, to, exchanged);
        if !exchanged {
            self.coherence.removed(self.ino(parent), name.as_bytes());
        }
        Ok(())
    }

    pub(crate) fn link(&self, who: Process, node: u64, parent: u64, name: &OsStr) -> Outcome<Told> {
        self.last_replies.forget_all();
        let ino = self.ino(node);
        let (_changing, asked) = self.making(parent, name);
        self.report_writes(ino)?;
        let linked = self.callers.client(who).link(At::ino(ino), false, self.at(parent, name));
        self.reports.changed(ino);
        let attr = self.named(who, &[parent], linked)?;
        Ok(self.tell_entry(&asked, parent, attr))
    }

    pub(crate) fn access(&self, who: Process, node: u64, mask: u32) -> Outcome<()> {
        Ok(self.callers.client(who).access(At::ino(self.ino(node)), false, mask)?)
    }

    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let ino = self.ino(node);
        if self.coherence.let_go(ino, lookups) {
            self.notes.lock(&ino).remove(&ino);
            self.blocks.forget(ino);
        }
    }

    /// The result of an operation on names in these directories.
    pub(super) fn named<T>(&self, who: Process, dirs: &[u64], result: weft_client::Result<T>) -> Outcome<T> {
        result.map_err(|error| self.in_directories(who, dirs, error.into()))
    }

    /// That a directory is gone the kernel hears first as ESTALE, upon which it walks the path once more: there may be another one
    /// by now. A program that has the directory itself hears what a local file system says of a directory that was
    /// removed.
    fn in_directories(&self, who: Process, dirs: &[u64], errno: Errno) -> Errno {
        if errno.0 != libc::ESTALE {
            return errno;
        }
        let mut gone = self.gone.lock(&who.pid);
        let last = gone.get(&who.pid).copied();
        if last.is_some_and(|last| dirs.contains(&last)) {
            return Errno(libc::ENOENT);
        }
        if gone.len() >= GONE_MAX {
            gone.clear();
        }
        gone.insert(who.pid, dirs[0]);
        errno
    }

    pub(super) fn at<'a>(&self, parent: u64, name: &'a OsStr) -> At<'a> {
        At::child(self.ino(parent), name.as_bytes())
    }
}

fn place(dir: u64, name: &OsStr) -> Place {
    (dir, name.as_bytes().into())
}

/// A name is being made in a directory, whose attributes are not known any more unless the reply has them.
pub(super) struct Making<'a> {
    _changing: Changing<'a>,
    coherence: &'a Coherence,
    dir: u64,
    pub(super) followed: Cell<bool>,
}

impl Making<'_> {
    /// It was made; `parent`: the directory's attributes then.
    pub(super) fn made(&self, asked: &Asked, parent: &Attr) {
        self.coherence.note_directory(asked, parent);
        self.followed.set(true);
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if !self.followed.get() {
            self.coherence.directory_changed(self.dir);
        }
    }
}
