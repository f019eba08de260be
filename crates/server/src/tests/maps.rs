//! The map of whole servers: it is kept, told, and old ones are refused.

use super::sockets::{Running, TIMEOUT, on_disk, tcp};
use super::support::*;
use crate::config::{ClusterConfig, ServerConfig};
use crate::server::Server;
use crate::stop::StopFlag;
use crate::storage::format_storage;
use std::net::TcpListener;
use weft_transport::{TcpLink, TcpOptions, connect_tcp};
use weft_wire::messages::*;
use weft_wire::{Header, Request, Status};

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn map_of(config: &ClusterConfig, name: &str) -> ClusterMapReply {
    tcp(config, name).call(&ClusterMapRequest {}).unwrap()
}

/// A connection of a server of the cluster, as an operator's command has it.
fn server_link(config: &ClusterConfig, name: &str) -> Client<TcpLink> {
    let address = config.server(name).unwrap().addresses[0].parse().unwrap();
    let mut link = Client::new(connect_tcp(address, &TcpOptions::default(), TIMEOUT).unwrap());
    link.prove(&cluster_key().server_key(), &hello(peer_role::SERVER, [2; 16])).unwrap();
    link
}

fn endpoints(address: &str) -> Vec<Endpoint> {
    vec![Endpoint::new(endpoint::TCP, address)]
}

fn with_io2(config: &ClusterConfig) -> ClusterConfig {
    let io2 = ServerConfig {
        name: "io2".into(),
        addresses: vec![free_address()],
        directory: "io2".into(),
        ..config.servers[2].clone()
    };
    let mut three = config.clone();
    three.servers.push(io2);
    three
}

fn start_all(config: &ClusterConfig) -> Vec<Running> {
    let running = config.servers.iter().map(|server| Running::start(config, &server.name)).collect();
    let came = |server: &ServerInfo| server.storage != [0; 16];
    eventually("all have come", || map_of(config, "meta0").servers.iter().all(came));
    running
}

#[test]
fn who_goes_by_an_older_map_is_refused_and_may_repeat_the_same_request() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let running = start_all(&config);
    let map = map_of(&config, "meta0");
    assert!(map.version >= 3, "each server that came made a new one: {map:?}");
    let mut meta = tcp(&config, "meta0");
    let request = create("f", rights::READ | rights::WRITE);
    let id = meta.fresh_id();
    let by = |map_version| Header { map_version, ..Header::request(CreateRequest::OP, id) };
    let refused = meta.call_as(by(map.version - 1), &request).unwrap_err();
    assert_eq!(refused.status, Status::StaleMap);
    assert!(refused.text.contains(&format!("version {}", map.version)), "{}", refused.text);
    assert_eq!(meta.call(&lookup("f")).unwrap_err().status, Status::NotFound, "nothing was done");
    let made = meta.call_as(by(map.version), &request).unwrap();
    assert!(made.created);
    assert_eq!(meta.call_as(by(map.version), &request).unwrap(), made, "it is done once");
    let refused = meta.call_as(by(map.version - 1), &request).unwrap_err();
    assert_eq!(refused.status, Status::StaleMap, "also where it was done before");

    // What only gives back is done with any map, and so is what is asked of any server.
    let old = |op| Header { map_version: 1, ..Header::request(op, 1000) };
    let closed = ClosedFile {
        ino: made.attr.ino,
        access: rights::READ | rights::WRITE,
        report: None,
        id: OpenId { run: meta.run, number: 0 },
    };
    meta.call_as(Header { slot: 1, ..old(CloseRequest::OP) }, &CloseRequest { files: vec![closed] }).unwrap();
    meta.call_as(old(PingRequest::OP), &PingRequest { echo: vec![1] }).unwrap();

    // An I/O server refuses bytes of it, and says which version it has in every reply.
    let capability = made.capability.unwrap();
    let first = format!("io{}", capability.layout.chain(0));
    eventually("the I/O server has the map", || map_of(&config, &first).version == map.version);
    let mut io = tcp(&config, &first);
    let size = SizeRequest { capability };
    assert_eq!(io.call_as(old(SizeRequest::OP), &size).unwrap_err().status, Status::StaleMap);
    // SAFETY: no memory is given.
    let done = unsafe {
        use weft_wire::Wire;
        io.exchange(Header::request(SizeRequest::OP, 2000), &size.to_bytes(), weft_transport::Bulk::None)
    };
    assert_eq!(done.unwrap().header.map_version, map.version);
    running.into_iter().for_each(Running::end);
}

#[test]
fn an_added_server_is_told_to_all_and_has_new_files_when_it_has_come() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let mut running = start_all(&config);
    let before = map_of(&config, "meta0").version;
    let three = with_io2(&config);
    let address = three.servers[3].addresses[0].clone();
    let request = AddServerRequest { name: "io2".into(), endpoints: endpoints(&address) };
    let refused = tcp(&config, "meta0").call(&request).unwrap_err();
    assert_eq!(refused.status, Status::NotPermitted, "clients may not");
    let mut operator = server_link(&config, "meta0");
    let added = operator.call(&request).unwrap();
    assert_eq!(added, MapChangedReply { id: 2, map_version: before + 1 });
    assert_eq!(operator.call(&request).unwrap(), added, "twice is once");
    let taken = AddServerRequest { name: "io3".into(), endpoints: endpoints(&address) };
    assert_eq!(operator.call(&taken).unwrap_err().status, Status::Exists);

    let map = map_of(&config, "meta0");
    assert_eq!(map.io_server(2).unwrap().state, server_state::JOINING);
    let mut meta = tcp(&config, "meta0");
    let ring = |meta: &mut Client<TcpLink>, name| {
        meta.call(&create(name, rights::WRITE)).unwrap().attr.layout.unwrap().ring_servers()
    };
    assert_eq!(ring(&mut meta, "f"), 2, "it may never come");
    eventually("I/O servers hear of it", || map_of(&config, "io0").version == map.version);

    format_storage(&three, "io2").unwrap();
    running.push(Running::start(&three, "io2"));
    eventually("it has come", || {
        map_of(&config, "meta0").io_server(2).unwrap().state == server_state::ACTIVE
    });
    assert_eq!(ring(&mut meta, "g"), 3);
    drop((meta, operator));

    // The metadata server's file does not know the server, which is no reason to lose it.
    let newest = map_of(&config, "meta0");
    running.remove(0).end();
    running.push(Running::start(&config, "meta0"));
    assert_eq!(map_of(&config, "meta0"), newest);
    let address = config.servers[0].addresses[0].parse().unwrap();
    let link = connect_tcp(address, &TcpOptions::default(), TIMEOUT).unwrap();
    assert_eq!(ring(&mut Client::proven(link, [8; 16]), "h"), 3);
    running.into_iter().for_each(Running::end);
}

#[test]
fn servers_that_move_are_found_by_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let mut running = start_all(&config);
    let addresses = |map: &ClusterMapReply, role, id| {
        let server = map.servers.iter().find(|server| (server.role, server.id) == (role, id)).unwrap();
        server.addresses(endpoint::TCP).map(str::to_owned).collect::<Vec<_>>()
    };
    // An I/O server that is started at another address says so itself.
    let mut moved = config.clone();
    moved.servers[2].addresses = vec![free_address()];
    running.pop().unwrap().end();
    running.push(Running::start(&moved, "io1"));
    let new = moved.servers[2].addresses.clone();
    eventually("io1 is where it is", || addresses(&map_of(&config, "meta0"), server_role::IO, 1) == new);

    // The metadata server is told of its own, and then is there; the I/O servers' files have the old one.
    moved.servers[0].addresses = vec![free_address()];
    let there = moved.servers[0].addresses[0].clone();
    let told = MoveServerRequest { name: "meta0".into(), endpoints: endpoints(&there) };
    let told = server_link(&config, "meta0").call(&told).unwrap();
    let both = [there.clone(), config.servers[0].addresses[0].clone()];
    assert_eq!(addresses(&map_of(&config, "meta0"), server_role::META, 0), both);
    eventually("I/O servers hear of it", || map_of(&config, "io0").version == told.map_version);
    running.remove(0).end();
    running.push(Running::start(&moved, "meta0"));
    let alone = [there];
    eventually("they find it there", || addresses(&map_of(&moved, "io0"), server_role::META, 0) == alone);

    // So they do after a start of their own, by the map that they keep.
    running.remove(0).end();
    running.push(Running::start(&config, "io0"));
    let file = tcp(&moved, "meta0").call(&create("f", rights::READ | rights::WRITE)).unwrap();
    let capability = file.capability.unwrap();
    assert_eq!(tcp(&config, "io0").call(&SizeRequest { capability }).unwrap().local_bytes, 0);
    running.into_iter().for_each(Running::end);
}

#[test]
fn a_server_that_is_shown_a_newer_map_asks_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let running = start_all(&config);
    eventually("all have the map", || map_of(&config, "io0") == map_of(&config, "meta0"));
    let file = tcp(&config, "meta0").call(&create("f", rights::READ)).unwrap();
    let size = SizeRequest { capability: file.capability.unwrap() };
    let io = format!("io{}", size.capability.layout.chain(0));
    let mut link = tcp(&config, &io);
    let told = MoveServerRequest { name: "io1".into(), endpoints: endpoints(&free_address()) };
    let version = server_link(&config, "meta0").call(&told).unwrap().map_version;
    let newer = Header { map_version: version, ..Header::request(SizeRequest::OP, 1000) };
    link.call_as(newer, &size).expect("a newer map is no reason to refuse");
    let begun = std::time::Instant::now();
    eventually("it has the map", || map_of(&config, &io).version == version);
    assert!(begun.elapsed().as_millis() < 500, "without waiting for its next word of being there");
    running.into_iter().for_each(Running::end);
}

#[test]
fn the_cluster_file_is_read_again_while_the_server_runs() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    config.save().unwrap();
    let server = Server::start(&config, "meta0", &cluster_key()).unwrap();
    let reloader = server.reloader();
    let stop = StopFlag::new().unwrap();
    let thread = std::thread::spawn({
        let stop = stop.clone();
        move || server.run(&stop).unwrap()
    });
    let ios = ["io0", "io1"].map(|name| Running::start(&config, name));
    let storages = |map: &ClusterMapReply| map.io_servers().filter(|one| one.storage != [0; 16]).count();
    eventually("both have come", || storages(&map_of(&config, "meta0")) == 2);
    let before = map_of(&config, "meta0");
    with_io2(&config).save().unwrap();
    reloader.reload().unwrap();
    eventually("it knows the third", || map_of(&config, "meta0").io_server(2).is_some());
    assert_eq!(map_of(&config, "meta0").version, before.version + 1);
    // A file that has lost it is not gone by, and one that makes no sense is refused.
    config.save().unwrap();
    reloader.reload().unwrap();
    std::fs::write(&config.path, "nonsense").unwrap();
    assert!(reloader.reload().is_err());
    assert_eq!(map_of(&config, "meta0").version, before.version + 1);
    stop.stop();
    thread.join().unwrap();
    ios.into_iter().for_each(Running::end);
}
