//! Walks the bytes of a request that are in one slot's area of the buffer, round by round.
//!
//! The process whose request it is and the aggregator walk the same regions in the same rounds, so they see
//! the same runs in the same order, and no offsets travel. An ascending request is walked once over all
//! rounds. Another one is searched anew in each round.

use weft_layout::{Layout, Regions, StridedRuns, pieces};

use crate::rounds::Rounds;

/// Equal pieces at equal distances in an area, adjacent in the request stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AreaRun {
    /// Where the first piece is in the area.
    pub area_offset: u64,
    /// Bytes in a piece.
    pub bytes: u64,
    /// From one piece to the next; at least `bytes` where there are several.
    pub stride_bytes: u64,
    /// Number of pieces.
    pub count: u64,
    /// Position of the first piece in the request stream.
    pub stream_offset: u64,
}

impl AreaRun {
    /// Bytes of all pieces.
    pub fn total_bytes(&self) -> u64 {
        self.bytes * self.count
    }

    /// After the last byte. Saturates.
    pub fn area_end(&self) -> u64 {
        let steps = self.count.saturating_sub(1).saturating_mul(self.stride_bytes);
        self.area_offset.saturating_add(steps).saturating_add(self.bytes)
    }
}

/// The share of one slot of a request, round by round.
#[derive(Debug, Clone)]
pub(crate) struct ShareWalk<'a> {
    layout: Layout,
    rounds: Rounds,
    slot: u16,
    regions: &'a Regions,
    /// The position after the last round, if the request is ascending.
    runs: Option<StridedRuns<'a>>,
}

impl<'a> ShareWalk<'a> {
    /// The share of `slot` of valid `regions`; `ascends`: they are ascending.
    pub fn new(
        layout: &Layout,
        rounds: &Rounds,
        slot: u16,
        regions: &'a Regions,
        ascends: bool,
    ) -> ShareWalk<'a> {
        let runs = ascends.then(|| regions.strided_runs());
        ShareWalk { layout: *layout, rounds: *rounds, slot, regions, runs }
    }

    /// Calls `each` with the runs of `round`, in request order. Rounds are asked for in ascending order.
    #[inline]
    pub fn round(&mut self, round: u64, mut each: impl FnMut(AreaRun)) {
        match &mut self.runs {
            Some(runs) => ascending(runs, &self.rounds, self.slot, round, &mut each),
            None => self.search(round, &mut each),
        }
    }

    /// Number of bytes in `round`, where that is still to come.
    pub fn bytes_in(&self, round: u64) -> u64 {
        let mut bytes = 0;
        self.clone().round(round, |run| bytes += run.total_bytes());
        bytes
    }

    fn search(&self, round: u64, each: &mut impl FnMut(AreaRun)) {
        let range = self.rounds.local_range(&self.layout, self.slot, round);
        for piece in pieces(&self.layout, self.slot, self.regions) {
            let begin = piece.local_offset.max(range.offset);
            let end = (piece.local_offset + piece.bytes).min(range.end());
            if begin < end {
                each(AreaRun {
                    area_offset: begin - range.offset,
                    bytes: end - begin,
                    stride_bytes: 0,
                    count: 1,
                    stream_offset: piece.stream_offset + (begin - piece.local_offset),
                });
            }
        }
    }
}

#[inline]
fn ascending(
    runs: &mut StridedRuns<'_>,
    rounds: &Rounds,
    slot: u16,
    round: u64,
    each: &mut impl FnMut(AreaRun),
) {
    for window in rounds.windows(slot, round) {
        runs.skip_below(window.start);
        while let Some(run) = runs.peek() {
            if run.offset >= window.end {
                break;
            }
            if run.offset < window.start {
                runs.advance_bytes(window.start - run.offset);
                continue;
            }
            let area_offset = window.area_offset + (run.offset - window.start);
            let room = window.end - run.offset;
            let stream_offset = run.stream_offset;
            if run.bytes > room {
                each(AreaRun { area_offset, bytes: room, stride_bytes: 0, count: 1, stream_offset });
                runs.advance_bytes(room);
                break;
            }
            let stride_bytes = run.stride_bytes as u64;
            let count = match run.count {
                1 => 1,
                count => ((room - run.bytes) / stride_bytes + 1).min(count),
            };
            each(AreaRun { area_offset, bytes: run.bytes, stride_bytes, count, stream_offset });
            runs.advance_blocks(count);
        }
    }
}
