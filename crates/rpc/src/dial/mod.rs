//! Making connections to servers.
//!
//! ```text
//!   Dial::dial(server, wish, greet) ─► connect ─► greet(link) ─► Dialled { link, the server's reply, … }
//!                                        │           └ handshake and checks, given by the caller (greet.rs)
//!                                        └ NetworkDial; tests and simulations have their own
//!
//!   NetworkDial ─► the Way of each transport of the list in transport.rs ─► tcp.rs, shm.rs, rdma.rs
//! ```

mod dialled;
mod first;
mod network;
mod rdma;
mod shm;
mod tcp;
mod transport;
mod way;

pub use dialled::{Dial, Dialled, Fallback, Greet, Wish, is_of_another_cluster};
pub use first::FirstServer;
pub use network::NetworkDial;
pub use transport::Transport;
