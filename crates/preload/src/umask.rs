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
    let mask = weft_host::umask().unwrap_or(0o022);
    UMASK.store(mask, Ordering::Relaxed);
    mask
}

/// Records the umask that the program has set.
pub(crate) fn note_umask(mask: mode_t) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}
