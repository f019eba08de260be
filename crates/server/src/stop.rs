//! The wish that a server ends, from any thread or a signal handler.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_reactor::{Interest, Readiness};

/// A flag that is set once and wakes all who wait for it. Clones are the same flag.
#[derive(Debug, Clone)]
pub struct StopFlag {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    stopped: AtomicBool,
    /// An eventfd; readable for ever once the flag is set.
    event: OwnedFd,
}

impl StopFlag {
    /// Not set.
    ///
    /// # Errors
    /// That of `eventfd`.
    pub fn new() -> io::Result<StopFlag> {
        let event = event_fd()?;
        Ok(StopFlag { inner: Arc::new(Inner { stopped: AtomicBool::new(false), event }) })
    }

    /// Sets it.
    pub fn stop(&self) {
        self.inner.stopped.store(true, Ordering::SeqCst);
        raise(&self.inner.event);
    }

    /// Whether it is set.
    pub fn is_stopped(&self) -> bool {
        self.inner.stopped.load(Ordering::SeqCst) || self.was_written()
    }

    /// The eventfd behind it. Writing 8 bytes of a number that is not 0 to it is [`StopFlag::stop`] too, which is what a signal
    /// handler may do.
    pub fn event_fd(&self) -> RawFd {
        self.inner.event.as_raw_fd()
    }

    /// Waits, on a reactor, until it is set.
    ///
    /// # Errors
    /// Of the registration.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        let readiness = Readiness::new(self)?;
        let check = || if self.is_stopped() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) };
        readiness.io(Interest::Read, check).await
    }

    fn was_written(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.inner.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd; it does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}

impl AsFd for StopFlag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }
}

/// Wakes one task, from any thread.
#[derive(Debug)]
pub(crate) struct Wake {
    event: OwnedFd,
}

impl Wake {
    /// Not raised.
    ///
    /// # Errors
    /// That of `eventfd`.
    pub fn new() -> io::Result<Wake> {
        Ok(Wake { event: event_fd()? })
    }

    /// Ends the next wait, or the one that is under way.
    pub fn raise(&self) {
        raise(&self.event);
    }

    /// Waits until it was raised, which is then forgotten.
    ///
    /// # Errors
    /// Of the registration.
    pub async fn wait(&self) -> io::Result<()> {
        let readiness = Readiness::new(&self.event)?;
        let take = || {
            let mut count = 0u64;
            // SAFETY: reads eight bytes into live ones. Where nothing was raised there is nothing to read.
            match unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) } {
                8 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        readiness.io(Interest::Read, take).await
    }
}

fn event_fd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raise(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: writes eight live bytes. It can fail only where the counter is full, and then it is readable already.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_reactor::{Reactor, ReactorOptions};

    #[test]
    fn it_wakes_a_reactor_from_another_thread() {
        let stop = StopFlag::new().unwrap();
        assert!(!stop.is_stopped());
        let other = stop.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            other.stop();
        });
        Reactor::new(ReactorOptions::default()).unwrap().run(async { stop.wait().await.unwrap() });
        thread.join().unwrap();
        assert!(stop.is_stopped());
    }

    #[test]
    fn a_signal_handler_may_write_to_it() {
        let stop = StopFlag::new().unwrap();
        // SAFETY: writes eight live bytes.
        unsafe { libc::write(stop.event_fd(), [1u64].as_ptr().cast(), 8) };
        assert!(stop.is_stopped());
    }
}
