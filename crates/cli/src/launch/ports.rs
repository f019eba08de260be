//! Addresses of a cluster on this machine: one host, consecutive ports.

use anyhow::{Context, Result, bail};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};
use weft_server::{ClusterConfig, ServerRole};

/// Held from the choice of ports until servers listen on them, so that two clusters that start at the same time do not choose the
/// same. It is an abstract Unix socket's name, which one process of a network namespace can have, as with the ports themselves, and
/// which is free when that process ends.
pub struct PortLock {
    _name: UnixListener,
}

impl PortLock {
    /// Waits for it.
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
                Err(_) => bail!("interrupted while another `weft up` started its servers"),
            }
        }
    }
}

/// Gives the servers of `config` the host and ports that are asked for. Where no port is asked for and one of the file's
/// is taken, the next free range is used.
pub fn assign(config: &mut ClusterConfig, host: Option<&str>, port: Option<u16>) -> Result<()> {
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

fn meta_address(config: &ClusterConfig) -> Result<(String, u16)> {
    let address = &config.meta_servers().next().expect("a checked file has one").addresses[0];
    match address.rsplit_once(':') {
        Some((host, port)) => Ok((host.to_string(), port.parse()?)),
        None => bail!("{address} is not host:port"),
    }
}

fn free_range(host: &str, wanted: u16, count: u16) -> Result<u16> {
    let mut first = wanted;
    while first.checked_add(count).is_some() {
        match taken_port(host, first, count) {
            None => return Ok(first),
            Some(taken) => first = taken + 1,
        }
    }
    bail!("{host} has no {count} free ports in a row from {wanted} on; give another --port")
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
    fn an_address_that_no_client_can_use_is_refused() {
        assert!(
            assign(&mut cluster(7400), Some("0.0.0.0"), None).unwrap_err().to_string().contains("--bind")
        );
    }
}
