//! Descriptors that become readable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A counter that is readable while it is not 0.
#[derive(Debug)]
pub(crate) struct Wakeup(OwnedFd);

impl Wakeup {
    pub(crate) fn new() -> io::Result<Wakeup> {
        // SAFETY: takes two numbers, gives a descriptor of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        Ok(Wakeup(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 bytes that live.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes what was rung.
    pub(crate) fn take(&self) -> u64 {
        let mut count = [0; 8];
        // SAFETY: 8 bytes that live.
        let taken = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        if taken == 8 { u64::from_ne_bytes(count) } else { 0 }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
