//! What a server does for clients that keep to the protocol.

mod common;

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use common::*;
use weft_onc_rpc::xdr::Writer;
use weft_onc_rpc::{AuthStat, Refusal};
use weft_onc_server::{HEAD_ROOM_BYTES, Limits};

#[test]
fn a_call_is_answered_wherever_the_stream_is_cut() {
    with_server(Limits::default(), |address, _| {
        let data = pattern(70);
        for record in [in_fragments(&echo(1, &data), 1), in_fragments(&echo(1, &data), 3)] {
            for cut in 1..record.len() {
                let mut stream = connect(address);
                stream.set_nodelay(true).unwrap();
                stream.write_all(&record[..cut]).unwrap();
                std::thread::sleep(Duration::from_millis(1));
                stream.write_all(&record[cut..]).unwrap();
                expect_echo(&mut stream, 1, &data);
            }
        }
    });
}

#[test]
fn payloads_of_all_lengths_come_back_and_calls_may_be_sent_at_once() {
    let seed = weft_test_random::seed();
    with_server(Limits::default(), move |address, _| {
        let mut stream = connect(address);
        let mut sender = stream.try_clone().unwrap();
        let lengths: Vec<usize> = (0..300u64)
            .map(|index| {
                (seed.wrapping_mul(index * 2 + 1) >> 20) as usize
                    % if index % 9 == 0 { 1 << 20 } else { 9000 }
            })
            .collect();
        let sent = lengths.clone();
        let sending = std::thread::spawn(move || {
            for (xid, bytes) in sent.into_iter().enumerate() {
                sender.write_all(&in_fragments(&echo(xid as u32, &pattern(bytes)), 1 + xid % 3)).unwrap();
            }
        });
        for (xid, bytes) in lengths.into_iter().enumerate() {
            expect_echo(&mut stream, xid as u32, &pattern(bytes));
        }
        sending.join().unwrap();
    });
}

#[test]
fn replies_leave_when_they_are_ready_and_no_more_calls_run_than_may() {
    let limits = Limits { calls_per_connection: 3, ..Limits::default() };
    let most = with_server(limits, |address, _| {
        let mut stream = connect(address);
        let times = [1500u32, 5, 400, 1, 1, 1];
        let calls = times.iter().enumerate();
        let records =
            calls.map(|(xid, ms)| in_fragments(&call(xid as u32, LATER, Writer::new().u32(*ms)), 1));
        stream.write_all(&records.collect::<Vec<_>>().concat()).unwrap();
        let order: Vec<u32> = times.iter().map(|_| receive(&mut stream).0.xid).collect();
        assert_eq!(order[0], 1, "the first one of the first three that is ready: {order:?}");
        assert_eq!(order[5], 0, "the longest: {order:?}");
    });
    assert_eq!(most, 3);
}

#[test]
fn what_cannot_be_served_is_answered_with_why() {
    with_server(Limits::default(), |address, _| {
        let mut stream = connect(address);
        let mut ask = |message: Vec<u8>| {
            stream.write_all(&in_fragments(&message, 1)).unwrap();
            receive(&mut stream).0.outcome
        };
        assert_eq!(ask(call(1, NULL, Writer::new())), Ok(()));
        assert_eq!(ask(call(1, 99, Writer::new())), Err(Refusal::NoProcedure));
        assert_eq!(ask(call(1, ECHO, Writer::new())), Err(Refusal::Arguments));
        for bytes in [5, 8, 9, u32::MAX] {
            let beyond = Writer::new().u32(1).u32(bytes).fixed(&[7; 4]);
            assert_eq!(ask(call(1, ECHO, beyond)), Err(Refusal::Arguments), "{bytes} bytes of 4");
        }
        let with = |at: usize, byte: u8| {
            let mut message = call(1, NULL, Writer::new());
            message[at] = byte;
            message
        };
        assert_eq!(ask(with(15, 9)), Err(Refusal::NoProgram));
        assert_eq!(ask(with(11, 3)), Err(Refusal::RpcVersion));
        assert_eq!(ask(with(27, 6)), Err(Refusal::Auth(AuthStat::RejectedCredential)));
        assert_eq!(ask(call(1, NULL, Writer::new())), Ok(()), "the connection goes on");
    });
}

#[test]
fn calls_under_way_are_answered_after_the_peer_has_ended_its_side() {
    with_server(Limits::default(), |address, _| {
        let mut stream = connect(address);
        stream.write_all(&in_fragments(&call(3, LATER, Writer::new().u32(50)), 1)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(receive(&mut stream).0.xid, 3);
        assert!(is_ended(&mut stream));
    });
}

#[test]
fn replies_that_are_ready_leave_together_and_calls_are_counted() {
    with_server(Limits::default(), |address, watch| {
        let mut stream = connect(address);
        let records = (0..50).map(|xid| in_fragments(&call(xid, NULL, Writer::new()), 1));
        let sent: Vec<u8> = records.collect::<Vec<_>>().concat();
        stream.write_all(&sent).unwrap();
        (0..50).for_each(|xid| assert_eq!(receive(&mut stream).0.xid, xid));
        stream.write_all(&in_fragments(&call(50, 99, Writer::new()), 1)).unwrap();
        receive(&mut stream);
        let counts = watch.wait("51 replies", |counts| counts.sent_bytes == 51 * 28);
        assert!(counts.sends < 20, "{counts:?}");
        assert_eq!(counts.calls.into_iter().collect::<Vec<_>>(), [((PROGRAM, 1, NULL), 50)]);
        assert_eq!(counts.refused_calls, 1, "what was made up has no count of its own");
        assert_eq!(counts.received_bytes, sent.len() as u64 + 44);
        assert_eq!((counts.connections, counts.accepted), (1, 1));
    });
}

#[test]
fn a_payload_is_copied_only_as_far_as_it_came_with_its_head() {
    with_server(Limits::default(), |address, watch| {
        let (mut stream, data) = (connect(address), pattern(1 << 20));
        for xid in 0..10 {
            stream.write_all(&in_fragments(&echo(xid, &data), 1)).unwrap();
            expect_echo(&mut stream, xid, &data);
        }
        let counts = watch.wait("10 calls", |counts| counts.received_bytes > 10 << 20);
        assert!(counts.copied_bytes <= 10 * HEAD_ROOM_BYTES as u64, "{counts:?}");
    });
}

#[test]
fn a_stopped_server_answers_what_is_under_way_and_takes_no_more() {
    with_server(Limits { calls_per_connection: 2, ..Limits::default() }, |address, watch| {
        let (mut busy, mut idle) = (connect(address), connect(address));
        let large = |xid| call(xid, LARGE, Writer::new().u32(1 << 20).u32(300));
        // What comes behind them is not read whole, and lies in the socket when it is closed.
        let records = [large(1), large(2), echo(3, &pattern(40_000))];
        busy.write_all(&records.map(|message| in_fragments(&message, 1)).concat()).unwrap();
        watch.wait("the calls", |counts| counts.connections == 2 && counts.received_bytes > 0);
        watch.stop();
        assert!(is_ended(&mut idle));
        // Most of the replies wait in the server's socket.
        std::thread::sleep(Duration::from_millis(600));
        for xid in [1, 2] {
            let (header, results) = receive(&mut busy);
            assert_eq!((header.xid, results.len()), (xid, 4 + (1 << 20)));
        }
        assert!(is_ended(&mut busy));
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
    });
}
