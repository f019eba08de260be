//! What an operator asks of a metadata server, with the cluster's key.

use crate::config::{ClusterConfig, ServerConfig};
use crate::key_ring::KeyRing;
use crate::peer::{Peer, PeerError};
use crate::stop::StopFlag;
use weft_wire::Request;
use weft_wire::keys::{KeyInfo, KeyKind};
use weft_wire::messages::{ListServersRequest, ReplaceServerRequest, ServerInfo, ServerRecord, peer_role};
use weft_wire::security::{ClusterKeys, Key};

/// Why a metadata server did not do what an operator asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AdminError(String);

/// Whether a server accepts this key of the cluster, perhaps besides another one.
///
/// # Errors
/// It cannot be reached.
pub fn accepts_key(server: &ServerConfig, key: &Key) -> Result<bool, AdminError> {
    let info = KeyInfo {
        id: [0; 16],
        issuer: key.name(),
        kind: KeyKind::Host { squash_root: true },
        expires_s: 0,
        name: String::new(),
    };
    greet(server, peer_role::CLIENT, &info.secret(&key.issuing_key()), Some(info))
}

/// Whether a server proves itself to other servers with this key of the cluster.
///
/// # Errors
/// It cannot be reached.
pub fn proves_with_key(server: &ServerConfig, key: &Key) -> Result<bool, AdminError> {
    greet(server, peer_role::SERVER, &key.server_key(), None)
}

fn greet(server: &ServerConfig, role: u8, secret: &Key, info: Option<KeyInfo>) -> Result<bool, AdminError> {
    let keys = ClusterKeys::new(secret.clone(), 0);
    Ok(peer(server, &keys)?.proves_with(role, info, secret)?)
}

fn peer(server: &ServerConfig, keys: &ClusterKeys) -> Result<Peer, AdminError> {
    let stop = StopFlag::new().map_err(|error| AdminError(error.to_string()))?;
    let server = ServerInfo {
        name: server.name.clone(),
        id: 0,
        addresses: server.addresses.clone(),
        socket_path: String::new(),
        rdma_addresses: Vec::new(),
    };
    Ok(Peer::new(server, KeyRing::new(keys), stop))
}

impl From<PeerError> for AdminError {
    fn from(error: PeerError) -> AdminError {
        AdminError(match error {
            PeerError::Refused { name, text, .. } => format!("{name}: {text}"),
            error => error.to_string(),
        })
    }
}

fn ask<R: Request>(config: &ClusterConfig, keys: &ClusterKeys, request: &R) -> Result<R::Reply, AdminError> {
    let meta = config.meta_servers().next().expect("a checked cluster file has one");
    Ok(peer(meta, keys)?.call(request)?)
}

/// Which storage each server of a cluster has.
///
/// # Errors
/// [`AdminError`].
pub fn list_servers(config: &ClusterConfig, keys: &ClusterKeys) -> Result<Vec<ServerRecord>, AdminError> {
    Ok(ask(config, keys, &ListServersRequest {})?.servers)
}

/// Has the next storage that the I/O server `name` comes with taken for its own; what was on the one before is given up.
///
/// # Errors
/// [`AdminError`], also where the server is up.
pub fn replace_server(config: &ClusterConfig, keys: &ClusterKeys, name: &str) -> Result<(), AdminError> {
    ask(config, keys, &ReplaceServerRequest { name: name.to_owned() }).map(drop)
}
