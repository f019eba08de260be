//! The metrics of a server: what its threads count, as a page for Prometheus.
//!
//! docs/metrics.md lists them; a test compares it with the page of a server.

use crate::config::ServerRole;
use crate::shared::Shared;
use crate::status;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_metrics::{Endpoint, Kind, Page};
use weft_wire::messages::Gauge;

/// Gauges that rise only: their metrics are counters.
const RISING: &[&str] = &[
    "connections_refused",
    "connections_cut",
    "credits_used_up",
    "requests_got_stuck",
    "slow_requests",
    "garbage_removed_files",
    "lease_lapses",
    "orphans_removed_files",
    "orphan_scans",
    "sums_compared_blocks",
    "sums_settled_blocks",
    "sums_voided",
    "sums_wrong_blocks",
];
/// Methods of accessing pieces, and what is counted of each.
const METHODS: [&str; 3] = ["each", "sieve", "mapped"];
const OF_METHODS: [(&str, &str, &str); 7] = [
    ("requests", "weft_access_requests_total", "Requests whose pieces were accessed so."),
    ("reads", "weft_access_disk_reads_total", "Reads of data files for them."),
    ("writes", "weft_access_disk_writes_total", "Writes to data files for them."),
    ("wanted_bytes", "weft_access_wanted_bytes_total", "Bytes that the requests asked for."),
    ("accessed_bytes", "weft_access_accessed_bytes_total", "Bytes that were read and written for them."),
    (
        "expected_ns",
        "weft_access_expected_seconds_total",
        "Time that the cost model expected for what it chose.",
    ),
    ("took_ns", "weft_access_took_seconds_total", "Time that this took."),
];

/// Listens at `address` (`HOST:PORT`), and answers with the server's metrics.
///
/// # Errors
/// The address cannot be listened at.
pub(crate) fn serve(shared: &Arc<Shared>, address: &str) -> std::io::Result<Endpoint> {
    shared.counters.keep_times();
    let shared = shared.clone();
    Endpoint::start(address, move || page(&shared))
}

/// All metrics.
pub(crate) fn page(shared: &Shared) -> String {
    let mut page = Page::new(&[("server", &shared.name)]);
    put_process(&mut page, shared);
    put_operations(&mut page, shared);
    let (methods, gauges) = split_methods(shared.counters.gauges());
    put_methods(&mut page, &methods);
    put_gauges(&mut page, gauges.into_iter().chain(shared.counters.told()).collect());
    put_connections(&mut page, shared);
    page.into_text()
}

fn put_process(page: &mut Page, shared: &Shared) {
    let role = match shared.role {
        ServerRole::Meta => "meta",
        ServerRole::Io => "io",
    };
    let version = env!("CARGO_PKG_VERSION");
    page.metric("weft_info", Kind::Gauge, "Always 1; its labels say what the server is.").count(
        &[("role", role), ("version", version), ("sync", shared.sync.name()), ("disk", shared.disk)],
        1,
    );
    let up_s = shared.started.elapsed().as_secs_f64();
    page.metric("weft_uptime_seconds", Kind::Gauge, "Time since the server started.").value(&[], up_s);
    let cpu_s = status::cpu_ms() as f64 / 1e3;
    page.metric("weft_cpu_seconds_total", Kind::Counter, "Processor time of the process.").value(&[], cpu_s);
    let memory = status::memory_bytes();
    page.metric("weft_memory_bytes", Kind::Gauge, "Resident memory of the process.").count(&[], memory);
    let space = status::space_of(shared);
    page.metric("weft_disk_bytes", Kind::Gauge, "Size of the file system under the server's directory.")
        .count(&[], space.space_bytes);
    page.metric("weft_disk_available_bytes", Kind::Gauge, "What is left of it for others than root.")
        .count(&[], space.available_bytes);
    let confirmed = u64::from(shared.confirmed.is());
    page.metric(
        "weft_storage_confirmed",
        Kind::Gauge,
        "1 where the other servers have confirmed its storage.",
    )
    .count(&[], confirmed);
}

fn put_operations(page: &mut Page, shared: &Shared) {
    let counters = &shared.counters;
    let active = counters.active_requests.load(Ordering::Relaxed);
    page.metric("weft_active_requests", Kind::Gauge, "Requests that are being served.").count(&[], active);
    let operations: Vec<_> = counters
        .operations()
        .into_iter()
        .filter_map(|count| Some((snake(weft_wire::Op::from_u16(count.op)?.name()), count)))
        .collect();
    page.metric("weft_operations_total", Kind::Counter, "Operations that ended, also those that failed.");
    for (op, count) in &operations {
        page.count(&[("op", op)], count.count);
    }
    page.metric("weft_operation_errors_total", Kind::Counter, "Those that failed.");
    for (op, count) in &operations {
        page.count(&[("op", op)], count.errors);
    }
    page.metric("weft_operation_bytes_total", Kind::Counter, "Bytes of files that they moved.");
    for (op, count) in operations.iter().filter(|(_, count)| count.bytes > 0) {
        page.count(&[("op", op)], count.bytes);
    }
    page.metric("weft_operation_seconds", Kind::Histogram, "How long they took, without sending the reply.");
    for (op, times) in counters.times() {
        page.histogram(&[("op", &snake(op.name()))], times);
    }
    page.metric("weft_errors_total", Kind::Counter, "Failed operations, by what the answer was.");
    for (status, count) in counters.failures() {
        page.count(&[("status", &snake(&format!("{status:?}")))], count);
    }
}

/// Those of methods of access, and the rest.
fn split_methods(gauges: Vec<Gauge>) -> (Vec<Gauge>, Vec<Gauge>) {
    gauges.into_iter().partition(|gauge| {
        let of = |method: &str| {
            let rest = gauge.name.strip_prefix(method).and_then(|rest| rest.strip_prefix('_'));
            rest.is_some_and(|rest| OF_METHODS.iter().any(|(name, ..)| *name == rest))
        };
        METHODS.iter().any(|method| of(method))
    })
}

fn put_methods(page: &mut Page, gauges: &[Gauge]) {
    for (name, metric, help) in OF_METHODS {
        if gauges.is_empty() {
            return;
        }
        page.metric(metric, Kind::Counter, help);
        for method in METHODS {
            let found = gauges.iter().find(|gauge| gauge.name == format!("{method}_{name}"));
            let value = found.map_or(0, |gauge| gauge.value);
            match name.ends_with("_ns") {
                true => page.value(&[("method", method)], value as f64 / 1e9),
                false => page.count(&[("method", method)], value),
            };
        }
    }
}

fn put_gauges(page: &mut Page, mut gauges: Vec<Gauge>) {
    gauges.sort_by(|one, other| one.name.cmp(&other.name));
    gauges.dedup_by(|one, other| one.name == other.name);
    // Connections are told by transport, see `put_connections`.
    let is_connections = |name: &str| name.starts_with("connections_") && !RISING.contains(&name);
    for gauge in gauges.into_iter().filter(|gauge| !is_connections(&gauge.name)) {
        let (kind, end) = match RISING.contains(&gauge.name.as_str()) {
            true => (Kind::Counter, "_total"),
            false => (Kind::Gauge, ""),
        };
        let name = gauge.name.strip_suffix("_s").map_or(gauge.name.clone(), |name| format!("{name}_seconds"));
        let metric = format!("weft_{name}{end}");
        page.metric(&metric, kind, "See docs/metrics.md.").count(&[], gauge.value);
    }
}

fn put_connections(page: &mut Page, shared: &Shared) {
    let clients = u64::from(shared.clients.count());
    page.metric("weft_clients", Kind::Gauge, "Clients that are connected.").count(&[], clients);
    page.metric("weft_connections", Kind::Gauge, "Their connections, by transport.");
    for (transport, count) in shared.clients.by_transport() {
        page.count(&[("transport", &transport)], count);
    }
    let rdma = shared.rdma.status();
    if rdma.adapters.is_empty() {
        return;
    }
    page.metric(
        "weft_rdma",
        Kind::Gauge,
        "Numbers of an RDMA adapter, as `weft status --operations` has them.",
    );
    for adapter in rdma.adapters {
        for count in adapter.counts {
            page.count(&[("adapter", &adapter.name), ("number", &count.name)], count.value);
        }
    }
}

/// `ReadSmall` as `read_small`.
fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, letter) in name.char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SyncMode;
    use crate::tests::{config, shared};
    use std::time::Duration;
    use weft_wire::{Op, Status};

    #[test]
    fn what_was_done_is_on_the_page() {
        let config = config(1, SyncMode::Nosync);
        let shared = shared(&config, "io0");
        let counters = &shared.counters;
        counters.done(Op::Read, Status::Ok, 4096, Some(Duration::from_micros(20)));
        assert!(!page(&shared).contains("weft_operation_seconds_bucket"), "times are kept on demand");
        counters.keep_times();
        counters.done(Op::ReadSmall, Status::NotFound, 0, Some(Duration::from_micros(20)));
        counters.gauge("sieve_reads").fetch_add(3, Ordering::Relaxed);
        counters.tell(vec![Gauge { name: "inodes".into(), value: 9 }]);
        let text = page(&shared);
        for line in [
            "weft_operations_total{server=\"io0\",op=\"read\"} 1",
            "weft_operation_bytes_total{server=\"io0\",op=\"read\"} 4096",
            "weft_operation_errors_total{server=\"io0\",op=\"read_small\"} 1",
            "weft_operation_seconds_count{server=\"io0\",op=\"read_small\"} 1",
            "weft_errors_total{server=\"io0\",status=\"not_found\"} 1",
            "weft_access_disk_reads_total{server=\"io0\",method=\"sieve\"} 3",
            "weft_inodes{server=\"io0\"} 9",
            "weft_connections_refused_total{server=\"io0\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
