//! A descriptor of an adapter or connection on the reactor.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use weft_reactor::{Interest, Readiness};

/// A duplicate of the descriptor, so that the original may be closed at any time.
pub(crate) struct Watched {
    // Before the descriptor: it has to be taken off the reactor first.
    readiness: Readiness,
    _fd: OwnedFd,
}

impl Watched {
    pub(crate) fn new(fd: RawFd) -> io::Result<Watched> {
        // SAFETY: descriptors of `weft-verbs` are open as long as what they belong to, which the caller
        // holds.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        Ok(Watched { readiness: Readiness::new(&fd)?, _fd: fd })
    }

    /// Waits for news after those that were looked at before this call.
    pub(crate) async fn readable(&self) {
        self.readiness.clear(Interest::Read);
        self.readiness.readable().await;
    }
}
