//! Requests of one thread that leave together.
//!
//! A thread that begins many requests in a row, and then waits for all, may hold them: each is queued on its
//! connection, and what is queued there leaves with one system call when the thread is about to wait.

use std::cell::Cell;

thread_local! {
    static ARE_HELD: Cell<bool> = const { Cell::new(false) };
}

/// From now on, requests that this thread begins are sent at once, or with [`Link::flush`](crate::Link::flush)
/// and [`Link::progress`](crate::Link::progress).
pub fn hold_requests(are_held: bool) {
    ARE_HELD.set(are_held);
}

/// Whether they are held.
pub fn are_requests_held() -> bool {
    ARE_HELD.get()
}
