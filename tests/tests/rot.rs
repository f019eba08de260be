//! Bits that flip on the disks of I/O servers: every one is found, and none is ever read as data.
//!
//! `WEFT_ROT_FLIPS` says how many bits are flipped.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_client::{Client, OpenOptions, Transport};
use weft_test_random::Random;
use weft_tests::{Served, ServedOptions, wait_until};
use weft_wire::Status;

const FLIPS_DEFAULT: usize = 40;
const STRIP: u64 = 64 << 10;
const BLOCK: u64 = 4096;

fn bytes(seed: u64, count: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// Servers that settle only when a scrub has them do so.
fn cluster(io_servers: u16, settle_s: u64) -> Served {
    let options = ServedOptions { io_servers, strip_bytes: STRIP as u32, ..ServedOptions::default() };
    let mut cluster = Served::init(options);
    let text = fs::read_to_string(cluster.config_path()).expect("weft init wrote it");
    let lines = text.lines().map(|line| match line.split(' ').next() {
        Some("data_settle_s") => format!("data_settle_s = {settle_s}\n"),
        _ => format!("{line}\n"),
    });
    fs::write(cluster.config_path(), lines.collect::<String>()).expect("it is ours");
    start(&mut cluster);
    cluster
}

fn start(cluster: &mut Served) {
    let names = cluster.names();
    names.iter().for_each(|name| cluster.spawn(name));
    names.iter().for_each(|name| cluster.wait_ready(name));
}

fn stop(cluster: &mut Served) {
    cluster.names().iter().rev().for_each(|name| cluster.stop(name));
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let entry = entry.expect("it can be listed");
        match entry.file_type().expect("it is there").is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    files
}

fn flip(path: &Path, bit: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("it is ours");
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).expect("it has it");
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).expect("it is ours");
}

/// Exit code and report.
fn scrub(cluster: &Served) -> (i32, serde_json::Value) {
    let output =
        cluster.command(&["scrub", &cluster.url(), "--rate", "0", "--json"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text} {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().expect("it ends"), report)
}

fn assert_sound(cluster: &Served) {
    let (code, report) = scrub(cluster);
    assert_eq!(code, 0, "{report:#}");
}

/// Server, inode and block of everything that a scrub has found.
fn found(report: &serde_json::Value) -> BTreeSet<(usize, u64, u64)> {
    let servers = report["servers"].as_array().expect("servers").iter().enumerate();
    let findings = servers.flat_map(|(server, report)| {
        report["findings"].as_array().expect("findings").iter().map(move |finding| (server, finding))
    });
    let blocks = findings.flat_map(|(server, finding)| {
        assert_eq!(finding["kind"], "data", "{finding}");
        let number = |name: &str| finding[name].as_u64().unwrap_or_else(|| panic!("{finding} has no {name}"));
        assert!(!finding["paths"].as_array().expect("paths").is_empty(), "{finding}");
        let begin = number("data_file_offset") / BLOCK;
        let ino = number("inode");
        (begin..begin + number("bytes") / BLOCK).map(move |block| (server, ino, block))
    });
    blocks.collect()
}

fn write(client: &Client, path: &str, data: &[u8]) {
    let options = OpenOptions::new().write(true).create(true).truncate(true);
    let file = client.open(path, &options).expect("it can be made");
    file.write_at(data, 0).expect("it can be written");
    file.close().expect("it can be closed");
}

/// The bytes of a block as a transport delivers them, or why not.
fn read(client: &Client, path: &str, offset: u64, count: usize) -> weft_client::Result<Vec<u8>> {
    let file = client.open(path, &OpenOptions::new().read(true))?;
    let mut to = vec![0; count];
    let count = file.read_at(&mut to, offset)?;
    to.truncate(count);
    Ok(to)
}

#[test]
fn every_flipped_bit_of_data_is_found_and_none_is_read() {
    let flips = std::env::var("WEFT_ROT_FLIPS").map_or(FLIPS_DEFAULT, |text| text.parse().expect("a number"));
    let mut cluster = cluster(2, 3600);
    let sizes = [1, 5000, STRIP, 7 * STRIP + 77, 3 << 20, ((flips as u64 * 40) << 10).max(1 << 20)];
    let whole: Vec<Vec<u8>> = (0..).zip(sizes).map(|(seed, size)| bytes(seed, size)).collect();
    let client = cluster.client(Transport::Auto);
    (0..).zip(&whole).for_each(|(number, data)| write(&client, &format!("/file{number}"), data));
    let inos: Vec<u64> = (0..whole.len())
        .map(|number| client.stat(format!("/file{number}").as_str(), false).expect("it is there").ino)
        .collect();
    drop(client);
    assert_sound(&cluster);
    stop(&mut cluster);

    let mut random = Random(weft_test_random::seed());
    let data_files: Vec<(usize, PathBuf, u64)> = (0..2)
        .flat_map(|server| {
            let found = files_below(&cluster.directory(&format!("io{server}")).join("data"));
            found.into_iter().map(move |path| (server, path)).collect::<Vec<_>>()
        })
        .map(|(server, path)| {
            let size = fs::metadata(&path).expect("it is there").len();
            (server, path, size)
        })
        .filter(|(.., size)| *size > 0)
        .collect();
    let mut wrong = BTreeSet::new();
    while wrong.len() < flips {
        let (server, path, size) = &data_files[random.below(data_files.len() as u64) as usize];
        let bit = random.below(size * 8);
        let name = path.file_name().expect("a number").to_str().expect("digits");
        let ino = u64::from_str_radix(name, 16).expect("hexadecimal");
        // Small files have few blocks: with many flips all of them are damaged, and the big one takes the others.
        let known = wrong.insert((*server, ino, bit / 8 / BLOCK));
        if known {
            flip(path, bit);
        }
    }
    start(&mut cluster);

    let mount = cluster.mount();
    let mut refused = 0;
    for (number, (data, ino)) in whole.iter().zip(&inos).enumerate() {
        let path = format!("/file{number}");
        for transport in [Transport::Tcp, Transport::Shm] {
            let client = cluster.client(transport);
            let layout =
                client.stat(path.as_str(), false).expect("it is there").layout.expect("a file has one");
            for begin in (0..data.len()).step_by(BLOCK as usize) {
                let slot = (begin as u64 / STRIP % u64::from(layout.server_count())) as u16;
                let server = usize::from(layout.chain(slot).single_server());
                let block = layout.local_size(slot, begin as u64) / BLOCK;
                let end = (begin + BLOCK as usize).min(data.len());
                let found = read(&client, &path, begin as u64, end - begin);
                if wrong.contains(&(server, *ino, block)) {
                    let error = found.expect_err("it is damaged");
                    assert_eq!(error.status(), Some(Status::Damaged), "{error}");
                    let text = error.to_string();
                    let place = format!("bytes {begin} to ");
                    assert!(text.contains(&place) && text.contains(&format!("io{server}")), "{text}");
                    refused += 1;
                } else {
                    assert!(found.expect("it is sound") == data[begin..end], "{path} at {begin}");
                }
            }
            // All at once: nothing of it may be what is damaged.
            if wrong.iter().any(|(_, of, _)| of == ino) {
                read(&client, &path, 0, data.len()).expect_err("a part of it is damaged");
            }
        }
        let through_mount = fs::File::open(mount.join(&path[1..])).and_then(|mut file| {
            let mut all = Vec::new();
            file.read_to_end(&mut all).map(|_| all)
        });
        match wrong.iter().any(|(_, of, _)| of == ino) {
            true => assert_eq!(through_mount.expect_err("it is damaged").raw_os_error(), Some(libc::EIO)),
            false => assert!(through_mount.expect("it is sound") == *data),
        }
    }
    let (code, report) = scrub(&cluster);
    assert_eq!(code, 4);
    assert_eq!(found(&report), wrong);
    println!(
        "{flips} bits flipped: {refused} reads of blocks over tcp and shm refused, all found by the scrub"
    );
    let status = cluster.weft(&["status", &cluster.url()]);
    assert!(status.contains("DAMAGED DATA on io"), "{status}");

    // Written again as a whole, it is sound.
    let client = cluster.client(Transport::Auto);
    (0..).zip(&whole).for_each(|(number, data)| {
        let path = format!("/file{number}");
        let file = client.open(path.as_str(), &OpenOptions::new().write(true)).expect("it is there");
        file.write_at(data, 0).expect("whole blocks can be written");
        assert!(read(&client, &path, 0, data.len()).expect("it is sound") == *data);
    });
    assert_sound(&cluster);
}

#[test]
fn a_flipped_bit_of_checksums_is_told_and_damages_no_data() {
    let mut cluster = cluster(1, 3600);
    let data = bytes(5, 300_000);
    let client = cluster.client(Transport::Auto);
    (0..40).for_each(|number| write(&client, &format!("/file{number}"), &data[number * 100..]));
    drop(client);
    assert_sound(&cluster);
    stop(&mut cluster);
    let mut random = Random(weft_test_random::seed());
    for path in files_below(&cluster.directory("io0").join("sums")) {
        let bits = fs::metadata(&path).expect("it is there").len() * 8;
        flip(&path, random.below(bits));
    }
    start(&mut cluster);
    let client = cluster.client(Transport::Tcp);
    for number in 0..40 {
        let found = read(&client, &format!("/file{number}"), 0, data.len()).expect("its data is sound");
        assert!(found == data[number * 100..]);
    }
    let (code, report) = scrub(&cluster);
    let findings = report["servers"][0]["findings"].as_array().expect("findings");
    assert!(findings.iter().all(|finding| finding["kind"] == "checksums"), "{report:#}");
    // A few bits of a header mean nothing.
    assert!(code == 4 && findings.len() > 20, "{report:#}");
    assert_sound(&cluster);
}

#[test]
fn killing_servers_under_load_damages_nothing() {
    let mut cluster = cluster(2, 0);
    let mut random = Random(weft_test_random::seed());
    let (mut model, mut voided) = (vec![0; 2 << 20], 0);
    write(&cluster.client(Transport::Auto), "/file", &model);
    for round in 0..6 {
        let client = cluster.client(if round % 2 == 0 { Transport::Shm } else { Transport::Tcp });
        let file = client.open("/file", &OpenOptions::new().read(true).write(true)).expect("it is there");
        for step in 0..60 {
            let begin = random.below(model.len() as u64 - 30_000) as usize;
            let data = bytes(round * 100 + step, 1 + random.below(30_000));
            file.write_at(&data, begin as u64).expect("it can be written");
            model[begin..begin + data.len()].copy_from_slice(&data);
            if step % 20 == 10 {
                // Long enough for the settler to come by.
                std::thread::sleep(Duration::from_millis(700));
            }
            let begin = random.below(model.len() as u64 - 30_000) as usize;
            let mut found = vec![0; 30_000];
            file.read_at(&mut found, begin as u64).expect("nothing is damaged");
            assert!(found == model[begin..begin + found.len()], "round {round}, step {step}");
        }
        drop(file);
        let gauges = client
            .server_status(false)
            .into_iter()
            .flat_map(|(_, status)| status.expect("it answers").gauges);
        voided += gauges.filter(|gauge| gauge.name == "sums_voided").map(|gauge| gauge.value).sum::<u64>();
        drop(client);
        for name in ["io0", "io1"] {
            cluster.kill(name);
            cluster.spawn(name);
        }
        ["io0", "io1"].iter().for_each(|name| cluster.wait_ready(name));
        let found =
            read(&cluster.client(Transport::Auto), "/file", 0, model.len()).expect("nothing is damaged");
        assert!(found == model);
    }
    assert!(voided > 0, "no settled block was ever written again");
    assert_sound(&cluster);
}

#[test]
fn what_is_left_alone_gets_checksums_by_itself_and_removing_it_removes_them() {
    let cluster = cluster(1, 1);
    let sums = cluster.directory("io0").join("sums");
    let mount = cluster.mount();
    fs::File::create(mount.join("file"))
        .and_then(|mut file| file.write_all(&bytes(1, 100_000)))
        .expect("a file");
    wait_until("a sidecar", Duration::from_secs(20), || files_below(&sums).len() == 1);
    fs::remove_file(mount.join("file")).expect("it is ours");
    wait_until("no sidecar", Duration::from_secs(20), || files_below(&sums).is_empty());
}

/// What an I/O server has noted of its scrub.
fn noted(cluster: &Served, name: &str) -> u64 {
    let text = fs::read_to_string(cluster.directory("io0").join("scrub-state")).expect("it has begun one");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it is noted");
    line.trim().parse().expect("a number")
}

#[test]
fn a_scrub_goes_on_after_a_restart_where_it_was() {
    const FILES: u64 = 40;
    let mut cluster = cluster(1, 1_000_000);
    let client = cluster.client(Transport::Tcp);
    (0..FILES).for_each(|number| write(&client, &format!("/f{number}"), &bytes(number, STRIP)));
    let inos =
        (0..FILES).map(|number| client.stat(format!("/f{number}").as_str(), true).expect("it is there").ino);
    let inos: Vec<u64> = inos.collect();
    drop(client);
    assert_sound(&cluster);
    let rate = (FILES * STRIP / 16).to_string();
    let mut slow = cluster.command(&["scrub", &cluster.url(), "--rate", &rate]).spawn().expect("it runs");
    // Sixteen seconds' work.
    std::thread::sleep(Duration::from_secs(5));
    cluster.stop("io0");
    slow.kill().expect("it is ours");
    slow.wait().expect("it is ours");
    let (cursor, begun_s) = (noted(&cluster, "cursor "), noted(&cluster, "begun_s "));
    assert!(begun_s > 0 && (inos[0]..inos[inos.len() - 1]).contains(&cursor), "{cursor} of {inos:?}");
    let files = files_below(&cluster.directory("io0").join("data"));
    let of = |ino: u64| files.iter().find(|path| path.ends_with(format!("{ino:016x}"))).expect("it is there");
    let (before, after) = (inos[0], inos[inos.len() - 1]);
    [before, after].into_iter().for_each(|ino| flip(of(ino), 12_345));

    cluster.spawn("io0");
    cluster.wait_ready("io0");
    wait_until("the scrub has come to its end", Duration::from_secs(60), || noted(&cluster, "begun_s ") == 0);
    let damaged = |ino: u64| cluster.log("io0").contains(&format!("inode {ino}: 4096 bytes from 0 on"));
    assert!(damaged(after), "it is behind where the scrub was:\n{}", cluster.log("io0"));
    assert!(!damaged(before), "it was scrubbed before the restart");
    assert!(noted(&cluster, "whole_begun_s ") >= begun_s, "both parts are a whole scrub");
    // The next one begins with the first file.
    let (code, report) = scrub(&cluster);
    assert_eq!((code == 0, found(&report).len()), (false, 2), "{report:#}");
}
