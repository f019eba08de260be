//! The metrics of an NFS gateway for Prometheus: docs/metrics.md lists them.
//!
//! The gateway tells its state once a second; times of calls are read when somebody asks.

use crate::gateway_state::State;
use anyhow::{Context, Result};
use std::sync::{Arc, Mutex, PoisonError};
use weft_metrics::{Endpoint, Kind, Page};
use weft_nfs::ProcedureTimes;

/// An endpoint that listens, and what it tells.
pub(super) struct GatewayMetrics {
    state: Arc<Mutex<Option<State>>>,
    times: Arc<ProcedureTimes>,
    _endpoint: Endpoint,
}

impl GatewayMetrics {
    /// Listens at `HOST:PORT`.
    pub(super) fn serve(address: &str) -> Result<GatewayMetrics> {
        let (state, times) = (Arc::<Mutex<Option<State>>>::default(), Arc::<ProcedureTimes>::default());
        let (told, taken) = (state.clone(), times.clone());
        let endpoint = Endpoint::start(address, move || {
            let state = told.lock().unwrap_or_else(PoisonError::into_inner);
            state.as_ref().map_or(String::new(), |state| page(state, &taken))
        });
        let endpoint = endpoint.with_context(|| format!("cannot serve metrics at {address}"))?;
        Ok(GatewayMetrics { state, times, _endpoint: endpoint })
    }

    /// Where the times of calls are noted.
    pub(super) fn times(&self) -> Arc<ProcedureTimes> {
        self.times.clone()
    }

    /// What the gateway does now.
    pub(super) fn tell(&self, state: &State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state.clone());
    }
}

fn page(state: &State, times: &ProcedureTimes) -> String {
    let mut page = Page::new(&[("gateway", &state.name)]);
    page.metric("weft_gateway_info", Kind::Gauge, "Always 1; its label says which version it is.")
        .count(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let up_s = state.uptime_ms as f64 / 1e3;
    page.metric("weft_gateway_uptime_seconds", Kind::Gauge, "Time since the gateway started.")
        .value(&[], up_s);
    let counts = &state.counts;
    for (metric, help, value) in [
        ("weft_gateway_calls_total", "Calls of all programs.", counts.calls),
        ("weft_gateway_refused_total", "Calls and mounts of clients that no export is for.", counts.refused),
        ("weft_gateway_read_bytes_total", "Bytes that READs have returned.", counts.read_bytes),
        ("weft_gateway_written_bytes_total", "Bytes that WRITEs have written.", counts.written_bytes),
        ("weft_gateway_rdma_read_bytes_total", "Bytes read from clients by RDMA.", counts.rdma_read_bytes),
        (
            "weft_gateway_rdma_written_bytes_total",
            "Bytes written to clients by RDMA.",
            counts.rdma_written_bytes,
        ),
        ("weft_gateway_copied_bytes_total", "Bytes of payloads that were copied.", counts.copied_bytes),
    ] {
        page.metric(metric, Kind::Counter, help).count(&[], value);
    }
    let connections: usize = state.clients.iter().map(|client| client.connections).sum();
    for (metric, help, value) in [
        (
            "weft_gateway_clients",
            "Clients that are connected, or have mounted something.",
            state.clients.len(),
        ),
        ("weft_gateway_connections", "Their connections.", connections),
        ("weft_gateway_open_inodes", "Files that are open at the moment.", counts.open_inodes),
        ("weft_gateway_under_way", "Operations of the cluster that are under way.", counts.under_way),
        (
            "weft_gateway_file_refused",
            "1 while the cluster file, as it is now, is not in force.",
            usize::from(state.wrong_file.is_some()),
        ),
    ] {
        page.metric(metric, Kind::Gauge, help).count(&[], value as u64);
    }
    page.metric("weft_gateway_call_seconds", Kind::Histogram, "How long calls of NFS took, by procedure.");
    for (procedure, times) in times.all() {
        page.histogram(&[("procedure", procedure)], times);
    }
    page.into_text()
}
