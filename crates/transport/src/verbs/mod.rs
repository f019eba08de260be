//! RDMA: one reliable connection per link, over the seam of `weft-verbs` (IB 3 and 4).
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
//! * [`credits`]: nobody sends what nobody has a receive for. [`schedule`]: not too much at once.
//! * [`choose`]: the table above. [`chain`]: pieces here and there as work requests. [`keys`]: how memory is told.
//! * [`assembly`]: messages out of parts.
//! * [`client`] and [`link`]: the client. [`listen`], [`thread`], [`conn`], [`bulk`]: the server.
//!
//! Always:
//! * Receives are posted before they are promised, so that a message never finds none.
//! * A failed piece of work ends its connection and no other. What a peer says is checked before it is used; a peer that
//!   breaks the rules is refused as on the streams, and cut off.
//! * Memory under RDMA stays where it is until the end of the work is known, or the queue pair is no more: a handler that is
//!   dropped in the middle takes its connection with it.
//! * The server's zones have no remote keys. A client has one for its own Fast buffers, and no other. Where a client's adapter has
//!   memory windows its keys end with their requests ([`link`]).

mod assembly;
mod batch;
mod bulk;
mod chain;
mod choose;
mod client;
mod conn;
mod counts;
mod credits;
mod envelope;
mod keys;
mod lend;
mod link;
mod listen;
mod locked;
mod memory;
mod schedule;
mod thread;

pub use bulk::VerbsBulk;
pub use choose::Mechanism;
pub use client::{VerbsClient, VerbsDeviceStatus, VerbsOptions, VerbsStatus};
pub use conn::VerbsConn;
pub use counts::VerbsTransfers;
pub use envelope::VerbsRole;
pub use lend::lent_work_requests;
pub use link::VerbsLink;
pub use listen::{VerbsAccepted, VerbsAcceptor, VerbsKeys, VerbsListening, VerbsPlace, listen_verbs};
pub use thread::{VerbsPortStatus, VerbsServerOptions, VerbsThread};

use envelope::MESSAGE_BYTES;
use weft_wire::limits::MESSAGE_DATA_BYTES_MAX;

/// Receives of a client's link: one for the reply of each request under way, and some for credits.
const CLIENT_RECEIVES: u16 = 32;
/// Send slots of a client's link.
const CLIENT_SENDS: u16 = 8;
/// Fast RDMA buffers of a client's link.
const CLIENT_FAST_BUFFERS: u16 = 4;
/// In a Fast RDMA buffer, the part that holds envelope, header and body.
const FAST_HEAD_BYTES: usize = MESSAGE_BYTES;
/// In a Fast RDMA buffer, the part that holds data.
const FAST_DATA_BYTES: usize = MESSAGE_DATA_BYTES_MAX;
/// Size of a Fast RDMA buffer.
const FAST_BYTES: usize = FAST_HEAD_BYTES + FAST_DATA_BYTES;
/// Marks the number of a receive among those of sent work.
const RECEIVE: u64 = 1 << 63;
