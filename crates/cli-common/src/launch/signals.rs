//! Waits for signals at a chosen place, instead of handling them asynchronously.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Signals that are blocked in this thread and in threads that it starts later.
#[derive(Debug, Clone, Copy)]
pub struct BlockedSignals {
    set: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks the signals that ask a program to end, and `more`.
    pub fn ends_and(more: &[i32]) -> io::Result<BlockedSignals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before anything else uses it; the numbers are signals.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].iter().chain(more) {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            let set = set.assume_init();
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
                0 => Ok(BlockedSignals { set }),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits at most this long for a signal.
    pub fn wait_at_most(&self, time: Duration) -> Option<i32> {
        let limit = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: set and limit live through the call; no information is requested.
        let signal = unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &limit) };
        (signal > 0).then_some(signal)
    }

    /// A descriptor for poll(2) that is readable while a signal is pending.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set lives through the call; a result that is not negative is a new descriptor, which
        // nobody else owns.
        unsafe {
            match libc::signalfd(-1, &self.set, libc::SFD_CLOEXEC) {
                fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// Waits for the next signal.
    pub fn wait(&self) -> io::Result<i32> {
        let mut signal = 0;
        // SAFETY: both pointers are to live values.
        match unsafe { libc::sigwait(&self.set, &mut signal) } {
            0 => Ok(signal),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Unblocks all signals; for a child between fork and exec.
pub fn unblock_all() -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by the first call.
    let result = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}
