//! Walks [`Regions`] in runs of equal blocks at equal distances, so that a loop over millions of small blocks
//! is a few steps.

use crate::extents::{Cursor, StridedRun};
use crate::region::Regions;

/// A position in some [`Regions`], at or within a block.
///
/// ```
/// use weft_layout::{Level, Regions, StridedRun};
///
/// let regions = Regions::strided(100, 8, [Level { count: 1000, stride_bytes: 32 }]);
/// let mut runs = regions.strided_runs();
/// runs.skip_below(100 + 998 * 32 + 8);
/// let last = StridedRun { stream_offset: 999 * 8, offset: 100 + 999 * 32, bytes: 8, stride_bytes: 32, count: 1 };
/// assert_eq!(runs.peek(), Some(last));
/// ```
#[derive(Debug, Clone)]
pub struct StridedRuns<'a>(Cursor<'a>);

impl<'a> StridedRuns<'a> {
    pub(crate) fn new(regions: &'a Regions) -> StridedRuns<'a> {
        StridedRuns(Cursor::new(regions))
    }

    /// The rest of the current block, and the blocks after it as far as they are of the same size and
    /// distance; `None` at the end. Not always as many as there are.
    #[inline]
    pub fn peek(&self) -> Option<StridedRun> {
        self.0.run()
    }

    /// The position in the request stream.
    #[inline]
    pub fn stream_offset(&self) -> u64 {
        self.0.stream_offset()
    }

    /// Advances over `blocks` blocks of the run that [`peek`](StridedRuns::peek) returns: from 1 to all.
    #[inline]
    pub fn advance_blocks(&mut self, blocks: u64) {
        self.0.advance_blocks(blocks);
    }

    /// Skips `bytes` of the request stream, or as many as there are. O(loops) within a regular part, one step
    /// per extent in a list, and one step for all whole iterations of a repeat.
    #[inline]
    pub fn advance_bytes(&mut self, bytes: u64) {
        self.0.advance_bytes(bytes);
    }

    /// In [ascending](Regions::is_ascending) regions: skips all blocks that end at or below `offset`, at the
    /// cost of [`advance_bytes`](StridedRuns::advance_bytes).
    #[inline]
    pub fn skip_below(&mut self, offset: u64) {
        self.0.skip_below(offset);
    }
}

impl Regions {
    /// The blocks in request order, in runs of equal ones at equal distances.
    pub fn strided_runs(&self) -> StridedRuns<'_> {
        StridedRuns::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Level};

    #[test]
    fn a_cut_block_is_a_run_of_its_own() {
        let regions = Regions::strided(0, 8, [Level { count: 3, stride_bytes: 20 }]);
        let mut runs = regions.strided_runs();
        runs.advance_bytes(3);
        let cut = StridedRun { stream_offset: 3, offset: 3, bytes: 5, stride_bytes: 0, count: 1 };
        assert_eq!(runs.peek(), Some(cut));
        runs.advance_blocks(1);
        assert_eq!(runs.peek().map(|run| (run.offset, run.count)), Some((20, 2)));
        runs.advance_blocks(2);
        assert_eq!(runs.peek(), None);
    }

    #[test]
    fn lists_in_repeats_are_skipped() {
        let pair = Regions::list([Extent::new(0, 2), Extent::new(5, 0), Extent::new(10, 3)]);
        let regions = Regions::repeat(7, 100, 20, pair);
        assert!(regions.is_ascending());
        let mut runs = regions.strided_runs();
        runs.skip_below(7 + 50 * 20 + 2);
        assert_eq!(runs.peek().map(|run| (run.stream_offset, run.offset, run.bytes)), Some((252, 1017, 3)));
    }
}
