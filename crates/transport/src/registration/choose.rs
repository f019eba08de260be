//! Planning: which groups of a request's parts, or which allocations, are registered as one.

use weft_verbs::Device;

use super::cache::{Keeping, Shared};
use super::error::PinError;
use super::fewer::MANY_REGIONS;
use super::group::{Group, PageRange, cost_ns, merge, plan};
use super::holes;
use super::state::State;
use super::wanted::Wanted;

/// An allocation that the program named is registered as a whole when that costs at most so many times what
/// its parts in this request cost: other parts of an array are used later.
const WHOLE_FACTOR: u64 = 4;

/// Each of many registrations for one request costs about as much again: keys in messages, windows, places in
/// lists.
fn keys_factor(registrations: usize) -> u64 {
    if registrations < MANY_REGIONS { 1 } else { 2 }
}

impl<D: Device> Shared<D> {
    /// Groups the parts of a request, or takes the allocations that they are parts of.
    pub(super) fn choose(&self, parts: &[PageRange], wanted: &Wanted<'_, D>) -> Vec<Group> {
        let mut state = self.lock();
        let mut whole = self.choose_allocations(&mut state, parts, wanted);
        whole.sort_unstable_by_key(|group| group.parts.start);
        let is_cached = self.keeping != Keeping::Nothing;
        let may_join = |hole: &PageRange| !is_cached || !state.doubtful.overlaps(hole);
        let mut groups = Vec::new();
        let mut done = 0;
        let ends = whole.iter().map(|group| group.parts.start).chain([parts.len()]);
        for (at, end) in ends.enumerate() {
            let rest = plan(&parts[done..end], &self.cost, self.bytes_max(), may_join);
            let moved =
                |group: Group| Group { parts: group.parts.start + done..group.parts.end + done, ..group };
            groups.extend(rest.into_iter().map(moved));
            if let Some(group) = whole.get(at) {
                done = group.parts.end;
                groups.push(group.clone());
            }
        }
        groups
    }

    /// The allocations that are worth being registered as wholes: parts of no two of these are the same.
    fn choose_allocations(
        &self,
        state: &mut State<D::Registration>,
        parts: &[PageRange],
        wanted: &Wanted<'_, D>,
    ) -> Vec<Group> {
        let mut chosen: Vec<Group> = Vec::new();
        for allocation in wanted.allocations {
            let Some(range) = PageRange::around(allocation.address, allocation.bytes) else { continue };
            let first = parts.partition_point(|part| part.start < range.start);
            let end = parts.partition_point(|part| part.end <= range.end);
            let is_taken = chosen.iter().any(|other| first < other.parts.end && other.parts.start < end);
            let bytes_max = self.bytes_max().min(self.options.bytes_max);
            if first >= end || is_taken || range.bytes() > bytes_max {
                continue;
            }
            let groups = plan(&parts[first..end], &self.cost, self.bytes_max(), |_| true);
            if groups.len() as u64 * wanted.windows < 2
                || state.doubtful.overlaps_between(&range, &parts[first..end])
            {
                continue;
            }
            let parts_ns = cost_ns(&groups, &self.cost);
            let worth_ns = match self.keeping {
                // Other windows of the same read or write are all that it is used for later.
                Keeping::Nothing => parts_ns.saturating_mul(wanted.windows * keys_factor(groups.len())),
                _ => state.spend(*allocation, parts_ns).max(parts_ns.saturating_mul(WHOLE_FACTOR)),
            };
            let is_worth = self.cost.of_ns(range.pages()) <= worth_ns;
            if is_worth || groups.len() > self.options.entries_max / 2 {
                chosen.push(Group { range, parts: first..end });
            }
        }
        chosen
    }

    /// Plans a group that was refused again, around the holes in which there is nothing that could be
    /// registered.
    pub(super) fn plan_mapped(
        &self,
        range: &PageRange,
        parts: &[PageRange],
        write: bool,
    ) -> Result<Vec<Group>, PinError> {
        let mapped = holes::mapped(*range).unwrap_or_default();
        let is_usable = |part: &&holes::Mapped| {
            let is_allowed = if write { part.is_writable } else { part.is_readable };
            is_allowed && part.is_private_anonymous
        };
        let usable = merge(mapped.iter().filter(is_usable).map(|part| part.range).collect());
        let is_there = |hole: &PageRange| usable.iter().any(|range| range.contains(hole));
        Ok(plan(parts, &self.cost, self.bytes_max(), is_there))
    }
}
