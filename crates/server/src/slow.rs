//! Requests that took long: counted, and told with where the time went.

use crate::counters::{Counters, shortened};
use crate::spent::{Account, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_log::Budget;
use weft_wire::messages::HelloRequest;
use weft_wire::{Op, Status};

/// Lines in a minute.
const LINES_PER_MINUTE: u32 = 30;

/// From how many milliseconds on a request is slow; 0: never. Clones are the same.
#[derive(Debug, Clone)]
pub struct SlowRequestMs(Arc<AtomicU64>);

impl SlowRequestMs {
    pub(crate) fn new(ms: u64) -> SlowRequestMs {
        SlowRequestMs(Arc::new(AtomicU64::new(ms)))
    }

    /// From now on it is so many.
    pub fn set(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tells of slow requests.
pub(crate) struct Slow {
    pub threshold: SlowRequestMs,
    budget: Budget,
    count: Arc<AtomicU64>,
}

impl Slow {
    pub fn new(threshold_ms: u64, counters: &Counters) -> Slow {
        let count = counters.gauge("slow_requests");
        Slow { threshold: SlowRequestMs::new(threshold_ms), budget: Budget::new(LINES_PER_MINUTE), count }
    }

    /// A request of this peer has ended after so long.
    pub fn look(
        &self,
        server: &str,
        op: Op,
        request: Request,
        status: Status,
        took_ms: u64,
        peer: &HelloRequest,
    ) {
        let threshold_ms = self.threshold.get();
        // These wait by intent: for changes, and for others' locks.
        if threshold_ms == 0 || took_ms < threshold_ms || matches!(op, Op::Watch | Op::Lock | Op::GetLock) {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(left_out) = self.budget.take() else { return };
        let more = match left_out {
            0 => String::new(),
            count => format!("; {count} more since the last such line"),
        };
        let client = format!("{}({})@{}", shortened(&peer.program), peer.process_id, shortened(&peer.host));
        tracing::warn!(
            server,
            op = op.name(),
            ino = request.ino,
            client,
            status = status.to_string(),
            took_ms,
            trace = request.trace,
            "slow request: {} took {took_ms} ms: {}{more}",
            op.name(),
            Account(request, took_ms),
        );
    }
}
