//! Whether the values of a cluster file make a cluster.

use super::cluster::*;
use super::error::ConfigError;
use super::gateway::{ExportConfig, GatewayConfig, NfsRdmaDesign, NfsRdmaMemory};
use super::member::Member;
use std::collections::HashSet;
use std::net::IpAddr;
use weft_layout::Layout;
use weft_wire::limits;

/// Data-path threads that a server may have.
const THREADS_MAX: u16 = 64;

/// Whether its values make a cluster.
///
/// # Errors
/// [`ConfigError::Value`], for the first that does not.
pub(super) fn check(config: &ClusterConfig) -> Result<(), ConfigError> {
    let wrong = |key: String, reason: String, cure: &str| {
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    for role in [ServerRole::Meta, ServerRole::Io] {
        let count = config.servers.iter().filter(|server| server.role == role).count();
        if count == 0 {
            let reason = format!("there is none with role = \"{}\"", role.name());
            return wrong("[[server]]".into(), reason, "add one");
        }
        if count > limits::SERVERS_MAX {
            let reason = format!("{count} servers with role = \"{}\"", role.name());
            return wrong("[[server]]".into(), reason, &format!("at most {} can be", limits::SERVERS_MAX));
        }
    }
    if config.meta_servers().count() > 1 {
        return wrong("[[server]]".into(), "two with role = \"meta\"".into(), "this version has one");
    }
    let ring = config.io_servers().count() as u16;
    if let Err(error) = Layout::new(config.cluster.strip_bytes, 0, ring, ring) {
        return wrong("cluster.strip_bytes".into(), error.to_string(), "262144 is a good value");
    }
    if config.cluster.small_file_bytes > weft_meta::SMALL_FILE_BYTES_MAX {
        let reason = format!("it is {}", config.cluster.small_file_bytes);
        return wrong("cluster.small_file_bytes".into(), reason, "16384 is a good value, 65536 the greatest");
    }
    if config.cluster.server_count > ring {
        let reason = format!("{} of {ring} I/O servers", config.cluster.server_count);
        return wrong("cluster.server_count".into(), reason, "0 means all");
    }
    if config.cluster.data_scrub_bytes_per_s < 1 << 20 {
        let reason = format!("it is {}", config.cluster.data_scrub_bytes_per_s);
        let cure = "at least 1048576; data_scrub_interval_s = 0 means no scrub at all";
        return wrong("cluster.data_scrub_bytes_per_s".into(), reason, cure);
    }
    if config.cluster.scrub_interval_s == 0 {
        return wrong("cluster.scrub_interval_s".into(), "it is 0".into(), "3600 scans once an hour");
    }
    if let Some(Err(error)) = config.cluster.log.as_ref().map(|levels| levels.parse::<weft_log::Filter>()) {
        return wrong("cluster.log".into(), error.to_string(), "\"info\" is the default");
    }
    check_members(config)?;
    config.gateways.iter().try_for_each(|gateway| check_gateway(config, gateway))?;
    config.exports.iter().try_for_each(|export| check_export(config, export))
}

/// Whether names and addresses are those of one process each.
fn check_members(config: &ClusterConfig) -> Result<(), ConfigError> {
    let wrong = |key: String, reason: String, cure: &str| {
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    let mut names = HashSet::new();
    let (mut addresses, mut rdma_addresses) = (HashSet::new(), HashSet::new());
    for member in config.members() {
        let (kind, name) = (kind_of(member), member.name());
        if !names.insert(name) {
            return wrong(format!("{kind} {name:?}"), "the name is used twice".into(), "rename one");
        }
        let for_rdma = match member {
            Member::Server(server) => {
                check_server(config, server)?;
                server.addresses_for_rdma()
            }
            Member::Gateway(_) => &[],
        };
        // RDMA has ports of its own: the same address may be in both.
        for (key, given, used) in [
            ("addresses", member.addresses(), &mut addresses),
            ("rdma_addresses", for_rdma, &mut rdma_addresses),
        ] {
            if let Some(address) = given.iter().find(|address| !used.insert(address.as_str())) {
                let key = format!("{kind} {name:?}: {key}");
                return wrong(key, format!("{address} is used twice"), "give each server its own port");
            }
        }
    }
    Ok(())
}

fn check_server(config: &ClusterConfig, server: &ServerConfig) -> Result<(), ConfigError> {
    let wrong = |key: &str, reason: String, cure: &str| {
        let key = format!("server {:?}: {key}", server.name);
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    check_name_and_addresses(config, Member::Server(server))?;
    if let Some(address) = server.rdma_addresses.iter().find(|address| !is_host_and_port(address)) {
        let reason = format!("{address:?} is not host:port");
        return wrong("rdma_addresses", reason, "write it like \"node1:7401\"");
    }
    if let Some(address) = server.metrics.as_ref().filter(|address| !is_host_and_port(address)) {
        let reason = format!("{address:?} is not host:port");
        return wrong("metrics", reason, "write it like \"127.0.0.1:9400\"");
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

fn kind_of(member: Member<'_>) -> &'static str {
    match member {
        Member::Server(_) => "server",
        Member::Gateway(_) => "gateway",
    }
}

fn check_name_and_addresses(config: &ClusterConfig, member: Member<'_>) -> Result<(), ConfigError> {
    let (kind, name) = (kind_of(member), member.name());
    let wrong = |key: &str, reason: String, cure: &str| {
        let key = format!("{kind} {name:?}: {key}");
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        let reason = "not 1 to 64 letters, digits, '-', '_' or '.'".into();
        return wrong("name", reason, "choose a name like io0");
    }
    if member.addresses().is_empty() {
        return wrong("addresses", "there is none".into(), "give one like \"node1:7401\"");
    }
    match member.addresses().iter().find(|address| !is_host_and_port(address)) {
        Some(address) => {
            wrong("addresses", format!("{address:?} is not host:port"), "write it like \"node1:7401\"")
        }
        None => Ok(()),
    }
}

fn check_gateway(config: &ClusterConfig, gateway: &GatewayConfig) -> Result<(), ConfigError> {
    check_name_and_addresses(config, Member::Gateway(gateway))?;
    let wrong = |key: &str, reason: String, cure: &str| {
        let key = format!("gateway {:?}: {key}", gateway.name);
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    if let Some(address) = gateway.rdma_addresses.iter().find(|address| !is_host_and_port(address)) {
        return wrong(
            "rdma_addresses",
            format!("{address:?} is not host:port"),
            "write it like \"node1:20049\"",
        );
    }
    let (design, memory) = (gateway.rdma_design, gateway.rdma_memory);
    if memory == NfsRdmaMemory::Windows && design == NfsRdmaDesign::ReadWrite {
        let reason = "windows give keys to clients, who get none with rdma_design \"read-write\"".into();
        return wrong("rdma_memory", reason, "take \"pool\", \"each\" or \"cached\"");
    }
    let is_chosen = (design, memory) != Default::default();
    if is_chosen && gateway.rdma_addresses.is_empty() {
        let key = if design == NfsRdmaDesign::ReadRead { "rdma_design" } else { "rdma_memory" };
        return wrong(key, "there are no rdma_addresses".into(), "give them, or leave it out");
    }
    Ok(())
}

fn check_export(config: &ClusterConfig, export: &ExportConfig) -> Result<(), ConfigError> {
    let wrong = |key: &str, reason: String, cure: &str| {
        let key = format!("export {:?}: {key}", export.path);
        Err(ConfigError::Value { path: config.path.clone(), key, reason, cure: cure.to_owned() })
    };
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let below_root = export.path.strip_prefix('/');
    if !below_root.is_some_and(|path| path.is_empty() || path.split('/').all(is_plain)) {
        let reason = "not a path from the root, without \"..\" and a \"/\" at its end".into();
        return wrong("path", reason, "write it like \"/projects\"");
    }
    if config.exports.iter().filter(|other| other.path == export.path).count() > 1 {
        return wrong("path", "it is exported twice".into(), "write all its clients in one [[export]]");
    }
    if export.clients.is_empty() {
        return wrong(
            "clients",
            "there is none".into(),
            "write networks like \"10.0.0.0/8\", or \"*\" for all",
        );
    }
    match export.clients.iter().find(|client| !is_client(client)) {
        Some(client) => wrong(
            "clients",
            format!("{client:?} is no address, network or host name"),
            "write it like \"10.0.0.7\", \"10.0.0.0/8\", \"login1\" or \"*\"",
        ),
        None => Ok(()),
    }
}

/// Whether this is an address, a network, a host name or `*`.
fn is_client(client: &str) -> bool {
    if let Some((address, bits)) = client.split_once('/') {
        let most = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        return bits.parse::<u8>().is_ok_and(|bits| bits <= most);
    }
    let of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    client == "*" || client.parse::<IpAddr>().is_ok() || (!client.is_empty() && client.chars().all(of_name))
}

/// Whether an address is like "node1:7401".
fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    parts.and_then(|(_, port)| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
}
