//! Options of starting a cluster.

use std::path::PathBuf;
use weft_server::SyncMode;

/// How long the servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until this process ends.
    WithParent,
    /// Until they are stopped.
    Detached,
}

/// What to start. `None` means as in the cluster file, or the default for a new one.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Number of I/O servers.
    pub io_servers: Option<u16>,
    /// Port of the metadata server. The I/O servers get the following ones.
    pub port: Option<u16>,
    /// Address where servers listen and clients reach them.
    pub bind: Option<String>,
    /// When writes are acknowledged.
    pub sync: Option<SyncMode>,
    /// Add an NFS gateway, if there is none, at this address; at port 2049 of this machine if empty.
    pub nfs: Option<String>,
    /// Serve metrics of the first server at this port of this machine, of the others at the following ones.
    pub metrics: Option<u16>,
    /// Start only these servers; all if empty.
    pub only: Vec<String>,
    /// How long the servers run.
    pub lifetime: Lifetime,
    /// Whether this process will supervise them.
    pub supervised: bool,
    /// The `weft` program that servers run; this program if `None`.
    pub program: Option<PathBuf>,
}
