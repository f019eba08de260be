//! Data files that are gone, cut or swapped below an I/O server: reading them is an error that names the server, a check and a
//! scrub report them, and no repair makes a loss official by itself.

use std::fs;
use std::path::{Path, PathBuf};
use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Served, ServedOptions};

const STRIP: u64 = 64 << 10;
const NAMES: [&str; 3] = ["meta0", "io0", "io1"];

fn start(cluster: &mut Served) {
    NAMES.iter().for_each(|name| cluster.spawn(name));
    NAMES.iter().for_each(|name| cluster.wait_ready(name));
}

fn stop(cluster: &mut Served) {
    NAMES.iter().rev().for_each(|name| cluster.stop(name));
}

fn bytes(seed: u64, count: u64) -> Vec<u8> {
    (0..count).map(|at| (at / 5 * 31 + seed * 17 + at % 7) as u8 | 1).collect()
}

fn write(client: &Client, path: &str, data: &[u8]) {
    let options = OpenOptions::new().write(true).create(true).truncate(true);
    let file = client.open(path, &options).expect("it can be made");
    file.write_at(data, 0).expect("it can be written");
    file.close().expect("it can be closed");
}

fn read(client: &Client, path: &str, offset: u64, count: u64) -> weft_client::Result<Vec<u8>> {
    let file = client.open(path, &OpenOptions::new().read(true))?;
    let mut to = vec![0; count as usize];
    let count = file.read_at(&mut to, offset)?;
    to.truncate(count);
    Ok(to)
}

/// The file of an inode in the `data` or `sums` of a server.
fn place(cluster: &Served, server: &str, kind: &str, ino: u64) -> PathBuf {
    let name = format!("{ino:016x}");
    let mut below = vec![cluster.directory(server).join(kind)];
    while let Some(directory) = below.pop() {
        for entry in fs::read_dir(directory).expect("it can be listed").flatten() {
            match entry.path() {
                path if path.is_dir() => below.push(path),
                path if path.ends_with(&name) => return path,
                _ => {}
            }
        }
    }
    panic!("{server} has no {kind} of inode {ino}");
}

/// Exit code and what was printed.
fn run(cluster: &Served, args: &[&str]) -> (i32, String) {
    let url = cluster.url();
    let args: Vec<&str> = [&args[..1], &[url.as_str()], &args[1..]].concat();
    let output = cluster.command(&args).output().expect("it runs");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code().expect("it ends"), text)
}

/// A cluster that stopped in order, with `/other` and `/file` over both servers; their inodes.
fn stopped_cluster() -> (Served, [u64; 2]) {
    let options = ServedOptions { io_servers: 2, strip_bytes: STRIP as u32, ..ServedOptions::default() };
    let mut cluster = Served::init(options);
    start(&mut cluster);
    let client = cluster.client(Transport::Auto);
    let inos = ["/other", "/file"].map(|path| {
        write(&client, path, &bytes(path.len() as u64, 8 * STRIP));
        client.stat(path, false).expect("it is there").ino
    });
    drop(client);
    stop(&mut cluster);
    (cluster, inos)
}

/// `damage` was done to what io1 has of `/file`: all but the data of that file is unchanged.
fn assert_lost(damage: impl FnOnce(&Served, u64)) {
    let (mut cluster, [_, ino]) = stopped_cluster();
    damage(&cluster, ino);
    start(&mut cluster);
    let size = 8 * STRIP;
    let whole = bytes(5, size);
    let mount = cluster.mount();
    for transport in [Transport::Tcp, Transport::Shm] {
        let client = cluster.client(transport);
        let error = read(&client, "/file", 0, size).map(drop).expect_err("half of it is lost");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert!(error.to_string().contains("io1"), "{error}");
        // Each part is what was written, or an error: never zeros, and never the end of the file.
        let mut refused = 0;
        for offset in (0..size).step_by(16 << 10) {
            match read(&client, "/file", offset, 16 << 10) {
                Ok(found) => assert!(found == whole[offset as usize..][..16 << 10], "at {offset}"),
                Err(error) => {
                    assert!(error.to_string().contains("io1"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        assert!(read(&client, "/other", 0, size).expect("it is whole") == bytes(6, size));
        assert_eq!(client.stat("/file", true).expect("it has a name").size, size);
    }
    let read = fs::read(mount.join("file")).map(drop).expect_err("half of it is lost");
    assert_eq!(read.raw_os_error(), Some(libc::EIO));
    assert!(fs::copy(mount.join("file"), mount.join("copy")).is_err(), "a copy would be short or have zeros");

    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 4 && text.contains("io1: /file: "), "{code}: {text}");
    for args in [&["fsck"][..], &["fsck", "--repair"]] {
        let (code, text) = run(&cluster, args);
        assert!(code == 4 && text.contains("/file") && text.contains("io1"), "{args:?} {code}: {text}");
    }
    let client = cluster.client(Transport::Tcp);
    assert_eq!(client.stat("/file", true).expect("it has a name").size, size, "no repair has cut it");
    assert!(self::read(&client, "/file", 0, size).is_err(), "no repair has made zeros of it");
    let (_, text) = run(&cluster, &["status"]);
    assert!(text.contains("1 file has lost data"), "{text}");
    let (code, text) = run(&cluster, &["doctor", "--json"]);
    let is_named =
        text.contains("\"lost-data\"") && text.contains("data of 1 file is missing on the disk of io1");
    assert!(code == 1 && is_named, "{code}: {text}");

    // The loss is accepted.
    let (code, text) = run(&cluster, &["fsck", "--repair", "--accept-loss"]);
    assert!(code == 1 && text.contains("repaired: "), "{code}: {text}");
    assert_eq!(run(&cluster, &["fsck"]).0, 0);
    let found = self::read(&client, "/file", 0, size).expect("the rest is a file again");
    assert!(found.iter().zip(&whole).all(|(found, was)| found == was || *found == 0));
    write(&client, "/file", &bytes(5, size));
    assert!(self::read(&client, "/file", 0, size).expect("it was written again") == whole);
}

#[test]
fn a_data_file_that_was_removed_is_lost() {
    assert_lost(|cluster, ino| fs::remove_file(place(cluster, "io1", "data", ino)).expect("it is ours"));
}

#[test]
fn a_data_file_that_was_removed_with_its_checksums_is_lost() {
    assert_lost(|cluster, ino| {
        for kind in ["data", "sums"] {
            fs::remove_file(place(cluster, "io1", kind, ino)).expect("it is ours");
        }
    });
}

#[test]
fn what_was_cut_off_a_data_file_is_lost() {
    for kept in [2 * STRIP, 4096, 0] {
        assert_lost(|cluster, ino| truncate(&place(cluster, "io1", "data", ino), kept));
    }
}

fn truncate(path: &Path, bytes: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("it is ours");
    file.set_len(bytes).expect("it is ours");
}

#[test]
fn all_of_an_emptied_data_directory_is_lost() {
    let (mut cluster, _) = stopped_cluster();
    let data = cluster.directory("io1").join("data");
    fs::remove_dir_all(&data).expect("it is ours");
    fs::create_dir(&data).expect("it is ours");
    // As if a disk was not mounted: the server does not start, and says what to do.
    for name in ["meta0", "io0", "io1"] {
        cluster.spawn(name);
    }
    assert_eq!(cluster.ended("io1").code(), Some(78));
    let log = cluster.log("io1");
    assert!(log.contains("data files are gone") && log.contains("not mounted"), "{log}");
    assert!(log.contains("--accept-loss") && log.contains(&data.display().to_string()), "{log}");
    cluster.spawn_with("io1", &["--accept-loss"]);
    NAMES.iter().for_each(|name| cluster.wait_ready(name));
    // That is remembered.
    cluster.stop("io1");
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let client = cluster.client(Transport::Tcp);
    for path in ["/file", "/other"] {
        let error = read(&client, path, 0, 8 * STRIP).map(drop).expect_err("half of it is lost");
        assert!(error.errno() == libc::EIO && error.to_string().contains("io1"), "{error}");
    }
    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 4 && text.contains("io1: /file: ") && text.contains("io1: /other: "), "{text}");
    // New files are sound, and writes to the lost files do not hide the loss.
    write(&client, "/new", &bytes(1, 8 * STRIP));
    assert!(read(&client, "/new", 0, 8 * STRIP).expect("it is whole") == bytes(1, 8 * STRIP));
    let file = client.open("/file", &OpenOptions::new().write(true)).expect("it has a name");
    file.write_at(&bytes(1, 2 * STRIP), 0).map(drop).expect_err("the rest would be zeros");
}

#[test]
fn what_was_synced_is_missed_before_it_has_checksums() {
    let mut cluster =
        Served::start_with(ServedOptions { strip_bytes: STRIP as u32, ..ServedOptions::default() });
    let client = cluster.client(Transport::Auto);
    let inos = ["/synced", "/unsynced"].map(|path| {
        let options = OpenOptions::new().write(true).create(true);
        let file = client.open(path, &options).expect("it can be made");
        file.write_at(&bytes(3, 8 * STRIP), 0).expect("it can be written");
        if path == "/synced" {
            file.sync_data().expect("it can be synced");
        }
        file.ino()
    });
    // Checksums are made a second after the sync at the earliest.
    cluster.kill("io1");
    assert!(!cluster.directory("io1").join("sums").exists());
    for ino in inos {
        fs::remove_file(place(&cluster, "io1", "data", ino)).expect("it is ours");
    }
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let error = read(&client, "/synced", 0, 8 * STRIP).map(drop).expect_err("half of it is lost");
    assert!(error.errno() == libc::EIO && error.to_string().contains("io1"), "{error}");
}

#[test]
fn a_scrub_says_why_it_makes_checksums() {
    let first = "received their first checksums";
    let again = "got new checksums unverified, since theirs were lost";
    let (mut cluster, [_, ino]) = stopped_cluster();
    fs::remove_file(place(&cluster, "io1", "sums", ino)).expect("it is ours");
    start(&mut cluster);
    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 0 && text.contains(&format!("256 KiB {again}")) && !text.contains(first), "{text}");
    // Synced data that a kill keeps from its checksums has never had any.
    let client = cluster.client(Transport::Auto);
    let file = client.open("/new", &OpenOptions::new().write(true).create(true)).expect("it can be made");
    file.write_at(&bytes(4, 8 * STRIP), 0).expect("it can be written");
    file.sync_data().expect("it can be synced");
    cluster.kill("io1");
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 0 && text.contains(first) && !text.contains(again), "{text}");
    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 0 && !text.contains(first) && !text.contains(again), "{text}");
}

#[test]
fn data_files_that_were_swapped_with_their_checksums_are_not_read() {
    let (mut cluster, inos) = stopped_cluster();
    for kind in ["data", "sums"] {
        let [one, other] = inos.map(|ino| place(&cluster, "io1", kind, ino));
        let between = cluster.scratch().join("between");
        fs::rename(&one, &between).expect("it is ours");
        fs::rename(&other, &one).expect("it is ours");
        fs::rename(&between, &other).expect("it is ours");
    }
    start(&mut cluster);
    let client = cluster.client(Transport::Tcp);
    for (path, other) in [("/file", inos[0]), ("/other", inos[1])] {
        let error = read(&client, path, 0, 8 * STRIP).map(drop).expect_err("half of it is another file's");
        let text = error.to_string();
        assert!(error.errno() == libc::EIO && text.contains("io1"), "{text}");
        assert!(text.contains(&format!("inode {other}")), "{text}");
    }
    let (code, text) = run(&cluster, &["scrub"]);
    assert!(code == 4 && text.contains("io1: /file: ") && text.contains("another file"), "{text}");
}

/// Before any server has noticed the loss: nothing was read since the start.
#[test]
fn a_sync_copies_again_what_was_lost_below_a_server() {
    let damages: [fn(&Served, u64); 3] = [
        |cluster, ino| fs::remove_file(place(cluster, "io1", "data", ino)).expect("it is ours"),
        |cluster, ino| {
            for kind in ["data", "sums"] {
                fs::remove_file(place(cluster, "io1", kind, ino)).expect("it is ours");
            }
        },
        |cluster, ino| truncate(&place(cluster, "io1", "data", ino), 4096),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let options = ServedOptions { io_servers: 2, strip_bytes: STRIP as u32, ..ServedOptions::default() };
        let mut cluster = Served::init(options);
        start(&mut cluster);
        let good = cluster.scratch().join("good");
        fs::create_dir(&good).expect("it is new");
        for (name, seed) in [("file", 5), ("other", 6)] {
            fs::write(good.join(name), bytes(seed, 8 * STRIP)).expect("there is room");
        }
        let target = cluster.at("/data");
        let sync = |cluster: &Served| {
            let mut command = cluster.command(&["sync", "--json"]);
            let output = command.arg(&good).arg(&target).output().expect("it runs");
            let said = weft_tests::expect_success("weft sync", &output);
            serde_json::from_str::<serde_json::Value>(&said).expect("JSON")["copied"].as_u64()
        };
        assert_eq!(sync(&cluster), Some(2));
        let ino = cluster.client(Transport::Auto).stat("/data/file", false).expect("it is there").ino;
        stop(&mut cluster);
        damage(&cluster, ino);
        start(&mut cluster);
        assert_eq!(sync(&cluster), Some(1), "damage {number}");
        let client = cluster.client(Transport::Auto);
        for (path, seed) in [("/data/file", 5), ("/data/other", 6)] {
            assert!(read(&client, path, 0, 8 * STRIP).expect("it is whole") == bytes(seed, 8 * STRIP));
        }
        assert_eq!(sync(&cluster), Some(0));
    }
}
