//! Waiting for two things at once: the end of the serving threads, and signals: to end them, or to open the log anew.

use crate::wake::{Wake, own};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

const ENDING_SIGNALS: [(libc::c_int, &str); 2] = [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM")];

/// Signals that end a mount, and SIGHUP, blocked and readable from a descriptor.
pub(crate) struct Signals(OwnedFd);

/// What happened first.
pub(crate) enum Ending {
    /// The mount was served to its end.
    Served(io::Result<()>),
    /// SIGHUP came, which ends nothing.
    HangUp,
    /// This signal came, which ends the mount.
    Signal(&'static str),
}

/// A serving thread and the signals.
pub(crate) struct Watched {
    signals: Signals,
    finished: Arc<Wake>,
    thread: std::cell::Cell<Option<JoinHandle<io::Result<()>>>>,
}

impl Signals {
    /// Blocks them for this thread and those it will start.
    pub(crate) fn block() -> io::Result<Signals> {
        // SAFETY: `set` is initialised by sigemptyset before it is used; null asks for no old set.
        let descriptor = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            for signal in ENDING_SIGNALS.map(|(signal, _)| signal).into_iter().chain([libc::SIGHUP]) {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
        };
        Ok(Signals(own(descriptor)?))
    }

    /// Runs `serve` in a thread of its own.
    pub(crate) fn watch(
        self,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Watched> {
        let finished = Arc::new(Wake::new()?);
        let finisher = Finisher(finished.clone());
        let thread = std::thread::Builder::new().name("weft-serve".into()).spawn(move || {
            let _finisher = finisher;
            serve()
        })?;
        Ok(Watched { signals: self, finished, thread: Some(thread).into() })
    }

    fn take(&self) -> Ending {
        // SAFETY: zeroed bytes are a valid signalfd_siginfo, and read fills at most its size.
        let number = unsafe {
            let mut info = std::mem::zeroed::<libc::signalfd_siginfo>();
            let bytes = size_of::<libc::signalfd_siginfo>();
            libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), bytes);
            info.ssi_signo as libc::c_int
        };
        let name = ENDING_SIGNALS.iter().find(|(signal, _)| *signal == number).map(|(_, name)| *name);
        name.map_or(Ending::HangUp, Ending::Signal)
    }
}

/// Says that the thread ended, also when it panicked.
struct Finisher(Arc<Wake>);

impl Drop for Finisher {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Watched {
    /// Waits for whichever comes first; may be called again after a signal.
    pub(crate) fn wait(&self) -> Ending {
        let descriptors = [self.finished.as_fd(), self.signals.0.as_fd()];
        let mut polled =
            descriptors.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
        loop {
            // SAFETY: `polled` is an array of two.
            let count = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
            if count > 0 && polled[0].revents != 0 {
                let died = || Err(io::Error::other("the serving thread panicked"));
                let joined = self.thread.take().map(|thread| thread.join().unwrap_or_else(|_| died()));
                return Ending::Served(joined.unwrap_or(Ok(())));
            }
            if count > 0 && polled[1].revents != 0 {
                return self.signals.take();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_seen_and_then_the_end() {
        let signals = Signals::block().unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let watched = signals.watch(move || ended.recv().map_err(io::Error::other)).unwrap();
        // SAFETY: the signal is blocked in this thread, so that it only becomes readable.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) };
        assert!(matches!(watched.wait(), Ending::HangUp));
        // SAFETY: as before.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
        assert!(matches!(watched.wait(), Ending::Signal("SIGTERM")));
        end.send(()).unwrap();
        assert!(matches!(watched.wait(), Ending::Served(Ok(()))));
    }
}
