//! The client of a Weft file system: files, names, and I/O that one thread drives on all servers at once.
//!
//! ```no_run
//! use weft_client::{Client, ConnectOptions, OpenOptions, Url};
//!
//! let client = Client::connect(&Url::parse("weft://node1:7400/")?, ConnectOptions::default())?;
//! let file = client.open("/results", &OpenOptions::new().read(true).write(true).create(true))?;
//! file.write_at(b"striped over all I/O servers", 0)?;
//! file.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is no thread and no runtime behind it. Whoever waits does the work:
//!
//! ```text
//!   File::read_at ─► Transfer     cuts the request into windows, these into one share for each server   (window, transfer)
//!                      │
//!                    Batch        submits to all servers at once; watches briefly, then sleeps in poll  (batch)
//!                      │          on all of them; repeats what was lost with a connection
//!        ┌─────────────┼─────────────┐
//!      Lane io0      Lane io1      Lane meta    one connection each; a thread takes an idle one, opens  (lane, session)
//!        │             │             │          a new one, or shares; who has the lock receives for all (wait)
//!      Link          Link          Link         weft-transport: tcp, shm, verbs
//! ```
//!
//! Which servers there are, and where, is in the map of the cluster; a newer one is fetched when it is needed
//! (follow).
//!
//! Invariants: no lock but a file's cursor and append turn, and the one of who fetches the map, is held while
//! waiting for a server; memory lent to a request is given back only when its answer is there or its
//! connection is gone; a repeated change carries the same number and slot, so that the metadata server
//! answers it from what it kept; a forked child shares nothing with its parent but the files that are open.

mod access;
mod allocations;
mod append;
mod arena;
mod at;
pub mod c;
mod calls;
mod client;
mod closing;
mod connect;
mod copy;
mod counter;
mod directory;
mod explain;
mod explain_rdma;
mod exported;
mod file;
mod file_io;
#[cfg(test)]
mod follow_tests;
mod fsck;
mod held;
mod inner;
mod issued;
pub mod key_files;
mod lock_book;
mod lock_calls;
mod locks;
mod losses;
mod lost;
mod names;
mod open_file;
mod opening;
mod options;
mod pending;
mod progress;
mod quota;
mod reach;
mod report;
mod restore;
#[cfg(test)]
mod scripted;
mod servers;
mod shared;
mod size;
mod sizing;
mod small;
mod sparse;
mod start;
mod transfer;
mod typed;
mod url;
mod window;
mod written;

use weft_rpc::{
    batch, call, deadline, dial, error, fork, greet, host, lane, rdma, rpc, server, session, traffic, wait,
    waits,
};

pub use access::{AccessOptions, IoStats, Method, Movement, Sieving};
pub use arena::Arena;
pub use at::At;
pub use call::Guard;
pub use calls::PendingCall;
pub use client::Client;
pub use copy::Copied;
pub use deadline::{Operation, end_waits_when};
pub use dial::{Dial, Dialled, Fallback, Greet, Transport, Wish};
pub use directory::ReadDir;
pub use error::{Error, ErrorKind, Result};
pub use explain::ServerPlan;
pub use explain_rdma::{RdmaPlan, RdmaServerPlan};
pub use exported::EXPORT_BYTES_MAX;
pub use file::File;
pub use key_files::{KEY_DIR, installed_key_path, read_key_file, user_keys};
pub use lane::Credits;
pub use lock_calls::LockStep;
pub use locks::{LockHolder, LockKind, LockOwner, LockTarget, LockWait};
pub use options::{ConnectOptions, OpenOptions, SetAttr, SetTime, process_caller};
pub use pending::{Pending, PendingRaw, wait_all};
pub use progress::{Progress, after_poll, before_poll, finish_all, finish_some, hold_requests};
pub use quota::Quotas;
pub use rdma::{
    ForeignMemory, Rdma, RdmaAdapter, RdmaMechanism, RdmaOptions, RdmaStatus, RdmaTos, register_memory,
    unregister_memory,
};
pub use servers::{DeadServer, StatFs, TransportInUse};
pub use start::Made;
pub use traffic::Traffic;
pub use typed::{Elements, Place};
pub use url::{PORT_DEFAULT, Url, UrlError};
pub use window::Direction;
pub use written::WrittenEnd;
