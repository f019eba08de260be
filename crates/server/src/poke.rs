//! The wake-up call of the remover of data files ([`crate::garbage`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait goes on before the remover looks whether the server is to stop.
const WAIT_STEP: Duration = Duration::from_millis(200);

/// Wakes the remover. Clones wake the same one.
#[derive(Clone, Default)]
pub(crate) struct Poke {
    signal: Arc<Signal>,
}

#[derive(Default)]
struct Signal {
    poked: AtomicBool,
    /// Of the last request that poked.
    trace: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Poke {
    /// There may be something to remove, by the request with this id; 0: by none.
    pub fn poke(&self, trace: u64) {
        if trace != 0 {
            self.signal.trace.store(trace, Ordering::Relaxed);
        }
        if !self.signal.poked.swap(true, Ordering::AcqRel) {
            let _lock = self.signal.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.signal.changed.notify_one();
        }
    }

    /// Waits until poked or `deadline`, at most a step. Says whether it was poked, which is then forgotten.
    pub fn wait(&self, deadline: Instant) -> bool {
        let lock = self.signal.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.signal.poked.load(Ordering::Acquire) {
            let left = deadline.saturating_duration_since(Instant::now()).min(WAIT_STEP);
            drop(self.signal.changed.wait_timeout(lock, left));
        }
        self.signal.poked.swap(false, Ordering::AcqRel)
    }

    /// Trace id of the last request that poked since it was taken before; 0: none did.
    pub fn take_trace(&self) -> u64 {
        self.signal.trace.swap(0, Ordering::Relaxed)
    }
}
