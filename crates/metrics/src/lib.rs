//! Metrics for Prometheus: what is counted without locks, the text format, and the HTTP endpoint of a process.
//!
//! ```text
//!   data path ── Histogram::note, AtomicU64 ──► numbers ◄── read ── Page (text) ◄── Endpoint (a thread) ◄── GET /metrics
//!                relaxed additions, no lock                                            a few at once
//! ```
//!
//! The text is of Prometheus's exposition format, version 0.0.4. Labels are few and bounded: names of operations, results, methods,
//! transports, servers, and the directory of a mount; never a path in Weft, a user or an address.

mod endpoint;
mod histogram;
mod page;
mod visitors;

pub use endpoint::{Document, Endpoint, OK, REQUEST_BYTES_MAX, Request};
pub use histogram::{BUCKETS, Histogram};
pub use page::{Kind, Page};
