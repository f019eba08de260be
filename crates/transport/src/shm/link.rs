//! Shared memory, the client's end: messages on a Unix socket, and descriptions of where the data is.
//!
//! ```text
//!  up to 16 KiB           on the socket, as over TCP
//!  all in segments        described; the server moves between its file and the segment
//!  other memory, direct   described; the server moves with process_vm_*
//!  other memory, staged   ┌ staging segment ┬──────────┬───────┐   a request takes an area, waits where none is free;
//!                         │ request 7       │ request 9│ free  │   a get is copied in before, a put copied out after
//!                         └─────────────────┴──────────┴───────┘
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use weft_wire::limits::{INLINE_BYTES_MAX, MEMORY_RUNS_MAX, SHARE_BYTES_MAX};
use weft_wire::messages::{
    ErrorDetail, MemoryProbeReply, MemoryProbeRequest, MemoryRun, RemoteMemory, SegmentAddRequest,
    SegmentDropRequest,
};
use weft_wire::{Header, Op, Status, Wire, body, flags};

use crate::channel::{Channel, Payload};
use crate::error::{LinkError, RunsError};
use crate::link::OWN_REQUEST_IDS;
use crate::link::{Bulk, Completion, Link, LinkKind, LinkTraits};
use crate::runs::{MemoryRuns, copy_runs};
use crate::segment::{KnownSegments, Segment};
use crate::socket::{Address, stream_socket};

/// Size of a link's staging segment. Its memory is taken as it is used.
const STAGING_BYTES: usize = 8 << 20;
/// Areas are multiples of this.
const AREA_STEP_BYTES: usize = 4096;
/// Largest bulk of a request on a staged link: a quarter of the staging segment, so that several are under
/// way.
pub const SHM_BULK_BYTES_MAX_STAGED: u64 = STAGING_BYTES as u64 / 4;

/// How a link over shared memory moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmOptions {
    /// Data of up to this size goes over the socket.
    pub inline_bytes_max: u64,
    /// Never let the server reach this process's memory; copy through a segment.
    pub staged: bool,
}

impl Default for ShmOptions {
    fn default() -> Self {
        ShmOptions { inline_bytes_max: INLINE_BYTES_MAX as u64, staged: false }
    }
}

/// Smaller pieces of memory are better packed: the kernel pins a page for each piece that a server reaches by
/// itself, and so in pieces of 1 KiB moves 4 MiB half as fast, of 64 bytes a tenth. With four clients on two
/// processors packing still leads at 8 KiB, by up to two. Measured with `weft bench transfer` and the example
/// `pieces`.
const PACK_BELOW_BYTES: u64 = 16 << 10;

/// What the server may reach.
enum Reach {
    /// Before [`ShmLink::set_up`].
    Unknown,
    Direct,
    Staged {
        staging: Staging,
        reason: String,
    },
}

/// A request whose memory is an area of the staging segment.
struct Staged {
    request_id: u64,
    area: (usize, usize),
    /// Where data goes at the end; empty for a get.
    memory: MemoryRuns,
    bytes: u64,
}

/// A request that waits for an area.
struct Waiting {
    header: Header,
    body: Vec<u8>,
    runs: MemoryRuns,
    bytes: u64,
    is_get: bool,
}

/// The staging segment and what is in it.
struct Staging {
    segment: Segment,
    /// Areas in use, by offset.
    used: Vec<(usize, usize)>,
    requests: Vec<Staged>,
    waiting: VecDeque<Waiting>,
}

impl Staging {
    fn new(segment: Segment) -> Staging {
        Staging { segment, used: Vec::new(), requests: Vec::new(), waiting: VecDeque::new() }
    }

    /// The first free area that is large enough.
    fn take_area(&mut self, bytes: u64) -> Option<(usize, usize)> {
        let bytes = (bytes as usize).next_multiple_of(AREA_STEP_BYTES);
        let mut start = 0;
        let mut at = 0;
        for (used_start, used_bytes) in &self.used {
            if used_start - start >= bytes {
                break;
            }
            start = used_start + used_bytes;
            at += 1;
        }
        if start + bytes > self.segment.bytes() {
            return None;
        }
        self.used.insert(at, (start, bytes));
        Some((start, bytes))
    }

    fn area_base(&self, area: (usize, usize)) -> *mut u8 {
        self.segment.base().as_ptr().wrapping_add(area.0)
    }

    /// Ends a request; copies out what the server has put. What lies behind it in the area is of requests
    /// before.
    fn finish(&mut self, reply: &Header) {
        let Some(at) = self.requests.iter().position(|request| request.request_id == reply.request_id) else {
            return;
        };
        let request = self.requests.swap_remove(at);
        if !request.memory.is_empty() && reply.status == Status::Ok {
            let bytes = reply.share_offset.min(request.bytes);
            // SAFETY: the caller of `submit` keeps this memory valid until the completion, which is still to
            // be given; the area is this request's, and the server has answered.
            unsafe { copy_runs(&request.memory, self.area_base(request.area), bytes, false) };
        }
        self.used.retain(|area| *area != request.area);
    }
}

/// A client's connection over a Unix socket.
pub struct ShmLink {
    channel: Channel,
    options: ShmOptions,
    reach: Reach,
    segments: KnownSegments,
    /// Segments that the server was told of and has not confirmed: request, segment.
    adding: Vec<(u64, u16)>,
    next_own_id: u64,
    /// Puts to remote memory under way: request and bytes.
    remote_puts: Vec<(u64, u64)>,
}

/// Connects to a server on this host. After the handshake [`ShmLink::set_up`] is to be called; until then all
/// data goes over the socket.
///
/// # Errors
/// [`LinkError::Connect`], after at most `timeout`.
pub fn connect_shm(path: &Path, options: ShmOptions, timeout: Duration) -> Result<ShmLink, LinkError> {
    let connect = || {
        let fd = stream_socket(libc::AF_UNIX)?;
        Address::unix(path)?.connect(fd.as_fd(), Instant::now() + timeout)?;
        Ok(fd)
    };
    let peer = format!("server {}", path.display());
    match connect() {
        Ok(fd) => Ok(ShmLink {
            channel: Channel::new(fd, peer, true),
            options,
            reach: Reach::Unknown,
            segments: KnownSegments::default(),
            adding: Vec::new(),
            next_own_id: OWN_REQUEST_IDS,
            remote_puts: Vec::new(),
        }),
        Err(source) => Err(LinkError::Connect { peer, source }),
    }
}

/// Memory of the probe: what the client wrote, and what the server is to overwrite.
#[repr(C)]
struct Probe {
    ours: [u8; 16],
    theirs: [u8; 16],
}

impl ShmLink {
    /// Finds out whether the server can reach this process's memory, and sets up staging where not. To be
    /// called once, after the handshake, with nothing under way.
    ///
    /// # Errors
    /// The link has failed, or the server did not answer within `timeout` for either of two questions.
    pub fn set_up(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let reason = if self.options.staged { Some("asked for".to_string()) } else { self.probe(timeout)? };
        let Some(reason) = reason else {
            self.reach = Reach::Direct;
            return Ok(());
        };
        let segment = Segment::new(STAGING_BYTES)
            .map_err(|source| LinkError::Local { what: "make a staging segment", source })?;
        let request_id = self.send_segment(&segment)?;
        let reply = self.channel.wait_own(request_id, timeout)?;
        if reply.header.status != Status::Ok {
            return Err(self.protocol_error("it refused a staging segment"));
        }
        self.reach = Reach::Staged { staging: Staging::new(segment), reason };
        Ok(())
    }

    fn protocol_error(&self, what: &'static str) -> LinkError {
        LinkError::Protocol { peer: self.channel.peer().to_string(), what }
    }

    /// `None` if the server reaches this process's memory, else why not.
    fn probe(&mut self, timeout: Duration) -> Result<Option<String>, LinkError> {
        let mut probe = Box::new(Probe { ours: [0; 16], theirs: [0; 16] });
        let local = |source| LinkError::Local { what: "get random bytes", source };
        weft_host::fill_random(&mut probe.ours).map_err(local)?;
        weft_host::fill_random(&mut probe.theirs).map_err(local)?;
        let probe = Box::into_raw(probe);
        let body = body::encode(&MemoryProbeRequest { address: probe as u64 });
        let request_id = self.send_own(Op::MemoryProbe, &body, None);
        let reply = request_id.and_then(|request_id| self.channel.wait_own(request_id, timeout));
        // SAFETY: made by `into_raw` above. The server has answered, or the link has failed.
        let (ours, theirs) = unsafe { (*probe).parts() };
        if reply.is_ok() {
            // SAFETY: as above; without an answer the few bytes are leaked, for the server may still write
            // them.
            drop(unsafe { Box::from_raw(probe) });
        }
        let reply = reply?;
        if reply.header.status != Status::Ok {
            return Ok(Some(refusal(&reply)));
        }
        let reply: MemoryProbeReply = body::decode(&reply.header, &reply.body)
            .map_err(|_| self.protocol_error("its answer to the memory probe cannot be read"))?;
        Ok(if !reply.reached {
            Some(reply.reason)
        } else if reply.read != ours || reply.written != theirs {
            Some("the server reached the memory of another process".into())
        } else {
            None
        })
    }

    fn send_own(&mut self, op: Op, body: &[u8], passed: Option<Segment>) -> Result<u64, LinkError> {
        let request_id = self.next_own_id;
        self.next_own_id += 1;
        let header = Header::request(op, request_id);
        // SAFETY: no memory is involved.
        unsafe { self.channel.start(header, body, Payload::None, (MemoryRuns::new(), 0), passed) }?;
        Ok(request_id)
    }

    fn send_segment(&mut self, segment: &Segment) -> Result<u64, LinkError> {
        let request = SegmentAddRequest { segment: segment.id(), bytes: segment.bytes() as u64 };
        self.send_own(Op::SegmentAdd, &body::encode(&request), Some(segment.clone()))
    }

    /// Sends a request whose memory is described.
    ///
    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn start_described(
        &mut self,
        mut header: Header,
        body: &[u8],
        runs: MemoryRuns,
    ) -> Result<(), LinkError> {
        header.flags |= flags::REMOTE_MEMORY;
        let payload = Payload::Bytes(RemoteMemory { runs }.to_bytes());
        // SAFETY: as the caller promises.
        unsafe { self.channel.start(header, body, payload, (MemoryRuns::new(), 0), None) }
    }

    /// Starts staged requests that wait, in order, as far as there is room.
    fn start_waiting(&mut self) -> Result<(), LinkError> {
        loop {
            let Reach::Staged { staging, .. } = &mut self.reach else { return Ok(()) };
            let Some(first) = staging.waiting.front() else { return Ok(()) };
            let Some(area) = staging.take_area(first.bytes) else { return Ok(()) };
            let Some(Waiting { header, body, runs, bytes, is_get }) = staging.waiting.pop_front() else {
                return Ok(());
            };
            if is_get {
                // SAFETY: the caller of `submit` keeps the runs valid until the completion; the area is this
                // request's.
                unsafe { copy_runs(&runs, staging.area_base(area), bytes, true) };
            }
            let memory = if is_get { MemoryRuns::new() } else { runs };
            staging.requests.push(Staged { request_id: header.request_id, area, memory, bytes });
            let segment = staging.segment.id();
            let run = MemoryRun { segment, address: area.0 as u64, bytes, stride_bytes: 0, count: 1 };
            // SAFETY: the staging segment lives as long as the link.
            unsafe { self.start_described(header, &body, vec![run]) }?;
        }
    }

    /// Takes the replies that concern the link itself, and ends staged and remote requests.
    fn settle(&mut self, done: &mut Vec<Completion>, from: usize) {
        let mut at = from;
        while at < done.len() {
            let header = done[at].header;
            if header.request_id >= OWN_REQUEST_IDS {
                if let Some(adding) = self.adding.iter().position(|(id, _)| *id == header.request_id) {
                    let (_, segment) = self.adding.swap_remove(adding);
                    if header.status == Status::Ok {
                        self.segments.set_taken(segment);
                    }
                }
                done.remove(at);
                continue;
            }
            if let Reach::Staged { staging, .. } = &mut self.reach {
                staging.finish(&header);
            }
            if let Some(put) = self.remote_puts.iter().position(|(id, _)| *id == header.request_id) {
                let (_, bytes) = self.remote_puts.swap_remove(put);
                if header.status == Status::Ok {
                    done[at].delivered_bytes = header.share_offset.min(bytes);
                }
            }
            at += 1;
        }
    }

    fn is_waiting(&self, request_id: u64) -> bool {
        match &self.reach {
            Reach::Staged { staging, .. } => {
                staging.waiting.iter().any(|waiting| waiting.header.request_id == request_id)
            }
            _ => false,
        }
    }

    /// Refuses a request that cannot be described.
    fn check_described(&self, runs: &MemoryRuns, bytes: u64, in_segments: bool) -> Result<(), LinkError> {
        let staged = matches!(self.reach, Reach::Staged { .. }) && !in_segments;
        if staged && bytes > SHM_BULK_BYTES_MAX_STAGED {
            let peer = self.channel.peer().to_string();
            return Err(LinkError::TooLarge { peer, bytes, bytes_max: SHM_BULK_BYTES_MAX_STAGED });
        }
        if !staged && runs.len() > MEMORY_RUNS_MAX {
            return Err(RunsError::TooMany(runs.len()).into());
        }
        Ok(())
    }
}

impl Probe {
    fn parts(&self) -> ([u8; 16], [u8; 16]) {
        (self.ours, self.theirs)
    }
}

fn refusal(reply: &Completion) -> String {
    body::decode(&reply.header, &reply.body)
        .map_or_else(|_| reply.header.status.to_string(), |detail: ErrorDetail| detail.text)
}

impl Link for ShmLink {
    fn kind(&self) -> LinkKind {
        match &self.reach {
            Reach::Unknown => LinkKind::ShmStaged { reason: "not set up yet".into() },
            Reach::Direct => LinkKind::ShmDirect,
            Reach::Staged { reason, .. } => LinkKind::ShmStaged { reason: reason.clone() },
        }
    }

    fn traits(&self) -> LinkTraits {
        let pack_below_bytes = match &self.reach {
            Reach::Direct => PACK_BELOW_BYTES,
            // The link packs by itself.
            Reach::Unknown | Reach::Staged { .. } => 0,
        };
        LinkTraits { pack_below_bytes, shared: true, ..LinkTraits::default() }
    }

    fn peer(&self) -> &str {
        self.channel.peer()
    }

    fn fd(&self) -> RawFd {
        self.channel.raw_fd()
    }

    fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    fn moved_bytes(&self) -> u64 {
        self.channel.moved_bytes()
    }

    fn despair(&mut self) {
        self.channel.despair();
    }

    fn credits(&self) -> u16 {
        self.channel.credits()
    }

    fn set_credits(&mut self, credits: u16) {
        self.channel.set_credits(credits);
    }

    fn bulk_bytes_max(&self) -> u64 {
        match self.reach {
            Reach::Staged { .. } => SHM_BULK_BYTES_MAX_STAGED,
            Reach::Unknown | Reach::Direct => SHARE_BYTES_MAX,
        }
    }

    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        self.channel.check_request(&header, body)?;
        if self.is_waiting(header.request_id) {
            let peer = self.channel.peer().to_string();
            return Err(LinkError::Request { peer, what: "its number is in use by a request under way" });
        }
        let (mut runs, is_get) = match bulk {
            Bulk::None => (MemoryRuns::new(), true),
            Bulk::Put(memory) => (memory.runs, false),
            Bulk::Get(memory) => (memory.runs, true),
        };
        let bytes = self.segments.resolve(&mut runs)?;
        if bytes <= self.options.inline_bytes_max || matches!(self.reach, Reach::Unknown) {
            self.channel.take_credit()?;
            let nothing = (MemoryRuns::new(), 0);
            let (payload, memory) =
                if is_get { (Payload::Pieces(runs, bytes), nothing) } else { (Payload::None, (runs, bytes)) };
            // SAFETY: as the caller promises.
            return unsafe { self.channel.start(header, body, payload, memory, None) };
        }
        let mut named = runs.clone();
        let in_segments = self.segments.name(&mut named);
        self.check_described(&runs, bytes, in_segments)?;
        self.channel.take_credit()?;
        if !is_get {
            self.remote_puts.push((header.request_id, bytes));
        }
        if let (Reach::Staged { staging, .. }, false) = (&mut self.reach, in_segments) {
            staging.waiting.push_back(Waiting { header, body: body.to_vec(), runs, bytes, is_get });
            return self.start_waiting();
        }
        // SAFETY: as the caller promises.
        unsafe { self.start_described(header, body, named) }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.channel.flush()
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let from = done.len();
        let result = self.channel.progress(done);
        self.settle(done, from);
        result?;
        self.start_waiting()
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.segments.add(segment, false);
        let request_id = self.send_segment(segment)?;
        self.adding.push((request_id, segment.id()));
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        if !self.segments.remove(id) {
            return Ok(());
        }
        self.send_own(Op::SegmentDrop, &body::encode(&SegmentDropRequest { segment: id }), None).map(drop)
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.channel.let_go();
    }
}
