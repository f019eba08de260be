//! What a server reports of its RDMA: where it listens, why not elsewhere, and what its threads do with each
//! adapter.
//!
//! ```text
//!   thread n ── once a second: its counts ──► RdmaReport ──► sums over all threads ──► `weft status`
//! ```

use crate::log;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_transport::VerbsPortStatus;
use weft_verbs::LinkLayer;
use weft_wire::messages::{Gauge, RdmaAdapter, RdmaStatus};

/// What a server reports of its RDMA.
#[derive(Default)]
pub(crate) struct RdmaReport {
    /// Where it listens; none: it is not used.
    pub addresses: Vec<String>,
    /// Why not, or not everywhere.
    reason: String,
    /// Addresses that are not listened on now, since their adapters are gone, and what was said of them.
    lost: Mutex<BTreeMap<String, String>>,
    /// By thread, what it does with each adapter.
    threads: Mutex<BTreeMap<usize, Vec<AdapterPart>>>,
}

/// What one thread does with an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdapterPart {
    name: String,
    link_layer: LinkLayer,
    /// Of this thread; those of all threads make a sum.
    own: Vec<(&'static str, u64)>,
    /// Of the process: the same whichever thread reports it.
    process: Vec<(&'static str, u64)>,
}

impl AdapterPart {
    /// From the status of a thread's port.
    pub fn of(status: &VerbsPortStatus) -> AdapterPart {
        let port = &status.port;
        let own = [
            ("connections", port.connections as u64),
            ("zone_bytes", port.zone_bytes),
            ("fast_buffer_bytes", status.fast_bytes),
            ("under_way_bytes", port.under_way_bytes),
            ("waiting_transfers", port.waiting as u64),
            ("sleeps", port.sleeps),
            ("receives", port.receives.into()),
            ("promised_receives", port.promised_receives.into()),
        ];
        AdapterPart {
            name: port.name.clone(),
            link_layer: port.limits.link_layer,
            own: [&own[..], &status.transfers.named()].concat(),
            process: port.counts.named(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RdmaReport {
    /// Of a server that listens at `addresses`, and for this reason not elsewhere; both may be empty.
    pub fn new(addresses: Vec<String>, reason: String) -> RdmaReport {
        RdmaReport { addresses, reason, ..RdmaReport::default() }
    }

    /// What a thread does with its adapters, in place of its last report.
    pub fn report(&self, thread: usize, adapters: Vec<AdapterPart>) {
        lock(&self.threads).insert(thread, adapters);
    }

    /// An address is not listened on for now.
    pub fn lost(&self, address: SocketAddr, cause: &str) {
        lock(&self.lost).insert(address.to_string(), cause.to_owned());
    }

    /// It is again.
    pub fn found(&self, address: SocketAddr) {
        lock(&self.lost).remove(&address.to_string());
    }

    /// One line for the log.
    pub fn log(&self, server: &str) {
        if !self.addresses.is_empty() {
            log::info!(server, "listens with RDMA on {}", self.addresses.join(", "));
        }
        if !self.reason.is_empty() {
            let used = if self.addresses.is_empty() { "not used" } else { "used in part" };
            log::info!(server, "RDMA is {used}: {}", self.reason);
        }
    }

    /// All threads together.
    pub fn status(&self) -> RdmaStatus {
        let mut adapters: BTreeMap<String, RdmaAdapter> = BTreeMap::new();
        for part in lock(&self.threads).values().flatten() {
            let adapter = adapters.entry(part.name.clone()).or_insert_with(|| RdmaAdapter {
                name: part.name.clone(),
                link_layer: part.link_layer.to_string(),
                counts: Vec::new(),
            });
            add_counts(&mut adapter.counts, &part.own, |sum, more| sum + more);
            add_counts(&mut adapter.counts, &part.process, u64::max);
        }
        let lost = lock(&self.lost);
        let is_there = |address: &&String| !lost.contains_key(*address);
        let gone = lost.values().map(|cause| format!("{cause}; it is tried again every few seconds"));
        let reasons: Vec<_> =
            [self.reason.clone()].into_iter().filter(|reason| !reason.is_empty()).chain(gone).collect();
        RdmaStatus {
            addresses: self.addresses.iter().filter(is_there).cloned().collect(),
            reason: reasons.join("; "),
            adapters: adapters.into_values().collect(),
        }
    }
}

fn add_counts(to: &mut Vec<Gauge>, counts: &[(&'static str, u64)], add: impl Fn(u64, u64) -> u64) {
    for (name, value) in counts {
        match to.iter_mut().find(|gauge| gauge.name == *name) {
            Some(gauge) => gauge.value = add(gauge.value, *value),
            None => to.push(Gauge { name: (*name).into(), value: *value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_and_adapters_are_listed_once() {
        let reports = RdmaReport::new(vec!["ib0:1".into()], String::new());
        let part = |connections, sends| AdapterPart {
            name: "rxe0".into(),
            link_layer: LinkLayer::Roce,
            own: vec![("connections", connections)],
            process: vec![("sends", sends)],
        };
        reports.report(0, vec![part(9, 1)]);
        reports.report(0, vec![part(1, 10)]);
        reports.report(1, vec![part(2, 12)]);
        let status = reports.status();
        let [adapter] = status.adapters.as_slice() else { panic!("{status:?}") };
        assert_eq!((adapter.name.as_str(), adapter.link_layer.as_str()), ("rxe0", "RoCE"));
        let counts: Vec<_> = adapter.counts.iter().map(|count| (count.name.as_str(), count.value)).collect();
        assert_eq!(counts, [("connections", 3), ("sends", 12)]);
    }
}
