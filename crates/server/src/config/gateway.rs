//! The gateways of a cluster file, by which clients of other protocols reach the file system, and what they export.
//!
//! ```toml
//! [[gateway]]
//! name = "nfs0"
//! addresses = ["10.0.0.5:2049"]   # NFS and MOUNT, both on this port
//! rdma_addresses = ["10.0.0.5:20049"]   # NFS over RDMA, for clients that can
//! directory = "nfs0"              # its lock, its socket, and which clients have locked files
//! rpcbind = true                  # clients find it by themselves
//!
//! [[export]]
//! path = "/projects"
//! clients = ["10.0.0.0/8", "login1"]
//! access = "rw"
//! squash = "root"
//! ```
//!
//! A gateway is a client of the file system. Any number of them may serve the same files.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// User and group that stand for nobody, as NFS clients and servers use them.
pub const NOBODY: u32 = 65534;

/// A `[[gateway]]` table: a process that serves NFS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayConfig {
    /// Unique among servers and gateways.
    pub name: String,
    /// `host:port`, one or more: it listens on all of them for NFS and MOUNT.
    pub addresses: Vec<String>,
    /// `host:port` of RDMA adapters where it serves NFS, too; none where not given. Clients mount and lock by
    /// `addresses`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_addresses: Vec<String>,
    /// How long replies get to clients over RDMA.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rdma_design: NfsRdmaDesign,
    /// How memory of payloads becomes known to RDMA adapters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rdma_memory: NfsRdmaMemory,
    /// Where it has its lock, its socket, and which clients have locked files; relative to the cluster file.
    pub directory: PathBuf,
    /// File with the key by which it is a client; `client.key` beside the cluster file where not given. The
    /// key must allow to act for any user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Whether it tells rpcbind of its host where it serves NFS, so that clients find it without options. It
    /// needs the rights for that; for locks clients need it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rpcbind: bool,
    /// `host:port` where it serves metrics to Prometheus over HTTP; nowhere if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
}

/// How long replies of NFS get to clients over RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NfsRdmaDesign {
    /// The gateway writes them into memory of the clients, and exposes none of its own.
    #[default]
    ReadWrite,
    /// Clients that offer no memory read them from memory of the gateway: unsafe, for comparisons.
    ReadRead,
}

/// How memory of a gateway's payloads becomes known to RDMA adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NfsRdmaMemory {
    /// One pool is registered from the start.
    #[default]
    Pool,
    /// It is registered for each transfer.
    Each,
    /// Buffers are registered when they are first used.
    Cached,
    /// As the pool; replies that clients read have memory windows.
    Windows,
}

/// An `[[export]]` table: a directory that NFS clients may mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// The directory, from the root of the file system.
    pub path: String,
    /// Who may mount it: addresses, networks like `10.0.0.0/8`, host names, or `*`.
    pub clients: Vec<String>,
    /// Whether clients may change files.
    #[serde(default)]
    pub access: ExportAccess,
    /// Whose requests count as those of the anonymous user.
    #[serde(default)]
    pub squash: ExportSquash,
    /// User of squashed requests.
    #[serde(default = "nobody")]
    pub anonymous_uid: u32,
    /// Group of squashed requests.
    #[serde(default = "nobody")]
    pub anonymous_gid: u32,
    /// Whether requests from ports from 1024 on count, which any program of the client's host can use.
    #[serde(default)]
    pub insecure_ports: bool,
}

/// Whether clients of an export may change files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ExportAccess {
    /// No.
    #[serde(rename = "ro")]
    ReadOnly,
    /// Yes.
    #[default]
    #[serde(rename = "rw")]
    ReadWrite,
}

/// Whose requests count as those of the anonymous user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportSquash {
    /// Nobody's.
    None,
    /// Those of the client's root.
    #[default]
    Root,
    /// All.
    All,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn nobody() -> u32 {
    NOBODY
}
