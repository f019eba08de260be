//! What an operator asks of a metadata server, with the cluster's key.

use crate::config::{ClusterConfig, ServerConfig, ServerRole};
use crate::key_ring::KeyRing;
use crate::map::endpoints_of;
use crate::peer::{Peer, PeerError, proves_with};
use weft_reactor::{Reactor, ReactorOptions};
use weft_rpc::greet::Identity;
use weft_wire::Request;
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};
use weft_wire::messages::{
    AddServerRequest, ClusterMapReply, ClusterMapRequest, ListServersRequest, MapChangedReply,
    MoveServerRequest, ReplaceServerRequest, ServerInfo, ServerRecord, server_role,
};
use weft_wire::security::{ClusterKeys, Key};

/// Why a metadata server did not do what an operator asked for.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct AdminError {
    text: String,
    /// It has answered, and will say the same again.
    pub is_refusal: bool,
}

/// Whether a server accepts this key of the cluster, perhaps besides another one.
///
/// # Errors
/// It cannot be reached.
pub fn accepts_key(config: &ClusterConfig, server: &ServerConfig, key: &Key) -> Result<bool, AdminError> {
    let info = KeyInfo {
        id: [0; 16],
        issuer: key.name(),
        kind: KeyKind::Host { squash_root: true },
        expires_s: 0,
        name: String::new(),
    };
    let key = IssuedKey { secret: info.secret(&key.issuing_key()), knock: key.knock_key(), info };
    let identity = Identity::client(Some(&key), None);
    Ok(proves_with(&info_of(config, server), &identity, &key.secret)?)
}

/// Whether a server proves itself to other servers with this key of the cluster.
///
/// # Errors
/// It cannot be reached.
pub fn proves_with_key(config: &ClusterConfig, server: &ServerConfig, key: &Key) -> Result<bool, AdminError> {
    let secret = key.server_key();
    let identity = Identity::server(vec![secret.clone()], Some(key.knock_key()), "weft");
    Ok(proves_with(&info_of(config, server), &identity, &secret)?)
}

fn info_of(config: &ClusterConfig, server: &ServerConfig) -> ServerInfo {
    let role = match server.role {
        ServerRole::Meta => server_role::META,
        ServerRole::Io => server_role::IO,
    };
    ServerInfo::new(config.id_of(server), &server.name, role, endpoints_of(config, server))
}

impl From<PeerError> for AdminError {
    fn from(error: PeerError) -> AdminError {
        match error {
            PeerError::Refused { name, text, .. } => {
                AdminError { text: format!("{name}: {text}"), is_refusal: true }
            }
            error => AdminError { text: error.to_string(), is_refusal: false },
        }
    }
}

fn ask<R: Request>(config: &ClusterConfig, keys: &ClusterKeys, request: &R) -> Result<R::Reply, AdminError> {
    let meta = config.meta_servers().next().expect("a checked cluster file has one");
    ask_server(info_of(config, meta), keys, request)
}

fn ask_server<R: Request>(
    server: ServerInfo,
    keys: &ClusterKeys,
    request: &R,
) -> Result<R::Reply, AdminError> {
    let system = |error: std::io::Error| AdminError { text: error.to_string(), is_refusal: false };
    let reactor = Reactor::new(ReactorOptions::default()).map_err(system)?;
    Ok(reactor.run(async { Peer::new(server, KeyRing::new(keys)).call(request).await })?)
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

/// The map of the cluster as the metadata server has it.
///
/// # Errors
/// [`AdminError`].
pub fn cluster_map(config: &ClusterConfig, keys: &ClusterKeys) -> Result<ClusterMapReply, AdminError> {
    ask(config, keys, &ClusterMapRequest {})
}

/// Tells the metadata server of an I/O server that `file` has, and the metadata server need not have read as yet; `config` says where
/// it is.
///
/// # Errors
/// [`AdminError`], also where there is another server of the name or at the address.
pub fn add_server(
    config: &ClusterConfig,
    keys: &ClusterKeys,
    file: &ClusterConfig,
    name: &str,
) -> Result<MapChangedReply, AdminError> {
    ask(config, keys, &AddServerRequest { name: name.to_owned(), endpoints: endpoints_in(file, name)? })
}

/// Tells the metadata server that a server will be where `file` has it.
///
/// # Errors
/// [`AdminError`], also where another server is at the address.
pub fn move_server(
    config: &ClusterConfig,
    keys: &ClusterKeys,
    file: &ClusterConfig,
    name: &str,
) -> Result<MapChangedReply, AdminError> {
    ask(config, keys, &MoveServerRequest { name: name.to_owned(), endpoints: endpoints_in(file, name)? })
}

fn endpoints_in(file: &ClusterConfig, name: &str) -> Result<Vec<weft_wire::messages::Endpoint>, AdminError> {
    let server =
        file.server(name).map_err(|error| AdminError { text: error.to_string(), is_refusal: true })?;
    Ok(endpoints_of(file, server))
}

/// Version of the map that a server of it goes by.
///
/// # Errors
/// [`AdminError`].
pub fn map_version_of(server: &ServerInfo, keys: &ClusterKeys) -> Result<u32, AdminError> {
    Ok(ask_server(server.clone(), keys, &ClusterMapRequest {})?.version)
}
