//! Locks, for clients: requests that wait, the time of grace after a restart, and what becomes of a client's locks when it is gone.
//!
//! ```text
//!   Lock ─► table: granted ─► reply
//!                  queued ──► the reply is kept back for a while ─┬─ granted meanwhile ─► reply
//!                                                                └─ else "waiting": the client asks again and finds its place
//!   restart ── grace ──────────────────────────────────────────► over: all who may have locks are back, or it is time
//!              ClaimLocks: who comes back has its locks again     ClaimLocks: only what is held still
//!              Lock, GetLock: kept back, for nobody knows yet
//! ```
//!
//! Locks are in memory only. The store has who may hold some: written with the first lock of a process, deleted with its session.
//! On a new connection a client claims all that it holds before it asks for anything else; so it is back when it does.

use super::lock_table::{Outcome, Owner, Wanted};
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::clock::now;
use crate::config::SyncMode;
use std::time::{Duration, Instant};
use weft_meta::{CommitSeq, Engine, Locker, MetaError, Once, SessionId, run_again};
use weft_wire::limits::{LOCK_HOLD_MS_MAX, LOCKS_PER_CLAIM_MAX, LOCKS_PER_SESSION_MAX};
use weft_wire::messages::*;
use weft_wire::{Status, body};

impl<E: Engine + 'static> MetaPart<E> {
    /// Locks, or says why not; the reply may be kept back while another has the lock.
    pub async fn lock(&self, call: &Call, request: LockRequest) -> Result<Answer, Refusal> {
        let until = deadline(request.hold_ms);
        if !self.locks.grace_is_over_by(until).await {
            return Ok(Answer::of(&LockReply { state: LockState::Waiting }));
        }
        if let Some(body) = self.replied(call)? {
            return Ok(Answer { body, ..Answer::default() });
        }
        self.note_locker(call.locker()).await?;
        self.locks.settled(request.lock.ino).await;
        let wanted = self.wanted(call.session, &request.lock)?;
        self.locks.lockers.borrow_mut().insert(call.locker());
        let ino = request.lock.ino;
        let outcome = self.locks.table.borrow_mut().lock(ino, &wanted, request.wait);
        self.locks.end_waits();
        let state = match outcome {
            Outcome::Granted => LockState::Granted,
            Outcome::Locked(holder) => {
                let (lock, kind) =
                    (holder.lock, if holder.lock.exclusive { "exclusively" } else { "shared" });
                let text = format!("bytes {} to {} are locked {kind} by another", lock.first, lock.last);
                return Err(Refusal::new(Status::Locked, text));
            }
            Outcome::Deadlock => {
                let text = "the owner in the way waits, itself or through others, for a lock of this one";
                return Err(Refusal::new(Status::Deadlock, text));
            }
            Outcome::Full => {
                let text = format!("a client has at most {LOCKS_PER_SESSION_MAX} locks and waits");
                return Err(Refusal::new(Status::NoLocks, text));
            }
            Outcome::Queued(ticket) => self.locks.keep_back(ticket, until).await?,
        };
        let body = body::encode(&LockReply { state });
        if state != LockState::Waiting {
            self.keep_reply(call, &body)?;
        }
        Ok(Answer { body, ..Answer::default() })
    }

    /// Gives locks back, or ends a wait.
    pub fn unlock(&self, call: &Call, request: UnlockRequest) -> Result<Answer, Refusal> {
        if let Some(body) = self.replied(call)? {
            return Ok(Answer { body, ..Answer::default() });
        }
        let ino = request.lock.ino;
        let lock = wanted_of(call.session, &request.lock)?;
        {
            let mut table = self.locks.table.borrow_mut();
            match request.what {
                UnlockWhat::Lock => table.unlock(ino, &lock),
                UnlockWhat::Owner => table.unlock_owner(ino, lock.owner),
                UnlockWhat::Wait => table.cancel(ino, &lock),
            }
        }
        self.locks.end_waits();
        let body = body::encode(&Empty {});
        self.keep_reply(call, &body)?;
        Ok(Answer { body, ..Answer::default() })
    }

    /// The lock that is in the way of one.
    pub async fn get_lock(&self, call: &Call, request: GetLockRequest) -> Result<Answer, Refusal> {
        if !self.locks.grace_is_over_by(deadline(request.hold_ms)).await {
            return Ok(Answer::of(&GetLockReply { state: LockState::Waiting, holder: None }));
        }
        self.locks.settled(request.lock.ino).await;
        let wanted = self.wanted(call.session, &request.lock)?;
        let conflict = self.locks.table.borrow().conflict(request.lock.ino, &wanted);
        let holder = conflict.map(|holder| LockHolder {
            exclusive: holder.lock.exclusive,
            first: holder.lock.first,
            last: holder.lock.last,
            pid: if self.sessions.share_a_host(holder.owner.session, call.session) { holder.pid } else { 0 },
        });
        Ok(Answer::of(&GetLockReply { state: LockState::Granted, holder }))
    }

    /// A client that is back says what it had.
    pub fn claim_locks(&self, call: &Call, request: ClaimLocksRequest) -> Result<Answer, Refusal> {
        if request.locks.is_empty() || request.locks.len() > LOCKS_PER_CLAIM_MAX {
            let text = format!("{} locks claimed at once; 1 to {LOCKS_PER_CLAIM_MAX}", request.locks.len());
            return Err(Refusal::new(Status::Invalid, text));
        }
        let in_grace = !self.locks.grace_over.is_set();
        if in_grace {
            self.store_locker(call.locker())?;
        }
        let mut lost = Vec::new();
        for (at, claimed) in request.locks.iter().enumerate() {
            let lock = wanted_of(call.session, claimed)?;
            let is_open = self.namespace.borrow().is_open_by(claimed.ino, call.session);
            let mut table = self.locks.table.borrow_mut();
            let held = is_open
                && if in_grace { table.claim(claimed.ino, &lock) } else { table.holds(claimed.ino, &lock) };
            if !held {
                lost.push(at as u32);
            }
        }
        Ok(Answer::of(&ClaimLocksReply { lost }))
    }

    /// Gives back all locks that a client had of these files, as far as it has them open no longer.
    pub(super) fn locks_of_closed(&self, session: SessionId, inos: impl Iterator<Item = u64>) {
        let namespace = self.namespace.borrow();
        let mut table = self.locks.table.borrow_mut();
        inos.filter(|ino| !namespace.is_open_by(*ino, session)).for_each(|ino| table.close(ino, session));
        drop(table);
        self.locks.end_waits();
    }

    /// Gives back all that a client had locked.
    pub(crate) fn locks_of_gone(&self, session: SessionId) {
        self.locks.table.borrow_mut().session_gone(session);
        self.locks.lockers.borrow_mut().retain(|locker| locker.session != session);
        self.locks.awaited.borrow_mut().retain(|locker| locker.session != session);
        self.look_who_is_awaited();
        self.locks.end_waits();
    }

    /// A process of a session has ended, which goes on with others. What it held is claimed by none of them.
    pub(crate) fn locker_gone(&self, locker: Locker) {
        self.forget_lockers(&[locker]);
        self.locks.awaited.borrow_mut().remove(&locker);
        self.look_who_is_awaited();
    }

    /// Begins the time of grace, if somebody may come back for locks.
    pub(super) fn begin_lock_grace(&self) -> Result<(), MetaError> {
        let namespace = self.namespace.borrow();
        let lockers = namespace.lockers(namespace.shard())?;
        let has_unnamed = namespace.has_unnamed_lockers()?;
        if !namespace.in_grace() || lockers.is_empty() && !has_unnamed {
            self.locks.grace_over.set();
        }
        self.locks.awaits_unnamed.set(has_unnamed);
        self.locks.lockers.borrow_mut().extend(&lockers);
        self.locks.awaited.borrow_mut().extend(&lockers);
        Ok(())
    }

    /// A client asks for something other than what it had: it has claimed all of that.
    pub fn locker_is_back(&self, locker: Locker) {
        if !self.locks.grace_over.is_set() {
            self.locks.awaited.borrow_mut().remove(&locker);
            self.look_who_is_awaited();
        }
    }

    /// The time of grace ends with the last that was awaited.
    fn look_who_is_awaited(&self) {
        if self.locks.awaited.borrow().is_empty() && !self.locks.awaits_unnamed.get() {
            self.locks.grace_over.set();
        }
    }

    /// From now on locks are given to anybody. Who has not come back is forgotten.
    pub(crate) fn end_lock_grace(&self) {
        self.locks.grace_over.set();
        let away = std::mem::take(&mut *self.locks.awaited.borrow_mut());
        self.forget_lockers(&away.into_iter().collect::<Vec<_>>());
    }

    /// Ends all waits, for the server stops; and notes whom nobody has to wait for afterwards.
    pub fn stop_locks(&self) {
        self.locks.stopping.set();
        if self.locks.grace_over.is_set() {
            let mut without: Vec<_> = self.locks.lockers.borrow().iter().copied().collect();
            without.retain(|locker| !self.locks.table.borrow().has_any(locker.session));
            self.forget_lockers(&without);
        }
    }

    /// Locks held, and requests that wait for one.
    pub fn lock_counts(&self) -> (usize, usize) {
        self.locks.table.borrow().counts()
    }

    /// Has the store say that the client may hold locks, for as long as its session lasts.
    async fn note_locker(&self, locker: Locker) -> Result<(), Refusal> {
        match self.store_locker(locker)? {
            Some(stored) if self.sync == SyncMode::Sync => self.durable(stored).await,
            _ => Ok(()),
        }
    }

    /// `None` if the store has it for certain.
    fn store_locker(&self, locker: Locker) -> Result<Option<CommitSeq>, Refusal> {
        if self.locks.lockers.borrow().contains(&locker) {
            return Ok(None);
        }
        let mut namespace = self.namespace.borrow_mut();
        namespace.change(|op| {
            op.add_locker(locker);
            Ok::<_, MetaError>(())
        })?;
        Ok(Some(namespace.committed()))
    }

    fn forget_lockers(&self, lockers: &[Locker]) {
        let mut namespace = self.namespace.borrow_mut();
        let unnamed = self.locks.grace_over.is_set() && self.locks.awaits_unnamed.take();
        if lockers.is_empty() && !unnamed {
            return;
        }
        let forgotten = namespace.change(|op| {
            lockers.iter().for_each(|locker| op.remove_locker(*locker));
            if unnamed {
                op.forget_unnamed_lockers();
            }
            Ok::<_, MetaError>(())
        });
        match forgotten {
            Ok(_) => self.locks.lockers.borrow_mut().retain(|locker| !lockers.contains(locker)),
            Err(error) => crate::log::warning!("meta", "cannot note who holds no locks: {error}"),
        }
    }

    /// What is wanted, of a file that the client has open.
    fn wanted(&self, session: SessionId, lock: &FileLock) -> Result<Wanted, Refusal> {
        if !self.namespace.borrow().is_open_by(lock.ino, session) {
            return Err(Refusal::new(Status::Stale, "the file to lock is not open; open it again"));
        }
        wanted_of(session, lock)
    }

    /// The reply to this request, if it has been done before.
    fn replied(&self, call: &Call) -> Result<Option<Vec<u8>>, Refusal> {
        let (slot, request) = (u32::from(call.header.slot), call.header.request_id);
        let mut namespace = self.namespace.borrow_mut();
        let replied = run_again(|| match namespace.begin_once(now(), call.session, slot, request)? {
            Once::Replay(body) => Ok::<_, MetaError>(Some(body)),
            Once::Fresh(_) => Ok(None),
        });
        Ok(replied?)
    }

    /// Keeps the reply for a repetition. In memory only, as is what it stands for.
    fn keep_reply(&self, call: &Call, body: &[u8]) -> Result<(), Refusal> {
        let (slot, request) = (u32::from(call.header.slot), call.header.request_id);
        let mut namespace = self.namespace.borrow_mut();
        let kept = run_again(|| match namespace.begin_once(now(), call.session, slot, request)? {
            Once::Fresh(op) => op.commit_with_reply(body).map(drop),
            Once::Replay(_) => Ok(()),
        });
        Ok(kept?)
    }
}

fn deadline(hold_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(hold_ms.min(LOCK_HOLD_MS_MAX).into())
}

fn wanted_of(session: SessionId, lock: &FileLock) -> Result<Wanted, Refusal> {
    let FileLock { owner, whole, exclusive, first, last, pid, .. } = *lock;
    if first > last {
        return Err(Refusal::new(Status::Invalid, format!("a lock from byte {first} to {last}")));
    }
    Ok(Wanted { owner: Owner { session, id: owner }, whole, exclusive, first, last, pid })
}
