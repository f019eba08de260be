//! The cluster file: which servers there are, where, and with which defaults.
//!
//! The same file is used by every server and by `weft up`. One metadata server and two I/O servers on one machine:
//!
//! ```toml
//! [cluster]
//! id = "000102030405060708090a0b0c0d0e0f"
//! strip_bytes = 262144          # of files for which nothing else is asked
//! server_count = 0              # I/O servers of such a file; 0: all
//!
//! [[server]]
//! name = "meta0"
//! role = "meta"
//! addresses = ["127.0.0.1:7400"]
//! directory = "meta0"           # relative to the cluster file
//!
//! [[server]]
//! name = "io0"
//! role = "io"
//! addresses = ["127.0.0.1:7401"]
//! directory = "io0"
//! sync = "sync"
//! rdma = "auto"                  # where there are libraries and an adapter
//! ```
//!
//! An I/O server's place among the `[[server]]` entries of its role is its id in the ring. It is part of where every file's
//! bytes are, so servers are added at the end and never reordered.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, TomlError};
use weft_layout::Layout;
use weft_meta::FjallEngine;
use weft_storage::Directory;
use weft_wire::limits;

/// Strip size of files for which nothing else is asked and nothing else is configured.
pub const STRIP_BYTES_DEFAULT: u32 = 256 << 10;
/// Bound of an I/O server's transfer buffers where the file gives none.
pub const BUFFERS_BYTES_DEFAULT: u64 = 64 << 20;
const SCRUB_INTERVAL_S_DEFAULT: u64 = 3600;
const ORPHAN_AGE_S_DEFAULT: u64 = 3600;
const SLOW_REQUEST_MS_DEFAULT: u64 = 1000;
const DATA_SETTLE_S_DEFAULT: u64 = 10;
const DATA_SCRUB_INTERVAL_S_DEFAULT: u64 = 7 * 24 * 3600;
const DATA_SCRUB_BYTES_PER_S_DEFAULT: u64 = 64 << 20;
const THREADS_MAX: u16 = 64;

/// Why a cluster file cannot be used; the text names the file, the key and the cure.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read or written.
    #[error("cannot {action} the cluster file {path}: {reason}", path = path.display())]
    File {
        /// "read" or "write".
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// It is not TOML, or has an unknown key or a value of the wrong kind.
    #[error("{path}: {reason}\nsee `weft help cluster-file` for the keys there are", path = path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Line, column and key, as the parser tells them.
        reason: String,
    },
    /// A value makes no sense.
    #[error("{path}: {key}: {reason}; {cure}", path = path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// Where in it.
        key: String,
        /// What is wrong.
        reason: String,
        /// What to do.
        cure: String,
    },
    /// There is no server of this name.
    #[error("{path} has no server named {name:?}; it has {known}", path = path.display())]
    NoSuchServer {
        /// Which file.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
}

/// A cluster file, checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// What holds for all servers.
    pub cluster: ClusterSection,
    /// The servers; see the module's header about their order.
    #[serde(rename = "server", default)]
    pub servers: Vec<ServerConfig>,
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
    /// Time between two scans of the I/O servers for data files whose inode is gone.
    #[serde(default = "default_scrub_interval_s")]
    pub scrub_interval_s: u64,
    /// Such data files are removed when they were last written this long ago.
    #[serde(default = "default_orphan_age_s")]
    pub orphan_age_s: u64,
    /// What servers log, as in `weft help logs`; `--log-level` and `$WEFT_LOG` come before it. Read again at SIGHUP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// From how many milliseconds on a request is slow, and logged with where the time went; 0: never. Read again at SIGHUP.
    #[serde(default = "default_slow_request_ms")]
    pub slow_request_ms: u64,
    /// What is written gets checksums when it was left alone for so long.
    #[serde(default = "default_data_settle_s")]
    pub data_settle_s: u64,
    /// Time between two scrubs, in which every I/O server compares all of its data with the checksums; 0: never by itself.
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
    /// Data-path threads; by default up to 4 for an I/O server, by the processors there are. A metadata server has 1.
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
    /// `host:port` for RDMA, one for each adapter (rail): it listens on all, clients use them together; `addresses` where
    /// none are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_addresses: Vec<String>,
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
    /// A new cluster with a random id: `meta0`, `io0`, `io1`, …, each with a directory of its name beside the file.
    /// The data-path threads of the I/O servers share the processors of this host.
    ///
    /// # Errors
    /// [`ConfigError::Value`] where the wishes make no cluster, [`ConfigError::File`] where no random id can be had.
    pub fn generate(wanted: &Generate) -> Result<ClusterConfig, ConfigError> {
        let mut id = [0; 16];
        crate::keys::random(&mut id).map_err(|reason| ConfigError::File {
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
            scrub_interval_s: SCRUB_INTERVAL_S_DEFAULT,
            orphan_age_s: ORPHAN_AGE_S_DEFAULT,
            log: None,
            slow_request_ms: SLOW_REQUEST_MS_DEFAULT,
            data_settle_s: DATA_SETTLE_S_DEFAULT,
            data_scrub_interval_s: DATA_SCRUB_INTERVAL_S_DEFAULT,
            data_scrub_bytes_per_s: DATA_SCRUB_BYTES_PER_S_DEFAULT,
        };
        let config = ClusterConfig { cluster, servers, path: wanted.path.clone() };
        config.check()?;
        Ok(config)
    }

    /// Reads and checks a cluster file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<ClusterConfig, ConfigError> {
        let file_error = |reason| ConfigError::File { action: "read", path: path.to_owned(), reason };
        let path = std::path::absolute(path).map_err(file_error)?;
        let text = std::fs::read_to_string(&path).map_err(file_error)?;
        ClusterConfig::parse(&text, &path)
    }

    /// Checks `text` as the contents of the file `path`.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(text: &str, path: &Path) -> Result<ClusterConfig, ConfigError> {
        let mut config: ClusterConfig = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { path: path.to_owned(), reason: error.to_string() })?;
        config.path = path.to_owned();
        config.check()?;
        Ok(config)
    }

    /// The contents of the file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("strings, numbers and lists of tables can be written as TOML")
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn save(&self) -> Result<(), ConfigError> {
        std::fs::write(&self.path, self.to_toml()).map_err(|reason| ConfigError::File {
            action: "write",
            path: self.path.clone(),
            reason,
        })
    }

    /// The file with one more server at its end; all else of its text stays as it is.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn with_server(&self, server: &ServerConfig) -> Result<EditedFile, ConfigError> {
        #[derive(Serialize)]
        struct Tail<'a> {
            server: [&'a ServerConfig; 1],
        }
        let table = toml::to_string(&Tail { server: [server] }).expect("a server can be written as TOML");
        let text = self.text()?;
        let gap = if text.ends_with('\n') { "\n" } else { "\n\n" };
        self.edited(text + gap + &table)
    }

    /// The file with other addresses of a server; all else of its text stays as it is.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn with_addresses(
        &self,
        name: &str,
        addresses: &[String],
        rdma_addresses: &[String],
    ) -> Result<EditedFile, ConfigError> {
        let wanted = &self.server(name)?.name;
        let at = self.servers.iter().position(|server| server.name == *wanted);
        let syntax = |reason: String| ConfigError::Syntax { path: self.path.clone(), reason };
        let mut document: DocumentMut =
            self.text()?.parse().map_err(|error: TomlError| syntax(error.to_string()))?;
        let table = document.get_mut("server").zip(at).and_then(|(servers, at)| servers.get_mut(at));
        let table = table.ok_or_else(|| syntax(format!("it has no [[server]] of {name}")))?;
        let list = |given: &[String]| {
            toml_edit::value(given.iter().map(String::as_str).collect::<toml_edit::Array>())
        };
        table["addresses"] = list(addresses);
        if !rdma_addresses.is_empty() {
            table["rdma_addresses"] = list(rdma_addresses);
        }
        self.edited(document.to_string())
    }

    fn text(&self) -> Result<String, ConfigError> {
        std::fs::read_to_string(&self.path).map_err(|reason| ConfigError::File {
            action: "read",
            path: self.path.clone(),
            reason,
        })
    }

    fn edited(&self, text: String) -> Result<EditedFile, ConfigError> {
        Ok(EditedFile { config: ClusterConfig::parse(&text, &self.path)?, text })
    }

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

    /// The file that a server holds locked (flock) as long as it runs; it is missing before the first start.
    pub fn lock_file_of(&self, server: &ServerConfig) -> PathBuf {
        let directory = self.directory_of(server);
        match server.role {
            ServerRole::Meta => FjallEngine::lock_file(&directory.join(crate::server::NAMES_DIRECTORY)),
            ServerRole::Io => Directory::lock_file(&directory),
        }
    }

    /// A server's Unix socket.
    pub fn socket_of(&self, server: &ServerConfig) -> PathBuf {
        match &server.socket {
            Some(socket) => self.resolve(socket),
            None => self.directory_of(server).join("weft.sock"),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: String, reason: String, cure: &str| {
            Err(ConfigError::Value { path: self.path.clone(), key, reason, cure: cure.to_owned() })
        };
        for role in [ServerRole::Meta, ServerRole::Io] {
            let count = self.servers.iter().filter(|server| server.role == role).count();
            if count == 0 {
                let reason = format!("there is none with role = \"{}\"", role.name());
                return wrong("[[server]]".into(), reason, "add one");
            }
            if count > limits::SERVERS_MAX {
                let reason = format!("{count} servers with role = \"{}\"", role.name());
                return wrong(
                    "[[server]]".into(),
                    reason,
                    &format!("at most {} can be", limits::SERVERS_MAX),
                );
            }
        }
        if self.meta_servers().count() > 1 {
            return wrong("[[server]]".into(), "two with role = \"meta\"".into(), "this version has one");
        }
        let ring = self.io_servers().count() as u16;
        if let Err(error) = Layout::new(self.cluster.strip_bytes, 0, ring, ring) {
            return wrong("cluster.strip_bytes".into(), error.to_string(), "262144 is a good value");
        }
        if self.cluster.server_count > ring {
            let reason = format!("{} of {ring} I/O servers", self.cluster.server_count);
            return wrong("cluster.server_count".into(), reason, "0 means all");
        }
        if self.cluster.data_scrub_bytes_per_s < 1 << 20 {
            let reason = format!("it is {}", self.cluster.data_scrub_bytes_per_s);
            let cure = "at least 1048576; data_scrub_interval_s = 0 means no scrub at all";
            return wrong("cluster.data_scrub_bytes_per_s".into(), reason, cure);
        }
        if self.cluster.scrub_interval_s == 0 {
            return wrong("cluster.scrub_interval_s".into(), "it is 0".into(), "3600 scans once an hour");
        }
        if let Some(Err(error)) = self.cluster.log.as_ref().map(|levels| levels.parse::<weft_log::Filter>()) {
            return wrong("cluster.log".into(), error.to_string(), "\"info\" is the default");
        }
        let mut names = HashSet::new();
        let (mut addresses, mut rdma_addresses) = (HashSet::new(), HashSet::new());
        for server in &self.servers {
            if !names.insert(server.name.as_str()) {
                return wrong(
                    format!("server {:?}", server.name),
                    "the name is used twice".into(),
                    "rename one",
                );
            }
            self.check_server(server)?;
            // RDMA has ports of its own: the same address may be in both.
            for (key, given, used) in [
                ("addresses", server.addresses.as_slice(), &mut addresses),
                ("rdma_addresses", server.addresses_for_rdma(), &mut rdma_addresses),
            ] {
                if let Some(address) = given.iter().find(|address| !used.insert(address.as_str())) {
                    let key = format!("server {:?}: {key}", server.name);
                    return wrong(key, format!("{address} is used twice"), "give each server its own port");
                }
            }
        }
        Ok(())
    }

    fn check_server(&self, server: &ServerConfig) -> Result<(), ConfigError> {
        let wrong = |key: &str, reason: String, cure: &str| {
            let key = format!("server {:?}: {key}", server.name);
            Err(ConfigError::Value { path: self.path.clone(), key, reason, cure: cure.to_owned() })
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if server.name.is_empty() || server.name.len() > 64 || !server.name.chars().all(plain) {
            let reason = "not 1 to 64 letters, digits, '-', '_' or '.'".into();
            return wrong("name", reason, "choose a name like io0");
        }
        if server.addresses.is_empty() {
            return wrong("addresses", "there is none".into(), "give one like \"node1:7401\"");
        }
        for (key, addresses) in [("addresses", &server.addresses), ("rdma_addresses", &server.rdma_addresses)]
        {
            if let Some(address) = addresses.iter().find(|address| !is_host_and_port(address)) {
                let reason = format!("{address:?} is not host:port");
                return wrong(key, reason, "write it like \"node1:7401\"");
            }
        }
        if server.rdma == RdmaMode::Off && !server.rdma_addresses.is_empty() {
            let reason = "they are given, and rdma is \"off\"".into();
            return wrong("rdma_addresses", reason, "remove one of the two");
        }
        let most = if server.role == ServerRole::Meta { 1 } else { THREADS_MAX };
        if server.threads.is_some_and(|threads| threads == 0 || threads > most) {
            let reason = format!("{} threads", server.threads.unwrap_or(0));
            return wrong("threads", reason, &format!("a {} server has 1 to {most}", server.role.name()));
        }
        let least = 4 * limits::UNIT_BYTES_MAX as u64;
        if server.buffers_bytes < least {
            let reason = format!("{} bytes", server.buffers_bytes);
            return wrong("buffers_bytes", reason, &format!("give at least {least}"));
        }
        Ok(())
    }
}

/// A cluster file that was changed and is not written yet.
#[derive(Debug)]
pub struct EditedFile {
    /// What it says.
    pub config: ClusterConfig,
    text: String,
}

impl EditedFile {
    /// Puts it in the place of the one before, whole or not at all.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn save(&self) -> Result<(), ConfigError> {
        let path = &self.config.path;
        let fresh = path.with_extension("toml.new");
        let written = std::fs::write(&fresh, &self.text)
            .and_then(|()| std::fs::set_permissions(&fresh, std::fs::metadata(path)?.permissions()))
            .and_then(|()| std::fs::rename(&fresh, path));
        written.map_err(|reason| ConfigError::File { action: "write", path: path.clone(), reason })
    }
}

/// Whether an address is like "node1:7401".
fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    parts.and_then(|(_, port)| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Generate {
        Generate {
            path: PathBuf::from("/scratch/cluster.toml"),
            host: "127.0.0.1".into(),
            port: 7400,
            io_servers: 3,
            sync: SyncMode::Nosync,
            strip_bytes: STRIP_BYTES_DEFAULT,
        }
    }

    #[test]
    fn a_generated_cluster_survives_its_file() {
        let config = ClusterConfig::generate(&wanted()).unwrap();
        let again = ClusterConfig::parse(&config.to_toml(), &config.path).unwrap();
        assert_eq!(again, config);
        let io2 = again.server("io2").unwrap();
        assert_eq!(again.id_of(io2), 2);
        assert_eq!(io2.addresses, ["127.0.0.1:7403"]);
        assert_eq!(again.socket_of(io2), Path::new("/scratch/io2/weft.sock"));
        assert_eq!(again.default_layout(), Layout::new(STRIP_BYTES_DEFAULT, 0, 3, 3).unwrap());
    }

    #[test]
    fn an_edit_keeps_what_people_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let config = ClusterConfig::generate(&Generate { path: directory.path().join("c.toml"), ..wanted() });
        let config = config.unwrap();
        let text = config.to_toml().replacen("[[server]]", "# the names\n[[server]]", 1);
        let text = text.replacen("name = \"io1\"", "name = \"io1\" # in rack 7", 1);
        std::fs::write(&config.path, &text).unwrap();
        let io3 = ServerConfig {
            name: "io3".into(),
            addresses: vec!["node9:7401".into()],
            directory: "/srv/io3".into(),
            ..config.servers[3].clone()
        };
        let added = config.with_server(&io3).unwrap();
        assert_eq!(added.config.id_of(added.config.server("io3").unwrap()), 3);
        assert_eq!(added.config.server("io3").unwrap(), &io3);
        added.save().unwrap();
        let moved = added.config.with_addresses("io1", &["node8:7".into()], &["ib8:7".into()]).unwrap();
        assert_eq!(moved.config.server("io1").unwrap().addresses, ["node8:7"]);
        assert_eq!(moved.config.server("io1").unwrap().rdma_addresses, ["ib8:7"]);
        moved.save().unwrap();
        let now = std::fs::read_to_string(&config.path).unwrap();
        assert!(now.contains("# the names\n[[server]]") && now.contains("# in rack 7"), "{now}");
        assert_eq!(ClusterConfig::load(&config.path).unwrap(), moved.config);
        let others = |config: &ClusterConfig| [0, 1, 3].map(|at| config.servers[at].clone());
        assert_eq!(others(&moved.config), others(&config));
        assert!(config.with_server(&config.servers[1]).is_err(), "the name is used twice");
        assert!(config.with_addresses("io9", &["node8:7".into()], &[]).is_err());
    }

    #[test]
    fn errors_name_file_key_and_cure() {
        let good = ClusterConfig::generate(&wanted()).unwrap().to_toml();
        for (from, to, said) in [
            ("strip_bytes = 262144", "strip_bytes = 1000", "cluster.strip_bytes: strip size of 1000 bytes"),
            ("server_count = 0", "server_count = 4", "cluster.server_count: 4 of 3 I/O servers; 0 means all"),
            ("server_count = 0", "log = \"loud\"", "cluster.log: \"loud\" is not off"),
            ("name = \"io1\"", "name = \"io0\"", "server \"io0\": the name is used twice; rename one"),
            ("127.0.0.1:7402", "127.0.0.1:7401", "127.0.0.1:7401 is used twice"),
            ("127.0.0.1:7402", "127.0.0.1", "server \"io1\": addresses: \"127.0.0.1\" is not host:port"),
            ("role = \"meta\"", "role = \"io\"", "there is none with role = \"meta\"; add one"),
            ("server_count = 0", "server_cuont = 0", "server_cuont"),
            ("disk = \"auto\"", "disk = \"tape\"", "tape"),
            ("rdma = \"auto\"", "rdma = \"maybe\"", "maybe"),
            ("rdma = \"auto\"", "rdma_addresses = [\"ib0\"]", "rdma_addresses: \"ib0\" is not host:port"),
            (
                "rdma = \"auto\"",
                "rdma = \"off\"\nrdma_addresses = [\"ib0:1\"]",
                "rdma is \"off\"; remove one",
            ),
            (
                "rdma = \"auto\"",
                "rdma_addresses = [\"127.0.0.1:7402\"]",
                "rdma_addresses: 127.0.0.1:7402 is used",
            ),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            let error = ClusterConfig::parse(&text, Path::new("/c.toml")).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("/c.toml"), "{error}");
        }
    }

    #[test]
    fn clients_are_told_where_rdma_is_to_be_tried() {
        let mut server = ClusterConfig::generate(&wanted()).unwrap().servers.remove(1);
        assert_eq!(server.addresses_for_rdma(), ["127.0.0.1:7401"]);
        server.rdma_addresses = vec!["ib0:7401".into(), "ib1:7401".into()];
        assert_eq!(server.addresses_for_rdma(), ["ib0:7401", "ib1:7401"]);
        server.rdma = RdmaMode::Off;
        assert!(server.addresses_for_rdma().is_empty());
    }

    #[test]
    fn an_unknown_server_is_told_which_there_are() {
        let error = ClusterConfig::generate(&wanted()).unwrap().server("io9").unwrap_err().to_string();
        assert!(error.contains("io9") && error.contains("meta0, io0, io1, io2"), "{error}");
    }

    #[test]
    fn damaged_cluster_files_are_refused_or_written_back_the_same() {
        let config = ClusterConfig::generate(&wanted()).unwrap();
        weft_test_fuzz::run("cluster-file", &[config.to_toml().into_bytes()], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(config) = ClusterConfig::parse(text, &wanted().path) {
                assert_eq!(ClusterConfig::parse(&config.to_toml(), &config.path).unwrap(), config);
            }
        });
    }
}
