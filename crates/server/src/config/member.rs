//! A process of a cluster, whatever it does.

use super::cluster::ServerConfig;
use super::gateway::GatewayConfig;

/// A server or a gateway of a cluster file.
#[derive(Debug, Clone, Copy)]
pub enum Member<'a> {
    /// It keeps names or data.
    Server(&'a ServerConfig),
    /// It serves clients of another protocol.
    Gateway(&'a GatewayConfig),
}

impl<'a> Member<'a> {
    /// Its name, unique in the cluster file.
    pub fn name(self) -> &'a str {
        match self {
            Member::Server(server) => &server.name,
            Member::Gateway(gateway) => &gateway.name,
        }
    }

    /// What it serves: "meta", "io" or "nfs".
    pub fn role_name(self) -> &'static str {
        match self {
            Member::Server(server) => server.role.name(),
            Member::Gateway(_) => "nfs",
        }
    }

    /// Where it listens.
    pub fn addresses(self) -> &'a [String] {
        match self {
            Member::Server(server) => &server.addresses,
            Member::Gateway(gateway) => &gateway.addresses,
        }
    }
}
