//! Rails: the RDMA addresses of one server, over which its connections are spread.
//!
//! ```text
//!   connection   0    1    2    3    4          rail 1 fails: left out for a while, then tried again
//!   rail         0    1    0    1    0          0    0    0 … 0    1
//! ```
//!
//! The first rail of each server is another, so that a client with one connection to each of many servers uses all of its adapters.

use std::time::{Duration, Instant};

/// How long a rail that failed is left out, the first time; then twice as long each time.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What is known of the rails of one server.
#[derive(Debug)]
pub(crate) struct Rails {
    next: usize,
    failed: Vec<Option<Failure>>,
}

#[derive(Debug)]
struct Failure {
    until: Instant,
    pause: Duration,
    cause: String,
}

impl Rails {
    /// Of a server with this id and so many addresses.
    pub(crate) fn new(server_id: u16, addresses: usize) -> Rails {
        let next = usize::from(server_id).checked_rem(addresses).unwrap_or(0);
        Rails { next, failed: (0..addresses).map(|_| None).collect() }
    }

    /// The rails to try for one more connection, one after the other: only `wished` where one is wished for, else all from the
    /// one whose turn it is. Those that have just failed are left out; where that leaves none and there `must` be a
    /// connection, they are tried all the same.
    pub(crate) fn choose(&mut self, wished: Option<usize>, must: bool, now: Instant) -> Vec<usize> {
        let count = self.failed.len();
        let (first, tries) = match wished {
            Some(rail) => (rail, 1.min(count)),
            None => (self.next, count),
        };
        let rests = |rail: &usize| self.failed[*rail].as_ref().is_some_and(|failure| now < failure.until);
        let mut chosen: Vec<usize> = (first..first + tries).map(|turn| turn % count).collect();
        if !(must && chosen.iter().all(rests)) {
            chosen.retain(|rail| !rests(rail));
        }
        if let (None, Some(rail)) = (wished, chosen.first()) {
            self.next = (rail + 1) % count;
        }
        chosen
    }

    /// A connection over a rail came about.
    pub(crate) fn note_success(&mut self, rail: usize) {
        self.failed[rail] = None;
    }

    /// It did not.
    pub(crate) fn note_failure(&mut self, rail: usize, now: Instant, cause: String) {
        let before = self.failed[rail].as_ref().map(|failure| failure.pause * 2);
        let pause = before.unwrap_or(PAUSE_FIRST).min(PAUSE_MAX);
        self.failed[rail] = Some(Failure { until: now + pause, pause, cause });
    }

    /// The server cannot be reached in any way: its rails are not at fault.
    pub(crate) fn forget_failures(&mut self) {
        self.failed.fill_with(|| None);
    }

    /// Why those that failed did.
    pub(crate) fn causes(&self) -> String {
        let mut causes: Vec<&str> =
            self.failed.iter().flatten().map(|failure| failure.cause.as_str()).collect();
        causes.dedup();
        causes.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_and_servers_begin_with_different_rails() {
        let now = Instant::now();
        let mut rails = Rails::new(0, 3);
        let firsts: Vec<_> = (0..5).map(|_| rails.choose(None, false, now)[0]).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1]);
        assert_eq!(Rails::new(4, 3).choose(None, false, now), [1, 2, 0]);
        assert_eq!(rails.choose(Some(2), false, now), [2]);
        for wished in [None, Some(0)] {
            assert!(Rails::new(7, 0).choose(wished, true, now).is_empty());
        }
    }

    #[test]
    fn a_rail_that_fails_is_left_for_the_others_and_tried_again_later() {
        let now = Instant::now();
        let mut rails = Rails::new(0, 2);
        rails.note_failure(1, now, "no route".into());
        for _ in 0..4 {
            assert_eq!(rails.choose(None, true, now), [0]);
        }
        assert!(rails.choose(Some(1), false, now).is_empty());
        assert_eq!(rails.causes(), "no route");
        let later: Vec<_> = (0..4).map(|_| rails.choose(None, false, now + PAUSE_FIRST)[0]).collect();
        assert!(later.contains(&1), "{later:?}");
        rails.note_failure(1, now, "no route".into());
        assert!(
            rails.choose(Some(1), false, now + PAUSE_FIRST).is_empty(),
            "the second time it is left out longer"
        );
        rails.note_failure(0, now, "no route".into());
        assert!(rails.choose(None, false, now).is_empty());
        assert_eq!(rails.choose(None, true, now).len(), 2, "there is nothing better");
        assert_eq!(rails.causes(), "no route", "the same cause is said once");
        rails.note_success(1);
        assert_eq!(rails.choose(None, false, now), [1]);
        rails.forget_failures();
        assert_eq!(rails.choose(None, false, now).len(), 2);
    }

    #[test]
    fn pauses_have_an_end() {
        let now = Instant::now();
        let mut rails = Rails::new(0, 1);
        (0..100).for_each(|_| rails.note_failure(0, now, "down".into()));
        assert_eq!(rails.choose(None, false, now + PAUSE_MAX), [0]);
    }
}
