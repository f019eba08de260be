//! The metrics of a mount: what the kernel asked for and how long it took, as a page for Prometheus.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use weft_client::Client;
use weft_metrics::{Histogram, Kind, Page};

/// What is counted of one kind of request.
#[derive(Default)]
struct Requests {
    times: Histogram,
    errors: AtomicU64,
}

/// What a mount counts.
pub(crate) struct Metrics {
    begun: Instant,
    /// By the name of the system call. An entry is made when it is first seen.
    requests: RwLock<HashMap<&'static str, Arc<Requests>>>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    panics: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            begun: Instant::now(),
            requests: RwLock::default(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// A request was answered.
    pub(crate) fn done(&self, name: &'static str, errno: i32, took: Duration) {
        let known = self.requests.read().expect("nobody panics with it").get(name).cloned();
        let requests = known.unwrap_or_else(|| {
            self.requests.write().expect("nobody panics with it").entry(name).or_default().clone()
        });
        requests.times.note(took);
        if errno != 0 {
            requests.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes went to the kernel.
    pub(crate) fn read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes came from the kernel.
    pub(crate) fn written(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Serving a request panicked.
    pub(crate) fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn errors(&self, name: &str) -> u64 {
        self.requests.read().expect("nobody panics with it")[name].errors.load(Ordering::Relaxed)
    }

    /// The page. `dir` is where it is mounted.
    pub(crate) fn page(&self, client: &Client, dir: &str) -> String {
        let mut page = Page::new(&[("mount", dir)]);
        let version = env!("CARGO_PKG_VERSION");
        page.metric("weft_mount_info", Kind::Gauge, "Always 1.").count(&[("version", version)], 1);
        let up_s = self.begun.elapsed().as_secs_f64();
        page.metric("weft_mount_uptime_seconds", Kind::Gauge, "Time since it was mounted.").value(&[], up_s);
        let requests = self.requests.read().expect("nobody panics with it");
        let mut requests: Vec<_> = requests.iter().collect();
        requests.sort_by_key(|(name, _)| **name);
        let help = "How long requests of the kernel took until they were answered.";
        page.metric("weft_mount_request_seconds", Kind::Histogram, help);
        for (name, requests) in &requests {
            page.histogram(&[("call", name)], &requests.times);
        }
        page.metric("weft_mount_request_errors_total", Kind::Counter, "Requests that ended with an error.");
        for (name, requests) in &requests {
            page.count(&[("call", name)], requests.errors.load(Ordering::Relaxed));
        }
        let (read, written) =
            (self.read_bytes.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed));
        page.metric(
            "weft_mount_read_bytes_total",
            Kind::Counter,
            "Bytes that programs read, but for those from the page cache.",
        )
        .count(&[], read);
        page.metric("weft_mount_written_bytes_total", Kind::Counter, "Bytes that programs wrote.")
            .count(&[], written);
        let help = "Requests that failed with EIO because of a bug of Weft: serving them panicked.";
        page.metric("weft_mount_panics_total", Kind::Counter, help)
            .count(&[], self.panics.load(Ordering::Relaxed));
        let dead = client.dead_servers();
        page.metric("weft_mount_dead_servers", Kind::Gauge, "Servers that do not answer.")
            .count(&[], dead.len() as u64);
        page.metric("weft_mount_transport", Kind::Gauge, "1 for the transport that a server is reached by.");
        let transports = client.transports();
        for used in &transports {
            let transport = used.transport.as_deref().unwrap_or("none");
            let word = transport.split(' ').next().unwrap_or(transport);
            page.count(&[("to", &used.server), ("transport", word)], 1);
        }
        let help = "Requests that a server takes on a connection at the moment.";
        page.metric("weft_mount_credits", Kind::Gauge, help);
        for used in &transports {
            for (at, credits) in used.credits.iter().enumerate() {
                page.count(&[("to", &used.server), ("connection", &at.to_string())], u64::from(credits.free));
            }
        }
        let help = "How often a request found no credit on a connection to a server.";
        page.metric("weft_mount_no_credit_total", Kind::Counter, help);
        for used in &transports {
            let refused = used.credits.iter().map(|credits| credits.refused).sum();
            page.count(&[("to", &used.server)], refused);
        }
        page.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_name() {
        let metrics = Metrics::new();
        metrics.done("read", 0, Duration::from_micros(10));
        metrics.done("read", libc::EIO, Duration::from_micros(10));
        metrics.done("open", 0, Duration::from_micros(10));
        let requests = metrics.requests.read().unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests["read"].errors.load(Ordering::Relaxed), 1);
        assert_eq!(requests["read"].times.cumulative().last(), Some(&(None, 2)));
    }
}
