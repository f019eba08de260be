//! Servers that are killed, that hang, and that are cut off: how long whoever needs them waits, that nobody else does, and that all
//! goes on when they are back. On a mount, with a short deadline.
//!
//! The bounds are what is promised and a margin for a machine that is busy with other tests.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_client::{Client, ConnectOptions, ErrorKind, OpenOptions, Transport};
use weft_test_needs::Need;
use weft_tests::{Mount, Served, ServedOptions, expect_success, freeze, gauge, signal, wait_until};
use weft_wire::Op;
use weft_wire::messages::LayoutWish;

const KIB: usize = 1 << 10;
const DEADLINE_MS: u64 = 4_000;
/// One system call that needs the dead server, where it is not known to be dead.
const FIRST_MAX: Duration = Duration::from_millis(DEADLINE_MS + 4_000);
/// Any other.
const AT_ONCE: Duration = Duration::from_millis(DEADLINE_MS / 2);
/// How soon all goes on when the server is back (2 s are promised).
const BACK_MAX: Duration = Duration::from_secs(10);
/// How soon processes end that wait for a dead server and get a signal; short against the deadline that they would wait for.
const INTERRUPTED_MAX: Duration = Duration::from_secs(15);
/// No call may take longer, whatever it is that fails.
const HANGS: Duration = Duration::from_secs(100);
/// Longer than a server that did not remove data files is left alone (5 s).
const REMOVED_AGAIN: Duration = Duration::from_secs(6);
/// More than there are threads in a mount.
const WAITING: usize = 12;

/// How a server goes away and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Killed,
    Hung,
    CutOff,
}

/// A namespace with a server in it, joined to this one by a cable. Its neighbours' hardware addresses are set, so that packets are
/// lost without a word when the cable is cut.
struct Cable {
    namespace: String,
    near: String,
    subnet: u32,
}

fn run(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    expect_success(line, &output.unwrap_or_else(|error| panic!("{line}: {error}")));
}

impl Cable {
    /// `None` where this user may not make namespaces, which is said.
    fn new() -> Option<Cable> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !Need::NetworkNamespaces.is_met() {
            return None;
        }
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (namespace, near) = (format!("weftd{process}x{number}"), format!("wd{process}x{number}"));
        let cable = Cable { namespace, near, subnet: (process * 7 + number) % 250 };
        let Cable { namespace, near, subnet } = &cable;
        run(&format!("ip netns add {namespace}"));
        run(&format!(
            "ip link add {near} address 02:00:00:00:00:01 type veth peer name far address 02:00:00:00:00:02 netns {namespace}"
        ));
        run(&format!("ip addr add 10.79.{subnet}.1/24 dev {near}"));
        run(&format!("ip link set {near} up"));
        run(&format!("ip -n {namespace} addr add 10.79.{subnet}.2/24 dev far"));
        run(&format!("ip -n {namespace} link set far up"));
        run(&format!("ip -n {namespace} link set lo up"));
        run(&format!("ip neigh replace 10.79.{subnet}.2 lladdr 02:00:00:00:00:02 dev {near} nud permanent"));
        Some(cable)
    }

    fn set(&self, state: &str) {
        run(&format!("ip -n {} link set far {state}", self.namespace));
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).output();
        let _ = Command::new("ip").args(["link", "del", &self.near]).output();
    }
}

/// One test at a time: a process that a test starts closes what the others have open before it runs, and would wait for their dead
/// servers.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cluster one of whose servers goes away. (Fields are dropped in this order.)
struct Scene {
    mount: Option<Mount>,
    cluster: Served,
    cable: Option<Cable>,
    _alone: MutexGuard<'static, ()>,
    victim: &'static str,
    fate: Fate,
}

impl Scene {
    fn new(victim: &'static str, fate: Fate, more: &[&str]) -> Option<Scene> {
        Scene::with_deadline(victim, fate, more, Duration::from_millis(DEADLINE_MS))
    }

    fn with_deadline(victim: &'static str, fate: Fate, more: &[&str], deadline: Duration) -> Option<Scene> {
        let alone = alone();
        let mut options = ServedOptions::default();
        let mut cable = None;
        if fate == Fate::CutOff {
            let new = Cable::new()?;
            let through = ["ip", "netns", "exec", &new.namespace].map(str::to_string).to_vec();
            options.through.insert(victim.into(), through);
            for name in ["meta0", "io0", "io1"] {
                let end = if name == victim { 2 } else { 1 };
                options.hosts.insert(name.into(), format!("10.79.{}.{end}", new.subnet));
            }
            cable = Some(new);
        }
        let cluster = Served::start_with(options);
        let deadline = deadline.as_millis().to_string();
        let mut arguments = vec!["--retry-timeout-ms", &deadline];
        // Also where the other side is in a namespace its socket is to be found.
        arguments.extend(if fate == Fate::CutOff { ["--transport", "tcp"].as_slice() } else { &[] });
        arguments.extend(more);
        let mount = cluster.mount_with(&arguments);
        Some(Scene { mount: Some(mount), cluster, cable, _alone: alone, victim, fate })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.as_ref().expect("it is mounted").join(name)
    }

    fn go_away(&mut self) {
        match self.fate {
            Fate::Killed => self.cluster.kill(self.victim),
            Fate::Hung => freeze(self.cluster.pid(self.victim)),
            Fate::CutOff => self.cable.as_ref().expect("made for it").set("down"),
        }
    }

    fn come_back(&mut self) {
        match self.fate {
            Fate::Killed => {
                self.cluster.spawn(self.victim);
                self.cluster.wait_ready(self.victim);
            }
            Fate::Hung => signal(self.cluster.pid(self.victim), libc::SIGCONT),
            Fate::CutOff => self.cable.as_ref().expect("made for it").set("up"),
        }
    }

    /// A client of the test's own, which writes where the test wants it.
    fn client(&self) -> Client {
        self.cluster.client(Transport::Tcp)
    }
}

fn layout(server_count: u16, first: u16) -> LayoutWish {
    LayoutWish { strip_bytes: 64 << 10, server_count, first_server_plus_1: first + 1 }
}

fn write_file(client: &Client, path: &str, layout: LayoutWish, bytes: usize) {
    let options = OpenOptions::new().write(true).create(true).layout(layout);
    let file = client.open(path, &options).expect("all servers run");
    file.write_at(&vec![7; bytes], 0).expect("all servers run");
    file.close().expect("all servers run");
}

/// Runs a call on a thread of its own; how long it took.
#[track_caller]
fn timed<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> (T, Duration) {
    let (sender, done) = channel();
    let start = Instant::now();
    std::thread::spawn(move || sender.send(call()));
    let result = done.recv_timeout(HANGS).unwrap_or_else(|_| panic!("{what} hangs"));
    eprintln!("{what}: {:?}", start.elapsed());
    (result, start.elapsed())
}

#[track_caller]
fn within<T: Send + 'static>(
    what: &str,
    most: Duration,
    call: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let (result, took) = timed(what, call);
    let said = result.as_ref().err().map(ToString::to_string);
    assert!(took < most, "{what} took {took:?} ({said:?})");
    result
}

/// A call that needs the dead server.
#[track_caller]
fn fails<T: Send + 'static>(
    what: &str,
    most: Duration,
    call: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) {
    let Err(error) = within(what, most, call) else { panic!("{what} needs the dead server, and succeeds") };
    let meant = [libc::ETIMEDOUT, libc::EHOSTDOWN];
    assert!(error.raw_os_error().is_some_and(|errno| meant.contains(&errno)), "{what}: {error}");
}

#[track_caller]
fn works<T: Send + 'static>(what: &str, call: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> T {
    within(what, AT_ONCE, call).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Reads all of a file in many requests, past the page cache.
fn read_all(path: &Path) -> std::io::Result<Vec<u8>> {
    let output = Command::new("dd")
        .arg(format!("if={}", path.display()))
        .args(["bs=64k", "iflag=direct", "status=none"])
        .output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    // The errno of what dd met.
    let mut byte = [0; 4096];
    File::open(path)?.read_at(&mut byte, 64 << 10)?;
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn shell(line: String) -> std::io::Result<String> {
    let output = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(std::io::Error::other(format!("{said}{}", String::from_utf8_lossy(&output.stderr))))
}

fn a_dead_io_server(fate: Fate) {
    let Some(mut scene) = Scene::new("io1", fate, &[]) else { return };
    let client = scene.client();
    client.mkdir("/many", 0o755).expect("all servers run");
    for number in 0..10 {
        write_file(&client, &format!("/many/f{number}"), layout(2, 0), 300 * KIB);
    }
    write_file(&client, "/both", layout(2, 0), 8 << 20);
    write_file(&client, "/other", layout(1, 0), 8 << 20);
    // Open for writing, so that their sizes are asked of the servers.
    let live: Vec<_> = (0..10)
        .map(|number| {
            let path = format!("/many/f{number}");
            client.open(path.as_str(), &OpenOptions::new().write(true)).expect("all servers run")
        })
        .collect();
    drop(client);
    let path = |name: &str| scene.path(name);
    let [both, other, many] = ["both", "other", "many"].map(path);
    let held =
        std::sync::Arc::new(File::options().read(true).write(true).open(&both).expect("all servers run"));
    let root = scene.path("");
    scene.go_away();

    // More callers than the mount has threads find the server dead, and nobody else waits for them.
    let (waiters, waited) = channel();
    for number in 0..WAITING {
        let (held, waiters) = (held.clone(), waiters.clone());
        std::thread::spawn(move || {
            let start = Instant::now();
            let read = held.read_at(&mut [0; 4096], ((2 * number + 1) * 64 * KIB) as u64);
            waiters.send((read, start.elapsed()))
        });
    }
    std::thread::sleep(Duration::from_millis(500));
    works("read of a file on another server, meanwhile", {
        let other = other.clone();
        move || read_all(&other)
    });
    works("mkdir, meanwhile", {
        let root = root.clone();
        move || fs::create_dir(root.join("meanwhile"))
    });
    for _ in 0..WAITING {
        let (read, took) = waited.recv_timeout(HANGS).expect("a read ends");
        let error = read.expect_err("its server is dead");
        let meant = [libc::ETIMEDOUT, libc::EHOSTDOWN];
        assert!(error.raw_os_error().is_some_and(|errno| meant.contains(&errno)), "{error}");
        assert!(took < FIRST_MAX, "a read took {took:?}");
    }

    // From now on it is known to be dead.
    let at = |call: fn(&Path) -> std::io::Result<()>, path: &Path| {
        let path = path.to_path_buf();
        move || call(&path)
    };
    fails("read in many requests", AT_ONCE, at(|path| read_all(path).map(drop), &both));
    let open_file = held.clone();
    // The second strip, which is on the dead server.
    fails("write", AT_ONCE, move || open_file.write_at(&[1; 64 * KIB], 64 * KIB as u64).map(drop));
    // It is not known how far that came, and the server is not asked.
    works("stat of a file whose writer failed", at(|path| fs::metadata(path).map(drop), &both));
    works("fstat of a file whose writer failed", {
        let open_file = held.clone();
        move || open_file.metadata()
    });
    works("chmod of a file whose writer failed", {
        let path = both.clone();
        move || fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    });
    let open_file = held.clone();
    fails("fsync", AT_ONCE, move || open_file.sync_all());
    // What was written could not be seen to the end: close may say so.
    let _ = within("close", AT_ONCE, move || shell(format!("exec 3<>{}; exec 3>&-", both.display())));
    works("open", at(|path| File::open(path).map(drop), &scene.path("many/f1")));
    works("stat", at(|path| fs::metadata(path).map(drop), &scene.path("many/f2")));
    let listed = works("ls -l", {
        let line = format!("ls -l {}", many.display());
        move || shell(line)
    });
    assert_eq!(listed.lines().filter(|line| line.contains(" f")).count(), 10, "{listed}");
    works("df", {
        let line = format!("df {}", root.display());
        move || shell(line)
    });
    works("readdir", at(|path| fs::read_dir(path).map(drop), &many));
    works("mkdir", at(|path| fs::create_dir(path.join("made")), &root));
    works("rename", at(|path| fs::rename(path.join("f3"), path.join("moved")), &many));
    works("unlink", at(|path| fs::remove_file(path.join("f4")), &many));
    works("read of a file on another server", {
        let other = other.clone();
        move || read_all(&other)
    });

    scene.come_back();
    let start = Instant::now();
    let both = scene.path("both");
    wait_until("reads go on", BACK_MAX, || read_all(&both).is_ok_and(|bytes| bytes.len() == 8 << 20));
    eprintln!("back after {:?}", start.elapsed());
    held.write_at(&[2; 256 * KIB], 0).expect("the open file goes on");
    held.sync_all().expect("the open file goes on");
    assert_eq!(fs::read_dir(&many).expect("it can be listed").count(), 9);
    drop((held, live));
}

#[test]
fn a_killed_io_server_delays_nobody_for_longer_than_the_deadline() {
    a_dead_io_server(Fate::Killed);
}

#[test]
fn a_hung_io_server_delays_nobody_for_longer_than_the_deadline() {
    a_dead_io_server(Fate::Hung);
}

#[test]
fn an_io_server_that_is_cut_off_delays_nobody_for_longer_than_the_deadline() {
    a_dead_io_server(Fate::CutOff);
}

fn first_calls_meet_a_dead_io_server(fate: Fate) {
    // Each call is the first that needs the server, of a mount of its own.
    type Line = fn(&str) -> String;
    let calls: [(&str, bool, Line); 5] = [
        ("cat", false, |dir| format!("cat {dir}/both > /dev/null")),
        ("dd", false, |dir| format!("dd if=/dev/zero of={dir}/both bs=1M count=8 conv=notrunc status=none")),
        ("ls -l", true, |dir| format!("ls -l {dir}/many")),
        ("df", true, |dir| format!("df {dir}")),
        ("unlink", true, |dir| format!("rm {dir}/many/f1")),
    ];
    let Some(mut scene) = Scene::new("io1", fate, &[]) else { return };
    let client = scene.client();
    client.mkdir("/many", 0o755).expect("all servers run");
    for number in 0..10 {
        write_file(&client, &format!("/many/f{number}"), layout(2, 0), 300 * KIB);
    }
    write_file(&client, "/both", layout(2, 0), 8 << 20);
    let deadline = DEADLINE_MS.to_string();
    let transport = if fate == Fate::CutOff { "tcp" } else { "auto" };
    let mounts: Vec<Mount> = calls
        .iter()
        .map(|_| scene.cluster.mount_with(&["--retry-timeout-ms", &deadline, "--transport", transport]))
        .collect();
    // Connected to all servers.
    mounts.iter().for_each(|mount| drop(shell(format!("df {}", mount.path().display()))));
    scene.go_away();
    for ((name, succeeds, line), mount) in calls.iter().zip(&mounts) {
        let line = line(&mount.path().display().to_string());
        // Several system calls, of which one waits.
        let result = within(name, FIRST_MAX, move || shell(line));
        assert_eq!(result.is_ok(), *succeeds, "{name}: {result:?}");
    }
    // All of them end, also with a dead server.
    for mount in mounts {
        let (_, took) = timed("umount", move || drop(mount));
        assert!(took < FIRST_MAX, "umount took {took:?}");
    }
    scene.come_back();
}

#[test]
fn the_first_call_that_needs_a_killed_server_ends_in_time() {
    first_calls_meet_a_dead_io_server(Fate::Killed);
}

#[test]
fn the_first_call_that_needs_a_hung_server_ends_in_time() {
    first_calls_meet_a_dead_io_server(Fate::Hung);
}

#[test]
fn the_first_call_that_needs_a_server_that_is_cut_off_ends_in_time() {
    first_calls_meet_a_dead_io_server(Fate::CutOff);
}

fn a_dead_metadata_server(fate: Fate) {
    let Some(mut scene) = Scene::new("meta0", fate, &["--cache", "never"]) else { return };
    let client = scene.client();
    write_file(&client, "/file", layout(2, 0), 1 << 20);
    drop(client);
    let (file, root) = (scene.path("file"), scene.path(""));
    let open =
        std::sync::Arc::new(File::options().read(true).write(true).open(&file).expect("all servers run"));
    let call = |path: &Path| {
        let path = path.join("new");
        move || fs::create_dir(path)
    };
    scene.go_away();
    fails("mkdir", FIRST_MAX, call(&root));
    fails("mkdir again", AT_ONCE, call(&root));
    fails("stat of a name", AT_ONCE, {
        let path = root.join("nobody");
        move || fs::metadata(path)
    });
    let file = open.clone();
    works("write of an open file", move || file.write_at(&[3; 256 * KIB], 0));
    let file = open.clone();
    works("read of an open file", move || file.read_exact_at(&mut vec![0; 512 * KIB], 0));
    scene.come_back();
    let start = Instant::now();
    wait_until("names go on", BACK_MAX, || fs::create_dir(root.join("new")).is_ok());
    eprintln!("back after {:?}", start.elapsed());
    open.sync_all().expect("the open file goes on");
    let mut beginning = [0; 4];
    open.read_exact_at(&mut beginning, 0).expect("the open file goes on");
    assert_eq!(beginning, [3; 4]);
}

#[test]
fn a_killed_metadata_server_leaves_open_files_alone() {
    a_dead_metadata_server(Fate::Killed);
}

#[test]
fn a_hung_metadata_server_leaves_open_files_alone() {
    a_dead_metadata_server(Fate::Hung);
}

#[test]
fn a_metadata_server_that_is_cut_off_leaves_open_files_alone() {
    a_dead_metadata_server(Fate::CutOff);
}

/// A process that waits for a dead server is ended by a signal, also where it would wait for ever.
fn interrupted(more: &[&str]) {
    let Some(mut scene) = Scene::with_deadline("io1", Fate::Hung, more, 3 * INTERRUPTED_MAX) else { return };
    let client = scene.client();
    write_file(&client, "/both", layout(2, 0), 8 << 20);
    drop(client);
    let both = scene.path("both");
    let other = scene.path("");
    scene.go_away();
    // The kernel waits in one way for pages, and in another for a reply that goes to the program.
    let direct =
        ["if={}", "iflag=direct", "bs=64k"].map(|word| word.replace("{}", &both.display().to_string()));
    let reader = |number: usize| {
        let mut command = Command::new(if number % 4 < 2 { "cat" } else { "dd" });
        match number % 4 < 2 {
            true => command.arg(&both),
            false => command.args(&direct),
        };
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be run")
    };
    let mut readers: Vec<_> = (0..WAITING).map(reader).collect();
    std::thread::sleep(Duration::from_millis(1000));
    // Not SIGINT: what a shell has started in the background ignores it.
    for (reader, ending) in readers.iter().zip([libc::SIGTERM, libc::SIGKILL].into_iter().cycle()) {
        signal(reader.id(), ending);
    }
    let start = Instant::now();
    wait_until("all of them are gone", INTERRUPTED_MAX, || {
        readers.iter_mut().all(|reader| reader.try_wait().expect("a child").is_some())
    });
    eprintln!("gone after {:?}", start.elapsed());
    works("mkdir", move || fs::create_dir(other.join("made")));
    scene.come_back();
    wait_until("reads go on", BACK_MAX, || read_all(&both).is_ok());
}

#[test]
fn a_signal_ends_a_process_that_waits_for_a_dead_server() {
    interrupted(&[]);
}

#[test]
fn a_hard_mount_waits_until_the_server_is_back_or_a_signal_comes() {
    interrupted(&["--hard"]);
    let Some(mut scene) = Scene::new("io1", Fate::Killed, &["--hard"]) else { return };
    let client = scene.client();
    write_file(&client, "/both", layout(2, 0), 8 << 20);
    drop(client);
    let both = scene.path("both");
    scene.go_away();
    let (sender, done) = channel();
    std::thread::spawn(move || sender.send(read_all(&both).map(|bytes| bytes.len())));
    let early = done.recv_timeout(Duration::from_millis(2 * DEADLINE_MS));
    assert!(early.is_err(), "a hard mount gives up: {early:?}");
    scene.come_back();
    let read = done.recv_timeout(BACK_MAX).expect("the read goes on");
    assert_eq!(read.expect("nothing is lost"), 8 << 20);
}

#[test]
fn a_client_of_the_library_finds_a_dead_server_once_and_probes_for_it_by_itself() {
    let _alone = alone();
    let mut cluster = Served::start(2);
    for transport in [Transport::Tcp, Transport::Shm] {
        let options = ConnectOptions {
            transport: Some(transport),
            retry_timeout_ms: DEADLINE_MS / 2,
            ..ConnectOptions::default()
        };
        let client = cluster.client_with(options);
        let name = format!("/{transport}");
        write_file(&client, &name, layout(2, 0), 1 << 20);
        let file = client.open(&name, &OpenOptions::new().read(true)).expect("all servers run");
        let read = || file.read_at(&mut vec![0; 1 << 20], 0);
        freeze(cluster.pid("io1"));
        let start = Instant::now();
        let error = read().expect_err("a server hangs");
        assert!(start.elapsed() < FIRST_MAX, "{error} took {:?}", start.elapsed());
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Unreachable, libc::ETIMEDOUT), "{error}");
        assert!(error.to_string().contains("io1"), "{error}");
        let start = Instant::now();
        let mut errors: Vec<_> = (0..10).map(|_| read().expect_err("a server hangs")).collect();
        let again = errors.pop().expect("ten of them");
        assert!(start.elapsed() < AT_ONCE, "ten reads took {:?}", start.elapsed());
        assert_eq!(again.errno(), libc::EHOSTDOWN, "{again}");
        assert!(again.to_string().contains("io1"), "{again}");
        let space = client.statfs().expect("one server answers");
        assert!(space.space_bytes > 0);
        signal(cluster.pid("io1"), libc::SIGCONT);
        wait_until("reads go on", BACK_MAX, || read().is_ok());
        cluster.crash("io1");
    }
}

#[test]
fn the_mount_says_which_server_is_gone_and_that_it_is_back() {
    let _alone = alone();
    let mut cluster = Served::start(2);
    let dir = cluster.scratch().join("foreground");
    fs::create_dir(&dir).expect("a mount point");
    let log = cluster.scratch().join("mount.log");
    let deadline = DEADLINE_MS.to_string();
    let mut command =
        cluster.command(&["mount", "--foreground", "--retry-timeout-ms", &deadline, &cluster.url()]);
    let output = File::create(&log).expect("a log");
    let mut mount = command.arg(&dir).stderr(output).spawn().expect("weft can be run");
    wait_until("it is mounted", Duration::from_secs(20), || weft_tests::is_mounted(&dir));
    let mut file = File::create(dir.join("file")).expect("all servers run");
    file.write_all(&vec![1; 1 << 20]).expect("all servers run");
    cluster.kill("io1");
    let said = |text: &str| fs::read_to_string(&log).unwrap_or_default().matches(text).count();
    for _ in 0..20 {
        file.write_all_at(&vec![1; 1 << 20], 0).expect_err("a server is dead");
    }
    wait_until("it is said", BACK_MAX, || said("server io1 (") > 0);
    assert_eq!(said("has not answered"), 1, "{}", fs::read_to_string(&log).unwrap_or_default());
    cluster.spawn("io1");
    wait_until("it is said", BACK_MAX, || said("answers again") == 1);
    file.write_at(&vec![1; 1 << 20], 0).expect("all servers run");
    drop(file);
    signal(mount.id(), libc::SIGTERM);
    wait_until("it ends", Duration::from_secs(20), || mount.try_wait().expect("a child").is_some());
}

fn count_files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("it can be listed").flatten();
    entries.map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

#[test]
fn a_hung_io_server_delays_neither_removal_on_others_nor_the_end_of_the_metadata_server() {
    let mut cluster = Served::start(2);
    let data_files = |cluster: &Served, name: &str| count_files(&cluster.directory(name).join("data"));
    let client = cluster.client(Transport::Tcp);
    write_file(&client, "/on_hung", layout(1, 0), KIB);
    write_file(&client, "/on_well", layout(1, 1), KIB);
    let files = ["io0", "io1"].map(|name| data_files(&cluster, name));
    freeze(cluster.pid("io0"));
    client.unlink("/on_hung").expect("names are served");
    // It is asked to remove the one before there is another one to remove.
    std::thread::sleep(Duration::from_millis(500));
    client.unlink("/on_well").expect("names are served");
    let is_removed = |cluster: &Served, at: usize| data_files(cluster, &format!("io{at}")) < files[at];
    wait_until("the data of the other server is removed", BACK_MAX, || is_removed(&cluster, 1));
    let begin = Instant::now();
    cluster.stop("meta0");
    assert!(begin.elapsed() < BACK_MAX, "it ends after {:?}", begin.elapsed());
    assert!(!is_removed(&cluster, 0), "it hangs");
    signal(cluster.pid("io0"), libc::SIGCONT);
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    wait_until("the data of the server that hung is removed", HANGS, || is_removed(&cluster, 0));
}

#[test]
fn servers_that_answer_are_asked_once_to_remove_what_a_dead_one_has_too() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    let data_files = |cluster: &Served, name: &str| count_files(&cluster.directory(name).join("data"));
    let removals = || {
        let (_, status) =
            client.server_status(false).into_iter().find(|(server, _)| server.name == "io0").expect("io0");
        let operations = status.expect("io0 answers").operations;
        operations.iter().find(|one| one.op == Op::RemoveObjects as u16).map_or(0, |one| one.count)
    };
    let before = ["io0", "io1"].map(|name| data_files(&cluster, name));
    let remove = |cluster: &Served, files: std::ops::Range<usize>| {
        files.clone().for_each(|at| client.unlink(&format!("/f{at}")).expect("names are served"));
        wait_until("io0 has removed them", BACK_MAX, || {
            data_files(cluster, "io0") == before[0] + 4 - files.end
        });
    };
    (0..4).for_each(|at| write_file(&client, &format!("/f{at}"), layout(2, 0), 256 * KIB));
    cluster.kill("io1");
    remove(&cluster, 0..3);
    let asked = removals();
    // Longer than a server that is down is left alone.
    std::thread::sleep(REMOVED_AGAIN);
    assert_eq!(removals(), asked, "io0 has answered");
    remove(&cluster, 3..4);
    assert_eq!(removals(), asked + 1);
    // The next run knows what io1 has still to remove.
    cluster.crash("meta0");
    std::thread::sleep(REMOVED_AGAIN);
    assert_eq!(removals(), asked + 1);
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    wait_until("io1 has removed them", HANGS, || data_files(&cluster, "io1") == before[1]);
    wait_until("they are counted", HANGS, || gauge(&client, "garbage_removed_files") == 4);
    assert_eq!(removals(), asked + 1);
}
