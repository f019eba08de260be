//! What a cache knows, behind its lock: what is registered, what is being registered, and what is doubtful.

use std::sync::Arc;

use super::entry::Entry;
use super::group::PageRange;
use super::index::Index;
use super::ranges::Ranges;
use super::watch::{Change, Watch, Watcher};
use crate::link::Allocation;

/// Allocations for which it is remembered what their parts have cost so far.
const SPENT_MAX: usize = 256;
/// Ranges that stay watched because they are doubtful.
const DOUBTS_WATCHED_MAX: usize = 256;

/// A registration that is being made.
pub(super) struct Attempt {
    number: u64,
    range: PageRange,
    /// It must not stay.
    is_touched: bool,
}

pub(super) struct State<R> {
    pub(super) index: Index<Entry<R>>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) attempts_begun: u64,
    pub(super) doubtful: Ranges,
    /// Changes that added to what is doubtful.
    pub(super) doubts: u64,
    /// What is doubtful stays watched, so that its unmapping is told.
    pub(super) doubts_watched: Vec<Watch>,
    /// What was refused as one registration, until something of it is unmapped.
    pub(super) apart: Ranges,
    /// Changes that were applied.
    pub(super) seen: Option<u64>,
    /// What parts of allocations have cost so far, in nanoseconds.
    pub(super) spent: Vec<(Allocation, u64)>,
}

/// Registrations that are cached no more.
pub(super) type Dead<R> = Vec<Arc<Entry<R>>>;

impl<R> Default for State<R> {
    fn default() -> Self {
        State {
            index: Index::new(),
            attempts: Vec::new(),
            attempts_begun: 0,
            doubtful: Ranges::default(),
            doubts: 0,
            doubts_watched: Vec::new(),
            apart: Ranges::default(),
            seen: None,
            spent: Vec::new(),
        }
    }
}

impl<R> State<R> {
    pub(super) fn apply(&mut self, change: Change, watcher: &Arc<Watcher>, dead: &mut Dead<R>) {
        let range = match change {
            Change::Unmapped(range) | Change::Emptied(range) => range,
            Change::Unknown => PageRange { start: 0, end: u64::MAX },
        };
        match change {
            Change::Unmapped(_) => {
                self.doubtful.remove(&range);
                self.apart.around(&range).iter().for_each(|part| self.apart.remove(part));
                self.unwatch_doubts();
            }
            Change::Emptied(_) if self.doubts_watched.len() < DOUBTS_WATCHED_MAX => {
                self.doubts_watched.push(watcher.keep(range));
                self.doubt(range);
            }
            Change::Emptied(_) | Change::Unknown => self.doubt(range),
        }
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.range.overlaps(&range)) {
            attempt.is_touched = true;
        }
        dead.extend(self.index.take_touched(&range));
    }

    fn doubt(&mut self, range: PageRange) {
        self.doubtful.add(range);
        self.doubts += 1;
    }

    /// Ends the watching of what is doubtful no more.
    pub(super) fn unwatch_doubts(&mut self) {
        let State { doubts_watched, doubtful, .. } = self;
        doubts_watched.retain(|watch| doubtful.overlaps(watch.range()));
    }

    /// Begins to register a range with these parts of a request in it.
    pub(super) fn begin(&mut self, range: PageRange, parts: &[PageRange]) -> u64 {
        // The program uses the parts: it is not giving them back.
        for part in parts {
            self.doubtful.remove(part);
        }
        let is_touched = self.doubtful.overlaps_between(&range, parts);
        self.attempts_begun += 1;
        self.attempts.push(Attempt { number: self.attempts_begun, range, is_touched });
        self.attempts_begun
    }

    /// Ends it, and says whether the registration may stay.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let at = self.attempts.iter().position(|attempt| attempt.number == number);
        at.is_some_and(|at| !self.attempts.swap_remove(at).is_touched)
    }

    /// Adds to what was spent on parts of an allocation, and returns the sum.
    pub(super) fn spend(&mut self, allocation: Allocation, cost_ns: u64) -> u64 {
        if let Some((_, spent_ns)) = self.spent.iter_mut().find(|(known, _)| *known == allocation) {
            *spent_ns = spent_ns.saturating_add(cost_ns);
            return *spent_ns;
        }
        if self.spent.len() == SPENT_MAX {
            self.spent.remove(0);
        }
        self.spent.push((allocation, cost_ns));
        cost_ns
    }
}
