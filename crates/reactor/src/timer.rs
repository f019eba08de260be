//! Sleeping, and limits of time for other futures.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::state::{Core, current};
use crate::timers::{Phase, TimerState};

/// Waits for `duration`, never for less.
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
