//! Turns at ranges of one data file: a read-modify-write must see no other write between its read and its write.
//!
//! ```text
//!   plain    |======|                     plain turns share their bytes with each other
//!   sieve          |---- waits ----|      an exclusive one waits for whoever asked before it for any of its bytes
//!   plain                  |= waits =|    and so does whoever asks after it
//!   plain                                     |=====|   elsewhere nobody waits
//! ```
//!
//! Turns are in the order of asking, so that nobody waits for ever. Tasks of several threads may wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use weft_layout::Extent;

/// The turns of one data file.
#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// In the order of asking.
    turns: VecDeque<Asked>,
    next: u64,
}

struct Asked {
    number: u64,
    extent: Extent,
    exclusive: bool,
    /// Set while it waits.
    waker: Option<Waker>,
}

impl Asked {
    fn excludes(&self, other: &Asked) -> bool {
        (self.exclusive || other.exclusive)
            && self.extent.offset < other.extent.end()
            && other.extent.offset < self.extent.end()
    }
}

/// A turn whose time has come; it ends when this is dropped.
pub struct Turn<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.ranges.end(self.number);
    }
}

impl Ranges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn at a range; an exclusive one shares no byte with any other.
    pub(crate) async fn turn(&self, extent: Extent, exclusive: bool) -> Turn<'_> {
        let turn = Turn { ranges: self, number: self.ask(extent, exclusive) };
        std::future::poll_fn(|cx| self.poll(turn.number, cx.waker())).await;
        turn
    }

    /// Asks for a turn; its number.
    fn ask(&self, extent: Extent, exclusive: bool) -> u64 {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.turns.push_back(Asked { number, extent, exclusive, waker: None });
        number
    }

    /// Whether it is this turn's time; if not, its task is woken when that may have changed.
    fn poll(&self, number: u64, waker: &Waker) -> Poll<()> {
        let mut state = self.state();
        let at =
            state.turns.iter().position(|turn| turn.number == number).expect("a turn is there until its end");
        let blocked = state.turns.range(..at).any(|earlier| earlier.excludes(&state.turns[at]));
        let turn = &mut state.turns[at];
        turn.waker = blocked.then(|| waker.clone());
        if blocked { Poll::Pending } else { Poll::Ready(()) }
    }

    /// The turn is over, whether its time had come or not.
    fn end(&self, number: u64) {
        let mut state = self.state();
        let at = state.turns.iter().position(|turn| turn.number == number).expect("a turn ends once");
        let ended = state.turns.remove(at).expect("it was just found");
        let mut waiting: Vec<Waker> = Vec::new();
        for later in state.turns.range_mut(at..) {
            if ended.excludes(later) {
                waiting.extend(later.waker.take());
            }
        }
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_its_time(ranges: &Ranges, number: u64) -> bool {
        ranges.poll(number, Waker::noop()).is_ready()
    }

    #[test]
    fn only_an_exclusive_turn_at_the_same_bytes_is_waited_for() {
        let ranges = Ranges::default();
        let first = ranges.ask(Extent::new(0, 100), false);
        let same = ranges.ask(Extent::new(50, 100), false);
        let sieve = ranges.ask(Extent::new(90, 20), true);
        let behind = ranges.ask(Extent::new(100, 5), false);
        let elsewhere = ranges.ask(Extent::new(110, 5), false);
        assert!(is_its_time(&ranges, first) && is_its_time(&ranges, same) && is_its_time(&ranges, elsewhere));
        assert!(!is_its_time(&ranges, sieve) && !is_its_time(&ranges, behind));
        ranges.end(first);
        assert!(!is_its_time(&ranges, sieve));
        ranges.end(same);
        assert!(is_its_time(&ranges, sieve) && !is_its_time(&ranges, behind));
        ranges.end(sieve);
        assert!(is_its_time(&ranges, behind));
    }

    #[test]
    fn giving_up_a_turn_lets_those_behind_it_go_on() {
        let ranges = Ranges::default();
        let first = ranges.ask(Extent::new(0, 10), false);
        let given_up = ranges.ask(Extent::new(0, 10), true);
        let last = ranges.ask(Extent::new(0, 10), false);
        assert!(!is_its_time(&ranges, last));
        ranges.end(given_up);
        assert!(is_its_time(&ranges, last));
        ranges.end(first);
        ranges.end(last);
        assert!(ranges.state().turns.is_empty());
    }
}
