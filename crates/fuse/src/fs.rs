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

use crate::blocks::Blocks;
use crate::callers::{Callers, Requester};
use crate::closing::Closing;
use crate::coherence::{Asked, Changing, Coherence, LEASE};
use crate::directory::{AFTER_DOTS, DirItem, DirStream};
use crate::identity::Identities;
use crate::kernel::Answer;
use crate::locks::Lockers;
use crate::notify::Notes;
use crate::options::CacheMode;
use crate::read_ahead::{Epochs, ReadAhead, Reader};
use crate::read_buffer::ReadBuffers;
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
        crate::log::server_trouble(errno, &error);
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
    writers: Sharded<u64, Vec<Arc<OpenFile>>>,
    directories: Sharded<u64, Arc<Mutex<DirStream>>>,
    notes: Sharded<u64, Note>,
    coherence: Arc<Coherence>,
    closing: Arc<Closing>,
    last_replies: LastReplies,
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

    /// Reports what this mount wrote to `ino`; returns the attributes after it, if anything was reported.
    fn report_writes(&self, ino: u64) -> Outcome<Option<Attr>> {
        let writers = self.writers.lock(&ino).get(&ino).cloned().unwrap_or_default();
        let mut attr = None;
        for writer in writers {
            attr = writer.file.flush()?.or(attr);
        }
        Ok(attr)
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
                let attr = self.with_own_writes(&client, attr)?;
                Ok(Found::Inode(self.tell_entry(&asked, parent, attr)))
            }
            Err(error) if error.errno() == libc::ENOENT => {
                self.coherence.asked_in(&asked, dir);
                nothing(LEASE)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `attr`, or newer ones where this mount has written to the file and not reported it.
    fn with_own_writes(&self, client: &Client, attr: Attr) -> Outcome<Attr> {
        if attr.kind != FileKind::File || !self.writers.lock(&attr.ino).contains_key(&attr.ino) {
            return Ok(attr);
        }
        match self.report_writes(attr.ino)?.unwrap_or(attr) {
            attr if attr.size_live => Ok(client.getattr(attr.ino)?),
            attr => Ok(attr),
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
            let writers = self.writers.lock(&ino).get(&ino).cloned().unwrap_or_default();
            writers.iter().for_each(|writer| writer.set_id.store(mode & SET_ID_BITS != 0, Ordering::Relaxed));
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
            return Ok(self.tell(&asked, client.getattr(ino)?));
        }
        // Where the kernel does not check, the server has to.
        let unchanged = self.last_replies.unchanged(ino, &wanted).filter(|_| identities.kernel_checks());
        if let Some((asked, attr)) = unchanged.filter(|(asked, _)| !self.coherence.valid(asked).is_zero()) {
            return Ok(self.tell(&asked, attr));
        }
        self.last_replies.forget(ino);
        let attr = client.report_and_setattr(ino, &wanted)?;
        self.last_replies.note(at, &asked, &attr);
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
        match self.callers.client(who).unlink_in(self.at(parent, name))? {
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
        let attr = self.callers.client(who).link(At::ino(ino), false, self.at(parent, name))?;
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

/// Open files.
impl WeftFs {
    pub(crate) fn create(
        &self,
        who: Requester,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Outcome<(Told, Opened)> {
        let options = open_options(flags).create(true).mode(mode & NEW_MODE);
        let options = if flags & libc::O_EXCL != 0 { options.create_new(true) } else { options };
        let (making, asked) = self.making(parent, name);
        let file = self.callers.client(who).open(self.at(parent, name), &options)?;
        let attr = file.attr();
        match file.parent() {
            Some(parent) => making.made(&asked, parent),
            None => making.followed.set(!file.created()),
        }
        if file.created() {
            self.notes.lock(&attr.ino).entry(attr.ino).or_default().created = Some(Instant::now());
        }
        let opened = self.add_file(file, flags);
        self.truncated_at_open(who, &opened, flags)?;
        Ok((self.tell_entry(&asked, parent, attr), opened))
    }

    pub(crate) fn open(&self, who: Requester, node: u64, flags: i32) -> Outcome<Opened> {
        let file = self.callers.client(who).open(At::ino(self.ino(node)), &open_options(flags))?;
        let opened = self.add_file(file, flags);
        self.truncated_at_open(who, &opened, flags)?;
        Ok(opened)
    }

    /// Who truncates without being root ends set-id bits, as by a write.
    fn truncated_at_open(&self, who: Requester, opened: &Opened, flags: i32) -> Outcome<()> {
        if flags & libc::O_TRUNC == 0 || self.callers.identities().is_root(who) {
            return Ok(());
        }
        let open = self.file(opened.handle)?;
        self.clear_set_id(&open)
    }

    fn add_file(&self, file: File, flags: i32) -> Opened {
        let attr = file.attr();
        let append = flags & libc::O_APPEND != 0;
        let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let set_id = AtomicBool::new(attr.mode & SET_ID_BITS != 0);
        if flags & libc::O_TRUNC != 0 {
            self.changed(attr.ino);
        }
        let streamed = self.is_streamed(&attr, flags);
        let ahead = streamed.then(ReadAhead::default);
        let open = Arc::new(OpenFile {
            ino: attr.ino,
            lockers: Lockers::default(),
            file,
            append,
            writable,
            ahead,
            set_id,
        });
        if writable {
            self.writers.lock(&attr.ino).entry(attr.ino).or_default().push(open.clone());
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.files.lock(&handle).insert(handle, open);
        let keep_cache = self.pages_still_good(&attr) && flags & libc::O_TRUNC == 0;
        // Pages that a write leaves in the cache are dropped at the next open, as the file's time has changed: who only writes
        // is quicker without them. And the kernel would compute the position of an appending write from a size that
        // may be old; without the page cache the server's position is the only one.
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        let direct_io =
            self.behaviour.cache == CacheMode::Never || streamed || write_only || (append && writable);
        Opened { handle, direct_io, keep_cache }
    }

    /// Whether a file that is being opened is read past the page cache, with reading ahead here: large, only read, and no
    /// program, for what is mapped and mapped again is better kept.
    fn is_streamed(&self, attr: &Attr, flags: i32) -> bool {
        self.behaviour.cache == CacheMode::Auto
            && attr.size >= self.behaviour.stream_bytes_min
            && !self.behaviour.attr_timeout.is_zero()
            && flags & (libc::O_ACCMODE | libc::O_DIRECT) == libc::O_RDONLY
            && attr.mode & EXECUTE_BITS == 0
    }

    /// Compares the attributes of a file that is being opened with those of the open before.
    fn pages_still_good(&self, attr: &Attr) -> bool {
        let now = (!attr.size_live).then(|| (attr.size, attr.mtime.clone(), attr.ctime.clone()));
        let mut shard = self.notes.lock(&attr.ino);
        let note = shard.entry(attr.ino).or_default();
        let same_pages = now.is_some() && note.pages == now;
        note.pages = now;
        drop(shard);
        self.coherence.opened(attr.ino);
        same_pages
    }

    /// Has the kernel ask for the attributes of `ino` again.
    fn invalidate(&self, ino: u64) {
        self.coherence.attributes_changed(ino);
    }

    /// Has the kernel forget what it knows of `ino`, for others may have changed it.
    pub(crate) fn forget_contents(&self, ino: u64) {
        self.changed(ino);
        self.coherence.contents_changed(ino);
    }

    /// The connection to the servers.
    pub(crate) fn client(&self) -> &Client {
        self.callers.root()
    }

    /// See [`Client::keep_locks`].
    pub(crate) fn look_after_locks(&self) {
        // Whoever uses the mount is told if the server stays away.
        let _ = self.callers.root().keep_locks();
    }

    /// Reads up to `bytes`, and answers with them.
    pub(crate) fn read(&self, handle: u64, offset: u64, bytes: usize, answer: impl Answer) {
        let open = match self.file(handle) {
            Ok(open) => open,
            Err(errno) => return answer.send(Err(errno)),
        };
        let reader = Reader {
            client: self.callers.root(),
            buffers: &self.read_buffers,
            epochs: &self.epochs,
            file: &open.file,
            valid: self.behaviour.attr_timeout.min(READ_AHEAD_VALID),
        };
        match &open.ahead {
            Some(ahead) => ahead.read(&reader, offset, bytes, answer),
            None => reader.read(offset, bytes, answer),
        }
    }

    /// Writes all of `data`; `clear_set_id` when the writer must lose the file's set-id bits.
    pub(crate) fn write(&self, handle: u64, offset: u64, data: &[u8], clear_set_id: bool) -> Outcome<usize> {
        let open = self.file(handle)?;
        if clear_set_id {
            self.clear_set_id(&open)?;
        }
        let written = match open.append {
            true => open.file.append(data).map(|_| data.len()),
            false => open.file.write_at(data, offset),
        };
        self.changed(open.ino);
        Ok(written?)
    }

    fn clear_set_id(&self, open: &OpenFile) -> Outcome<()> {
        if !open.set_id.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let root = self.callers.root();
        let mode = root.getattr(open.ino)?.mode;
        // A set-group-id bit without execution by the group means something else (mandatory locking), and stays.
        let group_bit = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
        let cleared = mode & !(libc::S_ISUID | group_bit);
        if cleared != mode {
            root.setattr(At::ino(open.ino), false, &SetAttr { mode: Some(cleared), ..SetAttr::default() })?;
            self.invalidate(open.ino);
        }
        Ok(())
    }

    /// At every close of a descriptor: what was written is known to the metadata server when close returns.
    pub(crate) fn flush(&self, handle: u64) -> Outcome<()> {
        let open = self.file(handle)?;
        if open.writable {
            open.file.flush()?;
        }
        Ok(())
    }

    /// At the last close.
    pub(crate) fn release(&self, handle: u64) -> Outcome<()> {
        let Some(open) = self.files.lock(&handle).remove(&handle) else { return Err(Errno(libc::EBADF)) };
        open.lockers.release(&open.file);
        if open.writable {
            let mut shard = self.writers.lock(&open.ino);
            if let Some(writers) = shard.get_mut(&open.ino) {
                writers.retain(|writer| !Arc::ptr_eq(writer, &open));
                if writers.is_empty() {
                    shard.remove(&open.ino);
                }
            }
        }
        // Somebody may be reporting for it right now; then it closes when they are done.
        match Arc::into_inner(open) {
            Some(open) => Ok(self.closing.close(open.file)?),
            None => Ok(()),
        }
    }

    pub(crate) fn fsync(&self, handle: u64) -> Outcome<()> {
        let open = self.file(handle)?;
        open.file.sync_data()?;
        Ok(())
    }

    pub(crate) fn fallocate(
        &self,
        who: Requester,
        handle: u64,
        offset: u64,
        bytes: u64,
        mode: i32,
    ) -> Outcome<()> {
        let open = self.file(handle)?;
        self.changed_by(who, &open)?;
        let changed = open.file.fallocate(mode, offset, bytes);
        self.blocks.reserved(open.ino);
        self.changed(open.ino);
        Ok(changed?)
    }

    /// Where data, or a hole, is next.
    pub(crate) fn seek(&self, handle: u64, offset: u64, whence: i32) -> Outcome<u64> {
        let open = self.file(handle)?;
        let found = match whence {
            libc::SEEK_DATA => open.file.seek_data(offset)?,
            libc::SEEK_HOLE => open.file.seek_hole(offset)?,
            _ => return Err(Errno(libc::EINVAL)),
        };
        found.ok_or(Errno(libc::ENXIO))
    }

    pub(crate) fn copy_range(
        &self,
        who: Requester,
        (from, from_offset): (u64, u64),
        (to, to_offset): (u64, u64),
        bytes: u64,
    ) -> Outcome<u64> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        self.changed_by(who, &to)?;
        let copied = self.callers.root().copy_range(&from.file, from_offset, &to.file, to_offset, bytes);
        self.blocks.reserved(to.ino);
        self.changed(to.ino);
        Ok(copied?)
    }

    /// Who changes a file otherwise than by a write, without being root, ends set-id bits as by one.
    fn changed_by(&self, who: Requester, open: &OpenFile) -> Outcome<()> {
        if self.callers.identities().is_root(who) { Ok(()) } else { self.clear_set_id(open) }
    }

    pub(crate) fn sync_all(&self) -> Outcome<()> {
        Ok(self.callers.root().sync_all()?)
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
        stream.emit(|mut item| {
            let ino = item.node;
            // With attributes it counts as if it had been looked up, if there is still room for it.
            let counts = with_attrs && item.position > AFTER_DOTS;
            if counts {
                self.coherence.looked_up(ino);
            }
            if let Some(attr) = item.attr {
                let attr = self.with_own_writes(client, attr.clone());
                let entry_valid = || self.coherence.believe_name(&asked, dir, self.behaviour.entry_timeout);
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

fn open_options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    // Linux lets also a file be truncated that is opened for reading only; it takes the permission to write.
    let truncates = flags & libc::O_TRUNC != 0;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY || truncates)
        .truncate(truncates)
        .sync(flags & (libc::O_SYNC | libc::O_DSYNC) != 0)
}
