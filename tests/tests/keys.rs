//! Whom a key makes its holder: users, hosts, processes without a key, and the end of keys.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::{Client, ConnectOptions, OpenOptions, Transport, Url, read_key_file};
use weft_layout::Regions;
use weft_tests::raw::{Raw, hello, hello_of};
use weft_tests::{Served, ServedOptions, SetAtEnd, free_ports, host, wait_until, weft_bin};
use weft_wire::keys::{IssuedKey, id_text};
use weft_wire::messages::*;
use weft_wire::security::Key;
use weft_wire::{Added, Header, Op, Status, Wire};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
/// How long servers may take to cut off whoever has a key that has ended.
const CUT_TIME: Duration = Duration::from_secs(3);

/// A cluster whose root directory anybody may write to, with a file that only root may read.
fn cluster(io_servers: u16) -> Served {
    let cluster = Served::start(io_servers);
    let client = cluster.client(Transport::Tcp);
    client.chmod_root();
    let options = OpenOptions::new().write(true).create(true).mode(0o600);
    client.open("/roots", &options).expect("a file of root's").write_at(b"secret", 0).expect("written");
    cluster
}

trait ChmodRoot {
    fn chmod_root(&self);
}

impl ChmodRoot for Client {
    fn chmod_root(&self) {
        let change = weft_client::SetAttr { mode: Some(0o777), ..Default::default() };
        self.setattr("/", true, &change).expect("root may");
    }
}

fn key_command(cluster: &Served, arguments: &[&str]) -> Output {
    let mut command = Command::new(weft_bin());
    command.arg("key").args(arguments).arg("--config").arg(cluster.config_path());
    command.output().expect("weft can be run")
}

/// Issues a key to a file of a user of this machine.
fn issue(cluster: &Served, name: &str, owner: u32, arguments: &[&str]) -> PathBuf {
    let path = cluster.scratch().join(name);
    let output = key_command(cluster, &[&["issue", "--out", path.to_str().unwrap()], arguments].concat());
    weft_tests::expect_success("weft key issue", &output);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::os::unix::fs::chown(&path, Some(owner), None).expect("this test runs as root");
    path
}

fn user_key(cluster: &Served, uid: u32) -> PathBuf {
    let number = uid.to_string();
    issue(cluster, &format!("{uid}.key"), uid, &["--uid", &number, "--gid", &number])
}

fn revoke(cluster: &Served, key: &Path) -> String {
    let id = id_text(&read_key_file(key).unwrap().info.id);
    weft_tests::expect_success("weft key revoke", &key_command(cluster, &["revoke", &id]))
}

/// `weft` with its library where every user reaches them, wherever this repository is.
fn weft_for_all(cluster: &Served) -> PathBuf {
    let directory = cluster.scratch().join("bin");
    let copy = |program: &Path| {
        let to = directory.join(program.file_name().expect("a file"));
        if !to.exists() {
            fs::copy(program, &to).expect("room");
        }
        to
    };
    fs::create_dir_all(&directory).expect("an own directory");
    copy(weft_tests::preload_library());
    copy(weft_bin())
}

/// `weft`, or another program, of a user who has nothing but this environment.
fn as_user(cluster: &Served, uid: u32, words: &[&str]) -> Command {
    let mut command = match words[0] {
        "weft" => Command::new(weft_for_all(cluster)),
        other => Command::new(other),
    };
    command.args(&words[1..]).env("HOME", "/nonexistent").current_dir("/");
    command.env_remove("WEFT_KEY").env_remove("WEFT_KEY_FILE").env_remove("XDG_CONFIG_HOME");
    command.uid(uid).gid(uid);
    command
}

#[track_caller]
fn refused(mut command: Command, why: &str) {
    let output = command.output().expect("it can be run");
    let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(!output.status.success(), "{command:?} succeeded");
    assert!(said.contains(why), "{command:?}: {said}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("secret"));
}

#[track_caller]
fn succeeds(mut command: Command) -> String {
    weft_tests::expect_success(&format!("{command:?}"), &command.output().expect("it can be run"))
}

fn client_with(cluster: &Served, key: &Path) -> Result<Client, weft_client::Error> {
    let options = ConnectOptions {
        key: Some(read_key_file(key).expect("a key")),
        retry_timeout_ms: 5_000,
        ..ConnectOptions::default()
    };
    Client::connect(&Url::parse(&cluster.url()).unwrap(), options)
}

#[test]
fn the_holder_of_a_user_key_is_that_user_however_it_looks() {
    let cluster = cluster(2);
    let key = user_key(&cluster, ALICE);
    let weft = weft_for_all(&cluster).to_str().unwrap().to_string();
    let (roots, hers) = (cluster.at("/roots"), cluster.at("/hers"));
    let with_key = |mut command: Command| {
        command.env("WEFT_KEY_FILE", &key);
        command
    };
    refused(with_key(as_user(&cluster, ALICE, &["weft", "cat", &roots])), "permission denied");
    refused(
        with_key(as_user(&cluster, ALICE, &["unshare", "-Ur", &weft, "cat", &roots])),
        "permission denied",
    );
    refused(with_key(as_user(&cluster, 0, &["weft", "cat", &roots])), "permission denied");
    // The key in the URL, and a program that knows nothing of Weft.
    let url = format!("{}?key-file={}", cluster.url(), key.display());
    let run = ["unshare", "-Ur", &weft, "run", "--url", &url, "--", "cat", "/weft/roots"];
    refused(as_user(&cluster, ALICE, &run), "permission denied");
    let text = cluster.scratch().join("text");
    fs::write(&text, "of alice").unwrap();
    for (number, uid) in [ALICE, 0, BOB].into_iter().enumerate() {
        if uid == BOB {
            fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
            std::os::unix::fs::chown(&key, Some(BOB), None).unwrap();
        }
        let place = format!("{hers}{number}");
        succeeds(with_key(as_user(&cluster, uid, &["weft", "cp", text.to_str().unwrap(), &place])));
        let attr = cluster.client(Transport::Tcp).stat(format!("/hers{number}").as_str(), true).unwrap();
        assert_eq!((attr.uid, attr.gid), (ALICE, ALICE), "written by a process of {uid}");
    }
    refused(with_key(as_user(&cluster, BOB, &["weft", "fsck", &cluster.url()])), "administrators");
}

#[test]
fn a_mount_with_a_users_key_acts_as_that_user() {
    let cluster = cluster(1);
    let key = user_key(&cluster, ALICE);
    let mount = cluster.mount_with(&["--key", key.to_str().unwrap()]);
    assert!(fs::read(mount.join("roots")).is_err(), "the mount's root is not the file system's");
    mount.sh("echo hello > of-alice; cat of-alice; mkdir dir; mv of-alice dir/; rm -r dir; echo x > kept");
    let attr = cluster.client(Transport::Tcp).stat("/kept", true).unwrap();
    assert_eq!((attr.uid, attr.gid), (ALICE, ALICE));
}

#[test]
fn root_of_a_host_is_squashed_by_the_servers_unless_its_key_says_otherwise() {
    let cluster = cluster(1);
    for (name, squash, owner) in [("squashed", true, 65_534), ("root", false, 0)] {
        let no_squash: &[&str] = if squash { &[] } else { &["--no-root-squash"] };
        let key = issue(&cluster, name, 0, &[&["--host", "node7"], no_squash].concat());
        let mount = cluster.mount_with(&["--key", key.to_str().unwrap()]);
        assert_eq!(fs::read(mount.join("roots")).is_err(), squash);
        mount.sh(&format!("echo x > {name}-by-root"));
        let mut write = as_user(
            &cluster,
            ALICE,
            &[
                "sh",
                "-c",
                &format!("echo x > {name}-by-alice; chmod u+s {name}-by-alice; echo y >> {name}-by-alice"),
            ],
        );
        write.current_dir(mount.path());
        succeeds(write);
        let client = cluster.client(Transport::Tcp);
        assert_eq!(client.stat(format!("/{name}-by-root").as_str(), true).unwrap().uid, owner);
        let by_alice = client.stat(format!("/{name}-by-alice").as_str(), true).unwrap();
        assert_eq!((by_alice.uid, by_alice.gid, by_alice.size), (ALICE, ALICE, 4));
        assert_eq!(by_alice.mode & libc::S_ISUID, 0, "a write ends the set-user-id bit");
    }
}

#[test]
fn an_operator_who_is_not_root_gives_directories_to_users() {
    let cluster = cluster(1);
    let administrators = ["--host", "node7", "--no-root-squash"];
    let operator = issue(&cluster, "operator", ALICE, &administrators);
    let (bobs, directory) = (user_key(&cluster, BOB), cluster.at("/for-bob"));
    cluster.client(Transport::Tcp).mkdir("/for-bob", 0o755).unwrap();
    let as_holder = |uid: u32, key: &Path, words: &[&str]| {
        let mut command = as_user(&cluster, uid, words);
        command.env("WEFT_KEY_FILE", key);
        command
    };
    let bob = BOB.to_string();
    refused(as_holder(ALICE, &operator, &["weft", "chown", &bob, &directory]), "add --as-root");
    refused(as_holder(BOB, &bobs, &["weft", "chown", "--as-root", &bob, &directory]), "not permitted");
    let owners = format!("{bob}:{bob}");
    succeeds(as_holder(ALICE, &operator, &["weft", "chown", "--as-root", &owners, &directory]));
    let attr = cluster.client(Transport::Tcp).stat("/for-bob", true).unwrap();
    assert_eq!((attr.uid, attr.gid), (BOB, BOB));
    succeeds(as_holder(BOB, &bobs, &["weft", "mkdir", &format!("{directory}/mine")]));
    refused(as_holder(ALICE, &operator, &["weft", "chmod", "700", &directory]), "not permitted");
    succeeds(as_holder(ALICE, &operator, &["weft", "chmod", "--as-root", "700", &directory]));
}

#[test]
fn without_a_key_a_process_on_the_servers_host_is_who_the_kernel_says() {
    let cluster = cluster(2);
    let socket = cluster.socket("meta0");
    let at = |path: &str| format!("{}?socket={}", cluster.at(path), socket.display());
    let text = cluster.scratch().join("text");
    fs::write(&text, "x").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
    refused(as_user(&cluster, ALICE, &["weft", "cat", &at("/roots")]), "permission denied");
    let weft = weft_for_all(&cluster);
    let weft = weft.to_str().unwrap();
    refused(as_user(&cluster, ALICE, &["unshare", "-Ur", weft, "cat", &at("/roots")]), "permission denied");
    succeeds(as_user(&cluster, ALICE, &["weft", "cp", text.to_str().unwrap(), &at("/hers")]));
    let attr = cluster.client(Transport::Tcp).stat("/hers", true).unwrap();
    assert_eq!((attr.uid, attr.gid), (ALICE, ALICE));
    assert_eq!(succeeds(as_user(&cluster, ALICE, &["weft", "cat", &at("/hers")])), "x");
    assert_eq!(succeeds(as_user(&cluster, 0, &["weft", "cat", &at("/roots")])), "secret");
    succeeds(as_user(&cluster, 0, &["weft", "fsck", &at("/")]));
    refused(as_user(&cluster, ALICE, &["weft", "fsck", &at("/")]), "administrators");
    // Not over TCP, whether a client thinks so or not.
    refused(as_user(&cluster, 0, &["weft", "cat", &cluster.at("/roots")]), "there is no key");
    refused(as_user(&cluster, 0, &["weft", "cat", "--transport", "tcp", &at("/roots")]), "without a key");
    for name in cluster.names() {
        let mut raw = Raw::tcp(cluster.address(&name)).unwrap();
        let nobody = HelloRequest { role: peer_role::PROCESS, ..hello() };
        let error = raw.prove(&Key::ZERO, nobody).unwrap_err().to_string();
        assert!(error.contains("without a key"), "{error}");
        assert!(raw.is_cut_within(CUT_TIME));
    }
}

#[test]
fn a_key_whose_public_part_was_changed_is_refused() {
    let cluster = cluster(1);
    let key = user_key(&cluster, ALICE);
    let good = fs::read_to_string(&key).unwrap();
    let host = fs::read_to_string(issue(&cluster, "host", 0, &["--host", "node7"])).unwrap();
    for (text, from, to) in [
        (&good, "uid 1000", "uid 0"),
        (&good, "gids 1000", "gids 1000 0"),
        (&good, "expires never", "expires 99999999999"),
        (&host, "root-squash yes", "root-squash no"),
        (&host, "name node7", "name node8"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(&changed, text);
        fs::write(&key, changed).unwrap();
        let error = client_with(&cluster, &key).map(drop).unwrap_err().to_string();
        assert!(error.contains("key"), "{error}");
        for name in cluster.names() {
            let mut raw = Raw::tcp(cluster.address(&name)).unwrap();
            // One that does not look at the server's proof.
            raw.must(&hello_of(&read_key_file(&key).unwrap()));
            let secret = read_key_file(&key).unwrap().secret;
            let reply = raw.ask(&ProveRequest { proof: secret.0 }).unwrap();
            assert_eq!(reply.header.status, Status::Unauthenticated);
        }
    }
}

#[test]
fn key_files_that_others_may_read_are_refused_everywhere() {
    let cluster = cluster(1);
    let key = user_key(&cluster, ALICE);
    let path = key.to_str().unwrap();
    let url = cluster.url();
    for mode in [0o644, 0o640, 0o660] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        refused(as_user(&cluster, ALICE, &["weft", "ls", &url, "--key", path]), "chmod 600");
        let mut command = as_user(&cluster, ALICE, &["weft", "ls", &url]);
        command.env("WEFT_KEY_FILE", path);
        refused(command, "chmod 600");
        refused(as_user(&cluster, ALICE, &["weft", "ls", &format!("{url}?key-file={path}")]), "chmod 600");
        let dir = cluster.scratch().join("mount-point");
        fs::create_dir_all(&dir).unwrap();
        refused(
            as_user(&cluster, 0, &["weft", "mount", &url, dir.to_str().unwrap(), "--key", path]),
            "chmod 600",
        );
        let run = ["weft", "run", "--url", &url, "--key", path, "--", "cat", "/weft/roots"];
        let output = as_user(&cluster, ALICE, &run).output().unwrap();
        assert!(!output.status.success());
    }
    // Where it is found by the name of the server.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let keys = cluster.scratch().join("home/.config/weft/keys");
    fs::create_dir_all(&keys).unwrap();
    let installed = keys.join(cluster.address("meta0"));
    fs::copy(&key, &installed).unwrap();
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&installed, Some(ALICE), None).unwrap();
    let find = |url: &str| {
        let mut command = as_user(&cluster, ALICE, &["weft", "ls", url]);
        command.env("HOME", cluster.scratch().join("home"));
        command
    };
    succeeds(find(&url));
    succeeds(find(&url.replace("127.0.0.1", "localhost")));
    fs::set_permissions(&installed, fs::Permissions::from_mode(0o644)).unwrap();
    refused(find(&url), "chmod 600");
}

#[test]
fn a_revoked_key_is_refused_at_once_and_after_any_restart() {
    let mut cluster = cluster(2);
    let (key, bobs) = (user_key(&cluster, ALICE), user_key(&cluster, BOB));
    let alice = client_with(&cluster, &key).unwrap();
    let options = OpenOptions::new().read(true).write(true).create(true);
    let file = alice.open("/hers", &options).unwrap();
    file.write_at(&[1; 300_000], 0).unwrap();
    let bob = client_with(&cluster, &bobs).unwrap();
    let names = cluster.names();
    let mut connections: Vec<(String, Raw)> = names
        .iter()
        .map(|name| {
            let mut raw = Raw::tcp(cluster.address(name)).unwrap();
            raw.greet(&read_key_file(&key).unwrap()).unwrap();
            (name.clone(), raw)
        })
        .collect();
    let said = revoke(&cluster, &key);
    assert!(said.starts_with("revoked "), "{said}");
    for (name, raw) in &mut connections {
        assert!(raw.is_cut_within(CUT_TIME), "{name} goes on with a revoked key");
    }
    assert!(file.read_at(&mut [0; 300_000], 0).is_err(), "data");
    assert!(alice.stat("/", true).is_err(), "names");
    bob.stat("/", true).unwrap();
    let is_refused = |cluster: &Served, name: &str| {
        let mut raw = Raw::tcp(cluster.address(name)).unwrap();
        let error = raw.greet(&read_key_file(&key).unwrap()).map(drop).unwrap_err().to_string();
        assert!(error.contains("revoked"), "{name}: {error}");
    };
    names.iter().for_each(|name| is_refused(&cluster, name));
    // None forgets it: not a server that is killed, not one alone, not all of them.
    for name in &names {
        cluster.crash(name);
        is_refused(&cluster, name);
    }
    names.iter().for_each(|name| cluster.stop(name));
    for name in names.iter().filter(|name| *name != "meta0") {
        cluster.spawn(name);
        cluster.wait_ready(name);
        is_refused(&cluster, name);
    }
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    names.iter().for_each(|name| is_refused(&cluster, name));
    let list = weft_tests::expect_success("weft key list", &key_command(&cluster, &["list"]));
    let line = |uid: u32| list.lines().find(|line| line.contains(&format!("user {uid} "))).unwrap();
    assert!(line(ALICE).contains("revoked") && line(BOB).contains("valid"), "{list}");
}

#[test]
fn a_server_that_was_down_hears_of_revoked_keys_when_it_is_back() {
    let mut cluster = cluster(2);
    let key = user_key(&cluster, ALICE);
    cluster.stop("io1");
    let output = key_command(&cluster, &["revoke", key.to_str().unwrap()]);
    weft_tests::expect_success("weft key revoke", &output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("io1 did not answer"), "{output:?}");
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let is_refused = |cluster: &Served| {
        let mut raw = Raw::tcp(cluster.address("io1")).unwrap();
        raw.greet(&read_key_file(&key).unwrap()).is_err()
    };
    wait_until("io1 has been told", Duration::from_secs(10), || is_refused(&cluster));
    // From now on it knows by itself.
    cluster.kill("meta0");
    cluster.crash("io1");
    assert!(is_refused(&cluster));
}

#[test]
fn keys_that_were_revoked_after_a_backup_stay_revoked() {
    let mut cluster = cluster(2);
    let (before, after) = (user_key(&cluster, ALICE), user_key(&cluster, BOB));
    let earlier = issue(&cluster, "earlier", 0, &["--host", "node7"]);
    // The I/O servers have a list that the backup is of before.
    revoke(&cluster, &earlier);
    let backup = cluster.scratch().join("names.backup");
    let backup = backup.to_str().expect("UTF-8");
    cluster.weft(&["meta", "dump", &cluster.url(), backup]);
    let later = issue(&cluster, "later", 0, &["--host", "node8"]);
    for key in [&after, &later] {
        let said = revoke(&cluster, key);
        assert!(!said.contains("io"), "all servers have heard of it: {said}");
    }
    cluster.stop("meta0");
    let config = cluster.config_path().to_str().expect("UTF-8").to_string();
    cluster.weft(&["meta", "load", backup, "--config", &config, "--name", "meta0", "--replace"]);
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    let check = |cluster: &Served| {
        client_with(cluster, &before).expect("its key is good").stat("/", true).expect("names are served");
        for key in [&earlier, &after, &later] {
            let error = client_with(cluster, key).expect_err("its key is revoked").to_string();
            assert!(error.contains("revoked"), "{error}");
        }
        let keys =
            ["earlier", "later"].map(|name| read_key_file(&cluster.scratch().join(name)).expect("a key"));
        for name in ["io0", "io1"] {
            for key in &keys {
                let mut raw = Raw::tcp(cluster.address(name)).expect("it is up");
                let refused = raw.greet(key).map(drop).expect_err("its key is revoked").to_string();
                assert!(refused.contains("revoked"), "{name}: {refused}");
            }
        }
    };
    check(&cluster);
    cluster.crash("meta0");
    check(&cluster);
    let list = weft_tests::expect_success("weft key list", &key_command(&cluster, &["list"]));
    assert!(list.contains("revoked after the backup"), "{list}");
}

#[test]
fn a_key_ends_at_its_time_for_those_who_are_connected_too() {
    let cluster = cluster(1);
    let key = issue(&cluster, "brief", ALICE, &["--uid", "1000", "--gid", "1000", "--expires", "4s"]);
    let mut connections: Vec<(String, Raw)> = cluster
        .names()
        .into_iter()
        .map(|name| {
            let mut raw = Raw::tcp(cluster.address(&name)).unwrap();
            raw.greet(&read_key_file(&key).unwrap()).expect("it has not expired yet");
            (name, raw)
        })
        .collect();
    for (name, raw) in &mut connections {
        assert!(raw.is_cut_within(Duration::from_secs(4) + CUT_TIME), "{name} goes on with an expired key");
    }
    let error = client_with(&cluster, &key).map(drop).unwrap_err().to_string();
    assert!(error.contains("expired"), "{error}");
}

/// What a step of `weft key rotate` says, `Err` where it was not taken.
fn rotate(cluster: &Served, arguments: &[&str]) -> Result<String, String> {
    let output = key_command(cluster, &[&["rotate"], arguments].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Writes and reads a file of 1 MiB again and again until `stop`; returns how often.
fn keep_using(client: &Client, path: &str, stop: &AtomicBool) -> u64 {
    let options = OpenOptions::new().read(true).write(true).create(true);
    let mut rounds = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let file = client.open(path, &options).expect("opened");
        let data = vec![rounds as u8; 1 << 20];
        file.write_at(&data, 0).expect("written");
        let mut read = vec![0; 1 << 20];
        assert_eq!(file.read_at(&mut read, 0).expect("read"), read.len());
        assert!(read == data, "round {rounds}");
        rounds += 1;
    }
    rounds
}

#[test]
fn the_cluster_key_is_replaced_while_the_cluster_is_in_use() {
    let mut cluster = cluster(2);
    let path = cluster.config_path().with_file_name("cluster.key");
    let on_disk = || fs::read_to_string(&path).unwrap();
    let before = on_disk();
    let (old, bobs) = (user_key(&cluster, ALICE), user_key(&cluster, BOB));
    assert!(rotate(&cluster, &["switch"]).unwrap_err().contains("no other key"));
    assert!(rotate(&cluster, &["drop"]).unwrap_err().contains("no other key"));
    assert_eq!(on_disk(), before);

    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let (alice, stop, _ends) = (client_with(&cluster, &old).unwrap(), &stop, SetAtEnd(&stop));
        let busy = scope.spawn(move || keep_using(&alice, "/busy", stop));
        rotate(&cluster, &["add"]).unwrap();
        assert!(rotate(&cluster, &["add"]).unwrap_err().contains("already in progress"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A server that is down may not have the file.
        cluster.stop("io1");
        let added = on_disk();
        assert!(rotate(&cluster, &["switch"]).unwrap_err().contains("cannot ask io1"));
        assert_eq!(on_disk(), added);
        cluster.spawn("io1");
        cluster.wait_ready("io1");
        wait_until("all servers accept the new key", Duration::from_secs(10), || {
            rotate(&cluster, &["switch"]).is_ok()
        });
        // Keys of both are good, also on servers that have just started.
        fs::remove_file(cluster.scratch().join("1001.key")).unwrap();
        let new = user_key(&cluster, BOB);
        for name in cluster.names() {
            cluster.crash(&name);
            for key in [&old, &new] {
                Raw::tcp(cluster.address(&name)).unwrap().greet(&read_key_file(key).unwrap()).unwrap();
            }
        }
        let list = weft_tests::expect_success("weft key list", &key_command(&cluster, &["list"]));
        assert!(
            list.lines().any(|line| line.contains("user 1000 ") && line.contains("valid, old")),
            "{list}"
        );
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("no error")
    });
    assert!(rounds > 0);

    let said = rotate(&cluster, &["drop"]).unwrap_err();
    assert!(said.contains("issue another one") && said.contains("may be open for another 24 h"), "{said}");
    let (alice, bob) = (client_with(&cluster, &old).unwrap(), client_with(&cluster, &bobs).unwrap());
    let mut connections: Vec<Raw> =
        cluster.names().iter().map(|name| Raw::tcp(cluster.address(name)).unwrap()).collect();
    for raw in &mut connections {
        raw.greet(&read_key_file(&old).unwrap()).unwrap();
    }
    rotate(&cluster, &["drop", "--force"]).unwrap();
    for raw in &mut connections {
        assert!(
            raw.is_cut_within(CUT_TIME + Duration::from_secs(2)),
            "a key of the old one is good for ever"
        );
    }
    assert!(alice.stat("/", true).is_err());
    assert!(client_with(&cluster, &old).is_err());
    bob.stat("/busy", true).unwrap();
    for name in cluster.names() {
        cluster.crash(&name);
    }
    let options = OpenOptions::new().read(true).write(true).create(true);
    client_with(&cluster, &bobs)
        .unwrap()
        .open("/after", &options)
        .unwrap()
        .write_at(&[1; 300_000], 0)
        .unwrap();
    let list = weft_tests::expect_success("weft key list", &key_command(&cluster, &["list"]));
    assert!(list.lines().any(|line| line.contains("user 1000 ") && line.contains("void")), "{list}");
}

/// A file of the holder's, open to read and write, in the session of `hello`.
fn open_raw(cluster: &Served, key: &std::path::Path, hello: HelloRequest, path: &str) -> (Raw, OpenReply) {
    let mut meta = Raw::tcp(cluster.address("meta0")).unwrap();
    meta.greet_as(&read_key_file(key).unwrap(), hello).unwrap();
    let create = CreateRequest {
        caller: Caller { uid: 0, gid: 0, groups: vec![] },
        at: At { dir: ROOT_INO, path: path.as_bytes().to_vec() },
        mode: 0o600,
        exclusive: false,
        layout: None,
        access: rights::READ | rights::WRITE,
        small: Added(false),
        append: Added(false),
    };
    let header = Header { slot: 1, ..Header::request(Op::Create, 77) };
    meta.send(header, &create.to_bytes(), &[]).unwrap();
    let reply = meta.receive_reply().unwrap();
    assert_eq!(reply.header.status, Status::Ok, "{}", reply.error_text());
    (meta, OpenReply::from_bytes(&reply.body).unwrap())
}

#[test]
fn a_session_cannot_be_taken_over_with_another_key() {
    let cluster = cluster(1);
    let (alices, bobs) = (user_key(&cluster, ALICE), user_key(&cluster, BOB));
    let greeting = hello();
    let (_alice, opened) = open_raw(&cluster, &alices, greeting.clone(), "hers");
    // With the id of her session, and the numbers of her requests.
    let mut bob = Raw::tcp(cluster.address("meta0")).unwrap();
    bob.greet_as(&read_key_file(&bobs).unwrap(), greeting.clone()).unwrap();
    let create = CreateRequest {
        caller: Caller { uid: ALICE, gid: ALICE, groups: vec![] },
        at: At { dir: ROOT_INO, path: b"hers".to_vec() },
        mode: 0o600,
        exclusive: false,
        layout: None,
        access: rights::READ | rights::WRITE,
        small: Added(false),
        append: Added(false),
    };
    bob.send(Header { slot: 1, ..Header::request(Op::Create, 77) }, &create.to_bytes(), &[]).unwrap();
    assert_eq!(bob.receive_reply().unwrap().header.status, Status::Access);
    let report = WriteReport { end_bytes: 1 << 40, touch: true };
    let reply = bob.ask(&ReportRequest { ino: opened.attr.ino, report }).unwrap();
    assert_eq!(reply.header.status, Status::Stale);
    let status = cluster.weft(&["status", &cluster.url(), "--clients", "--json"]);
    let shown: String = greeting.session.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(status.contains("\"client_list\"") && !status.contains(&shown), "the id is shown to nobody");
}

#[test]
fn a_capability_of_anothers_is_refused() {
    let cluster = cluster(1);
    let (alices, bobs) = (user_key(&cluster, ALICE), user_key(&cluster, BOB));
    let (_alice, opened) = open_raw(&cluster, &alices, hello(), "hers");
    let capability = opened.capability.unwrap();
    let read = ReadRequest {
        capability: capability.clone(),
        slot: 0,
        flags: 0,
        regions: Regions::contiguous(0, 10),
    };
    for (key, expected) in [(&alices, Status::Ok), (&bobs, Status::Capability)] {
        let mut io = Raw::tcp(cluster.address("io0")).unwrap();
        io.greet(&read_key_file(key).unwrap()).unwrap();
        assert_eq!(io.ask(&read).unwrap().header.status, expected);
    }
    // Nor is it of use to the same user without the key.
    let mut io = Raw::unix(&cluster.socket("io0")).unwrap();
    let process = HelloRequest { role: peer_role::PROCESS, ..hello() };
    io.prove(&Key::ZERO, process).expect("root may connect without a key");
    assert_eq!(io.ask(&read).unwrap().header.status, Status::Capability);
    let reopen = ReopenRequest { capability, id: OpenId { run: 1, number: 1 }, small: Added(true) };
    let mut bob = Raw::tcp(cluster.address("meta0")).unwrap();
    bob.greet(&read_key_file(&bobs).unwrap()).unwrap();
    assert_eq!(bob.ask(&reopen).unwrap().header.status, Status::Capability);
}

/// Nothing is beside the cluster file: `weft serve`, and every command that needs the secret, take it from elsewhere.
#[test]
fn the_cluster_key_may_be_anywhere() {
    let mut cluster = Served::init(ServedOptions::default());
    let secret = cluster.scratch().join("secret");
    fs::rename(cluster.config_path().with_file_name("cluster.key"), &secret).unwrap();
    let (config, secret) = (cluster.config_path().display().to_string(), secret.display().to_string());
    let run = |cluster: &Served, words: &[&str]| {
        cluster.weft(&[words, &["--config", &config, "--cluster-key", &secret]].concat())
    };
    for name in cluster.names() {
        cluster.spawn_with(&name, &["--cluster-key", &secret]);
        cluster.wait_ready(&name);
    }
    let key = run(&cluster, &["key", "issue", "--uid", "1000", "--gid", "1000"]);
    let id = id_text(&IssuedKey::from_text(&key).expect("a key").info.id);
    assert!(run(&cluster, &["key", "list"]).contains(&id[..8]));
    run(&cluster, &["key", "revoke", &id]);
    run(&cluster, &["key", "rotate", "add"]);
    let addresses = free_ports(2);
    let [moved, added] = [addresses, addresses + 1].map(|port| format!("{}:{port}", host()));
    run(&cluster, &["server", "move", "io0", "--address", &moved, "--rdma-address", &moved]);
    let directory = cluster.scratch().join("io9").display().to_string();
    let new =
        ["server", "add", "io9", "--address", &added, "--rdma-address", &added, "--directory", &directory];
    run(&cluster, &new);
    let written = fs::read_to_string(&config).unwrap();
    for address in [moved, added] {
        assert_eq!(written.matches(&address).count(), 2, "for TCP and for RDMA: {written}");
    }
    assert!(run(&cluster, &["server", "ls"]).contains("io9"));
    cluster.stop("io1");
    run(&cluster, &["server", "replace", "io1"]);
}
