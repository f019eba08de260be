//! Addresses of the cluster file: what they stand for here.

use crate::config::ServerConfig;
use crate::error::ServerError;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// What a host and port of the cluster file stand for.
pub(super) fn resolve(server: &ServerConfig, address: &str) -> Result<Vec<SocketAddr>, ServerError> {
    let resolved = address.to_socket_addrs().map_err(|source| ServerError::Address {
        server: server.name.clone(),
        address: address.to_owned(),
        source,
    })?;
    Ok(resolved.collect())
}

/// What to say of an address that looks like one for the network and is not: a host's own name often stands for a loopback
/// address in its `/etc/hosts`.
pub(super) fn unreachable_from_elsewhere(address: &str, found: &[SocketAddr]) -> Option<String> {
    let host = address.rsplit_once(':')?.0;
    let is_number = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    let is_meant = is_number || host.starts_with("localhost") || host.ends_with(".localhost");
    if is_meant || found.is_empty() || !found.iter().all(|found| found.ip().is_loopback()) {
        return None;
    }
    let found: Vec<String> = found.iter().map(|found| found.ip().to_string()).collect();
    Some(format!(
        "{host} stands for {} here, which no other host reaches; correct it in /etc/hosts, or put an address of the network in the cluster file",
        found.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::unreachable_from_elsewhere;

    #[test]
    fn a_name_that_stands_for_loopback_only_is_told_of() {
        let (loopback, network) = ("127.0.1.1:7400".parse().unwrap(), "10.0.0.7:7400".parse().unwrap());
        for meant in ["127.0.1.1:7400", "[::1]:7400", "localhost:7400"] {
            assert_eq!(unreachable_from_elsewhere(meant, &[loopback]), None, "{meant}");
        }
        assert_eq!(unreachable_from_elsewhere("node7:7400", &[loopback, network]), None);
        let told = unreachable_from_elsewhere("node7:7400", &[loopback]).unwrap();
        assert!(told.contains("node7 stands for 127.0.1.1"), "{told}");
    }
}
