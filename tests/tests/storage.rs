//! Mistakes with the directories of servers: missing, empty, swapped, put back from an older copy, used twice. Each is refused with
//! words that say what to do, and nothing is removed, mixed up or read as zeros.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Served, gauge, wait_until};
use weft_wire::Status;

const PATIENCE: Duration = Duration::from_secs(30);
const STRIP_BYTES: usize = 64 << 10;

fn start(cluster: &mut Served, names: &[&str]) {
    names.iter().for_each(|name| cluster.spawn(name));
    names.iter().for_each(|name| cluster.wait_ready(name));
}

fn stop(cluster: &mut Served, names: &[&str]) {
    names.iter().for_each(|name| cluster.stop(name));
}

/// A server that must not go on; what it says as it ends.
#[track_caller]
fn refused(cluster: &mut Served, name: &str) -> String {
    let said = cluster.log(name).len();
    cluster.spawn(name);
    let mut status = None;
    wait_until(&format!("{name} is refused"), PATIENCE, || {
        status = (!cluster.is_running(name)).then(|| cluster.ended(name));
        status.is_some()
    });
    assert!(!status.expect("it has ended").success());
    let log = cluster.log(name);
    log[said..].to_string()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp can be run");
    assert!(copied.success());
}

/// Puts `copy` in the place of a server's directory, which is kept beside it.
fn put_back(cluster: &Served, name: &str, copy: &Path) -> PathBuf {
    let away = copy.with_file_name(format!("instead of {}", copy.file_name().expect("a name").display()));
    fs::rename(cluster.directory(name), &away).expect("it is ours");
    fs::rename(copy, cluster.directory(name)).expect("it is ours");
    away
}

fn replace(cluster: &Served, name: &str) {
    let config = cluster.config_path();
    cluster.weft(&["server", "replace", name, "--config", config.to_str().expect("UTF-8")]);
}

/// What the metadata server says of a server: its state.
fn state(cluster: &Served, name: &str) -> String {
    let config = cluster.config_path();
    let said = cluster.weft(&["server", "ls", "--json", "--config", config.to_str().expect("UTF-8")]);
    let servers: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let server = servers.as_array().and_then(|all| all.iter().find(|server| server["name"] == name));
    server.expect("it is listed")["state"].as_str().expect("a text").to_string()
}

/// Bytes over the strips of all servers, unlike those of another `seed`.
fn bytes(seed: u8, strips: usize) -> Vec<u8> {
    (0..strips * STRIP_BYTES).map(|place| seed ^ (place / 7 % 251) as u8 | 1).collect()
}

fn write(client: &Client, path: &str, contents: &[u8]) {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
    let file = client.open(path, &options).expect("it can be made");
    file.write_at(contents, 0).expect("it can be written");
    file.close().expect("it can be closed");
}

fn read(client: &Client, path: &str) -> Result<Vec<u8>, weft_client::Error> {
    let file = client.open(path, &OpenOptions::new().read(true))?;
    let mut contents = vec![0; 1 << 20];
    let count = file.read_at(&mut contents, 0)?;
    contents.truncate(count);
    Ok(contents)
}

/// All data files of an I/O server, with their contents.
fn data_files(cluster: &Served, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut directories = vec![cluster.directory(name).join("data")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("it is ours").flatten() {
            match entry.path() {
                path if path.is_dir() => directories.push(path),
                path => files.push((path.clone(), fs::read(path).expect("it is ours"))),
            }
        }
    }
    files.sort();
    files
}

/// A cluster whose orphan scans are quick, with a file over all of its servers.
fn cluster_with_data() -> Served {
    let mut cluster = Served::init(weft_tests::ServedOptions { io_servers: 2, ..Default::default() });
    let config = cluster.config_path();
    let text = fs::read_to_string(&config).expect("weft init wrote it");
    let quick: String = text
        .lines()
        .map(|line| match line.split(' ').next() {
            Some("scrub_interval_s") => "scrub_interval_s = 1\n".into(),
            Some("orphan_age_s") => "orphan_age_s = 0\n".into(),
            _ => format!("{line}\n"),
        })
        .collect();
    assert_ne!(quick, text);
    fs::write(config, quick).expect("it is ours");
    start(&mut cluster, &["meta0", "io0", "io1"]);
    write(&cluster.client(Transport::Auto), "/first", &bytes(1, 6));
    cluster
}

const ALL: [&str; 3] = ["io0", "io1", "meta0"];

#[test]
fn a_directory_that_is_not_there_is_never_made_anew() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &ALL);
    let before = ["io0", "io1"].map(|name| data_files(&cluster, name));
    for name in ALL {
        let directory = cluster.directory(name).to_path_buf();
        let away = cluster.scratch().join("away");
        fs::rename(&directory, &away).expect("it is ours");
        let said = refused(&mut cluster, name);
        assert!(said.contains("there is no such directory") && said.contains("--format"), "{said}");
        assert!(!directory.exists());
        fs::create_dir(&directory).expect("a mount point");
        let said = refused(&mut cluster, name);
        assert!(said.contains("it is empty") || said.contains("there is no such directory"), "{said}");
        assert_eq!(fs::read_dir(&directory).expect("it is ours").count(), 0);
        fs::remove_dir(&directory).expect("it is empty");
        fs::rename(&away, &directory).expect("it is ours");
    }
    start(&mut cluster, &ALL);
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
    assert_eq!(["io0", "io1"].map(|name| data_files(&cluster, name)), before);
}

#[test]
fn new_names_over_old_data_are_refused_and_nothing_is_removed() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &ALL);
    let before = ["io0", "io1"].map(|name| data_files(&cluster, name));
    let names = cluster.directory("meta0").to_path_buf();
    let away = cluster.scratch().join("away");
    fs::rename(&names, &away).expect("it is ours");
    // The operator takes the hint without thinking.
    cluster.format("meta0");
    start(&mut cluster, &["meta0"]);
    let said = refused(&mut cluster, "io0");
    assert!(said.contains("its data belong to the metadata storage"), "{said}");
    wait_until("the new metadata server ends, too", PATIENCE, || !cluster.is_running("meta0"));
    assert!(!cluster.ended("meta0").success());
    assert_eq!(["io0", "io1"].map(|name| data_files(&cluster, name)), before);
    fs::remove_dir_all(&names).expect("it is ours");
    fs::rename(&away, &names).expect("it is ours");
    start(&mut cluster, &ALL);
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
}

#[test]
fn swapped_and_formatted_directories_are_refused() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &["io0", "io1"]);
    let (one, other) = (cluster.directory("io0").to_path_buf(), cluster.directory("io1").to_path_buf());
    let swap = |cluster: &Served| {
        let between = cluster.scratch().join("between");
        fs::rename(&one, &between).expect("it is ours");
        fs::rename(&other, &one).expect("it is ours");
        fs::rename(&between, &other).expect("it is ours");
    };
    swap(&cluster);
    assert!(refused(&mut cluster, "io0").contains("`server 1` where `server 0` is expected"));
    swap(&cluster);
    let away = cluster.scratch().join("away");
    fs::rename(&one, &away).expect("it is ours");
    cluster.format("io0");
    let said = refused(&mut cluster, "io0");
    assert!(said.contains("the cluster knows") && said.contains("weft server replace"), "{said}");
    fs::remove_dir_all(&one).expect("it is ours");
    fs::rename(&away, &one).expect("it is ours");
    start(&mut cluster, &["io0", "io1"]);
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
}

#[test]
fn an_older_copy_of_an_io_server_is_refused() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &["io0"]);
    let backup = cluster.scratch().join("backup");
    copy(cluster.directory("io0"), &backup);
    start(&mut cluster, &["io0"]);
    let client = cluster.client(Transport::Auto);
    write(&client, "/second", &bytes(2, 6));
    stop(&mut cluster, &["io0"]);
    let newest = put_back(&cluster, "io0", &backup);
    let said = refused(&mut cluster, "io0");
    assert!(said.contains("its storage is a copy") && said.contains("Put the newest back"), "{said}");
    assert_eq!(state(&cluster, "io0"), "away");

    // The newest is gone for ever: the copy will do.
    replace(&cluster, "io0");
    assert_eq!(state(&cluster, "io0"), "expected");
    start(&mut cluster, &["io0"]);
    assert_eq!(read(&client, "/first").expect("it was in the copy"), bytes(1, 6));
    let lost = read(&client, "/second").expect_err("half of it is lost");
    assert_eq!(lost.status(), Some(Status::Lost));
    assert_eq!(lost.errno(), libc::EIO);
    assert!(lost.to_string().contains("io0"), "{lost}");

    // Now the newest is the one that is too much.
    stop(&mut cluster, &["io0"]);
    put_back(&cluster, "io0", &newest);
    assert!(refused(&mut cluster, "io0").contains("its storage is a copy"));
}

#[test]
fn what_was_on_a_replaced_server_is_an_error_and_the_rest_goes_on() {
    let mut cluster = cluster_with_data();
    let client = cluster.client(Transport::Auto);
    let small: Vec<_> = (0..8).map(|number| (format!("/small{number}"), bytes(number, 1))).collect();
    small.iter().for_each(|(path, contents)| write(&client, path, contents));
    stop(&mut cluster, &["io1"]);
    fs::remove_dir_all(cluster.directory("io1")).expect("it is ours");
    let config = cluster.config_path().to_str().expect("UTF-8").to_string();
    let unknown =
        cluster.command(&["server", "replace", "io9", "--config", &config]).output().expect("it runs");
    assert!(!unknown.status.success());
    let up = cluster.command(&["server", "replace", "io0", "--config", &config]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&up.stderr).contains("stop it first"));
    replace(&cluster, "io1");
    cluster.format("io1");
    start(&mut cluster, &["io1"]);

    assert_eq!(read(&client, "/first").expect_err("half of it is lost").status(), Some(Status::Lost));
    let file = client.open("/first", &OpenOptions::new().read(true).write(true)).expect("its name is there");
    let written = file.write_at(&bytes(9, 4), 0).expect_err("what lies between would read as zeros");
    assert_eq!(written.status(), Some(Status::Lost));
    drop(file);
    // Files of one strip are on one server, and those of io0 are whole, whatever the length of the read.
    let kept = |(path, contents): &&(String, Vec<u8>)| {
        let place = client.open(path, &OpenOptions::new().read(true)).expect("it is there").layout();
        let whole = place.chain(0) == weft_layout::ChainId(0);
        if !whole {
            assert_eq!(read(&client, path).expect_err("it was on io1").status(), Some(Status::Lost));
        } else {
            wait_until("the new storage knows that it has nothing of it", PATIENCE, || {
                read(&client, path).is_ok_and(|read| read == *contents)
            });
        }
        whole
    };
    let whole = small.iter().filter(kept).count();
    assert!((1..8).contains(&whole), "{whole} of 8 are on io0");
    // A check names them, and makes nothing of them that it cannot.
    let check = || {
        let output =
            cluster.command(&["fsck", "--repair", &cluster.url()]).output().expect("weft can be run");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let said = check();
    assert_eq!(said.matches("has lost data on io1").count(), 1 + 8 - whole, "{said}");
    assert_eq!(read(&client, "/first").expect_err("half of it is lost").status(), Some(Status::Lost));
    // New files are as ever, and lost ones can be removed or begun anew.
    write(&client, "/new", &bytes(3, 6));
    assert_eq!(read(&client, "/new").expect("it is there"), bytes(3, 6));
    write(&client, "/first", &bytes(4, 6));
    assert_eq!(read(&client, "/first").expect("it is there"), bytes(4, 6));
    small.iter().for_each(|(path, _)| client.unlink(path).expect("it can be removed"));
    // It stays so.
    cluster.crash("io1");
    cluster.crash("meta0");
    assert_eq!(read(&client, "/first").expect("it is there"), bytes(4, 6));
}

#[test]
fn a_second_process_on_a_copy_is_refused_and_does_no_harm() {
    let cluster = cluster_with_data();
    let twin = cluster.scratch().join("twin");
    copy(cluster.directory("io0"), &twin);
    let config = fs::read_to_string(cluster.config_path()).expect("weft init wrote it");
    let other_port = format!("127.0.0.1:{}", weft_tests::free_ports(1));
    let of_twin = config
        .replace(cluster.directory("io0").to_str().expect("UTF-8"), twin.to_str().expect("UTF-8"))
        .replace(cluster.address("io0"), &other_port);
    let file = cluster.config_path().with_file_name("twin.toml");
    fs::write(&file, of_twin).expect("it is ours");
    let mut second = Command::new(weft_tests::weft_bin());
    second.arg("serve").arg("--config").arg(&file).args(["--name", "io0"]);
    let log = fs::File::create(cluster.scratch().join("twin.log")).expect("it is ours");
    let mut second = second.stderr(log).spawn().expect("it runs");
    wait_until("the second one hears that it is one too many", PATIENCE, || {
        fs::read_to_string(cluster.scratch().join("twin.log"))
            .is_ok_and(|said| said.contains("another process"))
    });
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
    second.kill().expect("it runs");
    second.wait().expect("it is ours");
}

#[test]
fn an_older_copy_of_the_names_is_refused_and_can_be_accepted_without_mixing_up_data() {
    let mut cluster = cluster_with_data();
    write(&cluster.client(Transport::Auto), "/removed", &bytes(5, 6));
    stop(&mut cluster, &["meta0"]);
    let backup = cluster.scratch().join("backup");
    copy(cluster.directory("meta0"), &backup);
    start(&mut cluster, &["meta0"]);
    let client = cluster.client(Transport::Auto);
    write(&client, "/second", &bytes(2, 6));
    write(&client, "/first", &bytes(6, 8));
    client.unlink("/removed").expect("it is there");
    let removed =
        |cluster: &Served| data_files(cluster, "io0").len() == 2 && data_files(cluster, "io1").len() == 2;
    wait_until("the data of what was removed is gone", PATIENCE, || removed(&cluster));
    drop(client);
    stop(&mut cluster, &["meta0"]);
    let before = ["io0", "io1"].map(|name| data_files(&cluster, name));
    put_back(&cluster, "meta0", &backup);

    let said = refused(&mut cluster, "meta0");
    assert!(said.contains("put back from an older copy") && said.contains("--accept-older"), "{said}");
    assert_eq!(["io0", "io1"].map(|name| data_files(&cluster, name)), before, "nothing is removed");

    cluster.spawn_with("meta0", &["--accept-older"]);
    cluster.wait_ready("meta0");
    let client = cluster.client(Transport::Auto);
    // Its data is newer than its name: its own bytes, up to the size that the copy knew of or the one that its data has.
    let first = read(&client, "/first").expect("its data is there");
    assert_eq!(first[..6 * STRIP_BYTES], bytes(6, 8)[..6 * STRIP_BYTES]);
    assert_eq!(read(&client, "/second").expect_err("it has no name").status(), Some(Status::NotFound));
    assert_eq!(read(&client, "/removed").expect_err("its data was removed").status(), Some(Status::Lost));
    for number in 0..20 {
        let (path, contents) = (format!("/new{number}"), bytes(number, 1));
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = client.open(&path, &options).expect("it can be made");
        file.truncate(6 * STRIP_BYTES as u64).expect("it can be extended");
        let mut there = vec![1; 6 * STRIP_BYTES];
        assert_eq!(file.read_at(&mut there, 0).expect("it can be read"), there.len());
        assert!(there.iter().all(|byte| *byte == 0), "bytes of another file");
        file.write_at(&contents, 0).expect("it can be written");
    }
    // Several orphan scans later, all is still there, for whoever looks for it.
    let scans = gauge(&client, "orphan_scans");
    wait_until("two scans for orphans", PATIENCE, || gauge(&client, "orphan_scans") >= scans + 2);
    for (name, before) in ["io0", "io1"].into_iter().zip(before) {
        let now = data_files(&cluster, name);
        assert!(before.iter().all(|file| now.contains(file)), "a data file of {name} is gone or changed");
    }
    // From now on this store is the newest, and starts as any other.
    cluster.crash("meta0");
    assert_eq!(read(&client, "/removed").expect_err("its data was removed").status(), Some(Status::Lost));
}

#[test]
fn accepting_an_older_copy_of_the_names_goes_on_after_an_interruption() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &["meta0"]);
    let backup = cluster.scratch().join("backup");
    copy(cluster.directory("meta0"), &backup);
    start(&mut cluster, &["meta0"]);
    write(&cluster.client(Transport::Auto), "/second", &bytes(2, 6));
    // An I/O server hears of a run of the metadata server within a second.
    std::thread::sleep(Duration::from_millis(1500));
    stop(&mut cluster, &["meta0", "io1"]);
    let before = ["io0", "io1"].map(|name| data_files(&cluster, name));
    put_back(&cluster, "meta0", &backup);
    // It cannot end, since io1 is down, and somebody starts it as ever.
    cluster.spawn_with("meta0", &["--accept-older"]);
    cluster.wait_ready("meta0");
    wait_until("io0 has agreed", PATIENCE, || state(&cluster, "io0") == "up");
    stop(&mut cluster, &["meta0"]);
    start(&mut cluster, &["meta0"]);
    wait_until("io0 has agreed", PATIENCE, || state(&cluster, "io0") == "up");
    std::thread::sleep(Duration::from_secs(3));
    start(&mut cluster, &["io1"]);
    let client = cluster.client(Transport::Auto);
    assert_eq!(read(&client, "/first").expect("it was in the copy"), bytes(1, 6));
    let scans = gauge(&client, "orphan_scans");
    wait_until("two scans for orphans", PATIENCE, || gauge(&client, "orphan_scans") >= scans + 2);
    let now = ["io0", "io1"].map(|name| data_files(&cluster, name));
    assert_eq!(now, before, "data of what the copy has no name for is kept");
    // Then it is done, and a start is one as any other.
    cluster.stop("io1");
    cluster.crash("meta0");
    wait_until("it serves without io1", PATIENCE, || {
        cluster.client(Transport::Auto).stat("/first", true).is_ok()
    });
}

#[test]
fn a_cluster_file_without_a_server_that_has_data_is_refused() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &["meta0"]);
    let config = cluster.config_path();
    let text = fs::read_to_string(&config).expect("weft init wrote it");
    let last = text.rfind("[[server]]").expect("there are three");
    fs::write(&config, &text[..last]).expect("it is ours");
    let said = refused(&mut cluster, "meta0");
    assert!(
        said.contains("io1 (I/O server 1) holds data of this cluster: put it back into the file"),
        "{said}"
    );
    fs::write(&config, text).expect("it is ours");
    start(&mut cluster, &["meta0"]);
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
}

#[test]
fn a_damaged_state_is_refused() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &["io0"]);
    let path = cluster.directory("io0").join("weft-state");
    let whole = fs::read(&path).expect("it is ours");
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
    for at in [0, 4096] {
        file.write_all_at(b"WEFT-state", at).expect("it is ours");
    }
    let said = refused(&mut cluster, "io0");
    assert!(said.contains("weft-state is damaged"), "{said}");
    fs::write(&path, whole).expect("it is ours");
    start(&mut cluster, &["io0"]);
    assert_eq!(read(&cluster.client(Transport::Auto), "/first").expect("it is there"), bytes(1, 6));
}

#[test]
fn a_directory_of_before_all_were_put_back_together_is_refused() {
    let mut cluster = cluster_with_data();
    stop(&mut cluster, &ALL);
    let backups = ALL.map(|name| {
        let backup = cluster.scratch().join(format!("backup of {name}"));
        copy(cluster.directory(name), &backup);
        backup
    });
    // The history that is given up: io0 gets a greater mark than it will have in the other one.
    for _ in 0..3 {
        start(&mut cluster, &ALL);
        stop(&mut cluster, &["io0", "io1", "meta0"]);
    }
    start(&mut cluster, &ALL);
    write(&cluster.client(Transport::Auto), "/given up", &bytes(2, 6));
    // An I/O server hears of a run of the metadata server within a second.
    std::thread::sleep(Duration::from_millis(1500));
    stop(&mut cluster, &ALL);
    let given_up = ALL.map(|name| {
        let away = cluster.scratch().join(format!("given up {name}"));
        fs::rename(cluster.directory(name), &away).expect("it is ours");
        away
    });
    for (name, backup) in ALL.iter().zip(&backups) {
        fs::rename(backup, cluster.directory(name)).expect("it is ours");
    }
    // The history that goes on: here the metadata server gets the greater mark.
    start(&mut cluster, &ALL);
    write(&cluster.client(Transport::Auto), "/goes on", &bytes(3, 6));
    for _ in 0..8 {
        cluster.stop("meta0");
        start(&mut cluster, &["meta0"]);
        read(&cluster.client(Transport::Auto), "/goes on").expect("it is there");
    }
    stop(&mut cluster, &["io0"]);
    let goes_on = cluster.scratch().join("goes on");
    fs::rename(cluster.directory("io0"), &goes_on).expect("it is ours");
    copy(&given_up[0], cluster.directory("io0"));
    let said = refused(&mut cluster, "io0");
    assert!(said.contains("knows nothing of") && said.contains("put back from copies"), "{said}");
    fs::remove_dir_all(cluster.directory("io0")).expect("it is ours");
    fs::rename(&goes_on, cluster.directory("io0")).expect("it is ours");
    start(&mut cluster, &["io0"]);
    assert_eq!(read(&cluster.client(Transport::Auto), "/goes on").expect("it is there"), bytes(3, 6));
}

/// A file of equal size and time is copied again if its data is lost.
#[test]
fn a_sync_copies_again_what_a_replaced_server_has_lost() {
    for options in [&[][..], &["--checksum"]] {
        let mut cluster = cluster_with_data();
        let good = tempfile::tempdir().expect("a directory");
        for (name, strips) in [("small", 1), ("large", 6), ("larger", 9)] {
            fs::write(good.path().join(name), bytes(3, strips)).expect("it can be written");
        }
        let url = format!("{}data", cluster.url());
        let sync = |cluster: &Served| {
            let mut command = cluster.command(&["sync", "--json"]);
            let output = command.args(options).arg(good.path()).arg(&url).output().expect("weft can be run");
            weft_tests::expect_success("weft sync", &output)
        };
        sync(&cluster);
        stop(&mut cluster, &["io1"]);
        fs::remove_dir_all(cluster.directory("io1")).expect("it is ours");
        replace(&cluster, "io1");
        cluster.format("io1");
        start(&mut cluster, &["io1"]);
        let client = cluster.client(Transport::Auto);
        assert_eq!(
            read(&client, "/data/large").expect_err("half of it is lost").status(),
            Some(Status::Lost)
        );
        sync(&cluster);
        for (name, strips) in [("small", 1), ("large", 6), ("larger", 9)] {
            assert!(
                read(&client, &format!("/data/{name}")).expect("it is whole") == bytes(3, strips),
                "{name}"
            );
        }
        assert!(sync(&cluster).contains("\"copied\": 0"), "all is well");
    }
}
