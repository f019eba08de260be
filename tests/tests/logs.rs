//! What servers, mounts and libraries log: levels by target, ids that lead from a mount to the disk of a server, slow requests.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weft_client::{OpenOptions, SetAttr, Transport};
use weft_tests::raw::{Raw, hello};
use weft_tests::{Mount, Served, ServedOptions, expect_success, freeze, gauge, signal, wait_until};
use weft_wire::messages::HelloRequest;

const SOON: Duration = Duration::from_secs(20);

/// A cluster whose servers log this.
fn logging(io_servers: u16, levels: &str) -> Served {
    let mut cluster = Served::init(ServedOptions { io_servers, ..ServedOptions::default() });
    start(&mut cluster, &["--log-level", levels]);
    cluster
}

fn start(cluster: &mut Served, options: &[&str]) {
    for name in cluster.names() {
        cluster.spawn_with(&name, options);
    }
    cluster.names().iter().for_each(|name| cluster.wait_ready(name));
}

/// Changes the cluster file, which servers have read before or read later.
#[track_caller]
fn edit(cluster: &Served, from: &str, to: &str) {
    let text = fs::read_to_string(cluster.config_path()).expect("a cluster file");
    assert!(text.contains(from), "{text}");
    fs::write(cluster.config_path(), text.replacen(from, to, 1)).expect("a cluster file");
}

fn log_path(cluster: &Served) -> PathBuf {
    cluster.scratch().join("mount.log")
}

/// A mount that logs this to a file.
fn mount(cluster: &Served, levels: &str, more: &[&str]) -> Mount {
    let log = log_path(cluster);
    let log = log.to_str().expect("a plain path");
    cluster.mount_with(&[&["--log-file", log, "--log-level", levels], more].concat())
}

fn lines(text: &str, all: &[&str]) -> Vec<String> {
    text.lines().filter(|line| all.iter().all(|part| line.contains(part))).map(str::to_owned).collect()
}

/// Waits until a line of the log has all these parts.
#[track_caller]
fn line_of(read: impl Fn() -> String, parts: &[&str]) -> String {
    wait_until(&format!("a line with {parts:?}"), SOON, || !lines(&read(), parts).is_empty());
    lines(&read(), parts).remove(0)
}

/// `key=VALUE` of a line.
fn value<'a>(line: &'a str, key: &str) -> &'a str {
    let key = format!(" {key}=");
    let (_, rest) = line.split_once(&key).unwrap_or_else(|| panic!("no{key} in {line}"));
    rest.split_whitespace().next().unwrap_or_default()
}

fn mount_log(cluster: &Served) -> String {
    fs::read_to_string(log_path(cluster)).unwrap_or_default()
}

#[test]
fn levels_are_chosen_by_target() {
    let mut cluster = logging(1, "warn,weft_server::session=debug");
    cluster.weft(&["ls", &cluster.url()]);
    let log = cluster.log("meta0");
    assert!(!lines(&log, &["debug meta0: ", "op=Lookup", "target=weft_server::session"]).is_empty(), "{log}");
    assert!(!log.contains("listens on"), "{log}");
    assert!(log.lines().all(|line| line.ends_with("target=weft_server::session")), "{log}");

    cluster.stop("meta0");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    cluster.weft(&["ls", &cluster.url()]);
    let log = cluster.log("meta0")[log.len()..].to_owned();
    assert!(log.contains(" info  meta0: listens on ") && !log.contains(" debug "), "{log}");

    let mut wrong = cluster.command(&["serve", "--log-level", "loud", "--name", "io0", "--config"]);
    let output = wrong.arg(cluster.config_path()).output().expect("weft can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("TARGET=LEVEL"), "{said}");
}

#[test]
fn a_write_is_followed_from_a_mount_to_the_disk_by_its_id() {
    let cluster = logging(2, "debug");
    let mount = mount(&cluster, "debug", &[]);
    let mut file = fs::File::create(mount.join("file")).expect("all servers run");
    // Two strips: one on each I/O server.
    file.write_all(&[7; 128 << 10]).expect("all servers run");
    drop(file);

    let created = line_of(|| mount_log(&cluster), &[" mount: ", " call=create ", "target=weft_fuse::slow"]);
    let id = format!("trace={}", value(&created, "trace"));
    line_of(|| mount_log(&cluster), &["asks meta0", "op=Create", &id, "target=weft_rpc::call"]);
    line_of(|| cluster.log("meta0"), &[" debug meta0: ", "op=Create", &id]);

    let written = line_of(|| mount_log(&cluster), &[" mount: ", " call=write "]);
    assert_ne!(value(&written, "trace"), value(&created, "trace"));
    let (id, ino) =
        (format!("trace={}", value(&written, "trace")), format!("ino={}", value(&written, "ino")));
    // One that is refused since the map has changed meanwhile is asked again, with its number.
    let mut asked = BTreeSet::new();
    for server in ["io0", "io1"] {
        let log = mount_log(&cluster);
        let asks = lines(&log, &[&format!("asks {server}"), "op=Write", &id]);
        asked.extend(asks.iter().map(|line| value(line, "request").to_string()));
        let on_disk = ["accessed the data file", "writes=1", &ino, &id, "target=weft_server::io::work"];
        line_of(|| cluster.log(server), &on_disk);
        line_of(|| cluster.log(server), &["done for weft mount ", "op=Write", "status=done", &ino, &id]);
    }
    assert_eq!(asked.len(), 2, "one id for all requests of a system call\n{}", mount_log(&cluster));
}

#[test]
fn what_servers_do_for_a_call_has_its_id() {
    let cluster = logging(1, "debug");
    let mount = mount(&cluster, "debug", &[]);
    fs::write(mount.join("file"), [7; 40_000]).expect("all servers run");
    // The open file would keep its data.
    line_of(|| cluster.log("meta0"), &["done for ", "op=Close", "status=done"]);
    fs::remove_file(mount.join("file")).expect("all servers run");
    let removed = line_of(|| mount_log(&cluster), &[" mount: ", " call=unlink "]);
    let id = format!("trace={}", value(&removed, "trace"));
    line_of(|| cluster.log("meta0"), &["asks io0", "op=RemoveObjects", &id]);
    line_of(|| cluster.log("io0"), &["op=RemoveObjects", &id]);
}

#[test]
fn a_slow_request_is_told_with_where_its_time_went() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    edit(&cluster, "slow_request_ms = 1000", "slow_request_ms = 300");
    start(&mut cluster, &[]);
    let mount = cluster.mount();
    fs::write(mount.join("file"), "x").expect("all servers run");
    // The mount is told of the file, and does not acknowledge that it changes.
    fs::metadata(mount.join("file")).expect("it is there");
    let client = cluster.client(Transport::Tcp);
    let pid = mount.pid();
    freeze(pid);
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(1500));
        signal(pid, libc::SIGCONT);
    });
    let begun = Instant::now();
    client.setattr("/file", true, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("it is there");
    let took = begun.elapsed();
    waker.join().expect("it only sleeps");
    assert!(took > Duration::from_millis(500), "the mount was not waited for: {took:?}");
    let said = [
        "warn  meta0: slow request: SetAttr took ",
        "waiting for other mounts' acknowledgement ",
        "op=SetAttr",
    ];
    let line = line_of(|| cluster.log("meta0"), &said);
    assert!(value(&line, "client").contains(&format!("({})@", std::process::id())), "{line}");
    assert!(value(&line, "ino").parse::<u64>().expect("a number") > 1, "{line}");
    assert_ne!(value(&line, "trace"), "0000000000000000", "{line}");
    let took_ms: u64 = value(&line, "took_ms").parse().expect("a number");
    assert!((300..=took.as_millis() as u64 + 50).contains(&took_ms), "{line}");
    assert!(gauge(&client, "slow_requests") >= 1);
    let status = cluster.weft(&["status", &cluster.url()]);
    assert!(status.contains("slow requests: meta0 "), "{status}");
}

#[test]
fn a_slow_system_call_is_told_with_the_servers_that_it_waited_for() {
    let cluster = Served::start(2);
    let mount = mount(&cluster, "warn", &["--slow-ms", "1500"]);
    let mut file = fs::File::create(mount.join("file")).expect("all servers run");
    file.write_all(&[7; 128 << 10]).expect("all servers run");
    assert_eq!(mount_log(&cluster), "", "nothing was slow");
    let pid = cluster.pid("io1");
    freeze(pid);
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(3000));
        signal(pid, libc::SIGCONT);
    });
    file.write_all(&[7; 128 << 10]).expect("the server comes back");
    waker.join().expect("it only sleeps");
    let line = line_of(
        || mount_log(&cluster),
        &[" warn  mount: slow system call: write took ", ": it waited for io1 ("],
    );
    assert!(line.contains(&format!("({})", std::process::id())) || line.contains("program="), "{line}");
    assert!(value(&line, "took_ms").parse::<u64>().expect("a number") >= 1500, "{line}");
}

#[test]
fn sighup_takes_over_what_the_cluster_file_says_of_the_log() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    edit(&cluster, "slow_request_ms = 1000", "slow_request_ms = 1000\nlog = \"warn\"");
    start(&mut cluster, &[]);
    cluster.weft(&["ls", &cluster.url()]);
    assert_eq!(cluster.log("meta0"), "");
    edit(&cluster, "log = \"warn\"", "log = \"info,weft_server::session=debug\"");
    signal(cluster.pid("meta0"), libc::SIGHUP);
    line_of(
        || cluster.log("meta0"),
        &["info  meta0: SIGHUP: now logging info,weft_server::session=debug; requests are slow from 1000 ms"],
    );
    cluster.weft(&["ls", &cluster.url()]);
    line_of(|| cluster.log("meta0"), &["debug meta0: ", "op=Lookup"]);

    edit(&cluster, "slow_request_ms = 1000", "slow_request_ms = \"soon\"");
    signal(cluster.pid("meta0"), libc::SIGHUP);
    line_of(|| cluster.log("meta0"), &["warn  meta0: SIGHUP: nothing is changed: ", "slow_request_ms"]);
    cluster.weft(&["ls", &cluster.url()]);

    // Who was told on the command line does not listen to the file.
    edit(&cluster, "slow_request_ms = \"soon\"", "slow_request_ms = 5");
    cluster.stop("io0");
    cluster.spawn_with("io0", &["--log-level", "info"]);
    cluster.wait_ready("io0");
    signal(cluster.pid("io0"), libc::SIGHUP);
    line_of(|| cluster.log("io0"), &["SIGHUP: now logging info; requests are slow from 5 ms"]);
}

#[test]
fn what_clients_say_of_themselves_makes_no_line_of_its_own() {
    let cluster = logging(1, "debug");
    let words = "x\" trace=1\n2026-01-01T00:00:00.000Z warn  meta0: all is lost\x1b[2J\u{202e}";
    let said = HelloRequest { host: words.into(), program: words.into(), ..hello() };
    let mut raw = Raw::tcp(cluster.address("meta0")).expect("it listens");
    raw.greet_as(&cluster.key(), said).expect("the key is right");
    raw.must(&weft_wire::messages::PingRequest { echo: vec![1] });
    line_of(|| cluster.log("meta0"), &["op=Ping", "all is lost"]);
    let log = cluster.log("meta0");
    assert!(log.lines().all(|line| !line.contains("Z warn ") || line.contains("done for x")), "{log}");
    assert!(!log.chars().any(|one| one == '\u{202e}' || one.is_control() && one != '\n'), "{log:?}");
}

fn output_of(command: &mut Command) -> (String, String) {
    let output = command.output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (expect_success(&format!("{command:?}"), &output), said)
}

#[test]
fn libraries_say_nothing_unless_they_are_asked_to_and_never_on_standard_output() {
    let cluster = Served::start(1);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/file", &OpenOptions::new().write(true).create(true)).expect("all servers run");
    file.write_at(b"content\n", 0).expect("all servers run");
    file.close().expect("all servers run");
    weft_tests::preload_library();
    let log = cluster.scratch().join("library.log");
    let by = |arguments: &[&str], levels: Option<&str>, file: Option<&Path>| {
        let mut command = cluster.command(arguments);
        command.env_remove("WEFT_LOG").envs(levels.map(|levels| ("WEFT_LOG", levels)));
        command.envs(file.map(|file| ("WEFT_LOG_FILE", file)));
        output_of(&mut command)
    };
    let (url, at) = (cluster.url(), cluster.at("/file"));
    let run = ["run", "--url", &url, "--", "cat", "/weft/file"];
    let cat = ["cat", &at];
    for arguments in [&cat[..], &run[..]] {
        let (printed, said) = by(arguments, None, None);
        assert_eq!((printed.as_str(), said.as_str()), ("content\n", ""), "{arguments:?}");
        let (printed, said) = by(arguments, Some("weft_rpc=debug"), None);
        assert_eq!(printed, "content\n", "{arguments:?}");
        let program = if arguments == cat { " weft(" } else { " cat(" };
        assert!(!lines(&said, &["debug", program, "op=Read", " trace="]).is_empty(), "{said}");
        let (printed, said) = by(arguments, Some("weft_rpc=debug"), Some(&log));
        assert_eq!((printed.as_str(), said.as_str()), ("content\n", ""), "{arguments:?}");
        let written = fs::read_to_string(&log).expect("the log");
        assert!(!lines(&written, &["debug ", "op=Read", " trace="]).is_empty(), "{written}");
    }
}
