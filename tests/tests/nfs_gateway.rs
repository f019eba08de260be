//! NFS gateways of a cluster: what clients of NFS and Weft's own see of each other's files, what a gateway that
//! dies leaves, and exports that change.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::{Client, OpenOptions, Transport};
use weft_nfs_client::{ConnectOptions, CreateHow, Error, NfsClient, NfsUrl, SetAttr, Stable};
use weft_test_needs::Need;
use weft_test_random::{Random, seed};
use weft_tests::{Cluster, Served, SetAtEnd, expect_success, free_ports, signal, wait_until, weft_bin};

/// How long a gateway may take to apply a changed cluster file.
const APPLY_TIME: Duration = Duration::from_secs(10);

/// A cluster with gateways that export what `exports` says, in words of the cluster file.
struct Gateways {
    cluster: Served,
}

/// Everything, for programs of this machine, whose root is root.
const EVERYTHING: &str = "[[export]]\npath = \"/\"\nclients = [\"127.0.0.0/8\"]\nsquash = \"none\"\n";

impl Gateways {
    fn start(count: u16, exports: &str) -> Gateways {
        let mut gateways = Gateways::init(count, exports);
        gateways.start_all();
        gateways
    }

    fn init(count: u16, exports: &str) -> Gateways {
        let mut cluster = Served::start(2);
        let first = free_ports(count);
        let mut text = fs::read_to_string(cluster.config_path()).unwrap();
        for number in 0..count {
            let (name, address) = (format!("nfs{number}"), format!("127.0.0.1:{}", first + number));
            let directory = cluster.scratch().join(&name);
            text += &format!(
                "\n[[gateway]]\nname = {name:?}\naddresses = [{address:?}]\ndirectory = {directory:?}\n"
            );
            cluster.place(&name, &address, &directory);
        }
        let gateways = Gateways { cluster };
        fs::write(gateways.cluster.config_path(), format!("{text}\n{exports}")).unwrap();
        gateways
    }

    fn start_all(&mut self) {
        let names: Vec<_> = self.cluster.names().into_iter().filter(|name| name.starts_with("nfs")).collect();
        names.iter().for_each(|name| self.cluster.spawn(name));
        names.iter().for_each(|name| self.cluster.wait_ready(name));
    }

    /// Replaces all exports.
    fn export(&self, exports: &str) {
        let text = fs::read_to_string(self.cluster.config_path()).unwrap();
        let before = &text[..text.find("[[export]]").expect("there are some")];
        let new = self.cluster.scratch().join("new.toml");
        fs::write(&new, format!("{before}{exports}")).unwrap();
        fs::rename(new, self.cluster.config_path()).unwrap();
    }

    fn url(&self, gateway: &str, path: &str) -> String {
        url_at(self.cluster.address(gateway), path)
    }

    fn connect(&self, gateway: &str, path: &str, options: &ConnectOptions) -> Result<NfsClient, Error> {
        NfsClient::connect(&NfsUrl::parse(&self.url(gateway, path)).unwrap(), options)
    }

    fn client(&self, gateway: &str) -> NfsClient {
        self.connect(gateway, "/", &hard()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn native(&self) -> Client {
        self.cluster.client(Transport::Tcp)
    }

    #[track_caller]
    fn wait_for_log(&self, gateway: &str, text: &str) {
        wait_until(&format!("{gateway} logs {text:?}"), APPLY_TIME, || {
            self.cluster.log(gateway).contains(text)
        });
    }
}

fn url_at(address: &str, path: &str) -> String {
    let port = address.rsplit(':').next().unwrap();
    format!("nfs://{address}{path}?mountport={port}")
}

fn hard() -> ConnectOptions {
    ConnectOptions { give_up_ms: None, ..ConnectOptions::default() }
}

fn libnfs(program: &str, arguments: &[&str]) -> Output {
    // A program that waits for ever is ended.
    let output = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn native_bytes(client: &Client, path: &str) -> Vec<u8> {
    let file = client.open(path, &OpenOptions::new().read(true)).unwrap();
    let mut bytes = vec![0; 65 << 20];
    let length = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn up_with_nfs_gives_both_sides_the_same_files() {
    if !Need::Libnfs.is_met() {
        return;
    }
    let port = free_ports(1);
    let address = format!("127.0.0.1:{port}");
    let mut cluster = Cluster::start_with(2, &["--nfs", &address]);
    cluster.client().mkdir("/open", 0o1777).unwrap();
    let local = cluster.scratch("local");
    let data = Random(seed()).bytes(5_000_001);
    fs::write(local.join("data"), &data).unwrap();
    let libnfs_url = |path: &str| {
        format!("nfs://127.0.0.1{path}?version=3&nfsport={port}&mountport={port}&uid=1000&gid=1000")
    };

    cluster.weft(&["cp", text(&local.join("data")), &format!("{}open/native", cluster.url())]);
    assert!(libnfs("nfs-cat", &[&libnfs_url("/open/native")]).stdout == data);
    let read = cluster.command(&["nfs", "cat", &url_at(&address, "/open/native")]).output().unwrap();
    assert!(read.stdout == data, "{}", String::from_utf8_lossy(&read.stderr));

    libnfs("nfs-cp", &[text(&local.join("data")), &libnfs_url("/open/by-libnfs")]);
    cluster.weft(&["nfs", "cp", text(&local.join("data")), &url_at(&address, "/open/by-weft")]);
    for name in ["by-libnfs", "by-weft"] {
        assert!(native_bytes(&cluster.client(), &format!("/open/{name}")) == data, "{name}");
    }
    let owner = cluster.client().stat("/open/by-weft", true).unwrap().uid;
    assert_eq!(owner, 65534, "root of the client is nobody");

    let shown = cluster.weft(&["status", "--dir", text(&cluster.storage())]);
    assert!(shown.contains("nfs0") && shown.contains(&address), "{shown}");
    cluster.down();
    cluster.up(2, &[]);
    let listed = cluster.weft(&["nfs", "ls", &url_at(&address, "/open")]);
    assert_eq!(listed, "by-libnfs\nby-weft\nnative\n", "it is part of the cluster from then on");
}

#[test]
fn up_with_nfs_at_an_address_of_this_machine_admits_this_machine() {
    let shown = Command::new("hostname").arg("-I").output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for own in shown.split_whitespace().map(|address| address.parse().unwrap()) {
        let port = free_ports(1);
        for listener in [SocketAddr::new(own, port).to_string(), format!("[::]:{port}")] {
            let cluster = Cluster::start_with(1, &["--nfs", &listener]);
            let address = SocketAddr::new(own, port).to_string();
            let listed = cluster.command(&["nfs", "ls", &url_at(&address, "/")]).output().unwrap();
            expect_success(&format!("weft nfs ls at {address} of a gateway at {listener}"), &listed);
            cluster.down();
        }
    }
}

#[test]
fn a_gateway_ends_in_order_with_its_cluster() {
    let address = format!("127.0.0.1:{}", free_ports(1));
    let mut cluster = Cluster::start_with(2, &["--nfs", &address]);
    for run in 0..2 {
        cluster.client().mkdir(format!("/open-{run}").as_str(), 0o1777).unwrap();
        let url = NfsUrl::parse(&url_at(&address, "/")).unwrap();
        let client = NfsClient::connect(&url, &hard()).unwrap_or_else(|error| panic!("{error}"));
        let dir = client.resolve(&format!("/open-{run}")).unwrap().handle;
        for number in 0..20 {
            let name = format!("file-{number}");
            client.create(&dir, name.as_bytes(), &CreateHow::Unchecked(mode(0o644))).unwrap();
            let file = client.lookup(&dir, name.as_bytes()).unwrap().handle;
            client.write_unstable(&file, 0, &[7; 300_000], 4).unwrap();
        }
        let down = cluster.command(&["down", "--dir", text(&cluster.storage())]).output().unwrap();
        let said = expect_success("weft down", &down);
        assert!(said.contains("stopped 4 servers") && !said.contains("by force"), "{said}");
        let log = fs::read_to_string(cluster.storage().join("log/nfs0.log")).unwrap();
        assert_eq!(log.matches("has stopped").count(), run + 1, "{log}");
        cluster.up(2, &[]);
    }
}

#[test]
fn two_gateways_are_one_file_system_with_the_same_handles() {
    let gateways = Gateways::start(2, EVERYTHING);
    let (one, other) = (gateways.client("nfs0"), gateways.client("nfs1"));
    assert_eq!(one.root().bytes(), other.root().bytes());
    one.mkdir(one.root(), b"d", &mode(0o755)).unwrap();
    let dir = one.lookup(one.root(), b"d").unwrap().handle;
    let created = one.create(&dir, b"file", &CreateHow::Guarded(mode(0o644))).unwrap();
    let file = created.handle.unwrap();
    assert_eq!(other.resolve("/d/file").unwrap().handle.bytes(), file.bytes());

    // What one has acknowledged is there for the other, and for native clients, also before it is committed.
    one.write(&file, 0, b"unstable", Stable::Unstable).unwrap();
    let mut buffer = [0; 20];
    let read = other.read(&file, 0, &mut buffer).unwrap();
    assert_eq!(&buffer[..read.bytes], b"unstable");
    assert_eq!(other.getattr(&file).unwrap().size_bytes, 8);
    assert_eq!(native_bytes(&gateways.native(), "/d/file"), b"unstable");
    other.write_all(&file, 8, b" and on", 1).unwrap();
    assert_eq!(one.getattr(&file).unwrap().size_bytes, 15);
    other.remove(&dir, b"file").unwrap();
    assert_eq!(one.lookup(&dir, b"file").unwrap_err().errno(), libc::ENOENT);
    // A gateway that has it open still knows it.
    match one.getattr(&file) {
        Ok(attr) => assert_eq!(attr.nlink, 0),
        Err(error) => assert_eq!(error.errno(), libc::ESTALE, "{error}"),
    }
}

#[test]
fn a_killed_gateway_loses_nothing_that_was_acknowledged() {
    let mut gateways = Gateways::start(1, EVERYTHING);
    let url = NfsUrl::parse(&gateways.url("nfs0", "/")).unwrap();
    let is_over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let at_end = SetAtEnd(&is_over);
        let writer = scope.spawn(|| -> Result<_, Error> {
            let client = NfsClient::connect(&url, &hard())?;
            let created = client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644)))?;
            let (file, mut random) = (created.handle.expect("gateways give handles"), Random(seed()));
            let (mut data, mut names) = (Vec::new(), 0);
            while !is_over.load(Ordering::Relaxed) || names < 10 {
                let length = 1 + random.below(3 << 20) as usize;
                let part = random.bytes(length);
                let at = data.len() % (48 << 20);
                // Each round overwrites what earlier ones left at this place.
                data.resize(data.len().max(at + part.len()), 0);
                data[at..at + part.len()].copy_from_slice(&part);
                client.write_all(&file, at as u64, &part, 8)?;
                let name = format!("name-{names}");
                client.create(client.root(), name.as_bytes(), &CreateHow::Unchecked(mode(0o600)))?;
                names += 1;
            }
            Ok((data, names))
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(500));
            gateways.cluster.kill("nfs0");
            std::thread::sleep(Duration::from_millis(200));
            gateways.cluster.spawn("nfs0");
            gateways.cluster.wait_ready("nfs0");
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(at_end);
        writer.join().expect("it does not panic")
    });
    let (data, names) = written.unwrap_or_else(|error| panic!("{error}"));
    let native = gateways.native();
    assert!(native_bytes(&native, "/file") == data);
    for name in 0..names {
        native
            .stat(format!("/name-{name}").as_str(), false)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    gateways.cluster.stop("nfs0");
    assert!(gateways.cluster.log("nfs0").contains("has stopped"));
}

#[test]
fn a_restarted_cluster_is_waited_for() {
    let mut gateways = Gateways::start(1, EVERYTHING);
    let client = gateways.client("nfs0");
    let created = client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644))).unwrap();
    let file = created.handle.unwrap();
    for (server, byte) in [("meta0", 1), ("io0", 2), ("io1", 3)] {
        gateways.cluster.kill(server);
        std::thread::scope(|scope| {
            let url = NfsUrl::parse(&gateways.url("nfs0", "/")).unwrap();
            let file = &file;
            let write = scope
                .spawn(move || NfsClient::connect(&url, &hard())?.write_all(file, 0, &[byte; 600_000], 4));
            std::thread::sleep(Duration::from_millis(700));
            gateways.cluster.spawn(server);
            gateways.cluster.wait_ready(server);
            write.join().expect("it does not panic").unwrap_or_else(|error| panic!("{server}: {error}"));
        });
        assert!(native_bytes(&gateways.native(), "/file") == [byte; 600_000], "{server}");
    }
}

#[test]
fn a_gateway_waits_for_its_cluster_and_ends_when_asked() {
    let mut gateways = Gateways::init(1, EVERYTHING);
    gateways.cluster.kill("meta0");
    gateways.cluster.spawn("nfs0");
    std::thread::sleep(Duration::from_millis(500));
    assert!(gateways.cluster.is_running("nfs0"));
    gateways.cluster.stop("nfs0");
    gateways.cluster.spawn("nfs0");
    gateways.cluster.spawn("meta0");
    gateways.cluster.wait_ready("nfs0");
    gateways.client("nfs0");
}

#[test]
fn exports_change_without_a_restart() {
    let gateways = Gateways::start(1, EVERYTHING);
    let native = gateways.native();
    native.mkdir("/projects", 0o777).unwrap();
    native.mkdir("/projects/a", 0o777).unwrap();
    let client = gateways.client("nfs0");
    client.mkdir(client.root(), b"by-nfs", &mode(0o755)).unwrap();

    gateways.export(&EVERYTHING.replace("squash", "access = \"ro\"\nsquash"));
    gateways.wait_for_log("nfs0", "exports / to 127.0.0.0/8 (ro, squash none)");
    let refused = client.mkdir(client.root(), b"more", &mode(0o755)).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS, "{refused}");

    gateways.export(&EVERYTHING.replace("squash", "squish"));
    gateways.wait_for_log("nfs0", "the exports stay as they are");
    assert!(gateways.cluster.log("nfs0").contains("squish"), "the log says what is wrong");
    client.lookup(client.root(), b"by-nfs").unwrap();

    gateways.export(&EVERYTHING.replace("path = \"/\"", "path = \"/projects\""));
    gateways.wait_for_log("nfs0", "exports /projects to 127.0.0.0/8 (rw, squash none)");
    let gone = client.getattr(client.root()).unwrap_err();
    assert_eq!(gone.errno(), libc::ESTALE, "its export is gone: {gone}");
    assert!(gateways.connect("nfs0", "/by-nfs", &hard()).is_err());
    let inside = gateways.connect("nfs0", "/projects/a", &hard()).unwrap();
    let dir = inside.resolve("/projects/a").unwrap().handle;
    inside.mkdir(&dir, b"b", &mode(0o755)).unwrap();
    assert!(native.stat("/projects/a/b", false).is_ok());

    // SIGHUP reads the file also where nothing seems to have changed.
    let seen = gateways.cluster.log("nfs0").matches("exports ").count();
    signal(gateways.cluster.pid("nfs0"), libc::SIGHUP);
    gateways.export(EVERYTHING);
    wait_until("it is exported again", APPLY_TIME, || {
        gateways.cluster.log("nfs0").matches("exports ").count() > seen
    });
    client
        .getattr(client.root())
        .unwrap_or_else(|error| panic!("the same handle leads to it again: {error}"));
}

#[test]
fn a_client_outside_is_refused_and_logged_once() {
    let outside = "[[export]]\npath = \"/\"\nclients = [\"10.9.9.9\", \"no-such-host.invalid\"]\n\
                   [[export]]\npath = \"/missing\"\nclients = [\"*\"]\n";
    let gateways = Gateways::start(1, outside);
    gateways.wait_for_log("nfs0", "nobody can mount the export /missing now");
    gateways.wait_for_log("nfs0", "the client no-such-host.invalid has no address now");
    for _ in 0..20 {
        let refused = gateways.connect("nfs0", "/", &hard()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("MNT /"), "{refused}");
    }
    gateways.connect("nfs0", "/elsewhere", &hard()).map(drop).unwrap_err();
    let log = gateways.cluster.log("nfs0");
    assert_eq!(log.matches("the export's clients do not include it").count(), 1, "{log}");
    assert!(log.contains("127.0.0.1"), "{log}");

    gateways.export(EVERYTHING);
    gateways.wait_for_log("nfs0", "exports / to 127.0.0.0/8");
    if Need::Root.is_met() {
        gateways.client("nfs0");
    }
    let from_high = ConnectOptions { from_reserved_port: Some(false), ..hard() };
    gateways.connect("nfs0", "/", &from_high).map(drop).unwrap_err();
    gateways.export(&EVERYTHING.replace("squash", "insecure_ports = true\nsquash"));
    gateways.wait_for_log("nfs0", "any port");
    gateways.connect("nfs0", "/", &from_high).unwrap();
}

#[test]
fn gateways_tell_what_they_export_and_to_whom() {
    let mut gateways = Gateways::start(2, EVERYTHING);
    let cluster = &gateways.cluster;
    let config = cluster.config_path();
    let ask = |what: &str| -> (bool, serde_json::Value, String) {
        let mut command = Command::new(weft_bin());
        let output = command.args(["nfs", what, "--json", "--config"]).arg(&config).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), serde_json::from_slice(&output.stdout).expect(&said), said)
    };
    let client = gateways.client("nfs1");
    client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644))).unwrap();
    let file = client.lookup(client.root(), b"file").unwrap().handle;
    client.write_all(&file, 0, &[1; 5000], 1).unwrap();

    let (is_well, status, _) = ask("status");
    assert!(is_well && status[0]["counts"]["written_bytes"] == 0, "{status}");
    assert_eq!(status[1]["counts"]["written_bytes"], 5000, "{status}");
    assert_eq!(status[1]["pid"], cluster.pid("nfs1"), "{status}");
    let (_, clients, _) = ask("clients");
    assert_eq!(clients[1]["clients"][0]["address"], "127.0.0.1", "{clients}");
    assert_eq!(clients[1]["clients"][0]["mounts"][0], "/", "{clients}");
    assert!(clients[1]["clients"][0]["connections"].as_u64() >= Some(1), "{clients}");
    assert_eq!(clients[0]["clients"].as_array().map(Vec::len), Some(0), "{clients}");
    let (_, exports, _) = ask("exports");
    assert_eq!(
        (&exports[0]["exports"][0]["path"], &exports[0]["exports"][0]["squash"]),
        (&"/".into(), &"none".into())
    );

    let shown = cluster.weft(&["status", &cluster.url()]);
    assert!(shown.contains("NFS gateways: nfs0 on ") && shown.contains("nfs1 on "), "{shown}");
    let table = cluster.weft(&["nfs", "exports", "--config", text(&config)]);
    assert!(table.contains("127.0.0.0/8") && table.contains("nfs0, nfs1"), "{table}");

    gateways.cluster.kill("nfs0");
    let (is_well, status, said) = ask("status");
    assert!(!is_well && status[0]["answers"] == false && status[1]["answers"] == true, "{status}");
    assert!(said.contains("not running: nfs0"), "{said}");
    gateways.export(&EVERYTHING.replace("squash", "squish"));
    gateways.wait_for_log("nfs1", "the exports stay as they are");
    // The file that is wrong says where the gateways are no more.
    let mut command = Command::new(weft_bin());
    let output = command.args(["nfs", "exports", "--config"]).arg(&config).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("squish"), "{output:?}");
}

#[test]
fn keys_are_replaced_while_a_gateway_serves() {
    let gateways = Gateways::start(1, EVERYTHING);
    let cluster = &gateways.cluster;
    let client = gateways.client("nfs0");
    let created = client.create(client.root(), b"file", &CreateHow::Unchecked(mode(0o644))).unwrap();
    let file = created.handle.unwrap();
    client.write_all(&file, 0, b"before", 1).unwrap();
    let key = |arguments: &[&str]| {
        let mut command = Command::new(weft_bin());
        command.arg("key").args(arguments).arg("--config").arg(cluster.config_path());
        expect_success("weft key", &command.output().unwrap());
    };
    let replace_client_key = |times: usize| {
        let new = cluster.scratch().join("new.key");
        key(&["issue", "--host", "gateway", "--no-root-squash", "--out", text(&new)]);
        fs::rename(new, cluster.key_file()).unwrap();
        wait_until("the gateway uses the new key", APPLY_TIME, || {
            cluster.log("nfs0").matches("connects to the cluster with its new key").count() == times
        });
    };
    replace_client_key(1);
    client.write_all(&file, 6, b" and after", 1).unwrap();

    for (step, times) in [("add", 1), ("switch", 2)] {
        wait_until("the servers have taken over the step before", APPLY_TIME, || {
            let mut command = Command::new(weft_bin());
            command.args(["key", "rotate", step, "--config"]).arg(cluster.config_path());
            command.output().unwrap().status.success()
        });
        wait_until("the gateway has read the keys", APPLY_TIME, || {
            cluster.log("nfs0").matches("has read the cluster's keys again").count() == times
        });
        assert_eq!(client.getattr(&file).unwrap().size_bytes, 16, "{step}");
    }
    replace_client_key(2);
    let by_name = client.lookup(client.root(), b"file").unwrap().handle;
    assert_ne!(by_name.bytes(), file.bytes(), "it is signed with the new key");
    assert_eq!(client.getattr(&by_name).unwrap().fileid, client.getattr(&file).unwrap().fileid);
    assert_eq!(native_bytes(&gateways.native(), "/file"), b"before and after");
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let gateways = Gateways::start(1, EVERYTHING);
    let serve = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("30").arg(weft_bin()).args(["serve", "--config"]).arg(gateways.cluster.config_path());
        let output = command.args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = serve(&["--name", "nfs0"]);
    let pid = gateways.cluster.pid("nfs0").to_string();
    assert!(code == Some(1) && said.contains("in use by process") && said.contains(&pid), "{code:?} {said}");
    let (code, said) = serve(&["--name", "nfs0", "--format"]);
    assert!(code == Some(1) && said.contains("it has no storage"), "{code:?} {said}");
    let (code, said) = serve(&["--name", "nfs7"]);
    assert!(code == Some(78) && said.contains("nfs7") && said.contains("nfs0"), "{code:?} {said}");

    // A key that does not act for everybody.
    let key = gateways.cluster.scratch().join("user.key");
    let mut issue = Command::new(weft_bin());
    issue.args(["key", "issue", "--uid", "1000", "--gid", "1000", "--out"]).arg(&key);
    issue.arg("--config").arg(gateways.cluster.config_path());
    expect_success("weft key issue", &issue.output().unwrap());
    let config = fs::read_to_string(gateways.cluster.config_path()).unwrap();
    let directory = gateways.cluster.directory("nfs0");
    let other = gateways.cluster.scratch().join("other");
    let from = format!("directory = {directory:?}");
    let config = config.replace(&from, &format!("directory = {other:?}\nkey = {key:?}"));
    fs::write(gateways.cluster.config_path(), config).unwrap();
    let (code, said) = serve(&["--name", "nfs0"]);
    assert!(
        code == Some(78) && said.contains("user.key") && said.contains("--no-root-squash"),
        "{code:?} {said}"
    );
}

#[test]
fn a_gateway_without_an_adapter_serves_all_the_same_and_says_why() {
    let mut gateways = Gateways::init(1, EVERYTHING);
    let config = gateways.cluster.config_path();
    // No adapter has an address of the loopback.
    let text_of_file = fs::read_to_string(&config).unwrap();
    let with_rdma = text_of_file.replace(
        "[[gateway]]",
        "[[gateway]]\nrdma_addresses = [\"127.0.0.1:20049\"]\nrdma_design = \"read-read\"",
    );
    fs::write(&config, with_rdma).unwrap();
    gateways.start_all();
    let client = gateways.client("nfs0");
    client.create(client.root(), b"by-tcp", &CreateHow::Unchecked(mode(0o644))).unwrap();
    let lacks = "does not serve NFS over RDMA at 127.0.0.1:20049: ";
    assert!(gateways.cluster.log("nfs0").contains(lacks), "{}", gateways.cluster.log("nfs0"));
    let warned = "exposes its memory to clients over RDMA (rdma_design = \"read-read\")";
    assert!(gateways.cluster.log("nfs0").contains(warned), "{}", gateways.cluster.log("nfs0"));
    let status = gateways.cluster.weft(&["nfs", "status", "--config", text(&config)]);
    assert!(status.contains(&format!("nfs0 {lacks}")), "{status}");
    let clients = gateways.cluster.weft(&["nfs", "clients", "--config", text(&config)]);
    assert!(clients.contains("transport") && clients.contains("tcp"), "{clients}");
}
