//! How much memory this process may lock, and so how large requests may be whose memory is registered.
//!
//! ```text
//!   ulimit -l 8192 KiB ─► requests of at most 512 KiB: several servers' at a time, twice each, and the links' own buffers fit
//! ```

use std::io;

use weft_wire::limits::SHARE_BYTES_MAX;

/// Requests under way that may lock memory together: to several servers, two each, and room for the links'
/// own buffers.
const REQUESTS_TOGETHER: u64 = 16;
/// Requests are not cut smaller than this.
const SHARE_BYTES_MIN: u64 = 64 << 10;
/// The number of the capability to lock without a limit (`linux/capability.h`).
const CAP_IPC_LOCK: u32 = 14;

/// The most that one request may register here.
pub(super) fn share_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if locks_without_limit(&status) {
        return SHARE_BYTES_MAX;
    }
    limit().map_or(SHARE_BYTES_MAX, share_of)
}

/// Of a limit in bytes.
fn share_of(limit_bytes: u64) -> u64 {
    (limit_bytes / REQUESTS_TOGETHER).clamp(SHARE_BYTES_MIN, SHARE_BYTES_MAX)
}

/// From the text of `/proc/self/status`.
fn locks_without_limit(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// `None`: there is none.
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } == 0;
    debug_assert!(known, "{}", io::Error::last_os_error());
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_cut_so_that_several_fit_the_limit() {
        assert_eq!(share_of(8 << 20), 512 << 10);
        assert_eq!(share_of(64 << 10), SHARE_BYTES_MIN);
        assert_eq!(share_of(u64::MAX), SHARE_BYTES_MAX);
    }

    #[test]
    fn who_may_lock_without_limit_is_told_by_the_kernel() {
        assert!(locks_without_limit("Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n"));
        assert!(locks_without_limit("CapEff:\t0000000000004000\n"));
        assert!(!locks_without_limit("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!locks_without_limit(""));
    }
}
