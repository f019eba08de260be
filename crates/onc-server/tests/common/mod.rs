//! A server with a small program, and clients of TCP that are plain sockets.
#![allow(dead_code)]

use std::cell::Cell;
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_onc_rpc::record::Mark;
use weft_onc_rpc::reply::ReplyHeader;
use weft_onc_rpc::xdr::{Reader, Writer};
use weft_onc_rpc::{CallHeader, Credential, Refusal};
use weft_onc_server::{Call, Counts, Limits, Needs, Placed, Reply, Results, Server, Service};
use weft_reactor::{JoinHandle, Reactor, ReactorOptions, sleep, spawn};

pub const PROGRAM: u32 = 0x2000_0001;
pub const NULL: u32 = 0;
/// Number, opaque data, number: answered with the sum, and the data.
pub const ECHO: u32 = 1;
/// Milliseconds: answered after so long, with them.
pub const LATER: u32 = 2;
/// Bytes, and milliseconds if any: answered with so many, after so long.
pub const LARGE: u32 = 3;

/// Opaque data: answered with their length.
pub const SINK: u32 = 4;

/// Words: answered with so many zeros, none of them as data.
pub const WORDS: u32 = 5;

#[derive(Default)]
pub struct Echo {
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
            SINK => reader
                .u32()
                .map_or(Needs::More, |bytes| known(Some(Placed { at: 4, bytes: bytes as usize }), 0)),
            WORDS => reader.u32().map_or(Needs::More, |words| known(None, 4 * words as usize)),
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
            sleep(Duration::from_millis(reader.u32().unwrap_or(0).into())).await;
            let mut data = call.buffers.take(bytes as usize);
            data.fill(7);
            Reply::Results(Results { before: Writer::new().u32(bytes).into_bytes(), data })
        }
        (PROGRAM, WORDS) => {
            let Ok(words) = reader.u32() else { return refused };
            vec![0; 4 * words as usize].into()
        }
        (PROGRAM, SINK) => {
            let bytes = call.payload.map_or(0, |data| data.len());
            Writer::new().u32(bytes as u32).into_bytes().into()
        }
        (PROGRAM, _) => Reply::Refused(Refusal::NoProcedure),
        _ => Reply::Refused(Refusal::NoProgram),
    }
}

/// A server that a client's thread looks at.
#[derive(Clone, Default)]
pub struct Watch {
    counts: Arc<Mutex<Counts>>,
    stops: Arc<AtomicBool>,
}

impl Watch {
    /// Waits until the server's counts are as they are expected.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Counts) -> bool) -> Counts {
        let begun = Instant::now();
        loop {
            let counts = self.counts.lock().unwrap().clone();
            if is_so(&counts) {
                return counts;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {counts:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the server.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
    }
}

/// Nothing takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a server over TCP, and `client` in a thread, until that has ended and nobody is connected. The most
/// calls that were under way at once.
pub fn with_server(limits: Limits, client: impl FnOnce(SocketAddr, Watch) + Send + 'static) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listen = |server: Server<Echo>| spawn(async move { server.listen(listener).await.unwrap() });
    run(limits, listen, move |watch| client(address, watch))
}

/// The same for a server that listens as `listen` has it.
pub fn run(
    limits: Limits,
    listen: impl FnOnce(Server<Echo>) -> JoinHandle<()>,
    client: impl FnOnce(Watch) + Send + 'static,
) -> usize {
    let watch = Watch::default();
    let watched = watch.clone();
    let thread = std::thread::spawn(move || client(watched));
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    let service = Rc::new(Echo::default());
    reactor.run(async {
        let server = Server::new(service.clone(), limits);
        let listens = listen(server.clone());
        while !thread.is_finished() {
            *watch.counts.lock().unwrap() = server.counts();
            if watch.stops.load(Ordering::SeqCst) {
                server.stop();
            }
            sleep(Duration::from_millis(2)).await;
        }
        server.stop();
        listens.await;
        let begun = Instant::now();
        while !server.peers().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "{:?} are still connected", server.peers());
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(server.counts().memory_bytes, 0, "all memory is given back");
    });
    thread.join().unwrap();
    service.most_under_way.get()
}

pub fn call(xid: u32, procedure: u32, arguments: Writer) -> Vec<u8> {
    let header = CallHeader { xid, program: PROGRAM, version: 1, procedure, credential: Credential::None };
    [header.write().into_bytes(), arguments.into_bytes()].concat()
}

pub fn echo(xid: u32, data: &[u8]) -> Vec<u8> {
    call(xid, ECHO, Writer::new().u32(40).opaque(data).u32(2))
}

pub fn in_fragments(message: &[u8], fragments: usize) -> Vec<u8> {
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

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn receive(stream: &mut TcpStream) -> (ReplyHeader, Vec<u8>) {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mark = Mark::of(mark);
    assert!(mark.is_last);
    let mut message = vec![0; mark.bytes as usize];
    stream.read_exact(&mut message).unwrap();
    let (header, bytes) = ReplyHeader::decode(&message).unwrap();
    (header, message.split_off(bytes))
}

/// Whether the server has ended the connection, after whatever it has sent.
pub fn is_ended(stream: &mut TcpStream) -> bool {
    let mut room = vec![0; 65536];
    loop {
        match stream.read(&mut room) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

pub fn expect_echo(stream: &mut TcpStream, xid: u32, data: &[u8]) {
    let (header, results) = receive(stream);
    assert_eq!(header, ReplyHeader { xid, outcome: Ok(()) });
    assert_eq!(results, Writer::new().u32(42).opaque(data).into_bytes());
}

pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31) >> 3) as u8).collect()
}
