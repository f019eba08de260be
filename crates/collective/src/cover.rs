//! Which bytes of an area are wanted: a bit for each, since the runs of many processes meet in any order.
//!
//! ```text
//!   process 0     ##..##..##..        AreaRun { 2 bytes, stride 4, count 3 }
//!   process 1     ..##..##....
//!   cover         ##########..   ->   extent 0..10
//! ```

use weft_layout::{Extent, Level, Region, Regions};

use crate::rounds::{Rounds, Window};
use crate::walk::AreaRun;

/// Equal extents at equal distances from this many on are one part of a request.
const LOOP_EXTENTS_MIN: u64 = 16;

/// A set of bytes of an area.
#[derive(Debug, Clone)]
pub(crate) struct Cover {
    words: Vec<u64>,
    /// Words outside this range are 0.
    used: std::ops::Range<usize>,
}

impl Cover {
    /// The empty set, of an area of `area_bytes`.
    pub fn new(area_bytes: u64) -> Cover {
        Cover { words: vec![0; area_bytes.div_ceil(64) as usize], used: 0..0 }
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.words[self.used.clone()].fill(0);
        self.used = 0..0;
    }

    /// Adds the bytes of a run, which is within the area.
    #[inline]
    pub fn add(&mut self, run: &AreaRun) {
        if run.count == 0 || run.bytes == 0 {
            return;
        }
        self.use_words(run.area_offset, run.area_end());
        if run.stride_bytes == run.bytes {
            return self.add_extent(run.area_offset, run.total_bytes());
        }
        match run.stride_bytes < 64 && run.count > 1 {
            true => self.add_tiny(run),
            false => {
                let mut offset = run.area_offset;
                for _ in 0..run.count {
                    self.add_extent(offset, run.bytes);
                    offset += run.stride_bytes;
                }
            }
        }
    }

    /// Adds a run of which several pieces are in most words: a word is read and written once.
    fn add_tiny(&mut self, run: &AreaRun) {
        let piece = !0u64 >> (64 - run.bytes);
        let (mut at, mut word) = (run.area_offset / 64, 0u64);
        let mut offset = run.area_offset;
        for _ in 0..run.count {
            if offset / 64 != at {
                self.words[at as usize] |= word;
                (at, word) = (offset / 64, 0);
            }
            word |= piece << (offset % 64);
            if offset % 64 + run.bytes > 64 {
                self.words[at as usize] |= word;
                (at, word) = (at + 1, piece >> (64 - offset % 64));
            }
            offset += run.stride_bytes;
        }
        self.words[at as usize] |= word;
    }

    fn use_words(&mut self, start: u64, end: u64) {
        let (first, last) = ((start / 64) as usize, end.div_ceil(64) as usize);
        self.used = match self.used.is_empty() {
            true => first..last,
            false => self.used.start.min(first)..self.used.end.max(last),
        };
    }

    #[inline]
    fn add_extent(&mut self, offset: u64, bytes: u64) {
        let last_bit = offset + bytes - 1;
        let (first, last) = ((offset / 64) as usize, (last_bit / 64) as usize);
        let from_first = !0u64 << (offset % 64);
        let to_last = !0u64 >> (63 - last_bit % 64);
        if first == last {
            self.words[first] |= from_first & to_last;
        } else {
            self.words[first] |= from_first;
            self.words[first + 1..last].fill(!0);
            self.words[last] |= to_last;
        }
    }

    /// Calls `each` with the extents of the set, ascending. Gaps of up to `gap_bytes_max` between them are
    /// filled.
    pub fn extents(&self, gap_bytes_max: u64, mut each: impl FnMut(Extent)) {
        let mut held = Extent::default();
        let (mut start, mut is_in) = (0, false);
        let mut end_at = |start: u64, end: u64| {
            if held.bytes > 0 && start - held.end() <= gap_bytes_max {
                held.bytes = end - held.offset;
            } else {
                if held.bytes > 0 {
                    each(held);
                }
                held = Extent::new(start, end - start);
            }
        };
        for (at, word) in self.used.clone().zip(&self.words[self.used.clone()]) {
            // A bit for each place where the set begins or ends.
            let mut changes = word ^ (word << 1 | u64::from(is_in));
            while changes != 0 {
                let offset = at as u64 * 64 + u64::from(changes.trailing_zeros());
                changes &= changes - 1;
                if is_in {
                    end_at(start, offset);
                } else {
                    start = offset;
                }
                is_in = !is_in;
            }
        }
        if is_in {
            end_at(start, self.used.end as u64 * 64);
        }
        if held.bytes > 0 {
            each(held);
        }
    }
}

/// The two sides of an access to the file, in the same order.
#[derive(Debug, Default)]
pub(crate) struct Sides {
    /// Of the area, whose first byte is at offset 0.
    pub memory: Regions,
    /// Of the file.
    pub file: Regions,
    /// Bytes on each side.
    pub bytes: u64,
}

/// The access to the bytes of `cover`, and to gaps of up to `gap_bytes_max`, in the area of `slot` in `round`.
pub(crate) fn sides(rounds: &Rounds, slot: u16, round: u64, cover: &Cover, gap_bytes_max: u64) -> Sides {
    let mut window = rounds.window_at(slot, round, 0);
    let (mut memory, mut file) = (Collected::default(), Collected::default());
    let mut bytes = 0;
    let mut pending = Equal::default();
    cover.extents(gap_bytes_max, |mut extent| {
        while extent.bytes > 0 {
            if extent.offset >= window.area_end() {
                close(std::mem::take(&mut pending), &window, &mut memory, &mut file);
                window = rounds.window_at(slot, round, extent.offset);
            }
            // What is not used in this round belongs to no byte of the file.
            let here = extent.bytes.min(window.area_end().saturating_sub(extent.offset));
            if here == 0 {
                return;
            }
            bytes += here;
            if !pending.join(Extent::new(extent.offset, here)) {
                close(std::mem::take(&mut pending), &window, &mut memory, &mut file);
                pending.join(Extent::new(extent.offset, here));
            }
            extent = Extent::new(extent.offset + here, extent.bytes - here);
        }
    });
    close(pending, &window, &mut memory, &mut file);
    Sides { memory: memory.finish(), file: file.finish(), bytes }
}

/// Adds equal extents of a window to both sides.
fn close(equal: Equal, window: &Window, memory: &mut Collected, file: &mut Collected) {
    let first = Extent::new(
        window.start + (equal.first.offset.saturating_sub(window.area_offset)),
        equal.first.bytes,
    );
    memory.push(equal);
    file.push(Equal { first, ..equal });
}

/// Equal extents at equal distances.
#[derive(Debug, Clone, Copy, Default)]
struct Equal {
    first: Extent,
    stride_bytes: u64,
    count: u64,
}

impl Equal {
    /// Adds the next extent if it is equal and at the same distance, or touches a single one. Returns whether
    /// it did.
    #[inline]
    fn join(&mut self, extent: Extent) -> bool {
        let distance = extent.offset - self.first.offset;
        match self.count {
            0 => self.first = extent,
            1 if self.first.end() == extent.offset => {
                self.first.bytes += extent.bytes;
                return true;
            }
            1 if self.first.bytes == extent.bytes => self.stride_bytes = distance,
            count if self.first.bytes == extent.bytes && distance == count * self.stride_bytes => {}
            _ => return false,
        }
        self.count += 1;
        true
    }

    fn extents(self) -> impl Iterator<Item = Extent> {
        (0..self.count)
            .map(move |at| Extent::new(self.first.offset + at * self.stride_bytes, self.first.bytes))
    }
}

/// Ascending extents, collected as regions: regular ones as loops.
#[derive(Debug, Default)]
struct Collected {
    parts: Vec<Region>,
    list: Vec<Extent>,
    /// At the end.
    last: Equal,
}

impl Collected {
    fn push(&mut self, equal: Equal) {
        if equal.count >= LOOP_EXTENTS_MIN {
            self.close_last();
            self.last = equal;
            return;
        }
        for extent in equal.extents() {
            if !self.last.join(extent) {
                self.close_last();
                self.last.join(extent);
            }
        }
    }

    fn close_last(&mut self) {
        let equal = std::mem::take(&mut self.last);
        if equal.count < LOOP_EXTENTS_MIN {
            self.list.extend(equal.extents());
            return;
        }
        self.close_list();
        let level = Level { count: equal.count, stride_bytes: equal.stride_bytes as i64 };
        let Extent { offset, bytes } = equal.first;
        self.parts.push(Region::Strided { offset, block_bytes: bytes, levels: vec![level] });
    }

    fn close_list(&mut self) {
        match self.list[..] {
            [] => {}
            [extent] => self.parts.push(Region::Contiguous(extent)),
            _ => self.parts.push(Region::List(std::mem::take(&mut self.list))),
        }
        self.list.clear();
    }

    fn finish(mut self) -> Regions {
        self.close_last();
        self.close_list();
        Regions { parts: self.parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use weft_layout::Layout;

    fn run() -> impl Strategy<Value = AreaRun> {
        (0u64..2000, prop_oneof![1u64..20, 1u64..300], 0u64..100, 1u64..40).prop_map(
            |(area_offset, bytes, gap, count)| AreaRun {
                area_offset,
                bytes,
                stride_bytes: bytes + gap,
                count,
                stream_offset: 0,
            },
        )
    }

    fn bytes_of(regions: &Regions) -> Vec<u64> {
        regions.extents().flat_map(|extent| extent.offset..extent.end()).collect()
    }

    fn covering(area_bytes: u64, extents: &[Extent]) -> Cover {
        let mut cover = Cover::new(area_bytes);
        for Extent { offset, bytes } in extents {
            let (area_offset, bytes) = (*offset, *bytes);
            cover.add(&AreaRun { area_offset, bytes, stride_bytes: 0, count: 1, stream_offset: 0 });
        }
        cover
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(200))]

        #[test]
        fn a_cover_is_a_set_of_bytes(runs in vec(run(), 0..12), gap_bytes_max in 0u64..50) {
            let area_bytes = runs.iter().map(AreaRun::area_end).max().unwrap_or(0);
            let mut cover = Cover::new(area_bytes);
            cover.add(&AreaRun { area_offset: 0, bytes: area_bytes, stride_bytes: 0, count: 1, stream_offset: 0 });
            cover.clear();
            let mut set = vec![false; area_bytes as usize];
            for run in &runs {
                cover.add(run);
                for piece in 0..run.count {
                    let start = (run.area_offset + piece * run.stride_bytes) as usize;
                    set[start..start + run.bytes as usize].fill(true);
                }
            }
            let mut expected: Vec<Extent> = Vec::new();
            for offset in (0..area_bytes).filter(|offset| set[*offset as usize]) {
                match expected.last_mut() {
                    Some(last) if offset - last.end() <= gap_bytes_max => last.bytes = offset + 1 - last.offset,
                    _ => expected.push(Extent::new(offset, 1)),
                }
            }
            let mut extents = Vec::new();
            cover.extents(gap_bytes_max, |extent| extents.push(extent));
            prop_assert_eq!(extents, expected);
        }

        #[test]
        fn sides_are_the_same_bytes(
            (pages, slots, area) in (1u32..4, 1u16..4, 0u64..30_000),
            (slot, round) in (0u16..4, 0u64..9),
            gaps in vec((0u64..300, 1u64..9), 0..200),
            regular in any::<bool>(),
        ) {
            let layout = Layout::new(pages * 4096, 0, slots, slots).unwrap();
            let (rounds, slot) = (Rounds::new(&layout, area), slot % slots);
            let range = rounds.local_range(&layout, slot, round);
            let mut end = 0;
            let place = |&(gap, bytes): &(u64, u64)| {
                let (gap, bytes) = if regular { gaps[0] } else { (gap, bytes) };
                end += gap + bytes;
                Extent::new(end - bytes, bytes)
            };
            let extents: Vec<Extent> =
                gaps.iter().map(place).filter(|extent| extent.end() <= range.bytes).collect();
            let sides = sides(&rounds, slot, round, &covering(range.bytes, &extents), 0);
            let memory = bytes_of(&sides.memory);
            prop_assert_eq!(&memory, &bytes_of(&Regions::list(extents)));
            prop_assert_eq!(sides.bytes, memory.len() as u64);
            let local: Vec<u64> = memory.iter().map(|at| layout.logical_offset(slot, range.offset + at)).collect();
            prop_assert_eq!(bytes_of(&sides.file), local);
        }
    }

    #[test]
    fn what_a_round_does_not_use_is_left_out() {
        // Strips of three pages in rounds of two: the second round has one page.
        let rounds = Rounds::new(&Layout::new(3 * 4096, 0, 2, 2).unwrap(), 2 * 4096);
        let sides = sides(&rounds, 0, 1, &covering(8192, &[Extent::new(4000, 200), Extent::new(8000, 9)]), 0);
        assert_eq!((sides.bytes, sides.memory), (96, Regions::contiguous(4000, 96)));
        assert_eq!(sides.file, Regions::contiguous(2 * 4096 + 4000, 96));
    }

    #[test]
    fn a_regular_cover_is_a_few_parts() {
        let layout = Layout::new(65536, 0, 4, 4).unwrap();
        let rounds = Rounds::new(&layout, 1 << 20);
        let cover = |extents: &[Extent]| sides(&rounds, 1, 3, &covering(1 << 20, extents), 0);
        let full = cover(&[Extent::new(0, 1 << 20)]);
        assert_eq!((full.memory.part_count(), full.file.part_count()), (1, 1));
        let every_second: Vec<Extent> = (0..20_000u64).map(|at| Extent::new(at * 48, 24)).collect();
        // A loop, and a list of the piece that is cut, for each of 15 strips.
        let regular = cover(&every_second);
        assert!(regular.memory.part_count() <= 30 && regular.file.part_count() <= 30);
    }
}
