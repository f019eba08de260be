//! The destinations of log lines.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use tracing::Level;

/// The socket of the system log (syslog(3)).
const SYSTEM_LOG: &str = "/dev/log";
/// Facility "daemon".
const FACILITY: u32 = 3 << 3;
/// A library's own descriptors are at least this, away from those that a program counts on.
const LIBRARY_FD_MIN: i32 = 100;

/// A destination of log lines.
#[derive(Debug)]
pub struct Sink(Kind);

#[derive(Debug)]
enum Kind {
    /// Standard error at the time of each line: redirecting that descriptor redirects the log.
    StandardError,
    System,
    /// A library's own descriptor. Its program may close any descriptor and open another file under its
    /// number, which must not be written to.
    Own {
        fd: RawFd,
        file: FileId,
    },
}

/// Device and inode.
type FileId = (libc::dev_t, libc::ino_t);

impl Sink {
    /// Standard error, even after it is redirected.
    pub fn standard_error() -> Sink {
        Sink(Kind::StandardError)
    }

    /// The system log, as facility "daemon".
    pub fn system() -> Sink {
        Sink(Kind::System)
    }

    /// Appends to a file, opened for a library.
    pub(crate) fn own_file(path: &Path) -> Option<Sink> {
        let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
        Sink::own(file.as_raw_fd())
    }

    /// A copy of the current standard error, for a library.
    pub(crate) fn own_standard_error() -> Option<Sink> {
        Sink::own(libc::STDERR_FILENO)
    }

    fn own(fd: RawFd) -> Option<Sink> {
        // SAFETY: no memory is passed; a result that is not negative is a new descriptor, which nobody else
        // owns.
        let copy = unsafe {
            let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, LIBRARY_FD_MIN);
            (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))?
        };
        let file = file_behind(copy.as_raw_fd())?;
        Some(Sink(Kind::Own { fd: copy.into_raw_fd(), file }))
    }

    /// Whether it adds the time to lines itself.
    pub(crate) fn is_system(&self) -> bool {
        matches!(self.0, Kind::System)
    }

    /// Writes a line, entirely or not at all. Errors are ignored.
    pub(crate) fn write(&self, level: Level, line: &str) {
        match self.0 {
            Kind::StandardError => write_to(libc::STDERR_FILENO, line),
            Kind::Own { fd, file } if file_behind(fd) == Some(file) => write_to(fd, line),
            Kind::Own { .. } => {}
            Kind::System => write_to_system(level, line),
        }
    }
}

/// Appends everything that this process writes to standard output and standard error to a file. Another call
/// reopens the path, so that the file can be renamed in between.
pub fn redirect_to(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both descriptors are open. The file behind the standard one is closed.
        if unsafe { libc::dup2(file.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn file_behind(fd: RawFd) -> Option<FileId> {
    // SAFETY: all-zero bytes are a valid `stat`, and `stat` is live and writable.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

fn write_to(fd: RawFd, line: &str) {
    // SAFETY: the line is live and has this length.
    unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
}

fn write_to_system(level: Level, line: &str) {
    let severity = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    let line = format!("<{}>weft[{}]: {}", FACILITY | severity, std::process::id(), line.trim_end());
    // A new socket each time, since the system log may have been restarted. If there is none, the line is
    // lost.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), SYSTEM_LOG)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_goes_into_another_file_that_has_got_a_library_s_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let (log, other) = (dir.path().join("log"), dir.path().join("data"));
        let sink = Sink::own_file(&log).unwrap();
        sink.write(Level::INFO, "one\n");
        let Sink(Kind::Own { fd, .. }) = sink else { panic!("{sink:?}") };
        let data = fs::File::create(&other).unwrap();
        // SAFETY: both descriptors are open.
        assert!(unsafe { libc::dup2(data.as_raw_fd(), fd) } >= 0);
        sink.write(Level::INFO, "two\n");
        assert_eq!(fs::read_to_string(&log).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&other).unwrap(), "");
    }
}
