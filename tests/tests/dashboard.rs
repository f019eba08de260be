//! `weft dashboard` in a browser without a screen.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weft_test_needs::Need;
use weft_tests::{Served, end_with_parent, free_ports, temporary_dir, wait_until, weft_bin};

struct Dashboard {
    child: Child,
    port: u16,
    url: String,
}

impl Dashboard {
    fn start(cluster: &Served) -> Dashboard {
        Dashboard::at(cluster, "127.0.0.1")
    }

    fn at(cluster: &Served, host: &str) -> Dashboard {
        let port = free_ports(1);
        let mut command = Command::new(weft_bin());
        let listen = format!("{host}:{port}");
        command.args(["dashboard", &cluster.url(), "--listen", &listen, "--interval", "0.5", "--hours", "1"]);
        end_with_parent(&mut command);
        let mut child = command
            .env("WEFT_KEY_FILE", cluster.key_file())
            .stdout(Stdio::piped())
            .spawn()
            .expect("weft can be run");
        let mut line = String::new();
        let out = child.stdout.as_mut().expect("it is a pipe");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        assert!(line.starts_with("http://") && line.contains(&format!(":{port}/")), "{line}");
        Dashboard { child, port, url: line.trim().to_owned() }
    }

    /// The reply to a request with exactly these lines in its head.
    fn ask(&self, lines: &[&str]) -> String {
        let mut peer = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        peer.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).expect("it reads");
        let mut reply = String::new();
        peer.read_to_string(&mut reply).expect("it answers");
        reply
    }

    fn token(&self) -> &str {
        self.url.split_once("?token=").map_or("", |(_, token)| token)
    }

    fn get(&self, path: &str) -> String {
        let authorization = format!("Authorization: Bearer {}", self.token());
        self.ask(&[&format!("GET {path} HTTP/1.1"), "Host: 127.0.0.1", &authorization])
    }

    fn data(&self) -> serde_json::Value {
        let reply = self.get("/data.json");
        let (_, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).expect("JSON")
    }

    /// The page as a browser has it after some seconds, with what its script has made.
    fn shown(&self) -> String {
        let profile = temporary_dir();
        let output = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--virtual-time-budget=4000", "--dump-dom"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(&self.url)
            .output()
            .expect("chromium can be run");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_browser_shows_servers_clients_history_and_what_is_wrong() {
    if !Need::Chromium.is_met() {
        return;
    }
    let mut cluster = Served::start(2);
    let dashboard = Dashboard::start(&cluster);
    let client = cluster.client(weft_client::Transport::Tcp);
    let data = vec![7; 8 << 20];
    let file = client
        .open("/file", &weft_client::OpenOptions::new().create(true).write(true))
        .expect("the cluster is up");
    wait_until("what is written is seen", Duration::from_secs(20), || {
        file.write_at(&data, 0).expect("there is room");
        let seen = dashboard.data();
        column(&seen, "written_bytes_per_s").iter().any(|value| value.as_f64() > Some(1e6))
    });
    // While the browser looks, the file is busy.
    let is_seen = AtomicBool::new(false);
    let page = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !is_seen.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(120) {
                file.write_at(&data, 0).expect("there is room");
            }
        });
        wait_until("the file is named", Duration::from_secs(20), || {
            dashboard.data()["files"].as_array().expect("a list").iter().any(|file| file["path"] == "/file")
        });
        wait_until("the client is seen to write", Duration::from_secs(20), || {
            let seen = dashboard.data();
            must_agree(&seen);
            own_row(&seen).is_some_and(|row| row["written_bytes_per_s"].as_f64() > Some(1e6))
        });
        let page = dashboard.shown();
        is_seen.store(true, Ordering::Relaxed);
        page
    });
    let seen = dashboard.data();
    let own = own_row(&seen).expect("it is still connected");
    assert!(own["user"] == "any user" && own["key"] != "", "{own}");
    let clients = seen["clients"].as_array().expect("a list");
    let programs: Vec<_> = clients.iter().map(|client| client["program"].as_str().expect("a text")).collect();
    assert!(programs.iter().all(|program| !program.starts_with("weft")), "internal ones: {programs:?}");
    assert!(seen["internal"]["connections"].as_u64() >= Some(3), "{seen}");
    // All servers are on one disk here.
    let servers = seen["servers"].as_array().expect("a list");
    let shared: Vec<_> = servers.iter().map(|server| server["on_disk_of"].clone()).collect();
    assert_eq!(shared, [serde_json::Value::Null, "meta0".into(), "meta0".into()]);
    assert_eq!(seen["capacity"]["space_bytes"], servers[1]["space_bytes"], "a disk counts once");
    // The header and the charts.
    let written =
        between(&page, "operations/s, ", " free of").split(" read, ").nth(1).expect("what is written");
    let written = written.split(" written").next().expect("a number");
    assert!(page.contains(&format!(">written {written}<")), "{written}: {page}");
    for word in ["internal: servers, this command", "on meta0's disk", "any user (key "] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(page.contains("<td>/file</td>"), "{page}");
    for word in [
        "<td>meta0</td>",
        "<td>io0</td>",
        "<td>io1</td>",
        "none: all servers answer",
        "<svg",
        "slowest I/O server",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(page.contains("dashboard-"), "the client of the test is listed: {page}");
    cluster.kill("io1");
    wait_until("an alarm is raised", Duration::from_secs(30), || {
        dashboard.data()["alarms"][0]["level"] == "problem"
    });
    let seen = dashboard.data();
    must_agree(&seen);
    let alarm = &seen["alarms"][0];
    let (found, cure) = (alarm["found"].as_str().expect("a text"), alarm["cure"].as_str().expect("a text"));
    assert!(found.starts_with("the I/O server io1 at 127.0.0.1:"), "{found}");
    assert!(found.ends_with("files with data on it cannot be read or written until it does"), "{found}");
    assert!(cure.contains("weft doctor --config FILE"), "{cure}");
    let page = dashboard.shown();
    assert!(page.contains("the I/O server io1 at 127.0.0.1:"), "{page}");
    assert!(page.contains("class=\"problem\">does not answer") && page.contains("<title>("), "{page}");
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    wait_until("it is over", Duration::from_secs(30), || dashboard.data()["alarms"] == serde_json::json!([]));
    assert!(dashboard.get("/").contains("default-src 'none'"));
    assert!(dashboard.get("/../etc/passwd").contains("404 Not Found"));
}

/// The values of all points of the history.
fn column<'a>(data: &'a serde_json::Value, key: &str) -> &'a [serde_json::Value] {
    data["history"]["columns"][key].as_array().expect("a list")
}

/// The row of this process.
fn own_row(data: &serde_json::Value) -> Option<&serde_json::Value> {
    let mut clients = data["clients"].as_array().expect("a list").iter();
    clients.find(|client| client["process_id"].as_u64() == Some(std::process::id().into()))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, text) = text.split_once(before).unwrap_or_else(|| panic!("{before}: {text}"));
    text.split_once(after).unwrap_or_else(|| panic!("{after}: {text}")).0
}

/// All parts of a document are of the same moment, and have the same numbers.
#[track_caller]
fn must_agree(data: &serde_json::Value) {
    assert_eq!(data["history"]["last_ms"], data["now_ms"]);
    let points = column(data, "errors_per_s").len();
    for key in
        ["operations_per_s", "errors_per_s", "read_bytes_per_s", "written_bytes_per_s", "meta_us", "io_us"]
    {
        let values = column(data, key);
        assert_eq!((values.len(), values.last()), (points, Some(&data["now"][key])), "{key}");
        if key.ends_with("_per_s") {
            let servers = data["servers"].as_array().expect("a list").iter();
            let sum: f64 = servers.map(|server| server[key].as_f64().expect("a number")).sum();
            let now = data["now"][key].as_f64().expect("a number");
            assert!((sum - now).abs() <= 0.06, "{key}: {sum} in the table, {now} in the header");
        }
    }
}

#[test]
fn there_is_a_point_for_every_interval_also_where_a_server_does_not_answer() {
    let mut cluster = Served::start(1);
    let dashboard = Dashboard::start(&cluster);
    let seen = || {
        let data = dashboard.data();
        must_agree(&data);
        let number = |value: &serde_json::Value| value.as_u64().expect("a number");
        let (step_ms, last_ms) = (number(&data["history"]["step_ms"]), number(&data["history"]["last_ms"]));
        (step_ms, last_ms, column(&data, "io_us").to_vec())
    };
    let (step_ms, first_ms, first) = seen();
    assert_eq!(step_ms, 1000, "two looks are a step");
    cluster.kill("io0");
    wait_until("it is down for a while", Duration::from_secs(60), || {
        let (_, _, round_trips) = seen();
        round_trips.len() >= first.len() + 6
    });
    let (_, last_ms, round_trips) = seen();
    let expected = (last_ms - first_ms) as f64 / step_ms as f64;
    let made = (round_trips.len() - first.len()) as f64;
    assert!((made - expected).abs() <= 2.0, "{made} points in the time of {expected}");
    assert_eq!(round_trips.last(), Some(&serde_json::Value::Null), "nobody answered in no time");
}

/// Asks for the data of the page.
const DATA: &str = "GET /data.json HTTP/1.1";

#[test]
fn nobody_without_the_token_sees_the_page() {
    let cluster = Served::start(1);
    let dashboard = Dashboard::start(&cluster);
    let token = dashboard.token().to_owned();
    assert!(token.len() == 32 && token.bytes().all(|digit| digit.is_ascii_hexdigit()), "{}", dashboard.url);
    let host = format!("Host: 127.0.0.1:{}", dashboard.port);
    let shows = |lines: &[&str]| {
        let reply = dashboard.ask(lines);
        assert!(!reply.to_lowercase().contains("set-cookie"), "cookies go to every port of a host: {reply}");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
        match head.split("\r\n").next() {
            Some("HTTP/1.1 200 OK") => true,
            Some("HTTP/1.1 403 Forbidden") => {
                assert!(!body.contains("io0") && !body.contains(&token), "{body}");
                false
            }
            other => panic!("{lines:?}: {other:?}"),
        }
    };
    let wrong = "0".repeat(32);
    for page in ["/", "/data.json"] {
        let line = |query: &str| format!("GET {page}{query} HTTP/1.1");
        assert!(!shows(&[&line(""), &host]), "no token");
        assert!(!shows(&[&line(&format!("?token={wrong}")), &host]), "a wrong one");
        assert!(!shows(&[&line(&format!("?token={}", &token[..31])), &host]), "a part of it");
        assert!(!shows(&[&line(""), &host, &format!("Cookie: token={token}")]), "a cookie");
        assert!(!shows(&[&line(""), &host, &format!("Authorization: Bearer {wrong}")]), "a wrong one");
        assert!(shows(&[&line(&format!("?token={token}")), &host]), "the right one");
        assert!(shows(&[&line(""), &host, &format!("Authorization: Bearer {token}")]), "the right one");
    }
    assert_ne!(Dashboard::start(&cluster).token(), token, "each has its own");
}

#[test]
fn a_name_that_is_not_the_hosts_is_refused_whatever_the_token() {
    let cluster = Served::start(1);
    let dashboard = Dashboard::at(&cluster, "localhost");
    let authorization = format!("Authorization: Bearer {}", dashboard.token());
    let status = |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("Host: {host}")).collect();
        let mut lines = vec![DATA, &authorization];
        lines.extend(hosts.iter().map(String::as_str));
        dashboard.ask(&lines).split(' ').nth(1).map(str::to_owned)
    };
    let port = dashboard.port;
    for host in [&format!("127.0.0.1:{port}"), "localhost:9000", "[::1]:7480", "10.1.2.3"] {
        assert_eq!(status(&[host]).as_deref(), Some("200"), "{host}");
    }
    for hosts in [
        &["rebound.example:7480"][..],
        &["127.0.0.1.rebound.example"],
        &["localhost.rebound.example:7480"],
        &[],
        &["localhost", "rebound.example"],
    ] {
        assert_eq!(status(hosts).as_deref(), Some("403"), "{hosts:?}");
    }
    let said = dashboard.ask(&[DATA, "Host: rebound.example", &authorization]);
    assert!(said.contains("rebound.example") && said.contains("--listen NAME:PORT"), "{said}");
}
