//! A peer that says what it likes: the seam itself, without a link.

use std::time::{Duration, Instant};

use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointOptions, Fabric, MemoryPiece, Receives, Registration,
    SendWork, TrafficClass, VerbsError, Work, WorkDone, WorkKind, WorkStatus,
};
use weft_verbs_double::{Pretend, PretendDevice, PretendEndpoint, PretendQueue};
use weft_wire::security::{Key, connect_mac};
use weft_wire::{HEADER_BYTES, Header, Op};

use crate::common::{PATIENCE, Pretended, Verbs};

const MEMORY_BYTES: usize = 256 << 10;
const RECEIVES: u16 = 32;
const RECEIVE_BYTES: usize = 8 << 10;
/// Where in the memory messages are made; before it are receives.
const SCRATCH: usize = RECEIVES as usize * RECEIVE_BYTES / 2;

pub struct Raw {
    endpoint: PretendEndpoint,
    queue: PretendQueue,
    memory: Box<[u8]>,
    registration: <PretendDevice as Device>::Registration,
    done: Vec<WorkDone>,
    /// What the server said when it accepted.
    pub accepted: Vec<u8>,
}

/// What a client says when it asks for a connection.
pub fn asking(versions: [u8; 2], key: &Key) -> Vec<u8> {
    let mut said = b"WEFT".to_vec();
    said.extend(versions);
    said.extend([0, 0]);
    said.extend(8192u32.to_le_bytes());
    said.extend(RECEIVES.to_le_bytes());
    said.extend([0; 2]);
    said.extend([7; 16]);
    let mac = connect_mac(key, b"ask", &[&said]);
    said.extend(mac);
    said
}

impl Raw {
    pub fn try_connect(verbs: &Verbs<Pretended, 0>, said: &[u8]) -> Result<Raw, VerbsError> {
        let fabric: &Pretend = &verbs.hosts.client;
        let mut raw = Raw::new(fabric.resolve(verbs.address, TrafficClass::default(), PATIENCE)?)?;
        raw.endpoint.connect(said, PATIENCE)?;
        raw.accepted = raw.endpoint.private_data().to_vec();
        Ok(raw)
    }

    /// A server that lends and has no Fast buffers, and that nobody needs a key for, at the end of a connection that was asked for.
    pub fn accept(endpoint: PretendEndpoint) -> Raw {
        let nonce = endpoint.private_data()[16..32].to_vec();
        let mut raw = Raw::new(endpoint).unwrap();
        let mut said = vec![1, 2];
        said.extend((RECEIVES / 2).to_le_bytes());
        said.extend(8192u32.to_le_bytes());
        said.extend([0; 24]);
        said.extend(connect_mac(&Key([0; 32]), b"accept", &[&nonce, &said]));
        raw.endpoint.accept(&said).unwrap();
        raw
    }

    /// With receives, but not connected.
    fn new(mut endpoint: PretendEndpoint) -> Result<Raw, VerbsError> {
        let device = endpoint.device();
        let queue = device.completion_queue(4096)?;
        let options =
            EndpointOptions { send_depth: 2048, pieces: 2, inline_bytes: 0, reads_out: 4, reads_in: 4 };
        endpoint.create_queue_pair(&options, &queue, Receives::Own(RECEIVES.into()))?;
        let memory = vec![0u8; MEMORY_BYTES].into_boxed_slice();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: the memory is this peer's, and outlives the registration.
        let registration = unsafe { device.register(memory.as_ptr() as usize, MEMORY_BYTES, access) }?;
        let (done, accepted) = (Vec::new(), Vec::new());
        let mut raw = Raw { endpoint, queue, memory, registration, done, accepted };
        raw.post_receives()?;
        Ok(raw)
    }

    /// Receives into all of the memory for them; what has come there must have been looked at.
    pub fn post_receives(&mut self) -> Result<(), VerbsError> {
        for number in 0..RECEIVES / 2 {
            let piece = self.piece(usize::from(number) * RECEIVE_BYTES, RECEIVE_BYTES);
            // SAFETY: this part of the memory is for receives.
            unsafe { self.endpoint.post_receive(&[(number.into(), piece)]) }?;
        }
        Ok(())
    }

    /// One that has shown to know the key that nobody needs.
    pub fn connect(verbs: &Verbs<Pretended, 0>) -> Raw {
        Raw::try_connect(verbs, &asking([1, 1], &Key([0; 32]))).unwrap()
    }

    /// One whose connection the server takes requests over.
    pub fn proven(verbs: &Verbs<Pretended, 0>) -> Raw {
        let mut raw = Raw::connect(verbs);
        raw.send(&message(&Header::request(Op::Ping, 1), b"prove", &[]));
        let (header, _) = raw.reply().expect("an answer");
        assert_eq!(header.request_id, 1);
        raw
    }

    pub fn piece(&self, at: usize, bytes: usize) -> MemoryPiece {
        let address = self.memory.as_ptr() as u64 + at as u64;
        MemoryPiece { address, bytes: bytes as u32, local_key: self.registration.local_key() }
    }

    pub fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Where the server's Fast buffers are, their size and key.
    pub fn fast(&self) -> (u64, u32, u32) {
        let field = |at: usize| u32::from_le_bytes(self.accepted[at..at + 4].try_into().unwrap());
        (u64::from_le_bytes(self.accepted[24..32].try_into().unwrap()), field(12), field(16))
    }

    pub fn try_post(&mut self, work: Work, bytes: &[u8]) -> Result<(), VerbsError> {
        assert!(SCRATCH + bytes.len() <= MEMORY_BYTES);
        self.memory[SCRATCH..SCRATCH + bytes.len()].copy_from_slice(bytes);
        let pieces = [self.piece(SCRATCH, bytes.len())];
        let work =
            SendWork { id: 1 << 40, work, pieces: &pieces, signalled: true, fenced: false, inline: false };
        // SAFETY: the pretended adapter takes the bytes at once.
        unsafe { self.endpoint.post_send(&[work]) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_post(Work::Send, bytes).unwrap();
    }

    /// Writes to a Fast buffer, and says so.
    pub fn write_fast(&mut self, number: u32, bytes: &[u8]) {
        let (address, size, remote_key) = self.fast();
        let remote_address = address + u64::from(number.min(3)) * u64::from(size);
        self.try_post(Work::WriteImmediate { remote_address, remote_key, immediate: number }, bytes).unwrap();
    }

    /// The next end of work; `None` once the connection has ended or nothing comes.
    pub fn next(&mut self) -> Option<WorkDone> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.done.is_empty() && Instant::now() < deadline {
            self.queue.poll(&mut self.done, 16).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        (!self.done.is_empty()).then(|| self.done.remove(0))
    }

    /// Posts work, and how it ended.
    pub fn outcome(&mut self, work: Work, bytes: &[u8]) -> WorkStatus {
        self.try_post(work, bytes).unwrap();
        let mut others = Vec::new();
        let status = loop {
            let done = self.next().expect("an end of the work");
            if done.id == 1 << 40 {
                break done.status;
            }
            others.push(done);
        };
        self.done.splice(..0, others);
        status
    }

    /// A further part of the last message.
    pub fn further(&mut self) -> Vec<u8> {
        let done = self.next().expect("a further part");
        let at = done.id as usize * RECEIVE_BYTES;
        self.memory[at + 8..at + done.bytes as usize].to_vec()
    }

    /// The next message's header and what follows it; `None` when the connection has ended.
    pub fn reply(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            let done = self.next()?;
            if done.status != WorkStatus::Ok {
                return None;
            }
            if done.kind == WorkKind::Received && done.bytes as usize > 8 {
                let at = done.id as usize * RECEIVE_BYTES;
                let message = &self.memory[at..at + done.bytes as usize];
                let header = Header::decode(message[8..].first_chunk().unwrap()).unwrap();
                return Some((header, message[8 + HEADER_BYTES..].to_vec()));
            }
        }
    }

    /// What the server lends next: for which part of the data, where, how much, and the key.
    pub fn lent(&mut self) -> (u64, u64, u32, u32) {
        let done = loop {
            let done = self.next().expect("something that is lent");
            assert_eq!(done.status, WorkStatus::Ok);
            if done.kind != WorkKind::Sent {
                break done;
            }
        };
        let at = done.id as usize * RECEIVE_BYTES;
        let message = &self.memory[at..at + done.bytes as usize];
        assert_eq!((message[2], message.len()), (3, 40), "it is no message that lends one part");
        let long = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap());
        (long(16), long(24), short(32), short(36))
    }

    /// Whether the server has ended the connection, within a while.
    pub fn is_cut(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            self.queue.poll(&mut self.done, 16).unwrap();
            let failed = self.done.iter().any(|done| done.status != WorkStatus::Ok);
            if failed || matches!(self.endpoint.state(), weft_verbs::EndpointState::Ended(_)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// A whole message in one part, with its envelope.
pub fn message(header: &Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = *header;
    header.body_bytes = body.len() as u32;
    header.payload_bytes = payload.len() as u64;
    [&[0; 8][..], &header.encode(), body, payload].concat()
}
