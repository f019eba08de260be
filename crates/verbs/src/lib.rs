//! The interface to RDMA: a small seam with the terms of the InfiniBand verbs, and rdma-core behind it.
//! rdma-core is loaded at run time, so that programs run without it.
//!
//! ```text
//!   Fabric ── resolve(address) ──► Endpoint ── create_queue_pair ── connect ──► post_send, post_receive
//!      │                              ▲                                              │
//!      └───── listen(address) ──► Listener::next() ── create_queue_pair ── accept    │ completions
//!                                                                                    ▼
//!   Endpoint::device() ──► Device ── register ─────────► Registration           CompletionQueue
//!                             ├───── completion_queue ─► CompletionQueue        (fd, arm, poll)
//!                             └───── shared_receives ──► SharedReceives
//! ```
//!
//! One reliable connection is one [`Endpoint`]: the queue pair and its connection identifier together. Work
//! requests of an endpoint complete in the order in which they were posted. A failed work request puts the
//! queue pair into the error state: those posted after it are flushed.
//!
//! Everything is non-blocking except [`Fabric::resolve`] and [`Endpoint::connect`], which take a timeout;
//! servers never call these two. Nothing here copies data or makes decisions. [`Device::counters`] counts the
//! device's operations.

mod counters;
mod error;
mod fabric;
mod rdma;
mod types;

pub use counters::{Counters, Counts};
pub use error::VerbsError;
pub use fabric::{CompletionQueue, Device, Endpoint, Fabric, Listener, Registration, SharedReceives, Window};
pub use rdma::{
    RdmaCore, RdmaDevice, RdmaEndpoint, RdmaListener, RdmaQueue, RdmaRegistration, RdmaShared, RdmaWindow,
};
pub use types::{
    Access, DeviceEvent, DeviceLimits, EndpointOptions, EndpointState, LinkLayer, MemoryPiece, Receives,
    SendWork, TrafficClass, Work, WorkDone, WorkKind, WorkStatus,
};
