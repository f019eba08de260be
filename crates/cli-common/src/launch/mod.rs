//! A cluster on this machine: one child process per server, and a file that records them.
//!
//! ```text
//!   DIR/weft.toml      the cluster file: servers, addresses, defaults
//!   DIR/cluster.key    the secret; DIR/client.key, issued with it, is this host's key
//!   DIR/meta0, io0 …   the servers' data
//!   DIR/log/io0.log    each server's log
//!   DIR/run.json       process ids and start times while the cluster runs
//! ```
//!
//! Servers run `weft serve` of this program, or of another one. In the foreground they die with their parent,
//! however it ends. Detached servers have a session of their own. So does their supervisor, the `weft up`
//! that started them and stays in the background. If the supervisor is killed the servers keep running, and
//! the next `weft up --detach` supervises them.
//!
//! ```text
//!   run_state   run.json: what should run, what runs       holder      which process holds a server's lock
//!   supervise   restarting servers that die                stop        weft down
//!   hand_over   asking the supervisor to start servers     background  continuing in the background
//! ```

mod background;
mod hand_over;
mod holder;
mod ports;
mod process;
mod run_state;
mod signals;
mod stop;
mod supervise;

pub use background::{Background, Side, fork, log_to};
pub use hand_over::hand_over;
pub use ports::{PortLock, free_address, is_elsewhere};
pub use process::{Ending, ProcessHandle, ProcessId};
pub use run_state::{Found, RunState, RunningServer, find};
pub use signals::BlockedSignals;
pub use stop::{Down, stop};
pub use supervise::supervise;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, Url, installed_key_path};
use weft_server::{CLIENT_KEY_FILE, CLUSTER_KEY_FILE, ClusterConfig, Generate, ServerConfig, SyncMode};
use weft_wire::keys::IssuedKey;

/// Name of the cluster file in a cluster's directory.
pub const CLUSTER_FILE: &str = "weft.toml";
/// Exists until the storages of a new cluster are complete.
const NEW_FILE: &str = ".new";
/// Default port of the metadata server.
pub const PORT_DEFAULT: u16 = 7400;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_POLL: Duration = Duration::from_millis(10);
const LOCK_POLL: Duration = Duration::from_millis(5);
/// Time for servers to end before they are killed.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// sun_path of a Unix socket has 108 bytes, including a final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How long the servers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until this process ends.
    WithParent,
    /// Until they are stopped.
    Detached,
}

/// What to start. `None` means as in the cluster file, or the default for a new one.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Number of I/O servers.
    pub io_servers: Option<u16>,
    /// Port of the metadata server. The I/O servers get the following ones.
    pub port: Option<u16>,
    /// Address where servers listen and clients reach them.
    pub bind: Option<String>,
    /// When writes are acknowledged.
    pub sync: Option<SyncMode>,
    /// Start only these servers; all if empty.
    pub only: Vec<String>,
    /// How long the servers run.
    pub lifetime: Lifetime,
    /// Whether this process will supervise them.
    pub supervised: bool,
    /// The `weft` program that servers run; this program if `None`.
    pub program: Option<PathBuf>,
}

/// A running cluster, or the servers of it that this process supervises.
#[derive(Debug)]
pub struct LocalCluster {
    /// The servers that run.
    pub state: RunState,
    /// What has changed.
    pub news: News,
    config: ClusterConfig,
    dir: PathBuf,
    /// The program that servers run, by its path: a newer version at the same path runs after a restart.
    program: PathBuf,
    lifetime: Lifetime,
    watched: Vec<Watched>,
}

/// What `weft up` has done.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct News {
    /// Servers that were started.
    pub started: Vec<String>,
    /// Servers that ran before and are now supervised.
    pub adopted: Vec<String>,
    /// Servers that ran before and stay unsupervised.
    pub left: Vec<String>,
}

/// A server process that this process waits for.
#[derive(Debug)]
struct Watched {
    name: String,
    since: Instant,
    handle: ProcessHandle,
    /// Set if this process started it.
    child: Option<Child>,
}

/// Starts the servers of a directory that do not run, and returns when they answer. Creates the directory and
/// the cluster if missing. While it waits it calls `pause`, which sleeps that long and returns whether to go
/// on.
pub fn start(options: &StartOptions, pause: &mut dyn FnMut(Duration) -> bool) -> Result<LocalCluster> {
    let dir = make_dir(&options.dir)?;
    let _lock = lock(&dir, pause)?;
    let state = RunState::load(&dir)?;
    if state.as_ref().is_some_and(|state| state.live_supervisor().is_some()) {
        bail!("another `weft up` has just started the cluster in {}", dir.display());
    }
    let found = match dir.join(CLUSTER_FILE) {
        file if file.exists() => Survey::take(ClusterConfig::load(&file)?, state.as_ref(), &options.only)?,
        _ if !options.only.is_empty() => {
            bail!("{} has no {CLUSTER_FILE}; --only is for a cluster that was started before", dir.display())
        }
        _ => None,
    };
    if let Some(survey) = found {
        return resume(&dir, survey, state, options, pause);
    }
    let _ports = ports::PortLock::take(2 * READY_TIMEOUT, pause)?;
    let config = load_or_make_config(&dir, options)?;
    make_new_storages(&dir, &config)?;
    let state = RunState::new(url_of(&config))?;
    let mut cluster = LocalCluster::new(&dir, config, state, options)?;
    let names = cluster.config.servers.iter().map(|server| server.name.clone()).collect();
    cluster.begin(names, pause)?;
    Ok(cluster)
}

/// Which servers of a cluster run.
struct Survey {
    config: ClusterConfig,
    running: Vec<(String, Found)>,
    /// Requested servers that do not run.
    missing: Vec<String>,
}

impl Survey {
    /// `None` if no server runs and all are requested.
    fn take(config: ClusterConfig, state: Option<&RunState>, only: &[String]) -> Result<Option<Survey>> {
        for name in only {
            config.server(name)?;
        }
        let (mut running, mut missing) = (Vec::new(), Vec::new());
        for server in &config.servers {
            let found = find(&config, state, server);
            let found =
                found.with_context(|| format!("cannot find out whether server {} runs", server.name))?;
            match found {
                Some(found) => running.push((server.name.clone(), found)),
                None if only.is_empty() || only.contains(&server.name) => missing.push(server.name.clone()),
                None => {}
            }
        }
        if running.is_empty() && only.is_empty() {
            return Ok(None);
        }
        ports::check_here(config.servers.iter().filter(|server| missing.contains(&server.name)))?;
        Ok(Some(Survey { config, running, missing }))
    }

    fn already(&self, dir: &Path, only: &[String]) -> anyhow::Error {
        let dir = dir.display();
        if only.is_empty() {
            let url = url_of(&self.config);
            return anyhow::anyhow!(
                "the cluster in {dir} is already running: {url}; stop it with: weft down --dir {dir}"
            );
        }
        let meant = self.running.iter().filter(|(name, _)| only.contains(name));
        let processes: Vec<_> =
            meant.map(|(name, found)| format!("{name} (process {})", found.process.pid)).collect();
        anyhow::anyhow!("already running: {}", processes.join(", "))
    }
}

/// Starts missing servers of a cluster of which other servers may run.
fn resume(
    dir: &Path,
    survey: Survey,
    state: Option<RunState>,
    options: &StartOptions,
    pause: &mut dyn FnMut(Duration) -> bool,
) -> Result<LocalCluster> {
    let adopts = options.lifetime == Lifetime::Detached && options.only.is_empty();
    if survey.missing.is_empty() && !(adopts && survey.running.iter().any(|(_, found)| found.is_recorded)) {
        return Err(survey.already(dir, &options.only));
    }
    refuse_changes(&survey.config, options)?;
    let state = match state {
        Some(state) => state,
        None => RunState::new(url_of(&survey.config))?,
    };
    let mut cluster = LocalCluster::new(dir, survey.config, state, options)?;
    cluster.state.servers.retain(|noted| survey.running.iter().any(|(name, _)| *name == noted.name));
    for (name, found) in survey.running {
        if !found.is_recorded || options.lifetime == Lifetime::WithParent {
            cluster.news.left.push(name);
            continue;
        }
        cluster.news.adopted.push(name.clone());
        cluster.watched.push(Watched { name, since: Instant::now(), handle: found.handle, child: None });
    }
    cluster.begin(survey.missing, pause)?;
    Ok(cluster)
}

/// Refuses changes of the configuration: running servers keep the one that they were started with.
fn refuse_changes(config: &ClusterConfig, options: &StartOptions) -> Result<()> {
    check_count(config, options)?;
    let given = [
        (options.port.is_some(), "--port"),
        (options.bind.is_some(), "--bind"),
        (options.sync == Some(SyncMode::Sync), "--sync"),
        (options.sync == Some(SyncMode::Nosync), "--nosync"),
    ];
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => bail!(
            "{option} changes the whole cluster, but servers of it are running; stop it first: weft down --dir {}",
            options.dir.display()
        ),
        None => Ok(()),
    }
}

fn check_count(config: &ClusterConfig, options: &StartOptions) -> Result<()> {
    let there = config.io_servers().count();
    match options.io_servers {
        Some(wanted) if usize::from(wanted) != there => bail!(
            "the cluster in {} has {there} I/O servers and its files are striped over them; \
             leave out --io, or choose a new directory for {wanted}",
            options.dir.display()
        ),
        _ => Ok(()),
    }
}

/// The URL of a cluster's file system.
pub fn url_of(config: &ClusterConfig) -> String {
    format!("weft://{}/", config.meta_servers().next().expect("a checked file has one").addresses[0])
}

fn make_dir(dir: &Path) -> Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .with_context(|| format!("cannot create the cluster's directory {}", dir.display()))?;
    dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))
}

/// Held while servers of a cluster are started or stopped and `run.json` is changed, so that two commands
/// cannot do this at the same time.
fn lock(dir: &Path, pause: &mut dyn FnMut(Duration) -> bool) -> Result<File> {
    let path = dir.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if pause(LOCK_POLL) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("interrupted while waiting for another command that has locked {}", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// Held while a cluster file is edited, so that two commands cannot edit it, or start servers, at the same
/// time.
pub fn lock_to_edit(dir: &Path) -> Result<File> {
    lock(dir, &mut |time| {
        std::thread::sleep(time);
        true
    })
}

/// Whether a supervisor runs for a directory.
pub fn is_supervised(dir: &Path) -> bool {
    RunState::load(dir).ok().flatten().is_some_and(|state| state.live_supervisor().is_some())
}

/// Makes the supervisor of a directory start a server.
pub fn start_one(dir: &Path, name: &str) -> Result<()> {
    let options = StartOptions {
        dir: dir.to_owned(),
        io_servers: None,
        port: None,
        bind: None,
        sync: None,
        only: vec![name.to_owned()],
        lifetime: Lifetime::Detached,
        supervised: true,
        program: None,
    };
    hand_over(&options)?.map(drop).with_context(|| {
        format!(
            "no `weft up` supervises {}; start it: weft up --dir {0} --only {name} --detach",
            dir.display()
        )
    })
}

/// Stops a server, and makes the supervisor start it again with the present cluster file.
pub fn restart_one(dir: &Path, name: &str) -> Result<()> {
    stop(dir, &[name.to_owned()])?;
    start_one(dir, name)
}

fn load_or_make_config(dir: &Path, options: &StartOptions) -> Result<ClusterConfig> {
    let path = dir.join(CLUSTER_FILE);
    let mut config = if path.exists() {
        renew_client_key(dir)?;
        let config = ClusterConfig::load(&path)?;
        if options.bind.is_none() {
            ports::check_here(config.servers.iter())?;
        }
        config
    } else {
        let config = ClusterConfig::generate(&Generate {
            path,
            host: options.bind.clone().unwrap_or_else(|| "127.0.0.1".into()),
            port: options.port.unwrap_or(PORT_DEFAULT),
            io_servers: options.io_servers.unwrap_or(4),
            sync: options.sync.unwrap_or_default(),
            strip_bytes: weft_server::config::STRIP_BYTES_DEFAULT,
        })?;
        let new = dir.join(NEW_FILE);
        std::fs::write(&new, "").with_context(|| format!("cannot write {}", new.display()))?;
        weft_server::create_keys(dir)?;
        config
    };
    check_count(&config, options)?;
    if let Some(sync) = options.sync {
        config.servers.iter_mut().for_each(|server| server.sync = sync);
    }
    ports::assign(&mut config, options.bind.as_deref(), options.port)?;
    shorten_sockets(&mut config)?;
    config.save()?;
    Ok(config)
}

/// Creates the storages of a new cluster, and continues an interrupted start. A cluster that was complete
/// once never gets a new storage unasked: a missing one may be on a disk that is not mounted.
fn make_new_storages(dir: &Path, config: &ClusterConfig) -> Result<()> {
    let new = dir.join(NEW_FILE);
    if !new.exists() {
        return Ok(());
    }
    for server in &config.servers {
        if !weft_server::has_storage(config, &server.name)? {
            weft_server::format_storage(config, &server.name)?;
        }
    }
    std::fs::remove_file(&new).with_context(|| format!("cannot remove {}", new.display()))
}

/// Replaces a `client.key` of an earlier release, which names nobody, or of a cluster key that was replaced,
/// which is or will be void.
fn renew_client_key(dir: &Path) -> Result<()> {
    let path = dir.join(CLIENT_KEY_FILE);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    let keys = weft_server::load_cluster_keys(&dir.join(CLUSTER_KEY_FILE))?;
    if IssuedKey::from_text(&text).is_ok_and(|key| key.info.issuer == keys.in_use().name()) {
        return Ok(());
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
    weft_server::create_client_key(dir, keys.in_use())?;
    Ok(())
}

/// Moves the sockets of a cluster deep in a tree to /tmp: the path of a Unix socket must be short.
fn shorten_sockets(config: &mut ClusterConfig) -> Result<()> {
    let too_long = |config: &ClusterConfig, server: &_| {
        config.socket_of(server).as_os_str().len() > SOCKET_PATH_BYTES_MAX
    };
    if !config.servers.iter().any(|server| too_long(config, server)) {
        return Ok(());
    }
    let id = config.cluster.id.to_string();
    // SAFETY: getuid has no preconditions.
    let runtime = PathBuf::from(format!("/tmp/weft-{}-{}", unsafe { libc::getuid() }, &id[..12]));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&runtime)
        .with_context(|| format!("cannot create {} for the servers' sockets", runtime.display()))?;
    for server in &mut config.servers {
        server.socket = Some(runtime.join(format!("{}.sock", server.name)));
    }
    Ok(())
}

/// The log file of a server.
fn log_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("log").join(format!("{name}.log"))
}

fn spawn_server(program: &Path, config: &Path, name: &str, log: &Path, lifetime: Lifetime) -> Result<Child> {
    let open = OpenOptions::new().create(true).append(true).open(log);
    let log_file = open.with_context(|| format!("cannot write the log {}", log.display()))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--config").arg(config).arg("--name").arg(name).arg("--log-file").arg(log);
    command.stdin(Stdio::null()).stdout(log_file.try_clone()?).stderr(log_file);
    match lifetime {
        Lifetime::WithParent => end_with_parent(&mut command),
        Lifetime::Detached => {
            // SAFETY: between fork and exec only async-signal-safe system calls are made.
            unsafe {
                command.pre_exec(|| {
                    libc::setsid();
                    signals::unblock_all()
                });
            }
        }
    }
    command.spawn().with_context(|| format!("cannot start {} for server {name}", program.display()))
}

/// Makes the process of `command` get SIGTERM when the calling thread ends for any reason. Ctrl-C in the
/// terminal does not reach it: the parent stops its children in order.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe system calls are made.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            signals::unblock_all()
        });
    }
}

impl LocalCluster {
    fn new(
        dir: &Path,
        config: ClusterConfig,
        mut state: RunState,
        options: &StartOptions,
    ) -> Result<LocalCluster> {
        let log = dir.join("log");
        std::fs::create_dir_all(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let program = match &options.program {
            Some(program) => program.clone(),
            None => {
                std::env::current_exe().context("cannot find the path of this program, which servers run")?
            }
        };
        state.supervisor = ProcessId::of(std::process::id()).filter(|_| options.supervised);
        Ok(LocalCluster {
            state,
            news: News::default(),
            config,
            dir: dir.to_owned(),
            program,
            lifetime: options.lifetime,
            watched: Vec::new(),
        })
    }

    /// Starts these servers, and stops them again if they do not come up.
    fn begin(&mut self, names: Vec<String>, pause: &mut dyn FnMut(Duration) -> bool) -> Result<()> {
        let begun = (|| {
            for name in &names {
                let server = self.config.server(name)?.clone();
                let log = log_of(&self.dir, name);
                let process = self.spawn(name)?;
                self.state.want(&server, log).process = process;
            }
            self.state.save(&self.dir)?;
            self.wait_until_ready(&names, pause)
        })();
        match begun {
            Ok(()) => self.news.started = names,
            Err(_) => self.stop(),
        }
        begun
    }

    /// Starts a server and watches it.
    fn spawn(&mut self, name: &str) -> Result<ProcessId> {
        let log = log_of(&self.dir, name);
        let child = spawn_server(&self.program, &self.config.path, name, &log, self.lifetime)?;
        let ended = || format!("server {name} ended at once");
        let process = ProcessId::of(child.id()).with_context(ended)?;
        // Not by its identity: a process that has already ended is watched too, so that its end is reported.
        let handle = ProcessHandle::open(child.id()).with_context(ended)?;
        let (name, since) = (name.to_string(), Instant::now());
        self.watched.push(Watched { name, since, handle, child: Some(child) });
        Ok(process)
    }

    /// Waits until these servers answer.
    fn wait_until_ready(&mut self, names: &[String], pause: &mut dyn FnMut(Duration) -> bool) -> Result<()> {
        let config = self.config.clone();
        let readiness = Readiness::new(&config, &self.dir)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Some(ended) = self.take_ended(|name| names.contains(&name.to_string())).pop() {
                bail!("server {} {}", ended.name, ended.text);
            }
            let Some(reason) = readiness.lacks(names) else { return Ok(()) };
            if Instant::now() > deadline {
                let (waited, dir) = (READY_TIMEOUT.as_secs(), self.dir.display());
                bail!("the cluster is not ready after {waited} s: {reason}; see {dir}/log");
            }
            if !pause(READY_POLL) {
                bail!("interrupted while the servers were starting");
            }
        }
    }

    /// Takes the servers that ended since the last call, of those for which `meant` holds.
    fn take_ended(&mut self, meant: impl Fn(&str) -> bool) -> Vec<Ended> {
        let (mut ended, mut watched) = (Vec::new(), Vec::new());
        for mut server in self.watched.drain(..) {
            if !meant(&server.name) || !server.handle.wait(Duration::ZERO) {
                watched.push(server);
                continue;
            }
            let status = server.child.as_mut().and_then(|child| child.wait().ok());
            let how = status
                .map_or("its exit status is unknown, since another process started it".into(), |how| {
                    how.to_string()
                });
            let log = log_of(&self.dir, &server.name);
            let text = format!("has ended ({how}); {} says: {}", log.display(), last_line(&log));
            let (pid, ran) = (server.handle.pid(), server.since.elapsed());
            ended.push(Ended { name: server.name, pid, status, ran, text });
        }
        self.watched = watched;
        ended
    }

    /// Stops all servers that this process started, and forgets them.
    pub fn stop(&mut self) {
        let own: Vec<_> = self.watched.iter().filter(|server| server.child.is_some()).collect();
        process::end_all(&own.iter().map(|server| &server.handle).collect::<Vec<_>>(), STOP_TIMEOUT);
        for server in &mut self.watched {
            if let Some(child) = &mut server.child {
                // It has ended; this only frees its number.
                let _ = child.wait();
            }
        }
        self.watched.clear();
        self.leave();
    }

    /// Records that this process no longer supervises.
    fn leave(&mut self) {
        self.state.supervisor = None;
        self.state.servers.retain(|server| server.process.handle().is_some());
        let noted = if self.state.servers.is_empty() { None } else { Some(self.state.save(&self.dir)) };
        // An outdated state is recognised: processes in it are identified by their start time too.
        if !matches!(noted, Some(Ok(()))) {
            RunState::remove(&self.dir);
        }
    }

    /// This host's key file.
    pub fn client_key_path(&self) -> PathBuf {
        self.dir.join(CLIENT_KEY_FILE)
    }
}

/// A server that ended.
struct Ended {
    name: String,
    /// Its process id.
    pid: u32,
    /// Set if this process started it.
    status: Option<std::process::ExitStatus>,
    ran: Duration,
    /// "has ended (…)", and what its log says.
    text: String,
}

/// Checks whether servers are ready.
struct Readiness<'a> {
    config: &'a ClusterConfig,
    url: Url,
    /// `None` if it can only be checked whether servers listen: without a client key, or if some servers are
    /// on other machines, which may not run.
    options: Option<ConnectOptions>,
}

impl Readiness<'_> {
    fn new<'a>(config: &'a ClusterConfig, dir: &Path) -> Result<Readiness<'a>> {
        let key_file = dir.join(CLIENT_KEY_FILE);
        let can_ask = key_file.exists() && !config.servers.iter().any(ports::is_elsewhere);
        let key = can_ask.then(|| weft_client::read_key_file(&key_file)).transpose()?;
        let options = key.map(|key| ConnectOptions {
            key: Some(key),
            retry_timeout_ms: 0,
            ..ConnectOptions::default()
        });
        Ok(Readiness { config, url: Url::parse(&url_of(config))?, options })
    }

    /// Why one of these servers is not ready.
    fn lacks(&self, names: &[String]) -> Option<String> {
        let Some(options) = &self.options else { return self.does_not_listen(names) };
        match Client::connect(&self.url, options.clone()) {
            Ok(client) => {
                let answers = client.server_status(false).into_iter();
                let mut meant = answers.filter(|(server, _)| names.contains(&server.name));
                meant.find_map(|(_, answer)| answer.err()).map(|error| error.to_string())
            }
            Err(error) if self.config.meta_servers().any(|meta| self.is_awaited(meta, names)) => {
                Some(error.to_string())
            }
            Err(_) => self.does_not_listen(names),
        }
    }

    /// Whether a server runs or is being started.
    fn is_awaited(&self, server: &ServerConfig, names: &[String]) -> bool {
        names.contains(&server.name) || !matches!(find(self.config, None, server), Ok(None))
    }

    fn does_not_listen(&self, names: &[String]) -> Option<String> {
        self.config.servers.iter().filter(|server| names.contains(&server.name)).find_map(|server| {
            let deaf = |error| format!("{} does not listen at {}: {error}", server.name, server.addresses[0]);
            TcpStream::connect(&server.addresses[0]).err().map(deaf)
        })
    }
}

/// The last line of a log that is not empty.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_string()
}

/// Installs this host's key of a cluster where `weft` and the client library look for it, readable by the
/// user only.
pub fn install_client_key(key_file: &Path, url: &str) -> Result<PathBuf> {
    let server = Url::parse(url)?.server();
    let installed = installed_key_path(&server).with_context(|| {
        format!("HOME is not set, so the key cannot be installed; it is in {} only", key_file.display())
    })?;
    let text = std::fs::read(key_file).with_context(|| format!("cannot read {}", key_file.display()))?;
    let dir = installed.parent().expect("a key file is in a directory");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot create {}", dir.display()))?;
    let fresh = dir.join(format!(".new-{}", std::process::id()));
    let written = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh);
    written
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| std::fs::rename(&fresh, &installed))
        .with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(installed)
}

/// Free space on the file system of a directory, in bytes.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut space = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string. `space` has room for the result, which is read only on success.
    let space = unsafe {
        if libc::statvfs(path.as_ptr(), space.as_mut_ptr()) != 0 {
            return None;
        }
        space.assume_init()
    };
    Some(space.f_bavail * space.f_frsize)
}
