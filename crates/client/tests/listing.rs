//! Listings of directories of more than one page.

use std::collections::BTreeMap;
use std::time::Duration;

use weft_client::{Client, OpenOptions, Transport, finish_all};
use weft_test_cluster::{Cluster, eventually};
use weft_test_random::{Random, seed};
use weft_wire::Op;

const FILES: u64 = 1200;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

fn name(number: u64) -> String {
    format!("/d/{number}")
}

/// A directory of so many files.
fn fill(client: &Client, files: u64) {
    client.mkdir("/d", 0o755).unwrap();
    let mut calls: Vec<_> =
        (0..files).map(|number| client.start_open(name(number).as_str(), &create())).collect();
    finish_all(&mut calls);
    calls.into_iter().for_each(|call| call.wait().unwrap().close().unwrap());
}

/// How often any server was asked this.
fn asked(client: &Client, op: Op) -> u64 {
    let counts = client.server_status(false).into_iter().flat_map(|(_, status)| status.unwrap().operations);
    counts.filter(|count| count.op == op as u16).map(|count| count.count).sum()
}

#[test]
fn a_page_is_one_request_and_the_next_is_asked_for_meanwhile() {
    let cluster = Cluster::start(2, 4096);
    for transport in [Transport::Tcp, Transport::Shm, Transport::Rdma] {
        let client = cluster.client(transport);
        if transport == Transport::Tcp {
            fill(&client, FILES);
        }
        let ops = [Op::ReadDir, Op::Lookup, Op::GetAttr, Op::Size];
        let counts = || ops.map(|op| asked(&client, op));
        let before = counts();
        let mut entries = client.read_dir("/d").unwrap();
        assert_eq!(asked(&client, Op::ReadDir), before[0], "nothing is fetched before the first entry");
        assert!(entries.next().unwrap().unwrap().attr.is_some());
        eventually("the second page is asked for", || asked(&client, Op::ReadDir) == before[0] + 2);
        assert_eq!(entries.count() as u64, FILES - 1);
        let after = counts();
        assert_eq!([0, 1, 2, 3].map(|at| after[at] - before[at]), [3, 1, 0, 0], "{transport:?}");
        assert!(client.read_names("/d").unwrap().all(|entry| entry.unwrap().attr.is_none()));
    }
}

#[test]
fn sizes_of_files_that_are_written_are_asked_for_and_no_others() {
    let cluster = Cluster::start(2, 4096);
    let (client, writer) = (cluster.client(Transport::Tcp), cluster.client(Transport::Tcp));
    fill(&client, 20);
    let file = writer.open("/d/7", &create()).unwrap();
    file.write_at(&[1; 10], 9990).unwrap();
    let before = asked(&client, Op::Size);
    for entry in client.read_dir("/d").unwrap() {
        let (entry, is_written) = entry.map(|entry| (entry.name == b"7", entry.attr)).unwrap();
        assert_eq!(is_written.unwrap().size, if entry { 10_000 } else { 0 });
    }
    assert_eq!(asked(&client, Op::Size) - before, 2, "each server of the file that is written");
}

#[test]
fn what_comes_and_goes_meanwhile_does_not_move_the_rest() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Shm);
    let mut random = Random(seed());
    fill(&client, FILES);
    let mut stays: BTreeMap<u64, u32> = (0..FILES).map(|number| (number, 0)).collect();
    let mut made = FILES;
    let mut entries = client.read_dir("/d").unwrap();
    let mut listed = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let number: u64 = std::str::from_utf8(&entry.name).unwrap().parse().unwrap();
        stays.entry(number).and_modify(|seen| *seen += 1);
        listed += 1;
        if listed % 100 == 0 {
            for _ in 0..10 {
                let goes = random.below(FILES);
                if stays.remove(&goes).is_some() {
                    client.unlink(name(goes).as_str()).unwrap();
                }
                // At most as many as went.
                client.open(name(made).as_str(), &create()).unwrap().close().unwrap();
                made += 1;
            }
        }
        if random.one_in(200) {
            // From here again, with or without attributes.
            entries.set_attributes(random.one_in(2));
            entries.seek(entry.cookie);
        }
        assert!(listed < 2 * FILES, "it does not end");
    }
    assert!(stays.len() as u64 > FILES / 2 && stays.values().all(|seen| *seen == 1), "{stays:?}");
}

#[test]
fn a_listing_goes_on_over_a_restart_of_the_metadata_server() {
    let mut cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    fill(&client, FILES);
    let mut entries = client.read_dir("/d").unwrap();
    assert!(entries.by_ref().take(10).all(|entry| entry.is_ok()));
    cluster.stop_server(0);
    let lister = std::thread::spawn(move || entries.map(Result::unwrap).count());
    std::thread::sleep(Duration::from_millis(100));
    cluster.start_server(0);
    assert_eq!(lister.join().unwrap() as u64, FILES - 10);
}

#[test]
fn who_may_not_read_is_told_and_seeking_begins_anew() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    fill(&client, 3);
    let mut entries = client.read_dir("/d").unwrap();
    assert_eq!(entries.by_ref().count(), 3);
    entries.seek(0);
    assert_eq!(entries.by_ref().count(), 3);
    client.unlink("/d/0").unwrap();
    client.unlink("/d/1").unwrap();
    client.unlink("/d/2").unwrap();
    client.rmdir("/d").unwrap();
    entries.seek(0);
    let error = entries.next().unwrap().unwrap_err();
    assert!(error.to_string().contains("/d"), "{error}");
    assert!(entries.next().is_none(), "an error ends it");
}

#[test]
fn a_forked_child_lists_on_beside_its_parent() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    fill(&client, FILES);
    let mut entries = client.read_dir("/d").unwrap();
    entries.next().unwrap().unwrap();
    // SAFETY: the child only uses the client and ends by `_exit`.
    let child = unsafe { libc::fork() };
    let rest = entries.by_ref().filter(Result::is_ok).count() as u64;
    if child == 0 {
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(rest != FILES - 1)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert_eq!(rest, FILES - 1);
}
