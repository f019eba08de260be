//! `weft serve` of an NFS gateway.
//!
//! ```text
//!   lock, keys ─► connect to the cluster ─► listen ─► serve ─┬─ SIGTERM, SIGINT ─► stop
//!                   ▲                                        ├─ cluster file, SIGHUP ─► other exports
//!                   └──────── another client key ────────────┘
//! ```

use super::exports::{Resolved, about, addresses_of, resolved, shown};
use super::gateway_metrics::GatewayMetrics;
use super::{levels, notify_systemd, refuse};
use crate::gateway_state::{self, Counts, Desk, GATEWAY_PROGRAM, State};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weft_cli_common::launch::{BlockedSignals, url_of};
use weft_cli_common::output;
use weft_client::{Client, ConnectOptions, ErrorKind, Url};
use weft_host::{FileLock, LockError};
use weft_log::Filter;
use weft_nfs::{
    GRACE_DEFAULT, GatewayOptions, HandleKeys, LOCAL_MAPPER, Listeners, LockOptions, Peer, ProcedureTimes,
    RdmaDesign, RdmaListener, RdmaMemory, RdmaOptions, Serving, Transport, listen_rdma,
};
use weft_server::config::{GatewayConfig, Member, NfsRdmaDesign, NfsRdmaMemory};
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig};
use weft_wire::Status;
use weft_wire::keys::{IssuedKey, KeyKind};
use weft_wire::messages::FileKind;
use weft_wire::security::Key;

/// How often files are looked at for changes.
const LOOK: Duration = Duration::from_secs(1);
/// How often a signal is looked for while the cluster does not answer.
const CONNECT_POLL: Duration = Duration::from_millis(20);
/// How long to wait after a failed attempt to connect, at first and at most.
const CONNECT_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];
/// How long the cluster may be silent until the log says so: its servers may just be starting.
const CONNECT_QUIET: Duration = Duration::from_secs(5);
/// How often names of hosts are resolved again.
const RESOLVE: Duration = Duration::from_secs(60);

/// What the command line says.
pub(super) struct Start {
    pub(super) config: ClusterConfig,
    pub(super) name: String,
    pub(super) cluster_key: Option<PathBuf>,
    pub(super) log_file: Option<PathBuf>,
    pub(super) log_level: Option<Filter>,
    pub(super) metrics: Option<String>,
}

/// Serves until a signal ends it.
pub(super) fn run(start: Start, signals: &BlockedSignals) -> Result<()> {
    weft_log::set_filter(levels(start.log_level.as_ref(), &start.config));
    let mut gateway = match Gateway::new(start) {
        Ok(gateway) => gateway,
        Err(error) => return refuse(&error),
    };
    weft_server::raise_limits();
    let directory = gateway.config.resolve(&gateway.own().directory);
    let _lock = lock(&directory)?;
    let desk = Desk::open(&directory)?;
    let metrics = gateway.metrics.clone().map(|address| GatewayMetrics::serve(&address)).transpose()?;
    // Before clients can take all descriptors.
    let signalled = signals.descriptor().context("cannot wait for signals")?;
    loop {
        let client = match gateway.connect(signals)? {
            Connected::Client(client) => *client,
            Connected::Refused(error) => return refuse(&error),
            Connected::Ended => return Ok(()),
        };
        let serving = gateway.serve(client, metrics.as_ref().map(GatewayMetrics::times))?;
        notify_systemd();
        let next = gateway.look_after(&serving, (signals, signalled.as_fd()), &desk, metrics.as_ref())?;
        serving.stop();
        match next {
            Next::End => {
                weft_log::info!(gateway.name, "has stopped");
                return Ok(());
            }
            Next::Again => weft_log::info!(gateway.name, "connects to the cluster with its new key"),
        }
    }
}

/// What a gateway does after it has served.
enum Next {
    End,
    Again,
}

enum Connected {
    Client(Box<Client>),
    /// It would be refused again.
    Refused(anyhow::Error),
    /// A signal has come.
    Ended,
}

/// A gateway and the files that it follows.
struct Gateway {
    config: ClusterConfig,
    name: String,
    key: IssuedKey,
    key_file: Followed,
    config_file: Followed,
    cluster_key_file: Followed,
    handle_keys: HandleKeys,
    exports: Resolved,
    resolved_at: Instant,
    started_at: Instant,
    /// Why the cluster file is not in force.
    wrong_file: Option<String>,
    /// Why it does not serve RDMA where it should.
    rdma_lacks: Vec<String>,
    log_file: Option<PathBuf>,
    log_level: Option<Filter>,
    /// Where it serves metrics.
    metrics: Option<String>,
}

impl Gateway {
    fn new(start: Start) -> Result<Gateway> {
        let Start { config, name, cluster_key, log_file, log_level, metrics } = start;
        let Member::Gateway(own) = config.member(&name)? else { bail!("{name} is no gateway") };
        let metrics = metrics.or_else(|| own.metrics.clone());
        let config_file = Followed::new(config.path.clone());
        let key_file = own.key.as_deref().unwrap_or(CLIENT_KEY_FILE.as_ref());
        let key_file = Followed::new(config.resolve(key_file));
        let beside = || config.resolve(CLUSTER_KEY_FILE.as_ref());
        let cluster_key_file = Followed::new(cluster_key.unwrap_or_else(beside));
        let key = client_key(&key_file.path)?;
        let handle_keys = HandleKeys::of_cluster(&cluster_keys(&cluster_key_file.path)?);
        let exports = resolved(&config.exports, &addresses_of);
        let gateway = Gateway {
            config,
            name,
            key,
            key_file,
            config_file,
            cluster_key_file,
            handle_keys,
            exports,
            resolved_at: Instant::now(),
            started_at: Instant::now(),
            wrong_file: None,
            rdma_lacks: Vec::new(),
            log_file,
            log_level,
            metrics,
        };
        gateway.say_unknown(&[]);
        Ok(gateway)
    }

    fn own(&self) -> &GatewayConfig {
        match self.config.member(&self.name) {
            Ok(Member::Gateway(own)) => own,
            _ => unreachable!("a cluster file without this gateway is not taken"),
        }
    }

    fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            key: Some(self.key.clone()),
            program: Some(format!("{GATEWAY_PROGRAM}{}", self.name)),
            ..ConnectOptions::default()
        }
    }

    /// Connects to the cluster, whose servers may not run yet.
    fn connect(&self, signals: &BlockedSignals) -> Result<Connected> {
        let options = self.connect_options();
        let (url, name) = (Url::parse(&url_of(&self.config))?, self.name.clone());
        let paths: Vec<_> = self.config.exports.iter().map(|export| export.path.clone()).collect();
        let (answer, answered) = channel();
        // It may wait for long, and is left behind if a signal comes.
        let connect = move || {
            let ([mut pause, pause_max], mut told_at) = (CONNECT_PAUSES, Instant::now());
            loop {
                match Client::connect(&url, options.clone()) {
                    Err(error) if may_pass(&error) => {
                        if told_at.elapsed() >= CONNECT_QUIET {
                            weft_log::warning!(name, "waits for the cluster: {error}");
                            told_at = Instant::now();
                        }
                        std::thread::sleep(pause);
                        pause = (2 * pause).min(pause_max);
                    }
                    Err(error) => return drop(answer.send(Err(error))),
                    Ok(client) => {
                        say_missing(&client, &name, &paths);
                        return drop(answer.send(Ok(client)));
                    }
                }
            }
        };
        std::thread::Builder::new().name("connect".into()).spawn(connect)?;
        Ok(match wait_for(&answered, signals) {
            None => Connected::Ended,
            Some(Ok(client)) => Connected::Client(Box::new(client)),
            Some(Err(error)) => Connected::Refused(anyhow!("cannot connect to the cluster: {error}")),
        })
    }

    fn serve(&mut self, client: Client, times: Option<Arc<ProcedureTimes>>) -> Result<Serving> {
        let listeners = self.listen()?;
        let exports = self.exports.exports.clone();
        let options = GatewayOptions {
            client,
            exports,
            handle_keys: self.handle_keys.clone(),
            locks: Some(LockOptions {
                directory: self.config.resolve(&self.own().directory).join("locks"),
                url: Url::parse(&url_of(&self.config))?,
                connect: self.connect_options(),
                name: weft_host::name(),
                grace: GRACE_DEFAULT,
                mapper_port: LOCAL_MAPPER.port(),
            }),
            rpcbind: self.own().rpcbind.then_some(LOCAL_MAPPER),
            times,
        };
        let serving = Serving::start(options, listeners).context("cannot start the gateway")?;
        for address in serving.addresses() {
            weft_log::info!(self.name, "listens on {address}");
        }
        for address in serving.rdma_addresses() {
            weft_log::info!(self.name, "listens on {address} for clients over RDMA");
        }
        self.say_exports();
        Ok(serving)
    }

    /// Listens as the cluster file has it. Without RDMA it serves all the same, and says why.
    fn listen(&mut self) -> Result<Listeners> {
        let (mut listeners, mut lacks) = (Listeners::tcp(Vec::new()), Vec::new());
        for address in &self.own().addresses {
            let listener = TcpListener::bind(address);
            listeners
                .tcp
                .push(listener.with_context(|| format!("{} cannot listen at {address}", self.name))?);
        }
        listeners.rdma_options = rdma_options(self.own());
        for address in &self.own().rdma_addresses {
            match listen_at(address) {
                Ok(found) => listeners.rdma.extend(found),
                Err(error) => lacks.push(format!("{address}: {error:#}")),
            }
        }
        if self.own().rdma_design == NfsRdmaDesign::ReadRead {
            weft_log::warning!(
                self.name,
                "exposes its memory to clients over RDMA (rdma_design = \"read-read\"): a client can read more than its \
                 replies by keys that it guesses or keeps, and hold memory by not answering; for comparisons only"
            );
        }
        for lack in &lacks {
            weft_log::warning!(self.name, "does not serve NFS over RDMA at {lack}");
        }
        self.rdma_lacks = lacks;
        Ok(listeners)
    }

    /// Waits for signals, for who asks, and for changes of the files.
    fn look_after(
        &mut self,
        serving: &Serving,
        (signals, signalled): (&BlockedSignals, BorrowedFd<'_>),
        desk: &Desk,
        metrics: Option<&GatewayMetrics>,
    ) -> Result<Next> {
        loop {
            wait_at_most(LOOK, [signalled.as_raw_fd(), desk.as_raw_fd()]);
            match signals.wait_at_most(Duration::ZERO) {
                Some(libc::SIGHUP) => {
                    if let Some(Err(error)) = self.log_file.as_deref().map(output::log_to) {
                        weft_log::warning!(self.name, "{error:#}");
                    }
                    self.config_file.forget();
                }
                Some(_) => return Ok(Next::End),
                None => {}
            }
            desk.answer(|| self.state(serving));
            if let Some(metrics) = metrics {
                metrics.tell(&self.state(serving));
            }
            if self.config_file.has_changed() {
                self.read_config();
                self.resolve(serving);
            }
            if self.resolved_at.elapsed() >= RESOLVE {
                self.resolve(serving);
            }
            if self.cluster_key_file.has_changed() {
                self.read_cluster_keys();
            }
            if self.key_file.has_changed() && self.reads_another_key() {
                return Ok(Next::Again);
            }
        }
    }

    fn state(&self, serving: &Serving) -> State {
        let counts = serving.counts();
        State {
            name: self.name.clone(),
            pid: std::process::id(),
            uptime_ms: self.started_at.elapsed().as_millis() as u64,
            addresses: serving.addresses().iter().map(ToString::to_string).collect(),
            rdma_addresses: serving.rdma_addresses().iter().map(ToString::to_string).collect(),
            rdma_lacks: self.rdma_lacks.clone(),
            exports: self.config.exports.iter().map(shown).collect(),
            wrong_file: self.wrong_file.clone(),
            clients: clients_of(&serving.clients(), serving.mounts()),
            counts: Counts {
                calls: counts.calls,
                read_bytes: counts.read_bytes,
                written_bytes: counts.written_bytes,
                rdma_read_bytes: counts.rdma_read_bytes,
                rdma_written_bytes: counts.rdma_written_bytes,
                rdma_exposed_replies: counts.rdma_exposed_replies,
                rdma_exposed_bytes: counts.rdma_exposed_bytes,
                rdma_exposed_now_bytes: counts.rdma_exposed_now_bytes,
                rdma_exposed_us: counts.rdma_exposed_us,
                copied_bytes: counts.copied_bytes,
                refused: counts.refused,
                open_inodes: counts.open_inodes,
                under_way: counts.under_way,
            },
        }
    }

    /// Reads the cluster file. If it is wrong, the old one stays in force.
    fn read_config(&mut self) {
        let found = ClusterConfig::load(&self.config.path).map_err(anyhow::Error::from).and_then(|new| {
            match new.member(&self.name)? {
                Member::Gateway(own) if addresses_of_gateway(own) != addresses_of_gateway(self.own()) => {
                    weft_log::warning!(
                        self.name,
                        "the cluster file has other addresses: they count when this gateway is started again"
                    )
                }
                Member::Gateway(_) => {}
                Member::Server(_) => bail!("{} is a server in it", self.name),
            }
            Ok(new)
        });
        match found {
            Ok(new) => {
                self.wrong_file = None;
                self.config = new;
                weft_log::set_filter(levels(self.log_level.as_ref(), &self.config));
            }
            Err(error) => {
                weft_log::warning!(self.name, "the exports stay as they are: {error:#}");
                self.wrong_file = Some(format!("{error:#}"));
            }
        }
    }

    /// Serves the exports of the cluster file, if they are others now.
    fn resolve(&mut self, serving: &Serving) {
        let new = resolved(&self.config.exports, &addresses_of);
        self.resolved_at = Instant::now();
        if new == self.exports {
            return;
        }
        let known = std::mem::replace(&mut self.exports, new).unknown;
        serving.set_exports(self.exports.exports.clone());
        self.say_exports();
        self.say_unknown(&known);
    }

    fn say_exports(&self) {
        if self.exports.exports.is_empty() {
            weft_log::warning!(self.name, "the cluster file has no [[export]]: nobody can mount anything");
        }
        for export in &self.config.exports {
            weft_log::info!(self.name, "exports {}", about(export));
        }
    }

    /// Names hosts without an address, except those that were named before.
    fn say_unknown(&self, before: &[String]) {
        for host in self.exports.unknown.iter().filter(|host| !before.contains(host)) {
            weft_log::warning!(self.name, "the client {host} has no address now: it cannot mount anything");
        }
    }

    fn read_cluster_keys(&self) {
        match cluster_keys(&self.cluster_key_file.path) {
            Ok(keys) => {
                self.handle_keys.replace(&keys);
                weft_log::info!(self.name, "has read the cluster's keys again");
            }
            Err(error) => weft_log::warning!(self.name, "the cluster's keys stay as they are: {error:#}"),
        }
    }

    fn reads_another_key(&mut self) -> bool {
        match client_key(&self.key_file.path) {
            Ok(key) if key == self.key => false,
            Ok(key) => {
                self.key = key;
                true
            }
            Err(error) => {
                weft_log::warning!(self.name, "the key stays as it is: {error:#}");
                false
            }
        }
    }
}

/// Logs which exports lead nowhere. Its requests also make the servers know this gateway from its start on.
fn say_missing(client: &Client, name: &str, paths: &[String]) {
    for path in paths {
        match client.stat(path.as_str(), true) {
            Ok(attr) if attr.kind == FileKind::Directory => {}
            Ok(_) => weft_log::warning!(name, "the export {path} is no directory: nobody can mount it"),
            Err(error) => weft_log::warning!(name, "nobody can mount the export {path} now: {error}"),
        }
    }
}

/// Waits until one of these can be read.
fn wait_at_most(time: Duration, descriptors: [RawFd; 2]) {
    let mut polled = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the array lives through the call, and its length is given.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, time.as_millis() as i32) };
}

fn addresses_of_gateway(gateway: &GatewayConfig) -> (&[String], &[String]) {
    (&gateway.addresses, &gateway.rdma_addresses)
}

/// How the cluster file wants NFS over RDMA to be served.
fn rdma_options(gateway: &GatewayConfig) -> RdmaOptions {
    let design = match gateway.rdma_design {
        NfsRdmaDesign::ReadWrite => RdmaDesign::ReadWrite,
        NfsRdmaDesign::ReadRead => RdmaDesign::ReadRead,
    };
    let memory = match gateway.rdma_memory {
        NfsRdmaMemory::Pool => RdmaMemory::Pool,
        NfsRdmaMemory::Each => RdmaMemory::Each,
        NfsRdmaMemory::Cached => RdmaMemory::Cached,
        NfsRdmaMemory::Windows => RdmaMemory::Windows,
    };
    RdmaOptions { design, memory }
}

/// Listens over RDMA at all addresses of a name.
fn listen_at(address: &str) -> Result<Vec<RdmaListener<weft_nfs::RdmaCore>>> {
    let found = address.to_socket_addrs().context("the name has no address")?;
    found.map(|address| Ok(listen_rdma(address)?)).collect()
}

/// Connections and mounts, by client.
fn clients_of(peers: &[Peer], mounts: Vec<(IpAddr, String)>) -> Vec<gateway_state::Client> {
    let mut clients: BTreeMap<IpAddr, gateway_state::Client> = BTreeMap::new();
    let mut client = |address: IpAddr, change: &dyn Fn(&mut gateway_state::Client)| {
        let address = address.to_canonical();
        let new = || gateway_state::Client { address: address.to_string(), ..Default::default() };
        change(clients.entry(address).or_insert_with(new));
    };
    for peer in peers {
        client(peer.address.ip(), &|client| match peer.transport {
            Transport::Tcp => client.connections += 1,
            Transport::Rdma => {
                client.connections += 1;
                client.rdma_connections += 1;
            }
        });
    }
    for (address, path) in mounts {
        client(address, &|client| client.mounts.push(path.clone()));
    }
    clients.into_values().collect()
}

/// Whether an attempt to connect may succeed later, with nothing changed here.
fn may_pass(error: &weft_client::Error) -> bool {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Local(_) => true,
        ErrorKind::Status(status) => matches!(status, Status::Busy | Status::ShuttingDown | Status::StaleMap),
        _ => false,
    }
}

/// The answer; `None` if a signal ends the wait.
fn wait_for<T>(answered: &Receiver<T>, signals: &BlockedSignals) -> Option<T> {
    loop {
        if let Ok(answer) = answered.try_recv() {
            return Some(answer);
        }
        if signals.wait_at_most(CONNECT_POLL).is_some_and(|signal| signal != libc::SIGHUP) {
            return None;
        }
    }
}

/// Makes sure that no other gateway has this directory.
fn lock(directory: &Path) -> Result<FileLock> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot create the gateway's directory {}", directory.display()))?;
    let path = directory.join("lock");
    weft_host::lock(&path).map_err(|error| match error {
        LockError::Held(holder) => anyhow!(
            "{} is in use by process {holder}; stop it, or give each gateway its own directory",
            directory.display()
        ),
        LockError::System(error) => anyhow!("cannot lock {}: {error}", path.display()),
    })
}

fn cluster_keys(path: &Path) -> Result<Vec<Key>> {
    Ok(weft_server::load_cluster_keys(path)?.all().cloned().collect())
}

/// The key by which a gateway is a client.
fn client_key(path: &Path) -> Result<IssuedKey> {
    let key = weft_client::read_key_file(path)?;
    match key.info.kind {
        KeyKind::Host { squash_root: false } => Ok(key),
        _ => bail!(
            "the key file {}: a gateway acts for all users of its clients, and this key does not allow that; \
             issue one with: weft key issue --host NAME --no-root-squash",
            path.display()
        ),
    }
}

/// A file that is read again when it has changed.
struct Followed {
    path: PathBuf,
    seen: Option<Seen>,
}

/// What tells contents of a file from others: device, inode, size, and time of the last change.
type Seen = (u64, u64, u64, (i64, i64));

impl Followed {
    /// Counts as it is now as known.
    fn new(path: PathBuf) -> Followed {
        let seen = look_at(&path).ok();
        Followed { path, seen }
    }

    /// Makes the next look find a change.
    fn forget(&mut self) {
        self.seen = None;
    }

    /// Whether it is another one than at the last look. A file that is not there is not another one: it may be
    /// about to be replaced.
    fn has_changed(&mut self) -> bool {
        match look_at(&self.path) {
            Ok(now) if self.seen != Some(now) => {
                self.seen = Some(now);
                true
            }
            _ => false,
        }
    }
}

fn look_at(path: &Path) -> io::Result<Seen> {
    let metadata = std::fs::metadata(path)?;
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    Ok((metadata.dev(), metadata.ino(), metadata.size(), changed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_file_is_seen_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut followed = Followed::new(path.clone());
        assert!(!followed.has_changed(), "it is not there");
        std::fs::write(&path, "1").unwrap();
        assert!(followed.has_changed() && !followed.has_changed());
        std::fs::write(directory.path().join("new"), "2").unwrap();
        std::fs::rename(directory.path().join("new"), &path).unwrap();
        assert!(followed.has_changed() && !followed.has_changed());
        followed.forget();
        assert!(followed.has_changed());
        std::fs::remove_file(&path).unwrap();
        assert!(!followed.has_changed());
    }

    #[test]
    fn a_client_has_its_connections_and_mounts() {
        let peer =
            |address: &str, transport| Peer { number: 0, address: address.parse().unwrap(), transport };
        let peers = [
            peer("10.0.0.1:700", Transport::Tcp),
            peer("[::ffff:10.0.0.1]:701", Transport::Rdma),
            peer("10.0.0.2:9", Transport::Tcp),
        ];
        let mounts =
            vec![("10.0.0.1".parse().unwrap(), "/a".into()), ("10.0.0.3".parse().unwrap(), "/b".into())];
        let clients = clients_of(&peers, mounts);
        let seen: Vec<_> = clients
            .iter()
            .map(|client| {
                let connections = (client.connections, client.rdma_connections);
                (client.address.as_str(), connections, client.mounts.concat())
            })
            .collect();
        let expected = [("10.0.0.1", (2, 1), "/a"), ("10.0.0.2", (1, 0), ""), ("10.0.0.3", (0, 0), "/b")];
        assert_eq!(
            seen,
            expected.map(|(address, connections, mounts)| (address, connections, mounts.into()))
        );
    }

    #[test]
    fn two_gateways_never_have_one_directory() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("nfs0");
        let held = lock(&own).unwrap();
        let error = lock(&own).unwrap_err().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        drop(lock(&own).unwrap());
    }
}
