//! What counts as open at the metadata server: each open once, also when connections are cut and the server is restarted.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, IntoRawFd};
use std::time::Duration;
use weft_client::{Client, File, OpenOptions, Transport};
use weft_tests::{Served, gauge, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

fn open(client: &Client) -> File {
    client.open("/file", &OpenOptions::new().read(true).write(true).create(true).striped(true)).unwrap()
}

/// Ends all TCP connections of this process to `address`, as a network that fails does.
fn cut(address: &str) {
    let peer: SocketAddr = address.parse().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut cut = 0;
    for number in numbers.collect::<Vec<i32>>() {
        // SAFETY: only asked who is at the other end, or shut down; it is given back to whoever owns it.
        let stream = unsafe { TcpStream::from_raw_fd(number) };
        if stream.peer_addr().is_ok_and(|address| address == peer) {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
            cut += 1;
        }
        let _ = stream.into_raw_fd();
    }
    assert!(cut > 0, "there was a connection to {address}");
}

#[test]
fn a_connection_that_is_cut_and_made_again_does_not_count_an_open_twice() {
    let cluster = Served::start(1);
    let client = cluster.client(Transport::Tcp);
    let other = cluster.client(Transport::Tcp);
    let file = open(&client);
    file.write_at(b"what is in it", 0).unwrap();
    for _ in 0..3 {
        cut(cluster.address("meta0"));
        client.stat("/file", true).unwrap();
    }
    client.unlink("/file").unwrap();
    assert_eq!(file.read_at(&mut [0; 20], 0).unwrap(), 13);
    assert_eq!(gauge(&other, "open_files"), 1);
    file.close().unwrap();
    assert_eq!(gauge(&other, "open_files"), 0);
    wait_until("the file is removed", PATIENCE, || gauge(&other, "garbage_removed_files") == 1);
}

#[test]
fn the_end_of_one_open_of_before_a_restart_does_not_end_another() {
    let mut cluster = Served::start(1);
    let client = cluster.client(Transport::Tcp);
    let [kept, closed, later] = [open(&client), open(&client), open(&client)];
    kept.write_at(b"what is in it", 0).unwrap();
    kept.flush().unwrap();
    // Nothing tells the server of these until it is restarted.
    assert_eq!(closed.close_later().unwrap(), 1);
    cluster.kill("meta0");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    client.send_closes();
    later.close().unwrap();
    client.unlink("/file").unwrap();
    let other = cluster.client(Transport::Tcp);
    assert_eq!(gauge(&other, "open_files"), 1);
    let mut data = [0; 13];
    assert_eq!(kept.read_at(&mut data, 0).unwrap(), 13);
    assert_eq!(&data, b"what is in it");
    kept.close().unwrap();
    wait_until("the file is removed", PATIENCE, || gauge(&other, "garbage_removed_files") == 1);
}
