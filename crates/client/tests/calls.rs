//! Metadata calls under way by the hundred, from one thread.

use std::time::{Duration, Instant};

use weft_client::{
    Client, ConnectOptions, ErrorKind, OpenOptions, PendingCall, Progress, Transport, after_poll,
    before_poll, finish_all,
};
use weft_test_cluster::Cluster;
use weft_wire::limits::LANES_PER_SERVER_MAX;

/// More than there are exactly-once slots.
const CALLS: usize = 600;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

fn all<T>(mut calls: Vec<PendingCall<T>>) -> Vec<T> {
    finish_all(&mut calls);
    calls.into_iter().map(|call| call.wait().unwrap()).collect()
}

/// As a program does it that waits for other things too.
fn drive<T>(mut calls: Vec<PendingCall<T>>) -> Vec<T> {
    let (mut over, mut waits) = (Vec::new(), 0);
    while !calls.is_empty() {
        let mut under_way: Vec<&mut dyn Progress> = calls.iter_mut().map(|call| call as _).collect();
        let mut descriptors = Vec::new();
        let longest = before_poll(&mut under_way, &mut descriptors);
        assert!(!descriptors.is_empty());
        // SAFETY: live descriptors.
        unsafe {
            libc::poll(descriptors.as_mut_ptr(), descriptors.len() as _, longest.as_millis() as i32 + 1)
        };
        after_poll(&mut under_way);
        over.extend(calls.extract_if(.., |call| call.advance()).map(|call| call.wait().unwrap()));
        waits += 1;
        assert!(waits < 100_000, "it goes round without an end");
    }
    over
}

#[test]
fn one_thread_has_hundreds_under_way_and_those_without_a_slot_wait_for_one() {
    let cluster = Cluster::start(2, 4096);
    for transport in [Transport::Tcp, Transport::Shm] {
        let client = cluster.client(transport);
        let path = |at: usize| format!("/{transport}-{at}");
        let files = all((0..CALLS).map(|at| client.start_open(path(at).as_str(), &create())).collect());
        assert_eq!(files.len(), CALLS);
        files[7].write_at(&[7; 10_000], 0).unwrap();
        let sizes = all((0..CALLS).map(|at| client.start_stat(path(at).as_str(), false)).collect());
        assert_eq!(sizes[7].size, 10_000, "the size of a file that is being written");
        assert_eq!(sizes.iter().map(|attr| attr.size).sum::<u64>(), 10_000);
        let used = client.transports();
        let most = LANES_PER_SERVER_MAX / 2;
        assert!(used[0].connections < most, "calls share connections: {used:?}");
        drop(files);
        assert_eq!(drive((0..CALLS).map(|at| client.start_unlink(path(at).as_str())).collect()).len(), CALLS);
        assert_eq!(client.read_dir("/").unwrap().count(), 0);
    }
}

#[test]
fn every_call_has_its_own_result() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/d", 0o755).unwrap();
    let mut calls: Vec<_> =
        ["/d", "/e", "/d/x", "/none/x"].map(|path| client.start_mkdir(path, 0o755)).into();
    finish_all(&mut calls);
    let errnos: Vec<_> =
        calls.into_iter().map(|call| call.wait().err().map_or(0, |error| error.errno())).collect();
    assert_eq!(errnos, [libc::EEXIST, 0, 0, libc::ENOENT]);
    let error = client.start_rename("/none", "/other", 0).wait().unwrap_err();
    assert!(error.to_string().starts_with("rename /none to /other: "), "{error}");
    let error = client.start_open("/x", &create().truncate(true)).wait().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let page =
        client.start_read_dir_page(client.stat("/", true).unwrap().ino, (0, 0), 10, true).wait().unwrap();
    assert_eq!(page.entries.len(), 2);
    client.start_symlink("/s", b"d").wait().unwrap();
    assert_eq!(client.start_readlink("/s").wait().unwrap(), b"d");
}

#[test]
fn calls_survive_a_restart_of_the_metadata_server_and_are_done_once() {
    let mut cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    client.mkdir("/d", 0o755).unwrap();
    let mut calls: Vec<_> =
        (0..300).map(|at| client.start_mkdir(format!("/d/{at}").as_str(), 0o755)).collect();
    cluster.stop_server(0);
    for call in &mut calls {
        call.test();
    }
    cluster.start_server(0);
    calls.extend((300..400).map(|at| client.start_mkdir(format!("/d/{at}").as_str(), 0o755)));
    assert_eq!(all(calls).len(), 400, "none says that its directory is there already");
    assert_eq!(client.read_dir("/d").unwrap().count(), 400);
}

#[test]
fn calls_to_a_server_that_does_not_come_back_end_in_time() {
    let mut cluster = Cluster::start(1, 4096);
    let options = ConnectOptions { retry_timeout_ms: 1500, ..cluster.options(Transport::Tcp) };
    let client = Client::connect(&cluster.url(), options).unwrap();
    client.mkdir("/d", 0o755).unwrap();
    cluster.stop_server(0);
    let begin = Instant::now();
    let mut calls: Vec<_> = (0..100).map(|_| client.start_stat("/d", false)).collect();
    finish_all(&mut calls);
    for call in calls {
        assert_eq!(call.wait().unwrap_err().kind(), ErrorKind::Unreachable);
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn a_call_that_is_dropped_gives_its_slot_back_and_an_open_is_closed() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    // Many times the slots that there are.
    for round in 0..30 {
        for at in 0..100 {
            drop(client.start_mkdir(format!("/{round}-{at}").as_str(), 0o755));
        }
    }
    let calls = (0..CALLS).map(|at| client.start_mkdir(format!("/last-{at}").as_str(), 0o755)).collect();
    assert_eq!(all(calls).len(), CALLS);
    drop(client.start_open("/open", &create()));
    assert!(!client.stat("/open", true).unwrap().size_live, "nobody has it open for writing");
}

#[test]
fn a_forked_child_leaves_its_parents_calls_alone() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client(Transport::Tcp);
    // The server may have answered all calls before the fork; then there is nothing to see.
    let was_seen = (0..50).any(|round| child_sees_canceled_calls(&client, &format!("/d{round}")));
    assert!(was_seen, "no call was under way at any fork");
}

/// Forks while calls are under way. Whether any still was in the child.
fn child_sees_canceled_calls(client: &Client, dir: &str) -> bool {
    const NONE_UNDER_WAY: i32 = 2;
    client.mkdir(dir, 0o755).unwrap();
    let mut calls: Vec<_> =
        (0..20).map(|at| client.start_mkdir(format!("{dir}/{at}").as_str(), 0o755)).collect();
    // SAFETY: the child uses the library, which may be used after a fork, and ends without the parent's clean-up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(calls.pop());
        let ends =
            calls.drain(..).map(|mut call| (call.test(), call.wait().err().map(|error| error.errno())));
        let (canceled, others): (Vec<_>, Vec<_>) =
            ends.partition(|end| *end == (true, Some(libc::ECANCELED)));
        let are_done = others.iter().all(|end| *end == (true, None));
        let works = client.start_mkdir(format!("{dir}/child").as_str(), 0o755).wait().is_ok();
        let status = match (are_done && works, canceled.is_empty()) {
            (false, _) => 1,
            (true, true) => NONE_UNDER_WAY,
            (true, false) => 0,
        };
        // SAFETY: as above.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: a live place for the status of a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status}");
    let status = libc::WEXITSTATUS(status);
    assert!(status == 0 || status == NONE_UNDER_WAY, "{status}");
    assert_eq!(all(calls).len(), 20, "each was done once");
    assert!(client.stat(format!("{dir}/child").as_str(), true).is_ok());
    status == 0
}
