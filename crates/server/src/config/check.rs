//! Whether the values of a cluster file make a cluster.

use super::cluster::*;
use super::error::ConfigError;
use std::collections::HashSet;
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
    let mut names = HashSet::new();
    let (mut addresses, mut rdma_addresses) = (HashSet::new(), HashSet::new());
    for server in &config.servers {
        if !names.insert(server.name.as_str()) {
            return wrong(format!("server {:?}", server.name), "the name is used twice".into(), "rename one");
        }
        check_server(config, server)?;
        // RDMA has ports of its own: the same address may be in both.
        for (key, given, used) in [
            ("addresses", server.addresses.as_slice(), &mut addresses),
            ("rdma_addresses", server.addresses_for_rdma(), &mut rdma_addresses),
        ] {
            if let Some(address) = given.iter().find(|address| !used.insert(address.as_str())) {
                let key = format!("server {:?}: {key}", server.name);
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
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if server.name.is_empty() || server.name.len() > 64 || !server.name.chars().all(plain) {
        let reason = "not 1 to 64 letters, digits, '-', '_' or '.'".into();
        return wrong("name", reason, "choose a name like io0");
    }
    if server.addresses.is_empty() {
        return wrong("addresses", "there is none".into(), "give one like \"node1:7401\"");
    }
    for (key, addresses) in [("addresses", &server.addresses), ("rdma_addresses", &server.rdma_addresses)] {
        if let Some(address) = addresses.iter().find(|address| !is_host_and_port(address)) {
            let reason = format!("{address:?} is not host:port");
            return wrong(key, reason, "write it like \"node1:7401\"");
        }
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

/// Whether an address is like "node1:7401".
fn is_host_and_port(address: &str) -> bool {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    parts.and_then(|(_, port)| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
}
