//! What a mount says of servers that fail: programs only see an error number. That a server is dead, and that it is back, is said once
//! each (`probing.rs`); other trouble makes at most one line a second. Where the lines go: [`weft_log`].

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use weft_client::{DeadServer, ErrorKind};

static LAST_LINE_S: AtomicI64 = AtomicI64::new(0);

/// Tells of `error` if it is the servers' or the network's doing rather than the program's.
pub(crate) fn of_server(errno: i32, error: &weft_client::Error) {
    const OURS: [i32; 6] =
        [libc::EIO, libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNREFUSED, libc::ECONNRESET, libc::EPROTO];
    if !OURS.contains(&errno) || error.kind() == ErrorKind::Unreachable {
        return;
    }
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    if LAST_LINE_S.swap(now_s, Ordering::Relaxed) != now_s {
        tracing::warn!(trace = weft_log::trace::current_or_fresh(), "{error}");
    }
}

/// Says that a server is dead.
pub(crate) fn is_dead(dead: &DeadServer) {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let failing_s = now_s.saturating_sub(dead.since_unix_s);
    let DeadServer { server, cause, .. } = dead;
    tracing::warn!(
        "server {server} has not answered for {failing_s} s: {cause}; what needs it fails until it is back. Check whether it runs \
         and can be reached (weft status)"
    );
}

/// Says that one is back.
pub(crate) fn is_back(dead: &DeadServer) {
    tracing::info!("server {} answers again", dead.server);
}
