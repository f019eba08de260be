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

use crate::fs::WeftFs;
use crate::kernel::answer::Later;
use crate::outcome::{Errno, Outcome};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use weft_client::{File, LockHolder, LockKind, LockOwner, LockTarget, LockWait};

/// Requests for locks under way at once.
const THREADS_MAX: usize = 4096;
const STACK_BYTES: usize = 256 << 10;
/// How often a mount with locks looks after its connection.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// A request of the kernel's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockAsked {
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) exclusive: bool,
    pub(crate) pid: u32,
    /// By flock(2): a lock on the whole file, which those on its bytes are nothing to.
    pub(crate) flock: bool,
    pub(crate) wait: bool,
}

impl LockAsked {
    fn owner(&self) -> LockOwner {
        LockOwner::Other { id: self.owner, pid: self.pid }
    }

    fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }

    fn target(&self) -> LockTarget {
        if self.flock { LockTarget::Whole } else { LockTarget::Range { first: self.first, last: self.last } }
    }
}

/// Interrupts that are remembered before their request was seen; they come by other threads.
const EARLY_MAX: usize = 1024;

/// Which of the requests that wait are to end, because a signal came for who asked.
#[derive(Clone, Default)]
pub(crate) struct Interrupts(Arc<Mutex<Interrupted>>);

#[derive(Default)]
struct Interrupted {
    waiting: HashMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
}

/// The wait of one request.
pub(crate) struct Interrupt {
    came: Arc<AtomicBool>,
    unique: u64,
    all: Arc<Mutex<Interrupted>>,
}

impl Interrupts {
    /// The kernel says that this request is to end.
    pub(crate) fn came(&self, unique: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.waiting.get(&unique) {
            Some(came) => came.store(true, Ordering::Relaxed),
            None => {
                if all.early.len() == EARLY_MAX {
                    all.early.pop_front();
                }
                all.early.push_back(unique);
            }
        }
    }

    /// Whether this request is to end, which was not expected to wait; said once.
    pub(crate) fn take(&self, unique: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.early.iter().position(|early| *early == unique);
        at.is_some_and(|at| all.early.remove(at).is_some())
    }

    /// This request may wait.
    pub(crate) fn expect(&self, unique: u64) -> Interrupt {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let came = Arc::new(AtomicBool::new(all.early.contains(&unique)));
        all.waiting.insert(unique, came.clone());
        Interrupt { came, unique, all: self.0.clone() }
    }
}

impl Interrupt {
    fn has_come(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).waiting.remove(&self.unique);
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
    pub(crate) fn start_lock(self: &Arc<Self>, asked: LockAsked, interrupt: Interrupt, mut reply: Later) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        struct Running;
        impl Drop for Running {
            fn drop(&mut self) {
                THREADS.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let running = Running;
        if THREADS.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            return reply.give(Err(Errno(libc::ENOLCK)));
        }
        let fs = self.clone();
        let work = move || {
            let outcome = fs.lock(asked, &interrupt, &mut reply);
            drop(interrupt);
            reply.give(outcome);
            drop(running);
        };
        // Where no thread can be started, the reply is dropped with the work, and the kernel told EIO.
        let _ = std::thread::Builder::new().name("weft-lock".into()).stack_size(STACK_BYTES).spawn(work);
    }

    fn lock(&self, asked: LockAsked, interrupt: &Interrupt, reply: &mut Later) -> Outcome<()> {
        let open = self.file(asked.handle)?;
        let reply = RefCell::new(reply);
        let is_over = || {
            reply.borrow_mut().waits();
            interrupt.has_come()
        };
        let wait = if asked.wait { LockWait::Until(&is_over) } else { LockWait::Never };
        open.lockers.note(asked.owner);
        // Pages that were changed under a lost lock go before anything can be written again.
        let forget = || self.forget_contents(open.file.ino());
        Ok(open.file.lock_then(asked.owner(), asked.target(), asked.kind(), wait, &forget)?)
    }

    pub(crate) fn unlock(&self, asked: LockAsked) -> Outcome<()> {
        let open = self.file(asked.handle)?;
        Ok(open.file.unlock_as(asked.owner(), asked.target())?)
    }

    /// A lock of another that is in the way.
    pub(crate) fn test_lock(&self, asked: LockAsked) -> Outcome<Option<LockHolder>> {
        let open = self.file(asked.handle)?;
        Ok(open.file.lock_test_as(asked.owner(), asked.target(), asked.kind())?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_its_request_whichever_comes_first() {
        let interrupts = Interrupts::default();
        let (one, two) = (interrupts.expect(2), interrupts.expect(4));
        interrupts.came(4);
        interrupts.came(6);
        assert!(!one.has_come() && two.has_come() && interrupts.expect(6).has_come());
        drop((one, two));
        assert!(interrupts.0.lock().unwrap().waiting.is_empty());
    }

    #[test]
    fn interrupts_of_requests_that_never_wait_are_forgotten() {
        let interrupts = Interrupts::default();
        (0..2 * EARLY_MAX as u64).for_each(|unique| interrupts.came(unique));
        assert_eq!(interrupts.0.lock().unwrap().early.len(), EARLY_MAX);
        assert!(interrupts.take(EARLY_MAX as u64 + 7) && !interrupts.take(EARLY_MAX as u64 + 7));
        assert!(!interrupts.expect(0).has_come() && interrupts.expect(2 * EARLY_MAX as u64 - 1).has_come());
    }
}
