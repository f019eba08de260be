//! A client of NFSv3 servers (RFC 1813) in user space, over TCP and RDMA: any server's, not only Weft's.
//!
//! ```text
//!   client, calls   NfsClient: one method per procedure; paths; many READs and WRITEs at once
//!   pending         calls under way: test, wait, wait_all
//!   session         all calls of a connection: matched by xid, sent again when the connection was lost
//!   link, tcp       the connection behind a seam: writev from, and readv into the caller's memory
//!   incoming        the stream of replies taken apart, without I/O
//!   rdma            the same over RDMA: the server reads and writes the caller's memory
//!   mount           MOUNT and portmap: from a path to its handle
//!   results, rpc, types, status, procedure, url, options, error
//! ```
//!
//! What always holds
//!
//! - There is no thread and no runtime: the calling thread drives. A client belongs to one thread.
//! - Data of a large READ are received straight into the caller's memory, but for what came together with the head of their
//!   reply. Data of a WRITE are sent straight from the caller's memory.
//! - The memory of a call is not touched after the call has ended, failed, or was dropped.
//! - Every number of a server is checked before anything is allocated or written. What makes no sense fails a call, or makes
//!   a new connection; never more than a few times in a row.
//! - A lost connection is made again, and calls are sent again with the same number, so that a server that remembers its
//!   replies does nothing twice. Nothing waits longer than [`ConnectOptions::give_up_ms`], unless there is no such limit.

mod calls;
mod client;
mod error;
mod incoming;
mod link;
mod mount;
mod options;
mod pending;
mod procedure;
mod rdma;
mod results;
mod rpc;
mod session;
mod status;
mod tcp;
mod types;
mod url;

pub use client::{Located, NfsClient};
pub use error::{Error, ErrorKind, Result};
pub use mount::Export;
pub use options::{ConnectOptions, GIVE_UP_MS_DEFAULT, SILENCE_MS_DEFAULT, own_credential};
pub use pending::{PendingCall, PendingRead, PendingWrite, wait_all};
pub use rdma::{RdmaDesign, RdmaMemory, RdmaStatus, RdmaTotals};
pub use status::Status;
pub use types::*;
pub use url::{NfsUrl, Transport};
pub use weft_onc_rpc::AuthSys;
