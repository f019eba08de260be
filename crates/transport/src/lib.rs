//! Messages between clients and servers, and server-driven movement of bulk data between the client's memory
//! pieces and the server's buffers and files.
//!
//! ```text
//!        client: Link (poll style, no runtime)                 server: ServerConn (async, on weft-reactor)
//!
//!  submit(header, body, Bulk::Get(pieces)) ───────────────►  recv() -> Incoming { header, body, bulk }
//!                                          ◄──── data ────   bulk.get(offset, buffers)   these pieces -> server
//!  submit(header, body, Bulk::Put(pieces)) ───────────────►  recv() -> …
//!                                           ──── data ───►   bulk.put(offset, buffers)   server -> these pieces
//!  progress() -> Completion                ◄──────────────   reply(header, body, inline payload)
//! ```
//!
//! | transport | a get (write of a file) | a put (read of a file) |
//! | --- | --- | --- |
//! | [`TcpLink`] | streamed behind the request, gathered from the pieces by `writev` | units with an offset, received by `readv` straight into the pieces; from a file by `sendfile` |
//! | [`ShmLink`], own memory | the server's `process_vm_readv` | the server's `process_vm_writev` |
//! | [`ShmLink`], [`Segment`] | the server writes its file from the segment | the server reads its file into the segment |
//! | [`ShmLink`], staged | the client copies into a segment of the link's first | the client copies out of it after |
//! | [`ShmLink`], small | as TCP | as TCP |
//! | [`VerbsLink`], small | in the message, or a Fast RDMA Write | in the reply, or through a buffer of the link |
//! | [`VerbsLink`] | the server's RDMA Reads | the server's RDMA Writes |
//! | [`MemoryLink`] | copied, or lent | copied, or lent |
//!
//! Both byte streams share one framing, one client's end and one server's end; what differs is only how bulk
//! data moves. Credits bound the requests under way: one is taken by each submit and given back by each
//! reply.
//!
//! Servers must ignore `SIGPIPE` (every Rust program does): `sendfile` has no flag against it. The client's
//! end never raises it.

mod channel;
mod error;
mod frame_limits;
mod framing;
mod held;
mod link;
mod listen;
mod memory;
pub mod registration;
mod runs;
mod segment;
mod server;
mod shm;
mod socket;
mod stream;
mod stream_bulk;
mod tcp;
mod together;
mod verbs;

pub use error::{ConnError, FrameError, LinkError, RunsError};
pub use held::{are_requests_held, gathered_requests, group_requests, hold_requests};
pub use link::{Allocation, Bulk, BulkMemory, Completion, Link, LinkKind, LinkTraits, OWN_REQUEST_IDS};
pub use listen::{Accepted, Acceptor, ListenError, Listening, Network, listen_tcp, listen_unix};
pub use memory::{MemoryBulk, MemoryConn, MemoryConnector, MemoryEnd, MemoryFaults, MemoryHub, MemoryLink};
pub use runs::MemoryRuns;
pub use segment::Segment;
pub use server::{BulkInfo, Incoming, LocalMemory, PeerInfo, ServerBulk, ServerConn, Source};
pub use shm::*;
pub use stream_bulk::StreamBulk;
pub use tcp::{Congestion, TcpConn, TcpLink, TcpOptions, connect_tcp};
pub use together::{Lasting, Together};
pub use verbs::*;
