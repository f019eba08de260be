//! Locks of this process's open files, and what becomes of them when a connection is lost.
//!
//! ```text
//!   lock ─► metadata server ─┬─ granted ──► noted in the book
//!                            └─ "waiting" ► ask again: the place in the queue is kept there
//!   a new connection, after the server was away ─► claim all that is in the book ─► what is lost is noted on the open files:
//!                                                  from then on they give EIO, until they are closed
//! ```
//!
//! The book is what is claimed, so it must never have less than is held. A lock is noted after its grant; if in between a claim was
//! made, that may have missed it, and the lock is asked for again. What is given back leaves the book before the server is told.
//!
//! A reply that is kept back takes a credit of a connection. So only some requests of a process wait like that; the others ask
//! now and then.

use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use weft_transport::Link;
use weft_wire::Status;
use weft_wire::limits::{LOCK_HOLD_MS_MAX, LOCKS_PER_CLAIM_MAX};
use weft_wire::locks::HeldLocks;
use weft_wire::messages::{
    ClaimLocksRequest, FileLock, GetLockRequest, LockRequest, LockState, PingRequest, UnlockRequest,
    UnlockWhat,
};

pub use weft_wire::messages::LockHolder;

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::fork;
use crate::greet::ask;
use crate::held::Held;
use crate::inner::Inner;
use crate::open_file::OpenFile;
use crate::session::Session;
use crate::wait::{lock, take_interruption};

/// Replies that the metadata server keeps back for this process at the same time.
const KEPT_BACK_MAX: usize = 32;
/// How often the others ask.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// The last byte that a lock can have.
const LAST_BYTE: u64 = i64::MAX as u64;
/// The owner that is the process.
const PROCESS: u64 = 0;
/// Set in the numbers of owners that are open files.
const OPEN_FILE: u64 = 1 << 63;

/// How much a lock keeps away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Those who want it exclusively.
    Shared,
    /// Everybody else.
    Exclusive,
}

/// What is locked. Locks on ranges and on whole files do not know of each other, as those of fcntl(2) and flock(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockTarget {
    /// Bytes, whether they are there or not.
    Range {
        /// The first.
        first: u64,
        /// The last; `i64::MAX` is the end of any file.
        last: u64,
    },
    /// The file.
    Whole,
}

impl LockTarget {
    /// Some bytes; `..` is all there are or will be.
    ///
    /// ```
    /// use weft_client::LockTarget;
    /// assert_eq!(LockTarget::range(10..20), LockTarget::Range { first: 10, last: 19 });
    /// assert_eq!(LockTarget::range(10..), LockTarget::Range { first: 10, last: i64::MAX as u64 });
    /// ```
    pub fn range(bytes: impl RangeBounds<u64>) -> LockTarget {
        let first = match bytes.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last = match bytes.end_bound() {
            Bound::Included(last) => (*last).min(LAST_BYTE),
            Bound::Excluded(end) => end.saturating_sub(1).min(LAST_BYTE),
            Bound::Unbounded => LAST_BYTE,
        };
        LockTarget::Range { first, last }
    }
}

/// Whose a lock is. Locks of one owner do not conflict with each other: they replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOwner {
    /// The open file. The lock goes when it is closed.
    File,
    /// The process. Its locks on a file go when it closes *any* of its handles on it, as POSIX wants it.
    Process,
    /// Another, known to the caller by this number: a process that it acts for. `pid` is told to others of this client.
    Other {
        /// Any number but 0, below 2^63 or from a source that does not collide.
        id: u64,
        /// Of the process.
        pid: u32,
    },
}

/// How long to wait for a lock that others have.
#[derive(Clone, Copy)]
pub enum LockWait<'a> {
    /// Not at all: [`Status::Locked`] (`EAGAIN`).
    Never,
    /// Until it is granted.
    Forever,
    /// Until it is granted, or a signal's handler has run in this thread (`EINTR`).
    UntilSignal,
    /// Until it is granted, or this says so (`EINTR`). It is asked every few milliseconds.
    Until(&'a dyn Fn() -> bool),
}

/// What one owner has of one file.
struct Owned {
    ranges: HeldLocks,
    whole: Option<bool>,
    pid: u32,
    /// The open files that it was locked through.
    through: Vec<Weak<Held>>,
    lost: bool,
}

/// All locks of this process.
#[derive(Default)]
pub(crate) struct LockBook {
    owners: Mutex<Owners>,
    /// Connections on which claims were made.
    claims: AtomicU64,
    kept_back: AtomicUsize,
    last_owner: AtomicU64,
    /// Other processes lock as the same owners, so there may be more than is known here.
    shared: bool,
}

#[derive(Default)]
struct Owners {
    generation: u64,
    by_file: HashMap<(u64, u64), Owned>,
}

impl LockBook {
    /// Of a session that other processes are in, or not.
    pub(crate) fn new(shared: bool) -> LockBook {
        LockBook { shared, ..LockBook::default() }
    }

    /// A number for an open file as an owner.
    pub(crate) fn new_owner(&self) -> u64 {
        OPEN_FILE | self.last_owner.fetch_add(1, Ordering::Relaxed)
    }

    /// A forked child has none of its parent's locks.
    fn owners(&self) -> MutexGuard<'_, Owners> {
        let mut owners = lock(&self.owners);
        let generation = fork::generation();
        if owners.generation != generation {
            *owners = Owners { generation, by_file: HashMap::new() };
        }
        owners
    }

    fn note(&self, file_lock: &FileLock, held: &Arc<Held>, exclusive: Option<bool>) {
        let mut owners = self.owners();
        let key = (file_lock.ino, file_lock.owner);
        if exclusive.is_none() && !owners.by_file.contains_key(&key) {
            return;
        }
        let owned = owners.by_file.entry(key).or_insert_with(|| Owned {
            ranges: HeldLocks::default(),
            whole: None,
            pid: file_lock.pid,
            through: Vec::new(),
            lost: false,
        });
        match file_lock.whole {
            true => owned.whole = exclusive,
            false => owned.ranges.set(file_lock.first, file_lock.last, exclusive),
        }
        owned.through.retain(|through| through.strong_count() > 0);
        if exclusive.is_some() && !owned.through.iter().any(|through| through.as_ptr() == Arc::as_ptr(held)) {
            owned.through.push(Arc::downgrade(held));
        }
        if owned.ranges.is_empty() && owned.whole.is_none() && !owned.lost {
            owners.by_file.remove(&key);
        }
    }

    fn has(&self, ino: u64, owner: u64) -> bool {
        self.shared || self.owners().by_file.contains_key(&(ino, owner))
    }

    /// Takes all that an owner has of a file out. Says whether there was anything.
    fn remove(&self, ino: u64, owner: u64) -> bool {
        self.owners().by_file.remove(&(ino, owner)).is_some()
    }

    fn is_empty(&self) -> bool {
        self.owners().by_file.is_empty()
    }

    fn all(&self) -> Vec<FileLock> {
        let owners = self.owners();
        let mut all = Vec::new();
        for ((ino, owner), owned) in owners.by_file.iter().filter(|(_, owned)| !owned.lost) {
            let template = FileLock {
                ino: *ino,
                owner: *owner,
                whole: false,
                exclusive: false,
                first: 0,
                last: LAST_BYTE,
                pid: owned.pid,
            };
            all.extend(owned.whole.map(|exclusive| FileLock { whole: true, exclusive, ..template.clone() }));
            all.extend(owned.ranges.iter().map(|lock| FileLock {
                exclusive: lock.exclusive,
                first: lock.first,
                last: lock.last,
                ..template.clone()
            }));
        }
        all
    }

    fn note_lost(&self, file_lock: &FileLock) {
        if let Some(owned) = self.owners().by_file.get_mut(&(file_lock.ino, file_lock.owner)) {
            owned.lost = true;
            owned.through.iter().filter_map(Weak::upgrade).for_each(|held| held.note_locks_lost());
        }
    }

    /// On a new connection, after the server was away or had given this client up: tells it all locks, and notes which are
    /// lost.
    pub(crate) fn claim(
        &self,
        session: &Session,
        link: &mut dyn Link,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        for locks in self.all().chunks(LOCKS_PER_CLAIM_MAX) {
            let request = ClaimLocksRequest { locks: locks.to_vec() };
            let reply = ask(link, session.next_request_id(), &request, deadline)?;
            reply.lost.iter().filter_map(|at| locks.get(*at as usize)).for_each(|lost| self.note_lost(lost));
        }
        Ok(())
    }
}

/// A reply that may be kept back.
struct KeptBack<'a>(&'a LockBook);

impl<'a> KeptBack<'a> {
    fn begin(book: &'a LockBook) -> Option<KeptBack<'a>> {
        let taken = KeptBack(book);
        (book.kept_back.fetch_add(1, Ordering::Relaxed) < KEPT_BACK_MAX).then_some(taken)
    }
}

impl Drop for KeptBack<'_> {
    fn drop(&mut self) {
        self.0.kept_back.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Locks through an open file.
impl OpenFile {
    /// Fails once locks of this open file are lost. While it has some, a connection that was lost is noticed here, and made again
    /// before anything is done in the belief that they hold.
    pub(crate) fn check_locks(&self) -> Result<(), Error> {
        if self.held.has_locks() {
            self.inner.look_after_locks()?;
        }
        if !self.held.has_lost_locks() {
            return Ok(());
        }
        let text = "the metadata server was away, or without word of this client, for too long; close the file, and open and \
                    lock it again";
        Err(Error::new("Lock", ErrorKind::Status(Status::LockLost), text))
    }

    fn file_lock(&self, owner: LockOwner, target: LockTarget, exclusive: bool) -> Result<FileLock, Error> {
        let (owner, pid) = match owner {
            LockOwner::File => (self.lock_owner, std::process::id()),
            LockOwner::Process => (PROCESS, std::process::id()),
            LockOwner::Other { id, pid } => (id, pid),
        };
        let (whole, first, last) = match target {
            LockTarget::Whole => (true, 0, LAST_BYTE),
            LockTarget::Range { first, last } if first <= last => (false, first, last),
            LockTarget::Range { first, last } => {
                let text = format!("bytes {first} to {last} are no range");
                return Err(Error::new("Lock", ErrorKind::Invalid, text));
            }
        };
        Ok(FileLock { ino: self.held.ino, owner, whole, exclusive, first, last, pid })
    }

    pub(crate) fn lock(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
        wait: LockWait<'_>,
    ) -> Result<(), Error> {
        self.check_locks()?;
        let wanted = self.file_lock(owner, target, kind == LockKind::Exclusive)?;
        let book = &self.inner.locks;
        loop {
            let claims = book.claims.load(Ordering::SeqCst);
            if let Err(error) = self.ask_for_lock(&wanted, wait) {
                // A lock on the whole file that was to be converted is given up before the wait.
                if wanted.whole && !matches!(wait, LockWait::Never) {
                    let _ = self.unlock_noted(&wanted);
                }
                return Err(error);
            }
            book.note(&wanted, &self.held, Some(wanted.exclusive));
            self.held.note_locks();
            if book.claims.load(Ordering::SeqCst) == claims {
                return Ok(());
            }
        }
    }

    /// Asks until it is decided.
    fn ask_for_lock(&self, wanted: &FileLock, wait: LockWait<'_>) -> Result<(), Error> {
        let inner = &*self.inner;
        take_interruption();
        let is_over = || match wait {
            LockWait::Never | LockWait::Forever => false,
            LockWait::UntilSignal => take_interruption(),
            LockWait::Until(is_over) => is_over(),
        };
        let waits = !matches!(wait, LockWait::Never);
        let mut ended = false;
        loop {
            let kept_back = KeptBack::begin(&inner.locks);
            let hold_ms = if kept_back.is_some() { self.hold_ms() } else { 0 };
            let request = LockRequest { lock: wanted.clone(), wait: waits, hold_ms };
            let reply = batch::ask_looking(inner, inner.meta(), &request, LOOK, || {
                if !ended && is_over() {
                    ended = true;
                    return self.cancel(wanted);
                }
                Ok(())
            })?;
            drop(kept_back);
            match reply.state {
                LockState::Granted => return Ok(()),
                LockState::Cancelled | LockState::Waiting if ended || is_over() => {
                    self.cancel(wanted)?;
                    return Err(Error::new(
                        "Lock",
                        ErrorKind::Local(libc::EINTR),
                        "the wait was interrupted",
                    ));
                }
                LockState::Cancelled => {}
                LockState::Waiting if hold_ms == 0 => std::thread::sleep(ASK_AGAIN),
                LockState::Waiting => {}
            }
        }
    }

    fn cancel(&self, wanted: &FileLock) -> Result<(), Error> {
        let request = UnlockRequest { lock: wanted.clone(), what: UnlockWhat::Wait };
        batch::ask(&self.inner, self.inner.meta(), &request).map(drop)
    }

    /// How long a server may be silent about a lock, so that it does not seem to be dead.
    fn hold_ms(&self) -> u32 {
        let half = self.inner.options.reply_timeout_ms / 2;
        u32::try_from(half).unwrap_or(u32::MAX).min(LOCK_HOLD_MS_MAX)
    }

    pub(crate) fn unlock(&self, owner: LockOwner, target: LockTarget) -> Result<(), Error> {
        self.check_locks()?;
        let lock = self.file_lock(owner, target, false)?;
        if !self.inner.locks.has(lock.ino, lock.owner) {
            return Ok(());
        }
        self.unlock_noted(&lock)
    }

    fn unlock_noted(&self, lock: &FileLock) -> Result<(), Error> {
        self.inner.locks.note(lock, &self.held, None);
        let request = UnlockRequest { lock: lock.clone(), what: UnlockWhat::Lock };
        batch::ask(&self.inner, self.inner.meta(), &request).map(drop)
    }

    pub(crate) fn unlock_all(&self, owner: LockOwner) -> Result<(), Error> {
        let lock = self.file_lock(owner, LockTarget::Whole, false)?;
        if !self.inner.locks.remove(lock.ino, lock.owner) && !self.inner.locks.shared {
            return Ok(());
        }
        let request = UnlockRequest { lock, what: UnlockWhat::Owner };
        batch::ask(&self.inner, self.inner.meta(), &request).map(drop)
    }

    pub(crate) fn lock_test(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
    ) -> Result<Option<LockHolder>, Error> {
        self.check_locks()?;
        let lock = self.file_lock(owner, target, kind == LockKind::Exclusive)?;
        let request = GetLockRequest { lock, hold_ms: self.hold_ms() };
        loop {
            let reply = batch::ask(&self.inner, self.inner.meta(), &request)?;
            if reply.state != LockState::Waiting {
                return Ok(reply.holder);
            }
        }
    }

    /// What goes with a close: locks of this handle, and those of the process on this file.
    pub(crate) fn unlock_at_close(&self) {
        if self.inner.locks.shared {
            return;
        }
        for owner in [LockOwner::File, LockOwner::Process] {
            // The server takes back what is left with the last close of the file, or with the session.
            let _ = self.unlock_all(owner);
        }
    }
}

impl Inner {
    /// Notices whether the connections to the metadata server are lost, and makes one then, on which the locks are claimed.
    pub(crate) fn look_after_locks(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            return Ok(());
        }
        let server = self.session().server(self.meta());
        server.lanes().iter().for_each(|lane| lane.progress());
        if !server.lanes().is_empty() {
            return Ok(());
        }
        batch::ask(self, self.meta(), &PingRequest { echo: Vec::new() }).map(drop)
    }
}
