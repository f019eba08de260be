//! A whole cluster on this machine: one child process per server, and a file that remembers them.
//!
//! ```text
//!   DIR/weft.toml      the cluster file: servers, addresses, defaults
//!   DIR/cluster.key    the secret; DIR/client.key, made from it, is what clients need
//!   DIR/meta0, io0 …   the servers' data
//!   DIR/log/io0.log    what each server says
//!   DIR/run.json       process ids and start times while the cluster runs
//! ```
//!
//! Servers are `weft serve` of this very program. In the foreground they die with their parent, however it ends; detached
//! they have a session of their own and are stopped through `run.json`.

mod ports;
mod run_state;
mod signals;

pub use run_state::RunState;
pub use signals::BlockedSignals;

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, Url, installed_key_path};
use weft_server::{CLIENT_KEY_FILE, ClusterConfig, Generate, ServerConfig, SyncMode};

/// Name of the cluster file in a cluster's directory.
pub const CLUSTER_FILE: &str = "weft.toml";
/// Port of the metadata server where none is asked for.
pub const PORT_DEFAULT: u16 = 7400;
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that servers have to end by themselves.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// sun_path of a Unix socket has 108 bytes, one of them for the final zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How long the servers live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until this process ends.
    WithParent,
    /// Until they are stopped.
    Detached,
}

/// What is wanted; what is `None` is as in the cluster file, or by default in a new one.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The cluster's directory.
    pub dir: PathBuf,
    /// Number of I/O servers.
    pub io_servers: Option<u16>,
    /// Port of the metadata server; the I/O servers have the next ones.
    pub port: Option<u16>,
    /// Address that servers listen at and clients use.
    pub bind: Option<String>,
    /// When writes are acknowledged.
    pub sync: Option<SyncMode>,
    /// How long the servers live.
    pub lifetime: Lifetime,
}

/// A running cluster whose servers are this process's children.
#[derive(Debug)]
pub struct LocalCluster {
    /// What runs.
    pub state: RunState,
    dir: PathBuf,
    children: Vec<(String, Child)>,
}

/// Starts the cluster of a directory, which is made where it is missing, and returns when every server answers. While it
/// waits, `pause` is called: it sleeps that long, and says whether to go on.
pub fn start(options: &StartOptions, pause: &mut dyn FnMut(Duration) -> bool) -> Result<LocalCluster> {
    let dir = make_dir(&options.dir)?;
    let _lock = lock(&dir)?;
    if let Some(state) = RunState::load(&dir)?
        && state.is_running()
    {
        bail!(
            "the cluster in {} is running already: {}; stop it with: weft down --dir {}",
            dir.display(),
            state.url,
            dir.display()
        );
    }
    let _ports = ports::PortLock::take(2 * READY_TIMEOUT, pause)?;
    let config = load_or_make_config(&dir, options)?;
    std::fs::create_dir_all(dir.join("log")).with_context(|| format!("cannot make {}/log", dir.display()))?;
    let mut cluster = spawn_servers(&dir, &config, options.lifetime)?;
    cluster.state.save(&dir)?;
    if let Err(error) = cluster.wait_until_ready(pause) {
        cluster.stop();
        return Err(error);
    }
    Ok(cluster)
}

fn make_dir(dir: &Path) -> Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .with_context(|| format!("cannot make the cluster's directory {}", dir.display()))?;
    dir.canonicalize().with_context(|| format!("cannot find {}", dir.display()))
}

/// Held while a cluster starts, so that two starts of one directory do not mix.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

fn load_or_make_config(dir: &Path, options: &StartOptions) -> Result<ClusterConfig> {
    let path = dir.join(CLUSTER_FILE);
    let mut config = if path.exists() {
        ClusterConfig::load(&path)?
    } else {
        let config = ClusterConfig::generate(&Generate {
            path,
            host: options.bind.clone().unwrap_or_else(|| "127.0.0.1".into()),
            port: options.port.unwrap_or(PORT_DEFAULT),
            io_servers: options.io_servers.unwrap_or(4),
            sync: options.sync.unwrap_or_default(),
            strip_bytes: weft_server::config::STRIP_BYTES_DEFAULT,
        })?;
        weft_server::create_keys(dir)?;
        config
    };
    let there = config.io_servers().count();
    if let Some(wanted) = options.io_servers
        && usize::from(wanted) != there
    {
        bail!(
            "the cluster in {} has {there} I/O servers and its files are striped over them; \
             leave out --io, or choose a new directory for {wanted}",
            dir.display()
        );
    }
    if let Some(sync) = options.sync {
        config.servers.iter_mut().for_each(|server| server.sync = sync);
    }
    ports::assign(&mut config, options.bind.as_deref(), options.port)?;
    shorten_sockets(&mut config)?;
    config.save()?;
    Ok(config)
}

/// A Unix socket's path has a small limit; the sockets of a cluster deep in a tree go to /tmp.
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
        .with_context(|| format!("cannot make {} for the servers' sockets", runtime.display()))?;
    for server in &mut config.servers {
        server.socket = Some(runtime.join(format!("{}.sock", server.name)));
    }
    Ok(())
}

fn spawn_servers(dir: &Path, config: &ClusterConfig, lifetime: Lifetime) -> Result<LocalCluster> {
    let url =
        format!("weft://{}/", config.meta_servers().next().expect("a checked file has one").addresses[0]);
    let mut cluster = LocalCluster { state: RunState::new(url)?, dir: dir.to_owned(), children: Vec::new() };
    for server in &config.servers {
        if let Err(error) = cluster.spawn(config, server, lifetime) {
            cluster.stop();
            return Err(error);
        }
    }
    Ok(cluster)
}

fn spawn_server(config: &Path, name: &str, log: &Path, lifetime: Lifetime) -> Result<Child> {
    let open = OpenOptions::new().create(true).append(true).open(log);
    let log_file = open.with_context(|| format!("cannot write the log {}", log.display()))?;
    let program = std::env::current_exe().context("cannot find this program to start servers from")?;
    let mut command = Command::new(&program);
    command.arg("serve").arg("--config").arg(config).arg("--name").arg(name);
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

/// The process of `command` will get SIGTERM when the calling thread ends, however it ends. A Ctrl-C at the terminal does not
/// reach it: that is for the parent, which ends its children in order.
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
    fn spawn(&mut self, config: &ClusterConfig, server: &ServerConfig, lifetime: Lifetime) -> Result<()> {
        let log = self.dir.join("log").join(format!("{}.log", server.name));
        let child = spawn_server(&config.path, &server.name, &log, lifetime)?;
        let pid = child.id();
        self.children.push((server.name.clone(), child));
        self.state.add(server, pid, log)
    }

    /// Waits until every server answers.
    fn wait_until_ready(&mut self, pause: &mut dyn FnMut(Duration) -> bool) -> Result<()> {
        let key = weft_server::load_key(&self.client_key_path())?;
        let options = ConnectOptions { key: Some(key), retry_timeout_ms: 0, ..ConnectOptions::default() };
        let url = Url::parse(&self.state.url)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Some(died) = self.reap().into_iter().next() {
                bail!("server {died}");
            }
            let waiting = match Client::connect(&url, options.clone()) {
                Ok(client) => client.server_status(false).into_iter().find_map(|(_, answer)| answer.err()),
                Err(error) => Some(error),
            };
            let Some(error) = waiting else { return Ok(()) };
            if Instant::now() > deadline {
                let (waited, dir) = (READY_TIMEOUT.as_secs(), self.dir.display());
                bail!("the cluster is not ready after {waited} s: {error}; see {dir}/log");
            }
            if !pause(Duration::from_millis(10)) {
                bail!("interrupted while the servers started");
            }
        }
    }

    /// Servers that ended since the last call: name, how it ended, and the last line of its log.
    pub fn reap(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        let dir = &self.dir;
        self.children.retain_mut(|(name, child)| match child.try_wait() {
            Ok(Some(status)) => {
                let log = dir.join("log").join(format!("{name}.log"));
                ended.push(format!(
                    "{name} has ended ({status}); {} says: {}",
                    log.display(),
                    last_line(&log)
                ));
                false
            }
            _ => true,
        });
        ended
    }

    /// How many servers run.
    pub fn running(&self) -> usize {
        self.children.len()
    }

    /// Ends all servers and forgets them.
    pub fn stop(&mut self) {
        self.state.stop(STOP_TIMEOUT);
        for (_, child) in &mut self.children {
            // It has been ended, or was no process of ours any more; either way nothing is left to wait for.
            let _ = child.wait();
        }
        self.children.clear();
        RunState::remove(&self.dir);
    }

    /// The file with the clients' key.
    pub fn client_key_path(&self) -> PathBuf {
        self.dir.join(CLIENT_KEY_FILE)
    }
}

/// The last line of a log that says something.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_string()
}

/// Puts the clients' key of a cluster where `weft` and the client library look for it, readable by the user only.
pub fn install_client_key(key_file: &Path, url: &str) -> Result<PathBuf> {
    let server = Url::parse(url)?.server();
    let installed = installed_key_path(&server).with_context(|| {
        format!("HOME is not set; without a home the clients' key is in {} only", key_file.display())
    })?;
    let text = std::fs::read(key_file).with_context(|| format!("cannot read {}", key_file.display()))?;
    let dir = installed.parent().expect("a key file is in a directory");
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("cannot make {}", dir.display()))?;
    let fresh = dir.join(format!(".new-{}", std::process::id()));
    let written = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&fresh);
    written
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| std::fs::rename(&fresh, &installed))
        .with_context(|| format!("cannot write {}", installed.display()))?;
    Ok(installed)
}

/// Room on the file system of a directory, in bytes.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    let mut space = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string and `space` has room for the answer, which is read only when it was given.
    let space = unsafe {
        if libc::statvfs(path.as_ptr(), space.as_mut_ptr()) != 0 {
            return None;
        }
        space.assume_init()
    };
    Some(space.f_bavail * space.f_frsize)
}

/// A descriptor of a process that stays its own even when the number is given to another.
pub(crate) struct ProcessHandle(std::os::fd::OwnedFd);

impl ProcessHandle {
    /// Of a process of this number, if there is one.
    pub(crate) fn open(pid: u32) -> Option<ProcessHandle> {
        // SAFETY: the call takes two integers; a result that is not negative is a new descriptor, which nobody else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            (fd >= 0).then(|| ProcessHandle(std::os::fd::FromRawFd::from_raw_fd(fd as i32)))
        }
    }

    /// Sends a signal; a process that has ended does not mind.
    pub(crate) fn signal(&self, signal: i32) {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and no information is passed.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, no_info, 0) };
    }

    /// Waits until it has ended; false: it has not within this time.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut entry = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is passed and it lives through the call.
        unsafe { libc::poll(&mut entry, 1, timeout.as_millis() as i32) > 0 }
    }
}
