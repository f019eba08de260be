//! Going into the background: the parent waits until its child says that the mount is live, or why not.

use crate::options::MountError;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

/// What the child sends when all is well; anything else is the text of an error.
const LIVE: &[u8] = b"\0live";

/// Which of the two processes this is.
pub(crate) enum Side {
    Parent(Child),
    Child(Parent),
}

/// The parent's end.
pub(crate) struct Child(File);

/// The child's end.
pub(crate) struct Parent(File);

fn failed(what: &str) -> MountError {
    MountError::Background(format!(
        "cannot go into the background: {what}: {}",
        std::io::Error::last_os_error()
    ))
}

/// Splits the process. Must be called before any thread is started.
pub(crate) fn fork() -> Result<Side, MountError> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(failed("pipe"));
    }
    // SAFETY: both descriptors were just made and belong to nobody else.
    let (reader, writer) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.count());
    if threads > 1 {
        let text =
            "cannot go into the background: the program has other threads already; mount in the foreground";
        return Err(MountError::Background(text.into()));
    }
    // SAFETY: this process has one thread, so the child inherits no lock that another thread holds.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")),
        0 => {
            drop(reader);
            leave_terminal();
            Ok(Side::Child(Parent(writer)))
        }
        _ => Ok(Side::Parent(Child(reader))),
    }
}

/// Own session, no directory held, nothing read from or written to the terminal.
fn leave_terminal() {
    // SAFETY: plain system calls on descriptors and strings that live through them; a failure leaves things as they were.
    unsafe {
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null >= 0 {
            for standard in 0..=2 {
                libc::dup2(null, standard);
            }
            if null > 2 {
                libc::close(null);
            }
        }
    }
}

impl Child {
    /// Returns when the mount is live, or with the child's error.
    pub(crate) fn wait_until_live(mut self) -> Result<(), MountError> {
        let mut said = Vec::new();
        let _ = self.0.read_to_end(&mut said);
        if said == LIVE {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&said).into_owned();
        Err(MountError::Background(if text.is_empty() { "the background process died".into() } else { text }))
    }
}

impl Parent {
    /// The mount is live.
    pub(crate) fn live(mut self) {
        let _ = self.0.write_all(LIVE);
    }

    /// It never became live.
    pub(crate) fn failed(mut self, text: &str) -> ! {
        let _ = self.0.write_all(text.as_bytes());
        std::process::exit(1)
    }
}
