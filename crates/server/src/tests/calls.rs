//! Calls of a server to another one, on its reactor.

use super::support::*;
use crate::calls::Connection;
use crate::current::CurrentMap;
use crate::map::first_map;
use crate::peer::{GREETING_TIMEOUT, Peer, PeerError};
use crate::tests::sockets::{Running, on_disk};
use std::net::TcpListener;
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_reactor::{Reactor, ReactorOptions, timeout};
use weft_wire::Status;
use weft_wire::messages::*;

/// Long enough for what comes at once, on a busy machine too.
const SOON: Duration = Duration::from_secs(10);

fn calls_of_one_connection_overtake_each_other_and_end_with_it<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let link = Client::proven(W::connect(&cluster.meta), [7; 16]).link;
    Reactor::new(ReactorOptions::default()).unwrap().run(async {
        let connection = Rc::new(Connection::new("io0", Box::new(link)).unwrap());
        let ping = async |number: u8| {
            let reply = timeout(SOON, connection.call(&PingRequest { echo: vec![number] })).await;
            assert_eq!(reply.unwrap().unwrap().echo, [number]);
        };
        let begin = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
        let epoch = connection.call(&begin).await.unwrap().epoch;
        // It is answered when a mount is to forget something, which nobody has it do.
        let watch = || {
            let connection = connection.clone();
            let request = WatchRequest { epoch, acknowledged: 0, at_once: false, end: false };
            weft_reactor::spawn(async move { connection.call(&request).await })
        };
        let (dropped, waiting) = (watch(), watch());
        ping(1).await;
        dropped.cancel();
        for number in 2..50 {
            ping(number).await;
        }
        let refused = connection.call(&lookup("none")).await.unwrap_err();
        assert_eq!(refused.status(), Some(Status::NotFound));
        drop(cluster);
        timeout(SOON, connection.ended()).await.unwrap();
        assert!(timeout(SOON, waiting).await.unwrap().is_err());
        assert!(connection.call(&PingRequest { echo: Vec::new() }).await.is_err(), "it has ended");
    });
}

over_all_ways! {
    calls_of_one_connection_overtake_each_other_and_end_with_it
}

#[test]
fn a_peer_connects_again_and_knows_who_it_talks_to() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let map = CurrentMap::new(first_map(&config)).unwrap().get();
    let (io0, io1) = (map.io_server(0).unwrap(), map.io_server(1).unwrap());
    let running = Running::start(&config, "io0");
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.run(async {
        let ping = PingRequest { echo: vec![1] };
        let peer = Rc::new(Peer::new(io0.clone(), key_ring()));
        // Many who ask at once share one connection.
        let many: Vec<_> = (0..40)
            .map(|_| {
                let (peer, ping) = (peer.clone(), ping.clone());
                weft_reactor::spawn(async move { peer.call(&ping).await.map(drop) })
            })
            .collect();
        for one in many {
            one.await.unwrap();
        }
        let status = peer.call(&StatusRequest { with_clients: false }).await.unwrap();
        assert!(status.gauges.iter().any(|gauge| gauge.name == "connections_tcp" && gauge.value == 1));

        let elsewhere = ServerInfo { endpoints: io0.endpoints.clone(), ..io1.clone() };
        let error = Peer::new(elsewhere, key_ring()).call(&ping).await.unwrap_err();
        assert!(error.to_string().contains("io0 answers at its address, where io1 was expected"), "{error}");
        let other = weft_wire::security::Key([43; 32]);
        let stranger = Peer::new(io0.clone(), crate::key_ring::KeyRing::new(&(&other).into()));
        let error = stranger.call(&ping).await.unwrap_err();
        assert!(matches!(error, PeerError::WrongKey { .. }), "{error}");

        running.end();
        timeout(SOON, peer.gone()).await.unwrap();
        let begun = Instant::now();
        let error = peer.call(&ping).await.unwrap_err();
        assert!(error.to_string().contains("io0") && begun.elapsed() < SOON, "{error}");
        let running = Running::start(&config, "io0");
        peer.call(&ping).await.unwrap();
        running.end();
    });
}

#[test]
fn a_server_that_says_nothing_delays_no_other_and_no_end() {
    let directory = tempfile::tempdir().unwrap();
    let config = on_disk(directory.path());
    let map = CurrentMap::new(first_map(&config)).unwrap().get();
    let running = Running::start(&config, "io0");
    // The kernel takes connections for it.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoints = vec![Endpoint::new(endpoint::TCP, mute.local_addr().unwrap().to_string())];
    let ping = PingRequest { echo: vec![1] };
    let begun = Instant::now();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.run(async {
        let mute = Peer::new(ServerInfo { endpoints, ..map.io_server(1).unwrap().clone() }, key_ring());
        let mute = Rc::new(mute);
        let call = || {
            let (mute, ping) = (mute.clone(), ping.clone());
            weft_reactor::spawn(async move { mute.call(&ping).await.map(drop) })
        };
        let (waiting, dropped) = (call(), call());
        weft_reactor::sleep(Duration::from_millis(100)).await;
        dropped.cancel();
        let other = Peer::new(map.io_server(0).unwrap().clone(), key_ring());
        timeout(GREETING_TIMEOUT / 2, other.call(&ping)).await.unwrap().unwrap();
        assert!(!waiting.is_finished());
    });
    drop(reactor);
    assert!(begun.elapsed() < GREETING_TIMEOUT, "{:?}", begun.elapsed());
    running.end();
}
