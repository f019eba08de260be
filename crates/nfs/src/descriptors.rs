//! An epoll of its own within the reactor's, for descriptors that come and go with each wait.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use weft_reactor::{Interest, Readiness};

/// Events that one look takes; more are found by the next one.
const EVENTS_MAX: usize = 16;

/// What is waited for.
pub(crate) struct Descriptors {
    // Before the descriptor, which must be open when it is dropped.
    readiness: Readiness,
    epoll: OwnedFd,
    watched: HashMap<RawFd, u32>,
}

impl Descriptors {
    /// Nothing yet.
    pub(crate) fn new() -> io::Result<Descriptors> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Descriptors { readiness: Readiness::new(&epoll)?, epoll, watched: HashMap::new() })
    }

    /// From now on these are waited for, and no others.
    ///
    /// Each is told to the kernel again each time: a connection that was lost, and another that was made, may
    /// have had the same number, and the kernel has forgotten the first one by itself.
    pub(crate) fn watch(&mut self, wanted: &[libc::pollfd]) {
        let mut events: HashMap<RawFd, u32> = HashMap::with_capacity(wanted.len());
        for one in wanted {
            *events.entry(one.fd).or_default() |= one.events as u32;
        }
        for (fd, events) in &events {
            if self.control(libc::EPOLL_CTL_MOD, *fd, *events) == Some(libc::ENOENT) {
                self.control(libc::EPOLL_CTL_ADD, *fd, *events);
            }
        }
        for fd in self.watched.keys().filter(|fd| !events.contains_key(fd)) {
            self.control(libc::EPOLL_CTL_DEL, *fd, 0);
        }
        self.watched = events;
    }

    fn control(&self, operation: i32, fd: RawFd, events: u32) -> Option<i32> {
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: `event` is live for the call; a bad descriptor is reported as an error.
        let result = unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) };
        (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// Waits until one of them is ready.
    pub(crate) async fn ready(&self) {
        let look = || {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
            // SAFETY: room for `EVENTS_MAX` events.
            let count = unsafe {
                libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS_MAX as i32, 0)
            };
            match count {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        };
        // An error of epoll is as good as a descriptor that is ready: the caller looks, and waits again.
        let _ = self.readiness.io(Interest::Read, look).await;
    }
}
