//! How lent memory is cut, and how much of it a client works on at once. Pure.
//!
//! ```text
//!   unit        [──────────── 768 rows ────────────]      of a server's buffer, for a part of a request's data
//!   lent        [── 390 rows ──────][── 378 rows ──]      both at once, by one message; cut where a work request of the client's ends
//!   work        [30 rows][30] … [30][30][30] … [18]       one RDMA Write or Read each: 26 for 768 rows
//!   under way         ▒▒▒▒▒▒▒▒▒                           at most 256 KiB: what is lost on the network is sent again, with
//!                                                         everything behind it
//! ```
//!
//! A work request has as many pieces as the adapter takes, but for a bound of bytes. What of a work request
//! is lost is asked for again or sent again, up to a number of times without an acknowledgement between; so
//! one that is too long, or too much behind one, would end connections over networks that lose packets.

use weft_verbs::MemoryPiece;

/// Parts that are lent over one connection at once.
pub(super) const LENT_MAX: usize = 2;
/// Bytes of one work request on lent memory.
pub(super) const LENT_WORK_BYTES_MAX: u64 = 96 << 10;
/// RDMA Reads of lent memory under way over one connection.
pub(super) const LENT_READS: u8 = 4;
/// Bytes under way on lent memory over one connection.
const UNDER_WAY_BYTES_MAX: u64 = 256 << 10;
/// Bytes of work of which the last reports its end.
const SIGNAL_BYTES: u64 = 64 << 10;
/// Ranges from this size on are lent in two parts: while the client works on one, messages about the other
/// are on their way.
const HALVED_BYTES_MIN: u32 = 256 << 10;

/// Cuts memory into the parts that are lent, each with where it begins among all bytes. Touching pieces of
/// one registration are one.
pub(super) fn parts(local: &[MemoryPiece], step_bytes: u32) -> Vec<(u64, MemoryPiece)> {
    let (mut parts, mut at) = (Vec::with_capacity(LENT_MAX), 0);
    let mut pieces = local.iter().filter(|piece| piece.bytes > 0).copied().peekable();
    while let Some(mut piece) = pieces.next() {
        while let Some(next) = pieces.next_if(|next| touches(&piece, next)) {
            piece.bytes += next.bytes;
        }
        let first_bytes = first_part(piece.bytes, step_bytes);
        let rest_bytes = piece.bytes - first_bytes;
        parts.push((at, MemoryPiece { bytes: first_bytes, ..piece }));
        if rest_bytes > 0 {
            let address = piece.address + u64::from(first_bytes);
            parts.push((at + u64::from(first_bytes), MemoryPiece { address, bytes: rest_bytes, ..piece }));
        }
        at += u64::from(piece.bytes);
    }
    parts
}

fn touches(piece: &MemoryPiece, next: &MemoryPiece) -> bool {
    next.local_key == piece.local_key
        && next.address == piece.address + u64::from(piece.bytes)
        && piece.bytes.checked_add(next.bytes).is_some()
}

/// About a half, up to the next multiple of a step.
fn first_part(bytes: u32, step_bytes: u32) -> u32 {
    if bytes < HALVED_BYTES_MIN {
        return bytes;
    }
    let half = bytes / 2;
    if step_bytes == 0 || step_bytes > half { half } else { half.next_multiple_of(step_bytes) }
}

/// Work requests by which a client moves pieces of these lengths, one behind the other in lent memory, with
/// at most `pieces_max` in each.
pub fn lent_work_requests(pieces: &[u64], pieces_max: usize) -> u64 {
    let (mut works, mut count, mut left) = (0, pieces_max.max(1), 0);
    for piece in pieces {
        let mut bytes = *piece;
        while bytes > 0 {
            if count == pieces_max.max(1) || left == 0 {
                (works, count, left) = (works + 1, 0, LENT_WORK_BYTES_MAX);
            }
            let part = bytes.min(left);
            (bytes, left, count) = (bytes - part, left - part, count + 1);
        }
    }
    works
}

/// What is under way on memory that was lent over one connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Budget {
    under_way_bytes: u64,
    unsignalled_bytes: u64,
}

impl Budget {
    /// Whether so much more may be posted.
    pub(super) fn allows(&self, bytes: u64) -> bool {
        self.under_way_bytes == 0 || self.under_way_bytes + bytes <= UNDER_WAY_BYTES_MAX
    }

    /// So much is posted. Says whether its end is to be reported: the budget is never used up by work of
    /// which nobody hears.
    pub(super) fn post(&mut self, bytes: u64) -> bool {
        self.under_way_bytes += bytes;
        self.unsignalled_bytes += bytes;
        let signalled = self.unsignalled_bytes >= SIGNAL_BYTES;
        if signalled {
            self.unsignalled_bytes = 0;
        }
        signalled
    }

    /// So much has ended.
    pub(super) fn ended(&mut self, bytes: u64) {
        self.under_way_bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use weft_rdma::{Chain, RemotePiece};

    fn piece(address: u64, bytes: u32) -> MemoryPiece {
        MemoryPiece { address, bytes, local_key: 7 }
    }

    #[test]
    fn a_unit_is_lent_in_two_parts_that_end_with_work_requests() {
        let step = 30 * 1024;
        let unit = parts(&[piece(1 << 20, 768 * 1024)], step);
        assert_eq!(
            unit,
            [(0, piece(1 << 20, 390 * 1024)), (390 * 1024, piece((1 << 20) + 390 * 1024, 378 * 1024))]
        );
        let work: u32 = unit.iter().map(|(_, part)| part.bytes.div_ceil(step)).sum();
        assert_eq!(work, 768u32.div_ceil(30));
        assert_eq!(parts(&[piece(0, 255 << 10), piece(1 << 20, 9)], step).len(), 2, "short ones are whole");
        assert_eq!(
            parts(&[piece(0, 1 << 20)], 0),
            [(0, piece(0, 1 << 19)), (1 << 19, piece(1 << 19, 1 << 19))]
        );
        assert_eq!(parts(&[piece(0, 300 << 10)], 299 << 10).len(), 2);
        let in_three = [
            piece(1 << 20, 200 * 1024),
            piece((1 << 20) + 200 * 1024, 0),
            piece((1 << 20) + 200 * 1024, 568 * 1024),
        ];
        assert_eq!(parts(&in_three, step), unit);
        let other = MemoryPiece { local_key: 8, ..piece(9, 10) };
        assert_eq!(parts(&[piece(0, 9), other], step), [(0, piece(0, 9)), (9, other)]);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn parts_are_all_of_it(pieces in proptest::collection::vec(0u32..1_000_000, 0..5), step in any::<u32>()) {
            let local: Vec<_> = pieces.iter().enumerate().map(|(at, bytes)| piece((at as u64) << 30, *bytes)).collect();
            let mut at = 0;
            let mut expected = local.iter().filter(|piece| piece.bytes > 0).copied().collect::<VecDeque<_>>();
            for (offset, part) in parts(&local, step) {
                prop_assert_eq!(offset, at);
                at += u64::from(part.bytes);
                let first = &mut expected[0];
                prop_assert!(part.bytes > 0 && part.address == first.address && part.bytes <= first.bytes);
                (first.address, first.bytes) = (first.address + u64::from(part.bytes), first.bytes - part.bytes);
                if first.bytes == 0 {
                    expected.pop_front();
                }
            }
            prop_assert!(expected.is_empty());
        }

        #[test]
        fn work_is_counted_as_it_is_cut(pieces in proptest::collection::vec(1u64..200_000, 0..50), pieces_max in 1usize..9) {
            let local: Vec<_> = pieces.iter().enumerate().map(|(at, bytes)| piece((at as u64) << 30, *bytes as u32)).collect();
            let whole = RemotePiece { address: 0, bytes: pieces.iter().sum(), remote_key: 1 };
            let chain = Chain::bounded(&local, [whole], pieces_max, LENT_WORK_BYTES_MAX);
            prop_assert_eq!(chain.links.len() as u64, lent_work_requests(&pieces, pieces_max));
        }

        #[test]
        fn work_never_waits_for_work_of_which_nobody_hears(works in proptest::collection::vec(1u64..=LENT_WORK_BYTES_MAX, 1..80)) {
            let (mut budget, mut posted) = (Budget::default(), VecDeque::new());
            for bytes in works {
                while !budget.allows(bytes) {
                    // The next report: of it and of all before it.
                    let last = posted.iter().position(|(_, signalled)| *signalled).expect("something is reported");
                    posted.drain(..=last).for_each(|(bytes, _)| budget.ended(bytes));
                }
                posted.push_back((bytes, budget.post(bytes)));
                let under_way = posted.iter().map(|(bytes, _)| bytes).sum::<u64>();
                prop_assert!(under_way <= UNDER_WAY_BYTES_MAX);
            }
        }
    }
}
