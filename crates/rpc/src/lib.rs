//! Calls to the servers of a cluster: connections, the handshake, requests and replies. It knows nothing of
//! files.
//!
//! The thread that waits drives everything, and sleeps in `poll(2)`; nothing here has a thread of its own. A
//! server may drive a handshake and a link from its reactor with [`greet::Handshake`] and
//! [`greet::Exchange`].
//!
//! ```text
//!   Rpc ── Session: servers, chains, numbers, slots ── Server: lanes, health         (rpc, session, server)
//!    │
//!   Batch of Calls        submits to all servers at once, busy-polls briefly, then    (batch, call)
//!    │                    sleeps; repeats what was lost with a connection
//!   ┌┴────────┬─────────┐
//!   Lane io0  Lane io1  Lane meta    one connection each: idle, new, or shared        (lane, connect)
//!   │         │         │            who has the lock receives for all threads        (wait)
//!   Link      Link      Link         made by Dial, greeted by Identity                (dial, greet)
//! ```
//!
//! A newer map of the cluster is fetched when it is needed (follow). A call ends with its operation's time
//! (deadline), at once where its server is dead (health).
//!
//! Invariants: no lock is held while waiting for a server, but the one of the thread that fetches a map;
//! memory of a request is its owner's again only when its reply has come or its connection is gone; a
//! repeated change has the same number and slot; a forked child shares nothing with its parent.

mod arenas;
pub mod batch;
pub mod call;
mod connect;
pub mod deadline;
pub mod dial;
pub mod error;
mod follow;
mod following;
pub mod fork;
pub mod greet;
mod health;
pub mod host;
pub mod lane;
pub mod links;
mod named;
pub mod options;
mod rails;
pub mod rdma;
pub mod rpc;
pub mod server;
pub mod session;
mod slots;
pub mod table;
#[cfg(test)]
mod testing;
pub mod traffic;
pub mod wait;
pub mod waits;
mod words;
