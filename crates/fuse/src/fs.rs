//! The file system as a kernel interface sees it, without any kernel interface in it.
//!
//! ```text
//!   kernel ──► kernel/ (decodes, replies) ──► WeftFs (this) ──► weft_client ──► servers
//!                       ▲                        │
//!                       └────── Coherence ◄──────┘   "forget the attributes of inode 7"
//! ```
//!
//! **Inodes.** A node number is Weft's inode number, so nothing has to be looked up or kept for it. Only the root of
//! the mount differs: the kernel calls it 1, whichever directory of the cluster it is.
//!
//! **Permissions** are checked twice: by the kernel (`default_permissions`) with the attributes it has cached, so that a
//! cached name or a cached page gives nothing away to a user who may not have it; and by the metadata server with
//! the caller's user, group and supplementary groups, which decides.
//!
//! **Caching.** Attributes, names and names that are missing are believed while the servers tell of changes by others
//! (`coherence.rs`), and no longer than the timeouts of the mount. The size of a file that somebody else may be writing is not
//! believed at all. An `open` always asks the metadata server: if size or modification time are not what they were at the open
//! before, or somebody may be writing, the cached pages of the file go. So whoever looks after another client has closed a file
//! sees all of it.
//!
//! **Large files** that are only read go past the page cache, as filling it is most of the kernel's work then; what it would
//! have read ahead is read ahead here (`read_ahead.rs`), and believed for a second at most.
//!
//! **Writes** go straight to the I/O servers (no write-back cache). What this mount has written is reported to the
//! metadata server before attributes of that file are read or set, so `stat` after `write` is right at once, and a
//! modification time that was set is not overwritten when the file is closed. When the metadata server hears of the last close,
//! after all that, is `closing.rs`'s business.

mod open;

use crate::blocks::Blocks;
use crate::callers::{Callers, Requester};
use crate::closing::Closing;
use crate::coherence::{Asked, Changing, Coherence, LEASE};
use crate::directory::{AFTER_DOTS, DirItem, DirStream};
use crate::identity::Identities;
use crate::locks::Lockers;
use crate::notify::Notes;
use crate::options::CacheMode;
use crate::read_ahead::{Epochs, ReadAhead};
use crate::read_buffer::ReadBuffers;
use crate::refills::Refills;
use crate::reports::Reports;
use crate::sharded::Sharded;
use crate::unchanged::LastReplies;
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weft_client::{At, Client, File, OpenOptions, SetAttr, SetTime, c};
use weft_wire::messages::{Attr, FileKind, Time, UMASK_SHIFT};

/// The kernel's number for the root of a mount; FUSE fixes it.
pub(crate) const ROOT_NODE: u64 = 1;
/// What the servers are told of the mode of something new: also the umask, for they know whether a default list counts instead.
const NEW_MODE: u32 = 0o7777 | 0o777 << UMASK_SHIFT;
pub(crate) const SET_ID_BITS: u32 = libc::S_ISUID | libc::S_ISGID;
/// How long what was read ahead is believed: a file may be written by somebody who has had it open all the time.
const READ_AHEAD_VALID: Duration = Duration::from_secs(1);
const EXECUTE_BITS: u32 = libc::S_IXUSR | libc::S_IXGRP | libc::S_IXOTH;

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

/// An inode as told to the kernel.
pub(crate) struct Told {
    /// Its attributes, with the kernel's number for it.
    pub(crate) attr: Attr,
    /// The space that it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
    /// How long they may be believed.
    pub(crate) attr_valid: Duration,
    /// How long the name may be believed.
    pub(crate) entry_valid: Duration,
}

/// What a name leads to.
pub(crate) enum Found {
    /// An inode.
    Inode(Told),
    /// Nothing, for so long.
    Nothing { entry_valid: Duration },
}

/// An open file as told to the kernel.
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

/// What the file system is told once.
pub(crate) struct Behaviour {
    pub(crate) cache: CacheMode,
    pub(crate) stream_bytes_min: u64,
    pub(crate) attr_timeout: Duration,
    pub(crate) entry_timeout: Duration,
    pub(crate) identities: Identities,
}

pub(crate) struct OpenFile {
    pub(crate) file: File,
    pub(crate) lockers: Lockers,
    ino: u64,
    append: bool,
    writable: bool,
    /// Where the page cache is left out and reading ahead is allowed.
    ahead: Option<ReadAhead>,
    /// Whether set-id bits may have to be cleared by a write.
    set_id: AtomicBool,
}

/// Who may write a file.
#[derive(Default)]
struct Writers {
    open: Vec<Arc<OpenFile>>,
    refills: Refills,
}

/// What is remembered of a file that the kernel knows.
#[derive(Default)]
struct Note {
    /// Size, modification and status-change time when the pages that the kernel may hold were read first.
    pages: Option<(u64, Time, Time)>,
    /// When this mount created it.
    created: Option<Instant>,
}

/// A mounted Weft file system.
pub(crate) struct WeftFs {
    callers: Callers,
    root_ino: u64,
    behaviour: Behaviour,
    next_handle: AtomicU64,
    files: Sharded<u64, Arc<OpenFile>>,
    writers: Sharded<u64, Writers>,
    directories: Sharded<u64, Arc<Mutex<DirStream>>>,
    notes: Sharded<u64, Note>,
    coherence: Arc<Coherence>,
    closing: Arc<Closing>,
    last_replies: LastReplies,
    reports: Reports,
    read_buffers: Arc<ReadBuffers>,
    epochs: Epochs,
    blocks: Blocks,
}

impl WeftFs {
    /// A file system whose root is the directory `root_ino` of the cluster.
    pub(crate) fn new(client: &Client, root_ino: u64, behaviour: Behaviour) -> WeftFs {
        let believe_names = !behaviour.entry_timeout.is_zero();
        WeftFs {
            callers: Callers::new(client, behaviour.identities.clone()),
            root_ino,
            behaviour,
            next_handle: AtomicU64::new(1),
            files: Sharded::default(),
            writers: Sharded::default(),
            directories: Sharded::default(),
            notes: Sharded::default(),
            coherence: Arc::new(Coherence::new(client, root_ino, ROOT_NODE, believe_names)),
            closing: Closing::new(client),
            last_replies: LastReplies::default(),
            reports: Reports::default(),
            read_buffers: Arc::default(),
            epochs: Epochs::default(),
            blocks: Blocks::default(),
        }
    }

    /// Begins to hear of changes by others, and to tell the kernel, and to send the closes that wait; before the first request.
    pub(crate) fn watch(self: &Arc<Self>, notes: Notes) -> std::io::Result<()> {
        let this = Arc::downgrade(self);
        let on_change = move |changed: Option<(u64, bool)>| {
            let Some(this) = this.upgrade() else { return };
            let Some((ino, data)) = changed else { return this.forget_all() };
            if let Some(note) = this.notes.lock(&ino).get_mut(&ino) {
                note.created = None;
            }
            this.last_replies.forget(ino);
            if data {
                this.epochs.changed(ino);
            }
        };
        self.closing.start()?;
        self.coherence.start(notes, Box::new(on_change))
    }

    fn forget_all(&self) {
        self.last_replies.forget_all();
        for ino in self.notes.keys() {
            if let Some(note) = self.notes.lock(&ino).get_mut(&ino) {
                note.created = None;
            }
            self.epochs.changed(ino);
        }
    }

    /// Reports and closes every open file, when the mount ends before its users do, and ends the watch.
    pub(crate) fn close_all(&self) {
        self.coherence.end();
        self.writers.drain();
        for open in self.files.drain() {
            if let Some(open) = Arc::into_inner(open) {
                let _ = open.file.close();
            }
        }
        self.closing.end();
    }

    fn ino(&self, node: u64) -> u64 {
        if node == ROOT_NODE { self.root_ino } else { node }
    }

    fn node(&self, ino: u64) -> u64 {
        if ino == self.root_ino { ROOT_NODE } else { ino }
    }

    /// Attributes for the kernel, as the reply to `asked` had them.
    fn tell(&self, asked: &Asked, attr: Attr) -> Told {
        if attr.kind == FileKind::Directory {
            self.coherence.note_directory(asked, &attr);
        }
        self.told(asked, attr, LEASE)
    }

    /// Attributes as this machine has them, to be believed for no longer than `most`.
    fn told(&self, asked: &Asked, mut attr: Attr, most: Duration) -> Told {
        let blocks = self.blocks.of(self.callers.root(), &attr);
        let attr_valid = self.coherence.believe(asked, &attr, most.min(self.behaviour.attr_timeout));
        attr.ino = self.node(attr.ino);
        let identities = self.callers.identities();
        (attr.uid, attr.gid) = (identities.users.here(attr.uid), identities.groups.here(attr.gid));
        Told { attr, blocks, attr_valid, entry_valid: Duration::ZERO }
    }

    /// As [`WeftFs::tell`], of what a name leads to: the kernel counts how often it has been told of an inode.
    fn tell_entry(&self, asked: &Asked, parent: u64, attr: Attr) -> Told {
        let dir = self.ino(parent);
        self.coherence.looked_up(attr.ino);
        self.coherence.asked_in(asked, dir);
        let told = self.tell(asked, attr);
        let entry_valid = self.coherence.believe_name(asked, dir, self.behaviour.entry_timeout);
        Told { entry_valid, ..told }
    }

    pub(crate) fn file(&self, handle: u64) -> Outcome<Arc<OpenFile>> {
        self.files.lock(&handle).get(&handle).cloned().ok_or(Errno(libc::EBADF))
    }

    /// Reports what this mount is known to have written to `ino`, whichever servers are gone; returns the attributes after it, if anything
    /// was reported.
    fn report_writes(&self, ino: u64) -> Outcome<Option<Attr>> {
        let mut attr = None;
        for writer in self.writers_of(ino) {
            attr = self.reported(&writer, File::flush_known)?.or(attr);
        }
        Ok(attr)
    }

    /// Reports what was written through one open file. An error also where it is not known how far a write came that failed.
    fn report_of(&self, writer: &OpenFile) -> Outcome<Option<Attr>> {
        self.reported(writer, File::flush)
    }

    fn reported(
        &self,
        writer: &OpenFile,
        report: fn(&File) -> weft_client::Result<Option<Attr>>,
    ) -> Outcome<Option<Attr>> {
        let _alone = self.reports.alone(writer.ino);
        let reported = report(&writer.file);
        if !matches!(reported, Ok(None)) {
            self.reports.changed(writer.ino);
        }
        Ok(reported?)
    }

    fn writers_of(&self, ino: u64) -> Vec<Arc<OpenFile>> {
        self.writers.lock(&ino).get(&ino).map(|writers| writers.open.clone()).unwrap_or_default()
    }
}

/// Names and attributes.
impl WeftFs {
    pub(crate) fn lookup(&self, who: Requester, parent: u64, name: &OsStr) -> Outcome<Found> {
        let dir = self.ino(parent);
        let asked = self.coherence.ask();
        let nothing = |left: Duration| {
            let most = left.min(self.behaviour.entry_timeout);
            Ok(Found::Nothing { entry_valid: self.coherence.believe_name(&asked, dir, most) })
        };
        if let Some(left) = self.coherence.is_missing(&asked, dir, name.as_bytes()) {
            return nothing(left);
        }
        let client = self.callers.client(who);
        match client.stat(self.at(parent, name), false) {
            Ok(attr) => {
                let attr = self.with_own_changes(&client, &asked, attr)?;
                Ok(Found::Inode(self.tell_entry(&asked, parent, attr)))
            }
            Err(error) if error.errno() == libc::ENOENT => {
                self.coherence.asked_in(&asked, dir);
                nothing(LEASE)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `attr` as the reply to `asked` had them, or newer ones where this mount has written to the file and not reported it, or
    /// has changed something meanwhile.
    fn with_own_changes(&self, client: &Client, asked: &Asked, attr: Attr) -> Outcome<Attr> {
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

    pub(crate) fn getattr(&self, who: Requester, node: u64) -> Outcome<Told> {
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
            Err(errno) => {
                self.removed_directory(&asked, ino).filter(|_| errno.0 == libc::ESTALE).ok_or(errno)
            }
        }
    }

    /// A directory that is in use here, as working directory or open, while the servers have it no more: as it was last, with
    /// no links.
    fn removed_directory(&self, asked: &Asked, ino: u64) -> Option<Told> {
        let last = self.coherence.last_of_directory(ino)?;
        Some(self.told(asked, Attr { nlink: 0, size: 0, ..last }, LEASE))
    }

    pub(crate) fn setattr(
        &self,
        who: Requester,
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
        if let Some(mode) = changes.mode {
            let set_id = mode & SET_ID_BITS != 0;
            self.writers_of(ino).iter().for_each(|writer| writer.set_id.store(set_id, Ordering::Relaxed));
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
        drop(alone);
        let attr = changed?;
        self.last_replies.note(at, &asked, &attr);
        self.coherence.attributes_set(ino);
        Ok(self.tell(&asked, attr))
    }

    /// The contents of a file, or what belongs to it, are another now.
    fn changed(&self, ino: u64) {
        self.epochs.changed(ino);
        self.last_replies.forget(ino);
    }

    fn truncate(
        &self,
        client: &Client,
        who: Requester,
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

    pub(crate) fn readlink(&self, who: Requester, node: u64) -> Outcome<Vec<u8>> {
        Ok(self.callers.client(who).readlink(At::ino(self.ino(node)))?)
    }

    pub(crate) fn mknod(
        &self,
        who: Requester,
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
            let file = client.open(at, &options)?;
            let attr = file.attr();
            self.closing.close(file)?;
            return Ok(self.tell_entry(&asked, parent, attr));
        };
        Ok(self.tell_entry(&asked, parent, client.mknod(at, kind, mode & NEW_MODE, rdev)?))
    }

    pub(crate) fn mkdir(&self, who: Requester, parent: u64, name: &OsStr, mode: u32) -> Outcome<Told> {
        let (_changing, asked) = self.making(parent, name);
        let attr = self.callers.client(who).mkdir(self.at(parent, name), mode & NEW_MODE)?;
        self.coherence.made_directory(&asked, &attr);
        Ok(self.tell_entry(&asked, parent, attr))
    }

    pub(crate) fn unlink(&self, who: Requester, parent: u64, name: &OsStr) -> Outcome<()> {
        self.last_replies.forget_all();
        let dir = self.ino(parent);
        let _changing = self.coherence.changing(dir);
        let asked = self.coherence.ask();
        let removed = self.callers.client(who).unlink_in(self.at(parent, name));
        self.reports.changed(dir);
        match removed? {
            Some(parent) => self.coherence.note_directory(&asked, &parent),
            None => self.coherence.directory_changed(dir),
        }
        self.coherence.removed(dir, name.as_bytes());
        Ok(())
    }

    pub(crate) fn rmdir(&self, who: Requester, parent: u64, name: &OsStr) -> Outcome<()> {
        self.last_replies.forget_all();
        let dir = self.ino(parent);
        let _changing = self.coherence.changing(dir);
        let removed = self.callers.client(who).rmdir(self.at(parent, name));
        self.reports.changed(dir);
        self.coherence.directory_changed(dir);
        self.coherence.directory_removed();
        removed?;
        self.coherence.removed(dir, name.as_bytes());
        Ok(())
    }

    pub(crate) fn symlink(&self, who: Requester, parent: u64, name: &OsStr, target: &[u8]) -> Outcome<Told> {
        let (_changing, asked) = self.making(parent, name);
        let attr = self.callers.client(who).symlink(self.at(parent, name), target)?;
        Ok(self.tell_entry(&asked, parent, attr))
    }

    /// To be called before a name is made in a directory.
    fn making(&self, parent: u64, name: &OsStr) -> (Making<'_>, Asked) {
        let dir = self.ino(parent);
        self.coherence.adding(dir, name.as_bytes());
        let followed = Cell::new(false);
        let making =
            Making { _changing: self.coherence.changing(dir), coherence: &self.coherence, dir, followed };
        (making, self.coherence.ask())
    }

    pub(crate) fn rename(
        &self,
        who: Requester,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
    ) -> Outcome<()> {
        self.last_replies.forget_all();
        let (from, to) = (self.at(parent, name), self.at(new_parent, new_name));
        let (_old, _new) = (self.making(parent, name), self.making(new_parent, new_name));
        let renamed = self.callers.client(who).rename(from, to, flags);
        self.coherence.directory_removed();
        [parent, new_parent].into_iter().for_each(|dir| self.reports.changed(self.ino(dir)));
        renamed?;
        if flags & weft_wire::messages::rename_flags::EXCHANGE == 0 {
            self.coherence.removed(self.ino(parent), name.as_bytes());
        }
        Ok(())
    }

    pub(crate) fn link(&self, who: Requester, node: u64, parent: u64, name: &OsStr) -> Outcome<Told> {
        self.last_replies.forget_all();
        let ino = self.ino(node);
        let (_changing, asked) = self.making(parent, name);
        self.report_writes(ino)?;
        let linked = self.callers.client(who).link(At::ino(ino), false, self.at(parent, name));
        self.reports.changed(ino);
        let attr = linked?;
        Ok(self.tell_entry(&asked, parent, attr))
    }

    pub(crate) fn access(&self, who: Requester, node: u64, mask: u32) -> Outcome<()> {
        Ok(self.callers.client(who).access(At::ino(self.ino(node)), false, mask)?)
    }

    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let ino = self.ino(node);
        if self.coherence.let_go(ino, lookups) {
            self.notes.lock(&ino).remove(&ino);
            self.blocks.forget(ino);
        }
    }

    fn at<'a>(&self, parent: u64, name: &'a OsStr) -> At<'a> {
        At::child(self.ino(parent), name.as_bytes())
    }
}

/// Directories.
impl WeftFs {
    /// Whether an open directory may be listed is decided here; nobody asks later.
    pub(crate) fn open_directory(&self, who: Requester, node: u64) -> Outcome<u64> {
        if who.uid != 0 {
            self.callers.client(who).access(At::ino(self.ino(node)), false, libc::R_OK as u32)?;
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Mutex::new(DirStream::new(self.ino(node))));
        self.directories.lock(&handle).insert(handle, stream);
        Ok(handle)
    }

    /// Passes entries from `position` on to `emit`, until it says that it is full (and did not take the last one).
    pub(crate) fn read_directory(
        &self,
        handle: u64,
        position: u64,
        with_attrs: bool,
        mut emit: impl FnMut(DirItem<'_>) -> bool,
    ) -> Outcome<()> {
        let stream = self.directories.lock(&handle).get(&handle).cloned().ok_or(Errno(libc::EBADF))?;
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let client = self.callers.root();
        stream.seek(client, &self.coherence, position, with_attrs)?;
        let (dir, asked) = (stream.ino(), stream.asked().unwrap_or_else(|| self.coherence.ask()));
        // Some of these names may be gone: the kernel asks again for those that it is led to use.
        let names_hold = !self.reports.changed_since(dir, asked.at());
        let name_valid = if names_hold { self.behaviour.entry_timeout } else { Duration::ZERO };
        stream.emit(|mut item| {
            let ino = item.node;
            // With attributes it counts as if it had been looked up, if there is still room for it.
            let counts = with_attrs && item.position > AFTER_DOTS;
            if counts {
                self.coherence.looked_up(ino);
            }
            if let Some(attr) = item.attr {
                let attr = self.with_own_changes(client, &asked, attr.clone());
                let entry_valid = || self.coherence.believe_name(&asked, dir, name_valid);
                let told = |attr| Told { entry_valid: entry_valid(), ..self.tell(&asked, attr) };
                item.told = attr.map(told).ok();
            }
            item.node = self.node(ino);
            let full = emit(item);
            if counts && full {
                self.coherence.let_go(ino, 1);
            }
            full
        });
        Ok(())
    }

    pub(crate) fn release_directory(&self, handle: u64) {
        self.directories.lock(&handle).remove(&handle);
    }
}

/// Extended attributes and the file system as a whole.
impl WeftFs {
    pub(crate) fn getxattr(&self, who: Requester, node: u64, name: &OsStr) -> Outcome<Vec<u8>> {
        let ino = self.ino(node);
        if name == "security.capability" && self.is_newborn(ino) {
            return Err(Errno(libc::ENODATA));
        }
        Ok(self.callers.client(who).get_xattr(ino, name.as_bytes())?)
    }

    pub(crate) fn setxattr(
        &self,
        who: Requester,
        node: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Outcome<()> {
        let ino = self.ino(node);
        self.last_replies.forget(ino);
        if let Some(note) = self.notes.lock(&ino).get_mut(&ino) {
            note.created = None;
        }
        let set = self.callers.client(who).set_xattr(ino, name.as_bytes(), value, flags as u32);
        self.coherence.directory_changed(ino);
        Ok(set?)
    }

    pub(crate) fn listxattr(&self, who: Requester, node: u64) -> Outcome<Vec<u8>> {
        let names = self.callers.client(who).list_xattrs(self.ino(node))?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(crate) fn removexattr(&self, who: Requester, node: u64, name: &OsStr) -> Outcome<()> {
        let ino = self.ino(node);
        self.last_replies.forget(ino);
        let removed = self.callers.client(who).remove_xattr(ino, name.as_bytes());
        self.coherence.directory_changed(ino);
        Ok(removed?)
    }

    /// A file that was created here a moment ago has no attributes but those set through this mount. The kernel asks
    /// for its capabilities at the first write: a round trip saved for every new file.
    fn is_newborn(&self, ino: u64) -> bool {
        let created = self.notes.lock(&ino).get(&ino).and_then(|note| note.created);
        let created = created.filter(|_| !self.coherence.valid(&self.coherence.ask()).is_zero());
        created.is_some_and(|created| created.elapsed() < self.behaviour.attr_timeout.min(LEASE))
    }

    pub(crate) fn statfs(&self) -> Outcome<weft_client::StatFs> {
        Ok(self.callers.root().statfs()?)
    }
}

/// A name is being made in a directory, whose attributes are not known any more unless the reply has them.
struct Making<'a> {
    _changing: Changing<'a>,
    coherence: &'a Coherence,
    dir: u64,
    followed: Cell<bool>,
}

impl Making<'_> {
    /// It was made; `parent`: the directory's attributes then.
    fn made(&self, asked: &Asked, parent: &Attr) {
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
