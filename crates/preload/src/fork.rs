//! Handles forks: no lock of this library stays locked in the child, and the child's state is marked as that
//! of a child.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::guard::run_inside;
use crate::hooks::{libraries, map, spawn_directories};
use crate::memory::{Held, OWN};
use crate::{cwd, lock_sessions, locked_ranges, mounts, table};

/// The forking thread's signals, while all locks are held.
struct Signals(UnsafeCell<MaybeUninit<libc::sigset_t>>);

// SAFETY: only used between `before` and `after_*`, by one thread at a time.
unsafe impl Sync for Signals {}

static SIGNALS: Signals = Signals(UnsafeCell::new(MaybeUninit::uninit()));
/// All locks of this library, in the order in which they are taken.
static LOCKS: [&(dyn Held + Sync); 11] = [
    &mounts::ADDING,
    &cwd::HERE,
    &map::MAPPINGS,
    &map::COPIES,
    &spawn_directories::NOTED,
    &libraries::COPIED,
    &lock_sessions::PROCESS,
    &lock_sessions::ENDS,
    &locked_ranges::LOCKED,
    &table::FREE,
    &OWN,
];
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Registers the handlers for forks.
pub(crate) fn watch() {
    if !WATCHING.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    }
}

unsafe extern "C" fn before() {
    let mut all = MaybeUninit::uninit();
    let mut mine = MaybeUninit::uninit();
    // SAFETY: the pointers are to live sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mine.as_mut_ptr());
    }
    LOCKS.iter().for_each(|lock| lock.hold());
    // SAFETY: the locks are held, so no other thread is here.
    unsafe { *SIGNALS.0.get() = mine };
}

fn release() {
    // SAFETY: as in `before`.
    let mine = unsafe { *SIGNALS.0.get() };
    LOCKS.iter().rev().for_each(|lock| lock.release());
    // SAFETY: written by `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mine.as_ptr(), std::ptr::null_mut()) };
}

unsafe extern "C" fn after_in_parent() {
    release();
}

unsafe extern "C" fn after_in_child() {
    mounts::forked();
    OWN.release();
    table::FREE.release();
    run_inside(table::forked);
    table::FREE.hold();
    OWN.hold();
    release();
}
