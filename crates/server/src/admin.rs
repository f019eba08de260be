//! What an operator asks of a metadata server, with the cluster's key.

use crate::config::ClusterConfig;
use crate::peer::{Peer, PeerError};
use crate::stop::StopFlag;
use weft_wire::Request;
use weft_wire::messages::{
    Endpoint, ListServersRequest, ReplaceServerRequest, ServerInfo, ServerRecord, endpoint, server_role,
};
use weft_wire::security::Key;

/// Why a metadata server did not do what an operator asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AdminError(String);

fn ask<R: Request>(config: &ClusterConfig, key: &Key, request: &R) -> Result<R::Reply, AdminError> {
    let meta = config.meta_servers().next().expect("a checked cluster file has one");
    let stop = StopFlag::new().map_err(|error| AdminError(error.to_string()))?;
    let tcp = |address: &String| Endpoint::new(endpoint::TCP, address);
    let endpoints = meta.addresses.iter().map(tcp).collect();
    let server = ServerInfo::new(0, &meta.name, server_role::META, endpoints);
    let answer = Peer::new(server, key.server_key(), stop).call(request);
    answer.map_err(|error| {
        AdminError(match error {
            PeerError::Refused { name, text, .. } => format!("{name}: {text}"),
            error => error.to_string(),
        })
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
