//! io_uring operations of the current reactor.
//!
//! Operations are collected while tasks run, and submitted in one `io_uring_enter` per turn of the loop. The
//! memory of an operation belongs to its `keepalive`, which the ring holds until the kernel has completed the
//! operation. So a future may be dropped at any time:
//!
//! ```text
//!   submit(entry, keepalive) -> slot { keepalive, waker }     future dropped: the slot stays
//!        |                        ^
//!        v                        | completion: result to the future, keepalive dropped
//!      kernel --------------------+
//! ```

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::state::{Core, current, try_current};

pub use io_uring::squeue::Entry;

/// Whether the current reactor has a ring. `false` outside a reactor.
pub fn is_available() -> bool {
    try_current().is_some_and(|core| core.ring.is_some())
}

/// Queues one operation. The future returns its result: a count or a negated errno (`-ENOSYS` if the current
/// reactor has no ring). `keepalive` is dropped when the kernel has completed the operation, which may be
/// long after the future was dropped. The entry's `user_data` is overwritten.
///
/// # Safety
/// Every descriptor and all memory the entry refers to must stay valid until `keepalive` is dropped, and
/// until then no Rust reference may exist to memory that the kernel writes, nor an exclusive one to
/// memory that it reads. Multishot operations are not allowed.
///
/// # Panics
/// Outside [`Reactor::run`](crate::Reactor::run).
pub unsafe fn submit(entry: Entry, keepalive: impl Any) -> Completion {
    let core = current();
    let Some(ring) = &core.ring else { return Completion { operation: None } };
    // SAFETY: as the caller promises.
    let key = unsafe { ring.begin(entry, Box::new(keepalive)) };
    Completion { operation: Some((core, key)) }
}

/// The result of an operation given to [`submit`].
pub struct Completion {
    operation: Option<(Rc<Core>, u64)>,
}

impl Future for Completion {
    type Output = i32;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<i32> {
        let Some((core, key)) = &self.operation else { return Poll::Ready(-libc::ENOSYS) };
        let Some(ring) = &core.ring else { return Poll::Ready(-libc::ENOSYS) };
        let result = std::task::ready!(ring.poll(*key, cx.waker()));
        self.operation = None;
        Poll::Ready(result)
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let Some((core, key)) = self.operation.take() else { return };
        if let Some(ring) = &core.ring {
            ring.abandon(key);
        }
    }
}
