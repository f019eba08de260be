//! How many ranges cover each page.
//!
//! ```text
//!   ranges    [───────)                 counts   0 │ 1 │ 2 │ 1 │ 0
//!                 [───────)             from     0   1   5   9   13
//!             1   5   9   13
//! ```

use std::collections::BTreeMap;

use super::group::PageRange;

/// See the module. A count holds from its address to the next one's.
#[derive(Debug, Default)]
pub struct Coverage {
    counts: BTreeMap<u64, u32>,
}

impl Coverage {
    pub fn add(&mut self, range: &PageRange) {
        self.split(range.start);
        self.split(range.end);
        for (_, count) in self.counts.range_mut(range.start..range.end) {
            *count += 1;
        }
        self.join(range);
    }

    /// Takes away what was added once.
    pub fn remove(&mut self, range: &PageRange) {
        self.split(range.start);
        self.split(range.end);
        for (_, count) in self.counts.range_mut(range.start..range.end) {
            *count -= 1;
        }
        self.join(range);
    }

    /// Whether any page of a range is covered.
    pub fn covers_any(&self, range: &PageRange) -> bool {
        let mut inside = self.counts.range(range.start..range.end);
        self.count_at(range.start) > 0 || inside.any(|(_, count)| *count > 0)
    }

    fn count_at(&self, at: u64) -> u32 {
        self.counts.range(..=at).next_back().map_or(0, |(_, count)| *count)
    }

    fn split(&mut self, at: u64) {
        let count = self.count_at(at);
        self.counts.insert(at, count);
    }

    /// Forgets borders in and around a range where the count stays the same.
    fn join(&mut self, range: &PageRange) {
        let before = self.counts.range(..range.start).next_back();
        let mut last = before.map_or(0, |(_, count)| *count);
        let borders: Vec<_> = self.counts.range(range.start..=range.end).map(|(at, n)| (*at, *n)).collect();
        for (at, count) in borders {
            if count == last {
                self.counts.remove(&at);
            }
            last = count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn it_counts(ranges in proptest::collection::vec((0u64..50, 1u64..20, any::<bool>()), 0..40)) {
            let (mut coverage, mut model, mut live) = (Coverage::default(), [0i32; 80], Vec::new());
            let count = |model: &mut [i32; 80], range: &PageRange, by: i32| {
                model[range.start as usize..range.end as usize].iter_mut().for_each(|count| *count += by);
            };
            for (start, bytes, add) in ranges {
                let range = PageRange { start, end: start + bytes };
                if add || live.is_empty() {
                    coverage.add(&range);
                    count(&mut model, &range, 1);
                    live.push(range);
                } else {
                    let range = live.swap_remove(start as usize % live.len());
                    count(&mut model, &range, -1);
                    coverage.remove(&range);
                }
                for (start, end) in [(0, 1), (5, 9), (20, 60), (7, 8), (69, 80)] {
                    let is_covered = model[start..end].iter().any(|count| *count > 0);
                    let range = PageRange { start: start as u64, end: end as u64 };
                    prop_assert_eq!(coverage.covers_any(&range), is_covered);
                }
            }
            for range in live {
                coverage.remove(&range);
            }
            prop_assert!(coverage.counts.is_empty());
        }
    }
}
