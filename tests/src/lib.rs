//! Clusters and mounts of real processes, for black-box tests.
//!
//! ```no_run
//! let cluster = weft_tests::Cluster::start(2);
//! let mount = cluster.mount();
//! mount.sh("echo hello > file; test \"$(cat file)\" = hello");
//! ```
//!
//! Everything lives in a temporary directory. Dropping a [`Mount`] unmounts it, dropping a [`Cluster`] stops its servers; both
//! check that nothing is left behind. The program under test is `$WEFT_BIN`, else it is built first.

pub mod check;
mod counts;
pub mod ganesha;
pub mod guest;
mod load;
mod locker;
pub mod mpi;
mod network;
mod packages;
pub mod pattern;
pub mod raw;
mod served;
mod ssh_hosts;
pub mod suite;

pub use counts::{asked, gauge};
pub use load::{Load, weft_load};
pub use locker::{Locker, weft_locker};
pub use network::Network;
pub use packages::package;
pub use served::{
    Served, ServedOptions, end_with_parent, freeze, host, resident_bytes, signal, with_small_disk,
};
pub use ssh_hosts::{SshHosts, USER};

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weft_client::{Client, ConnectOptions, Url};
pub use weft_test_needs::free_ports;

/// The test runner sets it: all that tests start is built.
const BUILT: &str = "WEFT_TEST_BUILT";
/// Longest time for processes to end and mounts to go.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The `weft` program: `$WEFT_BIN`, else built from this workspace in the profile of the running test. `weft-bench`, which `weft bench`
/// becomes, is beside it.
pub fn weft_bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        if let Some(given) = std::env::var_os("WEFT_BIN") {
            return PathBuf::from(given);
        }
        built(&["weft-cli", "weft-bench"], "weft")
    })
}

/// What clients of tests use where nothing is asked for, as `weft status` names it: `shm` on this host, or as `$WEFT_TRANSPORT` says.
pub fn usual_transport() -> &'static str {
    match std::env::var("WEFT_TRANSPORT").as_deref() {
        Ok("rdma") => "verbs",
        Ok("tcp") => "tcp",
        _ => "shm",
    }
}

/// The library behind `weft run`: next to `$WEFT_BIN`, else built from this workspace.
pub fn preload_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let name = "libweft_preload.so";
        if let Some(given) = std::env::var_os("WEFT_BIN") {
            return PathBuf::from(given).with_file_name(name);
        }
        built(&["weft-preload"], name)
    })
}

/// The `weft` of the release after this one, built from this workspace: it speaks one version of the protocol more.
pub fn next_weft_bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| {
        built_with(&["--package", "weft-cli", "--bin", "weft-next", "--features", "next"], "weft-next")
    })
}

/// The library for programs in C: next to `$WEFT_BIN`, else built from this workspace. The static one is beside it.
pub fn c_library() -> PathBuf {
    let name = "libweft.so";
    match std::env::var_os("WEFT_BIN") {
        Some(given) => PathBuf::from(given).with_file_name(name),
        None => built(&["weft-capi"], name),
    }
}

/// What `packages` make under this name, built from this workspace in the profile of the running test.
pub(crate) fn built(packages: &[&str], name: &str) -> PathBuf {
    let words: Vec<_> = packages.iter().flat_map(|package| ["--package", package]).collect();
    built_with(&words, name)
}

fn built_with(words: &[&str], name: &str) -> PathBuf {
    if std::env::var_os(BUILT).is_none() {
        let build = cargo("build", profile()).args(words).status();
        assert!(build.expect("cargo can be run").success(), "{name} cannot be built");
    }
    target_dir().join(name)
}

/// A cargo command in this workspace.
pub(crate) fn cargo(command: &str, profile: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([command, "--quiet", "--profile", profile]);
    cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    cargo
}

/// The profile of the running test.
pub(crate) fn profile() -> &'static str {
    if target_dir().ends_with("release") { "release" } else { "dev" }
}

/// `target/debug` or `target/release`, where the running test is from.
pub fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    let deps = test.parent().expect("a program is in a directory");
    if deps.ends_with("deps") { deps.parent().unwrap_or(deps).to_path_buf() } else { deps.to_path_buf() }
}

/// Panics with everything the program said unless it ended with success.
#[track_caller]
pub fn expect_success(what: &str, output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", output.status);
    stdout
}

/// Runs a script of Python and returns what it printed; panics if it failed.
#[track_caller]
pub fn python(script: &str, arguments: &[impl AsRef<std::ffi::OsStr>]) -> String {
    let output = Command::new("python3").args(["-c", script]).args(arguments).output();
    expect_success("python3", &output.expect("python3 can be run"))
}

/// Waits until `condition` holds; says what did not come about otherwise.
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < timeout, "{what}: not after {} s", timeout.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes whose command line names `text`.
pub fn processes_naming(text: &str) -> Vec<u32> {
    let is_meant = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != std::process::id() && String::from_utf8_lossy(&command).contains(text)
    };
    let entries = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_meant).collect()
}

/// A fresh directory: below `$WEFT_TEST_DIR`, else in memory where there is /dev/shm.
pub fn temporary_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let fallback = || if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let parent = std::env::var_os("WEFT_TEST_DIR").map_or_else(fallback, PathBuf::from);
    tempfile::Builder::new().prefix("weft-test-").tempdir_in(parent).expect("a temporary directory")
}

/// Servers that a test may add to a cluster.
const ADDED_SERVERS_MAX: u16 = 3;

/// A running cluster; stopped when dropped.
pub struct Cluster {
    dir: TempDir,
    url: String,
}

impl Cluster {
    /// Starts a metadata server and `io_servers` I/O servers in a fresh directory: below `$WEFT_TEST_DIR`, else in
    /// memory where there is /dev/shm. They listen at `$WEFT_TEST_HOST` where that is given.
    pub fn start(io_servers: u16) -> Cluster {
        Cluster::start_with(io_servers, &[])
    }

    /// As [`start`](Cluster::start), with more arguments for `weft up`.
    pub fn start_with(io_servers: u16, arguments: &[&str]) -> Cluster {
        let mut cluster = Cluster { dir: temporary_dir(), url: String::new() };
        // A server that is added gets the port after those that there are.
        let port = free_ports(io_servers + 1 + ADDED_SERVERS_MAX).to_string();
        let host = std::env::var("WEFT_TEST_HOST").ok();
        let bind: Vec<&str> = host.iter().flat_map(|host| ["--bind", host]).collect();
        cluster.up(io_servers, &[arguments, &bind, &["--port", &port]].concat());
        cluster
    }

    /// Starts the servers (again); the data of an earlier start is found again.
    pub fn up(&mut self, io_servers: u16, arguments: &[&str]) {
        let io_servers = io_servers.to_string();
        let mut command = self.command(&["up", "--detach", "--json", "--io", &io_servers, "--dir"]);
        command.arg(self.storage()).args(arguments);
        let output = command.output().expect("weft can be run");
        let said = expect_success("weft up", &output);
        let answer: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        self.url = answer["url"].as_str().unwrap_or_else(|| panic!("no url in {said}")).to_string();
    }

    /// Stops the servers.
    pub fn down(&self) {
        let output = self.command(&["down", "--dir"]).arg(self.storage()).output().expect("weft can be run");
        expect_success("weft down", &output);
    }

    /// `weft://host:port/`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where the servers keep their files.
    pub fn storage(&self) -> PathBuf {
        self.dir.path().join("storage")
    }

    /// A place outside the file system for the test's own files.
    pub fn scratch(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).expect("a directory in the temporary directory");
        path
    }

    /// The file with the clients' key.
    pub fn key_file(&self) -> PathBuf {
        self.storage().join("client.key")
    }

    /// A call of `weft` with the clients' key, which leaves the user's own configuration alone.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(weft_bin());
        command.args(arguments).env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME");
        command
    }

    /// Runs `weft` and returns what it printed; panics if it failed.
    #[track_caller]
    pub fn weft(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("weft can be run");
        expect_success(&format!("weft {}", arguments.join(" ")), &output)
    }

    /// Mounts the root directory.
    #[track_caller]
    pub fn mount(&self) -> Mount {
        self.mount_with(self.url(), &[])
    }

    /// Mounts `url` with more arguments for `weft mount`.
    #[track_caller]
    pub fn mount_with(&self, url: &str, arguments: &[&str]) -> Mount {
        mount_in(self.dir.path(), |arguments| self.command(arguments), url, arguments)
    }

    /// A mount whose process was killed, to be detached by who asks for it.
    #[track_caller]
    pub fn dead_mount(&self) -> PathBuf {
        let dir = self.scratch("dead");
        let mut command = self.command(&["mount", "--foreground", self.url()]);
        let mut mount = command.arg(&dir).stderr(Stdio::null()).spawn().expect("weft can be run");
        wait_until("it is mounted", END_TIMEOUT, || is_mounted(&dir));
        mount.kill().expect("it runs");
        mount.wait().expect("it ends");
        dir
    }

    /// A client of this process.
    #[track_caller]
    pub fn client(&self) -> Client {
        let key = Some(weft_client::read_key_file(&self.key_file()).expect("weft up wrote it"));
        let url = Url::parse(self.url()).expect("a URL");
        Client::connect(&url, ConnectOptions { key, ..ConnectOptions::default() })
            .unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Mounts `url` on a new directory below `parent`, by a call of `weft` that `command` makes.
#[track_caller]
pub fn mount_in(parent: &Path, command: impl Fn(&[&str]) -> Command, url: &str, arguments: &[&str]) -> Mount {
    assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is not there: tests of the mount cannot run");
    let dir = tempfile::Builder::new().prefix("mount-").tempdir_in(parent).expect("a mount point");
    let output = command(&["mount", url]).arg(dir.path()).args(arguments).output().expect("weft can be run");
    expect_success("weft mount", &output);
    let mount = Mount { dir: Some(dir), log: parent.to_path_buf() };
    assert!(is_mounted(mount.path()), "weft mount returned before the mount was live");
    mount
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let storage = self.storage();
        let output = self.command(&["down", "--dir"]).arg(&storage).output();
        if std::thread::panicking() {
            return;
        }
        expect_success("weft down", &output.expect("weft can be run"));
        let name = storage.to_string_lossy().into_owned();
        wait_until("no server process is left", END_TIMEOUT, || processes_naming(&name).is_empty());
    }
}

/// Whether a Weft file system is mounted on `dir`.
pub fn is_mounted(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    table.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == dir.to_str() && fields.next() == Some("fuse.weft")
    })
}

/// A mounted file system; unmounted when dropped.
pub struct Mount {
    dir: Option<TempDir>,
    log: PathBuf,
}

impl Mount {
    /// The process that serves it.
    pub fn pid(&self) -> u32 {
        let name = self.path().to_string_lossy().into_owned();
        *processes_naming(&name).first().expect("a mount has a process")
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.as_ref().map_or(&self.log, TempDir::path)
    }

    /// A path in it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path().join(path)
    }

    /// Runs a bash script in the mount's root directory; panics if any command of it failed, else returns what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        sh_in(self.path(), script)
    }

    /// `weft umount`, as a person would call it.
    pub fn umount(&self, arguments: &[&str]) -> Output {
        Command::new(weft_bin())
            .arg("umount")
            .args(arguments)
            .arg(self.path())
            .output()
            .expect("weft can be run")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if is_mounted(dir.path()) {
            let run = |arguments: &[&str]| Command::new(weft_bin()).args(arguments).arg(dir.path()).output();
            let good =
                |output: &io::Result<Output>| output.as_ref().is_ok_and(|output| output.status.success());
            let mut output = run(&["umount"]);
            // A child of another test may still have, between its fork and its exec, what this process had open here.
            let patience = Instant::now() + END_TIMEOUT;
            while !good(&output) && !std::thread::panicking() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(200));
                output = run(&["umount"]);
            }
            if !good(&output) {
                let _ = Command::new("umount").arg("-l").arg(dir.path()).output();
            }
            if !std::thread::panicking() {
                expect_success("weft umount", &output.expect("weft can be run"));
            }
        }
        if std::thread::panicking() {
            return;
        }
        let name = dir.path().to_string_lossy().into_owned();
        wait_until("no mount process is left", END_TIMEOUT, || processes_naming(&name).is_empty());
    }
}

/// Runs a bash script in `dir`; panics if any command of it failed, else returns what it printed.
#[track_caller]
pub fn sh_in(dir: &Path, script: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", script]).current_dir(dir);
    // No configuration of the user's reaches git, and no locale changes sort's order.
    bash.env("LC_ALL", "C").env("HOME", "/nonexistent").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = bash.output().expect("bash can be run");
    expect_success(script, &output)
}

/// Sets a flag when it goes out of scope: threads of a scope that work until then end also where the test panics,
/// which would wait for them for ever.
#[derive(Debug)]
pub struct SetAtEnd<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }
}
