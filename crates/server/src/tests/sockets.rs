//! Whole servers, with sockets, disks and the remover of data files.

use super::support::*;
use crate::config::{ClusterConfig, Generate, RdmaMode, SyncMode};
use crate::error::ServerError;
use crate::server::Server;
use crate::stop::StopFlag;
use crate::storage::format_storage;
use std::net::TcpListener;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;
use weft_layout::Regions;
use weft_transport::registration::RegistrationOptions;
use weft_transport::{
    Link, ShmOptions, TcpLink, TcpOptions, VerbsClient, VerbsLink, VerbsOptions, connect_shm, connect_tcp,
};
use weft_verbs::VerbsError;
use weft_verbs_double::{Adapter, Pretend, PretendOptions};
use weft_wire::messages::*;

pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Running {
    stop: StopFlag,
    thread: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(config: &ClusterConfig, name: &str) -> Running {
        Running::begin(Server::start(config, name, &cluster_key()).unwrap())
    }

    fn start_over(config: &ClusterConfig, name: &str, fabric: &Pretend) -> Running {
        Running::begin(Server::start_over(config, name, &cluster_key(), || Ok(fabric.clone())).unwrap())
    }

    fn begin(server: Server) -> Running {
        let stop = StopFlag::new().unwrap();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || server.run(&stop).unwrap()
        });
        Running { stop, thread }
    }

    pub(super) fn end(self) {
        self.stop.stop();
        self.thread.join().unwrap();
    }
}

/// A cluster file with free ports.
pub(super) fn on_disk(directory: &Path) -> ClusterConfig {
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
    config.servers.iter().for_each(|server| format_storage(&config, &server.name).unwrap());
    config
}

pub(super) fn tcp(config: &ClusterConfig, name: &str) -> Client<TcpLink> {
    let address = config.server(name).unwrap().addresses[0].parse().unwrap();
    Client::proven(connect_tcp(address, &TcpOptions::default(), TIMEOUT).unwrap(), [7; 16])
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
        let name = format!("io{}", layout.chain(slot));
        tcp(&config, &name).write(&capability, slot, &regions, &data).unwrap();
    }
    let (mut by_tcp, mut by_shm) = (vec![0; data.len()], vec![0; data.len()]);
    for slot in 0..2 {
        let name = format!("io{}", layout.chain(slot));
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
    meta.close(file.attr.ino, access, report);
    meta.call(&unlink("f")).unwrap();
    let mut io = tcp(&config, "io0");
    eventually("removal from io0", || {
        io.call(&SizeRequest { capability: capability.clone() }).unwrap().local_bytes == 0
    });
    assert_eq!(meta.gauge("garbage_removed_files").unwrap_or(0), 0);
    let io1 = Running::start(&config, "io1");
    eventually("removal from io1", || meta.gauge("garbage_removed_files") == Some(1));
    assert_eq!(
        tcp(&config, "io1").call(&SizeRequest { capability: capability.clone() }).unwrap().local_bytes,
        0
    );
    for server in [meta0, io0, io1] {
        server.end();
    }
}

/// RDMA status of a server, asked over TCP.
fn rdma_status(config: &ClusterConfig, name: &str) -> RdmaStatus {
    tcp(config, name).call(&StatusRequest { with_clients: false }).unwrap().rdma
}

fn count(status: &RdmaStatus, name: &str) -> u64 {
    let counts = status.adapters.iter().flat_map(|adapter| &adapter.counts);
    counts.filter(|count| count.name == name).map(|count| count.value).sum()
}

fn rdma_addresses(map: &ClusterMapReply, id: u16) -> Vec<String> {
    map.io_server(id).unwrap().addresses(endpoint::RDMA).map(str::to_owned).collect()
}

#[test]
fn servers_are_reached_with_rdma_and_tell_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let host = Pretend::new(PretendOptions::default());
    let running = ["meta0", "io0", "io1"].map(|name| Running::start_over(&config, name, &host));
    let client = VerbsClient::new(
        host.another_host(vec![Adapter::new("pretend1", "127.0.0.2".parse().unwrap())]),
        RegistrationOptions::default(),
    );
    let over_rdma = |info: &ServerInfo| {
        // Strips are many pieces of the clients' memory; here servers are to move them.
        let key = Some(cluster_key().knock_key());
        let options = VerbsOptions { key, lend_pieces_min: 0, ..VerbsOptions::default() };
        let address = info.addresses(endpoint::RDMA).next().unwrap().parse().unwrap();
        Client::proven(client.connect(address, &options, TIMEOUT).unwrap(), [7; 16])
    };
    let map = tcp(&config, "meta0").call(&ClusterMapRequest {}).unwrap();
    let mut meta: Client<VerbsLink<Pretend>> = over_rdma(map.meta_servers().next().unwrap());
    let capability = meta.call(&create("f", rights::READ | rights::WRITE)).unwrap().capability.unwrap();
    let regions = Regions::contiguous(10, 5_000_000);
    let data: Vec<u8> = (0..5_000_000u32).map(|at| (at / 7) as u8).collect();
    let mut into = vec![0; data.len()];
    let mut links: Vec<_> = (0..4).map(|at| over_rdma(map.io_server(at as u16 % 2).unwrap())).collect();
    for slot in 0..2u16 {
        let server = usize::from(capability.layout.chain(slot).single_server());
        links[server].write(&capability, slot, &regions, &data).unwrap();
        links[server + 2].read(&capability, slot, &regions, &mut into).unwrap();
    }
    assert!(into == data);
    eventually("the threads' news", || {
        let status = rdma_status(&config, "io0");
        count(&status, "connections") == 2 && count(&status, "reads") > 0 && count(&status, "writes") > 0
    });
    let status = rdma_status(&config, "io0");
    let [adapter] = status.adapters.as_slice() else { panic!("{status:?}") };
    assert_eq!((adapter.name.as_str(), adapter.link_layer.as_str()), ("pretend0", "pretended"));
    // Of one thread at least: the metadata server's own connections have turns as well.
    assert!(count(&status, "zone_bytes") >= 4 * (2 << 20), "{status:?}");
    assert_eq!(count(&status, "receiver_not_ready"), 0);
    assert_eq!((status.addresses, status.reason.as_str()), (rdma_addresses(&map, 0), ""));
    assert_eq!(tcp(&config, "io1").gauge("connections_rdma"), Some(2));
    running.into_iter().for_each(Running::end);
}

#[test]
fn what_is_missing_for_rdma_is_told_or_prevents_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = on_disk(directory.path());
    let host = Pretend::new(PretendOptions::default());
    let start = |config: &ClusterConfig, libraries: bool| {
        let load = || match libraries {
            true => Ok(host.clone()),
            false => Err(VerbsError::Unavailable("librdmacm.so.1 cannot be loaded".into())),
        };
        Server::start_over(config, "io0", &cluster_key(), load)
    };
    let told = |config: &ClusterConfig, libraries: bool| {
        let running = Running::begin(start(config, libraries).unwrap());
        let status = rdma_status(config, "io0");
        running.end();
        (status.addresses.len(), status.reason)
    };
    let refused = |config: &ClusterConfig, libraries: bool| match start(config, libraries) {
        Err(error @ ServerError::Rdma { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it started"),
    };
    assert_eq!(told(&config, true), (1, String::new()));
    let (listens, reason) = told(&config, false);
    assert!(listens == 0 && reason.contains("librdmacm.so.1 cannot be loaded"), "{reason}");

    // One rail is there, the other is not.
    config.servers[1].rdma_addresses = vec!["127.0.0.1:7401".into(), "127.0.0.9:7401".into()];
    let (listens, reason) = told(&config, true);
    assert!(listens == 1 && reason.contains("127.0.0.9:7401"), "{reason}");
    config.servers[1].rdma = RdmaMode::Require;
    assert!(refused(&config, true).contains("127.0.0.9:7401"));
    assert!(refused(&config, false).contains("rdma is \"require\""));
    config.servers[1].rdma_addresses.pop();
    assert_eq!(told(&config, true), (1, String::new()));

    config.servers[1].rdma_addresses.clear();
    config.servers[1].rdma = RdmaMode::Off;
    let (listens, reason) = told(&config, true);
    assert!(listens == 0 && reason.contains("off"), "{reason}");
    let running = Running::start(&config, "meta0");
    let map = tcp(&config, "meta0").call(&ClusterMapRequest {}).unwrap();
    assert!(rdma_addresses(&map, 0).is_empty() && !rdma_addresses(&map, 1).is_empty());
    running.end();
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
    let name = |capability: &weft_wire::security::Capability| format!("io{}", capability.layout.chain(0));
    for capability in [kept.clone(), lost_capability.clone()] {
        let regions = Regions::contiguous(0, 100);
        tcp(&config, &name(&capability)).write(&capability, 0, &regions, &[1; 100]).unwrap();
    }
    meta.close(lost.attr.ino, access, None);
    let mut io = tcp(&config, &name(&lost_capability));
    let gone = SizeRequest { capability: lost_capability.clone() };
    eventually("removal of what was unlinked", || io.call(&gone).unwrap().local_bytes == 0);
    // Now nothing is known of the number: what is written under it can only be found by a scan.
    let before = meta.gauge("orphans_removed_files").unwrap();
    io.write(&lost_capability, 0, &Regions::contiguous(0, 100), &[1; 100]).unwrap();
    eventually("removal of the orphan", || io.call(&gone).unwrap().local_bytes == 0);
    eventually("its count", || meta.gauge("orphans_removed_files").unwrap() > before);
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
