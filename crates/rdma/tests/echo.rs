//! A protocol that has nothing to do with Weft's, over the same ports: its own private data, credits in each
//! message, and chunks that the server reads and writes, as RPC/RDMA has them.
//!
//! ```text
//!   call    what u8 │ chunk: address u64, bytes u32, key u32 │ text
//!   reply   credits u8 │ text
//!           ECHO    the text                       one Send each way
//!           READ    the text, and what is in the chunk     RDMA Read, Send
//!           WRITE   nothing; the text goes to the chunk    RDMA Write ▸ Send, one doorbell
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_rdma::{
    Acceptor, Channel, Check, Connection, Ended, Held, Place, PortOptions, PortStatus, Ports, Protocol,
    Refusal, RemotePiece, Writes,
};
use weft_reactor::{MailSender, Notify, Reactor, ReactorOptions, mailbox, spawn};
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, EndpointState, Fabric, Receives,
    Registration, SendWork, TrafficClass, VerbsError, Work, WorkKind, WorkStatus,
};
use weft_verbs_double::{Adapter, Pretend, PretendEndpoint, PretendOptions, PretendQueue, RegisteredMemory};

const PATIENCE: Duration = Duration::from_secs(5);
const ECHO: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
const CALL_HEAD_BYTES: usize = 17;

/// The protocol, as whoever listens knows it: peers say its name.
#[derive(Clone)]
struct Named(&'static [u8]);

impl Check for Named {
    type Asked = u8;

    /// Name, and a number that the server says again.
    fn check(&self, said: &[u8]) -> Result<u8, Vec<u8>> {
        let number = said.strip_prefix(self.0).and_then(|rest| rest.first());
        number.copied().ok_or_else(|| b"nobody of that name".to_vec())
    }
}

impl Protocol<Pretend> for Named {
    type Asked = u8;
    type Connection = Echo;

    fn reads_in(&self) -> u8 {
        0
    }

    fn accept(&self, channel: Channel<Pretend>, number: u8) -> (Rc<Echo>, Vec<u8>) {
        let accepted = vec![number, channel.window() as u8];
        (Rc::new(Echo { channel, calls: RefCell::default(), news: Notify::new() }), accepted)
    }

    fn refuse(&self, why: Refusal) -> Vec<u8> {
        format!("{why:?}").into()
    }
}

struct Echo {
    channel: Channel<Pretend>,
    calls: RefCell<VecDeque<Vec<u8>>>,
    news: Notify,
}

impl Connection<Pretend> for Echo {
    fn channel(&self) -> &Channel<Pretend> {
        &self.channel
    }

    fn received(&self, kind: WorkKind, message: &[u8]) {
        if kind != WorkKind::Received || message.len() < CALL_HEAD_BYTES {
            return self.channel.fail(Ended::Broken("it is no call".into()));
        }
        self.calls.borrow_mut().push_back(message.to_vec());
        self.news.notify();
    }

    fn receives_posted(&self) {
        self.channel.adjust_window(self.calls.borrow().len() as u32);
    }

    fn failed(&self) {
        self.news.notify();
    }
}

impl Echo {
    async fn next(&self) -> Option<Vec<u8>> {
        loop {
            if let Some(call) = self.calls.borrow_mut().pop_front() {
                return Some(call);
            }
            if self.channel.is_over() {
                return None;
            }
            self.news.notified().await;
        }
    }

    async fn serve(&self) -> Ended {
        while let Some(call) = self.next().await {
            if self.answer(&call).await.is_err() {
                break;
            }
        }
        self.channel.ended()
    }

    async fn answer(&self, call: &[u8]) -> Result<(), Ended> {
        let (head, text) = call.split_at(CALL_HEAD_BYTES);
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let address = u64::from_le_bytes(head[1..9].try_into().unwrap());
        let chunk = RemotePiece { address, bytes: short(9).into(), remote_key: short(13) };
        let port = self.channel.port().clone();
        let mut reply = vec![self.channel.window() as u8];
        let mut writes = Writes::default();
        match head[0] {
            READ => {
                let mut data = port.bounce_slot().await;
                let local = [data.piece(chunk.bytes as usize)];
                // SAFETY: the slot is given back after the transfer.
                unsafe { self.channel.transfer(&local, [chunk], true) }.await?;
                reply.extend(text);
                // SAFETY: the transfer has ended.
                reply.extend(&unsafe { data.fill() }[..chunk.bytes as usize]);
            }
            WRITE => {
                let mut data = port.bounce_slot().await;
                // SAFETY: the slot is new.
                let memory = unsafe { data.fill() };
                memory[..text.len()].copy_from_slice(text);
                let local = [data.piece(text.len())];
                // SAFETY: the slot is held until the work has ended.
                let planned = unsafe { self.channel.writes(&local, [chunk], Held::Slot(data)).await };
                writes = self.channel.write_before(vec![planned], true).await?;
            }
            _ => reply.extend(text),
        }
        let mut slot = port.message_slot().await;
        // SAFETY: the slot is new.
        let memory = unsafe { slot.fill() };
        memory[..reply.len()].copy_from_slice(&reply);
        let room = self.channel.room(writes.len() + 1).await;
        self.channel.send(room, writes, slot, reply.len(), None)
    }
}

/// A thread that serves two protocols over the same ports.
struct Server {
    host: Pretend,
    client_host: Pretend,
    addresses: [SocketAddr; 2],
    stop: MailSender<()>,
    status: std::sync::mpsc::Receiver<(Ended, Vec<PortStatus>)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(options: PortOptions) -> Server {
        let host = Pretend::new(PretendOptions::default());
        let adapter = Adapter::new("pretend1", "127.0.0.2".parse().unwrap());
        let client_host = host.another_host(vec![adapter]);
        let listen = |name: &'static [u8]| {
            Place::new(&host, "127.0.0.1:0".parse().unwrap(), Named(name)).listen().unwrap()
        };
        let doors = [listen(b"echo"), listen(b"other")];
        let addresses = [doors[0].address(), doors[1].address()];
        let (stop, mut stopped) = mailbox(1);
        let (ended, status) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            Reactor::new(ReactorOptions::default()).unwrap().run(async {
                let ports = Ports::new(options);
                for (door, name) in doors.into_iter().zip([&b"echo"[..], b"other"]) {
                    let acceptor = door.acceptor().unwrap();
                    spawn(accept_all(acceptor, Named(name), ports.clone(), ended.clone()));
                }
                stopped.receive().await;
            });
        });
        Server { host, client_host, addresses, stop, status, thread: Some(thread) }
    }
}

async fn accept_all(
    mut acceptor: Acceptor<Pretend, Named>,
    protocol: Named,
    ports: Ports<Pretend>,
    ended: std::sync::mpsc::Sender<(Ended, Vec<PortStatus>)>,
) {
    loop {
        let asked = acceptor.next().await.unwrap();
        let (protocol, ports, ended) = (protocol.clone(), ports.clone(), ended.clone());
        spawn(async move {
            let Ok(connection) = ports.accept(&protocol, asked).await else { return };
            let cause = connection.serve().await;
            let status = ports.live().iter().map(|port| port.status()).collect();
            let _ = ended.send((cause, status));
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        let served = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || matches!(served, Some(Ok(()))));
        assert!(
            std::thread::panicking() || self.host.complaints().is_empty(),
            "{:?}",
            self.host.complaints()
        );
    }
}

const RECEIVES: usize = 8;
const RECEIVE_BYTES: usize = 8 << 10;
/// Where in a client's memory its chunk is; its messages are before it.
const CHUNK: usize = (RECEIVES + 1) * RECEIVE_BYTES;

struct Client {
    endpoint: PretendEndpoint,
    queue: PretendQueue,
    memory: RegisteredMemory,
}

impl Client {
    fn connect(server: &Server, at: SocketAddr, said: &[u8]) -> Result<Client, VerbsError> {
        let mut endpoint = server.client_host.resolve(at, TrafficClass::default(), PATIENCE)?;
        let device = endpoint.device();
        let queue = device.completion_queue(64)?;
        let options =
            EndpointOptions { send_depth: 16, pieces: 1, inline_bytes: 0, reads_out: 0, reads_in: 4 };
        endpoint.create_queue_pair(&options, &queue, Receives::Own(RECEIVES as u32))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = RegisteredMemory::new(&device, CHUNK + 4096, access)?;
        let mut client = Client { endpoint, queue, memory };
        (0..RECEIVES).for_each(|slot| client.post_receive(slot));
        client.endpoint.connect(said, PATIENCE)?;
        Ok(client)
    }

    fn post_receive(&mut self, slot: usize) {
        let piece = self.memory.piece(slot * RECEIVE_BYTES, RECEIVE_BYTES);
        // SAFETY: this part of the memory is for receives.
        unsafe { self.endpoint.post_receive(&[(slot as u64, piece)]) }.unwrap();
    }

    fn send(&mut self, message: &[u8]) {
        let at = RECEIVES * RECEIVE_BYTES;
        self.memory[at..at + message.len()].copy_from_slice(message);
        let pieces = [self.memory.piece(at, message.len())];
        let (work, signalled) = (Work::Send, true);
        let work = SendWork { id: 1 << 40, work, pieces: &pieces, signalled, fenced: false, inline: false };
        // SAFETY: the pretended adapter takes the bytes at once.
        unsafe { self.endpoint.post_send(&[work]) }.unwrap();
    }

    /// Calls, with the first `chunk_bytes` of the chunk; the reply's credits and text.
    fn call(&mut self, what: u8, chunk_bytes: u32, text: &[u8]) -> Option<(u8, Vec<u8>)> {
        let mut message = vec![what];
        message.extend((self.memory.as_ptr() as u64 + CHUNK as u64).to_le_bytes());
        message.extend(chunk_bytes.to_le_bytes());
        message.extend(self.memory.registration.remote_key().to_le_bytes());
        message.extend(text);
        self.send(&message);
        let (deadline, mut done) = (Instant::now() + PATIENCE, Vec::new());
        while Instant::now() < deadline {
            self.queue.poll(&mut done, 1).unwrap();
            match done.pop() {
                Some(end) if end.status != WorkStatus::Ok => return None,
                Some(end) if end.kind == WorkKind::Received => {
                    let at = end.id as usize * RECEIVE_BYTES;
                    let reply = self.memory[at..at + end.bytes as usize].to_vec();
                    self.post_receive(end.id as usize);
                    return Some((reply[0], reply[1..].to_vec()));
                }
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        panic!("no reply");
    }
}

#[test]
fn a_protocol_has_private_data_of_its_own() {
    let server = Server::start(PortOptions::default());
    let client = Client::connect(&server, server.addresses[0], b"echo\x07").unwrap();
    assert_eq!(client.endpoint.private_data()[..2], [7, 4]);
    let refused = Client::connect(&server, server.addresses[0], b"WEFT\x01\x01").err().unwrap();
    let VerbsError::Rejected { private_data, .. } = refused else { panic!("{refused}") };
    assert!(private_data.starts_with(b"nobody of that name"));
    assert_eq!(server.host.counts().receiver_not_ready, 0);
}

#[test]
fn who_does_not_fit_is_refused_in_the_protocols_words() {
    let server = Server::start(PortOptions { receives: 4, ..PortOptions::default() });
    let _client = Client::connect(&server, server.addresses[0], b"echo\x07").unwrap();
    let refused = Client::connect(&server, server.addresses[0], b"echo\x07").err().unwrap();
    let VerbsError::Rejected { private_data, .. } = refused else { panic!("{refused}") };
    assert!(private_data.starts_with(b"Full"));
}

#[test]
fn messages_and_chunks_go_both_ways() {
    let server = Server::start(PortOptions::default());
    let mut client = Client::connect(&server, server.addresses[0], b"echo\x07").unwrap();
    let (first, text) = client.call(ECHO, 0, b"hello").unwrap();
    assert_eq!(text, b"hello");
    client.memory[CHUNK..CHUNK + 5].copy_from_slice(b"world");
    assert_eq!(client.call(READ, 5, b"hello ").unwrap().1, b"hello world");

    let before = server.host.counts();
    let (last, text) = client.call(WRITE, 9, b"from afar").unwrap();
    let cost = server.host.counts().since(&before);
    assert_eq!((&client.memory[CHUNK..CHUNK + 9], text.len()), (&b"from afar"[..], 0));
    assert_eq!((cost.writes, cost.sends, cost.doorbells), (1, 1, 1), "data and reply leave together");
    assert!(last > first, "a connection at work is granted more credits: {first}, {last}");
}

#[test]
fn two_protocols_share_a_port() {
    let server = Server::start(PortOptions::default());
    let mut one = Client::connect(&server, server.addresses[0], b"echo\x01").unwrap();
    let mut other = Client::connect(&server, server.addresses[1], b"other\x02").unwrap();
    assert_eq!(one.call(ECHO, 0, b"one").unwrap().1, b"one");
    assert_eq!(other.call(ECHO, 0, b"other").unwrap().1, b"other");
    one.endpoint.disconnect();
    let (ended, ports) = server.status.recv_timeout(PATIENCE).unwrap();
    assert_eq!((ended, ports.len()), (Ended::Closed, 1));
    assert_eq!((ports[0].connections, ports[0].receives), (2, 1024), "one is still being seen to its end");
    assert_eq!(other.call(ECHO, 0, b"still there").unwrap().1, b"still there");
}

#[test]
fn a_chunk_with_a_wrong_key_ends_its_connection_and_no_other() {
    let server = Server::start(PortOptions::default());
    let mut one = Client::connect(&server, server.addresses[0], b"echo\x01").unwrap();
    let mut other = Client::connect(&server, server.addresses[0], b"echo\x02").unwrap();
    assert_eq!(one.call(READ, 100_000, b""), None, "the chunk is longer than the memory behind the key");
    assert!(matches!(server.status.recv_timeout(PATIENCE).unwrap().0, Ended::Broken(_)));
    assert!(matches!(one.endpoint.state(), EndpointState::Ended(_)));
    assert_eq!(other.call(ECHO, 0, b"still there").unwrap().1, b"still there");
}

#[test]
fn what_is_no_call_ends_the_connection() {
    let server = Server::start(PortOptions::default());
    // The message is often there before the event that tells that the connection stands.
    for _ in 0..200 {
        let mut client = Client::connect(&server, server.addresses[0], b"echo\x01").unwrap();
        client.send(b"short");
        let (ended, _) = server.status.recv_timeout(PATIENCE).unwrap();
        assert_eq!(ended, Ended::Broken("it is no call".into()));
    }
}
