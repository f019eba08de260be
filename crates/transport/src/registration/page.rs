//! Pages of memory.

use std::sync::OnceLock;

/// Bytes of a page of this system.
pub fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    // SAFETY: no memory is passed.
    *BYTES.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}
