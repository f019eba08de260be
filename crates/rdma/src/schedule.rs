//! How much goes out at once, to each destination and in all (IB 3.4): many clients that read from one server
//! at once do not fill the network's queues, and one client's long transfer does not hold up the others.
//!
//! ```text
//!   destination 1   [unit][unit]           ┐  round robin: a unit of each in turn, as far as
//!   destination 2   [unit]                 ├─► the limit of the destination and of all allow ──► under way
//!   destination 3   [unit][unit][unit]     ┘
//! ```
//!
//! [`Fair`] is pure; [`Schedule`] lets tasks wait for their turn.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Bytes that may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub destination_bytes: u64,
    pub total_bytes: u64,
}

/// What waits for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    ticket: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Destination {
    under_way: u64,
    asked: VecDeque<Asked>,
}

/// The queues.
#[derive(Debug)]
struct Fair {
    limits: Limits,
    under_way: u64,
    destinations: BTreeMap<u64, Destination>,
    /// Destinations with somebody waiting, in the order of their turns.
    turns: VecDeque<u64>,
    next_ticket: u64,
}

impl Fair {
    fn new(limits: Limits) -> Fair {
        let (destinations, turns) = (BTreeMap::new(), VecDeque::new());
        Fair { limits, under_way: 0, destinations, turns, next_ticket: 0 }
    }

    fn ask(&mut self, destination: u64, bytes: u64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let queue = &mut self.destinations.entry(destination).or_default().asked;
        if queue.is_empty() {
            self.turns.push_back(destination);
        }
        queue.push_back(Asked { ticket, bytes });
        ticket
    }

    /// The next whose turn it is. What is larger than a limit goes when nothing else is under way.
    fn next(&mut self) -> Option<u64> {
        for at in 0..self.turns.len() {
            let number = self.turns[at];
            let destination = self.destinations.get_mut(&number)?;
            let first = *destination.asked.front()?;
            let fits = |under_way: u64, limit: u64| under_way == 0 || under_way + first.bytes <= limit;
            if !fits(self.under_way, self.limits.total_bytes) {
                return None;
            }
            if fits(destination.under_way, self.limits.destination_bytes) {
                destination.asked.pop_front();
                destination.under_way += first.bytes;
                self.under_way += first.bytes;
                self.turns.remove(at);
                if !destination.asked.is_empty() {
                    self.turns.push_back(number);
                }
                return Some(first.ticket);
            }
        }
        None
    }

    fn done(&mut self, destination: u64, bytes: u64) {
        self.under_way -= bytes;
        if let Some(entry) = self.destinations.get_mut(&destination) {
            entry.under_way -= bytes;
            if entry.under_way == 0 && entry.asked.is_empty() {
                self.destinations.remove(&destination);
            }
        }
    }

    /// Forgets what has not had its turn. False if it had.
    fn withdraw(&mut self, destination: u64, ticket: u64) -> bool {
        let Some(entry) = self.destinations.get_mut(&destination) else { return false };
        let Some(at) = entry.asked.iter().position(|asked| asked.ticket == ticket) else { return false };
        entry.asked.remove(at);
        if entry.asked.is_empty() {
            self.turns.retain(|number| *number != destination);
            if entry.under_way == 0 {
                self.destinations.remove(&destination);
            }
        }
        true
    }
}

struct State {
    fair: Fair,
    /// Waiting tasks by ticket.
    wakers: BTreeMap<u64, Waker>,
    granted: Vec<u64>,
}

impl State {
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(ticket) = self.fair.next() {
            self.granted.push(ticket);
            wakers.extend(self.wakers.remove(&ticket));
        }
        wakers
    }
}

/// Turns for the tasks of a thread. Clones are the same.
#[derive(Clone)]
pub struct Schedule {
    state: Rc<RefCell<State>>,
}

impl Schedule {
    pub fn new(limits: Limits) -> Schedule {
        let state = State { fair: Fair::new(limits), wakers: BTreeMap::new(), granted: Vec::new() };
        Schedule { state: Rc::new(RefCell::new(state)) }
    }

    /// Waits until so many bytes may go to a destination; dropping the result says that they have arrived.
    pub async fn turn(&self, destination: u64, bytes: u64) -> Turn {
        let (ticket, wakers) = {
            let mut state = self.state.borrow_mut();
            let ticket = state.fair.ask(destination, bytes);
            (ticket, state.grant())
        };
        wakers.into_iter().for_each(Waker::wake);
        let turn = Turn { schedule: self.clone(), destination, bytes, ticket };
        std::future::poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            match state.granted.iter().position(|granted| *granted == ticket) {
                Some(at) => {
                    state.granted.swap_remove(at);
                    Poll::Ready(())
                }
                None => {
                    state.wakers.insert(ticket, cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        turn
    }

    /// Bytes under way, and tasks that wait.
    pub fn load(&self) -> (u64, usize) {
        let state = self.state.borrow();
        (state.fair.under_way, state.wakers.len())
    }
}

/// A turn, or the wait for it.
pub struct Turn {
    schedule: Schedule,
    destination: u64,
    bytes: u64,
    ticket: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let wakers = {
            let mut state = self.schedule.state.borrow_mut();
            let ticket = self.ticket;
            state.wakers.remove(&ticket);
            state.granted.retain(|granted| *granted != ticket);
            if !state.fair.withdraw(self.destination, ticket) {
                state.fair.done(self.destination, self.bytes);
            }
            state.grant()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn destinations_take_turns() {
        let mut fair = Fair::new(Limits { destination_bytes: 20, total_bytes: 30 });
        let first: Vec<u64> = (0..4).map(|_| fair.ask(1, 10)).collect();
        let second = fair.ask(2, 10);
        assert_eq!(fair.next(), Some(first[0]));
        assert_eq!(fair.next(), Some(second));
        assert_eq!(fair.next(), Some(first[1]));
        assert_eq!(fair.next(), None, "30 are under way");
        fair.done(2, 10);
        assert_eq!(fair.next(), None, "20 are under way to 1");
        fair.done(1, 10);
        assert_eq!(fair.next(), Some(first[2]));
        assert!(fair.withdraw(1, first[3]));
        assert!(!fair.withdraw(1, first[2]));
    }

    #[test]
    fn what_is_larger_than_all_limits_goes_alone() {
        let mut fair = Fair::new(Limits { destination_bytes: 20, total_bytes: 30 });
        let small = fair.ask(1, 1);
        let large = fair.ask(2, 100);
        assert_eq!((fair.next(), fair.next()), (Some(small), None));
        fair.done(1, 1);
        assert_eq!(fair.next(), Some(large));
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn limits_hold_and_everybody_has_a_turn(
            asks in proptest::collection::vec((0u64..5, 1u64..12), 1..80),
            ends in proptest::collection::vec(0usize..50, 0..100),
        ) {
            let limits = Limits { destination_bytes: 15, total_bytes: 25 };
            let mut fair = Fair::new(limits);
            let asked: Vec<_> = asks.iter().map(|(to, bytes)| (fair.ask(*to, *bytes), *to, *bytes)).collect();
            let mut under_way = Vec::new();
            let mut served = 0;
            let mut ends = ends.iter().cycle();
            loop {
                while let Some(ticket) = fair.next() {
                    under_way.push(*asked.iter().find(|(other, ..)| *other == ticket).unwrap());
                    served += 1;
                }
                let sum = |to: Option<u64>| under_way.iter().filter(|(_, at, _)| to.is_none_or(|to| to == *at)).map(|(.., bytes)| bytes).sum::<u64>();
                prop_assert!(sum(None) <= limits.total_bytes);
                prop_assert!((0..5).all(|to| sum(Some(to)) <= limits.destination_bytes));
                if under_way.is_empty() {
                    break;
                }
                let (_, to, bytes) = under_way.swap_remove(ends.next().copied().unwrap_or(0) % under_way.len());
                fair.done(to, bytes);
            }
            prop_assert_eq!(served, asks.len());
            prop_assert!(fair.destinations.is_empty() && fair.turns.is_empty());
        }
    }
}
