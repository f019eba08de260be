//! An operator's days: servers die, are stopped and started one by one, and their logs are moved away.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use weft_test_needs::Need;
use weft_tests::{
    Cluster, Served, ServedOptions, expect_success, free_ports, freeze, processes_naming, signal,
    temporary_dir, wait_until, weft_bin,
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// EX_CONFIG.
const PERMANENT: i32 = 78;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn run(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = cluster.command(arguments);
    command.arg("--dir").arg(cluster.storage()).output().expect("weft can be run")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// `weft status --dir DIR --json`, which fails where a server does not run.
fn status_of(dir: &Path) -> Value {
    let mut command = Command::new(weft_bin());
    let output = command.args(["status", "--json", "--dir"]).arg(dir).output().expect("weft can be run");
    let status: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let all = status["servers"].as_array().expect("a list").iter().all(|server| server["running"] == true);
    assert_eq!(output.status.code(), Some(i32::from(!all)), "{status}");
    status
}

fn server(dir: &Path, name: &str) -> Value {
    let status = status_of(dir);
    let servers = status["servers"].as_array().expect("a list");
    servers.iter().find(|server| server["name"] == name).unwrap_or_else(|| panic!("{name}: {status}")).clone()
}

fn pid(dir: &Path, name: &str) -> u32 {
    let server = server(dir, name);
    server["pid"].as_u64().unwrap_or_else(|| panic!("{server}")) as u32
}

fn supervisor_log(cluster: &Cluster) -> String {
    fs::read_to_string(cluster.storage().join("log/supervisor.log")).unwrap_or_default()
}

fn supervisor_pid(cluster: &Cluster) -> u32 {
    let status = status_of(&cluster.storage());
    status["supervisor"]["pid"].as_u64().unwrap_or_else(|| panic!("{status}")) as u32
}

/// All I/O servers keep the file's bytes.
fn put_file(cluster: &Cluster) -> Vec<u8> {
    let data: Vec<u8> = (0..2_000_000u32).map(|at| (at / 7) as u8).collect();
    let file = cluster.scratch("files").join("data");
    fs::write(&file, &data).expect("room");
    cluster.weft(&["cp", "-q", text(&file), cluster.url()]);
    data
}

#[track_caller]
fn check_file(cluster: &Cluster, data: &[u8]) {
    let cat = cluster.command(&["cat", &format!("{}data", cluster.url())]).output().expect("weft can be run");
    assert!(cat.stdout == data, "{}", String::from_utf8_lossy(&cat.stderr));
}

#[test]
fn one_server_is_stopped_and_started_by_name() {
    let cluster = Cluster::start(2);
    let (dir, data) = (cluster.storage(), put_file(&cluster));
    let (io0, io1) = (pid(&dir, "io0"), pid(&dir, "io1"));
    let down = expect_success("down", &run(&cluster, &["down", "--only", "io1"]));
    assert!(down.contains(&format!("stopped io1 (process {io1})")), "{down}");
    let stopped = server(&dir, "io1");
    assert!(
        stopped["running"] == false && stopped["state"].as_str().unwrap().starts_with("stopped"),
        "{stopped}"
    );
    // The supervisor knows that this was on purpose.
    wait_until("the supervisor has seen it", TIMEOUT, || {
        supervisor_log(&cluster).contains("it was stopped on request")
    });
    let again = run(&cluster, &["down", "--only", "io1"]);
    assert!(expect_success("down", &again).contains("not running: io1"));

    // In the foreground it would belong to two.
    let foreground = run(&cluster, &["up", "--only", "io1"]);
    assert!(
        !foreground.status.success() && said(&foreground).contains("add --detach"),
        "{}",
        said(&foreground)
    );
    let up = run(&cluster, &["up", "--detach", "--only", "io1"]);
    expect_success("up", &up);
    assert!(said(&up).contains("started io1"), "{}", said(&up));
    check_file(&cluster, &data);
    let started = server(&dir, "io1");
    assert!(started["supervised"] == true && started["restarts"] == 0, "{started}");
    assert_eq!(pid(&dir, "io0"), io0);
    let again = run(&cluster, &["up", "--detach", "--only", "io1"]);
    assert!(!again.status.success() && said(&again).contains("already running: io1"), "{}", said(&again));
    let unknown = run(&cluster, &["up", "--detach", "--only", "io7"]);
    assert!(!unknown.status.success() && said(&unknown).contains("io7"), "{}", said(&unknown));
}

#[test]
fn a_server_that_is_killed_is_started_again() {
    let cluster = Cluster::start(2);
    let (dir, data) = (cluster.storage(), put_file(&cluster));
    for name in ["io1", "meta0"] {
        let before = pid(&dir, name);
        signal(before, libc::SIGKILL);
        wait_until("it runs again", TIMEOUT, || {
            let now = server(&dir, name);
            now["running"] == true && now["pid"] != before
        });
        assert_eq!(server(&dir, name)["restarts"], 1);
        wait_until("it answers", TIMEOUT, || {
            cluster.command(&["status", cluster.url()]).output().expect("weft can be run").status.success()
        });
        check_file(&cluster, &data);
    }
    let log = supervisor_log(&cluster);
    assert!(
        log.contains("server io1 has ended (signal: 9 (SIGKILL))") && log.contains("it is restarted in 1 s"),
        "{log}"
    );
    // One that is asked to end is not: somebody wants it so.
    signal(pid(&dir, "io0"), libc::SIGTERM);
    wait_until("the supervisor has seen it", TIMEOUT, || supervisor_log(&cluster).contains("stays stopped"));
    assert_eq!(server(&dir, "io0")["running"], false);
    // Without a name, all that is missing is started.
    let up = expect_success("up", &run(&cluster, &["up", "--detach", "--json"]));
    let up: Value = serde_json::from_str(&up).expect("JSON");
    assert_eq!(up["started"], serde_json::json!(["io0"]));
    check_file(&cluster, &data);
}

#[test]
fn servers_go_on_without_a_supervisor_and_the_next_one_takes_over() {
    let cluster = Cluster::start(2);
    let (dir, data) = (cluster.storage(), put_file(&cluster));
    let first = supervisor_pid(&cluster);
    signal(first, libc::SIGKILL);
    wait_until("the supervisor is gone", TIMEOUT, || status_of(&dir)["supervisor"].is_null());
    check_file(&cluster, &data);
    let (meta0, io0, io1) = (pid(&dir, "meta0"), pid(&dir, "io0"), pid(&dir, "io1"));
    signal(io1, libc::SIGKILL);
    wait_until("io1 is gone", TIMEOUT, || server(&dir, "io1")["running"] == false);
    let up = expect_success("up", &run(&cluster, &["up", "--detach", "--json"]));
    let up: Value = serde_json::from_str(&up).expect("JSON");
    assert_eq!(up["started"], serde_json::json!(["io1"]));
    assert_eq!(up["adopted"], serde_json::json!(["meta0", "io0"]));
    assert_eq!((pid(&dir, "meta0"), pid(&dir, "io0")), (meta0, io0));
    check_file(&cluster, &data);
    // The adopted one is looked after.
    signal(io0, libc::SIGKILL);
    wait_until("io0 runs again", TIMEOUT, || {
        let now = server(&dir, "io0");
        now["running"] == true && now["pid"] != io0
    });
    wait_until("it can be read", TIMEOUT, || {
        let cat =
            cluster.command(&["cat", &format!("{}data", cluster.url())]).output().expect("weft can be run");
        cat.stdout == data
    });
    // With nothing missing, a new supervisor only takes over.
    signal(supervisor_pid(&cluster), libc::SIGKILL);
    wait_until("the supervisor is gone", TIMEOUT, || status_of(&dir)["supervisor"].is_null());
    expect_success("up", &run(&cluster, &["up", "--detach"]));
    let all = status_of(&dir);
    assert!(all["servers"].as_array().unwrap().iter().all(|server| server["supervised"] == true), "{all}");
}

#[test]
fn a_server_that_refuses_to_start_is_not_tried_for_ever() {
    let cluster = Cluster::start(2);
    let dir = cluster.storage();
    let identity = dir.join("io1/weft-storage");
    let good = fs::read_to_string(&identity).expect("an I/O server has one");
    fs::write(&identity, good.replace("server 1", "server 9")).expect("ours");
    signal(pid(&dir, "io1"), libc::SIGKILL);
    wait_until("it is given up", TIMEOUT, || {
        server(&dir, "io1")["state"].as_str().unwrap().starts_with("given up")
    });
    let log = supervisor_log(&cluster);
    assert!(log.contains("exit status: 78") && log.contains("weft up --dir"), "{log}");
    assert!(log.contains("the supervisor gives up on it"), "{log}");
    assert_eq!(log.matches("server io1 was started").count(), 1, "{log}");
    let told = said(&run(&cluster, &["status"]));
    assert!(told.contains("has given up on io1;") && told.contains("--only io1 --detach"), "{told}");
    assert_eq!(server(&dir, "io1")["given_up"], true);
    let serve = Command::new(weft_bin())
        .args(["serve", "--name", "io1", "--config"])
        .arg(dir.join("weft.toml"))
        .output()
        .expect("weft can be run");
    assert_eq!(serve.status.code(), Some(PERMANENT), "{}", said(&serve));
    // Asked for again, it says why not, and is left alone.
    let up = run(&cluster, &["up", "--detach", "--only", "io1"]);
    assert!(up.status.code() == Some(1) && said(&up).contains("exit status: 78"), "{}", said(&up));
    fs::write(&identity, good).expect("ours");
    expect_success("up", &run(&cluster, &["up", "--detach", "--only", "io1"]));
    assert_eq!(server(&dir, "io1")["running"], true);
}

/// Makes a metadata server wait before it locks its storage.
const SLOW_START: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <string.h>
    #include <unistd.h>
    int flock(int descriptor, int operation) {
        static int waited;
        char line[4096];
        FILE *file = fopen("/proc/self/cmdline", "r");
        size_t bytes = file ? fread(line, 1, sizeof line, file) : 0;
        if (file) fclose(file);
        if (!waited && memmem(line, bytes, "meta0", 5)) { waited = 1; sleep(SECONDS); }
        int (*next)(int, int) = dlsym(RTLD_NEXT, "flock");
        return next(descriptor, operation);
    }
"#;

/// Longer than servers have that report nothing.
const SLOW_START_S: u64 = 40;

#[test]
fn a_server_that_reports_that_it_opens_its_storage_is_waited_for() {
    let cluster = Cluster::start(1);
    cluster.down();
    let scratch = cluster.scratch("slow");
    let (source, library) = (scratch.join("slow.c"), scratch.join("slow.so"));
    fs::write(&source, SLOW_START.replace("SECONDS", &SLOW_START_S.to_string())).expect("there is room");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.expect("cc can be run").success());
    let begun = Instant::now();
    let mut up = cluster.command(&["up", "--detach", "--dir"]);
    let up = up.arg(cluster.storage()).env("LD_PRELOAD", &library).output().expect("weft can be run");
    expect_success("weft up", &up);
    assert!(begun.elapsed() > Duration::from_secs(SLOW_START_S), "the library has no effect");
    let told = said(&up);
    assert!(told.contains("waiting: meta0 is still opening its storage, "), "{told}");
    put_file(&cluster);
}

/// Reads lines of a child's standard error until one has `text`.
fn wait_for_line(lines: &mut impl BufRead, text: &str) -> String {
    let mut all = String::new();
    while lines.read_line(&mut all).expect("a pipe can be read") > 0 {
        if all.lines().next_back().is_some_and(|line| line.contains(text)) {
            return all;
        }
    }
    panic!("no line with {text:?} in:\n{all}");
}

fn up_in_foreground(dir: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(weft_bin());
    command.args(["up", "--dir"]).arg(dir).args(arguments).env("HOME", dir.parent().expect("below another"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft can be run");
    let mut url = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut url).expect("a pipe can be read");
    if !url.starts_with("weft://") {
        let mut stderr = String::new();
        let _ = child.stderr.as_mut().expect("piped").read_to_string(&mut stderr);
        panic!("{url}{stderr}");
    }
    child
}

#[test]
fn in_the_foreground_a_server_that_dies_is_told_about_and_started_again() {
    let scratch = temporary_dir();
    let dir = scratch.path().join("storage");
    let mut up = up_in_foreground(&dir, &["--io", "1", "--port", &free_ports(2).to_string()]);
    let mut lines = BufReader::new(up.stderr.take().expect("piped"));
    let before = pid(&dir, "io0");
    signal(before, libc::SIGKILL);
    let told = wait_for_line(&mut lines, "server io0 has ended");
    assert!(told.contains("signal: 9") && told.contains("it is restarted in 1 s"), "{told}");
    wait_for_line(&mut lines, "server io0 was started");
    assert_ne!(pid(&dir, "io0"), before);
    signal(up.id(), libc::SIGINT);
    assert!(up.wait().expect("a child").success());
    let name = dir.join("weft.toml").display().to_string();
    wait_until("no server is left", TIMEOUT, || processes_naming(&name).is_empty());
}

#[test]
fn down_stops_what_others_started_and_counts_it() {
    let mut cluster = Served::start(2);
    let dir = cluster.scratch().join("cluster");
    let status = status_of(&dir);
    let servers = status["servers"].as_array().expect("a list");
    assert!(
        servers.iter().all(|server| server["running"] == true && server["supervised"] == false),
        "{status}"
    );
    for name in cluster.names() {
        assert_eq!(pid(&dir, &name), cluster.pid(&name));
    }
    // One is started by `weft up`, which leaves the others to whoever started them.
    cluster.stop("io1");
    let mut up = up_in_foreground(&dir, &[]);
    let mut lines = BufReader::new(up.stderr.take().expect("piped"));
    let told = wait_for_line(&mut lines, "Ctrl-C stops");
    assert!(
        told.contains("started io1")
            && told.contains("already running, not supervised (started otherwise): meta0, io0"),
        "{told}"
    );
    signal(up.id(), libc::SIGINT);
    assert!(up.wait().expect("a child").success());
    assert_eq!(server(&dir, "io1")["running"], false);
    assert!(cluster.is_running("io0") && cluster.is_running("meta0"));

    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let down = cluster.weft(&["down", "--json", "--dir", text(&dir)]);
    let down: Value = serde_json::from_str(&down).expect("JSON");
    assert!(down["stopped"] == 3 && down["forced"] == 0, "{down}");
    for name in cluster.names() {
        assert!(cluster.ended(&name).success(), "{}", cluster.logs());
    }
    assert!(cluster.weft(&["down", "--dir", text(&dir)]).contains("no cluster"));
}

#[test]
fn what_cannot_be_stopped_is_named() {
    if !Need::Root.is_met() {
        return;
    }
    let mut cluster = Served::start(1);
    let dir = cluster.scratch().join("cluster");
    let program = cluster.scratch().join("weft");
    fs::copy(weft_bin(), &program).expect("room");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["down", "--dir", text(&dir)])
        .output()
        .expect("setpriv can be run");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let process = cluster.pid("io0");
    assert!(said.contains(&format!("io0 (process {process}) was not stopped: it runs as root")), "{said}");
    // Where the names are is nobody else's business, so who uses them cannot be told either.
    assert!(said.contains("cannot find out whether meta0 runs"), "{said}");
    cluster.names().iter().for_each(|name| assert!(cluster.is_running(name)));
    assert!(!said.contains("no cluster") && !said.contains("stopped 2"), "{said}");
}

#[test]
fn a_server_that_does_not_end_is_ended_by_force_and_counted() {
    let cluster = Cluster::start(1);
    freeze(pid(&cluster.storage(), "io0"));
    let down = expect_success("down", &run(&cluster, &["down", "--json"]));
    let down: Value = serde_json::from_str(&down).expect("JSON");
    assert!(down["stopped"] == 2 && down["forced"] == 1, "{down}");
}

#[test]
fn a_second_metadata_server_names_the_process_of_the_first() {
    let cluster = Served::start(1);
    let lock = cluster.directory("meta0").join("names/weft.lock");
    let holder = || fs::read_to_string(&lock).expect("a running server has it").trim().to_string();
    assert_eq!(holder(), cluster.pid("meta0").to_string());
    let second = cluster
        .command(&["serve", "--name", "meta0", "--config"])
        .arg(cluster.scratch().join("cluster/weft.toml"))
        .output()
        .expect("weft can be run");
    let said = said(&second);
    assert!(!second.status.success() && said.contains(&cluster.pid("meta0").to_string()), "{said}");
    assert_eq!(holder(), cluster.pid("meta0").to_string());
}

#[test]
fn a_hang_up_opens_logs_anew_and_ends_no_server() {
    let cluster = Cluster::start(1);
    let (dir, data) = (cluster.storage(), put_file(&cluster));
    let supervisor = supervisor_pid(&cluster);
    let before: Vec<_> = ["meta0", "io0"].map(|name| (name, pid(&dir, name))).into();
    for (name, process) in before.iter().copied().chain([("supervisor", supervisor)]) {
        let (log, moved) = (dir.join(format!("log/{name}.log")), dir.join(format!("log/{name}.old")));
        // The supervisor has said nothing yet, and has a log all the same.
        fs::rename(&log, &moved).expect("a log");
        for _ in 0..3 {
            signal(process, libc::SIGHUP);
        }
        wait_until(&format!("{} is made anew", log.display()), TIMEOUT, || log.exists());
    }
    check_file(&cluster, &data);
    for (name, process) in before {
        assert_eq!(pid(&dir, name), process);
        assert_eq!(server(&dir, name)["restarts"], 0);
        expect_success("down", &run(&cluster, &["down", "--only", name]));
        let log = fs::read_to_string(dir.join(format!("log/{name}.log"))).expect("a log");
        assert!(log.contains("has stopped"), "{log}");
    }
}

#[test]
fn a_hang_up_ends_no_server_without_a_log_file() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    for name in cluster.names() {
        cluster.spawn(&name);
        cluster.wait_ready(&name);
        signal(cluster.pid(&name), libc::SIGHUP);
    }
    cluster.weft(&["status", &cluster.url()]);
    for name in cluster.names() {
        assert!(cluster.is_running(&name));
        cluster.stop(&name);
    }
}

#[test]
fn commands_that_meet_leave_all_or_nothing() {
    let cluster = Cluster::start(2);
    let (dir, data) = (cluster.storage(), put_file(&cluster));
    for _ in 0..3 {
        let commands = [vec!["down"], vec!["up", "--detach"], vec!["down"], vec!["up", "--detach"]];
        let started: Vec<_> = commands
            .iter()
            .map(|words| {
                let mut command = cluster.command(words);
                command.arg("--dir").arg(&dir).stdout(Stdio::null()).stderr(Stdio::null());
                command.spawn().expect("weft can be run")
            })
            .collect();
        for mut command in started {
            command.wait().expect("a child");
        }
        let status = status_of(&dir);
        let running = status["servers"].as_array().expect("a list").iter();
        let running = running.filter(|server| server["running"] == true).count();
        assert_eq!(running, if status["supervisor"].is_null() { 0 } else { 3 }, "{status}");
    }
    if status_of(&dir)["supervisor"].is_null() {
        expect_success("up", &run(&cluster, &["up", "--detach"]));
    }
    check_file(&cluster, &data);
}

#[test]
fn a_damaged_run_file_keeps_nobody_from_stopping_servers() {
    let cluster = Cluster::start(1);
    fs::write(cluster.storage().join("run.json"), "damaged").expect("ours");
    let down = run(&cluster, &["down"]);
    expect_success("down", &down);
    assert!(
        said(&down).contains("stopped 2 servers") && said(&down).contains("is damaged"),
        "{}",
        said(&down)
    );
}

#[test]
fn a_hang_up_opens_a_mount_s_log_anew_and_does_not_end_it() {
    let cluster = Cluster::start(1);
    let log = cluster.scratch("logs").join("mount.log");
    let options = ["--log-file", text(&log), "--cache", "never", "--retry-timeout-ms", "300"];
    let logged = cluster.mount_with(cluster.url(), &options);
    let silent = cluster.mount();
    fs::rename(&log, log.with_extension("old")).expect("it was made when the mount began");
    for mount in [&logged, &silent] {
        signal(mount.pid(), libc::SIGHUP);
    }
    wait_until("the log is made anew", TIMEOUT, || log.exists());
    for (mount, name) in [(&logged, "a"), (&silent, "b")] {
        mount.sh(&format!("echo hello > {name}; test \"$(cat {name})\" = hello"));
    }
}

#[test]
fn a_machine_of_a_larger_cluster_has_only_its_own_servers() {
    let cluster = Served::init(ServedOptions {
        io_servers: 2,
        // An address of TEST-NET-1 (RFC 5737), which no machine has.
        hosts: [("io1".to_string(), "192.0.2.1".to_string())].into(),
        ..ServedOptions::default()
    });
    let dir = cluster.scratch().join("cluster");
    let config = fs::read(dir.join("weft.toml")).expect("weft init wrote it");
    // Servers have no need of it.
    fs::remove_file(dir.join("client.key")).expect("weft init wrote it");
    let weft = |arguments: &[&str]| {
        let mut command = Command::new(weft_bin());
        command.args(arguments).arg("--dir").arg(&dir).env("HOME", cluster.scratch());
        command.output().expect("weft can be run")
    };
    let all = weft(&["up", "--detach"]);
    assert!(all.status.code() == Some(1) && said(&all).contains("io1 (192.0.2.1:"), "{}", said(&all));
    assert_eq!(fs::read(dir.join("weft.toml")).expect("there"), config, "no address was changed");
    expect_success("up", &weft(&["up", "--detach", "--only", "meta0", "--only", "io0"]));
    let status = expect_success("status", &weft(&["status"]));
    assert!(status.contains("on another machine"), "{status}");
    let down: Value =
        serde_json::from_str(&expect_success("down", &weft(&["down", "--json"]))).expect("JSON");
    assert_eq!(down["stopped"], 2, "{down}");
    let name = dir.display().to_string();
    wait_until("nothing is left", TIMEOUT, || processes_naming(&name).is_empty());
}
