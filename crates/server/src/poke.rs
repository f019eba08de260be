//! The wake-up call of those who remove data files ([`crate::garbage`]).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_reactor::{Notify, timeout};

/// Wakes them. Clones wake the same ones.
#[derive(Clone, Default)]
pub(crate) struct Poke {
    signals: Rc<Signals>,
}

#[derive(Default)]
struct Signals {
    remove: Notify,
    vouch: Notify,
    /// Of the last request that left something to remove.
    trace: Cell<u64>,
}

impl Poke {
    /// Notes the trace id of a request that has left something to remove, now or later.
    pub fn name_cause(&self, trace: u64) {
        self.signals.trace.set(trace);
    }

    /// There may be something to do.
    pub fn poke(&self) {
        self.signals.remove.notify();
        self.signals.vouch.notify();
    }

    /// There may be something to remove.
    pub fn poke_to_remove(&self) {
        self.signals.remove.notify();
    }

    /// Waits until there may be something to remove, at most this long.
    pub async fn wait_to_remove(&self, limit: Duration) {
        let _ = timeout(limit, self.signals.remove.notified()).await;
    }

    /// Waits until there may be a new storage, at most this long.
    pub async fn wait_to_vouch(&self, limit: Duration) {
        let _ = timeout(limit, self.signals.vouch.notified()).await;
    }

    /// Trace id of the last request that left something since this was asked before; 0: none did.
    pub fn take_trace(&self) -> u64 {
        self.signals.trace.take()
    }
}
