//! Which bytes of an area are wanted: a bit for each, since the runs of many processes meet in any order.
//!
//! ```text
//!   process 0     ##..##..##..        AreaRun { 2 bytes, stride 4, count 3 }
//!   process 1     ..##..##....
//!   cover         ##########..   ->   extent 0..10
//! ```

use weft_layout::{Extent, Level, Region, Regions};

use crate::rounds::Rounds;
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
        let mut offset = run.area_offset;
        for _ in 0..run.count {
            self.add_extent(offset, run.bytes);
            offset += run.stride_bytes;
        }
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

    /// The extents of the set, ascending. Gaps of up to `gap_bytes_max` between them are filled.
    pub fn extents(&self, gap_bytes_max: u64) -> impl Iterator<Item = Extent> {
        let mut next = self.next_in(self.used.start as u64 * 64);
        std::iter::from_fn(move || {
            let start = next?;
            loop {
                let end = self.next_out(next?);
                next = self.next_in(end);
                if next.is_none_or(|next| next - end > gap_bytes_max) {
                    return Some(Extent::new(start, end - start));
                }
            }
        })
    }

    /// The first byte of the set from `offset` on.
    fn next_in(&self, offset: u64) -> Option<u64> {
        let mut at = (offset / 64) as usize;
        let mut word = *self.words[..self.used.end].get(at)? & (!0 << (offset % 64));
        while word == 0 {
            at += 1;
            word = *self.words[..self.used.end].get(at)?;
        }
        Some(at as u64 * 64 + u64::from(word.trailing_zeros()))
    }

    /// The first byte from `offset` on that is not in the set.
    fn next_out(&self, offset: u64) -> u64 {
        let words = &self.words[..self.used.end];
        let mut at = (offset / 64) as usize;
        let mut word = words[at] | !(!0 << (offset % 64));
        while word == !0 {
            at += 1;
            match words.get(at) {
                Some(next) => word = *next,
                None => return at as u64 * 64,
            }
        }
        at as u64 * 64 + u64::from(word.trailing_ones())
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

/// The access to `extents` of the area of `slot` in `round`.
pub(crate) fn sides(rounds: &Rounds, slot: u16, round: u64, extents: impl Iterator<Item = Extent>) -> Sides {
    let (mut memory, mut file) = (Collected::default(), Collected::default());
    let mut bytes = 0;
    for mut extent in extents {
        bytes += extent.bytes;
        memory.push(extent);
        while extent.bytes > 0 {
            let window = rounds.window_at(slot, round, extent.offset);
            let start = window.start + (extent.offset - window.area_offset);
            let here = extent.bytes.min(window.end - start);
            file.push(Extent::new(start, here));
            extent = Extent::new(extent.offset + here, extent.bytes - here);
        }
    }
    Sides { memory: memory.finish(), file: file.finish(), bytes }
}

/// Ascending extents, collected as regions: regular ones as loops.
#[derive(Debug, Default)]
struct Collected {
    parts: Vec<Region>,
    list: Vec<Extent>,
    /// Equal extents at equal distances, at the end.
    first: Extent,
    stride_bytes: u64,
    count: u64,
}

impl Collected {
    fn push(&mut self, extent: Extent) {
        let distance = extent.offset - self.first.offset;
        let continues = match self.count {
            0 => {
                self.first = extent;
                true
            }
            1 if self.first.end() == extent.offset => {
                self.first.bytes += extent.bytes;
                return;
            }
            1 if self.first.bytes == extent.bytes => {
                self.stride_bytes = distance;
                true
            }
            count => self.first.bytes == extent.bytes && distance == count * self.stride_bytes,
        };
        if continues {
            self.count += 1;
        } else {
            self.close_loop();
            (self.first, self.count) = (extent, 1);
        }
    }

    fn close_loop(&mut self) {
        let Extent { offset, bytes } = self.first;
        if self.count < LOOP_EXTENTS_MIN {
            let step = self.stride_bytes;
            self.list.extend((0..self.count).map(|at| Extent::new(offset + at * step, bytes)));
            return;
        }
        self.close_list();
        let level = Level { count: self.count, stride_bytes: self.stride_bytes as i64 };
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
        self.close_loop();
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
        (0u64..2000, 1u64..300, 0u64..100, 1u64..12).prop_map(|(area_offset, bytes, gap, count)| AreaRun {
            area_offset,
            bytes,
            stride_bytes: bytes + gap,
            count,
            stream_offset: 0,
        })
    }

    fn bytes_of(regions: &Regions) -> Vec<u64> {
        regions.extents().flat_map(|extent| extent.offset..extent.end()).collect()
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
            prop_assert_eq!(cover.extents(gap_bytes_max).collect::<Vec<_>>(), expected);
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
            let sides = sides(&rounds, slot, round, extents.iter().copied());
            let memory = bytes_of(&sides.memory);
            prop_assert_eq!(&memory, &bytes_of(&Regions::list(extents)));
            prop_assert_eq!(sides.bytes, memory.len() as u64);
            let local: Vec<u64> = memory.iter().map(|at| layout.logical_offset(slot, range.offset + at)).collect();
            prop_assert_eq!(bytes_of(&sides.file), local);
        }
    }

    #[test]
    fn a_regular_cover_is_a_few_parts() {
        let layout = Layout::new(65536, 0, 4, 4).unwrap();
        let rounds = Rounds::new(&layout, 1 << 20);
        let full = sides(&rounds, 1, 3, [Extent::new(0, 1 << 20)].into_iter());
        assert_eq!((full.memory.part_count(), full.file.part_count()), (1, 1));
        let every_second = (0..10_000u64).map(|at| Extent::new(at * 48, 24));
        assert!(sides(&rounds, 1, 3, every_second).memory.part_count() == 1);
    }
}
