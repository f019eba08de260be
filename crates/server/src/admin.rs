//! What an operator asks of a metadata server, with the cluster's key.

use crate::config::ClusterConfig;
use crate::map::endpoints_of;
use crate::peer::{Peer, PeerError};
use crate::stop::StopFlag;
use weft_wire::Request;
use weft_wire::messages::{
    AddServerRequest, ClusterMapReply, ClusterMapRequest, ListServersRequest, MapChangedReply,
    MoveServerRequest, ReplaceServerRequest, ServerInfo, ServerRecord, server_role,
};
use weft_wire::security::Key;

/// Why a metadata server did not do what an operator asked for.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct AdminError {
    text: String,
    /// It has answered, and will say the same again.
    pub is_refusal: bool,
}

fn ask<R: Request>(config: &ClusterConfig, key: &Key, request: &R) -> Result<R::Reply, AdminError> {
    let meta = config.meta_servers().next().expect("a checked cluster file has one");
    let server = ServerInfo::new(0, &meta.name, server_role::META, endpoints_of(config, meta));
    ask_server(server, key, request)
}

fn ask_server<R: Request>(server: ServerInfo, key: &Key, request: &R) -> Result<R::Reply, AdminError> {
    let stop = StopFlag::new().map_err(|error| AdminError { text: error.to_string(), is_refusal: false })?;
    let answer = Peer::new(server, key.server_key(), stop).call(request);
    answer.map_err(|error| match error {
        PeerError::Refused { name, text, .. } => {
            AdminError { text: format!("{name}: {text}"), is_refusal: true }
        }
        error => AdminError { text: error.to_string(), is_refusal: false },
    })
}

/// Which storage each server of a cluster has.
///
/// # Errors
/// [`AdminError`].
pub fn list_servers(config: &ClusterConfig, key: &Key) -> Result<Vec<ServerRecord>, AdminError> {
    Ok(ask(config, key, &ListServersRequest {})?.servers)
}

/// Has the next storage that the I/O server `name` comes with taken for its own; what was on the one before is given up.
///
/// # Errors
/// [`AdminError`], also where the server is up.
pub fn replace_server(config: &ClusterConfig, key: &Key, name: &str) -> Result<(), AdminError> {
    ask(config, key, &ReplaceServerRequest { name: name.to_owned() }).map(drop)
}

/// The map of the cluster as the metadata server has it.
///
/// # Errors
/// [`AdminError`].
pub fn cluster_map(config: &ClusterConfig, key: &Key) -> Result<ClusterMapReply, AdminError> {
    ask(config, key, &ClusterMapRequest {})
}

/// Tells the metadata server of an I/O server that `file` has, and the metadata server need not have read as yet; `config` says where
/// it is.
///
/// # Errors
/// [`AdminError`], also where there is another server of the name or at the address.
pub fn add_server(
    config: &ClusterConfig,
    key: &Key,
    file: &ClusterConfig,
    name: &str,
) -> Result<MapChangedReply, AdminError> {
    ask(config, key, &AddServerRequest { name: name.to_owned(), endpoints: endpoints_in(file, name)? })
}

/// Tells the metadata server that a server will be where `file` has it.
///
/// # Errors
/// [`AdminError`], also where another server is at the address.
pub fn move_server(
    config: &ClusterConfig,
    key: &Key,
    file: &ClusterConfig,
    name: &str,
) -> Result<MapChangedReply, AdminError> {
    ask(config, key, &MoveServerRequest { name: name.to_owned(), endpoints: endpoints_in(file, name)? })
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
pub fn map_version_of(server: &ServerInfo, key: &Key) -> Result<u32, AdminError> {
    Ok(ask_server(server.clone(), key, &ClusterMapRequest {})?.version)
}
