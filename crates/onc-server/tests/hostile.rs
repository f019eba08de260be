//! What clients can do to a server: nothing to each other.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use common::*;
use weft_onc_rpc::record::Mark;
use weft_onc_rpc::xdr::Writer;
use weft_onc_server::Limits;
use weft_test_random::{Random, seed};

/// Memory for few large calls, and a short time for who holds it.
const TIGHT: Limits = Limits {
    connections: 4096,
    calls_per_connection: 64,
    memory_bytes: 4 << 20,
    exposed_bytes: 0,
    record_bytes: (1 << 20) + (64 << 10),
    stall: Duration::from_secs(600),
    stall_when_scarce: Duration::from_millis(200),
};

fn large(xid: u32) -> Vec<u8> {
    in_fragments(&call(xid, LARGE, Writer::new().u32(1 << 20)), 1)
}

/// Calls that take memory are served, with a new connection.
fn expect_service(address: SocketAddr) {
    let mut good = connect(address);
    let begun = Instant::now();
    for xid in 0..5 {
        good.write_all(&in_fragments(&echo(xid, &pattern(900_000)), 1)).unwrap();
        expect_echo(&mut good, xid, &pattern(900_000));
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn who_breaks_the_protocol_is_cut_off_alone() {
    with_server(
        Limits { record_bytes: 4096, stall: Duration::from_millis(300), ..Limits::default() },
        |address, _| {
            let mut good = connect(address);
            let reply = [[0, 0, 0, 1, 0, 0, 0, 1].as_slice(), &[0; 32]].concat();
            for bad in [
                Mark { is_last: true, bytes: 5000 }.to_bytes().to_vec(),
                in_fragments(&reply, 1),
                in_fragments(b"abc", 1),
                b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                // Begun, and never completed.
                in_fragments(&echo(1, &[0; 100]), 1)[..60].to_vec(),
                vec![0x80],
            ] {
                let mut stream = connect(address);
                stream.write_all(&bad).unwrap();
                assert!(is_ended(&mut stream), "{bad:?}");
            }
            good.write_all(&in_fragments(&echo(7, b"well"), 1)).unwrap();
            expect_echo(&mut good, 7, b"well");
        },
    );
}

#[test]
fn who_does_not_take_its_replies_is_cut_off_and_holds_back_nobody() {
    let limits = Limits { memory_bytes: 4 << 20, stall: Duration::from_millis(500), ..Limits::default() };
    with_server(limits, |address, _| {
        let mut slow = connect(address);
        let large = |xid| in_fragments(&call(xid, LARGE, Writer::new().u32(1 << 20)), 1);
        (0..60).for_each(|xid| slow.write_all(&large(xid)).unwrap());
        let mut good = connect(address);
        for xid in 0..20 {
            good.write_all(&in_fragments(&echo(xid, &pattern(3000)), 1)).unwrap();
            expect_echo(&mut good, xid, &pattern(3000));
        }
        let mut taken = 0;
        while let Ok(bytes @ 1..) = slow.read(&mut [0; 65536]) {
            taken += bytes;
        }
        assert!(taken < 60 << 20, "it was cut off");
    });
}

#[test]
fn who_takes_no_replies_gives_its_memory_back_also_when_it_has_ended_its_side() {
    let limits = Limits { stall: Duration::from_millis(300), ..TIGHT };
    with_server(limits, |address, watch| {
        let mut slow = connect(address);
        (0..20).for_each(|xid| slow.write_all(&large(xid)).unwrap());
        slow.shutdown(Shutdown::Write).unwrap();
        watch.wait("the calls", |counts| counts.memory_bytes > 2 << 20);
        let counts = watch.wait("the end", |counts| counts.connections == 0);
        assert_eq!((counts.memory_bytes, counts.cut_off), (0, 1));
    });
}

#[test]
fn memory_is_taken_from_those_that_do_not_move_when_others_wait_for_it() {
    with_server(TIGHT, |address, watch| {
        let mut slow = connect(address);
        (0..20).for_each(|xid| slow.write_all(&large(xid)).unwrap());
        // Each has memory for its payload, and sends none of it.
        let record = in_fragments(&echo(1, &pattern(1 << 20)), 1);
        let halves: Vec<_> = (0..10)
            .map(|_| {
                let mut half = connect(address);
                half.write_all(&record[..100]).unwrap();
                half
            })
            .collect();
        watch.wait("memory is scarce", |counts| counts.memory_bytes > 3 << 20);
        expect_service(address);
        drop((slow, halves));
    });
}

#[test]
fn a_record_that_comes_byte_by_byte_is_no_progress() {
    with_server(Limits { stall: Duration::from_millis(400), ..TIGHT }, |address, watch| {
        let mut drip = connect(address);
        drip.set_nodelay(true).unwrap();
        let record = in_fragments(&echo(1, &pattern(50_000)), 1);
        let sent = record.iter().take_while(|byte| {
            std::thread::sleep(Duration::from_millis(5));
            drip.write_all(std::slice::from_ref(byte)).is_ok()
        });
        assert!(sent.count() < 1000);
        watch.wait("the end", |counts| counts.cut_off == 1);
    });
}

#[test]
fn fragments_are_bounded_in_number_and_memory() {
    with_server(TIGHT, |address, watch| {
        let mut flood = connect(address);
        let empty = Mark { is_last: false, bytes: 0 }.to_bytes();
        let _ = flood.write_all(&empty.repeat(5000));
        assert!(is_ended(&mut flood));
        // First fragments of records, of which each may have a mebibyte.
        let beginning = [Mark { is_last: false, bytes: 1 << 20 }.to_bytes().as_slice(), &[0; 60]].concat();
        let halves: Vec<_> = (0..6)
            .map(|_| {
                let mut half = connect(address);
                half.write_all(&beginning).unwrap();
                half
            })
            .collect();
        watch.wait("memory is counted", |counts| counts.memory_bytes > 3 << 20);
        expect_service(address);
        drop(halves);
        let mut good = connect(address);
        good.write_all(&in_fragments(&echo(1, &pattern(300_000)), 1000)).unwrap();
        expect_echo(&mut good, 1, &pattern(300_000));
    });
}

#[test]
fn a_server_that_is_full_closes_the_connection_that_was_idle_longest() {
    with_server(Limits { connections: 3, ..Limits::default() }, |address, watch| {
        let mut idle = connect(address);
        watch.wait("one", |counts| counts.connections == 1);
        let mut waiting = connect(address);
        waiting.write_all(&in_fragments(&call(1, LATER, Writer::new().u32(1500)), 1)).unwrap();
        watch.wait("two", |counts| counts.received_bytes > 0);
        let mut second = connect(address);
        watch.wait("three", |counts| counts.connections == 3);
        let mut third = connect(address);
        for (xid, stream) in [(2, &mut third), (3, &mut second)] {
            stream.write_all(&in_fragments(&echo(xid, b"x"), 1)).unwrap();
            expect_echo(stream, xid, b"x");
        }
        assert!(is_ended(&mut idle));
        assert_eq!(receive(&mut waiting).0.xid, 1, "a call is under way on it");
        watch.wait("one had to go", |counts| (counts.connections, counts.crowded_out) == (3, 1));
    });
}

#[test]
fn garbage_harms_nobody() {
    let seed = seed();
    with_server(Limits { stall: Duration::from_millis(200), ..Limits::default() }, move |address, watch| {
        let mut random = Random(seed);
        let mut good = connect(address);
        let mut bad = Vec::new();
        for xid in 0..300 {
            let mut record = in_fragments(&echo(xid, &pattern(200)), 1 + xid as usize % 3);
            for _ in 0..random.below(6) {
                let at = random.below(record.len() as u64) as usize;
                record[at] = random.below(256) as u8;
            }
            record.truncate(record.len() - random.below(3) as usize);
            let mut stream = connect(address);
            let _ = stream.write_all(&record);
            bad.push(stream);
            good.write_all(&in_fragments(&echo(xid, b"well"), 1)).unwrap();
            expect_echo(&mut good, xid, b"well");
        }
        drop(bad);
        watch.wait("only one is left", |counts| counts.connections == 1);
    });
}
