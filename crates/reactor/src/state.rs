//! The state of one reactor: ready tasks, timers, descriptors and the ring; and which reactor is the thread's
//! current one.
//!
//! ```text
//!   executor.rs   Reactor, spawn    ─┐                 ┌─► timers.rs        a heap of deadlines
//!   timer.rs      sleep, timeout    ─┤ current() ─► Core ─► alarm.rs         what wakes it for the next of them
//!   readiness.rs  Readiness         ─┤                 ├─► descriptors.rs   who waits for which descriptor
//!   ring.rs       submit            ─┘                 ├─► operations.rs    what the ring has in hand
//!                                                      └─► epoll.rs         the calls of the kernel
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use async_task::Runnable;

use crate::alarm::Alarm;
use crate::descriptors::FdTable;
use crate::epoll::{KEY_ALARM, KEY_RING, KEY_WAKE, epoll_add, owned};
use crate::operations::Ring;
use crate::slab::Slab;
use crate::timers::Timers;

/// Tasks polled in one turn before sockets, the ring and timers are checked again.
const POLLS_PER_TURN: usize = 256;
/// Limits of `epoll_wait`, in milliseconds.
const NO_WAIT: i32 = 0;
const NO_LIMIT: i32 = -1;

/// Options of a [`Reactor`](crate::Reactor). The default has no ring and never spins.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReactorOptions {
    /// Entries of the io_uring submission queue (rounded up to a power of two by the kernel); `None`
    /// for a reactor without a ring.
    pub ring_entries: Option<u32>,
    /// Microseconds to poll for events after the last work before sleeping.
    pub spin_us: u32,
}

/// Counters of a reactor since it was created; see [`stats`](crate::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Polls of tasks.
    pub polls: u64,
    /// Calls of `epoll_wait` that could sleep.
    pub sleeps: u64,
    /// Calls of `epoll_wait` that only polled.
    pub looks: u64,
    /// Calls of `timerfd_settime` for the next timer.
    pub alarms: u64,
    /// Operations submitted to io_uring.
    pub ring_operations: u64,
    /// Calls of `io_uring_enter` that submitted them.
    pub ring_submits: u64,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// All state of one reactor, shared by the handles that live on its thread.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    ready: RefCell<VecDeque<Runnable>>,
    /// One waker per live task, so that all tasks can be dropped with the reactor.
    pub(crate) tasks: RefCell<Slab<Option<Waker>>>,
    pub(crate) timers: RefCell<Timers>,
    alarm: Alarm,
    pub(crate) epoll: OwnedFd,
    pub(crate) fds: FdTable,
    pub(crate) ring: Option<Ring>,
    pub(crate) spin: Duration,
    pub(crate) stats: Cell<ReactorStats>,
}

/// The part of a reactor that other threads may access.
pub(crate) struct Shared {
    remote: Mutex<Vec<Runnable>>,
    has_remote: AtomicBool,
    /// Set while the reactor is in, or about to enter, an `epoll_wait` that can sleep.
    sleeping: AtomicBool,
    eventfd: OwnedFd,
}

impl Shared {
    pub(crate) fn schedule(self: &Arc<Self>, runnable: Runnable) {
        let mut runnable = Some(runnable);
        // The thread-local is missing only while its thread ends. The wake-up then counts as a remote one.
        let _ = CURRENT.try_with(|current| {
            if let Some(core) = current.borrow().as_ref().filter(|core| Arc::ptr_eq(&core.shared, self)) {
                core.ready.borrow_mut().extend(runnable.take());
            }
        });
        if let Some(runnable) = runnable {
            self.remote.lock().unwrap_or_else(PoisonError::into_inner).push(runnable);
            self.has_remote.store(true, Ordering::SeqCst);
            self.wake_if_sleeping();
        }
    }

    pub(crate) fn wake_if_sleeping(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: writes 8 bytes from a live array to a descriptor this struct owns. The counter
            // cannot overflow in practice, and a full counter still leaves the descriptor readable.
            unsafe { libc::write(self.eventfd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    fn take_remote(&self) -> Vec<Runnable> {
        if !self.has_remote.load(Ordering::SeqCst) {
            return Vec::new();
        }
        // Cleared first: a task queued after that sets it again.
        self.has_remote.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.remote.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes a core the thread's current one until dropped.
pub(crate) struct Entered {
    previous: Option<Rc<Core>>,
}

impl Entered {
    pub(crate) fn new(core: &Rc<Core>) -> Self {
        Entered { previous: CURRENT.with(|current| current.replace(Some(core.clone()))) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.previous.take()));
    }
}

/// The current reactor's core. Panics outside [`Reactor::run`](crate::Reactor::run), which is a mistake of the caller.
pub(crate) fn current() -> Rc<Core> {
    try_current().expect("weft-reactor was used outside Reactor::run on this thread")
}

pub(crate) fn try_current() -> Option<Rc<Core>> {
    CURRENT.with(|current| current.borrow().clone())
}

impl Core {
    /// With descriptors of its own; see [`Reactor::new`](crate::Reactor::new) for errors.
    pub(crate) fn new(options: ReactorOptions) -> io::Result<Core> {
        // SAFETY: plain system calls; each result is checked before it becomes an owned descriptor.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        // SAFETY: as above.
        let eventfd = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))? };
        // Edge-triggered: each write is one event, and the counter never has to be read.
        epoll_add(&epoll, eventfd.as_raw_fd(), KEY_WAKE, (libc::EPOLLIN | libc::EPOLLET) as u32)?;
        let alarm = Alarm::new()?;
        // Edge-triggered, as above: it never has to be read.
        epoll_add(&epoll, alarm.raw_fd(), KEY_ALARM, (libc::EPOLLIN | libc::EPOLLET) as u32)?;
        let ring = options.ring_entries.map(Ring::new).transpose()?;
        if let Some(ring) = &ring {
            epoll_add(&epoll, ring.raw_fd(), KEY_RING, libc::EPOLLIN as u32)?;
        }
        Ok(Core {
            shared: Arc::new(Shared {
                remote: Mutex::new(Vec::new()),
                has_remote: AtomicBool::new(false),
                sleeping: AtomicBool::new(false),
                eventfd,
            }),
            ready: RefCell::new(VecDeque::new()),
            tasks: RefCell::new(Slab::new()),
            timers: RefCell::new(Timers::new()),
            alarm,
            epoll,
            fds: FdTable::new(),
            ring,
            spin: Duration::from_micros(u64::from(options.spin_us)),
            stats: Cell::new(ReactorStats::default()),
        })
    }

    pub(crate) fn next_ready(&self) -> Option<Runnable> {
        let remote = self.shared.take_remote();
        let mut ready = self.ready.borrow_mut();
        ready.extend(remote);
        ready.pop_front()
    }

    /// Polls ready tasks, at most one batch. Returns whether there was one.
    pub(crate) fn run_ready(&self) -> bool {
        let mut polls = 0;
        while polls < POLLS_PER_TURN {
            let Some(runnable) = self.next_ready() else { break };
            polls += 1;
            runnable.run();
        }
        self.count(|stats| stats.polls += polls as u64);
        polls > 0
    }

    /// Submits new operations of the ring and reaps completed ones. Returns whether any completed.
    pub(crate) fn turn_ring(&self) -> bool {
        let Some(ring) = &self.ring else { return false };
        let (operations, submits) = ring.submit();
        if submits > 0 {
            self.count(|stats| {
                stats.ring_operations += operations;
                stats.ring_submits += submits;
            });
        }
        ring.reap()
    }

    fn count(&self, update: impl FnOnce(&mut ReactorStats)) {
        let mut stats = self.stats.get();
        update(&mut stats);
        self.stats.set(stats);
    }

    /// Polls for events, or sleeps until there are some if no work is left.
    pub(crate) fn wait(&self, main_woken: &AtomicBool, last_work: Option<Instant>) {
        let busy = !self.ready.borrow().is_empty()
            || main_woken.load(Ordering::SeqCst)
            || self.ring.as_ref().is_some_and(Ring::has_unsubmitted)
            || last_work.is_some_and(|instant| instant.elapsed() < self.spin);
        if busy {
            return self.poll_events(NO_WAIT);
        }
        self.shared.sleeping.store(true, Ordering::SeqCst);
        // A wake-up between the last poll and the store above wrote nothing to the eventfd.
        let missed = self.shared.has_remote.load(Ordering::SeqCst) || main_woken.load(Ordering::SeqCst);
        if missed {
            return self.poll_events(NO_WAIT);
        }
        if let Some(deadline) = self.timers.borrow_mut().next()
            && self.alarm.arm_by(deadline)
        {
            self.count(|stats| stats.alarms += 1);
        }
        self.poll_events(NO_LIMIT);
    }

    /// Calls `epoll_wait` once, and wakes the tasks of its events.
    fn poll_events(&self, timeout_ms: i32) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 128];
        self.count(|stats| if timeout_ms == NO_WAIT { stats.looks += 1 } else { stats.sleeps += 1 });
        // SAFETY: `events` is a live array of the length given.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout_ms)
        };
        // Before the wake-ups below, which need no further one.
        self.shared.sleeping.store(false, Ordering::SeqCst);
        if count < 0 {
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "epoll_wait failed: {error}");
            return;
        }
        for event in &events[..count as usize] {
            // The struct is packed: copy the fields out instead of referring to them.
            let (key, bits) = (event.u64, event.events);
            match key {
                KEY_WAKE | KEY_RING => {}
                KEY_ALARM => self.alarm.expired(),
                _ => self.fds.deliver(key, bits),
            }
        }
    }
}
