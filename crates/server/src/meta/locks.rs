//! Locks, for clients: requests that wait, the time of grace after a restart, and what becomes of a client's locks when it is gone.
//!
//! ```text
//!   Lock ─► table: granted ─► reply
//!                  queued ──► the reply is kept back for a while ─┬─ granted meanwhile ─► reply
//!                                                                └─ else "waiting": the client asks again and finds its place
//!   restart ── grace ──────────────────────────────────────────► over
//!              ClaimLocks: who comes back has its locks again     ClaimLocks: only what is held still
//!              Lock, GetLock: kept back, for nobody knows yet
//! ```
//!
//! Locks are in memory only. The store has one bit of them, whether there may be any, so that a server whose clients never locked
//! anything has no time of grace for them.

use super::lock_table::{Outcome, Owner, Wanted};
use super::{Call, MetaPart};
use crate::answer::{Answer, Refusal};
use crate::clock::now;
use std::time::{Duration, Instant};
use weft_meta::{Engine, MetaError, Once, SessionId, run_again};
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
        let wanted = self.wanted(call.session, &request.lock)?;
        let ino = request.lock.ino;
        self.note_locks(true)?;
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
    pub(super) fn locks_of_gone(&self, session: SessionId) {
        self.locks.table.borrow_mut().session_gone(session);
        self.locks.end_waits();
    }

    /// Begins the time of grace, if somebody may come back for locks.
    pub(super) fn begin_lock_grace(&self) {
        let namespace = self.namespace.borrow();
        if !(namespace.in_grace() && namespace.locks_noted()) {
            self.locks.grace_over.set();
        }
    }

    /// From now on locks are given to anybody.
    pub(super) fn end_lock_grace(&self) {
        self.locks.grace_over.set();
    }

    /// Ends all waits, for the server stops; and notes if nobody will come back for a lock.
    pub fn stop_locks(&self) {
        self.locks.stopping.set();
        let grace_over = self.locks.grace_over.is_set();
        let noted = match self.lock_counts().0 {
            0 if grace_over => self.note_locks(false),
            _ => Ok(()),
        };
        if let Err(refusal) = noted {
            crate::log::warning!("meta", "cannot note that no locks are held: {}", refusal.text);
        }
    }

    /// Locks held, and requests that wait for one.
    pub fn lock_counts(&self) -> (usize, usize) {
        self.locks.table.borrow().counts()
    }

    fn note_locks(&self, held: bool) -> Result<(), Refusal> {
        let mut namespace = self.namespace.borrow_mut();
        if namespace.locks_noted() != held {
            namespace.note_locks(held)?;
        }
        Ok(())
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
