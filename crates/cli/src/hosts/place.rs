//! Which servers each host gets, at which addresses, and the cluster file that says so.

use super::names::{Host, Hosts};
use super::probe::{self, Facts};
use super::record::Placed;
use crate::commands::version;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use weft_cli_common::launch::{CLUSTER_FILE, PORT_DEFAULT};
use weft_server::config::STRIP_BYTES_DEFAULT;
use weft_server::{ClusterConfig, Generate, ServerConfig, SyncMode};

/// What is asked for.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The directory here and on the hosts.
    pub dir: PathBuf,
    /// The hosts; `None`: those of the cluster that is there.
    pub hosts: Option<Hosts>,
    /// The number of I/O servers; `None`: one on each host.
    pub io_servers: Option<u16>,
    /// The metadata server's port; I/O servers have the following ones of their hosts.
    pub port: Option<u16>,
    /// When writes are acknowledged.
    pub sync: SyncMode,
    /// The port for metrics of the first server on each host.
    pub metrics: Option<u16>,
    /// Where the file system is to be mounted on each host.
    pub mount: Option<PathBuf>,
    /// The command that runs another one on a host, in words.
    pub ssh: Vec<String>,
    /// Start only these servers.
    pub only: Vec<String>,
}

/// The servers of the host `at`, of so many hosts: the first one has the metadata server, and I/O servers are dealt out in turn.
pub fn dealt(at: usize, hosts: usize, io_servers: usize) -> Vec<String> {
    let meta = (at == 0).then(|| "meta0".to_string()).into_iter();
    meta.chain((at..io_servers).step_by(hosts).map(|number| format!("io{number}"))).collect()
}

/// Where each host is reached, what program it runs, and the servers that it gets.
///
/// # Errors
/// A host cannot have what is wanted.
pub fn place(
    wanted: &Wanted,
    hosts: &[Host],
    facts: &[Facts],
    dir: &Path,
    servers: impl Fn(usize) -> Vec<String>,
) -> Result<Vec<Placed>> {
    let mine = this_machine();
    let addresses = probe::addresses(&facts.iter().collect::<Vec<_>>());
    let mut placed: Vec<Placed> = Vec::with_capacity(hosts.len());
    for (at, ((host, facts), found)) in hosts.iter().zip(facts).zip(addresses).enumerate() {
        let name = &host.name;
        let on_host = dir.join(name);
        if facts.cluster_id.is_some() {
            bail!("{name}: {} has a cluster already; choose another --dir", on_host.display());
        }
        if facts.is_occupied {
            bail!("{name}: {} is not empty; choose another --dir", on_host.display());
        }
        if wanted.mount.is_some()
            && let Some(why) = &facts.no_mount
        {
            bail!("{name}: it cannot mount a file system: {why}");
        }
        let has_this = |(_, version): &&(String, String)| *version == version::line();
        let program = match facts.programs.iter().find(has_this) {
            Some((path, _)) => path.clone(),
            None if facts.machine == mine => on_host.join("bin/weft").display().to_string(),
            None => bail!(
                "{name} is {} and this host {mine}, so the program cannot be copied; install weft {} there",
                facts.machine,
                env!("CARGO_PKG_VERSION")
            ),
        };
        let Some(address) = host.address.clone().or(found) else {
            bail!("{name}: it cannot be told where clients reach it; write {name}=ADDRESS in --hosts")
        };
        if let Some(other) = placed.iter().find(|other| other.address == address) {
            bail!(
                "{} and {name} are both reached at {address}; write NAME=ADDRESS in --hosts for each",
                other.name
            );
        }
        placed.push(Placed { name: name.clone(), address, program, servers: servers(at), is_new: true });
    }
    Ok(placed)
}

/// `uname -sm` of this host.
fn this_machine() -> String {
    format!("Linux {}", std::env::consts::ARCH)
}

/// The port of the metadata server.
///
/// # Errors
/// The one that is asked for, or a following one, is taken on a host.
pub fn choose_port(wanted: &Wanted, facts: &[Facts]) -> Result<u16> {
    let io_servers = wanted.io_servers.map_or(facts.len(), usize::from);
    let count = 1 + u16::try_from(io_servers.div_ceil(facts.len())).context("too many I/O servers")?;
    let first = wanted.port.unwrap_or(PORT_DEFAULT);
    let free = probe::free_ports(facts.iter(), first, count);
    match free {
        Some(port) if wanted.port.is_none() || port == first => Ok(port),
        _ => bail!(
            "ports {first} to {} are not free on all hosts; choose another --port",
            first.saturating_add(count - 1)
        ),
    }
}

/// The cluster file.
///
/// # Errors
/// The wishes make no cluster.
pub fn cluster_file(wanted: &Wanted, placed: &[Placed], port: u16, dir: &Path) -> Result<ClusterConfig> {
    let io_servers = placed.iter().map(|host| host.servers.len()).sum::<usize>() - 1;
    let path = dir.join(CLUSTER_FILE);
    let mut config = ClusterConfig::generate(&Generate {
        path: path.clone(),
        host: "localhost".into(),
        port: 1,
        io_servers: u16::try_from(io_servers).context("too many I/O servers")?,
        sync: wanted.sync,
        strip_bytes: STRIP_BYTES_DEFAULT,
    })?;
    for host in placed {
        let ip = bracketed(&host.address);
        // The metadata server's port is kept for it on every host, so that I/O servers have the same ones on all.
        let mut io_port = port;
        for (name, at) in host.servers.iter().zip(0u16..) {
            let server = config.servers.iter_mut().find(|server| server.name == *name);
            let server = server.with_context(|| format!("no server {name} was generated"))?;
            let port = match name.starts_with("io") {
                true => {
                    io_port = io_port.checked_add(1).context("ports beyond 65535; choose a lower --port")?;
                    io_port
                }
                false => port,
            };
            server.addresses = vec![format!("{ip}:{port}")];
            server.threads = None;
            server.metrics = wanted.metrics.map(|first| format!("{ip}:{}", first.saturating_add(at)));
        }
    }
    Ok(ClusterConfig::parse(&config.to_toml(), &path)?)
}

/// The I/O server of a host by which the cluster grows: like the last one, at the first free port from that of io0 on.
///
/// # Errors
/// The host has no free port.
pub fn grown(config: &ClusterConfig, host: &Placed, facts: &Facts) -> Result<ServerConfig> {
    let first = config.io_servers().next().context("the cluster file has no I/O server")?;
    let port =
        first.addresses[0].rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(PORT_DEFAULT);
    let port = probe::free_ports([facts].into_iter(), port, 1);
    let port = port.with_context(|| format!("{} has no free port", host.name))?;
    let ip = bracketed(&host.address);
    let metrics_port = first.metrics.as_ref().and_then(|address| address.rsplit_once(':'));
    let name = host.servers.first().context("a host by which it grows has one server")?;
    Ok(ServerConfig {
        name: name.clone(),
        directory: name.into(),
        addresses: vec![format!("{ip}:{port}")],
        socket: None,
        rdma_addresses: Vec::new(),
        metrics: metrics_port.map(|(_, port)| format!("{ip}:{port}")),
        ..first.clone()
    })
}

/// An address as it stands before a port.
fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &str) -> Vec<Host> {
        super::super::parse(names).unwrap().0
    }

    fn facts(count: usize) -> Vec<Facts> {
        let one = |number: usize| Facts {
            machine: this_machine(),
            programs: vec![("weft".into(), version::line())],
            ssh_ends: Some(("10.0.0.100".into(), format!("10.0.0.{}", number + 1))),
            ..Facts::default()
        };
        (0..count).map(one).collect()
    }

    fn servers(names: &str, io: Option<u16>) -> Vec<String> {
        let hosts = hosts(names);
        let wanted = Wanted { io_servers: io, ..Wanted::default() };
        let io_servers = io.map_or(hosts.len(), usize::from);
        let deal = |at| dealt(at, hosts.len(), io_servers);
        let placed = place(&wanted, &hosts, &facts(hosts.len()), Path::new("/d"), deal).unwrap();
        placed.into_iter().map(|host| host.servers.join(" ")).collect()
    }

    #[test]
    fn servers_are_dealt_out_to_hosts() {
        assert_eq!(servers("a,b,c", None), ["meta0 io0", "io1", "io2"]);
        assert_eq!(servers("a,b", Some(5)), ["meta0 io0 io2 io4", "io1 io3"]);
        assert_eq!(servers("a,b,c", Some(2)), ["meta0 io0", "io1", ""]);
    }

    #[test]
    fn the_cluster_file_says_where_each_server_is() {
        let wanted = Wanted { io_servers: Some(4), metrics: Some(9400), ..Wanted::default() };
        let hosts = hosts("a,b=fd00::2");
        let placed = place(&wanted, &hosts, &facts(2), Path::new("/d"), |at| dealt(at, 2, 4)).unwrap();
        let config = cluster_file(&wanted, &placed, 7400, Path::new("/d")).unwrap();
        let found: Vec<_> = config
            .servers
            .iter()
            .map(|server| {
                format!("{} {} {}", server.name, server.addresses[0], server.metrics.as_deref().unwrap())
            })
            .collect();
        assert_eq!(
            found,
            [
                "meta0 10.0.0.1:7400 10.0.0.1:9400",
                "io0 10.0.0.1:7401 10.0.0.1:9401",
                "io1 [fd00::2]:7401 [fd00::2]:9400",
                "io2 10.0.0.1:7402 10.0.0.1:9402",
                "io3 [fd00::2]:7402 [fd00::2]:9401",
            ]
        );
        assert!(config.servers.iter().all(|server| server.threads.is_none()));

        let host = Placed { servers: vec!["io4".into()], address: "10.0.0.9".into(), ..placed[0].clone() };
        let taken = Facts { taken_ports: [7401].into(), ..Facts::default() };
        let server = grown(&config, &host, &taken).unwrap();
        assert_eq!(server.addresses, ["10.0.0.9:7402"]);
        assert_eq!(server.metrics.as_deref(), Some("10.0.0.9:9401"));
    }

    #[test]
    fn what_cannot_work_is_said_before_anything_is_done() {
        let hosts = hosts("a,b");
        let wanted = Wanted { mount: Some("/mnt".into()), ..Wanted::default() };
        let place = |facts: &[Facts]| {
            place(&wanted, &hosts, facts, Path::new("/d"), |_| Vec::new()).unwrap_err().to_string()
        };
        let mut no_fuse = facts(2);
        no_fuse[1].no_mount = Some("fusermount3 is missing".into());
        assert!(place(&no_fuse).contains("b: it cannot mount a file system: fusermount3 is missing"));
        let mut arm = facts(2);
        arm[1] = Facts { machine: "Linux armv9".into(), programs: Vec::new(), ..arm[1].clone() };
        assert!(place(&arm).contains("b is Linux armv9"));
        let mut same = facts(2);
        same[1].ssh_ends = same[0].ssh_ends.clone();
        assert!(place(&same).contains("a and b are both reached at 10.0.0.1"));
        let mut other = facts(2);
        other[0].cluster_id = Some("7".into());
        assert!(place(&other).contains("a: /d/a has a cluster already"));
        let mut nowhere = facts(2);
        nowhere[1].ssh_ends = None;
        nowhere[0].ssh_ends = None;
        assert!(place(&nowhere).contains("a=ADDRESS"));
    }

    #[test]
    fn ports_that_are_asked_for_must_be_free() {
        let mut facts = facts(2);
        facts[1].taken_ports = [7401].into();
        assert_eq!(choose_port(&Wanted::default(), &facts).unwrap(), 7402);
        let wanted = Wanted { port: Some(7400), ..Wanted::default() };
        assert!(choose_port(&wanted, &facts).unwrap_err().to_string().contains("7400 to 7401"));
    }
}
