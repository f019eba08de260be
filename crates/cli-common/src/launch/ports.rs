//! Addresses of a cluster on this machine: one host, consecutive ports.

use anyhow::{Context, Result, bail};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};
use weft_server::config::Member;
use weft_server::{ClusterConfig, ServerRole};

/// Held from the choice of ports until servers listen on them, so that two clusters that start at the same
/// time do not choose the same ports. It is the name of an abstract Unix socket, which only one process of a
/// network namespace can have, as with ports. It is free when the process ends.
pub struct PortLock {
    _name: UnixListener,
}

impl PortLock {
    /// Waits for the lock.
    pub fn take(timeout: Duration, pause: &mut dyn FnMut(Duration) -> bool) -> Result<PortLock> {
        let name = SocketAddr::from_abstract_name(b"weft up chooses ports")?;
        let deadline = Instant::now() + timeout;
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(listener) => return Ok(PortLock { _name: listener }),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("another `weft up` takes too long to start its servers");
                }
                Err(_) if pause(Duration::from_millis(5)) => {}
                Err(_) => bail!("interrupted while another `weft up` was starting its servers"),
            }
        }
    }
}

/// Assigns the requested host and ports to the servers of `config`. Without a request the file's addresses
/// stay if they are free. If one of them is in use, the next free range is used.
pub fn assign(config: &mut ClusterConfig, host: Option<&str>, port: Option<u16>) -> Result<()> {
    let mut addresses = config.servers.iter().flat_map(|server| &server.addresses);
    if host.is_none() && port.is_none() && addresses.all(|address| TcpListener::bind(address).is_ok()) {
        return Ok(());
    }
    let (file_host, file_port) = meta_address(config)?;
    let host = host.unwrap_or(&file_host).to_string();
    if matches!(host.as_str(), "0.0.0.0" | "::" | "[::]" | "*") {
        bail!(
            "--bind {host}: give the address or name by which clients reach this machine, such as 192.168.1.5"
        );
    }
    let count = config.servers.len() as u16;
    let first = match port {
        Some(port) => {
            if let Some(taken) = taken_port(&host, port, count) {
                bail!(
                    "port {taken} of {host} is in use; the cluster needs {port} to {}; choose another --port",
                    port + count - 1
                );
            }
            port
        }
        None => free_range(&host, file_port, count)?,
    };
    let mut next_io = first;
    for server in &mut config.servers {
        let port = match server.role {
            ServerRole::Meta => first,
            ServerRole::Io => {
                next_io += 1;
                next_io
            }
        };
        server.addresses = vec![format!("{host}:{port}")];
    }
    Ok(())
}

/// An address for an additional server, on the metadata server's host: the first free port after those of the
/// cluster.
pub fn free_address(config: &ClusterConfig) -> Result<String> {
    let (host, _) = meta_address(config)?;
    let port_of = |address: &String| address.rsplit_once(':')?.1.parse::<u16>().ok();
    let greatest = config.servers.iter().flat_map(|server| &server.addresses).filter_map(port_of).max();
    let wanted = greatest
        .and_then(|port| port.checked_add(1))
        .context("there is no free port after the cluster's ports; give --address")?;
    Ok(format!("{host}:{}", free_range(&host, wanted, 1)?))
}

/// Whether the addresses of a server or gateway are those of another machine.
pub fn is_elsewhere(member: Member<'_>) -> bool {
    let is_here = |address: &String| {
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        TcpListener::bind((bare, 0)).is_ok()
    };
    !member.addresses().iter().any(is_here)
}

/// Refuses servers and gateways of other machines.
pub fn check_here<'a>(members: impl Iterator<Item = Member<'a>>) -> Result<()> {
    let names: Vec<_> = members
        .filter(|member| is_elsewhere(*member))
        .map(|member| format!("{} ({})", member.name(), member.addresses()[0]))
        .collect();
    match names.as_slice() {
        [] => Ok(()),
        names => bail!(
            "not at an address of this machine: {}; name the servers of this machine with --only SERVER",
            names.join(", ")
        ),
    }
}

fn meta_address(config: &ClusterConfig) -> Result<(String, u16)> {
    let address = &config.meta_servers().next().expect("a checked file has one").addresses[0];
    match address.rsplit_once(':') {
        Some((host, port)) => Ok((host.to_string(), port.parse()?)),
        None => bail!("{address} is not host:port"),
    }
}

/// The first free port from `wanted` on.
pub(super) fn free_port(host: &str, wanted: u16) -> Result<u16> {
    free_range(host, wanted, 1)
}

fn free_range(host: &str, wanted: u16, count: u16) -> Result<u16> {
    let mut first = wanted;
    while first.checked_add(count).is_some() {
        match taken_port(host, first, count) {
            None => return Ok(first),
            Some(taken) => first = taken + 1,
        }
    }
    bail!("{host} has no {count} consecutive free ports from {wanted} on; choose another --port")
}

fn taken_port(host: &str, first: u16, count: u16) -> Option<u16> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    (first..first.saturating_add(count)).find(|port| TcpListener::bind((bare, *port)).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_server::{Generate, SyncMode};

    fn cluster(port: u16) -> ClusterConfig {
        ClusterConfig::generate(&Generate {
            path: "/c/weft.toml".into(),
            host: "127.0.0.1".into(),
            port,
            io_servers: 2,
            sync: SyncMode::Nosync,
            strip_bytes: weft_server::config::STRIP_BYTES_DEFAULT,
        })
        .unwrap()
    }

    #[test]
    fn a_busy_port_moves_the_cluster_unless_it_was_asked_for() {
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = busy.local_addr().unwrap().port();
        let mut config = cluster(port.saturating_sub(1).min(60000));
        let asked =
            config.meta_servers().next().unwrap().addresses[0].rsplit_once(':').unwrap().1.parse().unwrap();
        if (asked..asked + 3).contains(&port) {
            assert!(assign(&mut config, None, Some(asked)).unwrap_err().to_string().contains("in use"));
            assign(&mut config, None, None).unwrap();
            let moved: u16 = meta_address(&config).unwrap().1;
            assert!(moved > port);
            assert!(config.servers[2].addresses[0].ends_with(&(moved + 2).to_string()));
        }
    }

    #[test]
    fn servers_of_other_machines_are_known() {
        let mut config = cluster(7400);
        assert!(check_here(config.members()).is_ok());
        // An address of TEST-NET-1 (RFC 5737), which no machine has.
        config.servers[1].addresses = vec!["192.0.2.1:7401".into()];
        let error = check_here(config.members()).unwrap_err().to_string();
        assert!(error.contains(&format!("{} (192.0.2.1:7401)", config.servers[1].name)), "{error}");
        assert!(!error.contains("127.0.0.1"), "{error}");
    }

    #[test]
    fn addresses_of_the_file_stay_where_they_are_free() {
        let mut config = cluster(7400);
        // Ports out of order, as in a file that was written by hand.
        let free: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> =
            free.iter().rev().map(|free| free.local_addr().unwrap().to_string()).collect();
        for (server, address) in config.servers.iter_mut().zip(&addresses) {
            server.addresses = vec![address.clone()];
        }
        drop(free);
        assign(&mut config, None, None).unwrap();
        let now: Vec<_> = config.servers.iter().map(|server| server.addresses[0].clone()).collect();
        assert_eq!(now, addresses);
    }

    #[test]
    fn an_address_that_no_client_can_use_is_refused() {
        assert!(
            assign(&mut cluster(7400), Some("0.0.0.0"), None).unwrap_err().to_string().contains("--bind")
        );
    }
}
