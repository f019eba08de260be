//! The calls of epoll that a reactor makes, and the keys of its own descriptors.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The epoll key of the eventfd that other threads write to.
pub(crate) const KEY_WAKE: u64 = u64::MAX;
/// The epoll key of the io_uring descriptor.
pub(crate) const KEY_RING: u64 = u64::MAX - 1;
/// The epoll key of the timer for deadlines.
pub(crate) const KEY_ALARM: u64 = u64::MAX - 2;

pub(crate) fn epoll_add(epoll: &OwnedFd, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    epoll_control(epoll, libc::EPOLL_CTL_ADD, fd, key, events)
}

/// Changes the events of a descriptor. Pending ones are reported again.
pub(crate) fn epoll_change(epoll: &OwnedFd, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    epoll_control(epoll, libc::EPOLL_CTL_MOD, fd, key, events)
}

fn epoll_control(epoll: &OwnedFd, operation: i32, fd: RawFd, key: u64, events: u32) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: key };
    // SAFETY: `event` is live for the call; a bad descriptor is reported as an error.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
/// `fd` is the result of a system call that returns a new descriptor or -1.
pub(crate) unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: not negative, so it is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
