//! Calls over RDMA: RPC-over-RDMA version 1 (RFC 8166, RFC 8797), as NFSv3 uses it (RFC 8267).
//!
//! ```text
//!   plan.rs      what of a call and its reply is inline, and what is in chunks          pure
//!   chunks.rs    what a reply says of the chunks that its call gave                     pure
//!   exposed.rs   memory of the caller's, or a buffer, as segments with keys for the server
//!   buffers.rs   buffers of the link's own: long calls, long replies, copied data
//!   memory.rs    the choices                                 status.rs     what was counted
//!   way.rs       from an address to a link; the adapter and its registrations
//!   link.rs      the link: credits, sending        replies.rs   receiving, the end of keys
//!   left.rs      what a reply leaves in the server's memory (Read-Read)     pure
//!   fetch.rs     reading it, and telling the server
//! ```
//!
//! | what | how it moves |
//! | --- | --- |
//! | a call and a reply that fit a message | Send; data are copied |
//! | data of a WRITE | a read chunk: the server reads them out of the caller's memory |
//! | data of a READ | a write chunk: the server writes them into the caller's memory |
//! | a reply that may be long | a reply chunk: the server writes it into a buffer of the link |
//! | a call that is too long | a read chunk at position 0, from a buffer of the link |
//!
//! Only the server reads and writes, and none of its memory is exposed: the Read-Write design of Noronha, Chai, Talpey and
//! Panda, "Better NFS through RDMA and Efficient Memory Registration" (2007). How memory gets its keys is a choice
//! ([`RdmaMemory`]), for registering is what costs. Their other design, Read-Read ([`RdmaDesign`]), is for servers that
//! expose long replies: the client reads them, and sends RDMA_DONE. Calls offer no room for replies then.
//!
//! Always:
//! * A call is sent only where its server has granted it a credit, and has a receive of its own for the reply.
//! * A call that ends without a reply while the server has a key for its caller's memory takes the connection with it, so
//!   that the memory is not touched from there on.
//! * With windows no key of a call is valid when its reply is given.
//! * What a server says is checked before it is used.

mod buffers;
mod chunks;
mod exposed;
mod fetch;
mod left;
mod link;
mod memory;
mod plan;
mod replies;
mod status;
mod way;

pub use memory::{RdmaDesign, RdmaMemory};
pub use status::{RdmaStatus, RdmaTotals};
pub(crate) use way::RdmaWay;
