//! The wake-up call of the remover of data files ([`crate::garbage`]).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;
use weft_reactor::{Notify, timeout};

/// Wakes the remover. Clones wake the same one.
#[derive(Clone, Default)]
pub(crate) struct Poke {
    signal: Rc<Signal>,
}

#[derive(Default)]
struct Signal {
    poked: Notify,
    /// Of the last request that poked.
    trace: Cell<u64>,
}

impl Poke {
    /// There may be something to remove, by the request with this id; 0: by none.
    pub fn poke(&self, trace: u64) {
        if trace != 0 {
            self.signal.trace.set(trace);
        }
        self.signal.poked.notify();
    }

    /// Waits until poked or `deadline`. Says whether it was poked, which is then forgotten.
    pub async fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        timeout(left, self.signal.poked.notified()).await.is_ok()
    }

    /// Trace id of the last request that poked since it was taken before; 0: none did.
    pub fn take_trace(&self) -> u64 {
        self.signal.trace.take()
    }
}
