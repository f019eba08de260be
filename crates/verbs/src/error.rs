//! Errors of RDMA.

use std::io;
use std::net::SocketAddr;

/// An error of RDMA.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The libraries cannot be loaded, or the kernel has no RDMA.
    #[error("RDMA cannot be used here: {0}")]
    Unavailable(String),
    /// No adapter leads to an address.
    #[error("no RDMA adapter leads to {address}: {step}: {source}")]
    Resolve {
        /// The address.
        address: SocketAddr,
        /// What failed, and what to check.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen with RDMA on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The peer refused the connection.
    #[error("{address} refused the RDMA connection")]
    Rejected {
        /// The peer.
        address: SocketAddr,
        /// Its private data; may be padded with zeros.
        private_data: Vec<u8>,
    },
    /// The connection was not established.
    #[error("no RDMA connection to {address}: {cause}")]
    Connect {
        /// The peer.
        address: SocketAddr,
        /// The cause.
        cause: String,
    },
    /// Memory could not be registered.
    #[error("{device}: cannot register {bytes} bytes at {address:#x}: {source}")]
    Register {
        /// With which adapter.
        device: String,
        /// The address.
        address: usize,
        /// The length.
        bytes: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Work requests could not be posted.
    #[error("{device}: cannot post work requests (number {posted} of the chain): {source}")]
    Post {
        /// With which adapter.
        device: String,
        /// How many work requests of the chain were posted.
        posted: usize,
        /// The system's error.
        source: io::Error,
    },
    /// Another error of an adapter.
    #[error("{device}: cannot {what}: {source}")]
    Device {
        /// The adapter.
        device: String,
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
