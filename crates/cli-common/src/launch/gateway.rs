//! The NFS gateway that `weft up --nfs` adds to a cluster.

use super::ports;
use anyhow::Result;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use weft_host::own_addresses;
use weft_server::ClusterConfig;
use weft_server::config::{
    EditedFile, ExportAccess, ExportConfig, ExportSquash, GatewayConfig, NOBODY, NfsRdmaDesign, NfsRdmaMemory,
};

/// Name of the gateway that is added.
const NAME: &str = "nfs0";
/// Port that clients try by themselves.
const NFS_PORT: u16 = 2049;

/// The cluster file with a gateway at `address`, and, if nothing is exported, with the whole file system
/// exported to this machine, also by that address. `None` if it has a gateway already and `address` is not given.
pub(super) fn with_nfs(config: &ClusterConfig, address: Option<&str>) -> Result<Option<EditedFile>> {
    match (config.gateways.first(), address) {
        (Some(_), None) => return Ok(None),
        (Some(gateway), Some(address)) if gateway.addresses.iter().any(|own| own == address) => {
            return Ok(None);
        }
        (Some(gateway), Some(address)) => anyhow::bail!(
            "the cluster has the gateway {} at {} already; to move it to {address}, edit {}",
            gateway.name,
            gateway.addresses.join(", "),
            config.path.display()
        ),
        (None, _) => {}
    }
    let address = match address {
        Some(address) => address.to_owned(),
        None => format!("127.0.0.1:{}", ports::free_port("127.0.0.1", NFS_PORT)?),
    };
    let exports = if config.exports.is_empty() { vec![this_machine(&address)] } else { Vec::new() };
    let gateway = GatewayConfig {
        name: NAME.into(),
        addresses: vec![address],
        rdma_addresses: Vec::new(),
        rdma_design: NfsRdmaDesign::default(),
        rdma_memory: NfsRdmaMemory::default(),
        directory: PathBuf::from(NAME),
        key: None,
        rpcbind: false,
        metrics: metrics_address(config),
    };
    Ok(Some(config.with_gateway(&gateway, &exports)?))
}

/// After those of the servers, if these serve metrics.
fn metrics_address(config: &ClusterConfig) -> Option<String> {
    let last = config.servers.last()?.metrics.as_ref()?;
    let (host, port) = last.rsplit_once(':')?;
    Some(format!("{host}:{}", port.parse::<u16>().ok()?.checked_add(1)?))
}

/// Everything, for the programs of this machine, which connect to `address`.
fn this_machine(address: &str) -> ExportConfig {
    let mut clients = vec!["127.0.0.0/8".to_owned(), "::1".to_owned()];
    clients.extend(sources_of(address).iter().map(IpAddr::to_string));
    ExportConfig {
        path: "/".into(),
        clients,
        access: ExportAccess::ReadWrite,
        squash: ExportSquash::Root,
        anonymous_uid: NOBODY,
        anonymous_gid: NOBODY,
        insecure_ports: true,
    }
}

/// The addresses beside the loopback from which programs of this machine connect to its own `address`: the kernel takes
/// the address that they connect to.
fn sources_of(address: &str) -> Vec<IpAddr> {
    let found: Vec<IpAddr> =
        address.to_socket_addrs().map(|all| all.map(|one| one.ip()).collect()).unwrap_or_default();
    let mut sources = Vec::new();
    for one in found {
        match one.is_unspecified() {
            true => sources.extend(own_addresses()),
            false => sources.push(one.to_canonical()),
        }
    }
    sources.retain(|address| !address.is_loopback());
    sources.sort();
    sources.dedup();
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_admitted_by_the_address_that_it_connects_to() {
        let clients = |address: &str| this_machine(address).clients;
        let loopback = ["127.0.0.0/8", "::1"];
        assert_eq!(clients("127.0.0.1:2049"), loopback);
        assert_eq!(clients("[::1]:2049"), loopback);
        assert_eq!(clients("10.0.0.5:2049"), ["127.0.0.0/8", "::1", "10.0.0.5"]);
        assert_eq!(clients("[fd00::5]:2049"), ["127.0.0.0/8", "::1", "fd00::5"]);
        assert_eq!(clients("[::ffff:10.0.0.5]:2049"), ["127.0.0.0/8", "::1", "10.0.0.5"]);
        let all = clients("0.0.0.0:2049");
        for own in own_addresses() {
            assert!(all.contains(&own.to_string()), "{own} is one of this machine's");
        }
    }
}
