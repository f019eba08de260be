//! A server of calls over RDMA that does what a test tells it to, on the double of verbs.
// Not every test needs all of it.
#![allow(dead_code)]

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_nfs_client::{ConnectOptions, NfsClient, NfsUrl, RdmaDesign};
use weft_onc_rpc::CallHeader;
use weft_onc_rpc::rdma::{Body, Chunks, PrivateData, RdmaError, RdmaHeader, ReadSegment, Segment};
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::Writer;
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, EndpointState, Fabric, Listener, Receives,
    Registration, SendWork, Work, WorkDone, WorkKind, WorkStatus,
};
use weft_verbs_double::{
    Adapter, Pretend, PretendEndpoint, PretendListener, PretendOptions, PretendQueue, RegisteredMemory,
};

pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;
pub const GETATTR: u32 = 1;
pub const READLINK: u32 = 5;
pub const READ: u32 = 6;
pub const WRITE: u32 = 7;
pub const SYMLINK: u32 = 10;
pub const READDIRPLUS: u32 = 17;
pub const FSINFO: u32 = 19;

const RECEIVES: usize = 64;
const MESSAGE_BYTES: usize = 4096;
const SEND_AT: usize = RECEIVES * MESSAGE_BYTES;
const DATA_AT: usize = SEND_AT + MESSAGE_BYTES;
const DATA_BYTES: usize = 2 << 20;

/// A call as it came.
#[derive(Debug, Clone)]
pub struct Call {
    pub header: RdmaHeader,
    pub chunks: Chunks,
    /// It came in a chunk at position 0.
    pub is_long: bool,
    pub program: u32,
    pub procedure: u32,
    /// With what was in chunks.
    pub arguments: Vec<u8>,
    /// The how-manieth connection it came by.
    pub connection: usize,
}

/// The server's end of a connection.
pub struct Peer {
    endpoint: PretendEndpoint,
    queue: PretendQueue,
    memory: RegisteredMemory,
    arrived: VecDeque<WorkDone>,
    pub connection: usize,
    /// What the client has said of itself.
    pub said: Option<PrivateData>,
    /// What is granted with each reply.
    pub credits: u32,
    /// The next reply ends this key.
    pub ends_key: Option<u32>,
    /// Replies that the client is to read, by the numbers of their calls.
    exposed: HashMap<u32, Vec<RegisteredMemory>>,
    /// Those that it has read.
    pub done: Vec<u32>,
}

impl Peer {
    fn accept(mut endpoint: PretendEndpoint, own: &[u8], connection: usize) -> Peer {
        let device = endpoint.device();
        let queue = device.completion_queue(256).unwrap();
        let options =
            EndpointOptions { send_depth: 64, pieces: 1, inline_bytes: 0, reads_out: 4, reads_in: 16 };
        endpoint.create_queue_pair(&options, &queue, Receives::Own(RECEIVES as u32)).unwrap();
        let memory = RegisteredMemory::new(&device, DATA_AT + DATA_BYTES, Access::LOCAL_WRITE).unwrap();
        let said = PrivateData::decode(endpoint.private_data());
        let (arrived, credits) = (VecDeque::new(), 32);
        let (ends_key, exposed, done) = (None, HashMap::new(), Vec::new());
        let mut peer =
            Peer { endpoint, queue, memory, arrived, connection, said, credits, ends_key, exposed, done };
        (0..RECEIVES).for_each(|slot| peer.post_receive(slot));
        peer.endpoint.accept(own).unwrap();
        peer
    }

    fn post_receive(&mut self, slot: usize) {
        let piece = self.memory.piece(slot * MESSAGE_BYTES, MESSAGE_BYTES);
        // SAFETY: this part of the memory is for receives.
        unsafe { self.endpoint.post_receive(&[(slot as u64, piece)]) }.unwrap();
    }

    fn poll(&mut self) -> Vec<WorkDone> {
        let mut done = Vec::new();
        self.queue.poll(&mut done, 64).unwrap();
        done
    }

    /// Whether there is a call that was not looked at.
    pub fn has_more(&mut self) -> bool {
        let done = self.poll();
        self.arrived.extend(done);
        !self.arrived.is_empty()
    }

    /// Posts work, and waits for its end.
    pub fn work(&mut self, work: Work, at: usize, bytes: usize) -> WorkStatus {
        let pieces = [self.memory.piece(at, bytes)];
        let work =
            SendWork { id: 1 << 40, work, pieces: &pieces, signalled: true, fenced: false, inline: false };
        // SAFETY: the memory is this peer's, which waits for the end.
        if unsafe { self.endpoint.post_send(&[work]) }.is_err() {
            return WorkStatus::Flushed;
        }
        loop {
            let done = self.poll();
            let ended = done.iter().find(|one| one.id == 1 << 40).map(|one| one.status);
            self.arrived.extend(done.into_iter().filter(|one| one.id != 1 << 40));
            match ended {
                Some(status) => return status,
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Reads memory of the client's.
    pub fn read(&mut self, segment: &Segment) -> Result<Vec<u8>, WorkStatus> {
        let work = Work::Read { remote_address: segment.offset, remote_key: segment.handle };
        match self.work(work, DATA_AT, segment.bytes as usize) {
            WorkStatus::Ok => Ok(self.memory[DATA_AT..][..segment.bytes as usize].to_vec()),
            status => Err(status),
        }
    }

    /// Writes memory of the client's.
    pub fn write(&mut self, segment: &Segment, bytes: &[u8]) -> WorkStatus {
        self.memory[DATA_AT..][..bytes.len()].copy_from_slice(bytes);
        let work = Work::Write { remote_address: segment.offset, remote_key: segment.handle };
        self.work(work, DATA_AT, bytes.len())
    }

    /// Fills a chunk, as far as the bytes go; what a reply says of it.
    pub fn fill(&mut self, chunk: &[Segment], mut bytes: &[u8]) -> Vec<Segment> {
        let mut said = chunk.to_vec();
        for segment in &mut said {
            let (now, later) = bytes.split_at(bytes.len().min(segment.bytes as usize));
            if !now.is_empty() {
                assert_eq!(self.write(segment, now), WorkStatus::Ok);
            }
            (segment.bytes, bytes) = (now.len() as u32, later);
        }
        assert!(bytes.is_empty(), "the chunk is too small");
        said
    }

    pub fn send(&mut self, xid: u32, body: Body, inline: &[u8]) {
        let header = RdmaHeader { xid, credits: self.credits, body }.write().into_bytes();
        let message = [&header[..], inline].concat();
        self.memory[SEND_AT..][..message.len()].copy_from_slice(&message);
        let work = match self.ends_key.take() {
            Some(remote_key) => Work::SendInvalidate { remote_key },
            None => Work::Send,
        };
        self.work(work, SEND_AT, message.len());
    }

    /// Replies as a server does: data in the write chunk if there is one, what is too long in the reply chunk.
    pub fn reply(&mut self, call: &Call, results: &[u8], data: &[u8]) {
        let xid = call.header.xid;
        let mut message = [&reply::success(xid).into_bytes()[..], results].concat();
        let mut chunks = Chunks { reply: call.chunks.reply.clone(), ..Chunks::default() };
        match call.chunks.writes.first() {
            Some(chunk) => chunks.writes = vec![self.fill(chunk, data)],
            None => {
                message.extend_from_slice(data);
                message.resize(message.len().next_multiple_of(4), 0);
            }
        }
        let longest = self.said.map_or(1024, |said| said.receive_bytes as usize).min(MESSAGE_BYTES);
        if message.len() + 60 > longest
            && let Some(chunk) = call.chunks.reply.clone()
        {
            chunks.reply = Some(self.fill(&chunk, &message));
            return self.send(xid, Body::NoMessage(chunks), &[]);
        }
        if let Some(chunk) = &mut chunks.reply {
            chunk.iter_mut().for_each(|segment| segment.bytes = 0);
        }
        self.send(xid, Body::Message(chunks), &message);
    }

    /// Memory with a key of its own that the client reads for a call, until it says that it has.
    pub fn expose(&mut self, xid: u32, bytes: &[u8]) -> Segment {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let mut memory = RegisteredMemory::new(&self.endpoint.device(), bytes.len(), access).unwrap();
        memory.copy_from_slice(bytes);
        let handle = memory.registration.remote_key();
        let segment = Segment { handle, bytes: bytes.len() as u32, offset: memory.as_ptr() as u64 };
        self.exposed.entry(xid).or_default().push(memory);
        segment
    }

    /// Replies as a server of the Read-Read design does. With `cuts` in so many segments.
    pub fn reply_exposing(&mut self, call: &Call, results: &[u8], data: &[u8], cuts: usize) {
        let xid = call.header.xid;
        assert!(call.chunks.writes.is_empty() && call.chunks.reply.is_none(), "it offers room");
        let mut message = [&reply::success(xid).into_bytes()[..], results].concat();
        if message.len() + data.len() + 60 <= MESSAGE_BYTES {
            return self.reply(call, results, data);
        }
        let position = if data.is_empty() { 0 } else { message.len() as u32 };
        let exposed = if data.is_empty() { message.clone() } else { data.to_vec() };
        assert!(!self.exposed.contains_key(&xid), "the reply to {xid} was not read");
        let parts: Vec<_> = exposed.chunks(exposed.len().div_ceil(cuts)).collect();
        let reads =
            parts.iter().map(|part| ReadSegment { position, segment: self.expose(xid, part) }).collect();
        let chunks = Chunks { reads, ..Chunks::default() };
        if data.is_empty() {
            message.clear();
        }
        let body = if data.is_empty() { Body::NoMessage(chunks) } else { Body::Message(chunks) };
        self.send(xid, body, &message);
    }

    pub fn refuse(&mut self, call: &Call, error: RdmaError) {
        self.send(call.header.xid, Body::Error(error), &[]);
    }

    pub fn disconnect(&mut self) {
        self.endpoint.disconnect();
    }

    /// The next call; `None` when the connection has ended.
    fn next(&mut self, stop: &AtomicBool) -> Option<Call> {
        loop {
            let message = self.next_message(stop)?;
            match RdmaHeader::decode(&message) {
                Ok((RdmaHeader { xid, body: Body::Done, .. }, _)) => {
                    assert!(self.exposed.remove(&xid).is_some(), "{xid} was not exposed");
                    self.done.push(xid);
                }
                _ => return Some(self.take(&message)),
            }
        }
    }

    fn next_message(&mut self, stop: &AtomicBool) -> Option<Vec<u8>> {
        while !self.has_more() {
            let has_ended = matches!(self.endpoint.state(), EndpointState::Ended(_));
            if stop.load(Ordering::Relaxed) || (has_ended && !self.has_more()) {
                return None;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        let done = self.arrived.pop_front()?;
        if done.status != WorkStatus::Ok || done.kind != WorkKind::Received {
            return None;
        }
        let slot = done.id as usize;
        let message = self.memory[slot * MESSAGE_BYTES..][..done.bytes as usize].to_vec();
        self.post_receive(slot);
        Some(message)
    }

    fn take(&mut self, message: &[u8]) -> Call {
        let (header, at) = RdmaHeader::decode(message).expect("a header");
        let (chunks, is_long) = match header.body.clone() {
            Body::Message(chunks) => (chunks, false),
            Body::NoMessage(chunks) => (chunks, true),
            other => panic!("{other:?}"),
        };
        let mut call = if is_long { Vec::new() } else { message[at..].to_vec() };
        for read in &chunks.reads {
            let position = read.position as usize;
            let is_at_place = position == call.len() || (position == 0 && is_long);
            assert!(is_at_place, "position {position} of {}", call.len());
            call.extend(self.read(&read.segment).expect("the client's memory can be read"));
        }
        let (head, at) = CallHeader::decode(&call).expect("a call");
        assert_eq!(head.xid, header.xid);
        Call {
            header,
            chunks,
            is_long,
            program: head.program,
            procedure: head.procedure,
            arguments: call[at..].to_vec(),
            connection: self.connection,
        }
    }
}

/// What the server exports, and which sizes it offers; whether that was asked.
fn answers_usual(peer: &mut Peer, call: &Call) -> bool {
    let results = match (call.program, call.procedure) {
        (MOUNT, 0 | 3) => Vec::new(),
        (MOUNT, 5) => Writer::new().bool(true).opaque(b"/x").bool(false).bool(false).into_bytes(),
        (MOUNT, 1) => Writer::new().u32(0).opaque(b"root").u32(1).u32(1).into_bytes(),
        (NFS, FSINFO) => {
            let sizes = [0, 0, 1 << 20, 1 << 18, 1, 1 << 20, 1 << 18, 1, 4096, 0, 1 << 30, 0, 1, 0];
            sizes.into_iter().fold(Writer::new(), Writer::u32).into_bytes()
        }
        _ => return false,
    };
    peer.reply(call, &results, &[]);
    true
}

/// A server, and a host of the client's.
pub struct Server {
    pub host: Pretend,
    pub client_host: Pretend,
    pub url: NfsUrl,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a script of a test does with a call; whether the connection goes on.
pub trait Script: FnMut(&mut Peer, &Call) -> bool + Send + 'static {}
impl<T: FnMut(&mut Peer, &Call) -> bool + Send + 'static> Script for T {}

impl Server {
    /// Answers what is usual itself, and gives all other calls to the script.
    pub fn start(script: impl Script) -> Server {
        let own = PrivateData { takes_invalidation: false, send_bytes: 4096, receive_bytes: 4096 };
        Server::start_with(&own.to_bytes(), Adapter::new("client", [127, 0, 0, 2].into()), script)
    }

    /// `own`: the private data of the server.
    pub fn start_with(own: &[u8], client: Adapter, script: impl Script) -> Server {
        let host = Pretend::new(PretendOptions::default());
        let client_host = host.another_host(vec![client]);
        let listener = host.listen("127.0.0.1:0".parse().unwrap(), 8).unwrap();
        let url = NfsUrl::parse(&format!("nfs://{}/x?transport=rdma", listener.address())).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (own, flag) = (own.to_vec(), stop.clone());
        let thread = std::thread::spawn(move || run(listener, &own, &flag, script));
        Server { host, client_host, url, stop, thread: Some(thread) }
    }

    pub fn client(&self, memory: &str) -> NfsClient {
        self.try_client(memory, 20_000).expect("it answers")
    }

    pub fn try_client(&self, memory: &str, give_up_ms: u64) -> Result<NfsClient, weft_nfs_client::Error> {
        self.try_client_of(RdmaDesign::ReadWrite, memory, give_up_ms)
    }

    /// A client of the Read-Read design.
    pub fn reading_client(&self, memory: &str) -> NfsClient {
        self.try_client_of(RdmaDesign::ReadRead, memory, 20_000).expect("it answers")
    }

    fn try_client_of(
        &self,
        rdma_design: RdmaDesign,
        memory: &str,
        give_up_ms: u64,
    ) -> Result<NfsClient, weft_nfs_client::Error> {
        let rdma_memory = weft_nfs_client::RdmaMemory::of(memory).unwrap();
        let url = NfsUrl { rdma_design, rdma_memory, ..self.url.clone() };
        let options = ConnectOptions { give_up_ms: Some(give_up_ms), ..ConnectOptions::default() };
        NfsClient::connect_rdma(&url, &options, &self.client_host)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "the server panicked");
            assert!(self.host.complaints().is_empty(), "{:?}", self.host.complaints());
        }
    }
}

fn wait(fd: RawFd) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&mut entry, 1, 5) };
}

fn run(mut listener: PretendListener, own: &[u8], stop: &AtomicBool, mut script: impl Script) {
    // Peers are kept: what they do after their connection is over is seen, too.
    let peers = Mutex::new(Vec::new());
    let mut connections = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(endpoint) = listener.next().unwrap() else {
            wait(listener.fd());
            continue;
        };
        let mut peer = Peer::accept(endpoint, own, connections);
        connections += 1;
        while let Some(call) = peer.next(stop) {
            if !answers_usual(&mut peer, &call) && !script(&mut peer, &call) {
                break;
            }
        }
        peer.disconnect();
        peers.lock().unwrap().push(peer);
    }
}
