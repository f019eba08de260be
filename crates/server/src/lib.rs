//! The servers of a Weft cluster: a metadata server, which knows names and attributes, and I/O servers, which keep bytes.
//!
//! ```text
//!                      ┌ thread 0: reactor ─ accepts ─┐            thread n: reactor
//!   TCP, Unix, RDMA ──►│ session ─ dispatch ─ handler │─ mailbox ─►│ session ─ dispatch ─ handler │
//!                      └──────────────┬───────────────┘            └──────────────┬───────────────┘
//!                             io: data files, shared by all threads · meta: one namespace, one thread
//! ```
//!
//! The order of reading: [`config`] (what a cluster is), `server` (threads), `accept` and `rdma` (ways in), `session` (one connection),
//! `node` (the table from operations to functions), then `io` and `meta`, one function per operation.
//!
//! Invariants: no lock is held across the network; every task of a connection stays on its thread; an error is a reply
//! with a status and words, and only a peer that breaks the protocol is cut off; the metadata server talks to I/O servers only
//! to remove what is unlinked (`garbage`) and to check (`fsck`).

mod accept;
mod answer;
mod both;
pub mod config;
mod counters;
mod fsck;
mod garbage;
mod io;
mod keys;
mod letters;
mod log;
mod meta;
mod node;
mod peer;
mod rdma;
mod server;
mod session;
mod status;
mod stop;

pub use config::{
    ClusterConfig, ClusterId, ConfigError, DiskChoice, Generate, RdmaMode, ServerConfig, ServerRole, SyncMode,
};
pub use keys::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE, KeyFileError, create_keys, load_key};
pub use server::{Server, ServerError, run_server};
pub use stop::StopFlag;

#[cfg(test)]
mod tests;
