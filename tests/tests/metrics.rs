//! What servers and mounts tell Prometheus, as a parser that is not ours reads it, and what the documents say of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use weft_tests::{Cluster, expect_success, free_ports, wait_until};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository")
}

fn scrape(port: u16) -> String {
    let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    peer.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it can be asked");
    let mut reply = String::new();
    peer.read_to_string(&mut reply).expect("it answers");
    let (head, page) = reply.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    page.to_owned()
}

/// The names of the metrics of a page, as the parser of Prometheus's Python client has them, and the values of their lines.
fn parse(page: &str) -> (BTreeSet<String>, BTreeMap<String, f64>) {
    const SCRIPT: &str = "
import sys, json
from prometheus_client.parser import text_string_to_metric_families as parse
names, lines = [], []
for family in parse(sys.stdin.read()):
    assert family.documentation and family.type in ('counter', 'gauge', 'histogram'), family
    names.append(family.name + ('_total' if family.type == 'counter' else ''))
    for sample in family.samples:
        lines.append((sample.name + json.dumps(sample.labels, sort_keys=True), sample.value))
print(json.dumps([names, lines]))
";
    let mut python = Command::new("/usr/bin/python3");
    let python =
        python.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.spawn().expect("python can be run");
    child.stdin.take().expect("it was asked for").write_all(page.as_bytes()).expect("it reads");
    let said = expect_success("the parser", &child.wait_with_output().expect("it ends"));
    serde_json::from_str(&said)
        .map(|(names, lines): (_, Vec<(String, f64)>)| (names, lines.into_iter().collect()))
        .expect("JSON")
}

/// Names in the tables of docs/metrics.md.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/metrics.md")).expect("it is there");
    let rows = text.lines().filter(|line| line.starts_with("| `weft_"));
    let names = rows.flat_map(|row| row.split('|').nth(1).expect("a cell").split(','));
    names.map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn every_metric_is_documented_and_what_is_done_is_counted() {
    let port = free_ports(8);
    let nfs = free_ports(1);
    let cluster =
        Cluster::start_with(2, &["--metrics", &port.to_string(), "--nfs", &format!("127.0.0.1:{nfs}")]);
    let mount_port = port + 5;
    let mount = cluster.mount_with(cluster.url(), &["--metrics", &format!("127.0.0.1:{mount_port}")]);
    mount.sh("mkdir d; for i in 1 2 3; do echo $i > d/$i; done; head -c 3M /dev/urandom > big; cat big > copy; ! test -e missing");
    mount.sh("python3 -c \"import os; fd = os.open('big', os.O_RDWR); [os.pwrite(fd, b'x', at * 5000) for at in range(100)]\"");
    let client = cluster.client();
    client.mkdir("/e", 0o755).expect("it can be made");
    client.stat("/nothing", true).expect_err("it is not there");
    let (_, lines) = parse(&scrape(port));
    let of = |op: &str, metric: &str| {
        let line = format!("{metric}{{\"op\": \"{op}\", \"server\": \"meta0\"}}");
        lines.get(&line).copied().unwrap_or_else(|| panic!("{line}: {lines:?}"))
    };
    assert!(of("create", "weft_operations_total") >= 5.0);
    assert!(of("mkdir", "weft_operation_seconds_count") >= 2.0);
    assert!(of("lookup", "weft_operation_errors_total") >= 1.0);
    assert!(of("create", "weft_operation_seconds_sum") > 0.0);
    assert!(lines["weft_errors_total{\"server\": \"meta0\", \"status\": \"not_found\"}"] >= 1.0);
    assert!(lines["weft_clients{\"server\": \"meta0\"}"] >= 2.0);
    wait_until("the gauges of the names are told", std::time::Duration::from_secs(10), || {
        parse(&scrape(port)).1.get("weft_inodes{\"server\": \"meta0\"}").is_some_and(|inodes| *inodes >= 8.0)
    });
    let (_, lines_io) = parse(&scrape(port + 1));
    assert!(lines_io["weft_operation_bytes_total{\"op\": \"write\", \"server\": \"io0\"}"] >= 1e6);
    let (names_mount, lines_mount) = parse(&scrape(mount_port));
    let mounted = mount.path().display();
    let of = |line: &str| lines_mount[&line.replace("DIR", &mounted.to_string())];
    assert!(of("weft_mount_written_bytes_total{\"mount\": \"DIR\"}") >= 3e6);
    assert!(of("weft_mount_read_bytes_total{\"mount\": \"DIR\"}") >= 0.0);
    assert!(of("weft_mount_request_seconds_count{\"call\": \"create\", \"mount\": \"DIR\"}") >= 5.0);
    assert_eq!(of("weft_mount_dead_servers{\"mount\": \"DIR\"}"), 0.0);
    // One request of a mount waits at the metadata server for news.
    let credits = of("weft_mount_credits{\"connection\": \"0\", \"mount\": \"DIR\", \"to\": \"meta0\"}");
    assert!((60.0..=64.0).contains(&credits), "{credits}");
    assert_eq!(of("weft_mount_no_credit_total{\"mount\": \"DIR\", \"to\": \"meta0\"}"), 0.0);
    assert_eq!(lines["weft_credits_used_up_total{\"server\": \"meta0\"}"], 0.0);
    cluster.weft(&["nfs", "ls", &format!("nfs://127.0.0.1:{nfs}/?mountport={nfs}")]);
    cluster.weft(&["nfs", "cat", &format!("nfs://127.0.0.1:{nfs}/big?mountport={nfs}")]);
    let calls = |procedure: &str| {
        let line = format!(
            "weft_gateway_call_seconds_count{{\"gateway\": \"nfs0\", \"procedure\": \"{procedure}\"}}"
        );
        parse(&scrape(port + 3)).1.get(&line).copied()
    };
    wait_until("what the gateway did is told", std::time::Duration::from_secs(10), || {
        calls("readdirplus").is_some_and(|calls| calls >= 1.0)
            && calls("read").is_some_and(|calls| calls >= 3.0)
    });
    assert_eq!(calls("mknod"), Some(0.0));
    let bytes = "weft_gateway_read_bytes_total{\"gateway\": \"nfs0\"}";
    wait_until("its bytes are told", std::time::Duration::from_secs(10), || {
        parse(&scrape(port + 3)).1[bytes] >= 3e6
    });
    // Every metric has its line in the documents, and every line its metric; of RDMA there is none here. Some are told by a task
    // that looks from time to time.
    let documented = documented();
    let told = || -> BTreeSet<String> {
        let servers = [port, port + 1, port + 3].map(|port| parse(&scrape(port)).0);
        servers.into_iter().flatten().chain(names_mount.clone()).collect()
    };
    wait_until("all that is documented is told", std::time::Duration::from_secs(30), || {
        documented.difference(&told()).all(|name| name == "weft_rdma")
    });
    assert_eq!(
        told().difference(&documented).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "without documents"
    );
    // What alerts and the dashboard ask for is there.
    for file in ["packaging/prometheus/alerts.yml", "packaging/grafana/weft.json"] {
        let text = std::fs::read_to_string(root().join(file)).expect("it is there");
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("weft_")) {
            let metric = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(documented.contains(metric), "{file}: {word}");
        }
    }
    let dashboard = std::fs::read_to_string(root().join("packaging/grafana/weft.json")).expect("it is there");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("it is JSON");
    assert!(dashboard["panels"].as_array().expect("panels").len() >= 10);
}

#[test]
fn a_port_that_is_taken_is_told_and_hostile_peers_hold_nobody() {
    let port = free_ports(4);
    let cluster = Cluster::start_with(1, &["--metrics", &port.to_string()]);
    let taken = cluster.scratch("taken");
    let address = format!("127.0.0.1:{port}");
    let output = cluster
        .command(&["mount", cluster.url(), &taken.display().to_string(), "--metrics", &address])
        .output()
        .expect("weft can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("cannot serve metrics at") && said.contains(&address),
        "{said}"
    );
    assert!(!weft_tests::is_mounted(&taken), "what failed is not mounted");
    // Peers that say nothing, or nonsense without an end, delay a scrape and no more.
    let silent: Vec<_> =
        (0..2).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("it listens")).collect();
    let mut noisy = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let _ = noisy.write_all(&[b'x'; 100_000]);
    cluster.client().mkdir("/while", 0o755).expect("the server does not care");
    assert!(scrape(port).contains("weft_info"));
    drop(silent);
    // The cluster remembers the ports.
    let config = std::fs::read_to_string(cluster.storage().join("weft.toml")).expect("it is there");
    assert!(config.contains(&format!("metrics = \"{address}\"")), "{config}");
}

#[test]
fn metrics_of_servers_that_run_are_refused() {
    let cluster = Cluster::start_with(1, &[]);
    let dir = cluster.storage().display().to_string();
    cluster.weft(&["down", "--dir", &dir, "--only", "io0"]);
    let port = free_ports(4).to_string();
    let output = cluster.command(&["up", "--dir", &dir, "--detach", "--metrics", &port]).output();
    let output = output.expect("weft can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("--metrics changes the whole cluster"), "{said}");
}

#[test]
fn a_server_can_be_asked_for_metrics_on_its_command_line() {
    let port = free_ports(4);
    let cluster = Cluster::start(1);
    cluster.weft(&["down", "--dir", &cluster.storage().display().to_string(), "--only", "io0"]);
    let config = cluster.storage().join("weft.toml").display().to_string();
    let address = format!("127.0.0.1:{port}");
    let mut serve = cluster.command(&["serve", "--config", &config, "--name", "io0", "--metrics", &address]);
    let mut server = serve.stderr(Stdio::null()).spawn().expect("weft can be run");
    wait_until("it serves metrics", std::time::Duration::from_secs(20), || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    assert!(scrape(port).contains("weft_info{server=\"io0\",role=\"io\""));
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    cluster.weft(&["up", "--dir", &cluster.storage().display().to_string(), "--only", "io0", "--detach"]);
}

#[test]
fn load_is_shown_line_by_line_and_live() {
    let cluster = Cluster::start(1);
    let url = cluster.url();
    let lines = cluster.weft(&["stats", "--interval", "0.2", "--count", "2", url]);
    assert!(lines.contains("ops/s") && lines.matches("\nall ").count() == 2, "{lines}");
    let lines = cluster.weft(&["stats", "-i", "0.2", "-c", "1", "--servers", url]);
    assert!(lines.contains("meta0") && lines.contains("io0"), "{lines}");
    let key = cluster.key_file().display().to_string();
    let line =
        cluster.weft(&["stats", "-i", "0.2", "-c", "1", "--json", "--key", &key, "--transport", "tcp", url]);
    let load: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
    assert_eq!(load["servers"][1]["server"], "io0");
    let writer = cluster.client();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = writer.stat("/", true);
            }
        });
        let shown =
            cluster.weft(&["top", "--once", "--interval", "0.5", "--key", &key, "--transport", "tcp", url]);
        let load = cluster.weft(&["top", "--json", "--interval", "0.5", url]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(
            shown.contains("operations/s") && shown.contains("meta0") && shown.contains("requests/s"),
            "{shown}"
        );
        let load: serde_json::Value = serde_json::from_str(&load).expect("it is JSON");
        assert!(load["servers"][0]["operations_per_s"].as_f64().expect("a number") > 10.0, "{load}");
        let busiest = &load["clients"][0];
        assert_eq!(busiest["process_id"].as_u64(), Some(std::process::id().into()), "{load}");
        assert!(busiest["user"].is_string() && load["internal"]["connections"].as_u64() >= Some(2), "{load}");
        assert!(shown.contains("internal: servers, this command") && shown.contains("on meta0's"), "{shown}");
    });
    // The work of a process that ends between two looks counts for its user.
    let before = std::process::Command::new(weft_tests::weft_bin())
        .args(["top", "--json", "--interval", "3", "--key", &key, url])
        .stdout(Stdio::piped())
        .spawn()
        .expect("weft can be run");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let source = cluster.scratch("copied").join("source");
    std::fs::write(&source, vec![7; 9 << 20]).expect("there is room");
    cluster.weft(&["cp", &source.display().to_string(), &format!("{url}copied")]);
    let said = expect_success("weft top", &before.wait_with_output().expect("it ends"));
    let load: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let ended = load["ended"].as_array().expect("a list").iter();
    let written: f64 = ended.filter_map(|ended| ended["written_bytes_per_s"].as_f64()).sum();
    assert!(written > 1e6, "{load}");
    let busy_files = |key: &str| {
        let load = cluster.weft(&["top", "--json", "--interval", "0.5", "--key", key, url]);
        let load: serde_json::Value = serde_json::from_str(&load).expect("it is JSON");
        load["files"].as_array().expect("a list").clone()
    };
    let options = weft_client::OpenOptions::new().create(true).read(true).write(true);
    let small = writer.open("/sm\u{1b}all", &options).expect("it can be made");
    let large = writer.open("/large", &options.clone().striped(true)).expect("it can be made");
    small.write_at(b"little", 0).expect("there is room");
    large.write_at(&[7; 1 << 20], 0).expect("there is room");
    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 20];
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                large.read_at(&mut buffer, 0).expect("it is there");
                small.write_at(b"more", 0).expect("there is room");
            }
        });
        let files = busy_files(&key);
        let shown = cluster.weft(&["top", "--once", "--interval", "0.5", url]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let load = |path: &str| {
            let file = files.iter().find(|file| file["path"] == path);
            file.unwrap_or_else(|| panic!("{path}: {files:?}")).clone()
        };
        assert!(load("/large")["read_bytes_per_s"].as_f64() > Some(1e6), "{files:?}");
        assert!(load("/sm\u{1b}all")["written_bytes_per_s"].as_f64() > Some(10.0), "{files:?}");
        assert_eq!(files[0]["path"], "/large", "it is the busiest");
        assert!(shown.contains("/large") && shown.contains("/sm"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "a name of a file reaches the terminal: {shown:?}");
    });
    // What others do is for administrators.
    let issued = cluster.storage().join("issued.key").display().to_string();
    let config = cluster.storage().join("weft.toml").display().to_string();
    cluster.weft(&["key", "issue", "--uid", "1000", "--gid", "1000", "--config", &config, "--out", &issued]);
    assert_eq!(busy_files(&issued), Vec::<serde_json::Value>::new());
    let output = cluster.command(&["stats", "--interval", "0", url]).output().expect("it runs");
    assert!(!output.status.success());
    // On a terminal it goes on until a key is pressed.
    let script = format!("{} top --interval 0.2 {url}", weft_tests::weft_bin().display());
    let mut live = Command::new("script");
    let mut live = live
        .args(["-qec", &script, "/dev/null"])
        .env("HOME", cluster.storage().parent().expect("it is in a directory"))
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script (bsdutils) can be run");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut keys = live.stdin.take().expect("it was asked for");
    keys.write_all(b"l").expect("it reads");
    std::thread::sleep(std::time::Duration::from_millis(500));
    keys.write_all(b"q").expect("it reads");
    let output = live.wait_with_output().expect("it ends by q");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && shown.matches("\x1b[H").count() >= 3, "{shown:?}");
}
