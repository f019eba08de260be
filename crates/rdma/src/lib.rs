//! RDMA below any protocol. Of a server: ports, channels of work, and a trait for what stands above. Of a client:
//! [`Requester`], one connection.
//!
//! ```text
//!   a thread
//!     Protocol     Weft's messages (`weft-transport`)   │  another one: its own private data,
//!     Connection   envelope, credits, keys              │  headers, credits, chunks
//!                        ▲ received, receives_posted, failed      │ room, send, transfer
//!     ───────────────────┴────────────────────────────────────────▼───────────────────────────
//!     Channel      work of one queue pair, what it holds until its end, how it fails
//!     Port         one adapter: completion queue, shared receives, send slots, zones, turns
//!     Ports        the adapters of the thread
//!
//!   any thread     Place ─► Listening ─► Acceptor ── Check of the private data ─► Asked, or a refusal
//! ```
//!
//! Protocols share ports: receives, send slots, zones and the pacing of a thread are there once for all of
//! them.
//!
//! Always:
//! * Receives are posted before they are promised, so that a message never finds none ([`Channel::window`]).
//! * A failed piece of work ends its connection and no other.
//! * Memory under RDMA stays where it is until the end of the work is known, or the queue pair is no more: a
//!   task that is dropped in the middle of a transfer takes its connection with it.
//! * Zones have no remote keys, unless a server's protocol wants its peers to read them
//!   ([`PortOptions::remote_read`]).
//!
//! What RPC-over-RDMA version 1 (RFC 8166) asks of a server, and what serves it here:
//!
//! | RFC 8166, RFC 8797 | here |
//! | --- | --- |
//! | credits in each message | granted: [`Channel::window`]; those of the peer are the protocol's |
//! | receives of the inline threshold's size | [`PortOptions::message_bytes`], shared by connections |
//! | a call, inline or with chunks | [`Connection::received`] |
//! | an inline reply | [`Port::message_slot`], [`Channel::send`] |
//! | read list: the server reads chunks | [`Channel::transfer`]; a key in each [`RemotePiece`] |
//! | write list, reply chunk | the same, or [`Channel::writes`] and the reply in one post |
//! | the reply invalidates a key of the client | `ends_key` of [`Channel::send`] |
//! | private data of a connection | [`Check::check`], [`Protocol::accept`], [`Protocol::refuse`] |
//! | no memory of the server is exposed | [`Protocol::reads_in`] 0; a protocol makes no keys |
//! | it is (RFC 5666, RDMA_DONE) | [`Port::known`], [`FreeWindows`], [`Writes::behind`] |
//! | a lost connection | [`Connection::failed`], [`Channel::ended`] |
//!
//! It would itself read a long call (a read chunk at position zero) into memory of a zone, and count its peer's calls: a
//! protocol fails a connection whose peer uses more receives than it was granted. `tests/echo.rs` has a protocol of
//! this shape.

mod accept;
mod batch;
mod chain;
mod channel;
mod held;
mod listen;
mod options;
mod pool;
mod port;
mod ports;
mod protocol;
mod requester;
mod schedule;
mod shares;
mod slots;
mod watched;
mod windows;
mod work;
mod zones;

pub use accept::{CLOSE_TIMEOUT, NotAccepted, either};
pub use batch::Batch;
pub use chain::{Chain, Link, RemotePiece};
pub use channel::{Channel, Ended};
pub use held::Held;
pub use listen::{Acceptor, Asked, Listening, Place};
pub use options::PortOptions;
pub use pool::Slot;
pub use port::{BOUNCE_BYTES, Port, PortStatus, RECEIVE};
pub use ports::Ports;
pub use protocol::{Check, Connection, Protocol, Refusal};
pub use requester::{Requester, Tag};
pub use schedule::Turn;
pub use shares::{Shares, WINDOW_MIN};
pub use slots::Slots;
pub use windows::FreeWindows;
pub use work::Writes;
pub use zones::{Known, ZoneRegistration};
