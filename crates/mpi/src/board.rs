//! Where the processes of a node tell each other few bytes: shared memory, and a word that those who wait
//! sleep on. A message of MPI takes longer, as who waits for it can only look again and again.
//!
//! ```text
//!   key │ arrived │ phase │ slots of even phases, one for each process │ slots of odd phases
//! ```
//!
//! In a phase each process writes its slot and adds itself to `arrived`. The last one begins the next phase,
//! which wakes the others; then all read all slots. A slot is written again two phases later: by then all have
//! taken part in the phase between, so they have read it.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::shared::Shared;

/// Bytes that a process can tell in a phase.
pub const TOLD_BYTES_MAX: usize = SLOT_BYTES - 8;
const SLOT_BYTES: usize = 2048;
const ARRIVED_AT: usize = 64;
const PHASE_AT: usize = 128;
const SLOTS_AT: usize = 192;
/// So often who waits only lets others run.
const YIELDS: u32 = 20;
/// Then it sleeps, longer each time, and moves other messages of this process on in between.
const SLEEP_MIN: Duration = Duration::from_micros(100);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// One process's end of it.
pub struct Board {
    shared: Shared,
    /// This process, of how many.
    index: usize,
    count: usize,
    phase: u32,
}

/// Bytes of the memory for so many processes.
pub fn bytes(count: usize) -> usize {
    SLOTS_AT + 2 * count * SLOT_BYTES
}

impl Board {
    /// The end of process `index` of `count`. `shared` is theirs alone, has [`bytes`] of it, and began as
    /// zeros.
    pub fn new(shared: Shared, index: usize, count: usize) -> Board {
        Board { shared, index, count, phase: 0 }
    }

    /// How many processes there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// A number by which the memory is known to be the one that was meant.
    pub fn key(shared: &Shared) -> &AtomicU64 {
        // SAFETY: the memory begins at a page, and has more than a word.
        unsafe { AtomicU64::from_ptr(shared.base().as_ptr().cast()) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: it is within the memory, and aligned.
        unsafe { AtomicU32::from_ptr(self.shared.base().as_ptr().add(at).cast()) }
    }

    fn slot(&self, index: usize) -> *mut u8 {
        let at = SLOTS_AT + ((self.phase as usize & 1) * self.count + index) * SLOT_BYTES;
        self.shared.base().as_ptr().wrapping_add(at)
    }

    /// Tells all processes `own`, and waits for what they tell. `each` gets the number of bytes of each of
    /// them, in order, and the bytes, if they are at most [`TOLD_BYTES_MAX`]; else none.
    /// `progress` is called now and then while this process waits.
    pub fn exchange(&mut self, own: &[u8], mut progress: impl FnMut(), mut each: impl FnMut(usize, &[u8])) {
        let slot = self.slot(self.index);
        let told = if own.len() <= TOLD_BYTES_MAX { own } else { &[] };
        // SAFETY: there is room for these bytes in the slot, which nobody reads now (see the module).
        unsafe {
            slot.cast::<u64>().write(own.len() as u64);
            ptr::copy_nonoverlapping(told.as_ptr(), slot.add(8), told.len());
        }
        self.meet(&mut progress);
        for index in 0..self.count {
            let slot = self.slot(index);
            // SAFETY: its process wrote it before it arrived, and does not again before this one arrives twice.
            let (length, bytes) = unsafe { (slot.cast::<u64>().read() as usize, slot.add(8)) };
            let told = if length <= TOLD_BYTES_MAX { length } else { 0 };
            // SAFETY: as above.
            each(length, unsafe { std::slice::from_raw_parts(bytes, told) });
        }
        self.phase = self.phase.wrapping_add(1);
    }

    /// Waits until all processes are here.
    fn meet(&self, progress: &mut impl FnMut()) {
        let next = self.phase.wrapping_add(1);
        let (arrived, phase) = (self.word(ARRIVED_AT), self.word(PHASE_AT));
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count as u32 {
            arrived.store(0, Ordering::Relaxed);
            phase.store(next, Ordering::Release);
            wake_all(phase);
            return;
        }
        let mut asleep = SLEEP_MIN;
        for turn in 0u32.. {
            if phase.load(Ordering::Acquire) == next {
                return;
            }
            if turn < YIELDS {
                std::thread::yield_now();
                continue;
            }
            progress();
            sleep_while(phase, self.phase, asleep);
            asleep = (asleep * 2).min(SLEEP_MAX);
        }
    }
}

/// Sleeps while a word has this value, for so long at most.
fn sleep_while(word: &AtomicU32, value: u32, longest: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    // SAFETY: the word and the time are valid until the call returns.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, ptr::from_ref(&time)) };
}

fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared;
    use std::os::fd::AsRawFd;

    /// Processes that are threads, each with its own mapping.
    fn with_boards(count: usize, process: impl Fn(usize, Board) + Sync) {
        let file = shared::file(bytes(count)).unwrap();
        std::thread::scope(|scope| {
            for index in 0..count {
                let (process, fd) = (&process, file.as_raw_fd() as u64);
                let shared = Shared::of(u64::from(std::process::id()), fd, bytes(count)).unwrap();
                scope.spawn(move || process(index, Board::new(shared, index, count)));
            }
        });
    }

    #[test]
    fn all_are_told_what_all_say_in_every_phase() {
        let seed = weft_test_random::seed();
        for count in [1, 2, 5] {
            with_boards(count, |index, mut board| {
                let length = |phase: u64, of: usize| {
                    (seed.wrapping_mul(phase + 3).wrapping_add(of as u64 * 77) >> 7) as usize
                        % (TOLD_BYTES_MAX + 50)
                };
                for phase in 0..2000u64 {
                    let own = vec![(phase as usize + index) as u8; length(phase, index)];
                    let mut heard = 0;
                    board.exchange(
                        &own,
                        || {},
                        |bytes, told| {
                            assert_eq!(bytes, length(phase, heard));
                            let expected = if bytes > TOLD_BYTES_MAX { 0 } else { bytes };
                            assert_eq!(told, vec![(phase as usize + heard) as u8; expected]);
                            heard += 1;
                        },
                    );
                    assert_eq!(heard, count);
                    if phase % 400 == index as u64 {
                        std::thread::sleep(Duration::from_millis(3));
                    }
                }
            });
        }
    }

    #[test]
    fn who_waits_moves_other_messages_on() {
        let has_progressed = AtomicU32::new(0);
        with_boards(2, |index, mut board| {
            let late = index == 1;
            while late && has_progressed.load(Ordering::Acquire) < 3 {
                std::thread::yield_now();
            }
            let progress = || {
                has_progressed.fetch_add(1, Ordering::AcqRel);
            };
            board.exchange(&[], progress, |_, _| {});
        });
    }
}
