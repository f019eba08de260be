//! Sets of addresses.
//!
//! ```text
//!   [────)      [──────)   add [3..8)     [──────────────)
//!   1    4      7      9                  1              9
//! ```

use std::collections::BTreeMap;

use super::group::PageRange;

/// More parts are joined with their neighbours: a set never gets large, it only gets coarse.
const PARTS_MAX: usize = 4096;

/// A set of addresses, as ranges that do not touch.
#[derive(Debug, Default)]
pub struct Ranges {
    parts: BTreeMap<u64, u64>,
}

impl Ranges {
    pub fn add(&mut self, range: PageRange) {
        let touching: Vec<_> = self.touching(range.start, range.end).collect();
        let mut whole = range;
        for (start, end) in touching {
            self.parts.remove(&start);
            whole = PageRange { start: whole.start.min(start), end: whole.end.max(end) };
        }
        self.parts.insert(whole.start, whole.end);
        if self.parts.len() > PARTS_MAX {
            self.coarsen();
        }
    }

    pub fn remove(&mut self, range: &PageRange) {
        let touching: Vec<_> = self.touching(range.start, range.end).collect();
        for (start, end) in touching {
            self.parts.remove(&start);
            if start < range.start {
                self.parts.insert(start, range.start);
            }
            if range.end < end {
                self.parts.insert(range.end, end);
            }
        }
    }

    pub fn overlaps(&self, range: &PageRange) -> bool {
        self.touching(range.start, range.end).any(|(start, end)| start < range.end && range.start < end)
    }

    /// Whether anything of a range is in the set that is in none of the parts (sorted, within the range).
    pub fn overlaps_between(&self, range: &PageRange, parts: &[PageRange]) -> bool {
        let starts = std::iter::once(range.start).chain(parts.iter().map(|part| part.end));
        let ends = parts.iter().map(|part| part.start).chain(std::iter::once(range.end));
        let mut gaps = starts.zip(ends).filter(|(start, end)| start < end);
        !self.parts.is_empty() && gaps.any(|(start, end)| self.overlaps(&PageRange { start, end }))
    }

    /// The whole parts that overlap a range or touch it.
    pub fn around(&self, range: &PageRange) -> Vec<PageRange> {
        self.touching(range.start, range.end).map(|(start, end)| PageRange { start, end }).collect()
    }

    /// Parts that overlap or touch.
    fn touching(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let begun = self.parts.range(..=end).rev();
        begun.take_while(move |(_, part_end)| **part_end >= start).map(|(start, end)| (*start, *end))
    }

    /// Makes one of every two neighbours.
    fn coarsen(&mut self) {
        let parts: Vec<_> = std::mem::take(&mut self.parts).into_iter().collect();
        self.parts = parts.chunks(2).map(|pair| (pair[0].0, pair[pair.len() - 1].1)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec((any::<bool>(), 0u64..64, 1u64..20), 0..50)) {
            let (mut set, mut model) = (Ranges::default(), [false; 96]);
            for (add, start, bytes) in steps {
                let range = PageRange { start, end: start + bytes };
                if add { set.add(range) } else { set.remove(&range) }
                model[start as usize..(start + bytes) as usize].fill(add);
                for at in 0..95u64 {
                    let one = PageRange { start: at, end: at + 1 };
                    prop_assert_eq!(set.overlaps(&one), model[at as usize]);
                }
                let parts = [PageRange { start: 20, end: 30 }, PageRange { start: 40, end: 41 }];
                let between = model[10..20].iter().chain(&model[30..40]).chain(&model[41..50]).any(|is_in| *is_in);
                prop_assert_eq!(set.overlaps_between(&PageRange { start: 10, end: 50 }, &parts), between);
            }
        }
    }

    #[test]
    fn a_large_set_gets_coarse() {
        let mut set = Ranges::default();
        for at in 0..3 * PARTS_MAX as u64 {
            set.add(PageRange { start: at * 4, end: at * 4 + 1 });
        }
        assert!(set.parts.len() <= PARTS_MAX);
        assert!(
            (0..3 * PARTS_MAX as u64).all(|at| set.overlaps(&PageRange { start: at * 4, end: at * 4 + 1 }))
        );
    }
}
