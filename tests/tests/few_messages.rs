//! How many messages common work on a mount takes, beside what it leads to.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;
use weft_client::{Client, OpenOptions};
use weft_tests::{Cluster, wait_until};
use weft_wire::Op;

/// How often any server was asked this.
fn asked(client: &Client, op: Op) -> u64 {
    let counts = client.server_status(false).into_iter().flat_map(|(_, status)| status.unwrap().operations);
    counts.filter(|count| count.op == op as u16).map(|count| count.count).sum()
}

/// Nothing, or too much for a small file.
fn contents(file: usize) -> Vec<u8> {
    let bytes = if file == 0 { 0 } else { 17_000 + file * 397 };
    (0..bytes).map(|at| (at * 7 + file) as u8).collect()
}

/// The server that has no more bytes of a file does not know whether another one has, and holes only servers know.
#[test]
fn servers_are_asked_for_nothing_but_the_bytes_of_files_that_nobody_writes() {
    const FILES: usize = 60;
    let cluster = Cluster::start(4);
    let (writer, reader) = (cluster.mount(), cluster.mount());
    for file in 0..FILES {
        fs::write(writer.join(format!("{file}")), contents(file)).unwrap();
    }
    let client = cluster.client();
    let counts = || [Op::Size, Op::Seek, Op::Read, Op::Write, Op::CopyRange].map(|op| asked(&client, op));
    let before = counts();
    for file in 0..FILES {
        let (path, copy) = (reader.join(format!("{file}")), reader.join(format!("copy {file}")));
        assert!(fs::read(&path).unwrap() == contents(file), "{file}");
        // By copy_file_range(2).
        assert_eq!(fs::copy(&path, &copy).unwrap(), contents(file).len() as u64);
        // close(2) does not wait for the kernel to tell the mount that it was the last one.
        wait_until("nobody writes the copy", Duration::from_secs(30), || {
            let options = OpenOptions::new().read(true);
            !client.open(&format!("/copy {file}"), &options).unwrap().attr().size_live
        });
        assert!(fs::read(&copy).unwrap() == contents(file), "the copy of {file}");
        let blocks = fs::metadata(&copy).unwrap().blocks();
        assert!(blocks * 512 >= contents(file).len() as u64);
        fs::remove_file(&copy).unwrap();
    }
    let after = counts();
    let [sizes, seeks, reads, writes, copies] = [0, 1, 2, 3, 4].map(|at| after[at] - before[at]);
    assert_eq!((sizes, seeks), (0, 0));
    // A file is read, is copied by a server or read and written, and its copy is read; the first is empty.
    let files = FILES as u64 - 1;
    assert_eq!((reads, writes + copies), (2 * files + writes, files), "{after:?}");
}

/// What is told of a file that somebody writes can be read at once, also by who has had it open since before.
#[test]
fn a_file_that_another_mount_extends_is_read_as_far_as_its_attributes_say() {
    let cluster = Cluster::start(2);
    let (writer, reader) = (cluster.mount(), cluster.mount());
    for round in 0..15_u64 {
        let name = format!("log {round}");
        fs::write(writer.join(&name), [1; 10]).unwrap();
        let file = File::open(reader.join(&name)).unwrap();
        let log = File::options().write(true).open(writer.join(&name)).unwrap();
        log.write_all_at(&[2; 5000], 10).unwrap();
        wait_until("the new size is seen", Duration::from_secs(30), || {
            file.metadata().unwrap().len() == 5010
        });
        let mut back = [0; 6000];
        assert_eq!(file.read_at(&mut back, 10).unwrap(), 5000, "round {round}");
        assert!(back[..5000] == [2; 5000]);
        // Opened while nobody writes, extended and closed meanwhile.
        drop(log);
        let file = File::open(reader.join(&name)).unwrap();
        let log = File::options().append(true).open(writer.join(&name)).unwrap();
        std::io::Write::write_all(&mut &log, &[3; 100]).unwrap();
        drop(log);
        assert_eq!(file.read_at(&mut back, 5010).unwrap(), 100, "round {round}");
    }
}

/// A copy with holes takes less space than its size, also a small one.
#[test]
fn a_copy_with_holes_says_so() {
    // One server, which copies from data file to data file.
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    let file = File::create_new(mount.join("sparse")).unwrap();
    file.write_all_at(&[1; 100], 60_000).unwrap();
    let (from, to) = (File::open(mount.join("sparse")).unwrap(), mount.join("copy"));
    let copy = File::create_new(&to).unwrap();
    let mut copied = 0;
    while copied < 60_100 {
        // SAFETY: no memory is passed.
        let bytes = unsafe {
            use std::os::fd::AsRawFd;
            let null = std::ptr::null_mut();
            libc::copy_file_range(from.as_raw_fd(), null, copy.as_raw_fd(), null, 1 << 20, 0)
        };
        assert!(bytes > 0, "{}", std::io::Error::last_os_error());
        copied += bytes;
    }
    drop(copy);
    let status = fs::metadata(&to).unwrap();
    assert_eq!(status.len(), 60_100);
    assert!(status.blocks() * 512 < 30_000, "{} blocks", status.blocks());
}

/// `rm -r` lists a directory, and comes back for each name.
#[test]
fn names_that_are_looked_up_as_they_were_listed_are_asked_for_in_pages() {
    const NAMES: u64 = 2000;
    let cluster = Cluster::start(1);
    let (client, mount) = (cluster.client(), cluster.mount());
    client.mkdir("/dir", 0o755).unwrap();
    for name in 0..NAMES {
        client.symlink(&*format!("/dir/{name}"), b"target").unwrap();
    }
    let counts = || [Op::Lookup, Op::ReadDir].map(|op| asked(&client, op));
    let before = counts();
    mount.sh("rm -r dir");
    let [lookups, pages] = [0, 1].map(|at| counts()[at] - before[at]);
    assert!(lookups < NAMES / 10 && pages < NAMES / 100, "{lookups} lookups, {pages} pages");
    assert!(!mount.join("dir").exists());
    assert_eq!(client.stat("/dir", true).unwrap_err().errno(), libc::ENOENT);
}
