//! Requests whose handler panics. The kernel gets EIO, the panic is logged and counted, and the thread serves the next request.

use super::answer::Answer;
use crate::metrics::Metrics;
use crate::slow::{Noted, Served};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How the serving of a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Ended {
    /// It was answered, needs no answer, or another thread answers.
    Well,
    /// It panicked before it answered: the kernel waits, and must get EIO.
    Unanswered,
}

/// Has `serve` serve a request of this name.
pub(super) fn guarded<'a, A: Answer>(
    name: &str,
    served: &'a Served,
    metrics: Option<&Metrics>,
    answer: A,
    serve: impl FnOnce(Noted<'a, A>),
) -> Ended {
    // A panic leaves the state that an error leaves: poisoned locks are taken over.
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| serve(served.answer(answer)))) else {
        return Ended::Well;
    };
    if let Some(metrics) = metrics {
        metrics.panicked();
    }
    let what = text_of(&*panic);
    tracing::error!(
        call = name,
        "serving {name} panicked: {what}; the program is told EIO, and the mount goes on. This is a bug of Weft: report it \
         with the lines before this one"
    );
    if served.is_in_good_hands() {
        return Ended::Well;
    }
    served.failed(libc::EIO);
    Ended::Unanswered
}

/// The message of a panic.
pub(super) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
