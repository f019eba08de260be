//! Figures of memory: servers that idle, servers with many clients, and client processes.

use std::time::Duration;
use weft_client::{Client, OpenOptions, Transport};
use weft_tests::{Load, Served, resident_bytes, wait_until};

const MIB: u64 = 1 << 20;

#[test]
fn servers_stay_small_idle_and_with_a_hundred_clients() {
    let cluster = Served::start(2);
    for name in cluster.names() {
        let bytes = resident_bytes(cluster.pid(&name));
        eprintln!("{name} idle: {} KiB", bytes >> 10);
        assert!(bytes < 64 * MIB, "{name}: {bytes} bytes");
    }
    let clients: Vec<Client> =
        (0..100).map(|at| cluster.client([Transport::Tcp, Transport::Shm][at % 2])).collect();
    let files: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(at, client)| {
            let options = OpenOptions::new().read(true).write(true).create(true);
            let file = client.open(&format!("/file-{at}"), &options).expect("open");
            file.write_at(&vec![1; 300_000], 0).expect("written");
            file
        })
        .collect();
    wait_until("all are known", Duration::from_secs(5), || {
        let servers = clients[0].server_status(false);
        servers.into_iter().all(|(_, status)| status.expect("every server answers").clients >= 100)
    });
    for name in cluster.names() {
        let bytes = resident_bytes(cluster.pid(&name));
        eprintln!("{name} with 100 idle clients: {} KiB", bytes >> 10);
        assert!(bytes < 128 * MIB, "{name}: {bytes} bytes");
    }
    drop(files);
}

#[test]
fn a_client_process_takes_little_over_its_buffers() {
    let cluster = Served::start(4);
    let buffer_bytes = 96 * MIB;
    for transport in ["tcp", "shm"] {
        let load = Load::start(
            &cluster,
            "memory",
            transport,
            &[&format!("/{transport}"), &buffer_bytes.to_string()],
        );
        let lines = load.finish();
        let bytes: u64 = lines[0].parse().expect("a number");
        let over = bytes.saturating_sub(buffer_bytes);
        eprintln!("client over {transport}: {} KiB over its buffer", over >> 10);
        assert!(over < 16 * MIB, "{transport}: {over} bytes over a buffer of {buffer_bytes}");
    }
}
