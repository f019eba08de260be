//! Noticing a fork: a child must not use its parent's connections, for both would read the same stream.
//!
//! Everything that belongs to one process (sessions, lanes, wake-up descriptors) notes the generation it was made in. The
//! child's generation is one higher, so a comparison tells it apart without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Begins to notice forks of this process.
pub(crate) fn watch() {
    REGISTERED.call_once(|| {
        // SAFETY: the handler only adds to an atomic number, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// How many forks lie between the first process and this one.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}
