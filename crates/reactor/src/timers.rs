//! Timers: a heap of deadlines. A dropped timer stays in the heap as a dead entry until it is at the top, or
//! until most entries are dead. So a timeout that never fires costs two cheap operations.

use std::cell::{Cell, RefCell};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

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

pub(crate) struct TimerState {
    pub phase: Cell<Phase>,
    pub waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Phase {
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

    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> Rc<TimerState> {
        let state =
            Rc::new(TimerState { phase: Cell::new(Phase::Waiting), waker: RefCell::new(Some(waker)) });
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.heap.push(Reverse(Entry { deadline, sequence, state: state.clone() }));
        state
    }

    pub(crate) fn forget_one(&mut self) {
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

    /// The earliest deadline of a living timer.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse(top)) = self.heap.peek() {
            if top.state.phase.get() != Phase::Dead {
                return Some(top.deadline);
            }
            self.heap.pop();
            self.dead -= 1;
        }
        None
    }
}
