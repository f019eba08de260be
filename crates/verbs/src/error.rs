//! What goes wrong with RDMA.

use std::io;
use std::net::SocketAddr;

/// An error of the seam.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries cannot be loaded, or the kernel has no RDMA.
    #[error("RDMA cannot be used here: {0}")]
    Unavailable(String),
    /// No way to an address.
    #[error("no RDMA adapter leads to {address}: {step}: {source}")]
    Resolve {
        /// Where to.
        address: SocketAddr,
        /// What failed, and what to check.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen with RDMA on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The other side refused.
    #[error("{address} refused the RDMA connection")]
    Rejected {
        /// Who.
        address: SocketAddr,
        /// What it said; may be padded with zeros.
        private_data: Vec<u8>,
    },
    /// The connection was not made.
    #[error("no RDMA connection to {address}: {cause}")]
    Connect {
        /// To whom.
        address: SocketAddr,
        /// Why.
        cause: String,
    },
    /// Memory was not registered.
    #[error("{device}: cannot register {bytes} bytes at {address:#x}: {source}")]
    Register {
        /// With which adapter.
        device: String,
        /// Where.
        address: usize,
        /// How much.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Work was not posted.
    #[error("{device}: cannot post work (piece {posted} of the chain): {source}")]
    Post {
        /// With which adapter.
        device: String,
        /// How much of the chain was posted.
        posted: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Something else of an adapter.
    #[error("{device}: cannot {what}: {source}")]
    Device {
        /// Which.
        device: String,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
