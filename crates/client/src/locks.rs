//! Locks of this process's open files, and what becomes of them when a connection is lost.
//!
//! ```text
//!   lock ─► metadata server ─┬─ granted ──► noted in the book
//!                            └─ "waiting" ► ask again: the place in the queue is kept there
//!   a new connection, after the server was away ─► claim all that is in the book ─► what is lost is noted on the open files:
//!                                                  from then on they give EIO, until they are locked again or closed
//! ```
//!
//! The book is what is claimed, so it must never have less than is held. A lock is noted after its grant; if
//! in between a claim was made, that may have missed it, and the lock is asked for again. What is given back
//! is claimed no more before the server is told, and is owed until the server has confirmed it: an unlock that
//! fails, because the server is away or the thread is killed, is repeated ([`Inner::settle_locks`]).
//!
//! A reply that is kept back takes a credit of a connection. So only some requests of a process wait like
//! that; the others ask now and then.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_wire::Status;
use weft_wire::limits::LOCK_HOLD_MS_MAX;
use weft_wire::messages::{
    FileLock, GetLockRequest, LockRequest, LockState, PingRequest, UnlockRequest, UnlockWhat,
};

pub use weft_wire::messages::LockHolder;

use crate::batch;
use crate::call::Guard;
use crate::error::{Error, ErrorKind};
use crate::fork;
use crate::host::since_boot;
use crate::inner::Inner;
use crate::lock_book::{KeptBack, LAST_BYTE};
use crate::open_file::{OpenFile, Relied};
use crate::wait::{lock as lock_mutex, take_interruption};

/// How often the others ask.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);
/// The owner that is the process.
const PROCESS: u64 = 0;

/// How much a lock keeps away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Those who want it exclusively.
    Shared,
    /// Everybody else.
    Exclusive,
}

/// What is locked. Locks on ranges and on whole files do not know of each other, as those of fcntl(2) and
/// flock(2).
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
    /// Another, known to the caller by this number: a process that it acts for. `pid` is told to others of
    /// this client.
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

fn locks_lost() -> Error {
    let text = "the metadata server was away, or without word of this client, for too long: lock the file again, or close and \
                open it, and look at what it has now";
    Error::new("Lock", ErrorKind::Status(Status::LockLost), text)
}

/// Locks through an open file.
impl OpenFile {
    /// Fails while locks of this open file are lost. While it has some, the metadata server is asked where it may have
    /// given them away: where connections to it are lost, or it has not been heard for a while. This process may have
    /// been stopped or cut off meanwhile, and not know of it.
    pub(crate) fn check_locks(&self) -> Result<(), Error> {
        self.look_for_lost_locks()?;
        if let Some(relied) = self.relied() {
            relied.check()?;
        }
        if !self.held.has_lost_locks() {
            return Ok(());
        }
        self.inner.locks.note_told(&self.held);
        Err(locks_lost())
    }

    /// Has the loss of locks noted that the metadata server may have given away.
    fn look_for_lost_locks(&self) -> Result<(), Error> {
        if self.held.has_locks() { self.inner.look_after_locks() } else { Ok(()) }
    }

    /// Fails if the owner of `lock` has lost locks of this file and no call of its has failed for that yet. So it takes
    /// no later lock for one that it has held all the time.
    fn tell_loss(&self, lock: &FileLock) -> Result<(), Error> {
        match self.inner.locks.tell_loss(lock.ino, lock.owner) {
            true => Err(locks_lost()),
            false => Ok(()),
        }
    }

    /// See [`File::rely_on`](crate::File::rely_on).
    pub(crate) fn rely_on(&self, name: &'static str, locks: Arc<dyn Guard>) {
        let mut relied = lock_mutex(&self.relied);
        let now = fork::generation();
        relied.retain(|known| known.generation == now && known.name != name);
        relied.push(Relied { generation: now, name, locks });
        self.relies.store(true, Ordering::Release);
    }

    /// What tells of the locks of others that this open file is used under.
    fn relied(&self) -> Option<Guards> {
        if !self.relies.load(Ordering::Acquire) {
            return None;
        }
        let relied = lock_mutex(&self.relied);
        let ours = relied.iter().filter(|one| one.generation == fork::generation());
        Some(Guards(ours.map(|one| one.locks.clone()).collect()))
    }

    pub(crate) fn file_lock(
        &self,
        owner: LockOwner,
        target: LockTarget,
        exclusive: bool,
    ) -> Result<FileLock, Error> {
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
        granted: &dyn Fn(),
    ) -> Result<(), Error> {
        self.look_for_lost_locks()?;
        let wanted = self.file_lock(owner, target, kind == LockKind::Exclusive)?;
        self.tell_loss(&wanted)?;
        self.inner.count_covered(&self.held)?;
        let book = &self.inner.locks;
        // A later repetition of an unlock would take this lock.
        while book.owed_by(wanted.ino, wanted.owner).is_some() {
            if !self.inner.settle_locks()? {
                std::thread::sleep(LOOK);
            }
        }
        loop {
            let claims = book.claims();
            if let Err(error) = self.ask_for_lock(&wanted, wait) {
                // A lock on the whole file that was to be converted is given up first, as by flock(2).
                if wanted.whole && book.has(wanted.ino, wanted.owner) {
                    let _ = self.unlock_noted(&wanted);
                }
                return Err(error);
            }
            book.note(&wanted, &self.held, Some(wanted.exclusive));
            self.held.note_locks();
            if book.claims() == claims {
                break;
            }
        }
        if let Err(lost) = self.tell_loss(&wanted) {
            let _ = self.unlock_noted(&wanted);
            return Err(lost);
        }
        granted();
        book.end_loss(&wanted, &self.held);
        Ok(())
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
            let asked = since_boot();
            let reply = batch::ask_looking(inner, &request, LOOK, || {
                if !ended && is_over() {
                    ended = true;
                    return self.cancel(wanted);
                }
                Ok(())
            })?;
            drop(kept_back);
            match reply.state {
                LockState::Granted => {
                    inner.locks.note_confirmed(asked);
                    return Ok(());
                }
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
        batch::ask(&self.inner, &request).map(drop)
    }

    /// How long a server may be silent about a lock, so that it does not seem to be dead.
    pub(crate) fn hold_ms(&self) -> u32 {
        let half = self.inner.options.reply_timeout_ms / 2;
        u32::try_from(half).unwrap_or(u32::MAX).min(LOCK_HOLD_MS_MAX)
    }

    pub(crate) fn unlock(&self, owner: LockOwner, target: LockTarget) -> Result<(), Error> {
        self.look_for_lost_locks()?;
        let lock = self.file_lock(owner, target, false)?;
        if !self.inner.locks.has(lock.ino, lock.owner) {
            return Ok(());
        }
        let lost = self.tell_loss(&lock);
        self.unlock_noted(&lock)?;
        lost
    }

    fn unlock_noted(&self, lock: &FileLock) -> Result<(), Error> {
        self.inner.give_back(UnlockRequest { lock: lock.clone(), what: UnlockWhat::Lock })
    }

    pub(crate) fn unlock_all(&self, owner: LockOwner) -> Result<(), Error> {
        let lock = self.file_lock(owner, LockTarget::Whole, false)?;
        if !self.inner.locks.has(lock.ino, lock.owner) {
            return Ok(());
        }
        self.inner.give_back(UnlockRequest { lock, what: UnlockWhat::Owner })
    }

    pub(crate) fn lock_test(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
    ) -> Result<Option<LockHolder>, Error> {
        self.look_for_lost_locks()?;
        let lock = self.file_lock(owner, target, kind == LockKind::Exclusive)?;
        self.tell_loss(&lock)?;
        self.inner.count_covered(&self.held)?;
        let request = GetLockRequest { lock, hold_ms: self.hold_ms() };
        loop {
            let reply = batch::ask(&self.inner, &request)?;
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

/// Several, all of which must allow a request.
pub(crate) struct Guards(Vec<Arc<dyn Guard>>);

impl Guards {
    /// `None` if there are none.
    pub(crate) fn of(guards: impl IntoIterator<Item = Option<Arc<dyn Guard>>>) -> Option<Arc<dyn Guard>> {
        let mut guards: Vec<_> = guards.into_iter().flatten().collect();
        if guards.len() > 1 { Some(Arc::new(Guards(guards))) } else { guards.pop() }
    }
}

impl Guard for Guards {
    fn check(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|guard| guard.check())
    }
}

/// For requests that are sent while locks are relied on.
impl Guard for OpenFile {
    fn check(&self) -> Result<(), Error> {
        self.check_locks()
    }
}

impl OpenFile {
    /// What to ask before each time that a request is sent which reads or changes the contents.
    pub(crate) fn guard(self: &Arc<OpenFile>) -> Option<Arc<dyn Guard>> {
        let has_locks = self.held.has_locks() || self.relies.load(Ordering::Acquire);
        has_locks.then(|| self.clone() as Arc<dyn Guard>)
    }
}

impl Inner {
    /// Gives locks back. Where the server does not confirm it, it is told again by [`Inner::settle_locks`].
    fn give_back(&self, request: UnlockRequest) -> Result<(), Error> {
        self.locks.note_given_back(&request);
        batch::ask(self, &request)?;
        self.locks.note_settled(&request);
        Ok(())
    }

    /// Tells the server again of locks that were given back, and that it may still have. `false`: another thread is at it.
    pub(crate) fn settle_locks(&self) -> Result<bool, Error> {
        let Some(owed) = self.locks.begin_settling() else { return Ok(false) };
        let settled = owed.iter().try_for_each(|request| {
            batch::ask(self, request)?;
            self.locks.note_settled(request);
            Ok(())
        });
        self.locks.end_settling();
        settled.map(|()| true)
    }

    /// Makes sure that the metadata server has this session, or notes which locks are lost. It is asked where the
    /// connections are lost, so that the locks are claimed on a new one, and where its last word is old.
    pub(crate) fn look_after_locks(&self) -> Result<(), Error> {
        if self.locks.is_empty() {
            return Ok(());
        }
        let now = since_boot();
        let mut is_connected = true;
        for (_, owner) in self.session().owners() {
            let server = self.session().server(owner);
            server.lanes().iter().for_each(|lane| lane.progress());
            is_connected &= !server.lanes().is_empty();
        }
        if is_connected && self.locks.is_confirmed(now) {
            return Ok(());
        }
        let pings = self.session().owners().map(|(_, owner)| (owner, PingRequest { echo: Vec::new() }));
        batch::ask_all(self, pings, None).into_iter().try_for_each(|reply| reply.map(drop))?;
        self.locks.note_confirmed(now);
        Ok(())
    }
}
