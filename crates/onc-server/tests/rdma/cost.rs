//! What a READ and a WRITE ask of the server's adapter, whatever their size: the figures of docs/benchmarks.md.

use std::time::{Duration, Instant};

use weft_onc_rpc::rdma::Chunks;
use weft_onc_rpc::xdr::Writer;
use weft_onc_server::{Limits, RdmaMemory, RdmaOptions};
use weft_verbs::Counts;
use weft_verbs_double::PretendOptions;

use crate::common::{LARGE, PATIENCE, SINK, call};
use crate::peer::Peer;
use crate::{Net, with_rdma, with_rdma_as};

const CALLS: u64 = 50;
const SIZES: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];

/// What so many calls cost the server, which is the same for each of them.
fn cost_of_each(net: &Net, peer: &mut Peer, call: impl Fn(&mut Peer)) -> Counts {
    // The first one may begin a zone.
    call(peer);
    peer.receive().unwrap();
    let completions = |counts: &Counts| counts.sends + counts.reads + counts.receives;
    let settled = || {
        let begun = Instant::now();
        loop {
            let counts = net.server.counts();
            // What ended work held is let go of only then.
            std::thread::sleep(Duration::from_millis(10));
            let is_same = Counts { polls: 0, ..net.server.counts() } == Counts { polls: 0, ..counts };
            // Each message and each RDMA Read has one; the receives that wait are those of the start.
            if is_same && counts.completions + 1024 == completions(&counts) {
                return counts;
            }
            assert!(begun.elapsed() < PATIENCE, "{counts:?}");
        }
    };
    let before = settled();
    for _ in 0..CALLS {
        call(peer);
        peer.receive().unwrap();
    }
    settled().since(&before)
}

fn each(count: u64) -> u64 {
    assert_eq!(count % CALLS, 0);
    count / CALLS
}

#[test]
fn a_read_costs_one_post_and_a_write_two_and_nothing_is_registered() {
    with_rdma(Limits::default(), |net, watch| {
        let mut peer = net.connect();
        for bytes in SIZES {
            let read = cost_of_each(&net, &mut peer, |peer| {
                let writes = vec![vec![peer.segment(0, bytes)]];
                let message = call(1, LARGE, Writer::new().u32(bytes as u32));
                peer.call(1, Chunks { writes, ..Chunks::default() }, &message);
            });
            let requests = [read.doorbells, read.writes, read.reads, read.sends].map(each);
            assert_eq!(requests, [1, 1, 0, 1], "READ of {bytes}");
            assert_eq!((each(read.completions), each(read.sent_bytes) >= bytes as u64), (2, true));

            let message = call(1, SINK, Writer::new().u32(bytes as u32));
            let write = cost_of_each(&net, &mut peer, |peer| {
                let reads = vec![peer.read_segment(message.len(), 0, bytes)];
                peer.call(1, Chunks { reads, ..Chunks::default() }, &message);
            });
            let requests = [write.doorbells, write.writes, write.reads, write.sends].map(each);
            assert_eq!(requests, [2, 0, 1, 1], "WRITE of {bytes}");
            assert_eq!((each(write.completions), each(write.read_bytes)), (3, bytes as u64));
            let registered = |cost: &Counts| (cost.registrations, cost.deregistrations, cost.binds);
            assert_eq!((registered(&read), registered(&write)), ((0, 0, 0), (0, 0, 0)));
        }
        let counts = watch.wait("all calls", |counts| counts.calls.values().sum::<u64>() == 6 * (CALLS + 1));
        assert_eq!(counts.copied_bytes, 0);
    });
}

#[test]
fn payloads_are_registered_for_each_call_or_when_a_buffer_is_first_used() {
    for (memory, registrations, pages) in
        [(RdmaMemory::Pool, 0, 0), (RdmaMemory::Each, 1, 256), (RdmaMemory::Cached, 0, 0)]
    {
        let options = RdmaOptions { memory, ..RdmaOptions::default() };
        with_rdma_as(options, PretendOptions::default(), Limits::default(), move |net, watch| {
            let mut peer = net.connect();
            let begun = net.server.counts();
            let read = cost_of_each(&net, &mut peer, |peer| {
                let writes = vec![vec![peer.segment(0, 1 << 20)]];
                let message = call(1, LARGE, Writer::new().u32(1 << 20));
                peer.call(1, Chunks { writes, ..Chunks::default() }, &message);
            });
            let message = call(1, SINK, Writer::new().u32(1 << 20));
            let write = cost_of_each(&net, &mut peer, |peer| {
                let reads = vec![peer.read_segment(message.len(), 0, 1 << 20)];
                peer.call(1, Chunks { reads, ..Chunks::default() }, &message);
            });
            for cost in [read, write] {
                let counted = [cost.registrations, cost.deregistrations, cost.registered_pages].map(each);
                assert_eq!(counted, [registrations, registrations, pages], "{memory:?}");
            }
            let all = net.server.counts().since(&begun);
            if memory == RdmaMemory::Cached {
                // The one buffer that all of them use, one after the other.
                assert_eq!((all.registrations, all.deregistrations, all.registered_pages), (1, 0, 256));
            }
            assert_eq!(watch.wait("calls", |counts| counts.calls.len() == 2).copied_bytes, 0);
        });
    }
}
