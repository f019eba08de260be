//! Small files on real servers that are killed, backed up, checked, and mounted.

use std::fs;
use std::time::Duration;

use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Served, ServedOptions, asked, expect_success};
use weft_wire::Op;

const FILES: usize = 300;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

fn bytes(number: usize) -> Vec<u8> {
    (0..number * 37 % 9000 + 1).map(|at| (at + number) as u8).collect()
}

fn make(client: &Client, directory: &str) {
    client.mkdir(directory, 0o755).expect("it can be made");
    for number in 0..FILES {
        let file = client.open(&*format!("{directory}/{number}"), &create()).expect("it can be made");
        file.write_at(&bytes(number), 0).expect("it can be written");
        file.close().expect("it can be closed");
    }
}

#[track_caller]
fn check(client: &Client, directory: &str) {
    for number in 0..FILES {
        let file = client
            .open(&*format!("{directory}/{number}"), &OpenOptions::new().read(true))
            .expect("it is there");
        let mut read = vec![0; 10_000];
        let count = file.read_at(&mut read, 0).expect("it can be read");
        assert!(read[..count] == bytes(number), "{number}");
    }
}

/// Data files of an I/O server.
fn data_files(cluster: &Served, name: &str) -> usize {
    let list = format!("find {} -type f | wc -l", cluster.directory(name).join("data").display());
    weft_tests::sh_in(cluster.scratch(), &list).trim().parse().expect("a number")
}

#[test]
fn acknowledged_bytes_survive_a_killed_metadata_server_and_need_no_io_server() {
    let mut cluster = Served::start(2);
    let client = cluster.client(Transport::Auto);
    make(&client, "/d");
    cluster.kill("meta0");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    assert_eq!((data_files(&cluster, "io0"), data_files(&cluster, "io1")), (0, 0));
    // It serves once they have confirmed that its store is the newest.
    client.stat("/d", true).expect("it is there");
    cluster.kill("io0");
    cluster.kill("io1");
    check(&client, "/d");
    let file = client.open("/d/7", &create()).expect("it is there");
    file.write_at(b"new", 0).expect("it is small");
    file.sync_data().expect("its bytes are at the metadata server");
}

#[test]
fn a_check_finds_nothing_wrong_and_removal_leaves_nothing() {
    let cluster = Served::start(2);
    let client = cluster.client(Transport::Auto);
    make(&client, "/d");
    // Every third one grows, and has a data file then.
    for number in (0..FILES).step_by(3) {
        let file = client.open(&*format!("/d/{number}"), &create()).expect("it is there");
        file.write_at(&[7; 20_000], 0).expect("it can grow");
        file.close().expect("it can be closed");
    }
    let fsck = || {
        expect_success("weft fsck", &cluster.command(&["fsck", &cluster.url()]).output().expect("it runs"))
    };
    fsck();
    assert_eq!(data_files(&cluster, "io0") + data_files(&cluster, "io1"), FILES / 3);
    for number in 0..FILES {
        client.unlink(&*format!("/d/{number}")).expect("it is there");
    }
    weft_tests::wait_until("the data files are gone", Duration::from_secs(30), || {
        data_files(&cluster, "io0") + data_files(&cluster, "io1") == 0
    });
    fsck();
}

#[test]
fn a_backup_has_their_bytes() {
    let mut cluster = Served::start(1);
    let client = cluster.client(Transport::Auto);
    make(&client, "/d");
    let backup = cluster.scratch().join("backup");
    let backup = backup.to_str().expect("UTF-8");
    cluster.weft(&["meta", "dump", &cluster.url(), backup]);
    let file = client.open("/d/5", &create()).expect("it is there");
    file.write_at(b"later", 0).expect("it can be written");
    drop((file, client));
    cluster.stop("meta0");
    let config = cluster.config_path();
    let config = config.to_str().expect("UTF-8");
    let load = ["meta", "load", backup, "--config", config, "--name", "meta0", "--replace"];
    expect_success("weft meta load", &cluster.command(&load).output().expect("it runs"));
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    check(&cluster.client(Transport::Auto), "/d");
}

#[test]
fn where_the_cluster_file_says_so_no_file_is_small() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    let path = cluster.config_path();
    let text = fs::read_to_string(&path).expect("weft init wrote it");
    assert!(text.contains("small_file_bytes = 16384"), "{text}");
    fs::write(&path, text.replace("small_file_bytes = 16384", "small_file_bytes = 0")).expect("it is ours");
    for name in cluster.names() {
        cluster.spawn(&name);
    }
    cluster.names().iter().for_each(|name| cluster.wait_ready(name));
    let client = cluster.client(Transport::Auto);
    make(&client, "/d");
    check(&client, "/d");
    assert_eq!((asked(&client, Op::WriteSmall), data_files(&cluster, "io0")), (0, FILES));
}

#[test]
fn two_mounts_see_each_others_small_files() {
    let cluster = Served::start(2);
    let (one, two) = (cluster.mount(), cluster.mount());
    one.sh("mkdir d; for i in $(seq 100); do head -c $((i * 200)) /dev/urandom > d/$i; done");
    let sums = |mount: &weft_tests::Mount| mount.sh("cd d && sha256sum $(ls | sort -n)");
    assert_eq!(sums(&one), sums(&two));
    // Both have the old pages in the kernel's cache now.
    two.sh("for i in $(seq 100); do printf 'line %s\\n' $i >> d/$i; done; for i in 1 50 100; do truncate -s 50 d/$i; done");
    assert_eq!(sums(&one), sums(&two));
    one.sh("for i in $(seq 100); do printf 'x' | dd of=d/$i bs=1 seek=10 conv=notrunc status=none; done");
    assert_eq!(sums(&one), sums(&two));
    assert_eq!(one.sh("stat -c %s d/1 d/2"), "50\n407\n");
    // A file that is written through one mount while it is open and mapped through the other.
    let script = "import mmap, os, subprocess, sys\n\
        f = open('d/7', 'r+b'); m = mmap.mmap(f.fileno(), 0)\n\
        assert m[10:11] == b'x', m[:20]\n\
        m[0:3] = b'map'; m.flush()\n\
        f.close()\n";
    fs::write(cluster.scratch().join("map.py"), script).expect("it is ours");
    one.sh(&format!("python3 {}", cluster.scratch().join("map.py").display()));
    assert!(two.sh("head -c 3 d/7").starts_with("map"));
}
