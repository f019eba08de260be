//! The umask of this process, as its hooks and the kernel know it.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::mode_t;
use weft_wire::messages::UMASK_SHIFT;

const UNKNOWN: u32 = u32::MAX;
static UMASK: AtomicU32 = AtomicU32::new(UNKNOWN);

/// The mode of a new file, and the umask: the server decides whether a default access control list applies
/// instead.
pub(crate) fn mode_of_new(mode: mode_t) -> u32 {
    mode & 0o7777 | current() << UMASK_SHIFT
}

/// The process's umask.
fn current() -> mode_t {
    let known = UMASK.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let mask = umask_of_kernel().unwrap_or(0o022);
    UMASK.store(mask, Ordering::Relaxed);
    mask
}

/// Records the umask that the program has set.
pub(crate) fn note_umask(mask: mode_t) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// The umask according to the kernel, read without changing it.
fn umask_of_kernel() -> Option<mode_t> {
    let status = std::fs::read("/proc/self/status").ok()?;
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    mode_t::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}
