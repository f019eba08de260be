//! A server with a small program, and clients that are plain sockets.

use std::cell::Cell;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use weft_onc_rpc::record::Mark;
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_onc_rpc::{AuthStat, CallHeader, Credential, Refusal};
use weft_onc_server::{Call, Limits, Needs, Placed, Reply, Results, Server, Service};
use weft_reactor::{Reactor, ReactorOptions, sleep, spawn};

const PROGRAM: u32 = 0x2000_0001;
const NULL: u32 = 0;
/// Number, opaque data, number: answered with the sum, and the data.
const ECHO: u32 = 1;
/// Milliseconds: answered after so long, with them.
const LATER: u32 = 2;
/// Bytes: answered with so many.
const LARGE: u32 = 3;

#[derive(Default)]
struct Echo {
    under_way: Cell<usize>,
    most_under_way: Cell<usize>,
}

impl Service for Echo {
    fn needs(&self, header: &CallHeader, arguments: &[u8]) -> Needs {
        let known = |payload, reply_bytes| Needs::Known { payload, reply_bytes };
        let mut reader = Reader::new(arguments);
        match header.procedure {
            ECHO => match (reader.u32(), reader.u32()) {
                (Ok(_), Ok(bytes)) => known(Some(Placed { at: 8, bytes: bytes as usize }), bytes as usize),
                _ => Needs::More,
            },
            LARGE => reader.u32().map_or(Needs::More, |bytes| known(None, bytes as usize)),
            _ => known(None, 0),
        }
    }

    fn call(self: Rc<Self>, call: Call) -> Pin<Box<dyn Future<Output = Reply>>> {
        Box::pin(async move {
            self.under_way.set(self.under_way.get() + 1);
            self.most_under_way.set(self.most_under_way.get().max(self.under_way.get()));
            let reply = answer(call).await;
            self.under_way.set(self.under_way.get() - 1);
            reply
        })
    }
}

async fn answer(call: Call) -> Reply {
    let mut reader = Reader::new(&call.arguments);
    let refused = Reply::Refused(Refusal::Arguments);
    match (call.header.program, call.header.procedure) {
        (PROGRAM, NULL) => Vec::new().into(),
        (PROGRAM, ECHO) => {
            let Some(data) = call.payload else { return refused };
            let (Ok(first), Ok(bytes), Ok(last)) = (reader.u32(), reader.u32(), reader.u32()) else {
                return refused;
            };
            assert_eq!(bytes as usize, data.len());
            let before = Writer::new().u32(first.wrapping_add(last)).u32(bytes).into_bytes();
            Reply::Results(Results { before, data })
        }
        (PROGRAM, LATER) => {
            let Ok(ms) = reader.u32() else { return refused };
            sleep(Duration::from_millis(ms.into())).await;
            Writer::new().u32(ms).into_bytes().into()
        }
        (PROGRAM, LARGE) => {
            let Ok(bytes) = reader.u32() else { return refused };
            Reply::Results(Results {
                before: Writer::new().u32(bytes).into_bytes(),
                data: vec![7; bytes as usize],
            })
        }
        (PROGRAM, _) => Reply::Refused(Refusal::NoProcedure),
        _ => Reply::Refused(Refusal::NoProgram),
    }
}

/// Runs a server, and `client` in a thread, until that has ended. The most calls that were under way at once.
fn with_server(limits: Limits, client: impl FnOnce(SocketAddr) + Send + 'static) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || client(address));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let service = Rc::new(Echo::default());
    reactor.run(async {
        let server = Server::new(service.clone(), limits);
        let listening = server.clone();
        let listens = spawn(async move { listening.listen(listener).await });
        while !thread.is_finished() {
            sleep(Duration::from_millis(5)).await;
        }
        server.stop();
        listens.await.unwrap();
    });
    thread.join().unwrap();
    service.most_under_way.get()
}

fn call(xid: u32, procedure: u32, arguments: Writer) -> Vec<u8> {
    let header = CallHeader { xid, program: PROGRAM, version: 1, procedure, credential: Credential::None };
    [header.write().into_bytes(), arguments.into_bytes()].concat()
}

fn echo(xid: u32, data: &[u8]) -> Vec<u8> {
    call(xid, ECHO, Writer::new().u32(40).opaque(data).u32(2))
}

fn in_fragments(message: &[u8], fragments: usize) -> Vec<u8> {
    let each = message.len().div_ceil(fragments).max(1);
    let last = message.len().div_ceil(each) - 1;
    let mut record = Vec::new();
    for (index, fragment) in message.chunks(each).enumerate() {
        let mark = Mark { is_last: index == last, bytes: fragment.len() as u32 };
        record.extend_from_slice(&mark.to_bytes());
        record.extend_from_slice(fragment);
    }
    record
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn receive(stream: &mut TcpStream) -> (ReplyHeader, Vec<u8>) {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mark = Mark::of(mark);
    assert!(mark.is_last);
    let mut message = vec![0; mark.bytes as usize];
    stream.read_exact(&mut message).unwrap();
    let (header, bytes) = ReplyHeader::decode(&message).unwrap();
    (header, message.split_off(bytes))
}

/// Whether the server has ended the connection.
fn is_ended(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 1]), Ok(1))
}

fn expect_echo(stream: &mut TcpStream, xid: u32, data: &[u8]) {
    let (header, results) = receive(stream);
    assert_eq!(header, ReplyHeader { xid, outcome: Ok(()) });
    assert_eq!(results, Writer::new().u32(42).opaque(data).into_bytes());
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect()
}

#[test]
fn a_call_is_answered_wherever_the_stream_is_cut() {
    with_server(Limits::default(), |address| {
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
    with_server(Limits::default(), move |address| {
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
    let most = with_server(limits, |address| {
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
    with_server(Limits::default(), |address| {
        let mut stream = connect(address);
        let mut ask = |message: Vec<u8>| {
            stream.write_all(&in_fragments(&message, 1)).unwrap();
            receive(&mut stream).0.outcome
        };
        assert_eq!(ask(call(1, NULL, Writer::new())), Ok(()));
        assert_eq!(ask(call(1, 99, Writer::new())), Err(Refusal::NoProcedure));
        assert_eq!(ask(call(1, ECHO, Writer::new())), Err(Refusal::Arguments));
        assert_eq!(ask(call(1, ECHO, Writer::new().u32(1).u32(u32::MAX))), Err(Refusal::Arguments));
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
fn who_breaks_the_protocol_is_cut_off_alone() {
    with_server(
        Limits { record_bytes: 4096, stall: Duration::from_millis(300), ..Limits::default() },
        |address| {
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
    with_server(limits, |address| {
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
fn calls_under_way_are_answered_after_the_peer_has_ended_its_side() {
    with_server(Limits::default(), |address| {
        let mut stream = connect(address);
        stream.write_all(&in_fragments(&call(3, LATER, Writer::new().u32(50)), 1)).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(receive(&mut stream).0.xid, 3);
        assert!(is_ended(&mut stream));
    });
}
