//! The servers of a Weft cluster: a metadata server, which knows names and attributes, and I/O servers, which
//! keep bytes.
//!
//! ```text
//!                      ┌ thread 0: reactor ─ accepts ─┐            thread n: reactor
//!   TCP, Unix, RDMA ──►│ session ─ dispatch ─ handler │─ mailbox ─►│ session ─ dispatch ─ handler │
//!                      └──────────────┬───────────────┘            └──────────────┬───────────────┘
//!                             io: data files, shared by all threads · meta: one namespace, one thread
//! ```
//!
//! The order of reading: [`config`] (what a cluster is), `server`, `run_io` and `run_meta` (threads),
//! `listen` (where clients reach it), `session` (one connection), `service` (what is offered on it), `io_service`
//! and `meta_service` (the tables from operations to functions), `node` (what both have in common), `map`
//! (which servers there are and where, pure) and `current` (the map as it is served), then `io` and `meta`,
//! one function per operation. `peer` and `calls` are what a server asks other servers with.
//!
//! Invariants: no lock is held across the network; every task of a connection stays on its thread; an error
//! is a reply with a status and words, and only a peer that breaks the protocol is cut off; the metadata
//! server talks to I/O servers only to remove what is unlinked (`garbage`), to check (`fsck`) and to say
//! which keys are revoked (`announce`), and they to it only to say which storage they have, and to hear of a
//! newer map (`member`). For whom a connection acts is decided by its handshake and nowhere else
//! (`identity`).

mod admin;
mod announce;
mod answer;
mod backup;
mod both;
mod busy;
mod calls;
mod caretaker;
mod clock;
pub mod config;
mod counters;
mod crowd;
mod current;
mod error;
mod fsck;
mod garbage;
mod identity;
mod io;
mod io_service;
mod key_ring;
mod keys;
mod listen;
mod map;
mod member;
mod meta;
mod meta_service;
mod metrics;
mod node;
mod peer;
mod poke;
mod process_limits;
mod reload;
mod revoked;
mod run;
mod run_io;
mod run_meta;
mod saved_map;
mod scrub_desk;
mod server;
mod service;
mod session;
mod shared;
mod slow;
mod spent;
mod status;
mod step;
mod stop;
mod storage;
mod under_way;

pub use admin::{
    AdminError, accepts_key, add_server, cluster_map, list_servers, map_version_of, move_server,
    proves_with_key, replace_server,
};
pub use backup::{LoadError, Loaded, load_names};
pub use config::{
    ClusterConfig, ClusterId, ConfigError, DiskChoice, EditedFile, Generate, RdmaMode, ServerConfig,
    ServerRole, SyncMode,
};
pub use error::ServerError;
pub use keys::{
    CLIENT_KEY_FILE, CLUSTER_KEY_FILE, KeyFileError, create_client_key, create_keys, issue_key,
    load_cluster_keys, random_cluster_key, write_cluster_keys,
};
pub use map::MapError;
pub use process_limits::raise as raise_limits;
pub use reload::Reloader;
pub use server::Server;
pub use slow::SlowRequestMs;
pub use stop::StopFlag;
pub use storage::{accept_loss, format_storage, has_storage};
use weft_log as log;
pub use weft_meta::{BackupError, BackupHead, BackupSize, BackupWriter, verify_backup};

#[cfg(test)]
mod tests;
