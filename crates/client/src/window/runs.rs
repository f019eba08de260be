//! Memory pieces as runs of equal pieces at equal distances.
//!
//! ```text
//!   pieces   |ab|  |cd|  |ef|  |ghij|  |kl|          3 × 2 bytes every 4, 1 × 4 bytes, 1 × 2 bytes
//!   runs     {2 bytes, every 4, 3 times} {4 bytes} {2 bytes}
//! ```

use weft_layout::Extent;
use weft_wire::messages::MemoryRun;

/// More runs than one request may describe.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Describes pieces at offsets from `base`, in their order, by at most `runs_max` runs.
pub(crate) fn memory_runs(
    base: u64,
    pieces: impl Iterator<Item = Extent>,
    runs_max: usize,
) -> Result<Vec<MemoryRun>, TooMany> {
    let mut runs: Vec<MemoryRun> = Vec::new();
    for piece in pieces {
        push(&mut runs, base.wrapping_add(piece.offset), piece.bytes);
        if runs.len() > runs_max {
            return Err(TooMany);
        }
    }
    Ok(runs)
}

/// Adds a piece. Says whether it is one more, and not the rest of the one before.
pub(crate) fn push(runs: &mut Vec<MemoryRun>, address: u64, bytes: u64) -> bool {
    if let Some(run) = runs.last_mut() {
        if run.count == 1 && run.address.wrapping_add(run.bytes) == address {
            run.bytes += bytes;
            run.stride_bytes = run.bytes as i64;
            return false;
        }
        if continues(run, address, bytes) {
            if run.count == 1 {
                run.stride_bytes = address.wrapping_sub(run.address) as i64;
            }
            run.count += 1;
            return true;
        }
    }
    runs.push(MemoryRun { segment: 0, address, bytes, stride_bytes: bytes as i64, count: 1 });
    true
}

/// Whether a piece is the next of a run; the second piece of a run may be anywhere and sets its stride.
fn continues(run: &MemoryRun, address: u64, bytes: u64) -> bool {
    let expected = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(run.count));
    run.bytes == bytes && (run.count == 1 || address == expected)
}

/// How many pieces they are.
pub(crate) fn piece_count(runs: &[MemoryRun]) -> u64 {
    runs.iter().map(|run| run.count).sum()
}

/// First address and end of their memory; empty for none.
pub(crate) fn span(runs: &[MemoryRun]) -> (u64, u64) {
    let ends = runs.iter().map(|run| {
        let last = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(run.count - 1));
        (run.address.min(last), run.address.max(last).saturating_add(run.bytes))
    });
    ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or_default()
}

/// Gives the pieces (address, bytes) of the bytes from `from` to `to`, in order.
pub(crate) fn walk(runs: &[MemoryRun], from: u64, to: u64, mut give: impl FnMut(u64, usize)) {
    let (mut skip, mut left) = (from, to.saturating_sub(from));
    for run in runs {
        let whole = if skip > 0 { skip / run.bytes } else { 0 };
        if whole >= run.count {
            skip -= run.bytes * run.count;
            continue;
        }
        skip -= run.bytes * whole;
        let mut address = run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(whole));
        for _ in whole..run.count {
            if left == 0 {
                return;
            }
            let bytes = (run.bytes - skip).min(left);
            give(address.wrapping_add(skip), bytes as usize);
            left -= bytes;
            skip = 0;
            address = address.wrapping_add(run.stride_bytes as u64);
        }
    }
}

/// A position in runs.
pub(crate) struct Cursor<'a> {
    runs: std::slice::Iter<'a, MemoryRun>,
    /// What is left of the current run: its first piece, and how many there are.
    address: u64,
    count: u64,
    stride_bytes: u64,
    bytes: u64,
    /// Passed of the first piece.
    within: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn over(runs: &'a [MemoryRun]) -> Cursor<'a> {
        Cursor { runs: runs.iter(), address: 0, count: 0, stride_bytes: 0, bytes: 0, within: 0 }
    }

    /// The next piece (address, bytes), or its first `bytes_max` bytes; `None` at the end.
    pub(crate) fn next_at_most(&mut self, bytes_max: u64) -> Option<(u64, u64)> {
        if self.count == 0 {
            let run = self.runs.next()?;
            (self.address, self.count, self.bytes) = (run.address, run.count, run.bytes);
            self.stride_bytes = run.stride_bytes as u64;
        }
        let taken = (self.address.wrapping_add(self.within), (self.bytes - self.within).min(bytes_max));
        self.within += taken.1;
        if self.within == self.bytes {
            (self.within, self.count) = (0, self.count - 1);
            self.address = self.address.wrapping_add(self.stride_bytes);
        }
        Some(taken)
    }
}

/// Copies the pieces into a buffer, one after the other.
///
/// # Safety
/// The pieces are readable, the buffer is writable for as many bytes, and they do not overlap.
pub(crate) unsafe fn gather(runs: &[MemoryRun], buffer: *mut u8) {
    let mut at = buffer;
    walk(runs, 0, u64::MAX, |address, bytes| {
        // SAFETY: as the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(address as usize as *const u8, at, bytes);
            at = at.add(bytes);
        }
    });
}

/// Copies the first `bytes` bytes of a buffer into the pieces.
///
/// # Safety
/// The pieces are writable and nobody else's, the buffer is readable for `bytes`, and they do not overlap.
pub(crate) unsafe fn scatter(buffer: *const u8, bytes: u64, runs: &[MemoryRun]) {
    let mut at = buffer;
    walk(runs, 0, bytes, |address, bytes| {
        // SAFETY: as the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(at, address as usize as *mut u8, bytes);
            at = at.add(bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(runs: &[MemoryRun]) -> Vec<u64> {
        let pieces = runs.iter().flat_map(|run| {
            (0..run.count).map(|at| run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(at)))
        });
        let bytes = runs.iter().flat_map(|run| (0..run.count).map(|_| run.bytes));
        pieces.zip(bytes).flat_map(|(address, bytes)| address..address + bytes).collect()
    }

    #[test]
    fn a_striped_buffer_is_one_run() {
        let pieces = (0..256).map(|at| Extent { offset: 65536 + at * 262144, bytes: 65536 });
        let runs = memory_runs(1 << 30, pieces, 1).unwrap();
        let address = (1 << 30) + 65536;
        assert_eq!(runs, [MemoryRun { segment: 0, address, bytes: 65536, stride_bytes: 262144, count: 256 }]);
        assert_eq!(piece_count(&runs), 256);
        assert_eq!(span(&runs), (address, address + 255 * 262144 + 65536));
    }

    #[test]
    fn touching_pieces_are_one() {
        let pieces = [Extent::new(10, 4), Extent::new(14, 2), Extent::new(16, 2)];
        let runs = memory_runs(0, pieces.into_iter(), 1).unwrap();
        assert_eq!((runs[0].address, runs[0].bytes, runs[0].count), (10, 8, 1));
    }

    #[test]
    fn the_bound_holds() {
        let pieces: Vec<_> =
            (0..9u64).map(|at| Extent { offset: at * at * 100, bytes: 1 + at % 2 }).collect();
        assert_eq!(memory_runs(0, pieces.iter().copied(), 8), Err(TooMany));
        assert_eq!(memory_runs(0, pieces.iter().copied(), 9).unwrap().len(), 9);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn runs_say_exactly_what_the_pieces_said(
            base in 0u64..1 << 40,
            pieces in proptest::collection::vec((0u64..64, 1u64..10), 0..80),
            from in 0u64..100, bytes in 0u64..300,
        ) {
            let pieces: Vec<_> =
                pieces.into_iter().map(|(offset, bytes)| Extent { offset: offset * 8, bytes }).collect();
            let runs = memory_runs(base, pieces.iter().copied(), usize::MAX).unwrap();
            let expected: Vec<u64> = pieces.iter().flat_map(|p| base + p.offset..base + p.end()).collect();
            prop_assert_eq!(addresses(&runs), expected.clone());
            prop_assert!(runs.len() <= pieces.len());
            let mut walked = Vec::new();
            walk(&runs, from, from + bytes, |address, bytes| walked.extend(address..address + bytes as u64));
            let part: Vec<u64> = expected.into_iter().skip(from as usize).take(bytes as usize).collect();
            prop_assert_eq!(walked, part);
            let mut cursor = Cursor::over(&runs);
            let steps = std::iter::from_fn(|| cursor.next_at_most(1 + bytes % 7));
            let stepped: Vec<u64> = steps.flat_map(|(address, bytes)| address..address + bytes).collect();
            prop_assert_eq!(stepped, addresses(&runs));
        }

        #[test]
        fn what_is_gathered_is_scattered_to_the_same_places(
            pieces in proptest::collection::vec((0u64..20, 1u64..20), 0..30), part in 0u64..400,
        ) {
            let source: Vec<u8> = (0..1000u32).map(|at| (at * 7 % 251) as u8).collect();
            let mut end = 0;
            let pieces: Vec<_> = pieces.into_iter().map(|(gap, bytes)| {
                let piece = Extent { offset: end + gap, bytes };
                end = piece.end();
                piece
            }).take_while(|piece| piece.end() <= 1000).collect();
            let total: u64 = pieces.iter().map(|piece| piece.bytes).sum();
            let part = part.min(total);
            let mut packed = vec![0u8; total as usize];
            let runs = memory_runs(source.as_ptr() as u64, pieces.iter().copied(), usize::MAX).unwrap();
            // SAFETY: this test's buffers.
            unsafe { gather(&runs, packed.as_mut_ptr()) };
            let mut target = vec![0u8; 1000];
            let runs = memory_runs(target.as_mut_ptr() as u64, pieces.iter().copied(), usize::MAX).unwrap();
            // SAFETY: as above.
            unsafe { scatter(packed.as_ptr(), part, &runs) };
            let mut expected = vec![0u8; 1000];
            for at in pieces.iter().flat_map(|piece| piece.offset..piece.end()).take(part as usize) {
                expected[at as usize] = source[at as usize];
            }
            prop_assert_eq!(target, expected);
        }
    }
}
