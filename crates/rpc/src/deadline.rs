//! The time that one operation has, however many requests, servers and attempts it takes.
//!
//! ```text
//!   operation (an API call, a request of a kernel)     begin ├──────────── retry_timeout_ms ───────────┤ end
//!     request to meta0                                       ├───┤
//!     requests to io0 and io1, with what is left                 ├──────┤ ·· pause ├─ attempt ─┤ ETIMEDOUT
//! ```
//!
//! The library has no threads, so the operation is the thread's: whoever makes requests, or a connection,
//! asks here for the time that is left. An operation within another has the time of that one.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use weft_log::trace::Scope;

use crate::wait::take_interruption;
use crate::waits;

/// How often a thread that waits looks whether its wait is to end.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An attempt to connect gets this much, also where nothing is left: it may be all that is needed.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);

/// Says whether a wait is to end.
type Look = Box<dyn Fn() -> bool>;

thread_local! {
    static CURRENT: Cell<Option<Current>> = const { Cell::new(None) };
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
    /// It has said so in the present operation.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug, Clone, Copy)]
struct Current {
    /// `None`: it goes on for ever.
    end: Option<Instant>,
}

/// The operation of the calling thread, until it is dropped.
#[must_use = "it ends when it is dropped"]
pub struct Operation {
    outer: Option<Current>,
    trace: Scope,
    /// It is of this thread.
    _thread: PhantomData<*const ()>,
}

impl Operation {
    /// Begins one with this much time, `None` for any; within another it has the time of that one.
    pub fn begin(timeout: Option<Duration>) -> Operation {
        let outer = CURRENT.get();
        if outer.is_none() {
            waits::begin();
            INTERRUPTED.set(false);
            CURRENT.set(Some(Current { end: timeout.map(|timeout| Instant::now() + timeout) }));
        }
        Operation { outer, trace: Scope::begin(), _thread: PhantomData }
    }

    /// A part of the present operation that may take no longer than `most`.
    pub fn part(most: Duration) -> Operation {
        let outer = CURRENT.get();
        let limit = Instant::now() + most.max(ATTEMPT_MIN);
        let end = outer.and_then(|outer| outer.end).map_or(limit, |end| end.min(limit));
        CURRENT.set(Some(Current { end: Some(end) }));
        Operation { outer, trace: Scope::begin(), _thread: PhantomData }
    }

    /// The id that its requests have in the logs of all servers.
    pub fn trace(&self) -> u64 {
        self.trace.id()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}

/// When a request that is made now is to be given up: with its operation.
pub fn end(timeout: Option<Duration>) -> Option<Instant> {
    match CURRENT.get() {
        Some(current) => current.end,
        None => timeout.map(|timeout| Instant::now() + timeout),
    }
}

/// What is left of the operation, `most` at most, and a little in any case.
pub fn left(most: Duration) -> Duration {
    let end = CURRENT.get().and_then(|current| current.end);
    let left = end.map_or(most, |end| end.saturating_duration_since(Instant::now()).min(most));
    left.max(ATTEMPT_MIN.min(most))
}

/// The operation has moved data, and begins anew: it may be as long as it likes while it moves on.
pub fn moved_on(timeout: Option<Duration>) {
    if let (Some(current), Some(timeout)) = (CURRENT.get(), timeout) {
        CURRENT.set(Some(Current { end: current.end.map(|end| end.max(Instant::now() + timeout)) }));
    }
}

/// Has operations of this thread end with `EINTR` as soon as `look` says so, which is asked every 50 ms while
/// one waits; for threads that work on behalf of processes that may be interrupted.
pub fn end_waits_when(look: impl Fn() -> bool + 'static) {
    LOOK.with_borrow_mut(|place| *place = Some(Box::new(look)));
}

/// Whether somebody is to be asked while this thread waits.
pub fn is_looked_after() -> bool {
    LOOK.try_with(|look| look.borrow().is_some()).unwrap_or(false)
}

/// Whether the wait of this thread is to end now.
pub fn is_interrupted() -> bool {
    let says_so = || LOOK.try_with(|look| look.borrow().as_ref().is_some_and(|look| look())).unwrap_or(false);
    let is_interrupted = INTERRUPTED.get() || says_so();
    INTERRUPTED.set(is_interrupted);
    is_interrupted
}

/// Whether a signal has ended a sleep of this thread, where no one else is to be asked.
pub fn was_signalled() -> bool {
    !is_looked_after() && take_interruption()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_an_operation_consists_of_has_its_time() {
        assert!(end(None).is_none() && left(SECOND) == SECOND);
        let outer = Operation::begin(Some(10 * SECOND));
        let ends = end(Some(SECOND));
        let inner = Operation::begin(Some(99 * SECOND));
        assert_eq!(end(Some(SECOND)), ends);
        drop(inner);
        let part = Operation::part(SECOND);
        assert!(end(None) < ends && left(9 * SECOND) <= SECOND);
        drop(part);
        assert_eq!(end(None), ends);
        drop(outer);
        assert!(end(None).is_none());
    }

    #[test]
    fn one_that_goes_on_for_ever_has_attempts_that_do_not() {
        let _hard = Operation::begin(None);
        assert!(end(Some(SECOND)).is_none());
        let _attempt = Operation::part(SECOND);
        assert!(end(None).is_some() && left(9 * SECOND) <= SECOND);
    }

    #[test]
    fn who_moves_data_has_time_anew_and_who_has_none_left_may_still_try() {
        let over = Operation::begin(Some(Duration::ZERO));
        assert_eq!(left(SECOND), ATTEMPT_MIN);
        moved_on(Some(10 * SECOND));
        assert!(left(99 * SECOND) > 9 * SECOND);
        drop(over);
        moved_on(Some(SECOND));
        assert!(end(None).is_none());
    }
}
