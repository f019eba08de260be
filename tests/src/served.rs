//! A cluster of single server processes, each of which a test can kill, stop and start again.
//!
//! ```no_run
//! let mut cluster = weft_tests::Served::start(2);
//! cluster.kill("io1");
//! cluster.spawn("io1");
//! cluster.wait_ready("io1");
//! ```
//!
//! The servers are made by `weft init` and run by `weft serve`, as on several hosts. They are children of the test's thread and
//! die with it, however it ends: start and restart them from the thread that holds the [`Served`].

use crate::{Mount, free_ports, temporary_dir, wait_until, weft_bin};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use weft_client::{Client, ConnectOptions, Transport, Url};
use weft_test_needs::Need;
use weft_wire::keys::IssuedKey;

/// Time that a server has to come up, and to end when it is asked to.
const SERVER_TIMEOUT: Duration = Duration::from_secs(30);

/// A command that runs another with a small file system of its own on `dir`, which begins with what is there: it goes
/// with the process. `None` where there can be none; the calling test counts as skipped then.
pub fn with_small_disk(dir: &str, bytes: u64) -> Option<Vec<String>> {
    let script = format!(
        "cp -a {dir} {dir}.made && mount -t tmpfs -o size={bytes} tmpfs {dir} && cp -a {dir}.made/. {dir} && exec \"$@\""
    );
    // SAFETY: no preconditions.
    let flags = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
    let command = ["unshare", flags, "sh", "-c", &script, "sh"];
    Need::MountNamespaces.is_met().then(|| command.map(str::to_string).to_vec())
}

/// What is wanted of a cluster.
#[derive(Debug, Clone)]
pub struct ServedOptions {
    /// Number of I/O servers.
    pub io_servers: u16,
    /// Whether what is acknowledged is on the disk.
    pub sync: bool,
    /// Default strip size in bytes.
    pub strip_bytes: u32,
    /// Commands that a server is started through, by its name: `["ip", "netns", "exec", "x"]`.
    pub through: BTreeMap<String, Vec<String>>,
    /// Address of a server, by its name; `$WEFT_TEST_HOST` or 127.0.0.1 where none is given.
    pub hosts: BTreeMap<String, String>,
}

impl Default for ServedOptions {
    fn default() -> ServedOptions {
        ServedOptions {
            io_servers: 2,
            sync: false,
            strip_bytes: 64 << 10,
            through: BTreeMap::new(),
            hosts: BTreeMap::new(),
        }
    }
}

#[derive(Debug)]
struct Server {
    address: String,
    directory: PathBuf,
    child: Option<Child>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Served {
    dir: TempDir,
    options: ServedOptions,
    servers: BTreeMap<String, Server>,
}

impl Served {
    /// `meta0` and `io0`, `io1`, …, ready.
    pub fn start(io_servers: u16) -> Served {
        Served::start_with(ServedOptions { io_servers, ..ServedOptions::default() })
    }

    /// As [`start`](Served::start), with more to say.
    pub fn start_with(options: ServedOptions) -> Served {
        let mut cluster = Served::init(options);
        let names = cluster.names();
        names.iter().for_each(|name| cluster.spawn(name));
        names.iter().for_each(|name| cluster.wait_ready(name));
        cluster
    }

    /// Only the cluster file and keys; no server runs.
    pub fn init(options: ServedOptions) -> Served {
        let dir = temporary_dir();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("an own directory");
        let names: Vec<_> = std::iter::once("meta0".to_string())
            .chain((0..options.io_servers).map(|id| format!("io{id}")))
            .collect();
        let first_port = free_ports(names.len() as u16);
        let mut init = Command::new(weft_bin());
        init.args(["init", "--strip-bytes", &options.strip_bytes.to_string(), "--dir"])
            .arg(dir.path().join("cluster"));
        init.args(options.sync.then_some("--sync"));
        let mut servers = BTreeMap::new();
        for (name, port) in names.into_iter().zip(first_port..) {
            let host = options.hosts.get(&name).cloned().unwrap_or_else(host);
            let (address, directory) = (format!("{host}:{port}"), dir.path().join(&name));
            fs::create_dir(&directory).expect("a directory in a new one");
            init.arg(if name == "meta0" { "--meta" } else { "--io" });
            init.arg(format!("{address}:{}", directory.display()));
            servers.insert(name, Server { address, directory, child: None });
        }
        crate::expect_success("weft init", &init.output().expect("weft can be run"));
        let cluster = Served { dir, options, servers };
        cluster.names().iter().for_each(|name| cluster.format(name));
        cluster
    }

    /// A server is, or will be, at this address and in this directory, as the cluster file says by now.
    pub fn place(&mut self, name: &str, address: &str, directory: &Path) {
        let child = self.servers.remove(name).and_then(|server| server.child);
        let server = Server { address: address.to_string(), directory: directory.to_path_buf(), child };
        self.servers.insert(name.to_string(), server);
    }

    /// Makes the storage of a server, whose directory has none.
    #[track_caller]
    pub fn format(&self, name: &str) {
        self.serve_once(name, "--format");
    }

    /// `weft serve` of a server with an option more, which must end well.
    #[track_caller]
    fn serve_once(&self, name: &str, option: &str) {
        let mut command = Command::new(weft_bin());
        command.arg("serve").arg("--config").arg(self.config_path()).args(["--name", name, option]);
        crate::expect_success(&format!("{command:?}"), &command.output().expect("weft can be run"));
    }

    /// All servers' names, the metadata server last.
    pub fn names(&self) -> Vec<String> {
        self.servers.keys().cloned().collect()
    }

    /// Starts a server that does not run.
    pub fn spawn(&mut self, name: &str) {
        self.spawn_with(name, &[]);
    }

    /// As [`spawn`](Served::spawn), with more options of `weft serve`.
    pub fn spawn_with(&mut self, name: &str, options: &[&str]) {
        let through = self.options.through.get(name).cloned().unwrap_or_default();
        let config = self.config_path();
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(name)).expect("a log");
        let mut words = through.iter().map(PathBuf::from).chain([weft_bin().to_path_buf()]);
        let mut command = Command::new(words.next().expect("weft at least"));
        command.args(words).arg("serve").arg("--config").arg(config).args(["--name", name]).args(options);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        end_with_parent(&mut command);
        let server = self.server_mut(name);
        assert!(server.child.is_none(), "{name} runs already");
        server.child = Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
    }

    /// Starts a server through a command, now and whenever it is started again.
    pub fn start_through(&mut self, name: &str, through: Vec<String>) {
        self.options.through.insert(name.to_string(), through);
        self.spawn(name);
    }

    /// A cluster of which io1 has a disk of so many bytes; `None` where there can be no such disk.
    pub fn start_with_small_disk(bytes: u64) -> Option<Served> {
        let mut cluster = Served::init(ServedOptions::default());
        let dir = cluster.directory("io1").display().to_string();
        let through = with_small_disk(&dir, bytes)?;
        cluster.start_through("io1", through);
        for name in ["meta0", "io0"] {
            cluster.spawn(name);
        }
        cluster.names().iter().for_each(|name| cluster.wait_ready(name));
        Some(cluster)
    }

    /// Waits until a server accepts connections.
    #[track_caller]
    pub fn wait_ready(&mut self, name: &str) {
        let log = self.log_path(name);
        let server = self.server_mut(name);
        let child = server.child.as_mut().expect("it was started");
        wait_until(&format!("{name} accepts connections"), SERVER_TIMEOUT, || {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                panic!("{name} ended with {status}:\n{}", fs::read_to_string(&log).unwrap_or_default());
            }
            TcpStream::connect(&server.address).is_ok()
        });
    }

    /// Ends a server with SIGKILL, in the middle of whatever it does.
    pub fn kill(&mut self, name: &str) {
        let mut child = self.server_mut(name).child.take().expect("it runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("a child can be waited for");
    }

    /// Asks a server to end, and checks that it ends well.
    #[track_caller]
    pub fn stop(&mut self, name: &str) {
        let log = self.log_path(name);
        let mut child = self.server_mut(name).child.take().expect("it runs");
        signal(child.id(), libc::SIGTERM);
        let mut status = None;
        wait_until(&format!("{name} ends when asked to"), SERVER_TIMEOUT, || {
            status = child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        let status = status.expect("it was waited for");
        assert!(
            status.success(),
            "{name} ended with {status}:\n{}",
            fs::read_to_string(log).unwrap_or_default()
        );
    }

    /// Kills a server and has it run again.
    #[track_caller]
    pub fn crash(&mut self, name: &str) {
        self.kill(name);
        self.spawn(name);
        self.wait_ready(name);
    }

    /// Process of a running server.
    pub fn pid(&self, name: &str) -> u32 {
        self.server(name).child.as_ref().expect("it runs").id()
    }

    /// Whether a server still runs.
    pub fn is_running(&mut self, name: &str) -> bool {
        self.server_mut(name)
            .child
            .as_mut()
            .is_some_and(|child| child.try_wait().is_ok_and(|ended| ended.is_none()))
    }

    /// How a server has ended by itself; it may be started again.
    #[track_caller]
    pub fn ended(&mut self, name: &str) -> ExitStatus {
        let mut child = self.server_mut(name).child.take().expect("it was started");
        child.wait().expect("a child can be waited for")
    }

    /// What a server has said so far, over all its runs.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_path(name)).unwrap_or_default()
    }

    /// `host:port` of a server.
    pub fn address(&self, name: &str) -> &str {
        &self.server(name).address
    }

    /// Unix socket of a server.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.server(name).directory.join("weft.sock")
    }

    /// Storage directory of a server.
    pub fn directory(&self, name: &str) -> &Path {
        &self.server(name).directory
    }

    /// A place for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// `weft://host:port/`
    pub fn url(&self) -> String {
        format!("weft://{}/", self.address("meta0"))
    }

    /// The URL of a path.
    pub fn at(&self, path: &str) -> String {
        format!("weft://{}/{}", self.address("meta0"), path.trim_start_matches('/'))
    }

    /// The file with the clients' key.
    pub fn key_file(&self) -> PathBuf {
        self.dir.path().join("cluster/client.key")
    }

    /// The clients' key: a host's, whose root is root.
    pub fn key(&self) -> IssuedKey {
        weft_client::read_key_file(&self.key_file()).expect("weft init wrote it")
    }

    /// Mounts the root directory.
    #[track_caller]
    pub fn mount(&self) -> Mount {
        crate::mount_in(self.dir.path(), |arguments| self.command(arguments), &self.url(), &[])
    }

    /// As [`mount`](Served::mount), by another `weft`.
    #[track_caller]
    pub fn mount_by(&self, program: &Path) -> Mount {
        let command = |arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).env("WEFT_KEY_FILE", self.key_file());
            command
        };
        crate::mount_in(self.dir.path(), command, &self.url(), &[])
    }

    /// As [`mount`](Served::mount), with more arguments for `weft mount`.
    #[track_caller]
    pub fn mount_with(&self, arguments: &[&str]) -> Mount {
        crate::mount_in(self.dir.path(), |arguments| self.command(arguments), &self.url(), arguments)
    }

    /// As [`mount`](Served::mount), where `through` takes the call of `weft` to: another network, say.
    #[track_caller]
    pub fn mount_through(&self, through: &[&str], arguments: &[&str]) -> Mount {
        let command = |arguments: &[&str]| {
            let mut command = Command::new(through[0]);
            command.args(&through[1..]).arg(weft_bin()).args(arguments);
            command.env("WEFT_KEY_FILE", self.key_file());
            command
        };
        crate::mount_in(self.dir.path(), command, &self.url(), arguments)
    }

    /// A client of this process.
    #[track_caller]
    pub fn client(&self, transport: Transport) -> Client {
        let usual = ConnectOptions::default();
        // In an emulated guest everything takes longer.
        let longer = if std::env::var_os("WEFT_TEST_HOST").is_some() { 10 } else { 1 };
        let connect_timeout_ms = usual.connect_timeout_ms * longer;
        self.client_with(ConnectOptions { transport: Some(transport), connect_timeout_ms, ..usual })
    }

    /// As [`client`](Served::client), with more to say; the key is added.
    #[track_caller]
    pub fn client_with(&self, options: ConnectOptions) -> Client {
        let options = ConnectOptions { key: Some(self.key()), ..options };
        let url = Url::parse(&self.url()).expect("a URL");
        Client::connect(&url, options).unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }

    /// A call of `weft` with the clients' key.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(weft_bin());
        command.args(arguments).env("WEFT_KEY_FILE", self.key_file());
        command
    }

    /// Runs `weft` and returns what it printed; panics if it failed.
    #[track_caller]
    pub fn weft(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("weft can be run");
        crate::expect_success(&format!("weft {}", arguments.join(" ")), &output)
    }

    /// What all servers have said, for a failing test.
    pub fn logs(&self) -> String {
        self.names().iter().map(|name| format!("--- {name}\n{}", self.log(name))).collect()
    }

    /// The cluster file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("cluster/weft.toml")
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    fn server(&self, name: &str) -> &Server {
        self.servers.get(name).unwrap_or_else(|| panic!("there is no server {name}"))
    }

    fn server_mut(&mut self, name: &str) -> &mut Server {
        self.servers.get_mut(name).unwrap_or_else(|| panic!("there is no server {name}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for server in self.servers.values_mut() {
            if let Some(child) = &mut server.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Where servers are that nothing else is said of: `$WEFT_TEST_HOST`, else 127.0.0.1.
pub fn host() -> String {
    std::env::var("WEFT_TEST_HOST").unwrap_or_else(|_| "127.0.0.1".to_string())
}

/// Has a command's process die with the thread that starts it.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only one system call without memory is made.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Sends a signal to a process of the test's own.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Stops a process (SIGSTOP). When this returns none of its threads runs: the signal reaches them one after the other, and on a busy
/// machine some go on for a while.
#[track_caller]
pub fn freeze(pid: u32) {
    signal(pid, libc::SIGSTOP);
    let is_stopped = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state is behind the name, which may have anything in it but ends with the last parenthesis.
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    };
    wait_until("all threads have stopped", Duration::from_secs(30), || {
        let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
        tasks.all(is_stopped)
    });
}

/// Resident memory of a process in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib << 10
}
