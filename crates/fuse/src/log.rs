//! Where a mount says what is wrong: standard error, a log file in its place, or the system's log for a mount in the background
//! without one. Trouble with servers makes at most one line a second: programs only see an error number. That a server is dead,
//! and that it is back, is said once each (`probing.rs`).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_client::{DeadServer, ErrorKind};

static LAST_LINE_S: AtomicI64 = AtomicI64::new(0);
static TO_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Where the system's log listens (syslog(3)).
const SYSTEM_LOG: &str = "/dev/log";
/// Facility "daemon", severity "warning".
const PRIORITY: u32 = 3 << 3 | 4;

/// From now on, all that this process writes to standard output and standard error goes to the end of this file. Called again
/// with the same path, it goes on in the file that is there then: one that was renamed meanwhile stays as it is.
pub(crate) fn to_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both descriptors are open; what was behind the standard one is closed.
        if unsafe { libc::dup2(file.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// From now on, lines go to the system's log.
pub(crate) fn to_system() {
    TO_SYSTEM.store(true, Ordering::Relaxed);
}

/// Writes a line.
pub(crate) fn line(text: &dyn std::fmt::Display) {
    if !TO_SYSTEM.load(Ordering::Relaxed) {
        return eprintln!("weft mount: {text}");
    }
    let line = format!("<{PRIORITY}>weft-mount[{}]: {text}", std::process::id());
    // A new socket each time: the system's log may have been started anew. Without one, there is nobody to tell.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), SYSTEM_LOG)
    });
}

/// Writes what is wrong with a request of the kernel, which this program should have understood.
pub(crate) fn malformed(malformed: &weft_fuse_wire::Malformed) {
    line(malformed);
}

/// Writes `error` if it is the servers' or the network's doing rather than the program's.
pub(crate) fn server_trouble(errno: i32, error: &weft_client::Error) {
    const OURS: [i32; 6] =
        [libc::EIO, libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNREFUSED, libc::ECONNRESET, libc::EPROTO];
    if !OURS.contains(&errno) || error.kind() == ErrorKind::Unreachable {
        return;
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    if LAST_LINE_S.swap(now_s, Ordering::Relaxed) != now_s {
        line(error);
    }
}

/// Says that a server is dead.
pub(crate) fn is_dead(dead: &DeadServer) {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let failing_s = now_s.saturating_sub(dead.since_unix_s);
    let DeadServer { server, cause, .. } = dead;
    line(&format_args!(
        "server {server} has not answered for {failing_s} s: {cause}; what needs it fails until it is back. Check whether it runs \
         and can be reached (weft status)"
    ));
}

/// Says that one is back.
pub(crate) fn is_back(dead: &DeadServer) {
    line(&format_args!("server {} answers again", dead.server));
}
