//! One registration in the place of many small ones.
//!
//! What small arrays leave behind when they are freed stays mapped, as often as not, and so stay their
//! registrations:
//!
//! ```text
//!   before      [a][b]  [c] [d][e]   [f]  …   hundreds of freed arrays, each registered when it was used
//!   now         [────────── a fresh array ──────────]
//!   its rows     ──  ──  ──  ──  ──  ──  ──           each found in another old registration: hundreds of keys in every request
//!   anew        [───────────────────────────]         one; those in it are dropped
//! ```
//!
//! The cost of registering anew is paid once, the one of many keys (in messages, in windows, in the server's
//! lists) at every request. What cannot be joined, since there are holes without memory, is remembered and
//! not tried again.
//!
//! Memory that was given back with `madvise` is doubtful (see `cache`), and not registered as a hole between
//! pieces. Thread arenas of the system's `malloc` give back what is freed at their ends, and then let it out
//! again, without anything that would be told: what they hold would be doubtful for ever. So where doubt
//! makes many registrations of few, it is looked whether any thread still is in the system call that began it
//! (`threads`).

use std::sync::Arc;

use weft_verbs::Device;

use super::cache::{Keeping, RegistrationCache, Shared};
use super::entry::Entry;
use super::error::PinError;
use super::group::{Group, PageRange, cut, merge, plan};
use super::pinned::Pinned;
use super::state::State;
use super::threads;
use super::wanted::{Among, Wanted};

/// Fewer registrations of one request are as they are.
pub(super) const MANY_REGIONS: usize = 16;
/// How many times fewer they must become.
const FEWER_FACTOR: usize = 4;

/// What is registered instead.
struct Fewer<D: Device> {
    /// Stays as it is.
    arenas: Vec<Arc<Entry<D::Registration>>>,
    parts: Vec<PageRange>,
    groups: Vec<Group>,
}

impl<D: Device> RegistrationCache<D> {
    /// Registers all of a request anew, if that makes few registrations of many which were `found` or are
    /// `missing`.
    ///
    /// # Errors
    /// The memory makes no sense.
    ///
    /// # Safety
    /// As for [`RegistrationCache::pin`].
    pub(super) unsafe fn pin_fewer(
        &self,
        wanted: &Wanted<'_, D>,
        found: &[Arc<Entry<D::Registration>>],
        missing: &[PageRange],
    ) -> Result<Option<Pinned<D>>, PinError> {
        let shared = &self.shared;
        if shared.keeping == Keeping::Nothing || found.len() + missing.len() < MANY_REGIONS {
            return Ok(None);
        }
        let Some(Fewer { arenas: mut entries, parts, groups }) = shared.fewer(wanted, found, missing)? else {
            return Ok(None);
        };
        for group in groups {
            match self.attempt(group.range, &parts[group.parts.clone()], wanted.write) {
                Ok(entry) => entries.push(entry),
                Err(_) => {
                    shared.lock().apart.add(group.range);
                    return Ok(None);
                }
            }
        }
        self.note_miss();
        Ok(Some(Pinned::new(entries)))
    }
}

impl<D: Device> Shared<D> {
    fn fewer(
        &self,
        wanted: &Wanted<'_, D>,
        found: &[Arc<Entry<D::Registration>>],
        missing: &[PageRange],
    ) -> Result<Option<Fewer<D>>, PinError> {
        let now = self.regions_now(found, missing);
        if now.count < MANY_REGIONS || self.joined(&now.ranges).len() * FEWER_FACTOR > now.count {
            return Ok(None);
        }
        let mut arenas = Vec::new();
        let parts = cut(merge(self.look_up(wanted, Among::Arenas, &mut arenas)?), self.bytes_max());
        let joined = self.joined(&parts);
        let is_fewer = (arenas.len() + joined.len()) * FEWER_FACTOR <= now.count;
        let is_kept = joined.iter().all(|group| group.range.bytes() <= self.options.bytes_max);
        if !is_fewer || !is_kept || !self.is_free_of_doubt(&parts, &joined) {
            return Ok(None);
        }
        Ok(Some(Fewer { arenas, parts, groups: joined }))
    }

    /// What a request uses if nothing is done: how many registrations, and their pages.
    fn regions_now(&self, found: &[Arc<Entry<D::Registration>>], missing: &[PageRange]) -> Now {
        let mut regions: Vec<_> = found.iter().map(|entry| entry.region()).collect();
        regions.sort_unstable_by_key(|region| (region.address, region.local_key));
        regions.dedup();
        let missing = cut(merge(missing.to_vec()), self.bytes_max());
        let state = self.lock();
        let may_join = |hole: &PageRange| !state.doubtful.overlaps(hole);
        let new = plan(&missing, &self.cost, self.bytes_max(), may_join);
        let count = regions.len() + new.len();
        let pages = regions.iter().filter_map(|region| PageRange::around(region.address, region.bytes));
        Now { count, ranges: merge(pages.chain(missing).collect()) }
    }

    /// Groups whatever can be registered together, doubtful or not.
    fn joined(&self, ranges: &[PageRange]) -> Vec<Group> {
        let state = self.lock();
        plan(ranges, &self.cost, self.bytes_max(), |hole| !state.apart.overlaps(hole))
    }

    /// Whether nothing between the parts of groups is doubtful, or not any more.
    fn is_free_of_doubt(&self, parts: &[PageRange], groups: &[Group]) -> bool {
        let is_free = |state: &State<_>| {
            !groups
                .iter()
                .any(|group| state.doubtful.overlaps_between(&group.range, &parts[group.parts.clone()]))
        };
        let doubts = {
            let state = self.lock();
            if is_free(&state) {
                return true;
            }
            state.doubts
        };
        // All doubts that are known here are of calls that began before the look at the threads.
        if !threads::none_gives_memory_back() {
            return false;
        }
        let mut state = self.lock();
        let dead = self.catch_up(&mut state);
        if state.doubts == doubts {
            state.doubtful = Default::default();
            state.unwatch_doubts();
        }
        let is_free = is_free(&state);
        drop(state);
        self.bury(dead);
        is_free
    }
}

struct Now {
    count: usize,
    ranges: Vec<PageRange>,
}
