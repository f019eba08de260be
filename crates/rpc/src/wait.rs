//! How a thread waits for answers that another thread may receive for it.
//!
//! ```text
//!   waiting thread W                              thread R, which reads W's lane as well
//!   sleeping := true                              answer := …; ready := true
//!   ready? then do not sleep                      sleeping? then write W's eventfd
//!   poll(lanes …, own eventfd)
//! ```
//!
//! Both sides write first and read then, in one total order, so at least one of them sees the other. A thread
//! that has its lanes for itself never has its eventfd written.
//!
//! The descriptor of a lane over RDMA is not readable before its completion queue was armed (IB 3.2.4). A
//! thread that watches leaves it as it is; one that is about to sleep arms it, and looks once more:
//!
//! ```text
//!   watch … watch │ take wake-ups, look, arm, look │ sleeping := true │ ready? │ poll(lanes …)
//!                 └──────── prepare_sleep ─────────┘
//! ```
//!
//! Wake-ups are taken out of a descriptor only by those who arm it again at once, so a thread that sleeps on
//! it sleeps armed.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use smallvec::SmallVec;
use weft_transport::Completion;

use crate::fork;

/// Locks; a panic of another thread does not make the data unusable, for no lock is held while foreign code
/// runs.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`]; `None` where another thread has it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// How long a thread sleeps at a time where the process has no descriptor left to wake it.
const STEP_WITHOUT_WAKER_MS: u64 = 2;

/// Wakes one sleeping thread.
pub(crate) struct Waker {
    /// `None` where the process has no descriptor left: the thread then sleeps in short steps.
    event: Option<OwnedFd>,
    sleeping: AtomicBool,
    generation: u64,
}

thread_local! {
    static WAKER: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
    /// A sleep of this thread was ended by a signal.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a signal has ended a sleep of this thread since the last call.
pub fn take_interruption() -> bool {
    INTERRUPTED.replace(false)
}

impl Waker {
    /// This thread's.
    pub(crate) fn current() -> Arc<Waker> {
        let current = WAKER.try_with(|waker| {
            let mut waker = waker.borrow_mut();
            match &*waker {
                Some(waker) if waker.generation == fork::generation() => waker.clone(),
                _ => {
                    let fresh = Arc::new(Waker::new());
                    // A parent's is kept by its parent; closing the child's copy disturbs nobody.
                    *waker = Some(fresh.clone());
                    fresh
                }
            }
        });
        // A thread that is ending has lost its own: streams are flushed after that.
        current.unwrap_or_else(|_| Arc::new(Waker::new()))
    }

    fn new() -> Waker {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: a new descriptor that nobody else owns.
        let event = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        Waker { event, sleeping: AtomicBool::new(false), generation: fork::generation() }
    }

    /// To be polled with the lanes.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.event.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// From now on this thread has to be woken; what it waits for is to be looked at once more after this.
    pub(crate) fn about_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
    }

    /// The thread is awake. `signalled`: its descriptor was readable.
    pub(crate) fn awake(&self, signalled: bool) {
        self.sleeping.store(false, Ordering::SeqCst);
        if let (true, Some(fd)) = (signalled, self.fd()) {
            let mut count = [0u8; 8];
            // SAFETY: 8 live bytes.
            unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
        }
    }

    /// How long this thread may sleep that would sleep so long.
    pub(crate) fn longest_sleep(&self, longest: Duration) -> Duration {
        match self.event {
            Some(_) => longest,
            None => longest.min(Duration::from_millis(STEP_WITHOUT_WAKER_MS)),
        }
    }

    fn wake(&self) {
        if let (true, Some(fd)) = (self.sleeping.load(Ordering::SeqCst), self.fd()) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: 8 live bytes.
            unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
        }
    }
}

/// Why a lane's requests will not be answered.
#[derive(Debug, Clone)]
pub(crate) struct LaneFailure(pub Arc<str>);

/// Where the reply to one request is put.
#[derive(Default)]
pub(crate) struct Answer {
    ready: AtomicBool,
    state: Mutex<AnswerState>,
}

#[derive(Default)]
struct AnswerState {
    result: Option<Result<Completion, LaneFailure>>,
    waker: Option<Arc<Waker>>,
}

impl Answer {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// Whom to wake when it is ready.
    pub(crate) fn wake_on_ready(&self, waker: &Arc<Waker>) {
        lock(&self.state).waker = Some(waker.clone());
    }

    pub(crate) fn complete(&self, result: Result<Completion, LaneFailure>) {
        let mut state = lock(&self.state);
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        self.ready.store(true, Ordering::SeqCst);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// What came, once [`Answer::is_ready`].
    pub(crate) fn take(&self) -> Option<Result<Completion, LaneFailure>> {
        lock(&self.state).result.take()
    }
}

/// What a thread sleeps for. Up to [`POLLED_INLINE`] descriptors take no allocation.
pub(crate) struct PollSet {
    entries: SmallVec<[libc::pollfd; POLLED_INLINE]>,
}

/// Lanes that a sleep waits on without an allocation.
pub(crate) const POLLED_INLINE: usize = 16;

impl PollSet {
    pub(crate) fn new() -> PollSet {
        PollSet { entries: SmallVec::new() }
    }

    pub(crate) fn add(&mut self, fd: RawFd, writable: bool) {
        let events = libc::POLLIN | if writable { libc::POLLOUT } else { 0 };
        self.entries.push(libc::pollfd { fd, events, revents: 0 });
    }

    /// The descriptors, with that of `waker`.
    pub(crate) fn entries(mut self, waker: &Waker) -> impl Iterator<Item = libc::pollfd> {
        waker.fd().inspect(|fd| self.add(*fd, false));
        self.entries.into_iter()
    }

    /// Sleeps until something is there or `timeout_ms` are over. Says whether the entry of `waker` was
    /// readable.
    pub(crate) fn sleep(mut self, waker: &Waker, timeout_ms: u64) -> bool {
        let mut timeout_ms = timeout_ms;
        match waker.fd() {
            Some(fd) => self.add(fd, false),
            None => timeout_ms = timeout_ms.min(STEP_WITHOUT_WAKER_MS),
        }
        let timeout = i32::try_from(timeout_ms).unwrap_or(i32::MAX);
        // SAFETY: the entries are live. An interruption is a wake-up like another.
        let count =
            unsafe { libc::poll(self.entries.as_mut_ptr(), self.entries.len() as libc::nfds_t, timeout) };
        if count < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
            INTERRUPTED.set(true);
        }
        let waker_entry = waker.fd().and_then(|_| self.entries.last());
        count > 0 && waker_entry.is_some_and(|entry| entry.revents != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use weft_wire::{Header, Op};

    fn completion() -> Completion {
        Completion { header: Header::request(Op::Ping, 1), body: vec![7], delivered_bytes: 0 }
    }

    #[test]
    fn a_sleeper_is_woken_by_the_thread_that_got_its_answer() {
        let answer = Arc::new(Answer::default());
        let waker = Waker::current();
        answer.wake_on_ready(&waker);
        let other = answer.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            other.complete(Ok(completion()));
        });
        let begin = Instant::now();
        while !answer.is_ready() {
            waker.about_to_sleep();
            let signalled = !answer.is_ready() && PollSet::new().sleep(&waker, 10_000);
            waker.awake(signalled);
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(answer.take().unwrap().unwrap().body, [7]);
        thread.join().unwrap();
    }

    #[test]
    fn nobody_writes_the_descriptor_of_a_thread_that_is_awake() {
        let answer = Answer::default();
        let waker = Waker::current();
        answer.wake_on_ready(&waker);
        answer.complete(Err(LaneFailure("gone".into())));
        assert!(!PollSet::new().sleep(&waker, 0));
        assert!(answer.is_ready() && answer.take().unwrap().is_err() && answer.take().is_none());
    }

    #[test]
    fn no_wake_up_is_lost() {
        let waker = Waker::current();
        for _ in 0..2000 {
            let answer = Arc::new(Answer::default());
            answer.wake_on_ready(&waker);
            let other = answer.clone();
            let thread = std::thread::spawn(move || other.complete(Ok(completion())));
            let begin = Instant::now();
            while !answer.is_ready() {
                waker.about_to_sleep();
                let signalled = !answer.is_ready() && PollSet::new().sleep(&waker, 5_000);
                waker.awake(signalled);
            }
            assert!(begin.elapsed() < Duration::from_secs(4));
            thread.join().unwrap();
        }
    }
}
