//! Why a server does not start, or ends.

use crate::config::{ClusterId, ConfigError};
use crate::map::MapError;
use std::io;
use std::path::PathBuf;
use weft_meta::EngineError;
use weft_storage::StorageError;
use weft_transport::ListenError;

/// Why a server does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The cluster file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The storage directory of an I/O server.
    #[error("{server}: {source}")]
    Storage {
        /// Which server.
        server: String,
        /// What is wrong with it.
        source: StorageError,
    },
    /// The store of a metadata server.
    #[error("{server}: {source}")]
    Names {
        /// Which server.
        server: String,
        /// What is wrong with it.
        source: EngineError,
    },
    /// The store belongs to another cluster.
    #[error(
        "{server}: {directory} holds the names of another cluster ({found}); give this server a directory of its own",
        directory = directory.display()
    )]
    OtherCluster {
        /// Which server.
        server: String,
        /// Its directory.
        directory: PathBuf,
        /// The cluster found in it.
        found: ClusterId,
    },
    /// There is nothing where a metadata server's store is expected.
    #[error(
        "{server}: {directory} holds no names: {found}. If its disk is not mounted, or its path is wrong, mend that. To make a \
         new, empty store there: weft serve --format",
        directory = directory.display()
    )]
    NoNames {
        /// Which server.
        server: String,
        /// Where the store is expected.
        directory: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// A store is made only where none is.
    #[error(
        "{server}: {directory} holds names already, and a store is never overwritten; nothing was changed",
        directory = directory.display()
    )]
    HasNames {
        /// Which server.
        server: String,
        /// Where the store is.
        directory: PathBuf,
    },
    /// The cluster file does not go with the map.
    #[error("{server}: {source}")]
    Map {
        /// The metadata server.
        server: String,
        /// What is wrong.
        source: MapError,
    },
    /// The storage is not the one that the cluster knows, or not the newest.
    #[error("{server}: {reason}")]
    WrongStorage {
        /// Which server.
        server: String,
        /// What was found, what was expected, and what to do.
        reason: String,
    },
    /// A host of the cluster file.
    #[error("{server}: cannot find the address {address}: {source}; check it in the cluster file")]
    Address {
        /// Which server.
        server: String,
        /// As in the cluster file.
        address: String,
        /// What the resolver said.
        source: io::Error,
    },
    /// A socket to listen on.
    #[error("{server}: {source}")]
    Listen {
        /// Which server.
        server: String,
        /// Where and why.
        source: ListenError,
    },
    /// RDMA is required.
    #[error("{server}: rdma is \"require\" in the cluster file, but it cannot be used: {reason}")]
    Rdma {
        /// Which server.
        server: String,
        /// What is missing.
        reason: String,
    },
    /// io_uring was asked for and is not there.
    #[error(
        "{server}: io_uring cannot be used here: {source}; set disk = \"plain\" or \"auto\" in the cluster file"
    )]
    Ring {
        /// Which server.
        server: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The store of a metadata server failed while it ran.
    #[error(
        "{server}: {reason}. It has ended so that nothing is acknowledged that may be lost; check the disk, then start it again"
    )]
    StoreFailed {
        /// Which server.
        server: String,
        /// What the store said.
        reason: String,
    },
    /// Something else of the operating system.
    #[error("{server}: cannot {what}: {source}")]
    System {
        /// Which server.
        server: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl ServerError {
    /// Whether a new start ends the same way until somebody changes the configuration or the storage.
    pub fn is_permanent(&self) -> bool {
        use ServerError::*;
        match self {
            Config(_) | OtherCluster { .. } | Ring { .. } => true,
            NoNames { .. } | HasNames { .. } | Map { .. } | WrongStorage { .. } => true,
            Storage { source, .. } => {
                matches!(
                    source,
                    StorageError::WrongDirectory { .. }
                        | StorageError::NoStorage { .. }
                        | StorageError::Emptied { .. }
                )
            }
            _ => false,
        }
    }
}
