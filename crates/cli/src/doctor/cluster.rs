//! A cluster file, and those of its servers that are on this host.

use super::{Findings, Level};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_cli_common::launch::is_elsewhere;
use weft_cli_common::size::format_bytes;
use weft_server::config::Member;
use weft_server::{CLUSTER_KEY_FILE, ClusterConfig, ServerConfig};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
/// How long a port may take to say what it is.
const PORT_TIME: Duration = Duration::from_secs(1);

/// What is at a server's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Nothing listens, and the server could.
    Free,
    /// Something listens that says nothing to a stranger, as Weft does.
    Taken,
    /// Something else listens: it speaks first, or answers HTTP.
    Foreign,
}

/// A server that is on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its name.
    pub name: String,
    /// Its first address.
    pub address: String,
    /// Where its storage is.
    pub directory: PathBuf,
    /// Whether the storage is there, or why that cannot be told.
    pub storage: Result<bool, String>,
    /// Who owns the directory.
    pub owner: Option<u32>,
    /// Which file system it is on.
    pub device: Option<u64>,
    /// Whether that is in memory.
    pub is_volatile: bool,
    /// What is free on it, and its size.
    pub space: Option<(u64, u64)>,
    /// What is at its address.
    pub port: Port,
}

/// What is so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFacts {
    /// The file.
    pub file: PathBuf,
    /// Why it cannot be used.
    pub error: Option<String>,
    /// Why the cluster's key cannot be used.
    pub key_error: Option<String>,
    /// Addresses whose names do not resolve, and why.
    pub unresolved: Vec<(String, String)>,
    /// Who looks.
    pub uid: u32,
    /// Servers on this host.
    pub servers: Vec<ServerFacts>,
    /// Servers on others.
    pub elsewhere: usize,
}

impl ClusterFacts {
    /// Looks at a cluster file, for one server or for all of this host.
    pub fn gather(file: &Path, name: Option<&str>) -> ClusterFacts {
        // SAFETY: always succeeds.
        let uid = unsafe { libc::geteuid() };
        let mut facts = ClusterFacts {
            file: file.to_owned(),
            error: None,
            key_error: None,
            unresolved: Vec::new(),
            uid,
            servers: Vec::new(),
            elsewhere: 0,
        };
        let config = match ClusterConfig::load(file) {
            Ok(config) => config,
            Err(error) => return ClusterFacts { error: Some(error.to_string()), ..facts },
        };
        let key = config.resolve(CLUSTER_KEY_FILE.as_ref());
        facts.key_error = weft_server::load_cluster_keys(&key).err().map(|error| error.to_string());
        for server in config.servers.iter().filter(|server| name.is_none_or(|name| name == server.name)) {
            for address in &server.addresses {
                if let Err(error) = address.to_socket_addrs() {
                    facts.unresolved.push((address.clone(), error.to_string()));
                }
            }
            match is_elsewhere(Member::Server(server)) && name.is_none() {
                true => facts.elsewhere += 1,
                false => facts.servers.push(server_facts(&config, server)),
            }
        }
        if let Some(name) = name.filter(|_| facts.servers.is_empty()) {
            facts.error = Some(format!("it has no server {name}"));
        }
        facts
    }

    /// What that means.
    pub fn judge(&self, findings: &mut Findings) {
        let file = self.file.display();
        if let Some(error) = &self.error {
            return findings.add(
                Level::Problem,
                "cluster-file",
                format!("{file} cannot be used: {error}"),
                "correct it: weft help cluster-file",
            );
        }
        findings.ok(
            "cluster-file",
            format!("{file}: {} servers here, {} elsewhere", self.servers.len(), self.elsewhere),
        );
        match &self.key_error {
            None => findings.ok("cluster-key", "the cluster's key is there, and only its owner can read it"),
            Some(error) => findings.add(
                Level::Problem,
                "cluster-key",
                error.clone(),
                "copy cluster.key from another server's host, chmod 600, chown to the user that servers run as",
            ),
        }
        match self.unresolved.is_empty() {
            true => findings.ok("names", "the names of all addresses resolve"),
            false => {
                for (address, error) in &self.unresolved {
                    findings.add(
                        Level::Problem,
                        "names",
                        format!("{address} does not resolve: {error}"),
                        "correct the name in the cluster file, in DNS or in /etc/hosts, on every host",
                    );
                }
            }
        }
        self.servers.iter().for_each(|server| self.judge_server(server, findings));
        let mut on_device: HashMap<u64, Vec<&str>> = HashMap::new();
        for server in &self.servers {
            server
                .device
                .into_iter()
                .for_each(|device| on_device.entry(device).or_default().push(&server.name));
        }
        let mut shared: Vec<_> = on_device.into_values().filter(|names| names.len() > 1).collect();
        shared.sort();
        for names in shared {
            findings.add(
                Level::Note,
                "disk-shared",
                format!("{} have their storage on one file system", names.join(", ")),
                "for speed and safety give each a disk of its own; for a trial it is fine",
            );
        }
    }

    fn judge_server(&self, server: &ServerFacts, findings: &mut Findings) {
        let (name, directory) = (&server.name, server.directory.display());
        match &server.storage {
            Ok(true) => findings.ok("storage", format!("{name}: its storage is in {directory}")),
            Ok(false) => findings.add(
                Level::Problem,
                "storage",
                format!("{name}: {directory} has no storage. A disk that is not mounted looks like this"),
                format!("mount the disk; or make the storage of a new server: weft serve --config {} --name {name} --format", self.file.display()),
            ),
            Err(error) => findings.add(
                Level::Problem,
                "storage",
                format!("{name}: {error}"),
                "weft help recovery",
            ),
        }
        if let Some(owner) = server.owner.filter(|owner| *owner != self.uid && self.uid != 0) {
            findings.add(
                Level::Warning,
                "storage-owner",
                format!("{name}: {directory} belongs to user {owner}, not to {}", self.uid),
                "look as the user that the server runs as, or chown -R it to that user",
            );
        }
        if server.is_volatile {
            findings.add(
                Level::Note,
                "storage-volatile",
                format!("{name}: {directory} is in memory: what it has is gone when the host restarts"),
                "use a disk for what is to stay",
            );
        }
        if let Some((free, all)) = server.space {
            judge_space(name, free, all, findings);
        }
        match server.port {
            Port::Taken => findings.ok("port", format!("{name}: {} is served", server.address)),
            Port::Free => findings.add(
                Level::Problem,
                "port",
                format!("{name}: nothing listens at {}", server.address),
                format!(
                    "start it: weft serve --config {} --name {name}, or systemctl start weft@{name}",
                    self.file.display()
                ),
            ),
            Port::Foreign => findings.add(
                Level::Problem,
                "port",
                format!("{name}: what listens at {} is not Weft", server.address),
                "find it with ss -ltnp, and stop it or give the server another port (weft server move)",
            ),
        }
    }
}

/// What the space of a disk means, which these servers share, if they are several.
pub(super) fn judge_space(servers: &str, free: u64, all: u64, findings: &mut Findings) {
    let percent = free.saturating_mul(100) / all.max(1);
    let (left, size) = (format_bytes(free), format_bytes(all));
    let found = format!("the disk of {servers} has {left} of {size} free ({percent} %)");
    match percent {
        0..=1 => findings.add(
            Level::Problem,
            "disk-space",
            format!("{found}: writing fails when it is full"),
            "remove files (weft du shows where they are), or add a server with a disk of its own (weft server add)",
        ),
        2..=9 => findings.add(
            Level::Warning,
            "disk-space",
            found,
            "remove files (weft du shows where they are), or add a server with a disk of its own (weft server add)",
        ),
        _ => findings.ok("disk-space", found),
    }
}

fn server_facts(config: &ClusterConfig, server: &ServerConfig) -> ServerFacts {
    let directory = config.directory_of(server);
    let meta = std::fs::metadata(&directory).ok();
    ServerFacts {
        name: server.name.clone(),
        address: server.addresses[0].clone(),
        storage: weft_server::has_storage(config, &server.name).map_err(|error| error.to_string()),
        owner: meta.as_ref().map(MetadataExt::uid),
        device: meta.as_ref().map(MetadataExt::dev),
        is_volatile: is_in_memory(&directory),
        space: weft_host::space_of(&directory).map(|space| (space.available_bytes, space.bytes)),
        port: look_at_port(&server.addresses[0]),
        directory,
    }
}

fn is_in_memory(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: all-zero bytes are a valid `statfs`.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a live C string, `stat` is live and writable.
    let result = unsafe { libc::statfs(path.as_ptr(), &mut stat) };
    result == 0 && [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(stat.f_type as i64))
}

/// Weft waits for a greeting, and ends a connection that sends nonsense without a word.
fn look_at_port(address: &str) -> Port {
    let Some(resolved) = address.to_socket_addrs().ok().and_then(|mut all| all.next()) else {
        return Port::Free;
    };
    let Ok(mut peer) = TcpStream::connect_timeout(&resolved, PORT_TIME) else {
        return if TcpListener::bind(resolved).is_ok() { Port::Free } else { Port::Foreign };
    };
    let _ = peer.set_read_timeout(Some(PORT_TIME / 4));
    let mut word = [0; 16];
    if peer.read(&mut word).is_ok_and(|bytes| bytes > 0) {
        return Port::Foreign;
    }
    let _ = peer.set_read_timeout(Some(PORT_TIME));
    let _ = peer.write_all(b"GET / HTTP/1.0\r\n\r\n");
    let answered = peer.read(&mut word).unwrap_or(0);
    if answered > 0 && !word.starts_with(b"WEFT") { Port::Foreign } else { Port::Taken }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerFacts {
        ServerFacts {
            name: "io0".into(),
            address: "127.0.0.1:7401".into(),
            directory: "/srv/io0".into(),
            storage: Ok(true),
            owner: Some(5),
            device: Some(1),
            is_volatile: false,
            space: Some((50, 100)),
            port: Port::Taken,
        }
    }

    fn facts(servers: Vec<ServerFacts>) -> ClusterFacts {
        let file = "/etc/weft/weft.toml".into();
        ClusterFacts {
            file,
            error: None,
            key_error: None,
            unresolved: Vec::new(),
            uid: 5,
            servers,
            elsewhere: 0,
        }
    }

    fn found(facts: &ClusterFacts) -> Vec<(Level, &'static str)> {
        let mut findings = Findings::default();
        facts.judge(&mut findings);
        assert!(findings.0.iter().all(|finding| super::super::NAMES.contains(&finding.name)));
        let bad = findings.0.iter().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.level, finding.name)).collect()
    }

    #[test]
    fn each_fault_of_a_cluster_is_named() {
        let good = facts(vec![server()]);
        assert_eq!(found(&good), []);
        let with = |change: fn(&mut ServerFacts)| {
            let mut server = server();
            change(&mut server);
            facts(vec![server])
        };
        for (facts, level, name) in [
            (
                ClusterFacts { error: Some("no such file".into()), ..good.clone() },
                Level::Problem,
                "cluster-file",
            ),
            (
                ClusterFacts { key_error: Some("others can read it".into()), ..good.clone() },
                Level::Problem,
                "cluster-key",
            ),
            (
                ClusterFacts { unresolved: vec![("a:1".into(), "?".into())], ..good.clone() },
                Level::Problem,
                "names",
            ),
            (ClusterFacts { uid: 6, ..good.clone() }, Level::Warning, "storage-owner"),
            (with(|server| server.storage = Ok(false)), Level::Problem, "storage"),
            (with(|server| server.storage = Err("of another".into())), Level::Problem, "storage"),
            (with(|server| server.is_volatile = true), Level::Note, "storage-volatile"),
            (with(|server| server.space = Some((9, 100))), Level::Warning, "disk-space"),
            (with(|server| server.space = Some((1, 100))), Level::Problem, "disk-space"),
            (with(|server| server.port = Port::Free), Level::Problem, "port"),
            (with(|server| server.port = Port::Foreign), Level::Problem, "port"),
            (
                facts(vec![server(), ServerFacts { name: "io1".into(), ..server() }]),
                Level::Note,
                "disk-shared",
            ),
        ] {
            assert_eq!(found(&facts), [(level, name)], "{facts:?}");
        }
        assert_eq!(found(&ClusterFacts { uid: 0, ..good }), []);
    }
}
