//! Weft's messages over RDMA: one reliable connection per link (IB 3 and 4). On a server they are a protocol
//! over the ports of `weft-rdma`; a client's link works on `weft-verbs` itself.
//!
//! ```text
//!   client                                                          server, one set per thread and adapter
//!   VerbsLink ── requests: Send, or Fast RDMA Write with data ──►  shared receives ─┐ one task polls the completion
//!     own receives ◄── replies: Send, behind the last Write ─────  send slots       │ queue and wakes connections
//!     user's memory ◄────────── RDMA Write, gathered ────────────  zones ◄──────────┘
//!     user's memory ──────────► RDMA Read, scattered ───────────►  (the server's buffers, registered once)
//! ```
//!
//! | data of | up to 4 KiB | up to 64 KiB | more |
//! | --- | --- | --- | --- |
//! | a write | in the request | Fast RDMA Write into a buffer that the connection has on the server | the server's RDMA Reads |
//! | a read | in the reply | registered: RDMA Writes; else RDMA Write into a buffer of the link, copied | RDMA Writes |
//!
//! * [`envelope`]: what stands before a message, and what is said when a connection is made.
//! * [`credits`]: nobody sends what nobody has a receive for.
//! * [`choose`]: the table above. [`keys`]: how memory is described to the server.
//! * [`assembly`]: messages out of parts.
//! * [`client`] and [`link`]: the client.
//! * [`peers`], [`thread`], [`conn`], [`bulk`]: the server, above a [`weft_rdma::Port`].
//!
//! Always, beside what `weft-rdma` says:
//! * What a peer says is checked before it is used; a peer that breaks the rules is refused as on the
//!   streams, and cut off.
//! * A client has a key for its own Fast buffers, and for what is lent to it, and no other. Where a client's
//!   adapter has memory windows its keys end with their requests ([`link`]).

mod adapter;
mod assembly;
mod bulk;
mod choose;
mod client;
mod conn;
mod counts;
mod credits;
mod envelope;
mod keys;
mod lend;
mod link;
mod link_options;
mod locked;
mod options;
mod peers;
mod sizes;
mod thread;

pub use bulk::VerbsBulk;
pub use choose::Mechanism;
pub use client::{VerbsClient, VerbsDeviceStatus, VerbsStatus};
pub use conn::VerbsConn;
pub use counts::VerbsTransfers;
pub use envelope::VerbsRole;
pub use lend::lent_work_requests;
pub use link::VerbsLink;
pub use link_options::VerbsOptions;
pub use options::VerbsServerOptions;
pub use peers::{
    VerbsAccepted, VerbsAcceptor, VerbsAsked, VerbsKeys, VerbsListening, VerbsPlace, listen_verbs,
};
pub use thread::{VerbsPortStatus, VerbsThread};
pub use weft_rdma::{PortOptions, PortStatus};
