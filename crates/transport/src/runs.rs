//! Memory pieces as runs, and walking over them without ever listing them all.
//!
//! ```text
//!  run { address: 1000, bytes: 4, stride_bytes: 10, count: 3 }      run { address: 5000, bytes: 8, count: 1 }
//!        [1000..1004)   [1010..1014)   [1020..1024)                        [5000..5008)
//!  share  0 1 2 3        4 5 6 7        8 9 10 11                          12 … 19
//! ```
//!
//! A [`Cursor`] stands at a share offset; it gives the next pieces, at most as many as one system call takes, and moves
//! on by what that call moved.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;

use weft_wire::limits::SHARE_BYTES_MAX;
use weft_wire::messages::MemoryRun;

use crate::error::RunsError;

/// The memory of one request's share, in its order.
pub type MemoryRuns = Vec<MemoryRun>;

/// Pieces that one system call takes (`UIO_MAXIOV`).
pub(crate) const IOV_MAX: usize = 1024;

/// Pieces for one system call, on the stack.
pub(crate) struct IoVecs {
    len: usize,
    bytes: usize,
    slots: [MaybeUninit<libc::iovec>; IOV_MAX],
}

impl IoVecs {
    pub(crate) fn new() -> IoVecs {
        IoVecs { len: 0, bytes: 0, slots: [const { MaybeUninit::uninit() }; IOV_MAX] }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == IOV_MAX
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a piece if there is room; adjacent pieces become one. Says whether more fit.
    pub(crate) fn push(&mut self, base: *mut u8, bytes: usize) -> bool {
        if bytes == 0 || self.is_full() {
            return !self.is_full();
        }
        if let Some(last) = self.as_mut_slice().last_mut()
            && last.iov_base as usize + last.iov_len == base as usize
        {
            last.iov_len += bytes;
            self.bytes += bytes;
            return true;
        }
        self.slots[self.len].write(libc::iovec { iov_base: base.cast(), iov_len: bytes });
        self.len += 1;
        self.bytes += bytes;
        !self.is_full()
    }

    /// Adds what is left of a list of buffers after its first `skip` bytes.
    pub(crate) fn push_rest<'a>(&mut self, buffers: impl Iterator<Item = &'a [u8]>, mut skip: usize) {
        for buffer in buffers {
            if skip >= buffer.len() {
                skip -= buffer.len();
                continue;
            }
            let rest = &buffer[skip..];
            skip = 0;
            if !self.push(rest.as_ptr().cast_mut(), rest.len()) {
                return;
            }
        }
    }

    /// The same for buffers to be filled.
    pub(crate) fn push_rest_mut(&mut self, buffers: &mut [IoSliceMut<'_>], mut skip: usize) {
        for buffer in buffers {
            if skip >= buffer.len() {
                skip -= buffer.len();
                continue;
            }
            let rest = &mut buffer[skip..];
            skip = 0;
            if !self.push(rest.as_mut_ptr(), rest.len()) {
                return;
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        // SAFETY: the first `len` slots are initialised by `push`.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr().cast(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [libc::iovec] {
        // SAFETY: the first `len` slots are initialised by `push`.
        unsafe { std::slice::from_raw_parts_mut(self.slots.as_mut_ptr().cast(), self.len) }
    }
}

/// Lowest address and end of a run's pieces; `None` if they wrap around.
pub(crate) fn span(run: &MemoryRun) -> Option<(u64, u64)> {
    let last =
        i128::from(run.address) + i128::from(run.stride_bytes) * i128::from(run.count.saturating_sub(1));
    let first = i128::from(run.address);
    let low = u64::try_from(first.min(last)).ok()?;
    let end = u64::try_from(first.max(last) + i128::from(run.bytes)).ok()?;
    Some((low, end))
}

/// Checks a list, brings it into its shortest form (no empty runs, touching pieces as one), and returns its bytes.
pub(crate) fn tidy(runs: &mut MemoryRuns) -> Result<u64, RunsError> {
    runs.retain(|run| run.bytes > 0 && run.count > 0);
    let mut total = 0u128;
    for run in runs.iter_mut() {
        span(run).ok_or(RunsError::Overflow)?;
        let bytes = u128::from(run.bytes) * u128::from(run.count);
        total = total.saturating_add(bytes);
        if total > u128::from(SHARE_BYTES_MAX) {
            return Err(RunsError::TooLong(total));
        }
        if run.count > 1 && run.stride_bytes == run.bytes as i64 {
            run.bytes = bytes as u64;
            run.count = 1;
        }
    }
    Ok(total as u64)
}

/// A position in a tidy list of runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    run: usize,
    piece: u64,
    within: u64,
}

impl Cursor {
    /// Moves on by `bytes`.
    pub(crate) fn advance(&mut self, runs: &[MemoryRun], bytes: u64) {
        let mut left = bytes;
        while let Some(run) = runs.get(self.run) {
            let at = self.piece * run.bytes + self.within + left;
            let run_bytes = run.bytes * run.count;
            if at < run_bytes {
                (self.piece, self.within) = (at / run.bytes, at % run.bytes);
                return;
            }
            left = at - run_bytes;
            *self = Cursor { run: self.run + 1, piece: 0, within: 0 };
        }
    }

    /// The position at a share offset.
    pub(crate) fn at(runs: &[MemoryRun], share_offset: u64) -> Cursor {
        let mut cursor = Cursor::default();
        cursor.advance(runs, share_offset);
        cursor
    }

    /// Gives the next pieces (segment, address, bytes), `bytes` in all, until `give` says that it takes no more.
    pub(crate) fn walk(&self, runs: &[MemoryRun], bytes: u64, mut give: impl FnMut(u16, u64, u64) -> bool) {
        let mut left = bytes;
        let (mut piece, mut within) = (self.piece, self.within);
        for run in &runs[self.run.min(runs.len())..] {
            while piece < run.count {
                if left == 0 {
                    return;
                }
                let address =
                    run.address.wrapping_add((run.stride_bytes as u64).wrapping_mul(piece)) + within;
                let part = left.min(run.bytes - within);
                if !give(run.segment, address, part) {
                    return;
                }
                left -= part;
                within = 0;
                piece += 1;
            }
            piece = 0;
        }
    }

    /// Adds the next pieces, which lie in this process, to `pieces`: at most `bytes`, at most as many as fit.
    pub(crate) fn gather(&self, runs: &[MemoryRun], bytes: u64, pieces: &mut IoVecs) {
        if !pieces.is_full() {
            self.walk(runs, bytes, |_, address, bytes| {
                pieces.push(address as usize as *mut u8, bytes as usize)
            });
        }
    }
}

/// Copies from runs to a buffer, or back.
///
/// # Safety
/// The runs are tidy, lie in this process, hold at least `bytes`, and nobody else uses their memory or that at `buffer`.
pub(crate) unsafe fn copy_runs(runs: &[MemoryRun], buffer: *mut u8, bytes: u64, to_buffer: bool) {
    let mut at = buffer;
    Cursor::default().walk(runs, bytes, |_, address, bytes| {
        let memory = address as usize as *mut u8;
        // SAFETY: as the caller promises; the pieces of a walk never exceed what was asked for.
        unsafe {
            if to_buffer {
                std::ptr::copy_nonoverlapping(memory, at, bytes as usize);
            } else {
                std::ptr::copy_nonoverlapping(at, memory, bytes as usize);
            }
            at = at.add(bytes as usize);
        }
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(address: u64, bytes: u64, stride_bytes: i64, count: u64) -> MemoryRun {
        MemoryRun { segment: 0, address, bytes, stride_bytes, count }
    }

    fn addresses(runs: &[MemoryRun]) -> Vec<u64> {
        let mut all = Vec::new();
        for run in runs {
            for piece in 0..run.count {
                let base = (run.address as i64 + run.stride_bytes * piece as i64) as u64;
                all.extend(base..base + run.bytes);
            }
        }
        all
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(tidy(&mut vec![run(u64::MAX, 2, 0, 1)]), Err(RunsError::Overflow));
        assert_eq!(tidy(&mut vec![run(0, 1, i64::MIN, 2)]), Err(RunsError::Overflow));
        assert_eq!(tidy(&mut vec![run(0, 1, i64::MAX, u64::MAX)]), Err(RunsError::Overflow));
        assert!(matches!(tidy(&mut vec![run(0, 1, 0, u64::MAX)]), Err(RunsError::TooLong(_))));
    }

    #[test]
    fn touching_pieces_become_one() {
        let mut runs = vec![run(0, 0, 1, 5), run(10, 4, 4, 5)];
        assert_eq!(tidy(&mut runs), Ok(20));
        assert_eq!(runs, [run(10, 20, 4, 1)]);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn a_walk_in_steps_visits_every_byte_in_order(
            parts in proptest::collection::vec((1u64..9, 0u64..20, 1u64..6), 0..6),
            steps in proptest::collection::vec(1u64..17, 1..40),
        ) {
            let mut runs: Vec<_> = parts.iter().enumerate().map(|(at, (bytes, gap, count))| {
                run(1000 * (at as u64 + 1), *bytes, (bytes + gap) as i64 * if at % 2 == 0 { 1 } else { -1 }, *count)
            }).collect();
            let expected = addresses(&runs);
            let total = tidy(&mut runs).unwrap();
            prop_assert_eq!(total as usize, expected.len());
            let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
            for step in steps.iter().cycle().take(expected.len() + 1) {
                let step = (*step).min(total - seen.len() as u64);
                cursor.walk(&runs, step, |_, address, bytes| { seen.extend(address..address + bytes); true });
                cursor.advance(&runs, step);
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
