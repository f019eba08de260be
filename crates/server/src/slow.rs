//! Requests that took long: counted, and told with where the time went.

use crate::counters::{Counters, shortened};
use crate::spent::{Account, Request};
use crate::under_way::{Counted, Entry, Table};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weft_log::{Budget, coarse_ms};
use weft_wire::messages::HelloRequest;
use weft_wire::{Op, Status};

/// A request that is served for so long is told of before it ends.
const STUCK_MS: u64 = 30_000;
/// How often it is looked for such.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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
    pub look_every: Duration,
    pub stuck_ms: u64,
    budget: Budget,
    count: Arc<AtomicU64>,
    /// Requests that do not end, at the moment.
    count_stuck: Arc<AtomicU64>,
    count_stuck_total: Arc<AtomicU64>,
}

/// These wait by intent: for changes, and for others' locks.
fn may_take_long(op: Op) -> bool {
    matches!(op, Op::Watch | Op::Lock | Op::GetLock)
}

fn name_of(peer: &HelloRequest) -> String {
    format!("{}({})@{}", shortened(&peer.program), peer.process_id, shortened(&peer.host))
}

impl Slow {
    pub fn new(threshold_ms: u64, counters: &Counters) -> Slow {
        let count = counters.gauge("slow_requests");
        Slow {
            threshold: SlowRequestMs::new(threshold_ms),
            look_every: LOOK_EVERY,
            stuck_ms: STUCK_MS,
            budget: Budget::new(LINES_PER_MINUTE),
            count,
            count_stuck: counters.gauge("stuck_requests"),
            count_stuck_total: counters.gauge("requests_got_stuck"),
        }
    }

    /// Tells of the requests of a thread that are under way for long.
    pub fn look_at_all(&self, server: &str, requests: &Table) {
        let (now_ms, threshold_ms) = (coarse_ms(), self.threshold.get());
        if threshold_ms > 0 {
            requests.look(now_ms, self.stuck_ms.max(threshold_ms), |entry| self.tell(server, now_ms, entry));
        }
    }

    fn tell(&self, server: &str, now_ms: u64, entry: &Entry) -> Option<Counted> {
        if may_take_long(entry.op) {
            return None;
        }
        self.count_stuck_total.fetch_add(1, Ordering::Relaxed);
        let counted = Some(Counted::by(&self.count_stuck));
        let Some(more) = self.may_tell() else { return counted };
        let took_ms = now_ms.saturating_sub(entry.begun_ms);
        let request = entry.request.so_far(now_ms);
        tracing::warn!(
            server,
            op = entry.op.name(),
            ino = request.ino,
            client = name_of(&entry.session.hello),
            took_ms,
            trace = request.trace,
            "request under way: {} is not done after {took_ms} ms: {}{more}",
            entry.op.name(),
            Account(request, took_ms),
        );
        counted
    }

    /// The end of a line, if there may be one now.
    fn may_tell(&self) -> Option<String> {
        Some(match self.budget.take()? {
            0 => String::new(),
            count => format!("; {count} more since the last such line"),
        })
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
        if threshold_ms == 0 || took_ms < threshold_ms || may_take_long(op) {
            return;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let Some(more) = self.may_tell() else { return };
        let client = name_of(peer);
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
