//! The NFS gateway that `weft up --nfs` adds to a cluster.

use super::ports;
use anyhow::Result;
use std::path::PathBuf;
use weft_server::ClusterConfig;
use weft_server::config::{
    EditedFile, ExportAccess, ExportConfig, ExportSquash, GatewayConfig, NOBODY, NfsRdmaDesign, NfsRdmaMemory,
};

/// Name of the gateway that is added.
const NAME: &str = "nfs0";
/// Port that clients try by themselves.
const NFS_PORT: u16 = 2049;

/// The cluster file with a gateway at `address`, and, where nothing is exported, with the whole file system
/// exported to this machine. `None` if it has a gateway already and `address` is not given.
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
    let exports = if config.exports.is_empty() { vec![this_machine()] } else { Vec::new() };
    Ok(Some(config.with_gateway(&gateway, &exports)?))
}

/// After those of the servers, if these serve metrics.
fn metrics_address(config: &ClusterConfig) -> Option<String> {
    let last = config.servers.last()?.metrics.as_ref()?;
    let (host, port) = last.rsplit_once(':')?;
    Some(format!("{host}:{}", port.parse::<u16>().ok()?.checked_add(1)?))
}

/// Everything, for the programs of this machine.
fn this_machine() -> ExportConfig {
    ExportConfig {
        path: "/".into(),
        clients: vec!["127.0.0.0/8".into(), "::1".into()],
        access: ExportAccess::ReadWrite,
        squash: ExportSquash::Root,
        anonymous_uid: NOBODY,
        anonymous_gid: NOBODY,
        insecure_ports: true,
    }
}
