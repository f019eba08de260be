//! Locks of processes on the mount, which hold against those of other mounts and clients.
//!
//! ```text
//!   fcntl(F_SETLKW)  ─► setlk  ─► a thread of its own: waits at the metadata server ─► pages of the file go ─► reply
//!   close            ─► flush  ─► the process's locks on the file go              (owner: the process)
//!   last close       ─► release ─► what was locked by the open file goes          (owner: the open file)
//! ```
//!
//! The kernel names owners by numbers. Those of open files (flock, open-file-description locks) come back in no message of theirs at
//! the end; so each open file notes who has locked through it and was not heard of in a `flush` since.
//!
//! Who has got a lock must see what others wrote under it before: pages and attributes that the kernel has of the file go before the
//! reply. That waits for reads that are under way, so it is never done by a thread that serves requests.

use crate::fs::{Errno, Outcome, WeftFs};
use crate::lockers::{LockCall, Signalled, lock_call};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use weft_client::{File, LockHolder, LockKind, LockOwner, LockTarget, LockWait};

/// Requests for locks under way at once.
const THREADS_MAX: usize = 4096;
const STACK_BYTES: usize = 256 << 10;
/// How often a mount with locks looks after its connection.
const KEEP_EVERY: Duration = Duration::from_secs(1);
const LAST_BYTE: u64 = i64::MAX as u64;

/// A request of the kernel's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockAsked {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) exclusive: bool,
    pub(crate) pid: u32,
    /// The thread that asks.
    pub(crate) tid: u32,
    pub(crate) wait: bool,
}

impl LockAsked {
    fn owner(&self) -> LockOwner {
        LockOwner::Other { id: self.owner, pid: self.pid }
    }

    fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }

    fn range(&self) -> LockTarget {
        LockTarget::Range { first: self.first, last: self.last }
    }

    /// Which call it comes from. Only for a range that is all of the file there is a question.
    fn call(&self) -> LockCall {
        if (self.first, self.last) == (0, LAST_BYTE) { lock_call(self.tid) } else { LockCall::Fcntl }
    }
}

/// Who has locked through an open file.
#[derive(Default)]
pub(crate) struct Lockers(Mutex<HashSet<u64>>);

impl Lockers {
    fn note(&self, owner: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(owner);
    }

    fn forget(&self, owner: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&owner);
    }

    /// At the last close: gives back what they have.
    pub(crate) fn release(&self, file: &File) {
        let owners = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for id in owners {
            // The metadata server takes back what is left when the mount closes the file for the last time.
            let _ = file.unlock_all_as(LockOwner::Other { id, pid: 0 });
        }
    }
}

impl WeftFs {
    /// Locks, on a thread of its own that ends with `reply`; so that whoever is to unlock is served meanwhile.
    pub(crate) fn start_lock(
        self: &Arc<Self>,
        asked: LockAsked,
        reply: impl FnOnce(Outcome<()>) + Send + 'static,
    ) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        struct Running;
        impl Drop for Running {
            fn drop(&mut self) {
                THREADS.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let running = Running;
        if THREADS.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            return reply(Err(Errno(libc::ENOLCK)));
        }
        let fs = self.clone();
        let work = move || {
            reply(fs.lock(asked));
            drop(running);
        };
        // Where no thread can be started, the reply is dropped with the work, and the kernel told EIO.
        let _ = std::thread::Builder::new().name("weft-lock".into()).stack_size(STACK_BYTES).spawn(work);
    }

    fn lock(&self, asked: LockAsked) -> Outcome<()> {
        let open = self.file(asked.handle)?;
        let target = match asked.call() {
            LockCall::Flock => LockTarget::Whole,
            LockCall::Fcntl | LockCall::Unknown => asked.range(),
        };
        let signalled = Signalled::new(asked.tid);
        let is_over = || signalled.look();
        let wait = if asked.wait { LockWait::Until(&is_over) } else { LockWait::Never };
        open.lockers.note(asked.owner);
        open.file.lock_as(asked.owner(), target, asked.kind(), wait)?;
        self.forget_contents(open.file.ino());
        Ok(())
    }

    pub(crate) fn unlock(&self, asked: LockAsked) -> Outcome<()> {
        let open = self.file(asked.handle)?;
        let call = asked.call();
        if call != LockCall::Fcntl {
            open.file.unlock_as(asked.owner(), LockTarget::Whole)?;
        }
        if call != LockCall::Flock {
            open.file.unlock_as(asked.owner(), asked.range())?;
        }
        Ok(())
    }

    /// A lock of another that is in the way.
    pub(crate) fn test_lock(&self, asked: LockAsked) -> Outcome<Option<LockHolder>> {
        let open = self.file(asked.handle)?;
        Ok(open.file.lock_test_as(asked.owner(), asked.range(), asked.kind())?)
    }

    /// A process closes a descriptor: its locks on the file go, as POSIX wants it.
    pub(crate) fn unlock_closer(&self, handle: u64, owner: u64) -> Outcome<()> {
        let open = self.file(handle)?;
        open.lockers.forget(owner);
        Ok(open.file.unlock_all_as(LockOwner::Other { id: owner, pid: 0 })?)
    }
}

/// Looks after the connection to the metadata server as long as `fs` is there, so that locks survive a restart of that server
/// while the mount is idle.
pub(crate) fn keep_locks(fs: &Arc<WeftFs>) {
    let fs: Weak<WeftFs> = Arc::downgrade(fs);
    let look = move || {
        while let Some(fs) = fs.upgrade() {
            fs.look_after_locks();
            drop(fs);
            std::thread::sleep(KEEP_EVERY);
        }
    };
    // Without it, locks survive if the mount is used while the server is waiting for its clients.
    let _ = std::thread::Builder::new().name("weft-keep-locks".into()).stack_size(STACK_BYTES).spawn(look);
}
