//! Backups of the names while they are in use, and going on from one: what is newer than the backup is kept, and found again.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Served, ServedOptions, SetAtEnd, wait_until};
use weft_wire::Status;
use weft_wire::messages::LayoutWish;

const STRIP_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);
/// Files that are moved to and fro.
const MOVED: usize = 300;

/// A cluster that does not wait before it takes a data file for nobody's.
fn cluster(io_servers: u16) -> Served {
    let mut cluster = Served::init(ServedOptions { io_servers, ..ServedOptions::default() });
    let config = cluster.config_path();
    let text = fs::read_to_string(&config).expect("weft init wrote it");
    let quick = |line: &str| match line.split(' ').next() {
        Some("scrub_interval_s") => "scrub_interval_s = 1\n".to_string(),
        Some("orphan_age_s") => "orphan_age_s = 0\n".to_string(),
        _ => format!("{line}\n"),
    };
    fs::write(config, text.lines().map(quick).collect::<String>()).expect("it is ours");
    start(&mut cluster);
    cluster
}

fn start(cluster: &mut Served) {
    let names = cluster.names();
    for name in &names {
        if !cluster.is_running(name) {
            cluster.spawn(name);
        }
    }
    names.iter().for_each(|name| cluster.wait_ready(name));
}

fn bytes(seed: u8, count: usize) -> Vec<u8> {
    (0..count).map(|place| seed ^ (place / 7 % 251) as u8 | 1).collect()
}

/// Writes a file, striped as wished, and returns its inode number.
fn write(client: &Client, path: &str, contents: &[u8], wish: Option<LayoutWish>) -> u64 {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
    let options = match wish {
        Some(wish) => options.layout(wish),
        None => options,
    };
    let file = client.open(path, &options).expect("it can be made");
    file.write_at(contents, 0).expect("it can be written");
    file.close().expect("it can be closed");
    client.stat(path, true).expect("it is there").ino
}

fn read(client: &Client, path: &str) -> Result<Vec<u8>, weft_client::Error> {
    let file = client.open(path, &OpenOptions::new().read(true))?;
    let mut contents = vec![0; 2 << 20];
    let count = file.read_at(&mut contents, 0)?;
    contents.truncate(count);
    Ok(contents)
}

fn names_in(client: &Client, path: &str) -> BTreeSet<String> {
    let entries = client.read_dir(path).expect("it can be listed");
    entries
        .map(|entry| String::from_utf8(entry.expect("it can be read").name).expect("UTF-8"))
        .filter(|name| name != "." && name != "..")
        .collect()
}

fn dump_to(cluster: &Served, path: &Path) -> Value {
    let url = cluster.url();
    let said = cluster.weft(&["meta", "dump", &url, path.to_str().expect("UTF-8"), "--json"]);
    serde_json::from_str(&said).expect("JSON")
}

fn load(cluster: &Served, path: &Path, more: &[&str]) -> Output {
    let config = cluster.config_path();
    let (config, path) = (config.to_str().expect("UTF-8"), path.to_str().expect("UTF-8"));
    let words = [&["meta", "load", path, "--config", config, "--name", "meta0"], more].concat();
    cluster.command(&words).output().expect("weft can be run")
}

#[track_caller]
fn refused(output: &Output, because: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(because), "{said}");
}

/// Repairs, and returns what was repaired and what is left.
#[track_caller]
fn repair(cluster: &Served) -> (Vec<String>, Vec<String>) {
    let output = cluster.command(&["fsck", "--repair", "--json", &cluster.url()]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: Value = serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr)));
    let texts = |name: &str| {
        let list = answer[name].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_string()).collect::<Vec<_>>()
    };
    (texts("repaired"), texts("left"))
}

/// All files below a directory, with their contents. Servers may be removing what was unlinked.
fn files_in(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("it is ours") {
            let path = entry.expect("it is ours").path();
            match path.is_dir() {
                true => directories.push(path),
                false => match fs::read(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    bytes => files.push((path, bytes.expect("it is ours"))),
                },
            }
        }
    }
    files.sort();
    files
}

fn data_files(cluster: &Served, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    files_in(&cluster.directory(name).join("data"))
}

#[test]
fn a_backup_under_load_is_of_one_moment() {
    let mut cluster = cluster(1);
    let client = cluster.client(Transport::Auto);
    for directory in ["/left", "/right", "/one", "/two"] {
        client.mkdir(directory, 0o755).expect("it can be made");
    }
    let make = |client: &Client, path: &str| {
        let file = client.open(path, &OpenOptions::new().write(true).create(true)).expect("it can be made");
        file.close().expect("it can be closed");
    };
    (0..MOVED).for_each(|number| make(&client, &format!("/left/{number}")));
    // Enough for many pages.
    client.mkdir("/many", 0o755).expect("it can be made");
    (0..3000).for_each(|number| make(&client, &format!("/many/a file with a long name, number {number}")));
    let (stop, made, changes) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let backup = cluster.scratch().join("backup");
    let (began_with, ended_with, per_second) = std::thread::scope(|scope| {
        let ends = SetAtEnd(&stop);
        for half in 0..2 {
            let (client, stop, changes) = (cluster.client(Transport::Auto), &stop, &changes);
            scope.spawn(move || {
                for turn in 0.. {
                    let (from, to) = if turn % 2 == 0 { ("left", "right") } else { ("right", "left") };
                    for number in (0..MOVED).filter(|number| number % 2 == half) {
                        let (from, to) = (format!("/{from}/{number}"), format!("/{to}/{number}"));
                        client.rename(from.as_str(), to.as_str(), 0).expect("it is there");
                        changes.fetch_add(1, Ordering::Relaxed);
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                    }
                }
            });
        }
        let (other, stop_it, made_now, all) = (cluster.client(Transport::Auto), &stop, &made, &changes);
        scope.spawn(move || {
            for number in 0u64.. {
                other.mkdir(format!("/one/{number}").as_str(), 0o755).expect("it can be made");
                other.mkdir(format!("/two/{number}").as_str(), 0o755).expect("it can be made");
                made_now.store(number + 1, Ordering::Release);
                all.fetch_add(2, Ordering::Relaxed);
                if stop_it.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        wait_until("there is load", PATIENCE, || made.load(Ordering::Acquire) > 50);
        let (began, began_with, before) =
            (Instant::now(), made.load(Ordering::Acquire), changes.load(Ordering::Relaxed));
        dump_to(&cluster, &backup);
        let ended_with = made.load(Ordering::Acquire) + 1;
        let done = changes.load(Ordering::Relaxed) - before;
        drop(ends);
        (began_with, ended_with, done as f64 / began.elapsed().as_secs_f64())
    });
    println!("{per_second:.0} changes a second while the backup was made");
    assert!(per_second > 20.0, "{per_second} changes a second: they were held up");
    assert_eq!(fs::metadata(&backup).expect("it is there").permissions().mode() & 0o777, 0o600);
    let beside: Vec<_> = fs::read_dir(cluster.scratch()).expect("it is ours").flatten().collect();
    assert!(!beside.iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".new")), "{beside:?}");
    drop(client);
    cluster.stop("meta0");
    assert!(load(&cluster, &backup, &["--replace"]).status.success());
    start(&mut cluster);
    let client = cluster.client(Transport::Auto);
    let (left, right) = (names_in(&client, "/left"), names_in(&client, "/right"));
    assert!(left.is_disjoint(&right), "a file is in both: {:?}", left.intersection(&right));
    assert_eq!(left.len() + right.len(), MOVED, "a file is in neither");
    let (one, two) = (names_in(&client, "/one"), names_in(&client, "/two"));
    let whole =
        |names: &BTreeSet<String>| *names == (0..names.len()).map(|number| number.to_string()).collect();
    assert!(whole(&one) && whole(&two), "there is a gap");
    assert!(one.len() == two.len() || one.len() == two.len() + 1, "{} and {}", one.len(), two.len());
    let count = two.len() as u64;
    assert!((began_with..=ended_with).contains(&count), "{count} of {began_with} to {ended_with}");
    assert_eq!(names_in(&client, "/many").len(), 3000);
    assert_eq!(repair(&cluster), (Vec::new(), Vec::new()), "the store is sound");
}

#[test]
fn what_is_newer_than_a_backup_comes_to_lost_and_found_and_nothing_is_removed() {
    let mut cluster = cluster(3);
    let client = cluster.client(Transport::Auto);
    write(&client, "/kept", &bytes(1, 6 * STRIP_BYTES), None);
    write(&client, "/changed", &bytes(2, 3 * STRIP_BYTES), None);
    write(&client, "/removed", &bytes(3, 6 * STRIP_BYTES), None);
    let backup = cluster.scratch().join("backup");
    dump_to(&cluster, &backup);
    let mut newer = Vec::new();
    let wishes = [(0, 0, 64), (1, 2, 64), (2, 3, 4), (3, 1, 128), (2, 2, 1024)];
    for (number, (server_count, first_server_plus_1, kib)) in (0u8..).zip(wishes) {
        let wish = LayoutWish { strip_bytes: kib << 10, server_count, first_server_plus_1 };
        let contents = bytes(0x10 + number, 9 * STRIP_BYTES + 77);
        let ino = write(&client, &format!("/newer{number}"), &contents, Some(wish));
        newer.push((ino, contents));
    }
    write(&client, "/changed", &bytes(4, 5 * STRIP_BYTES), None);
    client.unlink("/removed").expect("it is there");
    // Its last strip is all that it has; what is before it was never written.
    let tail = client.open("/tail", &OpenOptions::new().write(true).create(true)).expect("it can be made");
    tail.write_at(b"end", 7 * STRIP_BYTES as u64).expect("it can be written");
    tail.close().expect("it can be closed");
    let tail = client.stat("/tail", true).expect("it is there").ino;
    let servers = ["io0", "io1", "io2"];
    let removed = || servers.iter().map(|name| data_files(&cluster, name).len()).sum::<usize>();
    let now = Instant::now();
    let mut last = 0;
    wait_until("the data of what was removed is gone", PATIENCE, || {
        let (before, count) = (std::mem::replace(&mut last, removed()), last);
        now.elapsed() > Duration::from_secs(1) && before == count
    });
    drop(client);

    refused(&load(&cluster, &backup, &["--replace"]), "meta0 is running");
    cluster.stop("meta0");
    let names = cluster.directory("meta0").join("names");
    let before = (files_in(&names), servers.map(|name| data_files(&cluster, name)));
    refused(&load(&cluster, &backup, &[]), "holds names already");
    let whole = fs::read(&backup).expect("it is ours");
    let damaged = cluster.scratch().join("damaged");
    for at in [0, 20, 60, whole.len() / 2, whole.len() - 1] {
        let mut wrong = whole.clone();
        wrong[at] ^= 4;
        fs::write(&damaged, wrong).expect("it is ours");
        refused(&load(&cluster, &damaged, &["--replace"]), "damaged, or no whole backup");
        fs::write(&damaged, &whole[..at]).expect("it is ours");
        refused(&load(&cluster, &damaged, &["--replace"]), "damaged, or no whole backup");
    }
    assert_eq!(files_in(&names), before.0, "a refused backup changes nothing");
    // One that is interrupted, at any moment, leaves the names or lets the next one make them.
    for pause_ms in [1, 5, 10, 20, 40] {
        let config = cluster.config_path();
        let words = ["meta", "load", backup.to_str().expect("UTF-8"), "--config"];
        let mut loading = cluster.command(&words);
        loading.arg(config).args(["--name", "meta0", "--replace"]);
        let mut loading = loading.spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(pause_ms));
        loading.kill().expect("it is ours");
        loading.wait().expect("it is ours");
    }
    let loaded = load(&cluster, &backup, &["--replace", "--json"]);
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
    let aside = cluster.directory("meta0").join("names.old-1");
    assert!(aside.is_dir(), "the names of before are kept");

    // It goes on only when all I/O servers have agreed; nobody has to say --accept-older.
    start(&mut cluster);
    let client = cluster.client(Transport::Auto);
    assert_eq!(read(&client, "/kept").expect("it was never changed"), bytes(1, 6 * STRIP_BYTES));
    let lost = read(&client, "/removed").expect_err("its data is gone, which is no reason for zeros");
    assert_eq!((lost.status(), lost.errno()), (Some(Status::Lost), libc::EIO));
    assert_eq!(client.stat("/removed", true).expect("it has a name").size, 6 * STRIP_BYTES as u64);
    assert_eq!(read(&client, "/newer0").expect_err("it has no name").status(), Some(Status::NotFound));
    let made_now = write(&client, "/made now", &bytes(9, STRIP_BYTES), None);
    assert!(newer.iter().all(|(ino, _)| *ino < made_now), "an inode number was given twice");
    let (repaired, left) = repair(&cluster);
    assert!(left.len() == 2 && left.iter().all(|text| text.contains("has lost data")), "{left:?}");
    assert!(left.iter().any(|text| text.contains(&format!("/lost+found/#{tail} has lost data"))), "{left:?}");
    let adopted = repaired.iter().filter(|text| text.contains("there are data files of inode")).count();
    assert_eq!(adopted, newer.len() + 1);
    let numbers = newer.iter().map(|(ino, _)| *ino).chain([tail]);
    let expected: BTreeSet<String> = numbers.map(|ino| format!("#{ino}")).collect();
    assert_eq!(names_in(&client, "/lost+found"), expected);
    for (ino, contents) in &newer {
        let found = read(&client, &format!("/lost+found/#{ino}")).expect("it can be read");
        assert!(found == *contents, "inode {ino}: {} bytes of {}", found.len(), contents.len());
    }
    // Where a server has no byte of a file, nobody knows any more whether it ever had one.
    let path = format!("/lost+found/#{tail}");
    let file = client.open(path.as_str(), &OpenOptions::new().read(true)).expect("it has a name");
    let mut end = [0; 3];
    assert_eq!(file.read_at(&mut end, 7 * STRIP_BYTES as u64).expect("it can be read"), 3);
    assert_eq!(&end, b"end");
    drop(file);
    assert_eq!(read(&client, &path).expect_err("it may have been there").status(), Some(Status::Lost));
    let directory = client.stat("/lost+found", true).expect("it is there");
    assert_eq!((directory.uid, directory.mode & 0o777), (0, 0o700));
    assert_eq!(
        read(&client, "/changed").expect("it is there"),
        bytes(4, 5 * STRIP_BYTES),
        "data as it is now"
    );
    // Nothing more to do, and nothing was removed, by two scans for orphans either.
    assert_eq!(repair(&cluster), (Vec::new(), left));
    std::thread::sleep(Duration::from_millis(2500));
    for (name, before) in servers.into_iter().zip(before.1) {
        let now = data_files(&cluster, name);
        assert!(before.iter().all(|file| now.contains(file)), "a data file of {name} is gone or changed");
    }
    // From now on this store is as any other; the names of before, put back, are the older copy.
    cluster.crash("meta0");
    assert_eq!(read(&client, "/kept").expect("it is there"), bytes(1, 6 * STRIP_BYTES));
    cluster.stop("meta0");
    fs::rename(&names, cluster.scratch().join("away")).expect("it is ours");
    fs::rename(&aside, &names).expect("it is ours");
    cluster.spawn("meta0");
    wait_until("the names that were given up are refused", PATIENCE, || !cluster.is_running("meta0"));
    assert!(!cluster.ended("meta0").success());
}

#[test]
fn data_files_that_do_not_tell_how_they_are_striped_are_reported() {
    let mut cluster = cluster(2);
    let client = cluster.client(Transport::Auto);
    let backup = cluster.scratch().join("backup");
    dump_to(&cluster, &backup);
    let ino = write(&client, "/newer", &bytes(1, 6 * STRIP_BYTES), None);
    drop(client);
    cluster.stop("meta0");
    for name in ["io0", "io1"] {
        for (path, _) in data_files(&cluster, name) {
            let path = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no zeros");
            // SAFETY: two C strings.
            let removed = unsafe { libc::removexattr(path.as_ptr(), c"user.weft.layout".as_ptr()) };
            assert_eq!(removed, 0, "data files tell how they are striped");
        }
    }
    assert!(load(&cluster, &backup, &["--replace"]).status.success());
    start(&mut cluster);
    let (repaired, left) = repair(&cluster);
    assert!(left.is_empty(), "{left:?}");
    assert!(repaired.iter().any(|text| text.contains("do not tell how it was striped")), "{repaired:?}");
    let client = cluster.client(Transport::Auto);
    // All servers and the usual strips: so it was here.
    let path = format!("/lost+found/#{ino}");
    assert_eq!(read(&client, &path).expect("it can be read").len(), 6 * STRIP_BYTES);
}

#[test]
fn only_administrators_take_a_backup() {
    let cluster = cluster(1);
    let (key, backup) = (cluster.scratch().join("user.key"), cluster.scratch().join("backup"));
    let (key, backup) = (key.to_str().expect("UTF-8"), backup.to_str().expect("UTF-8"));
    let config = cluster.config_path();
    let config = config.to_str().expect("UTF-8");
    cluster.weft(&["key", "issue", "--uid", "1000", "--gid", "1000", "--config", config, "--out", key]);
    let url = format!("{}?transport=tcp", cluster.url());
    let output = cluster.command(&["meta", "dump", &url, backup, "--key", key]).output().expect("it runs");
    refused(&output, "only administrators may take a backup");
    let left: Vec<_> = fs::read_dir(cluster.scratch()).expect("it is ours").flatten().collect();
    assert!(!left.iter().any(|entry| entry.file_name().to_string_lossy().starts_with("backup")), "{left:?}");
    cluster.weft(&["meta", "dump", &cluster.url(), backup]);
    let again = cluster.command(&["meta", "dump", &cluster.url(), backup]).output().expect("it runs");
    refused(&again, "exists; --force overwrites it");
}
