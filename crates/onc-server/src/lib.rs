//! A server of remote procedure calls over TCP and RDMA, on one thread of a reactor. It knows no program: that
//! is the [`Service`]'s business.
//!
//! ```text
//!   server.rs: listeners, who is connected
//!      ├ TCP  ─► connection.rs: one task reads      incoming.rs: records, calls, where payloads begin
//!      │           │ a task for each call ─► Service::call
//!      │           └ one task writes                outgoing.rs: replies, as they are ready
//!      └ RDMA ─► rdma/: messages with lists of the client's memory, which the server reads and writes
//! ```
//!
//! A call's payload (the data of a WRITE) is received into a buffer of its own, which the service gets; the
//! data of a reply (of a READ) is sent from the service's buffer. In between nothing copies them, except for
//! what of a payload arrives with the head of its call: over TCP at most [`HEAD_ROOM_BYTES`].
//!
//! Bounded are ([`Limits`]): connections, calls under way on one, the memory of all calls together, a record's
//! length, and the time for which a peer may not take its replies or not complete a record. That time is short
//! while other calls wait for memory. A connection on which nothing is under way holds no buffer.

pub mod buffers;
mod connection;
mod counts;
mod incoming;
mod limits;
mod outgoing;
mod rdma;
mod server;
mod service;

pub use buffers::{Buffer, Buffers};
pub use counts::{Counts, ProcedureKey};
pub use incoming::HEAD_ROOM_BYTES;
pub use limits::{Limits, PROGRESS_BYTES};
pub use rdma::{Rdma, RdmaDesign, RdmaListener, RdmaMemory, RdmaOptions};
pub use server::{Peer, Server, Transport};
pub use service::{Call, Needs, Placed, Reply, Results, Service};
