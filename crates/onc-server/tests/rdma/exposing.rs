//! Replies that clients read (the Read-Read design), and clients that do harm with them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, RdmaHeader, ReadSegment};
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::Writer;
use weft_onc_server::{Counts, Limits, RdmaDesign, RdmaMemory, RdmaOptions};
use weft_test_random::{Random, seed};
use weft_verbs::{Endpoint, WorkStatus};
use weft_verbs_double::{Adapter, Delivery, PretendOptions};

use crate::common::{LARGE, LATER, NULL, WORDS, Watch, call, echo, pattern};
use crate::peer::Peer;
use crate::{Net, echo_without_data, expect_echo, is_ok, with_rdma, with_rdma_as};

const MEMORY: [RdmaMemory; 4] = [RdmaMemory::Pool, RdmaMemory::Each, RdmaMemory::Cached, RdmaMemory::Windows];

fn with_exposing(memory: RdmaMemory, limits: Limits, client: impl FnOnce(Net, Watch) + Send + 'static) {
    let options = RdmaOptions { design: RdmaDesign::ReadRead, memory };
    with_rdma_as(options, PretendOptions::default(), limits, client);
}

fn large(xid: u32, bytes: usize) -> Vec<u8> {
    call(xid, LARGE, Writer::new().u32(bytes as u32))
}

/// Asks for a reply of so many bytes, which is exposed: where.
fn ask(peer: &mut Peer, xid: u32, bytes: usize) -> ReadSegment {
    peer.call(xid, Chunks::default(), &large(xid, bytes));
    let received = peer.receive().unwrap();
    let (chunks, header, results) = received.reply();
    assert!(is_ok(header, xid));
    assert_eq!(results, Writer::new().u32(bytes as u32).into_bytes(), "the data are elsewhere");
    let [read] = chunks.reads[..] else { panic!("{chunks:?}") };
    assert_eq!((read.position as usize, read.segment.bytes as usize), (received.rest.len(), bytes));
    read
}

/// Waits until all of so many replies that were exposed are so no more.
fn is_quiet(watch: &Watch, replies: u64) {
    watch.wait("nothing is exposed", |counts| {
        counts.rdma_exposed_replies >= replies
            && counts.rdma_exposed_now_bytes == 0
            && counts.memory_bytes == 0
    });
}

#[test]
fn a_reply_without_room_is_read_by_the_client_and_kept_until_it_has() {
    for memory in MEMORY {
        with_exposing(memory, Limits::default(), move |net, watch| {
            let mut peer = net.connect();
            for (xid, bytes) in [5000, 100_001, 1 << 20].into_iter().enumerate() {
                let read = ask(&mut peer, xid as u32, bytes);
                watch.wait("it is exposed", |counts| counts.rdma_exposed_now_bytes == bytes as u64);
                assert_eq!(peer.read(&read.segment, 0), WorkStatus::Ok);
                assert!(peer.get(0, bytes) == vec![7; bytes], "{memory:?}");
                peer.done(xid as u32);
                is_quiet(&watch, xid as u64 + 1);
            }
            // A long reply without data.
            peer.call(9, Chunks::default(), &call(9, WORDS, Writer::new().u32(5000)));
            let received = peer.receive().unwrap();
            let Body::NoMessage(chunks) = &received.header.body else { panic!("{received:?}") };
            let [read] = chunks.reads[..] else { panic!("{chunks:?}") };
            assert_eq!((read.position, read.segment.bytes, received.rest.len()), (0, 24 + 20_000, 0));
            assert_eq!(peer.read(&read.segment, 0), WorkStatus::Ok);
            let message = peer.get(0, 20_024);
            assert!(is_ok(ReplyHeader::decode(&message).unwrap().0, 9));
            peer.done(9);
            is_quiet(&watch, 4);
            // What fits is inline.
            peer.call(10, Chunks::default(), &echo(10, &pattern(3000)));
            let received = peer.receive().unwrap();
            assert_eq!(received.reply().0, Chunks::default());
            expect_echo(received.reply().2, &pattern(3000));
            let counts = watch.wait("4 replies", |counts| counts.rdma_exposed_replies == 4);
            assert_eq!(counts.rdma_exposed_bytes, 5000 + 100_001 + (1 << 20) + 20_024);
            assert_eq!((counts.rdma_written_bytes, counts.cut_off), (0, 0));
        });
    }
}

/// What docs/nfs.md says of the strategies: where a key is good for longer than its reply.
#[test]
fn keys_of_single_registrations_and_windows_end_with_their_reply_and_others_do_not() {
    for (memory, ends) in MEMORY.into_iter().zip([false, true, false, true]) {
        with_exposing(memory, Limits::default(), move |net, watch| {
            let mut peer = net.connect();
            let read = ask(&mut peer, 1, 50_000);
            peer.done(1);
            is_quiet(&watch, 1);
            let late = peer.read(&read.segment, 0);
            assert_eq!(late == WorkStatus::Ok, !ends, "{memory:?}: {late:?}");
        });
    }
}

#[test]
fn whoever_gives_room_is_served_as_ever() {
    for memory in MEMORY {
        with_exposing(memory, Limits::default(), |net, watch| {
            let mut peer = net.connect();
            let data = pattern(300_001);
            let (before, after) = echo_without_data(3, data.len());
            peer.put(0, &data);
            let reads = vec![peer.read_segment(before.len(), 0, data.len())];
            let writes = vec![vec![peer.segment(1 << 20, 1 << 20)]];
            peer.call(3, Chunks { reads, writes, reply: None }, &[before, after].concat());
            let received = peer.receive().unwrap();
            assert!(is_ok(received.reply().1, 3) && received.reply().0.reads.is_empty());
            assert!(peer.get(1 << 20, data.len()) == data);
            let reply = Some(vec![peer.segment(0, 1 << 20)]);
            peer.call(4, Chunks { reply, ..Chunks::default() }, &call(4, WORDS, Writer::new().u32(5000)));
            let Body::NoMessage(chunks) = peer.receive().unwrap().header.body else { panic!() };
            assert_eq!((chunks.reads.len(), chunks.reply.unwrap()[0].bytes), (0, 20_024));
            let small = vec![vec![peer.segment(0, 99)]];
            peer.call(5, Chunks { writes: small, ..Chunks::default() }, &large(5, 5000));
            assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks));
            let counts = watch.wait("3 calls", |counts| counts.calls.values().sum::<u64>() == 3);
            assert_eq!((counts.rdma_exposed_replies, counts.copied_bytes), (0, 0));
        });
    }
}

#[test]
fn a_server_that_exposes_nothing_says_so() {
    with_rdma(Limits::default(), |net, watch| {
        let mut peer = net.connect();
        peer.call(1, Chunks::default(), &large(1, 5000));
        assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks));
        peer.done(1);
        peer.call(2, Chunks::default(), &echo(2, b"goes on"));
        expect_echo(peer.receive().unwrap().reply().2, b"goes on");
        assert_eq!(watch.wait("a call", |_| true).cut_off, 0);
    });
}

#[test]
fn who_says_that_it_has_read_what_it_has_not_been_given_is_cut_off() {
    type Misbehaviour = fn(&mut Peer);
    let cases: [(&str, Misbehaviour); 4] = [
        ("a number that there never was", |peer| peer.done(77)),
        ("twice", |peer| {
            ask(peer, 1, 50_000);
            peer.done(1);
            peer.done(1);
        }),
        ("before the reply", |peer| {
            peer.call(1, Chunks::default(), &call(1, LATER, Writer::new().u32(100)));
            peer.done(1);
        }),
        ("of a reply that was inline", |peer| {
            peer.call(1, Chunks::default(), &call(1, NULL, Writer::new()));
            peer.receive().unwrap();
            peer.done(1);
        }),
    ];
    for memory in MEMORY {
        with_exposing(memory, Limits::default(), move |net, watch| {
            let mut other = net.connect();
            let read = ask(&mut other, 5, 60_000);
            for (at, (what, misbehave)) in cases.iter().enumerate() {
                let mut peer = net.connect();
                misbehave(&mut peer);
                while peer.receive().is_some() {}
                let is_cut_off = |counts: &Counts| counts.cut_off == at as u64 + 1;
                let counts = watch.wait(what, is_cut_off);
                assert_eq!(counts.rdma_exposed_now_bytes, 60_000, "{what}: that of the other");
            }
            assert_eq!(other.read(&read.segment, 0), WorkStatus::Ok);
            other.done(5);
            is_quiet(&watch, 1);
        });
    }
}

#[test]
fn the_number_of_a_reply_that_was_not_read_may_not_be_used_again() {
    with_exposing(RdmaMemory::Each, Limits::default(), |net, watch| {
        let mut peer = net.connect();
        ask(&mut peer, 1, 50_000);
        peer.call(1, Chunks::default(), &large(1, 50_000));
        assert!(peer.receive().is_none());
        watch.wait("it is cut off", |counts| counts.cut_off == 1 && counts.connections == 0);
        is_quiet(&watch, 1);
    });
}

#[test]
fn who_never_says_that_it_has_read_loses_its_connection_and_holds_little_until_then() {
    for memory in MEMORY {
        let limits =
            Limits { stall: Duration::from_millis(800), exposed_bytes: 300_000, ..Limits::default() };
        with_exposing(memory, limits, |net, watch| {
            let (mut peer, mut other) = (net.connect(), net.connect());
            let begun = Instant::now();
            ask(&mut peer, 1, 200_000);
            // These have to wait for the first.
            (2..4).for_each(|xid| peer.call(xid, Chunks::default(), &large(xid, 200_000)));
            other.call(7, Chunks::default(), &echo(7, b"unharmed"));
            expect_echo(other.receive().unwrap().reply().2, b"unharmed");
            let counts = watch.wait("one reply", |counts| counts.rdma_exposed_replies == 1);
            assert_eq!(counts.rdma_exposed_now_bytes, 200_000);
            assert!(peer.receive().is_none());
            assert!(begun.elapsed() >= Duration::from_millis(800));
            let counts = watch.wait("it is cut off", |counts| counts.cut_off == 1 && counts.connections == 1);
            assert_eq!(counts.rdma_exposed_replies, 1);
            is_quiet(&watch, 1);
            // One that does gets the next reply.
            let read = ask(&mut other, 8, 200_000);
            other.call(9, Chunks::default(), &large(9, 200_000));
            assert_eq!(other.read(&read.segment, 0), WorkStatus::Ok);
            assert!(!other.has_message());
            other.done(8);
            assert!(other.receive().is_some());
        });
    }
}

#[test]
fn where_memory_is_scarce_who_does_not_read_has_less_time() {
    let limits =
        Limits { memory_bytes: 4 << 20, stall_when_scarce: Duration::from_millis(300), ..Limits::default() };
    with_exposing(RdmaMemory::Pool, limits, |net, watch| {
        let mut holders: Vec<_> = (0..4).map(|_| net.connect()).collect();
        for peer in &mut holders {
            (0..2).for_each(|xid| peer.call(xid, Chunks::default(), &large(xid, 1 << 20)));
        }
        let mut other = net.connect();
        let read = ask(&mut other, 5, 1 << 20);
        assert_eq!(other.read(&read.segment, 0), WorkStatus::Ok);
        assert!(watch.wait("somebody had to go", |counts| counts.cut_off > 0).cut_off <= 4);
    });
}

#[test]
fn a_client_may_be_lost_while_its_replies_are_exposed() {
    for memory in MEMORY {
        let options = RdmaOptions { design: RdmaDesign::ReadRead, memory };
        let network = PretendOptions { delivery: Delivery::Shuffled, ..PretendOptions::default() };
        with_rdma_as(options, network, Limits::default(), |net, watch| {
            for step in (0..5).cycle().take(20) {
                let mut peer = net.connect();
                let read = ask(&mut peer, 1, 300_000);
                peer.call(2, Chunks::default(), &large(2, 200_000));
                match step {
                    0 => net.client.sever(peer.endpoint.queue_pair()),
                    1 => peer.endpoint.disconnect(),
                    2 => {
                        peer.done(1);
                        net.client.sever(peer.endpoint.queue_pair());
                    }
                    3 => {
                        assert_eq!(peer.read(&read.segment, 0), WorkStatus::Ok);
                        peer.done(1);
                        peer.endpoint.disconnect();
                    }
                    _ => {}
                }
                drop(peer);
            }
            watch.wait("all are gone", |counts| counts.connections == 0);
            is_quiet(&watch, 1);
            let mut peer = net.connect();
            ask(&mut peer, 1, 300_000);
        });
    }
}

/// Random replies are held and let go, beside other calls that use buffers: what is exposed stays as it is, and no two
/// replies are in the same place.
#[test]
fn exposed_memory_is_nobody_elses() {
    for memory in MEMORY {
        let options = RdmaOptions { design: RdmaDesign::ReadRead, memory };
        let mut network = PretendOptions { delivery: Delivery::Shuffled, ..PretendOptions::default() };
        network.adapters = vec![Adapter::default()];
        network.adapters[0].limits.binds_alone = memory == RdmaMemory::Windows;
        with_rdma_as(options, network, Limits::default(), move |net, watch| {
            let mut random = Random(seed());
            let mut peers = [net.connect(), net.connect()];
            let mut held: BTreeMap<(usize, u32), ReadSegment> = BTreeMap::new();
            for round in 0..120 {
                let who = random.below(2) as usize;
                let peer = &mut peers[who];
                let own: Vec<u32> = held.keys().filter(|(of, _)| *of == who).map(|(_, xid)| *xid).collect();
                if own.len() < 2 {
                    let bytes = 5000 + random.below(300_000) as usize;
                    let read = ask(peer, round, bytes);
                    let ends = |read: &ReadSegment| (read.segment.offset, read.segment.offset + bytes as u64);
                    let (start, end) = ends(&read);
                    let is_apart = |other: &ReadSegment| {
                        let from = other.segment.offset;
                        end <= from || from + u64::from(other.segment.bytes) <= start
                    };
                    assert!(held.values().all(is_apart), "{memory:?}");
                    held.insert((who, round), read);
                } else {
                    let xid = own[random.below(own.len() as u64) as usize];
                    let read = held.remove(&(who, xid)).unwrap();
                    let bytes = read.segment.bytes as usize;
                    assert_eq!(peer.read(&read.segment, 0), WorkStatus::Ok);
                    assert!(peer.get(0, bytes) == vec![7; bytes], "{memory:?}");
                    peer.done(xid);
                }
                // Others use buffers meanwhile.
                let data = pattern(20_000 + random.below(200_000) as usize);
                let (before, after) = echo_without_data(1000 + round, data.len());
                peer.put(0, &data);
                let reads = vec![peer.read_segment(before.len(), 0, data.len())];
                let writes = vec![vec![peer.segment(2 << 20, 1 << 20)]];
                let message = [before, after].concat();
                peer.call(1000 + round, Chunks { reads, writes, reply: None }, &message);
                assert!(is_ok(peer.receive().unwrap().reply().1, 1000 + round));
            }
            drop(peers);
            watch.wait("all are gone", |counts| counts.connections == 0 && counts.cut_off == 0);
            is_quiet(&watch, 1);
        });
    }
}

#[test]
fn an_adapter_without_windows_gives_no_keys_where_windows_are_wanted() {
    let options = RdmaOptions { design: RdmaDesign::ReadRead, memory: RdmaMemory::Windows };
    let mut network = PretendOptions::default();
    network.adapters[0].limits.windows = false;
    with_rdma_as(options, network, Limits::default(), |net, watch| {
        let mut peer = net.connect();
        peer.call(1, Chunks::default(), &large(1, 50_000));
        assert_eq!(peer.receive().unwrap().header.body, Body::Error(RdmaError::Chunks));
        peer.call(2, Chunks::default(), &echo(2, b"goes on"));
        expect_echo(peer.receive().unwrap().reply().2, b"goes on");
        assert_eq!(watch.wait("2 calls", |counts| counts.calls.len() == 2).rdma_exposed_replies, 0);
    });
}

#[test]
fn half_as_many_calls_are_granted_as_each_may_take_two_receives() {
    with_exposing(RdmaMemory::Windows, Limits::default(), |net, _| {
        let mut peer = net.connect();
        let mut ask = |credits| {
            let body = Body::Message(Chunks::default());
            peer.send(&RdmaHeader { xid: 1, credits, body }, &call(1, NULL, Writer::new()));
            peer.receive().unwrap().header.credits
        };
        let granted: Vec<_> = (0..40).map(|_| ask(u32::MAX)).collect();
        assert!(granted.is_sorted() && granted[39] == 16, "{granted:?}");
    });
}
