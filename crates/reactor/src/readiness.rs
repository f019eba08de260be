//! Waits for descriptors, edge-triggered.
//!
//! A registration remembers whether its descriptor may be readable and writable. It starts as "maybe". An
//! attempt that would block clears the memory, and the kernel's next edge sets it again. So a call is always
//! tried first, and a busy socket needs no `epoll_ctl` after its registration.
//!
//! Edges of writability are requested after a call would have blocked for the first time. A Unix socket has
//! such an edge whenever its peer reads a message, so a server that only sends small replies would be woken
//! for nothing.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;

use crate::descriptors::{Direction, FdState};
use crate::epoll::{epoll_add, epoll_change};
use crate::state::{Core, current};

/// What a task waits for on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Data, a connection, end of stream, or an error.
    Read,
    /// Space to send, an established connection, or an error.
    Write,
}

/// The edges that are always requested.
const READ_EDGES: i32 = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;

/// A non-blocking descriptor registered with the current reactor, until dropped.
///
/// Several tasks may wait at once; all waiters of a direction are woken together. Drop it before the
/// descriptor is closed.
pub struct Readiness {
    core: Rc<Core>,
    key: u64,
    fd: RawFd,
    state: Rc<FdState>,
    /// Whether edges of writability are requested.
    tells_writable: Cell<bool>,
}

impl Readiness {
    /// Registers `fd`, which must be non-blocking.
    ///
    /// # Errors
    /// The error of `epoll_ctl`: regular files cannot be waited for (`EPERM`), and a descriptor can be
    /// registered once (`EEXIST`).
    ///
    /// # Panics
    /// Outside [`Reactor::run`](crate::Reactor::run).
    pub fn new(fd: &impl AsFd) -> io::Result<Readiness> {
        let core = current();
        let fd = fd.as_fd().as_raw_fd();
        let (key, state) = core.fds.insert();
        if let Err(error) = epoll_add(&core.epoll, fd, key, READ_EDGES as u32) {
            core.fds.remove(key);
            return Err(error);
        }
        Ok(Readiness { core, key, fd, state, tells_writable: Cell::new(false) })
    }

    fn direction(&self, interest: Interest) -> &Direction {
        match interest {
            Interest::Read => &self.state.read,
            Interest::Write => &self.state.write,
        }
    }

    /// Waits until the descriptor may be readable.
    pub async fn readable(&self) {
        self.state.read.wait().await
    }

    /// Waits until the descriptor may be writable.
    pub async fn writable(&self) {
        self.state.write.wait().await
    }

    /// Records that a call in this direction would block, so that the next wait is for a new edge. Call it
    /// only after the kernel has returned `EAGAIN`, or has moved less than a stream was asked for. At the end
    /// of a stream, reading stays possible, so that the end is not missed.
    pub fn clear(&self, interest: Interest) {
        let direction = self.direction(interest);
        let ended = direction.ended.get();
        // The change itself reports whether the descriptor has become writable since the call.
        let will_be_told = interest == Interest::Read || self.tells_writable.get() || self.ask_for_writable();
        direction.ready.set(ended || !will_be_told);
    }

    /// Requests edges of writability. Returns whether there will be any.
    fn ask_for_writable(&self) -> bool {
        let edges = READ_EDGES | libc::EPOLLOUT;
        let asked = epoll_change(&self.core.epoll, self.fd, self.key, edges as u32).is_ok();
        self.tells_writable.set(asked);
        asked
    }

    /// Repeats a system call until it does not return `WouldBlock`, waiting between attempts.
    ///
    /// # Errors
    /// Any other error of the call, except `Interrupted`, which is tried again.
    pub async fn io<R>(&self, interest: Interest, mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        loop {
            self.direction(interest).wait().await;
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.clear(interest),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        // SAFETY: no memory is passed. The call fails harmlessly if the descriptor was closed already;
        // the key's generation keeps any event that is still queued from reaching a later owner.
        unsafe {
            libc::epoll_ctl(self.core.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, self.fd, std::ptr::null_mut())
        };
        self.core.fds.remove(self.key);
    }
}
