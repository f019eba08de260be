//! What is known of the sums of one region of a data file: a bit per block, and the sums.

use std::ops::Range;

use super::format::*;

/// A growing set of blocks of a region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    pub fn set(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let words = (range.end - 1) / 64 + 1;
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        each_word(range, |word, mask| self.0[word] |= mask);
    }

    pub fn clear(&mut self, range: Range<usize>) {
        let range = range.start..range.end.min(self.0.len() * 64);
        if !range.is_empty() {
            each_word(range, |word, mask| self.0[word] &= !mask);
        }
    }

    /// Whether it has all of a range.
    pub fn has_all(&self, range: Range<usize>) -> bool {
        let mut all = true;
        if !range.is_empty() {
            each_word(range, |word, mask| all &= self.0.get(word).is_some_and(|word| word & mask == mask));
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

/// The words that a range touches, each with the bits of it that do.
fn each_word(range: Range<usize>, mut action: impl FnMut(usize, u64)) {
    let (first, last) = (range.start / 64, (range.end - 1) / 64);
    for word in first..=last {
        let begin = if word == first { range.start % 64 } else { 0 };
        let end = if word == last { (range.end - 1) % 64 } else { 63 };
        action(word, (u64::MAX << begin) & (u64::MAX >> (63 - end)));
    }
}

/// What is known of the sums of one region.
#[derive(Debug)]
pub(crate) struct Region {
    /// By block; 0: none. Trimmed.
    pub sums: Vec<u32>,
    /// Changed in this run and not settled since.
    pub touched: Bits,
    /// Compared in this run.
    pub verified: Bits,
    /// As it was written last; `None`: the sidecar has no record of it.
    pub header: Option<Box<Header>>,
    /// Which granules are void, durably.
    pub void: u64,
    /// The settler is at work: what was changed since it began.
    pub changed: Option<Bits>,
    /// Had a sum that was not in force when the record was read.
    pub had: Bits,
}

impl Default for Region {
    /// One of which the sidecar knows nothing.
    fn default() -> Region {
        Region {
            sums: Vec::new(),
            touched: Bits::default(),
            verified: Bits::default(),
            header: None,
            void: u64::MAX,
            changed: None,
            had: Bits::default(),
        }
    }
}

impl Region {
    pub fn found(record: Record) -> Region {
        let Record { header, void, sums, .. } = record;
        let mut had = Bits::default();
        record.had.into_iter().for_each(|block| had.set(block..block + 1));
        Region { sums, header: header.map(Box::new), void, had, ..Region::default() }
    }

    pub fn sum(&self, block: usize) -> u32 {
        self.sums.get(block).copied().unwrap_or(0)
    }

    /// Whether the settler has something to do: blocks to sum, or sums that were made void ahead of changes
    /// that never came.
    pub fn is_unsettled(&self) -> bool {
        let is_void = |block: usize| self.void >> (block / GRANULE_BLOCKS) & 1 == 1;
        !self.touched.is_empty()
            || self.void != 0 && self.sums.iter().enumerate().any(|(block, sum)| *sum != 0 && is_void(block))
    }

    /// Whether nothing is lost when it is forgotten.
    pub fn is_idle(&self) -> bool {
        self.changed.is_none() && !self.is_unsettled()
    }

    /// The granules of `blocks` that must be void, durably, before a change there and are not: those with a
    /// sum in force, and those that another change is making void.
    pub fn in_force(&self, blocks: &Range<usize>) -> u64 {
        let mut granules = 0;
        for (block, sum) in self.sums.iter().enumerate().take(blocks.end).skip(blocks.start) {
            if *sum != 0 {
                granules |= 1 << (block / GRANULE_BLOCKS);
            }
        }
        let becoming_void = self.header.as_ref().map_or(0, |header| header.void) & !self.void;
        if becoming_void != 0 && !blocks.is_empty() {
            let touched = blocks.start / GRANULE_BLOCKS..=(blocks.end - 1) / GRANULE_BLOCKS;
            granules |= becoming_void & touched.fold(0, |all, granule| all | 1 << granule);
        }
        granules & !self.void
    }

    pub fn touch(&mut self, blocks: Range<usize>) {
        if let Some(changed) = &mut self.changed {
            changed.set(blocks.clone());
        }
        let end = blocks.end.min(self.sums.len());
        if blocks.start < end {
            self.sums[blocks.start..end].fill(0);
            trim(&mut self.sums);
            if self.sums.is_empty() {
                self.sums.shrink_to_fit();
            }
        }
        self.verified.clear(blocks.clone());
        self.touched.set(blocks);
    }
}
