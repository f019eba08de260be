//! Calls about locks that go on while the program does something else: for gateways, which hold locks for many.
//!
//! ```text
//!   start_lock_as(Try)      granted │ refused: another has it │ "waiting": the server has just been started, or this owner's
//!                                                               last unlock had failed; ask again
//!   start_lock_as(Queue)    granted │ "waiting": the place in the queue is kept; ask again
//!   start_lock_as(Hold)     as Queue, and the reply comes when the lock does, or after some seconds
//! ```
//!
//! Nothing here waits, and no connection is looked after: who holds locks calls
//! [`Client::keep_locks`](crate::Client::keep_locks) every second, on a thread that may wait.

use std::sync::Arc;

use weft_wire::Status;
use weft_wire::messages::{FileLock, GetLockRequest, LockRequest, LockState, UnlockRequest, UnlockWhat};

use crate::calls::{PendingCall, Plan};
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::file::File;
use crate::lock_book::LAST_BYTE;
use crate::locks::{LockHolder, LockKind, LockOwner, LockTarget};
use crate::open_file::OpenFile;

/// How a lock is asked for once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockStep {
    /// Refused with [`Status::Locked`] where another has it.
    Try,
    /// Where another has it, a place in the queue is taken and kept. It is left by
    /// [`File::start_lock_cancel_as`].
    Queue,
    /// As [`LockStep::Queue`], and the server may hold the reply back for seconds, until it is granted. The
    /// request has one of the session's exactly-once slots for so long.
    Hold,
}

impl OpenFile {
    fn begin_about_locks<T: 'static, R: weft_wire::Owned + 'static>(
        &self,
        request: R,
        take: impl FnOnce(R::Reply) -> Result<T, Error> + Send + 'static,
    ) -> PendingCall<T> {
        PendingCall::begin(&self.inner, &self.caller, Plan::new(request, &self.name, take))
    }

    fn begin_giving_back(&self, request: UnlockRequest) -> PendingCall<()> {
        let settle = self.inner.locks.begin_giving_back(&request);
        self.begin_about_locks(request, settle)
    }

    fn failed_about_locks<T>(&self, error: Error) -> PendingCall<T> {
        PendingCall::failed(&self.inner, &self.caller, error.on(&self.name))
    }

    /// The lock, of an open file that counts and has lost none.
    fn lock_to_ask(&self, owner: LockOwner, target: LockTarget, kind: LockKind) -> Result<FileLock, Error> {
        if self.held.has_lost_locks() {
            let text = "the metadata server has given this client's locks to others; open the file again";
            return Err(Error::new("Lock", ErrorKind::Status(Status::LockLost), text));
        }
        if self.held.is_covered() {
            let text = "a lock through a shared handle cannot be begun; lock it by a call that waits";
            return Err(Error::new("Lock", ErrorKind::Invalid, text));
        }
        self.file_lock(owner, target, kind == LockKind::Exclusive)
    }
}

impl File {
    /// Begins to ask once for a lock, as [`File::lock_as`] does until it is decided. [`LockState::Waiting`]:
    /// ask again.
    ///
    /// # Errors
    /// When it is waited for: as [`File::lock_as`].
    pub fn start_lock_as(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
        step: LockStep,
    ) -> PendingCall<LockState> {
        let wanted = match self.open.lock_to_ask(owner, target, kind) {
            Ok(wanted) => wanted,
            Err(error) => return self.open.failed_about_locks(error),
        };
        let (book, held) = (self.open.inner.locks.clone(), self.open.held.clone());
        if let Some(owed) = book.owed_by(wanted.ino, wanted.owner) {
            return self.open.begin_about_locks(owed.clone(), move |_| {
                book.note_settled(&owed);
                Ok(LockState::Waiting)
            });
        }
        let hold_ms = if step == LockStep::Hold { self.open.hold_ms() } else { 0 };
        let request = LockRequest { lock: wanted.clone(), wait: step != LockStep::Try, hold_ms };
        let claims = book.claims();
        self.open.begin_about_locks(request, move |reply| {
            if reply.state != LockState::Granted {
                return Ok(reply.state);
            }
            book.note(&wanted, &held, Some(wanted.exclusive));
            held.note_locks();
            // A claim that was made in between may have missed it: it is asked for again.
            Ok(if book.claims() == claims { LockState::Granted } else { LockState::Waiting })
        })
    }

    /// Begins to leave the queue for a lock. Whether it was granted before is not told.
    ///
    /// # Errors
    /// When it is waited for: where the server cannot be reached.
    pub fn start_lock_cancel_as(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
    ) -> PendingCall<()> {
        match self.open.file_lock(owner, target, kind == LockKind::Exclusive) {
            Ok(lock) => {
                self.open.begin_about_locks(UnlockRequest { lock, what: UnlockWhat::Wait }, |_| Ok(()))
            }
            Err(error) => self.open.failed_about_locks(error),
        }
    }

    /// Begins [`File::unlock_as`].
    ///
    /// # Errors
    /// When it is waited for: where the server cannot be reached.
    pub fn start_unlock_as(&self, owner: LockOwner, target: LockTarget) -> PendingCall<()> {
        match self.open.file_lock(owner, target, false) {
            Ok(lock) => self.open.begin_giving_back(UnlockRequest { lock, what: UnlockWhat::Lock }),
            Err(error) => self.open.failed_about_locks(error),
        }
    }

    /// Begins [`File::unlock_all_as`].
    ///
    /// # Errors
    /// When it is waited for: where the server cannot be reached.
    pub fn start_unlock_all_as(&self, owner: LockOwner) -> PendingCall<()> {
        match self.open.file_lock(owner, LockTarget::Whole, false) {
            Ok(lock) => self.open.begin_giving_back(UnlockRequest { lock, what: UnlockWhat::Owner }),
            Err(error) => self.open.failed_about_locks(error),
        }
    }

    /// Begins [`File::lock_test_as`]. [`LockState::Waiting`]: not known yet, ask again.
    ///
    /// # Errors
    /// When it is waited for: as [`File::lock_test_as`].
    pub fn start_lock_test_as(
        &self,
        owner: LockOwner,
        target: LockTarget,
        kind: LockKind,
    ) -> PendingCall<(LockState, Option<LockHolder>)> {
        match self.open.lock_to_ask(owner, target, kind) {
            Ok(lock) => self.open.begin_about_locks(GetLockRequest { lock, hold_ms: 0 }, |reply| {
                Ok((reply.state, reply.holder))
            }),
            Err(error) => self.open.failed_about_locks(error),
        }
    }

    /// Whether locks through this open file were lost. Asks nobody: as far as is known.
    pub fn has_lost_locks(&self) -> bool {
        self.open.held.has_lost_locks()
    }

    /// Drops the handle without a close: the file stays open and locked at the metadata server until the
    /// session ends, or is joined again by who goes on with it.
    pub fn leave_open(self) {
        if let Some(open) = Arc::into_inner(self.open) {
            open.forget_close();
        }
    }
}

impl Client {
    /// Begins to give back all that an owner ([`LockOwner::Other`]) has locked of a file in this session,
    /// also before this process joined it.
    ///
    /// # Errors
    /// When it is waited for: where the server cannot be reached.
    pub fn start_unlock_owner(&self, ino: u64, owner: u64) -> PendingCall<()> {
        let lock = FileLock { ino, owner, whole: true, exclusive: false, first: 0, last: LAST_BYTE, pid: 0 };
        let request = UnlockRequest { lock, what: UnlockWhat::Owner };
        let settle = self.inner.locks.begin_giving_back(&request);
        PendingCall::begin(&self.inner, &self.caller, Plan::new(request, &crate::At::ino(ino), settle))
    }
}
