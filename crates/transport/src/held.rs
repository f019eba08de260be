//! Requests of one thread that leave together.
//!
//! ```text
//!   at once     start ─► sendmsg   start ─► sendmsg   …               one that is waited for, or told to nobody
//!   in groups   start ─► sendmsg   start, start, … start ─► sendmsg   while the first is under way, small ones wait
//!   held        start, start, …                 flush ─► sendmsg      an event loop that flushes before it waits
//! ```
//!
//! Whoever waits for a reply, or looks for one, sends what is left first ([`Link::flush`](crate::Link::flush),
//! [`Link::progress`](crate::Link::progress)).

use std::cell::Cell;

use weft_wire::limits::CREDITS_PER_CONNECTION;

/// A group leaves when it has so many requests.
pub(crate) const GROUP_REQUESTS: usize = 8;
/// Only requests of so little data wait for others: more keeps a server busy for longer than a message costs.
pub(crate) const GROUPED_BYTES_MAX: u64 = 16 << 10;

/// When requests leave that a thread begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    AtOnce,
    InGroups,
    Held,
}

thread_local! {
    static LEAVING: Cell<Leaving> = const { Cell::new(Leaving::AtOnce) };
}

pub(crate) fn leaving() -> Leaving {
    LEAVING.get()
}

/// Whether requests that this thread begins from now on are held until [`Link::flush`](crate::Link::flush) or
/// [`Link::progress`](crate::Link::progress); else they are sent at once.
pub fn hold_requests(are_held: bool) {
    LEAVING.set(if are_held { Leaving::Held } else { Leaving::AtOnce });
}

/// Has requests that `begin` begins leave in groups, unless they are held anyway.
pub fn group_requests<R>(begin: impl FnOnce() -> R) -> R {
    struct Before(Leaving);

    impl Drop for Before {
        fn drop(&mut self) {
            LEAVING.set(self.0);
        }
    }

    let before = Before(leaving());
    if before.0 == Leaving::AtOnce {
        LEAVING.set(Leaving::InGroups);
    }
    begin()
}

/// Whether they are held.
pub fn are_requests_held() -> bool {
    leaving() == Leaving::Held
}

/// How many small requests are best begun on one connection, where requests may wait for others, before another one is taken,
/// which another thread of the server may serve. `None`: they leave at once.
pub fn gathered_requests() -> Option<usize> {
    match leaving() {
        Leaving::AtOnce => None,
        Leaving::InGroups => Some(GROUP_REQUESTS),
        Leaving::Held => Some(usize::from(CREDITS_PER_CONNECTION)),
    }
}
