//! A transport inside one process, for tests and simulation: queues under a lock, and an eventfd for the
//! client's poll.
//!
//! The server copies straight between its buffers and the client's pieces, under the lock that a dropped link
//! takes too, so that memory is never touched after the link is gone. Faults come from a seed: connections
//! refused, cut after some messages, replies delayed.

mod hub;
mod link;
mod server;
mod wires;

pub use hub::{MemoryConnector, MemoryFaults, MemoryHub};
pub use link::MemoryLink;
pub use server::{MemoryBulk, MemoryConn};
pub use wires::MemoryEnd;
