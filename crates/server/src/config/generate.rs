//! The cluster file of a new cluster.

use super::check::check;
use super::cluster::*;
use super::error::ConfigError;
use std::path::PathBuf;

/// What [`ClusterConfig::generate`] is asked for: a whole cluster on one host.
#[derive(Debug, Clone)]
pub struct Generate {
    /// The cluster file to be.
    pub path: PathBuf,
    /// Host of all addresses.
    pub host: String,
    /// Port of the metadata server; I/O server `n` has this plus `n + 1`.
    pub port: u16,
    /// Number of I/O servers.
    pub io_servers: u16,
    /// Of all servers.
    pub sync: SyncMode,
    /// Default strip size.
    pub strip_bytes: u32,
}

impl ClusterConfig {
    /// A new cluster with a random id: `meta0`, `io0`, `io1`, …, each with a directory of its name beside the
    /// file. The data-path threads of the I/O servers share the processors of this host.
    ///
    /// # Errors
    /// [`ConfigError::Value`] where the wishes make no cluster, [`ConfigError::File`] where no random id can
    /// be had.
    pub fn generate(wanted: &Generate) -> Result<ClusterConfig, ConfigError> {
        let id = weft_host::random().map_err(|reason| ConfigError::File {
            action: "make a random id for",
            path: wanted.path.clone(),
            reason,
        })?;
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let io_threads = (processors / usize::from(wanted.io_servers.max(1))).clamp(1, 4) as u16;
        let server = |name: String, role, offset: u16, threads| {
            let port = wanted.port.checked_add(offset).ok_or_else(|| ConfigError::Value {
                path: wanted.path.clone(),
                key: "addresses".into(),
                reason: format!("port {} + {offset} is beyond 65535", wanted.port),
                cure: "choose a lower port".into(),
            })?;
            Ok(ServerConfig {
                directory: PathBuf::from(&name),
                name,
                role,
                addresses: vec![format!("{}:{port}", wanted.host)],
                socket: None,
                sync: wanted.sync,
                threads: Some(threads),
                disk: DiskChoice::Auto,
                buffers_bytes: BUFFERS_BYTES_DEFAULT,
                spin_us: 0,
                rdma: RdmaMode::Auto,
                rdma_addresses: Vec::new(),
                metrics: None,
            })
        };
        let mut servers = vec![server("meta0".into(), ServerRole::Meta, 0, 1)?];
        for index in 0..wanted.io_servers {
            servers.push(server(format!("io{index}"), ServerRole::Io, index.saturating_add(1), io_threads)?);
        }
        let cluster = ClusterSection {
            id: ClusterId(id),
            strip_bytes: wanted.strip_bytes,
            server_count: 0,
            small_file_bytes: SMALL_FILE_BYTES_DEFAULT,
            scrub_interval_s: SCRUB_INTERVAL_S_DEFAULT,
            orphan_age_s: ORPHAN_AGE_S_DEFAULT,
            log: None,
            slow_request_ms: SLOW_REQUEST_MS_DEFAULT,
            data_settle_s: DATA_SETTLE_S_DEFAULT,
            data_scrub_interval_s: DATA_SCRUB_INTERVAL_S_DEFAULT,
            data_scrub_bytes_per_s: DATA_SCRUB_BYTES_PER_S_DEFAULT,
        };
        let path = wanted.path.clone();
        let config = ClusterConfig { cluster, servers, gateways: Vec::new(), exports: Vec::new(), path };
        check(&config)?;
        Ok(config)
    }
}
