//! What wakes a sleeping reactor for its timers: a timerfd, so that `epoll_wait` has no limit of its own.
//!
//! With a limit, the kernel arms a timer for each call, and disarms it when a message comes first, as in most sleeps of a server. The
//! alarm stays armed over many sleeps:
//!
//! ```text
//!   deadlines               5 s, 30 s     alarm at 5 s
//!   a request's limit          60 s       later: nothing to do
//!   the timer of 5 s dropped   30 s       it expires at 5 s for nothing, and is armed for 30 s
//! ```

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::epoll::owned;

/// A timer of the kernel that epoll can wait for.
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it expires; `None` if it is not armed.
    at: Cell<Option<Instant>>,
}

impl Alarm {
    /// Fails where the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Alarm> {
        // SAFETY: a plain system call, whose result is checked before it becomes an owned descriptor.
        let timer = unsafe {
            owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?
        };
        Ok(Alarm { timer, at: Cell::new(None) })
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Makes sure that it expires at `deadline` or before. Says whether that took a system call.
    pub(crate) fn arm_by(&self, deadline: Instant) -> bool {
        if self.at.get().is_some_and(|at| at <= deadline) {
            return false;
        }
        // Zero would disarm it.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let time = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            },
        };
        // SAFETY: a live descriptor of this struct and a live, valid time.
        let set = unsafe { libc::timerfd_settime(self.raw_fd(), 0, &time, std::ptr::null_mut()) };
        assert!(set == 0, "timerfd_settime failed: {}", io::Error::last_os_error());
        self.at.set(Some(deadline));
        true
    }

    /// It has expired.
    pub(crate) fn expired(&self) {
        self.at.set(None);
    }
}
