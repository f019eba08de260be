//! What a cluster file says: its keys, their defaults, and what follows from them.

use super::error::ConfigError;
use super::gateway::{ExportConfig, GatewayConfig};
use super::member::Member;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weft_layout::Layout;
use weft_meta::FjallEngine;
use weft_storage::Directory;

/// Name of the store in a metadata server's directory.
pub(crate) const NAMES_DIRECTORY: &str = "names";
/// Name of the lock in a gateway's directory.
const GATEWAY_LOCK_FILE: &str = "lock";
/// Strip size of files for which nothing else is asked and nothing else is configured.
pub const STRIP_BYTES_DEFAULT: u32 = 256 << 10;
/// Bound of small files for which nothing else is asked.
pub const SMALL_FILE_BYTES_DEFAULT: u32 = 16 << 10;
/// Bound of an I/O server's transfer buffers where the file gives none.
pub const BUFFERS_BYTES_DEFAULT: u64 = 64 << 20;
pub(super) const SCRUB_INTERVAL_S_DEFAULT: u64 = 3600;
pub(super) const ORPHAN_AGE_S_DEFAULT: u64 = 3600;
pub(super) const SLOW_REQUEST_MS_DEFAULT: u64 = 1000;
pub(super) const DATA_SETTLE_S_DEFAULT: u64 = 10;
pub(super) const DATA_SCRUB_INTERVAL_S_DEFAULT: u64 = 7 * 24 * 3600;
pub(super) const DATA_SCRUB_BYTES_PER_S_DEFAULT: u64 = 64 << 20;

/// A cluster file, checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// What holds for all servers.
    pub cluster: ClusterSection,
    /// The servers; see the module's header about their order.
    #[serde(rename = "server", default)]
    pub servers: Vec<ServerConfig>,
    /// The gateways for clients of other protocols.
    #[serde(rename = "gateway", default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayConfig>,
    /// What the gateways export.
    #[serde(rename = "export", default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportConfig>,
    /// Where the file is; relative paths in it start there.
    #[serde(skip)]
    pub path: PathBuf,
}

/// The `[cluster]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// 32 hexadecimal digits that tell this cluster from all others.
    pub id: ClusterId,
    /// Strip size of files for which nothing else is asked.
    #[serde(default = "default_strip_bytes")]
    pub strip_bytes: u32,
    /// I/O servers of a file for which nothing else is asked; 0 means all.
    #[serde(default)]
    pub server_count: u16,
    /// Up to this size the bytes of a file lie with its inode on the metadata server; 0: on I/O servers always.
    #[serde(default = "default_small_file_bytes")]
    pub small_file_bytes: u32,
    /// Time between two scans of the I/O servers for data files whose inode is gone.
    #[serde(default = "default_scrub_interval_s")]
    pub scrub_interval_s: u64,
    /// Such data files are removed when they were last written this long ago.
    #[serde(default = "default_orphan_age_s")]
    pub orphan_age_s: u64,
    /// What servers log, as in `weft help logs`; `--log-level` and `$WEFT_LOG` come before it. Read again at
    /// SIGHUP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// From how many milliseconds on a request is slow, and logged with where the time went; 0: never. Read
    /// again at SIGHUP.
    #[serde(default = "default_slow_request_ms")]
    pub slow_request_ms: u64,
    /// What is written gets checksums when it was left alone for so long.
    #[serde(default = "default_data_settle_s")]
    pub data_settle_s: u64,
    /// Time between two scrubs, in which every I/O server compares all of its data with the checksums; 0:
    /// never by itself.
    #[serde(default = "default_data_scrub_interval_s")]
    pub data_scrub_interval_s: u64,
    /// How fast such a scrub reads on each server.
    #[serde(default = "default_data_scrub_bytes_per_s")]
    pub data_scrub_bytes_per_s: u64,
}

/// A `[[server]]` table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Unique in the file.
    pub name: String,
    /// What it serves.
    pub role: ServerRole,
    /// `host:port`, one or more: it listens on all, clients try them in order.
    pub addresses: Vec<String>,
    /// Where it keeps its data.
    pub directory: PathBuf,
    /// Its Unix socket, for clients on its host; `weft.sock` in `directory` where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// When writes and changes of names are acknowledged.
    #[serde(default)]
    pub sync: SyncMode,
    /// Data-path threads; by default up to 4 for an I/O server, by the processors there are. A metadata
    /// server has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// How the disk is read and written.
    #[serde(default)]
    pub disk: DiskChoice,
    /// Bound of all transfer buffers together.
    #[serde(default = "default_buffers_bytes")]
    pub buffers_bytes: u64,
    /// Time that a thread keeps looking for work before it sleeps: less latency for more processor time.
    #[serde(default)]
    pub spin_us: u32,
    /// Whether it is to be reached with RDMA, too.
    #[serde(default)]
    pub rdma: RdmaMode,
    /// `host:port` for RDMA, one for each adapter (rail): it listens on all, clients use them together;
    /// `addresses` where none are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_addresses: Vec<String>,
    /// `host:port` at which it serves metrics to Prometheus over HTTP, to anybody who can reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

/// Whether a server is to be reached with RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaMode {
    /// Where the libraries and an adapter with its addresses are there; else `weft status` says why not.
    #[default]
    Auto,
    /// No, and clients do not try.
    Off,
    /// Yes, or it does not start.
    Require,
}

/// What a server serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerRole {
    /// Names and attributes.
    Meta,
    /// File bytes.
    Io,
}

/// When a change is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// When it is on the disk.
    Sync,
    /// When the operating system has it: it survives a killed server, not a power cut.
    #[default]
    Nosync,
}

/// How a server reads and writes its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskChoice {
    /// io_uring where the kernel allows it, else plain.
    #[default]
    Auto,
    /// io_uring.
    Ring,
    /// preadv and pwritev.
    Plain,
}

/// Identity of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterId(pub [u8; 16]);

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for ClusterId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = (text.len() == 32).then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        let number =
            number.ok_or_else(|| serde::de::Error::custom("a cluster id is 32 hexadecimal digits"))?;
        Ok(ClusterId(number.to_be_bytes()))
    }
}

fn default_strip_bytes() -> u32 {
    STRIP_BYTES_DEFAULT
}
fn default_small_file_bytes() -> u32 {
    SMALL_FILE_BYTES_DEFAULT
}
fn default_scrub_interval_s() -> u64 {
    SCRUB_INTERVAL_S_DEFAULT
}
fn default_orphan_age_s() -> u64 {
    ORPHAN_AGE_S_DEFAULT
}
fn default_slow_request_ms() -> u64 {
    SLOW_REQUEST_MS_DEFAULT
}
fn default_data_settle_s() -> u64 {
    DATA_SETTLE_S_DEFAULT
}
fn default_data_scrub_interval_s() -> u64 {
    DATA_SCRUB_INTERVAL_S_DEFAULT
}
fn default_data_scrub_bytes_per_s() -> u64 {
    DATA_SCRUB_BYTES_PER_S_DEFAULT
}
fn default_buffers_bytes() -> u64 {
    BUFFERS_BYTES_DEFAULT
}

impl ServerConfig {
    /// Where it is to listen with RDMA; none if that is off.
    pub fn addresses_for_rdma(&self) -> &[String] {
        match (self.rdma, self.rdma_addresses.as_slice()) {
            (RdmaMode::Off, _) => &[],
            (_, []) => &self.addresses,
            (_, given) => given,
        }
    }
}

impl ServerRole {
    /// As in the file and in status.
    pub fn name(self) -> &'static str {
        match self {
            ServerRole::Meta => "meta",
            ServerRole::Io => "io",
        }
    }
}

impl SyncMode {
    /// As in the file and in status.
    pub fn name(self) -> &'static str {
        match self {
            SyncMode::Sync => "sync",
            SyncMode::Nosync => "nosync",
        }
    }
}

impl ClusterConfig {
    /// The I/O servers, in the order of their ids.
    pub fn io_servers(&self) -> impl Iterator<Item = &ServerConfig> {
        self.servers.iter().filter(|server| server.role == ServerRole::Io)
    }

    /// The metadata servers.
    pub fn meta_servers(&self) -> impl Iterator<Item = &ServerConfig> {
        self.servers.iter().filter(|server| server.role == ServerRole::Meta)
    }

    /// The server of this name.
    ///
    /// # Errors
    /// [`ConfigError::NoSuchServer`], which names those that there are.
    pub fn server(&self, name: &str) -> Result<&ServerConfig, ConfigError> {
        self.servers.iter().find(|server| server.name == name).ok_or_else(|| ConfigError::NoSuchServer {
            path: self.path.clone(),
            name: name.to_owned(),
            known: self.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// All processes that make the cluster: the servers, then the gateways.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        let servers = self.servers.iter().map(Member::Server);
        servers.chain(self.gateways.iter().map(Member::Gateway))
    }

    /// The server or gateway of this name.
    ///
    /// # Errors
    /// [`ConfigError::NoSuchServer`], which names those that there are.
    pub fn member(&self, name: &str) -> Result<Member<'_>, ConfigError> {
        self.members().find(|member| member.name() == name).ok_or_else(|| ConfigError::NoSuchServer {
            path: self.path.clone(),
            name: name.to_owned(),
            known: self.members().map(|member| member.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Place of a server among those of its role: for an I/O server, its id in the ring.
    pub fn id_of(&self, server: &ServerConfig) -> u16 {
        let before = self.servers.iter().take_while(|other| other.name != server.name);
        before.filter(|other| other.role == server.role).count() as u16
    }

    /// Layout of files for which nothing else is asked, with first server 0.
    pub fn default_layout(&self) -> Layout {
        let ring = self.io_servers().count() as u16;
        let count = match self.cluster.server_count {
            0 => ring,
            count => count.min(ring),
        };
        Layout::new(self.cluster.strip_bytes, 0, count, ring)
            .expect("a checked cluster file has a valid layout")
    }

    /// A path of the file, which may be relative to it.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Where a server keeps its data.
    pub fn directory_of(&self, server: &ServerConfig) -> PathBuf {
        self.resolve(&server.directory)
    }

    /// The file that a member holds locked (flock) as long as it runs; it is missing before the first start.
    pub fn lock_file_of(&self, member: Member<'_>) -> PathBuf {
        match member {
            Member::Gateway(gateway) => self.resolve(&gateway.directory).join(GATEWAY_LOCK_FILE),
            Member::Server(server) => {
                let directory = self.directory_of(server);
                match server.role {
                    ServerRole::Meta => FjallEngine::lock_file(&directory.join(NAMES_DIRECTORY)),
                    ServerRole::Io => Directory::lock_file(&directory),
                }
            }
        }
    }

    /// A server's Unix socket.
    pub fn socket_of(&self, server: &ServerConfig) -> PathBuf {
        match &server.socket {
            Some(socket) => self.resolve(socket),
            None => self.directory_of(server).join("weft.sock"),
        }
    }
}
