//! Timers: a heap of deadlines. A dropped timer stays in the heap as a dead entry until it is at the top, or
//! until most entries are dead. So a timeout that never fires costs two cheap operations. The resolution is
//! one millisecond, rounded up.

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::executor::{Core, current};

pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<Entry>>,
    next_sequence: u64,
    dead: usize,
}

struct Entry {
    deadline: Instant,
    sequence: u64,
    state: Rc<TimerState>,
}

struct TimerState {
    phase: Cell<Phase>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    Fired,
    Dead,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.deadline, self.sequence).cmp(&(other.deadline, other.sequence))
    }
}

impl Timers {
    pub(crate) fn new() -> Self {
        Timers { heap: BinaryHeap::new(), next_sequence: 0, dead: 0 }
    }

    fn insert(&mut self, deadline: Instant, waker: Waker) -> Rc<TimerState> {
        let state =
            Rc::new(TimerState { phase: Cell::new(Phase::Waiting), waker: RefCell::new(Some(waker)) });
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.heap.push(Reverse(Entry { deadline, sequence, state: state.clone() }));
        state
    }

    fn forget_one(&mut self) {
        self.dead += 1;
        if self.dead > 64 && self.dead > self.heap.len() / 2 {
            self.heap.retain(|Reverse(entry)| entry.state.phase.get() != Phase::Dead);
            self.dead = 0;
        }
    }

    /// Wakes the owners of all due timers, by deadline, then by creation.
    pub(crate) fn fire(&mut self) -> bool {
        if self.heap.is_empty() {
            return false;
        }
        let now = Instant::now();
        let mut fired = false;
        while let Some(Reverse(top)) = self.heap.peek() {
            let dead = top.state.phase.get() == Phase::Dead;
            if !dead && top.deadline > now {
                break;
            }
            let Some(Reverse(entry)) = self.heap.pop() else { break };
            if dead {
                self.dead -= 1;
                continue;
            }
            fired = true;
            entry.state.phase.set(Phase::Fired);
            if let Some(waker) = entry.state.waker.take() {
                waker.wake();
            }
        }
        fired
    }

    /// Milliseconds until the next living timer, rounded up; -1 if there is none.
    pub(crate) fn wait_ms(&mut self) -> i32 {
        while let Some(Reverse(top)) = self.heap.peek() {
            if top.state.phase.get() == Phase::Dead {
                self.heap.pop();
                self.dead -= 1;
                continue;
            }
            let left = top.deadline.saturating_duration_since(Instant::now());
            return left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        }
        -1
    }
}

/// Waits for `duration` (resolution one millisecond, never early).
///
/// # Panics
/// When awaited outside [`Reactor::run`](crate::Reactor::run).
pub fn sleep(duration: Duration) -> Sleep {
    // A duration beyond the clock's range means "without limit"; a century is enough.
    let far = Duration::from_secs(100 * 365 * 24 * 3600);
    sleep_until(Instant::now() + duration.min(far))
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, armed: None }
}

/// The future of [`sleep`].
pub struct Sleep {
    deadline: Instant,
    armed: Option<(Rc<Core>, Rc<TimerState>)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((_, state)) = &self.armed {
            if state.phase.get() == Phase::Fired {
                return Poll::Ready(());
            }
            state.waker.borrow_mut().get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            return Poll::Pending;
        }
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let core = current();
        let state = core.timers.borrow_mut().insert(self.deadline, cx.waker().clone());
        self.armed = Some((core, state));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((core, state)) = self.armed.take()
            && state.phase.get() == Phase::Waiting
        {
            state.phase.set(Phase::Dead);
            drop(state.waker.take());
            core.timers.borrow_mut().forget_one();
        }
    }
}

/// The time of a [`timeout`] ran out first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the operation timed out")
    }
}

impl std::error::Error for Elapsed {}

/// Runs `future` for at most `duration`. It is dropped when the time is up.
///
/// # Errors
/// [`Elapsed`] when the time ran out. A future that is ready at the first poll always wins.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut limit = pin!(sleep(duration));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        limit.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
