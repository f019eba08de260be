//! A scratch directory, optionally with a cluster, for the time of a measurement.

use super::adapters::{self, Counts};
use super::rdma::adapter;
use anyhow::{Context, Result, bail};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use weft_bench_args::{CommonArgs, Transport};
use weft_cli_common::connections::{ConnectArgs, Connections, KeyArgs, at};
use weft_cli_common::launch::{self, BlockedSignals, Lifetime, LocalCluster, RunState, StartOptions};
use weft_cli_common::place::WeftPath;
use weft_cli_common::programs;
use weft_cli_common::tree::{self, Visit};
use weft_client::Client;
use weft_server::SyncMode;
use weft_wire::messages::FileKind;

/// The default transports.
pub const TRANSPORTS_DEFAULT: &[Transport] = &[Transport::Tcp, Transport::Shm];

/// What must be removed when a signal ends the process.
struct Leftovers {
    dirs: Vec<PathBuf>,
    clusters: Vec<RunState>,
    /// Directories in clusters that were there before.
    remote: Vec<(Client, PathBuf)>,
}

/// After this time servers have reported the operations of their adapters.
const ADAPTER_REPORT_INTERVAL: Duration = Duration::from_millis(1200);

static LEFTOVERS: Mutex<Leftovers> =
    Mutex::new(Leftovers { dirs: Vec::new(), clusters: Vec::new(), remote: Vec::new() });

fn leftovers() -> std::sync::MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes signals that end this process first stop clusters and remove scratch directories.
pub fn clean_up_when_interrupted() -> Result<()> {
    let signals = BlockedSignals::ends_and(&[])?;
    let end = move || {
        if let Ok(signal) = signals.wait() {
            let leftovers = leftovers();
            for cluster in &leftovers.clusters {
                cluster.stop(Duration::from_secs(2));
            }
            // Also servers that were just being started, which are in no list yet.
            kill_children();
            leftovers.remote.iter().for_each(|(client, dir)| remove_remote(client, dir));
            leftovers.dirs.iter().for_each(|dir| remove_in_use(dir));
            std::process::exit(128 + signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(end).context("cannot wait for signals")?;
    Ok(())
}

/// Kills all children that this process has not yet waited for.
fn kill_children() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()) {
            // SAFETY: no memory is passed; a child that was not waited for keeps its number.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
    }
}

/// Removes a directory in which others may still create files, or which its owner may be removing.
fn remove_in_use(dir: &Path) {
    for _ in 0..100 {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ if dir.exists() => {}
            _ => return,
        }
    }
}

/// Removes a directory in a cluster with everything in it, as far as possible.
fn remove_remote(client: &Client, dir: &Path) {
    let Ok(attr) = client.stat(at(dir), false) else { return };
    let mut remove = |visit: Visit<'_>| {
        let _ = match visit {
            Visit::Enter(path, attr) if attr.kind != FileKind::Directory => client.unlink(at(path)),
            Visit::Enter(..) => Ok(()),
            Visit::Leave(path) => client.rmdir(at(path)),
        };
        Ok(())
    };
    let _ = tree::walk(client, dir, &attr, &mut remove, &mut |_, _| {});
}

/// A directory that is removed when dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates it in the given directory, or where there is space for `bytes`.
    pub fn new(wanted: Option<&Path>, bytes: u64) -> Result<Scratch> {
        let parent = match wanted {
            Some(dir) => dir.to_owned(),
            None if launch::free_bytes(Path::new("/dev/shm")).is_some_and(|free| free > bytes) => {
                "/dev/shm".into()
            }
            None => std::env::temp_dir(),
        };
        if launch::free_bytes(&parent).is_some_and(|free| free < bytes) {
            let needed = weft_cli_common::size::format_bytes(bytes);
            bail!(
                "{} has less than {needed} free; choose another --dir, or measure with less data",
                parent.display()
            );
        }
        let parent = parent.canonicalize().with_context(|| format!("cannot find {}", parent.display()))?;
        let path = parent.join(format!("weft-bench-{}", std::process::id()));
        leftovers().dirs.push(path.clone());
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("weft: {} could not be removed: {error}", self.path.display());
        }
        leftovers().dirs.retain(|dir| *dir != self.path);
    }
}

/// What all servers together have used.
pub struct ServerLoad {
    /// Processor seconds.
    pub cpu_s: f64,
    /// Operations of their RDMA adapters.
    pub adapters: Counts,
}

/// A cluster to measure: an existing one, or a new one in a scratch directory.
pub struct Testbed {
    url: String,
    /// A connection for preparations and for the servers' processor time.
    pub client: Client,
    /// The directory in it that is used.
    pub dir: PathBuf,
    cluster: Option<LocalCluster>,
}

impl Testbed {
    /// Starts a new cluster in `scratch`, on the given address of this host, if any.
    pub fn start(
        scratch: &Scratch,
        io_servers: u16,
        sync: SyncMode,
        address: Option<IpAddr>,
    ) -> Result<Testbed> {
        let dir = scratch.path().join(format!("cluster-{io_servers}-{}", sync.name()));
        let options = StartOptions {
            nfs: None,
            metrics: None,
            dir: dir.clone(),
            io_servers: Some(io_servers),
            port: None,
            bind: address.map(|address| address.to_string()),
            sync: Some(sync),
            only: Vec::new(),
            lifetime: Lifetime::WithParent,
            supervised: false,
            program: Some(weft_program()?),
        };
        let cluster = launch::start(&options, &mut |time| {
            std::thread::sleep(time);
            true
        })?;
        leftovers().clusters.push(cluster.state.clone());
        let url = format!("{}?key-file={}", cluster.state.url, cluster.client_key_path().display());
        let client = Connections::new(&ConnectArgs::default()).client(&url)?;
        Ok(Testbed { url, client, dir: PathBuf::from("/"), cluster: Some(cluster) })
    }

    /// Uses an existing cluster, in a new directory below the URL's path.
    pub fn existing(url: &str, key: &KeyArgs) -> Result<Testbed> {
        let place = WeftPath::from_argument(url)?;
        let client = Connections::new(&key.clone().into()).client(&place.url)?;
        let mut url = format!("{}?", place.url.split('?').next().unwrap_or(&place.url));
        if let Some(key) = &key.key {
            url.push_str(&format!("key-file={}", key.canonicalize()?.display()));
        }
        let dir = place.path.join(format!("weft-bench-{}", std::process::id()));
        leftovers().remote.push((client.clone(), dir.clone()));
        tree::make_dirs(&client, &dir, 0o755)?;
        Ok(Testbed { url, client, dir, cluster: None })
    }

    /// The requested cluster.
    pub fn new(
        url: Option<&str>,
        key: &KeyArgs,
        scratch: &Scratch,
        io_servers: u16,
        sync: SyncMode,
    ) -> Result<Testbed> {
        match url {
            Some(url) => Testbed::existing(url, key),
            None => Testbed::start(scratch, io_servers, sync, None),
        }
    }

    /// As [`Testbed::new`]. A new cluster is reachable by these transports if possible. Also returns the
    /// transports by which it is not reachable, and why.
    pub fn for_transports(
        url: Option<&str>,
        key: &KeyArgs,
        scratch: &Scratch,
        io_servers: u16,
        sync: SyncMode,
        transports: &[Transport],
    ) -> Result<(Testbed, Vec<(Transport, String)>)> {
        let mut without: Vec<(Transport, String)> = Vec::new();
        let mut address = None;
        if transports.contains(&Transport::Rdma) {
            match adapter::first() {
                Ok(adapter) => address = Some(adapter.address),
                Err(reason) => without.push((Transport::Rdma, reason)),
            }
        }
        let testbed = match url {
            Some(url) => Testbed::existing(url, key)?,
            None => Testbed::start(scratch, io_servers, sync, address)?,
        };
        for transport in transports {
            if without.iter().any(|(other, _)| other == transport) {
                continue;
            }
            if let Err(error) = reach_all(&testbed.url(transport.name())) {
                without.push((*transport, format!("{error:#}")));
            }
        }
        Ok((testbed, without))
    }

    /// The URL for workers: with the key and this transport.
    pub fn url(&self, transport: &str) -> String {
        let mark = if self.url.ends_with('?') { "" } else { "&" };
        format!("{}{mark}transport={transport}", self.url)
    }

    /// Processor seconds that all servers have used and, for transfers over RDMA, the operations of their
    /// adapters, which servers report once a second.
    pub fn server_load_over(&self, transport: Transport) -> ServerLoad {
        if transport == Transport::Rdma {
            std::thread::sleep(ADAPTER_REPORT_INTERVAL);
            return self.server_load();
        }
        ServerLoad { adapters: Counts::new(), ..self.server_load() }
    }

    /// The same without waiting for reports of adapters.
    pub fn server_load(&self) -> ServerLoad {
        let answers = self.client.server_status(false).into_iter();
        let answers: Vec<_> = answers.filter_map(|(_, answer)| answer.ok()).collect();
        let cpu_ms: u64 = answers.iter().map(|status| status.cpu_ms).sum();
        ServerLoad { cpu_s: cpu_ms as f64 / 1e3, adapters: adapters::of_servers(&answers) }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        match &mut self.cluster {
            Some(cluster) => {
                cluster.stop();
                leftovers().clusters.clear();
            }
            None => {
                if let Err(error) = self.client.rmdir(at(&self.dir)) {
                    eprintln!("weft: {error}");
                }
                leftovers().remote.retain(|(_, dir)| *dir != self.dir);
            }
        }
    }
}

/// The `weft` that is measured: the one that started this program, else the one beside it or on PATH.
pub fn weft_program() -> Result<PathBuf> {
    match std::env::var_os(programs::STARTED_BY) {
        Some(program) => Ok(program.into()),
        None => programs::find("weft", "weft-cli"),
    }
}

/// Creates a scratch directory as requested by the options.
pub fn scratch(common: &CommonArgs, bytes: u64) -> Result<Scratch> {
    Scratch::new(common.dir.as_deref(), bytes)
}

/// What of `all` can be measured. Reports why the rest cannot.
pub fn usable<T>(
    all: Vec<T>,
    transport: impl Fn(&T) -> Transport,
    without: &[(Transport, String)],
) -> Result<Vec<T>> {
    for (transport, reason) in without {
        eprintln!("weft: not measured over {}: {reason}", transport.name());
    }
    let is_usable = |one: &T| without.iter().all(|(other, _)| *other != transport(one));
    let usable: Vec<_> = all.into_iter().filter(is_usable).collect();
    if usable.is_empty() {
        bail!("there is nothing to measure; none of the transports can be used");
    }
    Ok(usable)
}

/// Checks that every server can be reached by the URL's transport.
fn reach_all(url: &str) -> Result<()> {
    let client = Connections::new(&ConnectArgs::default()).client(url)?;
    client.server_status(false).into_iter().try_for_each(|(_, answer)| Ok(answer.map(drop)?))
}
