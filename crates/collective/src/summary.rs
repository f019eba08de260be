//! What the processes of an access have together: one reduction, the input of every decision.

use weft_layout::{Extent, Regions};

use crate::peers::Peers;

/// The request of one process, in numbers. All of them are reduced at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    sums: [u64; 5],
    maxima: [u64; 6],
}

/// What all processes have together. The same in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Processes with at least one byte.
    pub active: u64,
    /// Pieces in the file: an upper limit, by [`Regions::piece_count`].
    pub pieces: u64,
    /// Pieces in memory, likewise.
    pub memory_pieces: u64,
    /// Bytes.
    pub bytes: u64,
    /// The spans of all processes, one after the other. Where it is more than `span`, they interleave.
    pub spans_bytes: u64,
    /// Pieces in file or memory, whichever are more, of the process that has most.
    pub pieces_max: u64,
    /// Bytes of the process that has most.
    pub bytes_max: u64,
    /// From the first to the last byte of any process.
    pub span: Option<Extent>,
    /// Whether the bytes of each process are in ascending order.
    pub ascends: bool,
    /// How long the access before took the process that took longest, if all passed it on.
    pub last_ns: u64,
}

impl Summary {
    /// Of a process that moves bytes between `memory` and `file`, and whose access before took `last_ns`; 0
    /// if there was none.
    pub fn new(memory: &Regions, file: &Regions, last_ns: u64, processes: u32) -> Summary {
        let span = file.span();
        let (pieces, memory_pieces) = match span {
            Some(_) => (file.piece_count(), memory.piece_count()),
            None => (0, 0),
        };
        let bytes = file.total_bytes();
        let span_bytes = span.map_or(0, |span| span.bytes);
        let ascends = span.is_none() || file.is_ascending();
        // Sums stay below 2^64.
        let share = u64::MAX / u64::from(processes.max(1));
        Summary {
            sums: [u64::from(span.is_some()), pieces, memory_pieces, bytes, span_bytes]
                .map(|value| value.min(share)),
            maxima: [
                pieces.max(memory_pieces),
                bytes,
                span.map_or(0, |span| !span.offset),
                span.map_or(0, |span| span.end()),
                u64::from(!ascends),
                last_ns,
            ],
        }
    }

    /// Collective: what all processes have together.
    pub fn reduce<P: Peers>(mut self, peers: &mut P) -> Result<Totals, P::Error> {
        peers.allreduce(&mut self.sums, &mut self.maxima)?;
        Ok(self.as_totals())
    }

    /// What the processes of both have together.
    pub fn and(self, other: Summary) -> Summary {
        let sum = |index: usize| self.sums[index].saturating_add(other.sums[index]);
        let maximum = |index: usize| self.maxima[index].max(other.maxima[index]);
        Summary { sums: std::array::from_fn(sum), maxima: std::array::from_fn(maximum) }
    }

    /// What a process has by itself.
    pub fn as_totals(&self) -> Totals {
        let [active, pieces, memory_pieces, bytes, spans_bytes] = self.sums;
        let [pieces_max, bytes_max, not_start, end, descends, last_ns] = self.maxima;
        let span = (active > 0).then(|| Extent::new(!not_start, end - !not_start));
        let ascends = descends == 0;
        Totals {
            active,
            pieces,
            memory_pieces,
            bytes,
            spans_bytes,
            pieces_max,
            bytes_max,
            span,
            ascends,
            last_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_layout::Level;

    #[test]
    fn several_have_their_sums_and_maxima() {
        let of = |offset, bytes| {
            let regions = Regions::contiguous(offset, bytes);
            Summary::new(&regions, &regions, 0, 3)
        };
        let nothing = Summary::new(&Regions::default(), &Regions::default(), 0, 3);
        let totals = of(500, 10).and(of(100, 30)).and(nothing).as_totals();
        assert_eq!((totals.active, totals.pieces, totals.bytes, totals.bytes_max), (2, 2, 40, 30));
        assert_eq!((totals.span, totals.spans_bytes), (Some(Extent::new(100, 410)), 40));
    }

    #[test]
    fn one_process_has_what_it_has() {
        let file = Regions::strided(100, 8, [Level { count: 50, stride_bytes: 20 }]);
        let totals = Summary::new(&Regions::contiguous(0, 400), &file, 7, 1).as_totals();
        let span = Some(Extent::new(100, 49 * 20 + 8));
        assert_eq!((totals.pieces, totals.memory_pieces, totals.bytes, totals.span), (50, 1, 400, span));
        assert_eq!((totals.active, totals.ascends, totals.last_ns), (1, true, 7));
        let nothing = Summary::new(&Regions::default(), &Regions::default(), 0, 1).as_totals();
        assert_eq!(nothing, Totals { ascends: true, ..Totals::default() });
    }
}
