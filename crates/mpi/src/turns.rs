//! One thread at a time makes and frees handles of the program's MPI.
//!
//! A communicator or a datatype that is duplicated passes its attributes on, and ROMIO keeps some on those that it
//! has used: it counts its references to them, without a lock, in the functions that copy and delete them. MPICH
//! runs these functions in several threads at once. A reference that is not counted is memory that is freed too
//! early, and changed after that.
//!
//! ```text
//!   what every process has for itself     used as it is: MPI_BYTE
//!                                         or in place of it one of this library's own: MPI_COMM_SELF
//!   what a program has made               duplicated and freed by one thread at a time
//! ```
//!
//! Nobody waits for another process during a turn.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;

static TURN: Mutex<()> = Mutex::new(());

thread_local! {
    /// The thread has a turn, or is in a function that MPI has called and must not wait for one: MPI may hold a
    /// lock for which the thread that has it waits.
    static GOES_ON: Cell<bool> = const { Cell::new(false) };
}

/// A turn of this thread; it ends when this is dropped.
pub struct Turn {
    held: Option<MutexGuard<'static, ()>>,
}

/// Waits for a turn; not in a thread that has one, nor below [`without`].
pub fn turn() -> Turn {
    if GOES_ON.get() {
        return Turn { held: None };
    }
    let held = lock(&TURN);
    GOES_ON.set(true);
    Turn { held: Some(held) }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held.is_some() {
            GOES_ON.set(false);
        }
    }
}

/// Runs what MPI has called, which waits for no turn.
pub fn without<T>(body: impl FnOnce() -> T) -> T {
    let before = GOES_ON.replace(true);
    let result = body();
    GOES_ON.set(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_thread_has_a_turn_and_what_mpi_calls_needs_none() {
        static INSIDE: AtomicUsize = AtomicUsize::new(0);
        let work = || {
            for _ in 0..50 {
                let turn = turn();
                assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
                std::thread::yield_now();
                let _again = super::turn();
                INSIDE.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        let held = turn();
        let called = std::thread::spawn(|| without(|| turn().held.is_none()));
        assert!(called.join().unwrap());
        drop(held);
        assert!(turn().held.is_some());
    }
}
