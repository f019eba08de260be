//! `weft fsck` on clusters that run: it finds nothing where nothing is wrong, however much is going on, and what is planted in the
//! stores and data directories of stopped servers it finds and repairs. (Every kind of damage to names is planted in the unit
//! tests of `weft-meta`.)

use serde_json::Value;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use weft_client::{Client, OpenOptions, Transport};
use weft_meta::{Batch, Engine, FjallEngine, FjallOptions};
use weft_tests::{Load, Mount, Served, gauge, wait_until};
use weft_wire::messages::Caller;

/// Over four strips on two servers.
const FILE_BYTES: usize = 200_000;

fn fsck(cluster: &Served, arguments: &[&str]) -> Output {
    let url = cluster.url();
    cluster.command(&[&["fsck", &url], arguments].concat()).output().expect("weft can be run")
}

/// The exit code, and what was repaired and left.
#[track_caller]
fn result(cluster: &Served, arguments: &[&str]) -> (i32, Vec<String>, Vec<String>) {
    let output = fsck(cluster, &[arguments, &["--json"]].concat());
    let code = output.status.code().expect("it ends by itself");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}{}{}", String::from_utf8_lossy(&output.stderr), cluster.logs())
    });
    let texts = |name: &str| {
        let list = answer[name].as_array().expect("a list");
        list.iter().map(|text| text.as_str().expect("a text").to_string()).collect()
    };
    (code, texts("repaired"), texts("left"))
}

fn content(seed: u8) -> Vec<u8> {
    (0..FILE_BYTES).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn write(client: &Client, path: &str, bytes: &[u8]) -> u64 {
    let file = client.open(path, &OpenOptions::new().write(true).create(true)).expect("it can be made");
    file.write_at(bytes, 0).expect("it can be written");
    file.close().expect("it can be closed");
    client.stat(path, true).expect("it is there").ino
}

#[track_caller]
fn read(client: &Client, path: &str) -> Vec<u8> {
    let file = client.open(path, &OpenOptions::new().read(true)).unwrap_or_else(|error| panic!("{error}"));
    let mut bytes = vec![0; FILE_BYTES * 2];
    let read = file.read_at(&mut bytes, 0).expect("it can be read");
    bytes.truncate(read);
    bytes
}

fn stop_all(cluster: &mut Served) {
    let names = cluster.names();
    names.iter().for_each(|name| cluster.stop(name));
}

fn start_all(cluster: &mut Served) {
    let names = cluster.names();
    names.iter().for_each(|name| cluster.spawn(name));
    names.iter().for_each(|name| cluster.wait_ready(name));
}

/// The data file of a small inode number on a server; see `docs/formats.md`.
fn data_file(cluster: &Served, server: u16, ino: u64) -> PathBuf {
    assert!(ino < 256, "numbers are given out from the lowest on");
    cluster.directory(&format!("io{server}")).join(format!("data/00/00/{ino:016x}"))
}

/// Writes a data file as if that had been some time ago, but less than after which servers remove it by themselves.
fn plant_data(path: PathBuf, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("it is in a directory")).expect("a directory");
    std::fs::write(&path, bytes).expect("it can be written");
    let long_ago = SystemTime::now() - Duration::from_secs(1000);
    let file = std::fs::File::options().write(true).open(path).expect("it is there");
    file.set_modified(long_ago).expect("times can be set");
}

fn key(kind: u8, number: u64, tail: &[u8]) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes(), tail].concat()
}

#[test]
fn nothing_is_found_while_everything_changes() {
    let cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/names", 0o755).expect("a directory");
    client.mkdir("/files", 0o755).expect("a directory");
    let mut loads = vec![
        Load::start(&cluster, "names", "tcp", &["/names", "0"]),
        Load::start(&cluster, "names", "shm", &["/names", "1"]),
        Load::start(&cluster, "write", "tcp", &["/shared", "0", "100000", "8"]),
    ];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bytes = content(3);
            for number in 0u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let path = format!("/files/{}", number % 20);
                write(&client, &path, &bytes[..(number * 7919 % 150_000) as usize]);
                if number % 3 == 0 {
                    client.unlink(path.as_str()).expect("it was just written");
                }
            }
        });
        for _ in 0..4 {
            loads.iter_mut().for_each(|load| load.wait_progress(20));
            let (code, repaired, left) = result(&cluster, &["--repair"]);
            if (code, repaired.len(), left.len()) != (0, 0, 0) {
                stop.store(true, Ordering::Relaxed);
                panic!("{code}: repaired {repaired:?}, left {left:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    loads.into_iter().for_each(|load| drop(load.finish()));
    let (code, _, left) = result(&cluster, &[]);
    assert_eq!((code, left), (0, vec![]));
}

#[test]
fn planted_damage_is_found_and_repaired_and_files_stay_readable() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/d", 0o755).expect("a directory");
    client.mkdir("/one", 0o755).expect("a directory");
    cluster.weft(&["stripe", "set", &cluster.at("/one"), "--servers", "1", "--first", "0"]);
    write(&client, "/d/untouched", &content(1));
    let nameless = write(&client, "/d/nameless", &content(2));
    let longer = write(&client, "/d/longer", &content(3));
    let missing = write(&client, "/d/missing", &content(4));
    let single = write(&client, "/one/single", b"on the first server");
    let counted = write(&client, "/d/counted", &content(5));
    client.link("/d/counted", false, "/d/counted too").expect("a second name");
    let [gone, gone_empty] = ["/gone", "/gone empty"].map(|path| {
        let ino = write(&client, path, b"");
        client.unlink(path).expect("it was just made");
        ino
    });
    let layout_of = |ino| client.getattr(ino).expect("it is there").layout.expect("files have one");
    let (last_longer, last_missing) =
        (layout_of(longer).chain(1).single_server(), layout_of(missing).chain(1).single_server());
    let dir = client.stat("/d", true).expect("it is there").ino;
    assert_eq!(result(&cluster, &[]), (0, vec![], vec![]));
    drop(client);
    stop_all(&mut cluster);

    {
        let names = cluster.directory("meta0").join("names");
        let mut engine = FjallEngine::open(&names, &FjallOptions::default()).expect("nobody has it open");
        let mut batch = Batch::default();
        for pair in engine.scan(&key(b'o', dir, b""), &key(b'o', dir + 1, b"")) {
            let (key, value) = pair.expect("the store can be read");
            if value.ends_with(b"nameless") {
                batch.delete(key);
            }
        }
        batch.delete(key(b'n', dir, b"nameless"));
        // A reply of no session, attributes of nothing, and an entry that leads nowhere.
        batch.put(*b"rshort", [1]);
        batch.put(key(b'x', 200, b"user.x"), [1, 2]);
        let entry = [&[1][..], &201u64.to_le_bytes(), &[1], &3000u64.to_le_bytes()].concat();
        batch.put(key(b'n', dir, b"nowhere"), entry);
        // The first bytes of an inode: version, kind, flags, mode; then user, group, links.
        let inode = key(b'i', counted, b"");
        let mut value = engine.get(&inode).expect("it can be read").expect("it is there");
        value[13..17].copy_from_slice(&9u32.to_le_bytes());
        batch.put(inode, value);
        engine.commit(&batch).expect("there is room");
        engine.syncer().sync().expect("it can be synced");
    }
    let grown = data_file(&cluster, last_longer, longer);
    let mut bytes = std::fs::read(&grown).expect("a data file");
    bytes.extend([7; 1000]);
    // It would not fit its checksums.
    let sums = grown.to_str().expect("UTF-8").replace("/data/", "/sums/");
    std::fs::remove_file(sums).expect("it stopped in order");
    plant_data(grown, &bytes);
    std::fs::remove_file(data_file(&cluster, last_missing, missing)).expect("a data file");
    plant_data(data_file(&cluster, 1, single), b"of no use");
    plant_data(data_file(&cluster, 1, gone), b"what is left");
    plant_data(data_file(&cluster, 0, gone_empty), b"");
    start_all(&mut cluster);

    let planted = [
        format!("inode {nameless} has no name"),
        "/d/counted counts 9 links, but has 2".to_string(),
        "entry \"nowhere\" of directory /d leads to inode 201, which is missing".to_string(),
        "of directory /d differs between its record by name and its record in listing order".to_string(),
        "inode 200 is missing, but has extended attributes".to_string(),
        "belongs to no session".to_string(),
        "/d/longer has 200000 bytes, but its data files have 201000".to_string(),
        format!("/d/missing has lost data on io{last_missing}"),
        "data file of /one/single on io1, which has no part of it".to_string(),
        format!("data files of inode {gone}, which does not exist, on io1 (12 bytes)"),
        format!("data files of inode {gone_empty}, which does not exist, on io0 (0 bytes)"),
    ];
    let (code, repaired, left) = result(&cluster, &[]);
    assert_eq!((code, repaired), (4, vec![]), "nothing is repaired unasked");
    for text in &planted {
        assert!(left.iter().any(|found| found.contains(text)), "{text} is not found: {left:#?}");
    }
    let (code, mut repaired, left) = result(&cluster, &["--repair"]);
    assert!(code == 4 && left.len() == 1 && left[0].contains("/d/missing has lost data"), "{left:#?}");
    let (code, accepted, left) = result(&cluster, &["--repair", "--accept-loss"]);
    repaired.extend(accepted);
    assert_eq!((code, &left), (1, &vec![]), "{repaired:#?}");
    for text in &planted[..3] {
        assert!(repaired.iter().any(|found| found.contains(text)), "{text} is not repaired: {repaired:#?}");
    }
    assert_eq!(result(&cluster, &["--repair"]), (0, vec![], vec![]));
    assert!(!data_file(&cluster, 1, single).exists() && !data_file(&cluster, 0, gone_empty).exists());

    // A server that starts anew finds the same.
    cluster.crash("meta0");
    assert_eq!(result(&cluster, &[]), (0, vec![], vec![]));
    let client = cluster.client(Transport::Tcp);
    assert!(read(&client, "/d/untouched") == content(1));
    assert!(read(&client, &format!("/lost+found/#{nameless}")) == content(2));
    let longer = read(&client, "/d/longer");
    assert!(longer.len() == 201_000 && longer[..FILE_BYTES] == content(3)[..]);
    // What lay on the other server is there.
    assert!(read(&client, "/d/missing")[..65_536] == content(4)[..65_536]);
    assert!(read(&client, "/one/single") == b"on the first server");
    assert_eq!(client.stat("/d/counted", true).expect("it is there").nlink, 2);
    assert!(read(&client, &format!("/lost+found/#{gone}")) == b"what is left");
    assert!(client.stat("/d/nowhere", false).is_err());
    // All of it can be used and removed.
    client.unlink("/d/missing").expect("it can be removed");
    client.unlink(format!("/lost+found/#{gone}").as_str()).expect("it can be removed");
    write(&client, "/d/new", &content(9));
    assert_eq!(result(&cluster, &[]), (0, vec![], vec![]));
}

/// Two mounts have seen the damage, and hold leases on it.
#[test]
fn what_is_repaired_is_seen_by_every_mount_at_once() {
    let mut cluster = Served::start(1);
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/d", 0o755).expect("a directory");
    let ino = write(&client, "/d/counted", &content(5));
    drop(client);
    stop_all(&mut cluster);
    {
        let names = cluster.directory("meta0").join("names");
        let mut engine = FjallEngine::open(&names, &FjallOptions::default()).expect("nobody has it open");
        let inode = key(b'i', ino, b"");
        let mut value = engine.get(&inode).expect("it can be read").expect("it is there");
        value[13..17].copy_from_slice(&9u32.to_le_bytes());
        let mut batch = Batch::default();
        batch.put(inode, value);
        engine.commit(&batch).expect("there is room");
        engine.syncer().sync().expect("it can be synced");
    }
    start_all(&mut cluster);
    let mounts = [cluster.mount(), cluster.mount()];
    let client = cluster.client(Transport::Tcp);
    wait_until("the mounts watch", Duration::from_secs(60), || gauge(&client, "watching_clients") >= 2);
    let links = |mount: &Mount| std::fs::metadata(mount.join("d/counted")).expect("it is there").nlink();
    assert_eq!(mounts.each_ref().map(links), [9, 9]);
    assert_eq!(mounts.each_ref().map(links), [9, 9]);
    let (code, repaired, left) = result(&cluster, &["--repair"]);
    assert_eq!((code, repaired.len(), left.len()), (1, 1, 0), "{repaired:?}");
    assert_eq!(mounts.each_ref().map(links), [1, 1]);
}

#[test]
fn what_cannot_be_checked_is_told_and_nobody_else_may() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Tcp);
    let stranger = client.with_caller(Caller { uid: 54_321, gid: 54_321, groups: Vec::new() });
    let error = stranger.check(1, 0).expect_err("only root and the owner may");
    assert_eq!(error.errno(), libc::EPERM, "{error}");
    assert!(stranger.treat(1, 0, false).is_err());
    cluster.kill("io1");
    let output = fsck(&cluster, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(8), "{said}");
    assert!(said.contains("io1"), "{said}");
}
