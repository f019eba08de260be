//! Trouble with servers goes to standard error, at most one line a second: programs only see an error number.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static LAST_LINE_S: AtomicI64 = AtomicI64::new(0);

/// Writes what is wrong with a request of the kernel, which this program should have understood.
pub(crate) fn malformed(malformed: &weft_fuse_wire::Malformed) {
    eprintln!("weft mount: {malformed}");
}

/// Writes `error` if it is the servers' or the network's doing rather than the program's.
pub(crate) fn server_trouble(errno: i32, error: &weft_client::Error) {
    const OURS: [i32; 6] =
        [libc::EIO, libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNREFUSED, libc::ECONNRESET, libc::EPROTO];
    if !OURS.contains(&errno) {
        return;
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    if LAST_LINE_S.swap(now_s, Ordering::Relaxed) != now_s {
        eprintln!("weft mount: {error}");
    }
}
