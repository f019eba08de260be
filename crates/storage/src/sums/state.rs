//! What is known of the sums of one data file: pure, no I/O.
//!
//! ```text
//!   a block     no sum ──settled──► summed ──read and compared──► summed, verified
//!                 ▲ ▲                 │
//!                 │ └─────changed─────┘      its sum is forgotten before the change, and void on disk before that
//!                 └── touched: changed in this run, so that the settler sums it
//!
//!   a change    begin: its blocks are touched, their sums forgotten ─► void on disk ─► data is written ─► end
//!   settling    begin: takes the touched blocks that no change is at work on ─► sums what is there ─► data is synced
//!               ─► sums are written where all is void ─► in force, for blocks that no change has begun on meanwhile
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use super::format::*;
use super::region::{Bits, Region};

/// The sidecar of a data file, as far as it was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sidecar {
    Unknown,
    /// There is none.
    None,
    /// With so many records.
    Has(u32),
}

/// A change that is under way.
#[derive(Debug)]
struct InFlight {
    number: u64,
    blocks: Range<u64>,
}

/// What is known of the sums of one data file.
#[derive(Debug)]
pub(crate) struct State {
    pub sidecar: Sidecar,
    pub regions: BTreeMap<u32, Region>,
    in_flight: Vec<InFlight>,
    next_change: u64,
    /// Changes that have records made void and wait for that to be durable.
    pub voiding: u32,
    /// Regions that were made void since the last settling: the more, the more are made void ahead.
    voided_regions: u32,
    /// Blocks found wrong and not written since.
    pub wrong: BTreeSet<u64>,
    /// A record was damaged, and its blocks have not got new sums.
    pub has_damaged_sums: bool,
    /// The sidecar is that of this other inode: so is the data file, or they do not belong together.
    pub foreign: Option<u64>,
    /// A sync has made durable all that was changed.
    pub is_synced: bool,
    /// The data file was removed: its sidecar is nobody's.
    pub is_detached: bool,
    /// It is among those that wait for the settler.
    pub is_queued: bool,
    /// When it was changed last, and when it was first since it was settled.
    pub changed_at: Instant,
    pub dirty_since: Instant,
}

/// The greatest number of regions that are made void ahead of a change.
const AHEAD_REGIONS_MAX: u32 = 64;

/// The part of `blocks` in each region.
pub(crate) fn by_region(blocks: Range<u64>) -> impl Iterator<Item = (u32, Range<usize>)> {
    let per_region = REGION_BLOCKS as u64;
    let regions =
        if blocks.is_empty() { 0..0 } else { blocks.start / per_region..(blocks.end - 1) / per_region + 1 };
    regions.map(move |region| {
        let first = region * per_region;
        let begin = blocks.start.max(first) - first;
        let end = blocks.end.min(first + per_region) - first;
        (region as u32, begin as usize..end as usize)
    })
}

/// Whether a block gets a sum because a scrub has come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// It has one, or gets one anyway.
    No,
    /// It never had one, as far as is known.
    First,
    /// It had one that was made void or damaged.
    Again,
}

/// What must be written to a sidecar before a change: records' headers.
pub(crate) type Voids = Vec<(u32, Header)>;

impl State {
    pub fn new() -> State {
        let now = Instant::now();
        State {
            sidecar: Sidecar::Unknown,
            regions: BTreeMap::new(),
            in_flight: Vec::new(),
            next_change: 0,
            voiding: 0,
            voided_regions: 0,
            wrong: BTreeSet::new(),
            has_damaged_sums: false,
            foreign: None,
            is_synced: false,
            is_detached: false,
            is_queued: false,
            changed_at: now,
            dirty_since: now,
        }
    }

    /// Whether no block can have a sum, as far as is known.
    pub fn has_none(&self) -> bool {
        self.sidecar == Sidecar::None
    }

    /// Whether a region's record must be read first.
    pub fn must_load(&self, region: u32) -> bool {
        match self.sidecar {
            Sidecar::Unknown => true,
            Sidecar::None => false,
            Sidecar::Has(records) => region < records && !self.regions.contains_key(&region),
        }
    }

    /// The first region that `blocks` are in whose record must be read first.
    pub fn must_load_of(&self, blocks: Range<u64>) -> Option<u32> {
        match self.sidecar {
            Sidecar::None => None,
            Sidecar::Unknown => Some((blocks.start / REGION_BLOCKS as u64) as u32),
            Sidecar::Has(records) => {
                let blocks = blocks.start..blocks.end.min(u64::from(records) * REGION_BLOCKS as u64);
                by_region(blocks).map(|(region, _)| region).find(|region| self.must_load(*region))
            }
        }
    }

    /// Takes over a record that was read, unless that has been done meanwhile.
    pub fn load(&mut self, region: u32, record: Record) {
        if self.must_load(region) {
            self.has_damaged_sums |= record.damaged_granules > 0;
            self.foreign = self.foreign.or(record.foreign);
            self.regions.insert(region, Region::found(record));
        }
    }

    /// Forgets regions that can be read again, but for `keep`; returns how many.
    pub fn forget_idle(&mut self, keep: u32) -> usize {
        let before = self.regions.len();
        if self.voiding == 0 {
            self.regions.retain(|number, region| *number == keep || !region.is_idle());
        }
        before - self.regions.len()
    }

    /// The regions behind `block` whose records are to be loaded before a change there, since they may be
    /// made void with it.
    pub fn ahead_of(&self, block: u64) -> Range<u32> {
        let number = (block / REGION_BLOCKS as u64) as u32;
        let is_in_force = self.regions.get(&number).is_some_and(|region| region.void != u64::MAX);
        let ahead = if is_in_force { self.voided_regions.min(AHEAD_REGIONS_MAX) } else { 0 };
        number + 1..number + 1 + ahead
    }

    /// Begins a change of blocks, whose records are loaded: they have no sum any more. The records that must
    /// be made void before are returned.
    pub fn begin_change(&mut self, pieces: impl IntoIterator<Item = Range<u64>>) -> (u64, Voids) {
        let mut void: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut begin, mut end) = (u64::MAX, 0);
        let mut last = 0..0;
        for blocks in pieces {
            (begin, end) = (begin.min(blocks.start), end.max(blocks.end));
            if blocks.start >= last.start && blocks.end <= last.end {
                continue;
            }
            for (number, blocks) in by_region(blocks.clone()) {
                let region = self.regions.entry(number).or_default();
                let in_force = region.in_force(&blocks);
                if in_force != 0 {
                    *void.entry(number).or_default() |= in_force;
                }
                region.touch(blocks);
            }
            last = blocks;
        }
        for block in self.wrong.range(begin..end.max(begin)).copied().collect::<Vec<_>>() {
            let (number, at) = (block / REGION_BLOCKS as u64, (block % REGION_BLOCKS as u64) as usize);
            if self.regions.get(&(number as u32)).is_some_and(|region| region.sum(at) == 0) {
                self.wrong.remove(&block);
            }
        }
        let number = self.next_change;
        self.next_change += 1;
        self.is_synced = false;
        self.in_flight.push(InFlight { number, blocks: begin..end.max(begin) });
        self.changed_at = Instant::now();
        (number, self.make_void(void))
    }

    /// Writes down in the headers which granules become void; those that follow do, too, where changes come
    /// one after the other.
    fn make_void(&mut self, mut void: BTreeMap<u32, u64>) -> Voids {
        let Some(last) = void.last_key_value().map(|(number, _)| *number) else { return Vec::new() };
        let goes_on = |number: &u32| {
            *number > 0 && self.regions.get(&(number - 1)).is_some_and(|before| before.void == u64::MAX)
        };
        for (number, granules) in &mut void {
            // The second change in a region takes all that is behind it along.
            let region = &self.regions[number];
            if region.void != 0 || goes_on(number) {
                *granules |= u64::MAX << granules.trailing_zeros();
            }
        }
        if goes_on(&last) {
            let ahead = last + 1..=last + self.voided_regions.min(AHEAD_REGIONS_MAX);
            void.extend(
                ahead.filter(|number| self.regions.contains_key(number)).map(|number| (number, u64::MAX)),
            );
        }
        self.voided_regions += void.len() as u32;
        self.voiding += 1;
        let header = |(number, granules): (u32, u64)| {
            let region = self.regions.get_mut(&number).expect("it is loaded");
            let header = region.header.get_or_insert_with(|| Box::new(Header::void()));
            header.void |= granules;
            (number, Header::clone(header))
        };
        void.into_iter().map(header).collect()
    }

    /// The records are void on disk, or could not be made so.
    pub fn are_void(&mut self, voids: &Voids, durably: bool) {
        self.voiding -= 1;
        for (number, header) in voids.iter().filter(|_| durably) {
            if let Some(region) = self.regions.get_mut(number) {
                region.void |= header.void;
            }
        }
    }

    /// The file is cut before this region. Says whether the sidecar has records to be cut off.
    pub fn cut(&mut self, region: u32) -> bool {
        if region == 0 {
            self.foreign = None;
        }
        drop(self.regions.split_off(&region));
        drop(self.wrong.split_off(&(u64::from(region) * REGION_BLOCKS as u64)));
        match self.sidecar {
            Sidecar::Has(records) if records > region => {
                self.sidecar = Sidecar::Has(region);
                true
            }
            _ => false,
        }
    }

    /// What is not settled stays without sums.
    pub fn forget_unsettled(&mut self) {
        for region in self.regions.values_mut() {
            region.touched = Bits::default();
            for (block, sum) in region.sums.iter_mut().enumerate() {
                if region.void >> (block / GRANULE_BLOCKS) & 1 == 1 {
                    *sum = 0;
                }
            }
            trim(&mut region.sums);
        }
    }

    pub fn end_change(&mut self, number: u64) {
        self.in_flight.retain(|change| change.number != number);
        self.changed_at = Instant::now();
    }

    /// Which change comes next; `None` while one is under way.
    pub fn quiet_at(&self) -> Option<u64> {
        self.in_flight.is_empty().then_some(self.next_change)
    }

    /// A sync has ended that began when the file was quiet at this change.
    pub fn synced(&mut self, quiet_at: Option<u64>) {
        self.is_synced = quiet_at.is_some() && self.quiet_at() == quiet_at;
    }

    /// Blocks that the settler has to read.
    pub fn touched_blocks(&self) -> u64 {
        self.regions.values().map(|region| region.touched.iter().count() as u64).sum()
    }

    /// Whether any sum is in force, as far as is loaded.
    pub fn has_any_in_force(&self) -> bool {
        self.regions.values().any(|region| !region.sums.is_empty() && region.void != u64::MAX)
    }

    /// Regions with something to settle.
    pub fn unsettled(&self) -> impl Iterator<Item = u32> {
        self.regions.iter().filter(|(_, region)| region.is_unsettled()).map(|(number, _)| *number)
    }

    /// Begins to settle a region: the blocks to sum, which no change is at work on, and the record to make
    /// void first. `None`: nothing can be done now.
    pub fn begin_settling(&mut self, number: u32) -> Option<(Bits, Voids)> {
        let region = self.regions.get_mut(&number).filter(|region| region.is_unsettled())?;
        let mut blocks = std::mem::take(&mut region.touched);
        let first = u64::from(number) * REGION_BLOCKS as u64;
        for change in &self.in_flight {
            for block in blocks.iter().collect::<Vec<_>>() {
                if change.blocks.contains(&(first + block as u64)) {
                    blocks.clear(block..block + 1);
                    region.touched.set(block..block + 1);
                }
            }
        }
        if blocks.is_empty() && !region.touched.is_empty() {
            return None;
        }
        region.changed = Some(Bits::default());
        let wanted = blocks.iter().fold(0u64, |granules, block| granules | 1 << (block / GRANULE_BLOCKS));
        let missing = wanted & !region.void;
        if missing == 0 {
            return Some((blocks, Vec::new()));
        }
        self.voiding += 1;
        let header = region.header.get_or_insert_with(|| Box::new(Header::void()));
        header.void |= missing;
        Some((blocks, vec![(number, Header::clone(header))]))
    }

    /// Whether neither memory nor sidecar has anything of a region.
    pub fn is_bare(&self, number: u32) -> bool {
        self.regions.get(&number).is_none_or(|region| region.header.is_none() && region.sums.is_empty())
    }

    /// The sums as they are to be written now, with these new ones: none for what was changed meanwhile.
    /// `None`: not now.
    pub fn sums_to_write(&self, number: u32, new: &BTreeMap<usize, u32>) -> Option<Vec<u32>> {
        // What is not void on disk must stay as it is there.
        let region = self.regions.get(&number).filter(|_| !self.is_detached && self.voiding == 0)?;
        let changed = region.changed.as_ref()?;
        let mut sums = region.sums.clone();
        for (block, sum) in new.iter().filter(|(block, _)| !changed.has(**block)) {
            if sums.len() <= *block {
                sums.resize(block + 1, 0);
            }
            sums[*block] = *sum;
        }
        trim(&mut sums);
        Some(sums)
    }

    /// Puts sums in force that are on disk; the header to write for it, at once. `None`: a change came in
    /// between, and the sums must be written again.
    pub fn put_in_force(&mut self, number: u32, written: &[u32]) -> Option<Header> {
        if self.voiding > 0 || self.is_detached {
            return None;
        }
        let region = self.regions.get_mut(&number)?;
        let changed = region.changed.as_ref()?;
        if changed.iter().any(|block| written.get(block).is_some_and(|sum| *sum != 0)) {
            return None;
        }
        let header =
            Header { void: 0, granules: std::array::from_fn(|granule| check_of_granule(written, granule)) };
        for (block, sum) in written.iter().enumerate() {
            if *sum != 0 && region.sum(block) != *sum {
                region.verified.set(block..block + 1);
            }
        }
        region.sums = written.to_vec();
        region.void = 0;
        region.changed = None;
        region.header = Some(Box::new(header.clone()));
        self.voided_regions = 0;
        Some(header)
    }

    /// Settling a region has failed: its blocks are touched still, if they are to be tried again.
    pub fn give_up_settling(&mut self, number: u32, blocks: &Bits, again: bool) {
        let Some(region) = self.regions.get_mut(&number) else { return };
        region.changed = None;
        for block in blocks.iter().filter(|_| again) {
            region.touched.set(block..block + 1);
        }
    }

    /// The blocks of a range, loaded, that have a sum and were not compared in this run; or all with a sum.
    pub fn to_verify(&self, blocks: Range<u64>, all: bool, into: &mut Vec<(u64, u32)>) {
        if self.has_none() {
            return;
        }
        for (number, range) in by_region(blocks) {
            let Some(region) = self.regions.get(&number) else { continue };
            let first = u64::from(number) * REGION_BLOCKS as u64;
            let range = range.start..range.end.min(region.sums.len());
            if range.is_empty() || !all && region.verified.has_all(range.clone()) {
                continue;
            }
            for at in range {
                if region.sums[at] != 0 && (all || !region.verified.has(at)) {
                    into.push((first + at as u64, region.sums[at]));
                }
            }
        }
    }

    /// Whether any block of a range has a sum.
    pub fn has_sums(&self, blocks: Range<u64>) -> bool {
        !self.has_none()
            && by_region(blocks).any(|(number, range)| {
                let region = self.regions.get(&number);
                region.is_some_and(|region| {
                    let end = range.end.min(region.sums.len());
                    range.start < end && region.sums[range.start..end].iter().any(|sum| *sum != 0)
                })
            })
    }

    /// Notes how a block compared with `sum`. Says whether it is wrong: not where it was changed meanwhile.
    pub fn compared(&mut self, block: u64, sum: u32, is_right: bool) -> bool {
        let (number, at) = ((block / REGION_BLOCKS as u64) as u32, (block % REGION_BLOCKS as u64) as usize);
        let Some(region) = self.regions.get_mut(&number).filter(|region| region.sum(at) == sum) else {
            return false;
        };
        if is_right {
            region.verified.set(at..at + 1);
            self.wrong.remove(&block);
        } else {
            region.verified.clear(at..at + 1);
        }
        !is_right
    }

    /// Has the settler sum a block that has no sum.
    pub fn adopt(&mut self, number: u32, block: usize) -> Adopted {
        let region = self.regions.entry(number).or_default();
        if region.sum(block) != 0 || region.touched.has(block) {
            return Adopted::No;
        }
        region.touched.set(block..block + 1);
        if region.had.has(block) { Adopted::Again } else { Adopted::First }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::once;

    /// A state whose first 200 blocks are settled.
    fn settled() -> State {
        let mut state = State::new();
        state.sidecar = Sidecar::None;
        let (change, voids) = state.begin_change(once(0..200));
        assert!(voids.is_empty(), "what has no sums needs no sync");
        state.end_change(change);
        let (blocks, voids) = state.begin_settling(0).unwrap();
        assert!(voids.is_empty() && blocks.iter().eq(0..200));
        state.sidecar = Sidecar::Has(1);
        let new = (0..200).map(|block| (block, block as u32 + 1)).collect();
        let sums = state.sums_to_write(0, &new).unwrap();
        assert_eq!(state.put_in_force(0, &sums).unwrap().void, 0);
        assert!(state.unsettled().next().is_none());
        state
    }

    #[test]
    fn every_change_waits_until_the_sums_are_void_on_disk() {
        let mut state = settled();
        let (first, voids) = state.begin_change(once(5..6));
        assert_eq!(voids[0].1.void, 1, "its granule and no other");
        // The same block again, and one beside it, before the first has become void.
        let (second, again) = state.begin_change(once(5..6));
        assert_eq!(again.len(), 1);
        state.are_void(&voids, false);
        let (third, failed) = state.begin_change(once(6..7));
        assert_eq!(failed.len(), 1, "the first could not be made void");
        state.are_void(&again, true);
        state.are_void(&failed, true);
        let (fourth, none) = state.begin_change(once(5..64));
        assert!(none.is_empty());
        [first, second, third, fourth].into_iter().for_each(|change| state.end_change(change));
        assert!(!state.has_sums(5..64) && state.has_sums(0..5) && state.has_sums(64..200));
    }

    #[test]
    fn what_changes_while_it_is_settled_gets_no_sum() {
        let mut state = settled();
        let (before, voids) = state.begin_change(once(0..10));
        state.are_void(&voids, true);
        let (blocks, _) = state.begin_settling(0).unwrap_or_default();
        assert!(blocks.is_empty(), "a change is at work on all of them");
        state.end_change(before);
        let (blocks, _) = state.begin_settling(0).unwrap();
        assert!(blocks.iter().eq(0..10));
        let new: BTreeMap<usize, u32> = (0..10).map(|block| (block, 1000)).collect();
        let sums = state.sums_to_write(0, &new).unwrap();
        let (during, voids) = state.begin_change(once(3..4));
        assert!(voids.is_empty() && state.put_in_force(0, &sums).is_none());
        let sums = state.sums_to_write(0, &new).unwrap();
        assert!(sums[3] == 0 && sums[2] == 1000);
        assert!(state.put_in_force(0, &sums).is_some());
        state.end_change(during);
        assert!(!state.has_sums(3..4) && state.unsettled().eq([0]));
    }

    #[test]
    fn changes_one_after_the_other_make_more_void_ahead_which_is_put_in_force_again() {
        let mut state = settled();
        let (first, voids) = state.begin_change(once(0..10));
        state.are_void(&voids, true);
        let (second, voids) = state.begin_change(once(70..80));
        assert_eq!(voids[0].1.void, u64::MAX, "the second takes all behind it along");
        state.are_void(&voids, true);
        [first, second].into_iter().for_each(|change| state.end_change(change));
        assert!(
            state.has_sums(130..200) && state.unsettled().eq([0]),
            "these sums are not in force, and are right"
        );
        let (blocks, _) = state.begin_settling(0).unwrap();
        assert!(blocks.iter().eq((0..10).chain(70..80)));
        let sums = state.sums_to_write(0, &BTreeMap::new()).unwrap();
        assert!(state.put_in_force(0, &sums).is_some());
        assert!(state.unsettled().next().is_none() && state.has_sums(130..200));
    }
}
