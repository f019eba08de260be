//! Greeting, proof, credits, status.

use super::support::*;
use crate::config::SyncMode;
use crate::io_service::IoService;
use crate::node::Node;
use crate::session;
use std::io::{Read, Write};
use std::sync::Arc;
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::FaultPlan;
use weft_transport::{Bulk, Link, TcpConn, TcpOptions};
use weft_wire::limits::CREDITS_PER_CONNECTION;
use weft_wire::messages::*;
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{HEADER_BYTES, Header, Op, Request, Status, Wire};

fn whoever_knows_the_key_is_served<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let mut client = Client::new(W::connect(&cluster.meta));
    let greeting = hello(peer_role::CLIENT, [1; 16]);
    let greeted = client.call(&greeting).unwrap();
    let key = client_key().secret;
    assert!(same_proof(&greeted.proof, &server_proof(&key, &greeting.to_bytes(), &greeted.server_nonce)));
    let proof = client_proof(&key, &greeting.to_bytes(), &greeted.server_nonce);
    let proven = client.call(&ProveRequest { proof }).unwrap();
    assert_eq!((proven.server_name.as_str(), proven.credits), ("meta0", CREDITS_PER_CONNECTION));
    assert_eq!(client.call(&PingRequest { echo: vec![1, 2] }).unwrap().echo, [1, 2]);
    let map = client.call(&ClusterMapRequest {}).unwrap();
    assert_eq!(map.io_servers().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["io0", "io1"]);
    assert_eq!(client.call(&greeting).unwrap_err().status, Status::Invalid);
}

fn nobody_else_is<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let connect = || Client::new(W::connect(&cluster.io[0]));
    let greeting = hello(peer_role::CLIENT, [1; 16]);
    let refused = |result: Result<ProveReply, Refused>| result.unwrap_err().status;
    assert_eq!(refused(connect().prove(&Key([9; 32]), &greeting)), Status::Unauthenticated);
    let as_server = hello(peer_role::SERVER, [1; 16]);
    assert_eq!(refused(connect().prove(&client_key().secret, &as_server)), Status::Unauthenticated);
    let early = connect().call(&PingRequest { echo: Vec::new() }).unwrap_err();
    assert_eq!(early.status, Status::Unauthenticated);
    let future = HelloRequest { version_min: 200, version_max: 201, ..greeting };
    let other = connect().call(&future).unwrap_err();
    assert_eq!(other.status, Status::Version);
    assert!(other.text.contains("200 to 201"), "{}", other.text);
}

fn whoever_says_nothing_is_sent_away<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut silent = W::connect(&cluster.io[0]);
    eventually("the end of the connection", || silent.progress(&mut Vec::new()).is_err());
    let mut client = cluster.io().remove(0);
    let status = client.call(&StatusRequest { with_clients: false }).unwrap();
    assert!(status.gauges.iter().any(|gauge| gauge.name == "connections_refused" && gauge.value == 1));
}

fn operations_of_servers_are_not_for_clients<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.io().remove(0);
    let removal = RemoveObjectsRequest { inos: vec![5] };
    assert_eq!(client.call(&removal).unwrap_err().status, Status::NotPermitted);
    let mut server = Client::new(W::connect(&cluster.io[0]));
    server.prove(&cluster_key().server_key(), &hello(peer_role::SERVER, [2; 16])).unwrap();
    server.call(&removal).unwrap();
}

fn what_is_for_another_server_is_refused<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let refused = cluster.io().remove(0).call(&lookup("a")).unwrap_err();
    assert_eq!(refused.status, Status::WrongServer);
    assert!(refused.text.contains("io0"), "{}", refused.text);
    let mut meta = cluster.meta();
    let layout = cluster.config.default_layout();
    let capability = sign(5, rights::READ, layout);
    assert_eq!(meta.call(&SizeRequest { capability }).unwrap_err().status, Status::WrongServer);
}

fn a_malformed_body_is_refused_and_the_connection_goes_on<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let header = Header::request(Op::Lookup, client.fresh_id());
    // SAFETY: no memory is given.
    let done = unsafe { client.exchange(header, &[1, 2, 3], Bulk::None) }.unwrap();
    assert_eq!(done.header.status, Status::Malformed);
    client.call(&lookup("")).unwrap();
}

fn status_tells_what_was_done_for_whom<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    client.call(&lookup("")).unwrap();
    client.call(&lookup("none")).unwrap_err();
    let status = client.call(&StatusRequest { with_clients: true }).unwrap();
    let lookups = status.operations.iter().find(|count| count.op == Op::Lookup as u16).unwrap();
    assert_eq!((lookups.count, lookups.errors), (2, 1));
    assert_eq!((status.name.as_str(), status.role.as_str(), status.clients), ("meta0", "meta", 1));
    let seen = &status.client_list[0];
    assert_eq!((seen.program.as_str(), seen.requests), ("test", 2));
    assert_eq!(status.client_uses.0.len(), status.client_list.len());
    assert!(seen.transport.starts_with(W::NAME), "{}", seen.transport);
    assert!(status.memory_bytes > 0 && status.active_requests == 1);
    assert!(status.gauges.iter().any(|gauge| gauge.name == "inodes" && gauge.value == 1));
}

/// A client that sends what it likes over a socket.
struct Raw {
    socket: std::net::TcpStream,
}

impl Raw {
    fn send<R: Request>(&mut self, request_id: u64, request: &R) {
        let body = request.to_bytes();
        let header = Header { body_bytes: body.len() as u32, ..Header::request(R::OP, request_id) };
        self.socket.write_all(&[&header.encode()[..], &body].concat()).unwrap();
    }

    fn receive(&mut self) -> std::io::Result<(Header, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.socket.read_exact(&mut head)?;
        let header = Header::decode(&head).unwrap();
        let mut body = vec![0; header.body_bytes as usize];
        self.socket.read_exact(&mut body)?;
        Ok((header, body))
    }
}

#[test]
fn a_client_that_overruns_its_credits_is_cut_off() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let config = config(1, SyncMode::Nosync);
        let shared = Arc::new(shared(&config, "io0"));
        let slow = FaultPlan { delay_per_mille: 1000, delay_ms_max: 2000, ..FaultPlan::default() };
        let (socket, _) = listener.accept().unwrap();
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let service = IoService::new(Node::new(shared.clone()), io_part(0, SyncMode::Nosync, slow));
            let conn = TcpConn::from_fd(socket.into(), &TcpOptions::default()).unwrap();
            session::serve(service, conn, shared.crowd.accept(None).unwrap()).await;
        });
        shared.counters.cut_connections.load(std::sync::atomic::Ordering::Relaxed)
    });
    let mut raw = Raw { socket: std::net::TcpStream::connect(address).unwrap() };
    let greeting = hello(peer_role::CLIENT, [1; 16]);
    raw.send(1, &greeting);
    let greeted = HelloReply::from_bytes(&raw.receive().unwrap().1).unwrap();
    raw.send(
        2,
        &ProveRequest {
            proof: client_proof(&client_key().secret, &greeting.to_bytes(), &greeted.server_nonce),
        },
    );
    assert_eq!(raw.receive().unwrap().0.status, Status::Ok);
    let layout = config(1, SyncMode::Nosync).default_layout();
    let capability = sign(5, rights::WRITE, layout);
    raw.send(3, &TruncateRequest { capability: capability.clone(), slot: 0, file_bytes: 1 });
    assert_eq!(raw.receive().unwrap().0.status, Status::Ok);
    for request_id in 0..=u64::from(CREDITS_PER_CONNECTION) {
        raw.send(10 + request_id, &SyncRequest { capability: capability.clone() });
    }
    let mut replies = 0;
    while raw.receive().is_ok() {
        replies += 1;
    }
    assert!(replies <= CREDITS_PER_CONNECTION);
    assert_eq!(server.join().unwrap(), 1);
}

over_all_ways! {
    whoever_knows_the_key_is_served nobody_else_is whoever_says_nothing_is_sent_away operations_of_servers_are_not_for_clients what_is_for_another_server_is_refused a_malformed_body_is_refused_and_the_connection_goes_on status_tells_what_was_done_for_whom
}
