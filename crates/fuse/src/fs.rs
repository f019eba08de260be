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
//! **Caching.** Attributes, names and names that are missing are cached while the servers tell of changes by others
//! (`coherence.rs`), and no longer than the timeouts of the mount. The size of a file that somebody else may be writing is not
//! cached at all. An `open` always asks the metadata server: if size or modification time are not what they were at the open
//! before, or somebody may be writing, the cached pages of the file go. So whoever looks after another client has closed a file
//! sees all of it.
//!
//! **Large files** that are only read go past the page cache, as filling it is most of the kernel's work then; what it would
//! have read ahead is read ahead here (`read_ahead.rs`), and kept for a second at most.
//!
//! **Writes** go straight to the I/O servers (no write-back cache). What this mount has written is reported to the
//! metadata server before attributes of that file are read or set, so `stat` after `write` is right at once, and a
//! modification time that was set is not overwritten when the file is closed. When the metadata server hears of the last close,
//! after all that, is `closing.rs`'s business.

mod flags;
mod listing;
mod names;
mod open;

use crate::closing::Closing;
use crate::coherence::Coherence;
use crate::directory::DirStream;
use crate::locks::Lockers;
use crate::lookups::Lookups;
use crate::notify::Notes;
use crate::options::CacheMode;
use crate::outcome::{Errno, Outcome, Told};
use crate::read_ahead::{Epochs, ReadAhead};
use crate::read_buffer::ReadBuffers;
use crate::refills::Refills;
use crate::set_id::SetIdBits;
use crate::unchanged::LastReplies;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weft_client::{Client, File};
use weft_gateway::{Asked, Blocks, Callers, Changes, Identities, LEASE, Process, Reports, Sharded};
use weft_wire::messages::{Attr, CAPABILITY_XATTR, FileKind, Time, UMASK_SHIFT};

/// The kernel's number for the root of a mount; FUSE fixes it.
pub(crate) const ROOT_NODE: u64 = 1;
/// What the servers are told of the mode of something new: also the umask, for they know whether a default list counts instead.
const NEW_MODE: u32 = 0o7777 | 0o777 << UMASK_SHIFT;
/// How long what was read ahead is valid: a file may be written by somebody who has had it open all the time.
const READ_AHEAD_VALID: Duration = Duration::from_secs(1);
const EXECUTE_BITS: u32 = libc::S_IXUSR | libc::S_IXGRP | libc::S_IXOTH;

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
    /// Opened with `O_APPEND`, and not yet known to be a file that may be written elsewhere than at its end.
    only_appends: AtomicBool,
    /// The kernel does not cache what is read and written.
    direct_io: bool,
    /// Opened with `O_SYNC` or `O_DSYNC`: the client makes each write durable.
    synced: bool,
    writable: bool,
    /// Where the page cache is left out and reading ahead is allowed.
    ahead: Option<ReadAhead>,
    set_id: SetIdBits,
    told: Option<ToldSize>,
}

/// The size of a file that nobody was writing when it was opened.
struct ToldSize {
    bytes: u64,
    /// Of [`Epochs`], from before the open was asked for.
    epoch: u64,
    /// Until then this mount is told of changes by others before they are acknowledged.
    until: Instant,
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
    callers: Callers<Process>,
    root_ino: u64,
    behaviour: Behaviour,
    next_handle: AtomicU64,
    files: Sharded<u64, Arc<OpenFile>>,
    writers: Sharded<u64, Writers>,
    directories: Sharded<u64, Arc<Mutex<DirStream>>>,
    notes: Sharded<u64, Note>,
    /// Threads that were told that a directory is gone, with its node.
    gone: Sharded<u32, u64>,
    coherence: Arc<Coherence>,
    closing: Arc<Closing>,
    last_replies: LastReplies,
    reports: Reports,
    lookups: Lookups,
    /// Names that this mount has taken away from what they led to.
    names_taken: Changes,
    read_buffers: Arc<ReadBuffers>,
    epochs: Epochs,
    blocks: Blocks,
}

impl WeftFs {
    /// A file system whose root is the directory `root_ino` of the cluster.
    pub(crate) fn new(client: &Client, root_ino: u64, behaviour: Behaviour) -> WeftFs {
        let caches_names = !behaviour.entry_timeout.is_zero();
        WeftFs {
            callers: Callers::new(client, behaviour.identities.clone()),
            root_ino,
            behaviour,
            next_handle: AtomicU64::new(1),
            files: Sharded::default(),
            writers: Sharded::default(),
            directories: Sharded::default(),
            notes: Sharded::default(),
            gone: Sharded::default(),
            coherence: Arc::new(Coherence::new(client, root_ino, ROOT_NODE, caches_names)),
            closing: Closing::new(client),
            last_replies: LastReplies::default(),
            reports: Reports::default(),
            lookups: Lookups::default(),
            names_taken: Changes::default(),
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
            this.set_id_changed(ino);
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
        self.writers.keys().into_iter().for_each(|ino| self.set_id_changed(ino));
    }

    /// Who has a file open to write does not know any longer which set-id bits it has.
    fn set_id_changed(&self, ino: u64) {
        self.writers_of(ino).iter().for_each(|writer| writer.set_id.changed());
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

    /// Attributes as this machine has them, to be cached for no longer than `most`.
    fn told(&self, asked: &Asked, mut attr: Attr, most: Duration) -> Told {
        let blocks = self.blocks.of(self.callers.root(), &attr);
        let attr_valid = self.coherence.may_cache(asked, &attr, most.min(self.behaviour.attr_timeout));
        attr.ino = self.node(attr.ino);
        let attr = self.callers.identities().here(attr);
        Told { attr, blocks, attr_valid, entry_valid: Duration::ZERO }
    }

    /// As [`WeftFs::tell`], of what a name leads to: the kernel counts how often it has been told of an inode.
    fn tell_entry(&self, asked: &Asked, parent: u64, attr: Attr) -> Told {
        let dir = self.ino(parent);
        self.coherence.looked_up(attr.ino);
        self.coherence.asked_in(asked, dir);
        let told = self.tell(asked, attr);
        let entry_valid = self.coherence.may_cache_name(asked, dir, self.behaviour.entry_timeout);
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
            attr = self.reports.report(ino, &writer.file, File::flush_known)?.or(attr);
        }
        Ok(attr)
    }

    /// Reports what was written through one open file. An error also where it is not known how far a write came that failed.
    fn report_of(&self, writer: &OpenFile) -> Outcome<Option<Attr>> {
        Ok(self.reports.report(writer.ino, &writer.file, File::flush)?)
    }

    fn writers_of(&self, ino: u64) -> Vec<Arc<OpenFile>> {
        self.writers.lock(&ino).get(&ino).map(|writers| writers.open.clone()).unwrap_or_default()
    }
}

/// Extended attributes and the file system as a whole.
impl WeftFs {
    pub(crate) fn getxattr(&self, who: Process, node: u64, name: &OsStr) -> Outcome<Vec<u8>> {
        let ino = self.ino(node);
        if name.as_bytes() == CAPABILITY_XATTR && self.is_newborn(ino) {
            return Err(Errno(libc::ENODATA));
        }
        Ok(self.callers.client(who).get_xattr(ino, name.as_bytes())?)
    }

    pub(crate) fn setxattr(
        &self,
        who: Process,
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
        if name.as_bytes() == CAPABILITY_XATTR {
            // The client would, but nobody who asks for attributes meanwhile would wait for it.
            self.report_writes(ino)?;
        }
        let set = self.callers.client(who).set_xattr(ino, name.as_bytes(), value, flags as u32);
        self.coherence.directory_changed(ino);
        Ok(set?)
    }

    pub(crate) fn listxattr(&self, who: Process, node: u64) -> Outcome<Vec<u8>> {
        let names = self.callers.client(who).list_xattrs(self.ino(node))?;
        Ok(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(crate) fn removexattr(&self, who: Process, node: u64, name: &OsStr) -> Outcome<()> {
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

    pub(crate) fn statfs(&self, node: u64) -> Outcome<weft_client::StatFs> {
        Ok(self.callers.root().statfs_at(self.ino(node))?)
    }
}
