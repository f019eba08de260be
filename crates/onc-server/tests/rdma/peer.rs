//! A client of RPC-over-RDMA as small as can be, on a pretended adapter: it sends any header with any bytes
//! behind it, and offers its memory.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_onc_rpc::rdma::{Body, Chunks, PrivateData, RdmaHeader, ReadSegment, Segment};
use weft_onc_rpc::reply::ReplyHeader;
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, EndpointState, Fabric, MemoryPiece, Receives,
    Registration, SendWork, TrafficClass, Window, Work, WorkDone, WorkKind, WorkStatus,
};
use weft_verbs_double::{Pretend, PretendEndpoint, PretendQueue, PretendWindow, RegisteredMemory};

use crate::common::PATIENCE;

const MESSAGE_BYTES: usize = 4096;
const RECEIVES: usize = 64;
/// Messages to be sent are here, each in a slot that stays as it is until so many more were sent, …
const SENDS: usize = RECEIVES * MESSAGE_BYTES;
const SLOTS: usize = 8;
/// … and what is offered to the server from here on.
const HEAP: usize = SENDS + SLOTS * MESSAGE_BYTES;
const HEAP_BYTES: usize = 4 << 20;
/// Numbers of work.
const SENT: u64 = 1 << 40;
const READ: u64 = 2 << 40;

/// What a usual client says of itself.
pub fn usual() -> PrivateData {
    let bytes = MESSAGE_BYTES as u32;
    PrivateData { takes_invalidation: false, send_bytes: bytes, receive_bytes: bytes }
}

pub struct Peer {
    // A window goes before the endpoint.
    window: Option<PretendWindow>,
    pub endpoint: PretendEndpoint,
    queue: PretendQueue,
    memory: RegisteredMemory,
    arrived: VecDeque<WorkDone>,
    sent: usize,
}

/// A message of the server's.
#[derive(Debug)]
pub struct Received {
    pub header: RdmaHeader,
    pub rest: Vec<u8>,
    pub kind: WorkKind,
}

impl Received {
    /// The lists of a reply that is inline, with the head and the results behind.
    pub fn reply(&self) -> (Chunks, ReplyHeader, &[u8]) {
        let Body::Message(chunks) = &self.header.body else { panic!("{self:?}") };
        let (header, bytes) = ReplyHeader::decode(&self.rest).unwrap();
        (chunks.clone(), header, &self.rest[bytes..])
    }
}

impl Peer {
    pub fn connect(host: &Pretend, at: SocketAddr, said: &[u8]) -> Peer {
        let mut endpoint = host.resolve(at, TrafficClass::default(), PATIENCE).unwrap();
        let device = endpoint.device();
        let queue = device.completion_queue(512).unwrap();
        let options =
            EndpointOptions { send_depth: 64, pieces: 1, inline_bytes: 0, reads_out: 16, reads_in: 16 };
        endpoint.create_queue_pair(&options, &queue, Receives::Own(RECEIVES as u32)).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::WINDOW_BIND;
        let memory = RegisteredMemory::new(&device, HEAP + HEAP_BYTES, access).unwrap();
        let mut peer = Peer { window: None, endpoint, queue, memory, arrived: VecDeque::new(), sent: 0 };
        (0..RECEIVES).for_each(|slot| peer.post_receive(slot));
        peer.endpoint.connect(said, PATIENCE).unwrap();
        peer
    }

    fn post_receive(&mut self, slot: usize) {
        let piece = self.memory.piece(slot * MESSAGE_BYTES, MESSAGE_BYTES);
        // SAFETY: this part of the memory is for receives.
        unsafe { self.endpoint.post_receive(&[(slot as u64, piece)]) }.unwrap();
    }

    fn post(&mut self, work: Work, pieces: &[MemoryPiece]) {
        self.post_as(SENT, work, pieces);
    }

    fn post_as(&mut self, id: u64, work: Work, pieces: &[MemoryPiece]) {
        let work = SendWork { id, work, pieces, signalled: true, fenced: false, inline: false };
        // SAFETY: the pretended adapter takes the bytes at once.
        unsafe { self.endpoint.post_send(&[work]) }.unwrap();
    }

    pub fn send_bytes(&mut self, message: &[u8]) {
        let at = SENDS + self.sent % SLOTS * MESSAGE_BYTES;
        self.sent += 1;
        self.memory[at..at + message.len()].copy_from_slice(message);
        let piece = self.memory.piece(at, message.len());
        self.post(Work::Send, &[piece]);
    }

    pub fn send(&mut self, header: &RdmaHeader, rest: &[u8]) {
        self.send_bytes(&[header.write().into_bytes(), rest.to_vec()].concat());
    }

    /// Sends a call that is inline but for what is in chunks.
    pub fn call(&mut self, xid: u32, chunks: Chunks, rest: &[u8]) {
        self.send(&RdmaHeader { xid, credits: 32, body: Body::Message(chunks) }, rest);
    }

    /// Memory that is offered.
    pub fn segment(&self, at: usize, bytes: usize) -> Segment {
        let offset = self.memory.as_ptr() as u64 + (HEAP + at) as u64;
        Segment { handle: self.memory.registration.remote_key(), bytes: bytes as u32, offset }
    }

    /// Memory that is offered to be read.
    pub fn read_segment(&self, position: usize, at: usize, bytes: usize) -> ReadSegment {
        ReadSegment { position: position as u32, segment: self.segment(at, bytes) }
    }

    /// The same by a key of its own, which ends when the server says so.
    pub fn windowed(&mut self, segment: Segment) -> Segment {
        let device = self.endpoint.device();
        let window = self.window.insert(device.window().unwrap());
        let handle = window.next_key();
        let work = Work::Bind {
            window_key: handle,
            local_key: self.memory.registration.local_key(),
            address: segment.offset,
            bytes: segment.bytes.into(),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        self.post(work, &[]);
        Segment { handle, ..segment }
    }

    pub fn put(&mut self, at: usize, data: &[u8]) {
        self.memory[HEAP + at..][..data.len()].copy_from_slice(data);
    }

    pub fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        self.memory[HEAP + at..][..bytes].to_vec()
    }

    /// Reads memory of the server's into what could be offered.
    pub fn read(&mut self, from: &Segment, at: usize) -> WorkStatus {
        let piece = self.memory.piece(HEAP + at, from.bytes as usize);
        self.post_as(READ, Work::Read { remote_address: from.offset, remote_key: from.handle }, &[piece]);
        let (deadline, mut done) = (Instant::now() + PATIENCE, Vec::new());
        while Instant::now() < deadline {
            self.queue.poll(&mut done, 1).unwrap();
            match done.pop() {
                Some(end) if end.id == READ => return end.status,
                Some(end) if end.kind != WorkKind::Sent => self.arrived.push_back(end),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        panic!("an RDMA Read that does not end");
    }

    /// Says that a reply was read.
    pub fn done(&mut self, xid: u32) {
        self.send(&RdmaHeader { xid, credits: 32, body: Body::Done }, b"");
    }

    /// Whether a message has come.
    pub fn has_message(&mut self) -> bool {
        let mut done = Vec::new();
        self.queue.poll(&mut done, RECEIVES).unwrap();
        self.arrived.extend(done.into_iter().filter(|end| end.kind != WorkKind::Sent));
        !self.arrived.is_empty()
    }

    /// The next message; `None` once the connection has ended.
    pub fn receive(&mut self) -> Option<Received> {
        let (deadline, mut done) = (Instant::now() + PATIENCE, Vec::new());
        while Instant::now() < deadline {
            self.queue.poll(&mut done, 1).unwrap();
            self.arrived.extend(done.drain(..));
            match self.arrived.pop_front() {
                Some(end) if end.status != WorkStatus::Ok => return None,
                Some(end) if end.kind != WorkKind::Sent => {
                    let at = end.id as usize * MESSAGE_BYTES;
                    let message = self.memory[at..at + end.bytes as usize].to_vec();
                    self.post_receive(end.id as usize);
                    let (header, bytes) = RdmaHeader::decode(&message).unwrap();
                    return Some(Received { header, rest: message[bytes..].to_vec(), kind: end.kind });
                }
                Some(_) => {}
                None if matches!(self.endpoint.state(), EndpointState::Ended(_)) => return None,
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        panic!("no reply");
    }
}
