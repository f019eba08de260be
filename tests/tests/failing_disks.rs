//! Disks that fail reads and writes (`EIO`) under real servers: whoever needs the disk gets an error, and nobody else.
//!
//! ```text
//!   server ──► its directory ──► link to a file system in memory, served by this test, which fails what it is told to fail
//! ```

use std::process::Command;
use std::time::Duration;
use weft_client::{OpenOptions, Transport};
use weft_power_cut::{Disk, Recorder};
use weft_test_random::{Random, seed};
use weft_tests::{Served, ServedOptions, wait_until};

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

/// Puts the directory of a server that does not run on a disk that fails when the test wants it to.
fn on_failing_disk(cluster: &Served, name: &str) -> Recorder {
    let recorder = Recorder::mount(Disk::new(), 0, Random(seed()), 0);
    let (directory, aside) = (cluster.directory(name), cluster.scratch().join(format!("{name}.made")));
    std::fs::rename(directory, &aside).expect("one directory");
    let target = recorder.directory();
    let copied = Command::new("cp").arg("-r").args([&aside, &target]).output();
    weft_tests::expect_success("cp", &copied.expect("cp can be run"));
    std::os::unix::fs::symlink(target, directory).expect("nothing is there");
    recorder
}

/// On one of two servers. Others' files are read and written meanwhile, and everything is when the disk works again.
#[test]
fn a_disk_that_fails_reads_or_writes_is_an_error_for_who_needs_it_only() {
    let mut cluster = Served::init(ServedOptions::default());
    let disk = on_failing_disk(&cluster, "io1");
    for name in cluster.names() {
        cluster.spawn(&name);
        cluster.wait_ready(&name);
    }
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/elsewhere", 0o755).expect("all is well");
    cluster.weft(&["stripe", "set", &cluster.at("/elsewhere"), "--servers", "1", "--first", "0"]);
    let open = |path: &str| client.open(path, &read_write().create(true)).expect("names are elsewhere");
    let (over_both, elsewhere) = (open("/both"), open("/elsewhere/file"));
    let (old, new) = (vec![1; 1 << 20], vec![2; 1 << 20]);
    over_both.write_at(&old, 0).expect("all is well");
    let mount = cluster.mount();

    disk.disk.lock().expect("no thread panics").fail_writes = true;
    let error = over_both.write_at(&new, 0).expect_err("the disk fails");
    assert!(error.errno() == libc::EIO && error.to_string().contains("io1"), "{error}");
    let error = std::fs::write(mount.join("by-mount"), &new).expect_err("the disk fails");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    elsewhere.write_at(&new, 0).expect("it is not on that disk");
    disk.disk.lock().expect("no thread panics").fail_writes = false;
    over_both.write_at(&new, 0).expect("the disk is well again");

    disk.disk.lock().expect("no thread panics").fail_reads = true;
    let mut back = vec![0; new.len()];
    let error = over_both.read_at(&mut back, 0).expect_err("the disk fails");
    assert!(error.errno() == libc::EIO && error.to_string().contains("io1"), "{error}");
    let error = std::fs::read(mount.join("both")).expect_err("the disk fails");
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert_eq!(elsewhere.read_at(&mut back, 0).expect("it is not on that disk"), new.len());
    disk.disk.lock().expect("no thread panics").fail_reads = false;
    assert!(over_both.read_at(&mut back, 0).expect("the disk is well again") == new.len() && back == new);
    assert!(std::fs::read(mount.join("both")).expect("the disk is well again") == new);
    drop((mount, over_both, elsewhere, client));
    drop(cluster);
    drop(disk);
}

/// It cannot know what of the change is in its journal: it ends, and the next start finds out.
#[test]
fn a_metadata_server_whose_disk_fails_writes_ends_and_nothing_is_lost() {
    let mut cluster = Served::init(ServedOptions { io_servers: 1, ..ServedOptions::default() });
    let disk = on_failing_disk(&cluster, "meta0");
    for name in cluster.names() {
        cluster.spawn(&name);
        cluster.wait_ready(&name);
    }
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/before", 0o755).expect("all is well");
    disk.disk.lock().expect("no thread panics").fail_writes = true;
    let asked = client.clone();
    let waiting = std::thread::spawn(move || asked.mkdir("/after", 0o755));
    wait_until("the server ends", Duration::from_secs(60), || !cluster.is_running("meta0"));
    assert_eq!(cluster.ended("meta0").code(), Some(1), "so that systemd starts it again");
    assert!(cluster.log("meta0").contains("Input/output error"), "{}", cluster.log("meta0"));
    disk.disk.lock().expect("no thread panics").fail_writes = false;
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    waiting.join().expect("no panic").expect("the request is asked again");
    client.stat("/before", true).expect("it was acknowledged");
    drop(client);
    drop(cluster);
    drop(disk);
}
