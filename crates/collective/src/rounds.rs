//! Rounds: which bytes of a file each server's part of a buffer holds, one after the other.
//!
//! A two-phase access goes through the file in rounds. In each round every slot has an *area* of its
//! aggregator's buffer, and the area holds one contiguous range of the slot's data file. Ranges are cut at
//! fixed places of the file, whatever is accessed, so both sides know them without asking.
//!
//! ```text
//!   3 slots, area of two strips               area of half a strip
//!
//!   file    |0|1|2|3|4|5|6|7|8|9|…            |0  |1  |2  |3  |…
//!   slot     0 1 2 0 1 2 0 1 2 0               0   1   2   0
//!   round    0 0 0 0 0 0 1 1 1 1               0 1 0 1 0 1 2 3
//! ```
//!
//! With one slot the whole area is one piece of the file.

use weft_layout::{Extent, Layout, OFFSET_LIMIT, Regions};

/// Areas are whole pages of the data file.
const AREA_UNIT_BYTES: u64 = 4096;

/// Intervals that a process announces at most; the last one takes the rest.
const INTERVALS_MAX: usize = 64;

/// How the file is cut into rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounds {
    slots: u64,
    strip_bytes: u64,
    /// Strips of a slot in a round.
    rows: u64,
    /// Rounds in a strip, where `rows` is 1.
    parts: u64,
    /// Bytes of a strip in a round.
    part_bytes: u64,
}

/// Adjacent bytes of the file, and where they are in an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub start: u64,
    pub end: u64,
    pub area_offset: u64,
}

impl Window {
    /// Where it ends in the area.
    pub fn area_end(&self) -> u64 {
        self.area_offset + (self.end - self.start)
    }
}

impl Rounds {
    /// Rounds with areas of at most `area_bytes_max`, but at least a page.
    pub fn new(layout: &Layout, area_bytes_max: u64) -> Rounds {
        let room = (area_bytes_max / AREA_UNIT_BYTES).max(1) * AREA_UNIT_BYTES;
        let slots = u64::from(layout.server_count());
        let strip_bytes = if slots == 1 { room } else { u64::from(layout.strip_bytes()) };
        let rows = (room / strip_bytes).max(1);
        let part_bytes = room.min(strip_bytes);
        Rounds { slots, strip_bytes, rows, parts: strip_bytes.div_ceil(part_bytes), part_bytes }
    }

    /// Bytes of an area.
    pub fn area_bytes(&self) -> u64 {
        self.rows * self.part_bytes
    }

    /// Bytes of the file that [`Rounds::parts`] consecutive rounds move.
    fn group_bytes(&self) -> u64 {
        self.rows * self.slots * self.strip_bytes
    }

    /// What `slot` has in its area in `round`, ascending.
    pub fn windows(&self, slot: u16, round: u64) -> impl Iterator<Item = Window> + use<> {
        let rounds = *self;
        (0..self.rows).map(move |row| rounds.window(slot, round, row))
    }

    /// The window of the `row`-th strip of `slot` in `round`.
    fn window(&self, slot: u16, round: u64, row: u64) -> Window {
        let (group, part) = (round / self.parts, round % self.parts);
        let strip = (group * self.rows + row) * self.slots + u64::from(slot);
        let start = strip * self.strip_bytes + part * self.part_bytes;
        let end = (start + self.part_bytes).min((strip + 1) * self.strip_bytes);
        Window { start, end, area_offset: row * self.part_bytes }
    }

    /// The window of the area that has the byte at `area_offset`.
    pub fn window_at(&self, slot: u16, round: u64, area_offset: u64) -> Window {
        self.window(slot, round, area_offset / self.part_bytes)
    }

    /// The range of the data file of `slot` in `round`.
    pub fn local_range(&self, layout: &Layout, slot: u16, round: u64) -> Extent {
        let first = self.window(slot, round, 0);
        let last = self.window(slot, round, self.rows - 1);
        let offset = layout.local_size(slot, first.start);
        Extent { offset, bytes: layout.local_size(slot, last.end) - offset }
    }

    /// The rounds that may have bytes of `regions`, in ascending intervals of first and last one; `ascends`:
    /// the regions are ascending.
    pub fn intervals_of(&self, regions: &Regions, ascends: bool) -> Vec<(u64, u64)> {
        let Some(span) = regions.span() else { return Vec::new() };
        let group = |offset: u64| offset / self.group_bytes();
        let (first, last) = (group(span.offset), group(span.end() - 1));
        if first == last {
            return vec![self.within_group(span)];
        }
        let mut groups: Vec<(u64, u64)> = Vec::new();
        let mut runs = regions.strided_runs();
        while let Some(run) = runs.peek().filter(|_| ascends) {
            let (begin, end) = (group(run.offset), group(run.offset + run.bytes - 1));
            let is_last = groups.len() + 1 == INTERVALS_MAX;
            match groups.last_mut() {
                Some(before) if begin <= before.1 + 1 => before.1 = end,
                _ if is_last => {
                    groups.push((begin, last));
                    break;
                }
                _ => groups.push((begin, end)),
            }
            runs.skip_below((end + 1) * self.group_bytes());
        }
        if !ascends {
            groups.push((first, last));
        }
        let rounds = |(first, last)| (first * self.parts, last * self.parts + self.parts - 1);
        groups.into_iter().map(rounds).collect()
    }

    /// The last round that a file can have.
    pub fn last(&self) -> u64 {
        (OFFSET_LIMIT - 1) / self.group_bytes() * self.parts + self.parts - 1
    }

    /// The rounds of a span that is within one group.
    fn within_group(&self, span: Extent) -> (u64, u64) {
        let first = span.offset / self.group_bytes() * self.parts;
        let strip = |offset: u64| offset / self.strip_bytes;
        if strip(span.offset) != strip(span.end() - 1) {
            return (first, first + self.parts - 1);
        }
        let part = |offset: u64| offset % self.strip_bytes / self.part_bytes;
        match self.parts {
            1 => (first, first),
            _ => (first + part(span.offset), first + part(span.end() - 1)),
        }
    }
}

/// Some rounds, in ascending intervals of first and last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoundSet(Vec<(u64, u64)>);

impl RoundSet {
    /// The rounds in any of `intervals`.
    pub fn union(mut intervals: Vec<(u64, u64)>) -> RoundSet {
        intervals.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (first, last) in intervals {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        RoundSet(joined)
    }

    /// The intervals.
    pub fn intervals(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Their number. Saturates.
    pub fn count(&self) -> u64 {
        let sizes = self.0.iter().map(|(first, last)| (last - first).saturating_add(1));
        sizes.fold(0, u64::saturating_add)
    }

    /// Whether it has `round`.
    pub fn has(&self, round: u64) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < round);
        self.0.get(at).is_some_and(|(first, _)| *first <= round)
    }

    /// The rounds, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (1u32..5, 1u16..5).prop_map(|(pages, slots)| Layout::new(pages * 4096, 0, slots, slots).unwrap())
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(200))]

        #[test]
        fn every_byte_is_in_one_window(layout in layouts(), area in 0u64..40_000, offset in 0u64..400_000) {
            let rounds = Rounds::new(&layout, area);
            prop_assert!(rounds.area_bytes() <= area.max(4096));
            let (slot, local) = layout.local_offset(offset);
            let all = (0..200u64).flat_map(|round| (0..layout.server_count()).map(move |slot| (slot, round)));
            let mut found = Vec::new();
            for (in_slot, round) in all {
                let mut area_end = 0;
                for window in rounds.windows(in_slot, round) {
                    prop_assert_eq!(window.area_offset, area_end);
                    area_end += window.end - window.start;
                    prop_assert_eq!(rounds.window_at(in_slot, round, window.area_offset), window);
                    if (window.start..window.end).contains(&offset) {
                        found.push((in_slot, round, window.area_offset + offset - window.start));
                    }
                }
                prop_assert!(area_end <= rounds.area_bytes());
                prop_assert_eq!(area_end, rounds.local_range(&layout, in_slot, round).bytes);
            }
            let [(found_slot, round, area_offset)] = found[..] else {
                return Err(TestCaseError::fail(format!("{found:?}")));
            };
            prop_assert_eq!(found_slot, slot);
            prop_assert_eq!(rounds.local_range(&layout, slot, round).offset + area_offset, local);
        }

        #[test]
        fn intervals_have_every_round_of_a_request(
            layout in layouts(),
            area in 0u64..40_000,
            places in vec((0u64..400_000, 1u64..9000), 0..6),
            sorted in any::<bool>(),
        ) {
            let rounds = Rounds::new(&layout, area);
            let mut extents: Vec<Extent> =
                places.iter().map(|(offset, bytes)| Extent::new(*offset, *bytes)).collect();
            if sorted {
                extents.sort_by_key(|extent| extent.offset);
                extents.dedup_by(|next, before| before.end() > next.offset);
            }
            let regions = Regions::list(extents.clone());
            let set = RoundSet::union(rounds.intervals_of(&regions, regions.is_ascending()));
            prop_assert_eq!(set.iter().count() as u64, set.count());
            for round in 0..300 {
                prop_assert_eq!(set.has(round), set.iter().any(|has| has == round));
                for window in (0..layout.server_count()).flat_map(|slot| rounds.windows(slot, round)) {
                    let touched = extents.iter().any(|extent| extent.offset < window.end && extent.end() > window.start);
                    prop_assert!(set.has(round) || !touched);
                }
            }
        }
    }

    #[test]
    fn the_last_round_has_the_last_byte() {
        for area in [4096, 1 << 20, 1 << 30] {
            let rounds = Rounds::new(&Layout::new(1 << 20, 0, 7, 7).unwrap(), area);
            let last = rounds.intervals_of(&Regions::contiguous(OFFSET_LIMIT - 1, 1), true)[0].1;
            assert!(last <= rounds.last() && rounds.last() - last < rounds.parts);
            assert!((0..7).all(|slot| rounds.windows(slot, rounds.last()).all(|window| window.start > 0)));
        }
    }

    #[test]
    fn far_places_do_not_add_the_rounds_between_them() {
        let rounds = Rounds::new(&Layout::new(4096, 0, 2, 2).unwrap(), 8192);
        let far = Regions::list([Extent::new(0, 1), Extent::new(1 << 60, 1)]);
        assert_eq!(RoundSet::union(rounds.intervals_of(&far, true)).count(), 2);
        let many = Regions::list((0..1000u64).map(|at| Extent::new(at << 40, 1)).collect::<Vec<_>>());
        assert_eq!(rounds.intervals_of(&many, true).len(), INTERVALS_MAX);
    }
}
