//! A transport inside one process, for tests and simulation: queues under a lock, and an eventfd for the
//! client's poll.
//!
//! The server copies straight between its buffers and the client's pieces, under the lock that a dropped link
//! takes too, so that memory is never touched after the link is gone. Faults come from a seed: connections
//! refused, cut after some messages, replies delayed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use weft_reactor::{MailSender, Mailbox, mailbox, sleep};
use weft_wire::limits::{BODY_BYTES_MAX, BODY_BYTES_UNPROVEN_MAX, CREDITS_PER_CONNECTION};
use weft_wire::messages::ErrorDetail;
use weft_wire::{Header, Kind, Status, body};

use crate::error::{ConnError, FrameError, LinkError};
use crate::link::OWN_REQUEST_IDS;
use crate::link::{Bulk, Completion, Link, LinkKind};
use crate::runs::{Cursor, MemoryRuns};
use crate::segment::{KnownSegments, Segment};
use crate::server::{BulkInfo, Incoming, LocalMemory, PeerInfo, ServerBulk, ServerConn, Source, SourceKind};
use crate::socket::owned;

/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// What goes wrong, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFaults {
    /// Of the random delays.
    pub seed: u64,
    /// The first connections are refused.
    pub refuse_first: u32,
    /// Every connection is cut when so many requests and replies have gone over it.
    pub cut_after_messages: Option<u64>,
    /// Each reply is late by a random time up to this.
    pub delay_ms_max: u64,
}

struct Hub {
    faults: MemoryFaults,
    refused: AtomicU32,
    connections: AtomicU64,
    lends: bool,
}

/// The listening side.
pub struct MemoryHub {
    ends: Mailbox<MemoryEnd>,
}

/// Makes connections to a [`MemoryHub`].
#[derive(Clone)]
pub struct MemoryConnector {
    hub: Arc<Hub>,
    sender: MailSender<MemoryEnd>,
}

/// A server's end of a new connection, to be moved to the thread that serves it.
pub struct MemoryEnd {
    wire: Arc<Wires>,
    seed: u64,
}

impl MemoryHub {
    /// A place to connect to, and the way there.
    pub fn new(faults: MemoryFaults) -> (MemoryConnector, MemoryHub) {
        MemoryHub::make(faults, false)
    }

    /// The same, with servers that are lent the client's memory by [`ServerBulk::local`].
    ///
    /// # Safety
    /// The memory of every request stays valid until the server has answered, even if the link is dropped
    /// before.
    pub unsafe fn lending(faults: MemoryFaults) -> (MemoryConnector, MemoryHub) {
        MemoryHub::make(faults, true)
    }

    fn make(faults: MemoryFaults, lends: bool) -> (MemoryConnector, MemoryHub) {
        let (sender, ends) = mailbox(BACKLOG);
        let hub = Hub { faults, refused: AtomicU32::new(0), connections: AtomicU64::new(0), lends };
        (MemoryConnector { hub: Arc::new(hub), sender }, MemoryHub { ends })
    }

    /// The next connection; `None` when nobody is left who could connect.
    pub async fn accept(&mut self) -> Option<MemoryEnd> {
        self.ends.receive().await
    }
}

impl MemoryConnector {
    /// Connects.
    ///
    /// # Errors
    /// [`LinkError::Connect`]: refused as the faults say, or the hub is gone or full.
    pub fn connect(&self) -> Result<MemoryLink, LinkError> {
        let refused =
            || LinkError::Connect { peer: PEER.into(), source: io::ErrorKind::ConnectionRefused.into() };
        if self.hub.refused.fetch_add(1, Ordering::Relaxed) < self.hub.faults.refuse_first {
            return Err(refused());
        }
        // SAFETY: no memory is passed, and the result is new.
        let event = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
            .map_err(|source| LinkError::Local { what: "make an eventfd", source })?;
        let number = self.hub.connections.fetch_add(1, Ordering::Relaxed);
        let wire = Arc::new(Wires {
            state: Mutex::new(State::new(self.hub.faults.cut_after_messages)),
            event,
            delay_ms_max: self.hub.faults.delay_ms_max,
            lends: self.hub.lends,
        });
        let seed = self.hub.faults.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.sender.send(MemoryEnd { wire: wire.clone(), seed }).map_err(|_| refused())?;
        Ok(MemoryLink { wire, segments: KnownSegments::default() })
    }
}

const PEER: &str = "server in this process";

/// What both ends share.
struct Wires {
    state: Mutex<State>,
    event: OwnedFd,
    delay_ms_max: u64,
    lends: bool,
}

struct State {
    credits: u16,
    requests: VecDeque<(Header, Vec<u8>)>,
    completions: Vec<Completion>,
    memory: Vec<Memory>,
    open: bool,
    proven: bool,
    messages_left: Option<u64>,
    server_waker: Option<Waker>,
}

/// Memory of a request under way.
struct Memory {
    request_id: u64,
    runs: MemoryRuns,
    bytes: u64,
    is_get: bool,
    delivered_bytes: u64,
}

impl State {
    fn new(messages_left: Option<u64>) -> State {
        State {
            credits: 1,
            requests: VecDeque::new(),
            completions: Vec::new(),
            memory: Vec::new(),
            open: true,
            proven: false,
            messages_left,
            server_waker: None,
        }
    }

    fn memory(&mut self, request_id: u64) -> Option<&mut Memory> {
        self.memory.iter_mut().find(|memory| memory.request_id == request_id)
    }

    /// Counts a message; the connection may break under it.
    fn count_message(&mut self) {
        if let Some(left) = &mut self.messages_left {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => self.open = false,
            }
        }
    }
}

impl Wires {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_client(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: 8 live bytes; a full counter leaves the descriptor readable, which is all that matters.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Ends the connection for both, and the use of the client's memory.
    fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.open = false;
            state.memory.clear();
            state.server_waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        self.wake_client();
    }
}

/// A client's end.
pub struct MemoryLink {
    wire: Arc<Wires>,
    segments: KnownSegments,
}

impl Link for MemoryLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Memory
    }

    fn peer(&self) -> &str {
        PEER
    }

    fn fd(&self) -> RawFd {
        self.wire.event.as_raw_fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn credits(&self) -> u16 {
        self.wire.lock().credits
    }

    fn set_credits(&mut self, credits: u16) {
        self.wire.lock().credits = credits.min(CREDITS_PER_CONNECTION);
    }

    unsafe fn submit(&mut self, mut header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        let (mut runs, is_get) = match bulk {
            Bulk::None => (MemoryRuns::new(), true),
            Bulk::Put(memory) => (memory.runs, false),
            Bulk::Get(memory) => (memory.runs, true),
        };
        let bytes = self.segments.resolve(&mut runs)?;
        let mut state = self.wire.lock();
        let refuse = |what| Err(LinkError::Request { peer: PEER.into(), what });
        if !state.open {
            return Err(LinkError::Closed { peer: PEER.into() });
        }
        if header.kind != Kind::Request || header.request_id >= OWN_REQUEST_IDS || body.len() > BODY_BYTES_MAX
        {
            return refuse("only requests with a caller's number and a body within the limit are sent");
        }
        if state.memory(header.request_id).is_some() {
            return refuse("its number is in use by a request under way");
        }
        state.credits = state.credits.checked_sub(1).ok_or(LinkError::NoCredit { peer: PEER.into() })?;
        header.body_bytes = body.len() as u32;
        header.payload_bytes = if is_get { bytes } else { 0 };
        state.memory.push(Memory { request_id: header.request_id, runs, bytes, is_get, delivered_bytes: 0 });
        state.requests.push_back((header, body.to_vec()));
        state.count_message();
        let waker = state.server_waker.take();
        let open = state.open;
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        if !open {
            self.wire.close();
        }
        Ok(())
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let mut count = [0u8; 8];
        // SAFETY: 8 live bytes; nothing to read is no error here.
        unsafe { libc::read(self.wire.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        let mut state = self.wire.lock();
        for completion in state.completions.drain(..).collect::<Vec<_>>() {
            state.credits =
                state.credits.saturating_add(completion.header.credit).min(CREDITS_PER_CONNECTION);
            done.push(completion);
        }
        if state.open {
            return Ok(());
        }
        Err(LinkError::Stream { peer: PEER.into(), source: FrameError::Closed })
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.segments.add(segment, false);
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        self.segments.remove(id);
        Ok(())
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.wire.close();
    }
}

/// A server's end.
#[derive(Clone)]
pub struct MemoryConn {
    end: Rc<ConnEnd>,
}

struct ConnEnd {
    wire: Arc<Wires>,
    random: Cell<u64>,
}

impl Drop for ConnEnd {
    fn drop(&mut self) {
        self.wire.close();
    }
}

impl MemoryConn {
    /// On the current reactor.
    pub fn from_end(end: MemoryEnd) -> MemoryConn {
        MemoryConn { end: Rc::new(ConnEnd { wire: end.wire, random: Cell::new(end.seed) }) }
    }

    fn closed(&self) -> ConnError {
        ConnError::Closed { peer: self.peer().to_string() }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn random(&self) -> u64 {
        let state = self.end.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.end.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    async fn next_request(&self) -> Result<(Header, Vec<u8>, bool), ConnError> {
        std::future::poll_fn(|cx| {
            let mut state = self.end.wire.lock();
            if !state.open {
                return Poll::Ready(Err(self.closed()));
            }
            if let Some((header, body)) = state.requests.pop_front() {
                return Poll::Ready(Ok((header, body, state.proven)));
            }
            state.server_waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl ServerConn for MemoryConn {
    type Bulk = MemoryBulk;

    async fn recv(&self) -> Result<Incoming<MemoryBulk>, ConnError> {
        let (header, body, proven) = self.next_request().await?;
        if !proven && (body.len() > BODY_BYTES_UNPROVEN_MAX || header.payload_bytes > 0) {
            let text = "more than is taken before the proof of the key".to_string();
            self.reply(header.reply(Status::TooBig), &body::encode(&ErrorDetail { text }), &[]).await?;
            self.close();
            return Err(self.closed());
        }
        let bulk =
            MemoryBulk { conn: self.clone(), request_id: header.request_id, bytes: header.payload_bytes };
        Ok(Incoming { header, body, bulk })
    }

    async fn reply(&self, mut header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        if self.end.wire.delay_ms_max > 0 {
            sleep(Duration::from_millis(self.random() % (self.end.wire.delay_ms_max + 1))).await;
        }
        header.body_bytes = body.len() as u32;
        header.payload_bytes = payload.iter().map(|part| part.len() as u64).sum();
        let mut bulk = MemoryBulk { conn: self.clone(), request_id: header.request_id, bytes: 0 };
        bulk.copy(0, payload.iter().map(|part| (part.as_ptr().cast_mut(), part.len())), false)?;
        let mut state = self.end.wire.lock();
        let Some(at) = state.memory.iter().position(|memory| memory.request_id == header.request_id) else {
            return Err(self.closed());
        };
        let memory = state.memory.swap_remove(at);
        state.completions.push(Completion {
            header,
            body: body.to_vec(),
            delivered_bytes: memory.delivered_bytes,
        });
        state.count_message();
        let open = state.open;
        drop(state);
        if open {
            self.end.wire.wake_client();
        } else {
            self.close();
        }
        Ok(())
    }

    fn prove(&self) {
        self.end.wire.lock().proven = true;
    }

    fn peer(&self) -> PeerInfo {
        let address = "in this process".to_string();
        PeerInfo {
            transport: "memory".into(),
            address,
            process_id: Some(std::process::id()),
            user_id: None,
            group_ids: Vec::new(),
        }
    }

    fn close(&self) {
        self.end.wire.close();
    }
}

/// The way to the memory of a request in the same process.
pub struct MemoryBulk {
    conn: MemoryConn,
    request_id: u64,
    bytes: u64,
}

impl std::fmt::Debug for MemoryBulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryBulk {{ bytes: {} }}", self.bytes)
    }
}

impl MemoryBulk {
    /// Copies between parts of the server's memory and the client's pieces, under the connection's lock.
    fn copy(
        &mut self,
        share_offset: u64,
        parts: impl Iterator<Item = (*mut u8, usize)>,
        from_client: bool,
    ) -> Result<(), ConnError> {
        let mut state = self.conn.end.wire.lock();
        if !state.open {
            return Err(self.conn.closed());
        }
        let peer = || self.conn.peer().to_string();
        let mut end = share_offset;
        for (base, bytes) in parts.filter(|(_, bytes)| *bytes > 0) {
            let Some(memory) = state.memory(self.request_id) else { return Err(self.conn.closed()) };
            let start = end;
            end += bytes as u64;
            if end > memory.bytes || memory.is_get != from_client {
                return Err(ConnError::Range { peer: peer(), bytes: memory.bytes, end });
            }
            let mut at = base;
            Cursor::at(&memory.runs, start).walk(&memory.runs, bytes as u64, |_, address, bytes| {
                let client = address as usize as *mut u8;
                // SAFETY: the client keeps its pieces valid until the completion is queued or the link
                // dropped, both of which take the lock held here; the parts are the caller's buffers, and a
                // walk never exceeds them.
                unsafe {
                    let (from, to) = if from_client { (client, at) } else { (at, client) };
                    std::ptr::copy_nonoverlapping(from, to, bytes as usize);
                    at = at.add(bytes as usize);
                }
                true
            });
            if !from_client {
                memory.delivered_bytes += bytes as u64;
            }
        }
        Ok(())
    }
}

impl ServerBulk for MemoryBulk {
    fn info(&self) -> BulkInfo {
        BulkInfo::copies(self.bytes)
    }

    fn local(&self, share_offset: u64, bytes: u64) -> Option<LocalMemory<'_>> {
        if !self.conn.end.wire.lends {
            return None;
        }
        let mut state = self.conn.end.wire.lock();
        let memory = state.memory(self.request_id)?;
        if share_offset.checked_add(bytes)? > memory.bytes {
            return None;
        }
        let mut pieces = Vec::new();
        Cursor::at(&memory.runs, share_offset).walk(&memory.runs, bytes, |_, address, bytes| {
            pieces.extend(NonNull::new(address as usize as *mut u8).map(|base| (base, bytes as usize)));
            true
        });
        if !memory.is_get {
            memory.delivered_bytes += bytes;
        }
        Some(LocalMemory::new(pieces, None))
    }

    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError> {
        match source.0 {
            SourceKind::Slices(data) => {
                let parts = data.iter().map(|part| (part.as_ptr().cast_mut(), part.len()));
                self.copy(share_offset, parts, false)
            }
            SourceKind::Kept { pieces, keeper: _keeper } => {
                let parts = pieces.iter().map(|(base, bytes)| (base.as_ptr(), *bytes));
                self.copy(share_offset, parts, false)
            }
            other => Err(other.refused(self.conn.peer().to_string())),
        }
    }

    unsafe fn get_mapped(
        &mut self,
        _share_offset: u64,
        _pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError> {
        let peer = self.conn.peer().to_string();
        Err(ConnError::Mechanism { peer, what: "receive into mapped pages; see its BulkInfo" })
    }

    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError> {
        self.copy(share_offset, buffers.iter_mut().map(|part| (part.as_mut_ptr(), part.len())), true)
    }

    async fn discard(self) -> Result<(), ConnError> {
        Ok(())
    }
}
