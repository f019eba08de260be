//! Continues a command in the background. The process in the foreground waits until the one in the background
//! reports that the cluster is up, or why it is not.
//!
//! ```text
//!   foreground ── fork ──► background: its own session, log/supervisor.log
//!     │ waits on a pipe      │ starts servers; if the foreground has gone (Ctrl-C): ends them
//!     │◄────── result ───────┤
//!   prints, exits            supervises
//! ```

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

/// Which of the two processes this is.
pub enum Side {
    /// The foreground: the process that was called.
    Front(Front),
    /// The background: the process that stays.
    Background(Background),
}

/// The foreground's end of the pipe.
pub struct Front(File);

/// The background's end of the pipe.
pub struct Background(File);

/// Forks the process. Call it before any thread is started.
pub fn fork() -> Result<Side> {
    let failed = |what: &str| {
        let error = std::io::Error::last_os_error();
        anyhow::anyhow!("cannot go into the background: {what}: {error}; leave out --detach")
    };
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    assert_eq!(threads, 1, "no thread is started before a command goes into the background");
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(failed("pipe"));
    }
    // SAFETY: both descriptors were just made and belong to nobody else.
    let (reader, writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: this process has one thread, so the child inherits no lock that another thread holds.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")),
        0 => {
            // SAFETY: no preconditions; it fails only for the leader of a group, which a new process is not.
            unsafe { libc::setsid() };
            Ok(Side::Background(Background(writer)))
        }
        _ => Ok(Side::Front(Front(reader))),
    }
}

impl Front {
    /// Waits for the background's result.
    pub fn wait<T: DeserializeOwned>(mut self, dir: &Path) -> Result<T> {
        let mut text = Vec::new();
        self.0.read_to_end(&mut text).context("cannot read the result of the background process")?;
        if text.is_empty() {
            bail!("the background process died; see {}/log/supervisor.log", dir.display());
        }
        let result: Result<T, String> = serde_json::from_slice(&text)?;
        result.map_err(anyhow::Error::msg)
    }
}

impl Background {
    /// Whether the foreground no longer waits for the result.
    pub fn is_abandoned(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.0.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one entry is passed and it lives through the call, which does not wait.
        unsafe { libc::poll(&mut entry, 1, 0) > 0 }
    }

    /// Sends the result to the foreground.
    pub fn send<T: Serialize>(mut self, result: Result<T, String>) -> Result<()> {
        Ok(self.0.write_all(&serde_json::to_vec(&result)?)?)
    }
}

/// Makes this process write to DIR/log/supervisor.log and read nothing. Another call reopens the file, so
/// that it can be rotated.
pub fn log_to(dir: &Path) -> Result<()> {
    let log = dir.join("log/supervisor.log");
    std::fs::create_dir_all(dir.join("log"))
        .with_context(|| format!("cannot create the directory {}/log", dir.display()))?;
    crate::output::log_to(&log)?;
    let null = OpenOptions::new().read(true).open("/dev/null").context("cannot open /dev/null")?;
    // SAFETY: both descriptors are open, and standard input belongs to nobody in particular.
    unsafe { libc::dup2(null.as_raw_fd(), 0) };
    Ok(())
}
