//! The event loop, the tasks, and wake-ups from this and other threads.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use async_task::{Runnable, Task};

use crate::readiness::FdTable;
use crate::ring::Ring;
use crate::slab::Slab;
use crate::timer::Timers;

/// Tasks polled in one turn before sockets, the ring and timers are checked again.
const POLLS_PER_TURN: usize = 256;

/// The epoll key of the eventfd that other threads write to.
pub(crate) const KEY_WAKE: u64 = u64::MAX;
/// The epoll key of the io_uring descriptor.
pub(crate) const KEY_RING: u64 = u64::MAX - 1;

/// Options of a [`Reactor`]. The default has no ring and never spins.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReactorOptions {
    /// Entries of the io_uring submission queue (rounded up to a power of two by the kernel); `None`
    /// for a reactor without a ring.
    pub ring_entries: Option<u32>,
    /// Microseconds to poll for events after the last work before sleeping.
    pub spin_us: u32,
}

/// Counters of a reactor since it was created; see [`stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Polls of tasks.
    pub polls: u64,
    /// Calls of `epoll_wait` that could sleep.
    pub sleeps: u64,
    /// Calls of `epoll_wait` that only polled.
    pub looks: u64,
    /// Operations submitted to io_uring.
    pub ring_operations: u64,
    /// Calls of `io_uring_enter` that submitted them.
    pub ring_submits: u64,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

/// A one-thread executor; see the crate's documentation. It is `!Send`: create it on the thread that runs it.
pub struct Reactor {
    core: Rc<Core>,
}

/// All state of one reactor, shared by the handles that live on its thread.
pub(crate) struct Core {
    shared: Arc<Shared>,
    ready: RefCell<VecDeque<Runnable>>,
    /// One waker per live task, so that all tasks can be dropped with the reactor.
    tasks: RefCell<Slab<Option<Waker>>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) epoll: OwnedFd,
    pub(crate) fds: FdTable,
    pub(crate) ring: Option<Ring>,
    spin: Duration,
    pub(crate) stats: Cell<ReactorStats>,
}

/// The part of a reactor that other threads may access.
struct Shared {
    remote: Mutex<Vec<Runnable>>,
    has_remote: AtomicBool,
    /// Set while the reactor is in, or about to enter, an `epoll_wait` that can sleep.
    sleeping: AtomicBool,
    eventfd: OwnedFd,
}

impl Shared {
    fn schedule(self: &Arc<Self>, runnable: Runnable) {
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

    fn wake_if_sleeping(&self) {
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

/// Wakes the future given to [`Reactor::run`], which is pinned on the stack and is not a task.
struct MainWaker {
    woken: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.shared.wake_if_sleeping();
    }
}

/// Makes a core the thread's current one until dropped.
struct Entered {
    previous: Option<Rc<Core>>,
}

impl Entered {
    fn new(core: &Rc<Core>) -> Self {
        Entered { previous: CURRENT.with(|current| current.replace(Some(core.clone()))) }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.previous.take()));
    }
}

/// The current reactor's core. Panics outside [`Reactor::run`], which is a mistake of the caller.
pub(crate) fn current() -> Rc<Core> {
    try_current().expect("weft-reactor was used outside Reactor::run on this thread")
}

pub(crate) fn try_current() -> Option<Rc<Core>> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Starts a task on the current reactor. If the handle is dropped, the task continues.
///
/// A panic in a task is a defect and is not hidden: it unwinds out of [`Reactor::run`].
///
/// # Panics
/// Outside [`Reactor::run`].
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let core = current();
    let key = core.tasks.borrow_mut().insert(None);
    let entry = TaskEntry { core: core.clone(), key };
    let tracked = async move {
        let _entry = entry;
        future.await
    };
    let shared = core.shared.clone();
    let (runnable, task) = async_task::spawn_local(tracked, move |runnable| shared.schedule(runnable));
    if let Some(slot) = core.tasks.borrow_mut().get_mut(key) {
        *slot = Some(runnable.waker());
    }
    runnable.schedule();
    JoinHandle { task: Some(task) }
}

/// Removes a task from the reactor's table when its future ends or is dropped.
struct TaskEntry {
    core: Rc<Core>,
    key: u64,
}

impl Drop for TaskEntry {
    fn drop(&mut self) {
        let waker = self.core.tasks.borrow_mut().remove(self.key);
        drop(waker);
    }
}

/// The result of a spawned task: await it for the output. Dropping it detaches the task.
#[derive(Debug)]
pub struct JoinHandle<T> {
    task: Option<Task<T>>,
}

impl<T> JoinHandle<T> {
    /// Cancels the task: its future is dropped at its next turn, without being polled again.
    pub fn cancel(mut self) {
        drop(self.task.take());
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(Task::is_finished)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let task = self.task.as_mut().expect("a JoinHandle holds its task until it is dropped or cancelled");
        Pin::new(task).poll(cx)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.detach();
        }
    }
}

/// Lets every other ready task run once before this one continues.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Counters of the current reactor.
///
/// # Panics
/// Outside [`Reactor::run`].
pub fn stats() -> ReactorStats {
    current().stats.get()
}

impl Reactor {
    /// Creates a reactor for this thread.
    ///
    /// # Errors
    /// The error of `epoll_create1` or `eventfd`. With `ring_entries`, an error that says so if io_uring is
    /// missing or forbidden (kernels before 5.6, many containers): create a reactor without a ring then, and
    /// use a disk that does not need one.
    pub fn new(options: ReactorOptions) -> io::Result<Reactor> {
        // SAFETY: plain system calls; each result is checked before it becomes an owned descriptor.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))? };
        // SAFETY: as above.
        let eventfd = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))? };
        // Edge-triggered: each write is one event, and the counter never has to be read.
        epoll_add(&epoll, eventfd.as_raw_fd(), KEY_WAKE, (libc::EPOLLIN | libc::EPOLLET) as u32)?;
        let ring = options.ring_entries.map(Ring::new).transpose()?;
        if let Some(ring) = &ring {
            epoll_add(&epoll, ring.raw_fd(), KEY_RING, libc::EPOLLIN as u32)?;
        }
        let core = Core {
            shared: Arc::new(Shared {
                remote: Mutex::new(Vec::new()),
                has_remote: AtomicBool::new(false),
                sleeping: AtomicBool::new(false),
                eventfd,
            }),
            ready: RefCell::new(VecDeque::new()),
            tasks: RefCell::new(Slab::new()),
            timers: RefCell::new(Timers::new()),
            epoll,
            fds: FdTable::new(),
            ring,
            spin: Duration::from_micros(u64::from(options.spin_us)),
            stats: Cell::new(ReactorStats::default()),
        };
        Ok(Reactor { core: Rc::new(core) })
    }

    /// Runs `future` and all tasks until `future` ends, and returns its output. Remaining tasks stay,
    /// unpolled, for the next `run`, or are dropped with the reactor.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let core = &self.core;
        let _entered = Entered::new(core);
        let main = Arc::new(MainWaker { woken: AtomicBool::new(true), shared: core.shared.clone() });
        let waker = Waker::from(main.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        let mut last_work: Option<Instant> = None;
        loop {
            let mut worked = core.run_ready();
            if main.woken.swap(false, Ordering::SeqCst) {
                worked = true;
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
            }
            worked |= core.turn_ring();
            worked |= core.timers.borrow_mut().fire();
            if worked && core.spin > Duration::ZERO {
                last_work = Some(Instant::now());
            }
            core.wait(&main, last_work);
        }
    }
}

impl Drop for Reactor {
    /// Drops every task, then waits for the ring's operations in flight, whose memory they hold.
    fn drop(&mut self) {
        let _entered = Entered::new(&self.core);
        while self.core.tasks.borrow().len() > 0 {
            let wakers: Vec<Waker> = self.core.tasks.borrow().values().flatten().cloned().collect();
            wakers.into_iter().for_each(Waker::wake);
            while let Some(runnable) = self.core.next_ready() {
                drop(runnable);
            }
            // Another thread may be between waking a task and queueing it.
            std::thread::yield_now();
        }
        if let Some(ring) = &self.core.ring {
            ring.finish();
        }
    }
}

impl Core {
    fn next_ready(&self) -> Option<Runnable> {
        let remote = self.shared.take_remote();
        let mut ready = self.ready.borrow_mut();
        ready.extend(remote);
        ready.pop_front()
    }

    /// Polls ready tasks, at most one batch. Returns whether there was one.
    fn run_ready(&self) -> bool {
        let mut polls = 0;
        while polls < POLLS_PER_TURN {
            let Some(runnable) = self.next_ready() else { break };
            polls += 1;
            runnable.run();
        }
        self.count(|stats| stats.polls += polls as u64);
        polls > 0
    }

    fn turn_ring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.turn(self))
    }

    pub(crate) fn count(&self, update: impl FnOnce(&mut ReactorStats)) {
        let mut stats = self.stats.get();
        update(&mut stats);
        self.stats.set(stats);
    }

    /// Polls for events, or sleeps until there are some if no work is left.
    fn wait(&self, main: &MainWaker, last_work: Option<Instant>) {
        let busy = !self.ready.borrow().is_empty()
            || main.woken.load(Ordering::SeqCst)
            || self.ring.as_ref().is_some_and(Ring::has_unsubmitted)
            || last_work.is_some_and(|instant| instant.elapsed() < self.spin);
        if busy {
            return self.poll_events(0);
        }
        self.shared.sleeping.store(true, Ordering::SeqCst);
        // A wake-up between the last poll and the store above wrote nothing to the eventfd.
        let missed = self.shared.has_remote.load(Ordering::SeqCst) || main.woken.load(Ordering::SeqCst);
        let timeout_ms = if missed { 0 } else { self.timers.borrow_mut().wait_ms() };
        self.poll_events(timeout_ms);
    }

    /// Calls `epoll_wait` once (a `timeout_ms` of -1 waits without limit), and wakes the tasks of its events.
    fn poll_events(&self, timeout_ms: i32) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 128];
        self.count(|stats| if timeout_ms == 0 { stats.looks += 1 } else { stats.sleeps += 1 });
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
            if key != KEY_WAKE && key != KEY_RING {
                self.fds.deliver(key, bits);
            }
        }
    }
}

pub(crate) fn epoll_add(epoll: &OwnedFd, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, key, events)
}

/// Changes the events of a descriptor. Pending ones are reported again.
pub(crate) fn epoll_change(epoll: &OwnedFd, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    epoll_control(epoll, libc::EPOLL_CTL_MOD, fd, key, events)
}

fn epoll_control(epoll: &OwnedFd, operation: i32, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: key };
    // SAFETY: `event` is live for the call; a bad descriptor is reported as an error.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// `fd` is the result of a system call that returns a new descriptor or -1.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: not negative, so it is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
