//! Servers that go and come back, and processes that fork.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_client::{Client, ConnectOptions, ErrorKind, OpenOptions, Transport};
use weft_test_cluster::{Cluster, pattern};

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

#[test]
fn operations_go_on_when_servers_come_back() {
    for transport in [Transport::Tcp, Transport::Shm, Transport::Rdma] {
        let mut cluster = Cluster::start(3, 4096);
        let client = cluster.client(transport);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (client, stop) = (&client, &stop);
                scope.spawn(move || {
                    let path = format!("/t{thread}");
                    let file = client.open(path.as_str(), &create()).unwrap();
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) || round < 3 {
                        let data = pattern(thread << 32 | round, 50_000);
                        file.write_at(&data, round % 5 * 10_000).unwrap();
                        let mut back = vec![0; data.len()];
                        assert_eq!(file.read_at(&mut back, round % 5 * 10_000).unwrap(), data.len());
                        assert!(back == data, "thread {thread}, round {round}");
                        let name = format!("/n{thread}-{round}");
                        client.open(name.as_str(), &create().create_new(true)).unwrap().close().unwrap();
                        client.unlink(name.as_str()).unwrap();
                        round += 1;
                    }
                    file.close().unwrap();
                });
            }
            for server in [1, 0, 2, 0, 3] {
                std::thread::sleep(Duration::from_millis(100));
                cluster.stop_server(server);
                std::thread::sleep(Duration::from_millis(100));
                cluster.start_server(server);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let names: Vec<_> = client.read_dir("/").unwrap().map(|entry| entry.unwrap().name).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}

#[test]
fn a_file_stays_open_over_a_restart_of_the_metadata_server() {
    let mut cluster = Cluster::start(2, 4096);
    let client = cluster.client(Transport::Auto);
    let file = client.open("/kept", &create()).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    cluster.stop_server(0);
    cluster.start_server(0);
    file.write_at(&[2; 10_000], 10_000).unwrap();
    assert_eq!(file.stat().unwrap().size, 20_000);
    client.unlink("/kept").unwrap();
    let mut back = vec![0; 20_000];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 20_000, "an open file outlives its name");
    file.close().unwrap();
}

#[test]
fn a_close_that_waits_while_the_metadata_server_is_started_again_leaves_nothing_open_and_loses_nothing() {
    let mut cluster = Cluster::start(2, 4096);
    let client = cluster.client(Transport::Auto);
    let kept = client.open("/kept", &create()).unwrap();
    for (name, waiting) in [("/a", 1), ("/b", 2), ("/removed", 3)] {
        let file = client.open(name, &create()).unwrap();
        file.write_at(&[1; 10_000], 0).unwrap();
        file.flush().unwrap();
        assert_eq!(file.close_later().unwrap(), waiting);
    }
    client.unlink("/removed").unwrap();
    cluster.stop_server(0);
    cluster.start_server(0);
    // The first of them meets a connection that is gone.
    client.send_closes();
    for name in ["/a", "/b"] {
        assert_eq!(client.stat(name, true).unwrap().size, 10_000);
    }
    assert_eq!(kept.write_at(&[1; 10], 0).unwrap(), 10);
    assert_eq!(weft_test_cluster::gauge(&client, "open_files"), 1, "the one that was not closed");
    kept.close().unwrap();
    assert_eq!(weft_test_cluster::gauge(&client, "open_files"), 0);
}

#[test]
fn a_server_that_stays_away_is_named_in_bounded_time() {
    let mut cluster = Cluster::start(2, 4096);
    let options = ConnectOptions { retry_timeout_ms: 700, ..cluster.options(Transport::Tcp) };
    let client = Client::connect(&cluster.url(), options).unwrap();
    let file = client.open("/lost", &create()).unwrap();
    file.write_at(&[1; 10_000], 0).unwrap();
    cluster.stop_server(2);
    let begin = Instant::now();
    let error = file.write_at(&[2; 10_000], 0).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(text.contains("write /lost: server io1 (127.0.0.1:") && text.contains("within"), "{text}");
    assert!((700..5000).contains(&(begin.elapsed().as_millis() as u64)), "{:?}", begin.elapsed());
    let status = client.server_status(false);
    assert_eq!(status.iter().filter(|(_, reply)| reply.is_err()).count(), 1);
    cluster.start_server(2);
    file.write_at(&[3; 10_000], 0).unwrap();
    file.close().unwrap();
    assert_eq!(client.stat("/lost", true).unwrap().size, 10_000);
}

/// Without time to try again, and without a moment of busy polling in which its answer would come.
#[test]
fn a_server_that_answers_is_heard_by_a_client_that_tries_once() {
    let mut cluster = Cluster::start(1, 4096);
    for transport in [Transport::Tcp, Transport::Shm] {
        let once = ConnectOptions { retry_timeout_ms: 0, spin_us: 0, ..cluster.options(transport) };
        let client = Client::connect(&cluster.url(), once).unwrap();
        for (server, reply) in client.server_status(false) {
            assert!(reply.is_ok(), "{} by {transport:?}: {}", server.name, reply.unwrap_err());
        }
    }
    let once = ConnectOptions { retry_timeout_ms: 0, ..cluster.options(Transport::Tcp) };
    let client = Client::connect(&cluster.url(), once).unwrap();
    cluster.stop_server(1);
    let begin = Instant::now();
    assert_eq!(client.server_status(false).iter().filter(|(_, reply)| reply.is_err()).count(), 1);
    assert!(begin.elapsed().as_millis() < 900, "it was tried again: {:?}", begin.elapsed());
}

#[test]
fn parent_and_child_both_go_on_after_a_fork() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let cluster = Cluster::start(2, 4096);
        let client = cluster.client(transport);
        let file = client.open("/fork", &create()).unwrap();
        let data = pattern(1, 30_000);
        file.write_at(&data, 0).unwrap();
        // SAFETY: the child only uses the client and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut back = vec![0; 30_000];
            let read = file.read_at(&mut back, 0).is_ok() && back == data;
            let wrote = file.write_at(&[7; 1000], 100_000).is_ok();
            let made = client.mkdir("/by-child", 0o755).is_ok();
            let code = i32::from(!(read && wrote && made));
            // SAFETY: ends the process.
            unsafe { libc::_exit(code) };
        }
        for round in 0..20 {
            file.write_at(&data[..1000], 40_000 + round * 1000).unwrap();
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
        assert_eq!(file.stat().unwrap().size, 101_000);
        assert!(client.stat("/by-child", true).is_ok());
        let mut back = vec![0; 30_000];
        file.read_at(&mut back, 0).unwrap();
        assert!(back == data);
    }
}
