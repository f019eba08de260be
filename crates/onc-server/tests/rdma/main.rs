//! What a server does for clients over RDMA, on pretended adapters that count, and check every key.

#[path = "../common/mod.rs"]
mod common;
mod cost;
mod exposing;
mod peer;

use std::net::SocketAddr;

use weft_onc_rpc::rdma::{Body, Chunks, PrivateData, RdmaError, RdmaHeader, ReadSegment, Segment};
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::Writer;
use weft_onc_server::{Limits, Rdma, RdmaListener, RdmaOptions, Server, Transport};
use weft_reactor::spawn;
use weft_verbs::{Endpoint, WorkKind};
use weft_verbs_double::{Adapter, Delivery, Pretend, PretendOptions};

use common::{ECHO, Echo, LARGE, LATER, NULL, Watch, call, echo, pattern, run};
use peer::{Peer, usual};

/// Where the server's side of a test is.
#[derive(Clone)]
struct Net {
    server: Pretend,
    client: Pretend,
    address: SocketAddr,
}

impl Net {
    fn connect(&self) -> Peer {
        self.connect_saying(&usual().to_bytes())
    }

    fn connect_saying(&self, said: &[u8]) -> Peer {
        Peer::connect(&self.client, self.address, said)
    }
}

/// Runs a server over RDMA, and `client` in a thread.
fn with_rdma(limits: Limits, client: impl FnOnce(Net, Watch) + Send + 'static) -> usize {
    with_rdma_on(PretendOptions::default(), limits, client)
}

/// The same on adapters of this kind.
fn with_rdma_on(
    options: PretendOptions,
    limits: Limits,
    client: impl FnOnce(Net, Watch) + Send + 'static,
) -> usize {
    with_rdma_as(RdmaOptions::default(), options, limits, client)
}

/// The same with a server that was told how.
fn with_rdma_as(
    rdma: RdmaOptions,
    options: PretendOptions,
    limits: Limits,
    client: impl FnOnce(Net, Watch) + Send + 'static,
) -> usize {
    let server = Pretend::new(options);
    let adapter = Adapter::new("pretend1", "127.0.0.2".parse().unwrap());
    let peers = server.another_host(vec![adapter]);
    let listener = RdmaListener::bind(&server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let net = Net { server: server.clone(), client: peers, address: listener.address() };
    let listen = move |served: Server<Echo>| {
        let rdma = Rdma::new(&limits, rdma).unwrap();
        spawn(async move { served.listen_rdma(&rdma, listener).await })
    };
    let most = run(limits, listen, move |watch| client(net, watch));
    assert_eq!(server.complaints(), Vec::<String>::new());
    assert_eq!(server.counts().receiver_not_ready, 0, "every message has found a receive");
    most
}

/// The head of an ECHO, up to its data; and what is behind them.
fn echo_without_data(xid: u32, data_bytes: usize) -> (Vec<u8>, Vec<u8>) {
    let before = call(xid, ECHO, Writer::new().u32(40).u32(data_bytes as u32));
    (before, Writer::new().u32(2).into_bytes())
}

fn expect_echo(results: &[u8], data: &[u8]) {
    assert_eq!(results, Writer::new().u32(42).opaque(data).into_bytes());
}

fn is_ok(header: ReplyHeader, xid: u32) -> bool {
    header == ReplyHeader { xid, outcome: Ok(()) }
}

#[test]
fn a_call_and_its_reply_are_one_message_each() {
    with_rdma(Limits::default(), |net, watch| {
        let mut peer = net.connect();
        let said = PrivateData::decode(peer.endpoint.private_data()).unwrap();
        assert_eq!((said.send_bytes, said.receive_bytes, said.takes_invalidation), (4096, 4096, true));
        for bytes in [0, 1, 70, 3000] {
            let before = net.server.counts();
            peer.call(5, Chunks::default(), &echo(5, &pattern(bytes)));
            let received = peer.receive().unwrap();
            let (chunks, header, results) = received.reply();
            assert!(is_ok(header, 5) && received.header.xid == 5);
            assert_eq!((chunks, received.kind), (Chunks::default(), WorkKind::Received));
            expect_echo(results, &pattern(bytes));
            let cost = net.server.counts().since(&before);
            assert_eq!((cost.sends, cost.writes, cost.reads, cost.registrations), (1, 0, 0, 0));
        }
        let counts = watch.wait("4 calls", |counts| counts.calls.values().sum::<u64>() == 4);
        assert_eq!((counts.rdma_read_bytes, counts.rdma_written_bytes, counts.connections), (0, 0, 1));
    });
}

#[test]
fn a_payload_is_read_and_written_without_a_copy_and_leaves_with_its_reply() {
    with_rdma(Limits::default(), |net, watch| {
        let mut peer = net.connect();
        let (mut moved, mut warm) = (0, None);
        for bytes in [5000, 1 << 20, 65_537, (1 << 20) - 3] {
            let data = pattern(bytes);
            let (before, after) = echo_without_data(9, bytes);
            peer.put(0, &data);
            // Both chunks in several segments, one of them empty.
            let cut = bytes / 3;
            let reads = [(0, cut), (cut, 0), (cut, bytes - cut)]
                .map(|(at, bytes)| peer.read_segment(before.len(), at, bytes))
                .to_vec();
            let room = 2 << 20;
            let writes = vec![vec![peer.segment(room, 1000), peer.segment(room + 5000, 1 << 20)]];
            let costs = net.server.counts();
            peer.call(9, Chunks { reads, writes, reply: None }, &[before, after].concat());
            let received = peer.receive().unwrap();
            let cost = net.server.counts().since(&costs);
            let (chunks, header, results) = received.reply();
            assert!(is_ok(header, 9));
            let used: Vec<_> = chunks.writes[0].iter().map(|segment| segment.bytes as usize).collect();
            assert_eq!(used, [1000, bytes - 1000]);
            assert_eq!([peer.get(room, 1000), peer.get(room + 5000, bytes - 1000)].concat(), data);
            assert_eq!(
                results,
                Writer::new().u32(42).u32(bytes as u32).into_bytes(),
                "the data are elsewhere"
            );
            moved += bytes as u64;
            // Touching segments are one request; the data leave with the message.
            assert_eq!((cost.reads, cost.writes, cost.sends, cost.doorbells), (1, 2, 1, 2));
            let registered = warm.replace(net.server.counts().registrations);
            assert!(registered.is_none_or(|before| warm == Some(before)), "nothing is registered for a call");
        }
        let counts = watch.wait("4 calls", |counts| counts.calls.values().sum::<u64>() == 4);
        assert_eq!((counts.rdma_read_bytes, counts.rdma_written_bytes), (moved, moved));
        assert_eq!(counts.copied_bytes, 0);
    });
}

#[test]
fn a_chunk_may_have_the_padding_of_its_payload() {
    with_rdma(Limits::default(), |net, watch| {
        let mut peer = net.connect();
        peer.put(0, &pattern(5001));
        for sent_bytes in [5001, 5004] {
            let (before, after) = echo_without_data(1, 5001);
            let reads = vec![peer.read_segment(before.len(), 0, sent_bytes)];
            let writes = vec![vec![peer.segment(1 << 20, 5001)]];
            peer.call(1, Chunks { reads, writes, reply: None }, &[before, after].concat());
            assert!(is_ok(peer.receive().unwrap().reply().1, 1));
            assert_eq!(peer.get(1 << 20, 5001), pattern(5001));
        }
        let counts = watch.wait("2 calls", |counts| counts.calls.values().sum::<u64>() == 2);
        assert_eq!(counts.copied_bytes, 0);
    });
}

#[test]
fn a_long_call_is_read_whole_with_its_chunks() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect();
        let data = pattern(300_001);
        let writes = vec![vec![peer.segment(2 << 20, 1 << 20)]];
        let long = |reads: Vec<ReadSegment>| RdmaHeader {
            xid: 3,
            credits: 8,
            body: Body::NoMessage(Chunks { reads, writes: writes.clone(), reply: None }),
        };
        // All of it at position zero, in two segments.
        let message = echo(3, &data);
        peer.put(0, &message);
        let reads = vec![peer.read_segment(0, 0, 5000), peer.read_segment(0, 5000, message.len() - 5000)];
        peer.send(&long(reads), b"");
        assert!(is_ok(peer.receive().unwrap().reply().1, 3));
        assert_eq!(peer.get(2 << 20, data.len()), data);
        // Its payload in a chunk besides, elsewhere.
        let (before, after) = echo_without_data(3, data.len());
        peer.put(0, &[&before[..], &after].concat());
        peer.put(8192, &data);
        let reads = vec![
            peer.read_segment(0, 0, before.len() + after.len()),
            peer.read_segment(before.len(), 8192, data.len()),
        ];
        peer.put(2 << 20, &[0; 1000]);
        peer.send(&long(reads), b"");
        assert!(is_ok(peer.receive().unwrap().reply().1, 3));
        assert_eq!(peer.get(2 << 20, data.len()), data);
    });
}

#[test]
fn a_long_reply_fills_the_reply_chunk_and_a_short_one_leaves_it_out() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect();
        let reply = Some(vec![peer.segment(0, 3000), peer.segment(8192, 1 << 20)]);
        let large = |bytes: u32| call(8, LARGE, Writer::new().u32(bytes));
        peer.call(8, Chunks { reply: reply.clone(), ..Chunks::default() }, &large(10_001));
        let received = peer.receive().unwrap();
        let Body::NoMessage(chunks) = &received.header.body else { panic!("{received:?}") };
        let used: Vec<_> = chunks.reply.iter().flatten().map(|segment| segment.bytes).collect();
        assert_eq!((&used[..], received.rest.len()), (&[3000, 24 + 4 + 10_004 - 3000][..], 0));
        let message = [peer.get(0, 3000), peer.get(8192, used[1] as usize)].concat();
        let (header, bytes) = ReplyHeader::decode(&message).unwrap();
        assert!(is_ok(header, 8));
        assert_eq!(message[bytes..], Writer::new().opaque(&[7; 10_001]).into_bytes());

        peer.call(8, Chunks { reply, ..Chunks::default() }, &large(100));
        let received = peer.receive().unwrap();
        let (chunks, _, results) = received.reply();
        assert_eq!((chunks.reply, results.len()), (None, 104));
    });
}

#[test]
fn write_chunks_that_a_reply_does_not_need_come_back_empty() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect();
        let chunk = |peer: &Peer| vec![peer.segment(0, 4096), peer.segment(8192, 4096)];
        let writes = vec![chunk(&peer), chunk(&peer)];
        let lengths = |received: &peer::Received| {
            let (chunks, ..) = received.reply();
            chunks.writes.iter().map(|chunk| chunk.iter().map(|segment| segment.bytes).collect()).collect()
        };
        let cases = [
            (call(1, NULL, Writer::new()), [[0, 0], [0, 0]]),
            (call(1, 99, Writer::new()), [[0, 0], [0, 0]]),
            (call(1, LARGE, Writer::new().u32(5000)), [[4096, 904], [0, 0]]),
        ];
        for (message, expected) in cases {
            peer.call(1, Chunks { writes: writes.clone(), ..Chunks::default() }, &message);
            let lengths: Vec<Vec<u32>> = lengths(&peer.receive().unwrap());
            assert_eq!(lengths, expected);
        }
    });
}

#[test]
fn a_client_that_says_nothing_gets_short_messages() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect_saying(b"");
        let large = |bytes: u32| call(1, LARGE, Writer::new().u32(bytes));
        // A header without lists, a head, a length.
        let most = 1024 - 28 - 24 - 4;
        peer.call(1, Chunks::default(), &large(most));
        assert_eq!(peer.receive().unwrap().rest.len(), 1024 - 28);
        peer.call(1, Chunks::default(), &large(most + 1));
        assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks));
    });
}

#[test]
fn credits_grow_with_use_and_are_never_nothing_and_never_more_than_there_is_room_for() {
    let most = with_rdma(Limits { calls_per_connection: 12, ..Limits::default() }, |net, _| {
        let mut peer = net.connect();
        let mut ask = |credits| {
            let body = Body::Message(Chunks::default());
            peer.send(&RdmaHeader { xid: 1, credits, body }, &call(1, NULL, Writer::new()));
            peer.receive().unwrap().header.credits
        };
        assert_eq!((ask(0), ask(1), ask(2)), (1, 1, 2));
        let granted: Vec<_> = (0..20).map(|_| ask(u32::MAX)).collect();
        assert!(granted.is_sorted() && granted[19] == 12, "{granted:?}");
        // All of them at once, and the next ones as replies come.
        let later = |xid| call(xid, LATER, Writer::new().u32(20));
        (0..12).for_each(|xid| peer.call(xid, Chunks::default(), &later(xid)));
        for xid in 12..60 {
            peer.receive().unwrap();
            peer.call(xid, Chunks::default(), &later(xid));
        }
        (0..12).for_each(|_| drop(peer.receive().unwrap()));
    });
    assert_eq!(most, 12);
}

#[test]
fn who_sends_more_calls_than_it_was_granted_is_cut_off() {
    with_rdma(Limits::default(), |net, watch| {
        let (mut peer, mut other) = (net.connect(), net.connect());
        peer.call(0, Chunks::default(), &call(0, NULL, Writer::new()));
        peer.receive().unwrap();
        let granted = 34;
        (0..granted)
            .for_each(|xid| peer.call(xid, Chunks::default(), &call(xid, LATER, Writer::new().u32(300))));
        while peer.receive().is_some() {}
        let counts = watch.wait("it is cut off", |counts| counts.cut_off == 1);
        assert_eq!(counts.accepted, 2);
        other.call(7, Chunks::default(), &echo(7, b"still there"));
        expect_echo(other.receive().unwrap().reply().2, b"still there");
    });
}

#[test]
fn a_reply_ends_a_key_of_a_client_that_said_so() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect_saying(&PrivateData { takes_invalidation: true, ..usual() }.to_bytes());
        let whole = peer.segment(0, 8192);
        let segment = peer.windowed(whole);
        let message = call(1, LARGE, Writer::new().u32(8000));
        peer.call(1, Chunks { writes: vec![vec![segment]], ..Chunks::default() }, &message);
        let received = peer.receive().unwrap();
        assert_eq!(received.kind, WorkKind::ReceivedInvalidate(segment.handle));
        assert_eq!(received.reply().0.writes[0][0].bytes, 8000);
        assert_eq!(peer.get(0, 8192), [vec![7; 8000], vec![0; 192]].concat());
        peer.call(2, Chunks::default(), &echo(2, b"no key"));
        assert_eq!(peer.receive().unwrap().kind, WorkKind::Received);
    });
}

#[test]
fn headers_that_make_no_sense_are_answered_with_why_and_the_connection_goes_on() {
    with_rdma(Limits::default(), |net, _| {
        let mut peer = net.connect();
        let null = call(1, NULL, Writer::new());
        let mut header =
            RdmaHeader { xid: 1, credits: 8, body: Body::Message(Chunks::default()) }.write().into_bytes();
        header[7] = 2;
        peer.send_bytes(&[&header[..], &null].concat());
        let received = peer.receive().unwrap();
        assert_eq!(received.header.body, Body::Error(RdmaError::Versions { low: 1, high: 1 }));
        assert!(received.header.xid == 1 && received.header.credits > 0);

        let read = |position: u32, bytes: u32, offset: u64| ReadSegment {
            position,
            segment: Segment { handle: 1, bytes, offset },
        };
        let with = |reads: &[ReadSegment]| Chunks { reads: reads.to_vec(), ..Chunks::default() };
        let small = vec![peer.segment(0, 99)];
        let room = |writes: &[Vec<Segment>], reply| Chunks { writes: writes.to_vec(), reply, reads: vec![] };
        let large = call(1, LARGE, Writer::new().u32(100_000));
        let cases = [
            ("beyond the end", with(&[read(44, 4, 0)]), &null),
            ("not at a word", with(&[read(6, 4, 0)]), &null),
            ("backwards", with(&[read(8, 4, 0), read(4, 4, 0)]), &null),
            ("a long call that is inline", with(&[read(0, 40, 0)]), &null),
            ("too much", with(&[read(40, u32::MAX, 0), read(40, u32::MAX, 0)]), &null),
            ("beyond all memory", with(&[read(40, 8, u64::MAX - 3)]), &null),
            ("no room for data", room(std::slice::from_ref(&small), None), &large),
            ("no room for the reply", room(&[], Some(small.clone())), &large),
            ("no room at all", room(&[], None), &large),
        ];
        for (what, chunks, message) in cases {
            peer.call(1, chunks, message);
            assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks), "{what}");
        }
        let nowhere = Body::NoMessage(Chunks::default());
        peer.send(&RdmaHeader { xid: 1, credits: 1, body: nowhere }, b"");
        assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks));
        // What wants no answer gets none.
        for body in [Body::Done, Body::Error(RdmaError::Chunks)] {
            peer.send(&RdmaHeader { xid: 1, credits: 1, body }, b"");
        }
        peer.call(4, Chunks::default(), &echo(4, b"goes on"));
        expect_echo(peer.receive().unwrap().reply().2, b"goes on");
    });
}

#[test]
fn what_is_no_call_and_what_has_a_wrong_key_ends_its_connection_and_no_other() {
    with_rdma(Limits::default(), |net, watch| {
        let mut other = net.connect();
        let connect = || {
            let mut peer = net.connect();
            peer.call(1, Chunks::default(), &call(1, NULL, Writer::new()));
            peer.receive().unwrap();
            peer
        };
        for (message, cut_off) in [(&b"short"[..], 1), (&[0; 12], 2)] {
            let mut peer = connect();
            peer.send_bytes(&[message, &[0; 40][..if cut_off == 1 { 0 } else { 40 }]].concat());
            if cut_off == 2 {
                // Twelve zeros are another version, which is answered.
                assert!(peer.receive().is_some());
                peer.call(1, Chunks::default(), &[1; 60]);
            }
            assert!(peer.receive().is_none());
            watch.wait("it is cut off", |counts| counts.cut_off == cut_off);
        }
        let mut peer = connect();
        peer.call(1, Chunks::default(), &call(2, NULL, Writer::new()));
        assert!(peer.receive().is_none(), "two numbers");

        let mut peer = connect();
        let (before, after) = echo_without_data(1, 5000);
        let wrong = Segment { handle: 0xdead_beef, ..peer.segment(0, 5000) };
        let reads = vec![ReadSegment { position: before.len() as u32, segment: wrong }];
        peer.call(1, Chunks { reads, ..Chunks::default() }, &[before, after].concat());
        assert!(peer.receive().is_none(), "a wrong key");
        let mut peer = connect();
        let writes = vec![vec![Segment { handle: 0xdead_beef, ..peer.segment(0, 8192) }]];
        peer.call(1, Chunks { writes, ..Chunks::default() }, &call(1, LARGE, Writer::new().u32(8000)));
        assert!(peer.receive().is_none(), "a wrong key");

        other.call(7, Chunks::default(), &echo(7, b"still there"));
        expect_echo(other.receive().unwrap().reply().2, b"still there");
        watch.wait("they are gone", |counts| counts.connections == 1 && counts.memory_bytes == 0);
    });
}

#[test]
fn a_connection_may_be_lost_at_any_step() {
    let options = PretendOptions { delivery: Delivery::Shuffled, ..PretendOptions::default() };
    with_rdma_on(options, Limits::default(), |net, watch| {
        for step in (0..6).cycle().take(30) {
            let mut peer = net.connect();
            peer.call(0, Chunks::default(), &call(0, NULL, Writer::new()));
            peer.receive().unwrap();
            let (before, after) = echo_without_data(1, 1 << 20);
            let reads = vec![peer.read_segment(before.len(), 0, 1 << 20)];
            let writes = vec![vec![peer.segment(2 << 20, 1 << 20)]];
            let chunks = Chunks { reads, writes, reply: None };
            peer.call(1, chunks, &[before, after].concat());
            peer.call(2, Chunks::default(), &call(2, LATER, Writer::new().u32(30)));
            match step {
                0 => net.client.sever(peer.endpoint.queue_pair()),
                1 => peer.endpoint.disconnect(),
                2 => {
                    peer.receive().unwrap();
                    net.client.sever(peer.endpoint.queue_pair());
                }
                3 => {
                    peer.receive().unwrap();
                    peer.endpoint.disconnect();
                }
                4 => {}
                _ => (0..2).for_each(|_| drop(peer.receive().unwrap())),
            }
            drop(peer);
        }
        watch.wait("all is given back", |counts| counts.connections == 0 && counts.memory_bytes == 0);
        let mut peer = net.connect();
        peer.call(7, Chunks::default(), &echo(7, b"still there"));
        expect_echo(peer.receive().unwrap().reply().2, b"still there");
    });
}

#[test]
fn memory_of_calls_is_bounded_and_what_does_not_fit_waits() {
    let limits = Limits { memory_bytes: 4 << 20, ..Limits::default() };
    with_rdma(limits, |net, watch| {
        let mut peers: Vec<_> = (0..4).map(|_| net.connect()).collect();
        for round in 0..3 {
            for peer in &mut peers {
                for xid in 0..4 {
                    let writes = vec![vec![peer.segment(xid << 20, 1 << 20)]];
                    let message = call(xid as u32, LARGE, Writer::new().u32(1 << 20).u32(5));
                    peer.call(xid as u32, Chunks { writes, ..Chunks::default() }, &message);
                }
            }
            for peer in &mut peers {
                (0..4).for_each(|_| drop(peer.receive().unwrap()));
                assert_eq!(peer.get(3 << 20, 1 << 20), vec![7; 1 << 20], "round {round}");
                peer.put(3 << 20, &[0; 100]);
            }
        }
        let counts = watch.wait("48 calls", |counts| counts.calls.values().sum::<u64>() == 48);
        assert!(counts.memory_bytes <= 4 << 20);
    });
}

#[test]
fn an_idle_connection_makes_room_for_another_and_a_stopped_server_answers_what_is_under_way() {
    with_rdma(Limits { connections: 2, ..Limits::default() }, |net, watch| {
        let (mut idle, mut busy) = (net.connect(), net.connect());
        for peer in [&mut idle, &mut busy] {
            peer.call(1, Chunks::default(), &call(1, NULL, Writer::new()));
            peer.receive().unwrap();
        }
        busy.call(2, Chunks::default(), &call(2, LATER, Writer::new().u32(400)));
        let mut third = net.connect();
        third.call(3, Chunks::default(), &call(3, LATER, Writer::new().u32(300)));
        assert!(idle.receive().is_none());
        watch.wait("three", |counts| counts.accepted == 3 && counts.crowded_out == 1);
        watch.stop();
        for (peer, xid) in [(&mut third, 3), (&mut busy, 2)] {
            assert_eq!(peer.receive().unwrap().header.xid, xid);
            assert!(peer.receive().is_none());
        }
    });
}

#[test]
fn peers_are_named_with_their_transport() {
    let server = Pretend::new(PretendOptions::default());
    let peers = server.another_host(vec![Adapter::new("pretend1", "127.0.0.2".parse().unwrap())]);
    let listener = RdmaListener::bind(&server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    let listen = |served: Server<Echo>| {
        let rdma = Rdma::new(&Limits::default(), RdmaOptions::default()).unwrap();
        let looked_at = served.clone();
        spawn(async move {
            served.listen_rdma(&rdma, listener).await;
            let peers = looked_at.peers();
            assert_eq!(peers.len(), 1);
            assert_eq!((peers[0].transport, peers[0].address.ip()), (Transport::Rdma, [127, 0, 0, 2].into()));
            assert_eq!((rdma.status().len(), rdma.status()[0].name.as_str()), (1, "pretend0"));
        })
    };
    run(Limits::default(), listen, move |watch| {
        let mut peer = Peer::connect(&peers, address, &usual().to_bytes());
        peer.call(1, Chunks::default(), &call(1, LATER, Writer::new().u32(100)));
        watch.wait("a call", |counts| counts.received_bytes > 0);
        watch.stop();
        peer.receive().unwrap();
    });
}
