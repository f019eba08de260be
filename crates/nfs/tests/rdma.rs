//! A gateway over RDMA, and Weft's own client of NFS, on the double of verbs.

mod common;
mod serving;

use std::net::TcpListener;

use common::Cluster;
use weft_client::OpenOptions;
use weft_nfs::{Listeners, RdmaDesign, RdmaMemory as ServerMemory, RdmaOptions, Serving};
use weft_nfs_client as client;
use weft_nfs_client::{
    AuthSys, ConnectOptions, CreateHow, FileHandle, NfsClient, NfsUrl, RdmaMemory, SetAttr, Stable,
};
use weft_onc_server::RdmaListener;
use weft_test_random::{Random, seed};
use weft_verbs_double::{Adapter, Pretend, PretendOptions};

const NAMES: usize = 400;

/// A gateway over RDMA and TCP, and the host of its clients.
fn serve(cluster: &Cluster, rdma_options: RdmaOptions) -> (Serving, Pretend) {
    let host = Pretend::new(PretendOptions::default());
    let clients = host.another_host(vec![Adapter::new("clients", [127, 0, 0, 2].into())]);
    let rdma = vec![RdmaListener::bind(&host, "127.0.0.1:0".parse().unwrap()).unwrap()];
    let tcp = vec![TcpListener::bind("127.0.0.1:0").unwrap()];
    let options = serving::options(cluster.client(), &cluster.key, "/");
    (Serving::start(options, Listeners { tcp, rdma, rdma_options }).unwrap(), clients)
}

fn connect(serving: &Serving, clients: &Pretend, rdma_memory: RdmaMemory) -> NfsClient {
    connect_as(client::RdmaDesign::ReadWrite, serving, clients, rdma_memory)
}

fn connect_as(
    rdma_design: client::RdmaDesign,
    serving: &Serving,
    clients: &Pretend,
    rdma_memory: RdmaMemory,
) -> NfsClient {
    let (rdma, tcp) = (serving.rdma_addresses()[0], serving.addresses()[0].port());
    let url = NfsUrl::parse(&format!("nfs://{rdma}/?transport=rdma&mountport={tcp}")).unwrap();
    let credential = Some(AuthSys { machine: b"client".to_vec(), ..AuthSys::default() });
    let options = ConnectOptions { credential, ..ConnectOptions::default() };
    NfsClient::connect_rdma(&NfsUrl { rdma_design, rdma_memory, ..url }, &options, clients).unwrap()
}

fn create(client: &NfsClient, name: &[u8]) -> FileHandle {
    let how = CreateHow::Unchecked(SetAttr { mode: Some(0o644), ..SetAttr::default() });
    client.create(client.root(), name, &how).unwrap().handle.unwrap()
}

#[test]
fn the_client_and_the_gateway_understand_each_other_over_rdma() {
    let cluster = Cluster::start(2, 16 << 10);
    let (serving, clients) = serve(&cluster, RdmaOptions::default());
    let native = cluster.client();
    for at in 0..NAMES {
        native.mkdir(format!("/directory-{at}").as_str(), 0o755).unwrap();
    }
    let data = Random(seed()).bytes(3_000_001);
    for (memory, name) in RdmaMemory::ALL {
        let client = connect(&serving, &clients, memory);
        let file = create(&client, name.as_bytes());
        client.write_all(&file, 0, &data, 8).unwrap();
        let mut seen = vec![0; data.len() + 1];
        assert_eq!(client.read_all(&file, 0, &mut seen, 8).unwrap(), data.len(), "{name}");
        assert!(seen[..data.len()] == data[..], "{name}");
        let opened = native.open(&*format!("/{name}"), &OpenOptions::new().read(true)).unwrap();
        assert_eq!(opened.read_at(&mut seen, 0).unwrap(), data.len(), "{name}");
        assert!(seen[..data.len()] == data[..], "{name}");
        let names = client.list(client.root()).unwrap();
        assert!(names.len() > NAMES, "{name}: {}", names.len());
        // A long name and a long target: each does not fit a message of the usual size.
        let target = [b't'; 4000];
        let link = format!("link-{name}");
        client.symlink(client.root(), link.as_bytes(), &target, &SetAttr::default()).unwrap();
        let found = client.lookup(client.root(), link.as_bytes()).unwrap();
        assert_eq!(client.readlink(&found.handle).unwrap(), target);
        let totals = client.rdma_status().unwrap().totals;
        assert!(totals.long_calls == 1 && totals.long_replies > 1, "{totals:?}");
        assert_eq!(totals.ended_by_server > 0, memory == RdmaMemory::Windows, "{totals:?}");
        assert_eq!(totals.connections, 1, "{name}");
        client.remove(client.root(), link.as_bytes()).unwrap();
    }
    assert!(clients.complaints().is_empty(), "{:?}", clients.complaints());
    serving.stop();
}

#[test]
fn many_small_calls_share_what_the_gateway_grants() {
    let cluster = Cluster::start(1, 4096);
    let (serving, clients) = serve(&cluster, RdmaOptions::default());
    let client = connect(&serving, &clients, RdmaMemory::Cached);
    let file = create(&client, b"f");
    client.write(&file, 0, &[7; 4096], Stable::File).unwrap();
    let reads: Vec<_> = (0..500).map(|_| client.start_read(&file, 0, vec![0; 100])).collect();
    for read in reads {
        let (read, buffer) = read.wait().unwrap();
        assert_eq!((read.bytes, buffer), (100, vec![7; 100]));
    }
    assert_eq!(client.rdma_status().unwrap().totals.connections, 1);
    serving.stop();
}

/// Both designs, and all ways of both sides to register memory, move the same bytes.
#[test]
fn both_designs_and_all_kinds_of_memory_move_the_same_bytes() {
    let cluster = Cluster::start(2, 16 << 10);
    let native = cluster.client();
    for at in 0..NAMES {
        native.mkdir(format!("/directory-{at}").as_str(), 0o755).unwrap();
    }
    let data = Random(seed()).bytes(3_000_001);
    for memory in [ServerMemory::Pool, ServerMemory::Each, ServerMemory::Cached, ServerMemory::Windows] {
        for design in [RdmaDesign::ReadWrite, RdmaDesign::ReadRead] {
            let (serving, clients) = serve(&cluster, RdmaOptions { design, memory });
            let mut exposed = 0;
            for (of_client, name) in RdmaMemory::ALL {
                for (client_design, reads) in
                    [(client::RdmaDesign::ReadWrite, false), (client::RdmaDesign::ReadRead, true)]
                {
                    if reads && design == RdmaDesign::ReadWrite {
                        continue;
                    }
                    let client = connect_as(client_design, &serving, &clients, of_client);
                    let file = create(&client, b"file");
                    client.write_all(&file, 0, &data, 8).unwrap();
                    let mut seen = vec![0; data.len() + 1];
                    assert_eq!(client.read_all(&file, 0, &mut seen, 8).unwrap(), data.len(), "{name}");
                    assert!(
                        seen[..data.len()] == data[..],
                        "{memory:?}, {design:?}, {name}, {client_design:?}"
                    );
                    assert!(client.list(client.root()).unwrap().len() > NAMES);
                    let totals = client.rdma_status().unwrap().totals;
                    assert_eq!((totals.connections, totals.replies_read > 0), (1, reads), "{totals:?}");
                    assert_eq!(totals.write_chunk_bytes > 0, !reads);
                    let now = serving.counts().rdma_exposed_replies;
                    assert_eq!(now - exposed, totals.replies_read, "only what is asked for");
                    exposed = now;
                }
            }
            assert!(clients.complaints().is_empty(), "{:?}", clients.complaints());
            serving.stop();
        }
    }
}
