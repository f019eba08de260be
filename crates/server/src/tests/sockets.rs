//! Whole servers, with sockets, disks and the remover of data files.

use super::support::*;
use crate::config::{ClusterConfig, Generate, SyncMode};
use crate::server::Server;
use crate::stop::StopFlag;
use std::net::TcpListener;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;
use weft_layout::Regions;
use weft_transport::{Link, ShmOptions, TcpLink, TcpOptions, connect_shm, connect_tcp};
use weft_wire::messages::*;

const TIMEOUT: Duration = Duration::from_secs(5);

struct Running {
    stop: StopFlag,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(config: &ClusterConfig, name: &str) -> Running {
        let server = Server::start(config, name, &cluster_key()).unwrap();
        let stop = StopFlag::new().unwrap();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || server.run(&stop).unwrap()
        });
        Running { stop, thread }
    }

    fn end(self) {
        self.stop.stop();
        self.thread.join().unwrap();
    }
}

/// A cluster file with free ports.
fn on_disk(directory: &Path) -> ClusterConfig {
    let wanted = Generate {
        path: directory.join("cluster.toml"),
        host: "127.0.0.1".into(),
        port: 7400,
        io_servers: 2,
        sync: SyncMode::Nosync,
        strip_bytes: 4096,
    };
    let mut config = ClusterConfig::generate(&wanted).unwrap();
    let held: Vec<TcpListener> =
        config.servers.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    for (server, listener) in config.servers.iter_mut().zip(&held) {
        server.addresses = vec![listener.local_addr().unwrap().to_string()];
        server.threads = server.threads.map(|_| if server.name == "io0" { 2 } else { 1 });
    }
    config.cluster.scrub_interval_s = 1;
    config.cluster.orphan_age_s = 0;
    config
}

fn tcp(config: &ClusterConfig, name: &str) -> Client<TcpLink> {
    let address = config.server(name).unwrap().addresses[0].parse().unwrap();
    Client::proven(connect_tcp(address, &TcpOptions::default(), TIMEOUT).unwrap(), [7; 16])
}

fn gauge(client: &mut Client<TcpLink>, name: &str) -> u64 {
    let status = client.call(&StatusRequest { with_clients: false }).unwrap();
    status.gauges.iter().find(|gauge| gauge.name == name).map_or(0, |gauge| gauge.value)
}

#[test]
fn bytes_go_over_tcp_and_shared_memory_and_are_removed_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let meta0 = Running::start(&config, "meta0");
    let io0 = Running::start(&config, "io0");
    let io1 = Running::start(&config, "io1");
    let mut meta = tcp(&config, "meta0");
    let file = meta.call(&create("f", rights::READ | rights::WRITE)).unwrap();
    let capability = file.capability.unwrap();
    let layout = capability.layout;
    let regions = Regions::contiguous(10, 3_000_000);
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    for slot in 0..2 {
        let name = format!("io{}", layout.server_id(slot));
        tcp(&config, &name).write(&capability, slot, &regions, &data).unwrap();
    }
    let (mut by_tcp, mut by_shm) = (vec![0; data.len()], vec![0; data.len()]);
    for slot in 0..2 {
        let name = format!("io{}", layout.server_id(slot));
        let read = tcp(&config, &name).read(&capability, slot, &regions, &mut by_tcp).unwrap();
        assert_eq!(read.filled_bytes, weft_layout::share_bytes(&layout, slot, &regions));
        let socket = config.socket_of(config.server(&name).unwrap());
        let mut client =
            Client::proven(connect_shm(&socket, ShmOptions::default(), TIMEOUT).unwrap(), [7; 16]);
        client.link.set_up(TIMEOUT).unwrap();
        client.read(&capability, slot, &regions, &mut by_shm).unwrap();
        let status = client.call(&StatusRequest { with_clients: true }).unwrap();
        assert!(status.client_list.iter().any(|client| client.transport.starts_with("shm")), "{status:?}");
        assert!(client.link.kind().to_string().starts_with("shm"));
    }
    assert!(by_tcp == data && by_shm == data);

    // With one of its servers away, the removal waits for it.
    io1.end();
    let report = Some(WriteReport { end_bytes: 3_000_010, touch: true });
    let access = rights::READ | rights::WRITE;
    meta.call(&CloseRequest { ino: file.attr.ino, access, report }).unwrap();
    meta.call(&unlink("f")).unwrap();
    let mut io = tcp(&config, "io0");
    eventually("removal from io0", || {
        io.call(&SizeRequest { capability: capability.clone() }).unwrap().local_bytes == 0
    });
    assert_eq!(gauge(&mut meta, "garbage_removed_files"), 0);
    let io1 = Running::start(&config, "io1");
    eventually("removal from io1", || gauge(&mut meta, "garbage_removed_files") == 1);
    assert_eq!(
        tcp(&config, "io1").call(&SizeRequest { capability: capability.clone() }).unwrap().local_bytes,
        0
    );
    for server in [meta0, io0, io1] {
        server.end();
    }
}

#[test]
fn data_files_without_an_inode_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let running: Vec<Running> =
        ["meta0", "io0", "io1"].iter().map(|name| Running::start(&config, name)).collect();
    let mut meta = tcp(&config, "meta0");
    let kept = meta.call(&create("kept", rights::WRITE)).unwrap().capability.unwrap();
    // A number that was given out, but whose inode is gone without a record.
    let lost = meta.call(&create("lost", rights::WRITE)).unwrap();
    meta.call(&unlink("lost")).unwrap();
    let access = rights::WRITE;
    let lost_capability = lost.capability.unwrap();
    let name = |capability: &weft_wire::security::Capability| format!("io{}", capability.layout.server_id(0));
    for capability in [kept.clone(), lost_capability.clone()] {
        let regions = Regions::contiguous(0, 100);
        tcp(&config, &name(&capability)).write(&capability, 0, &regions, &[1; 100]).unwrap();
    }
    meta.call(&CloseRequest { ino: lost.attr.ino, access, report: None }).unwrap();
    let mut io = tcp(&config, &name(&lost_capability));
    let gone = SizeRequest { capability: lost_capability };
    eventually("removal of the orphan", || io.call(&gone).unwrap().local_bytes == 0);
    let size = tcp(&config, &name(&kept)).call(&SizeRequest { capability: kept }).unwrap();
    assert_eq!(size.local_bytes, 100);
    running.into_iter().for_each(Running::end);
}

#[test]
fn a_server_finds_its_data_again_and_refuses_anothers() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let meta0 = Running::start(&config, "meta0");
    tcp(&config, "meta0").call(&create("f", 0)).unwrap();
    meta0.end();
    let meta0 = Running::start(&config, "meta0");
    tcp(&config, "meta0").call(&lookup("f")).unwrap();
    meta0.end();
    let io0 = Running::start(&config, "io0");
    io0.end();
    let mut other = config.clone();
    other.cluster.id = crate::config::ClusterId([9; 16]);
    for name in ["meta0", "io0"] {
        let refused = Server::start(&other, name, &cluster_key()).err().unwrap().to_string();
        assert!(refused.contains(name) && refused.contains("cluster"), "{refused}");
    }
}
