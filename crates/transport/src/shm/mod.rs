//! Shared memory, between processes of one host: a Unix socket for messages, and memory that the server reaches
//! by itself.
//!
//! * [`link`]: the client.
//! * [`conn`], [`bulk`]: the server. [`client_memory`]: what it reaches of a client.

mod bulk;
mod client_memory;
mod conn;
mod link;

pub use bulk::ShmBulk;
pub use conn::ShmConn;
pub use link::{SHM_BULK_BYTES_MAX_STAGED, ShmLink, ShmOptions, connect_shm};
