//! A client's link: poll style, no threads. The calling thread posts, polls and copies.
//!
//! ```text
//!   submit ─► outgoing ─► send slot (envelope, header, body, data) ─► Send ─────────────► server
//!                     └─► staging or user's memory ─────────────────► WriteImmediate ──►
//!   progress: completions ─► parts ─► reply ─► Completion;   receives posted again, credits told
//! ```
//!
//! The descriptor is an epoll set of three: the completion queue's (armed whenever something is under way), the
//! connection's and the adapter's.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use weft_verbs::{
    Access, CompletionQueue, Device, DeviceEvent, Endpoint, EndpointOptions, EndpointState, Fabric,
    MemoryPiece, Receives, VerbsError, Work, WorkDone, WorkKind, WorkStatus,
};
use weft_wire::limits::{CREDITS_PER_CONNECTION, MESSAGE_DATA_BYTES_MAX};
use weft_wire::messages::{MemoryRun, RemoteKey};
use weft_wire::security::Key;
use weft_wire::{HEADER_BYTES, Header, Kind, VERSIONS, Wire, flags};

use super::assembly::Assembler;
use super::batch::Batch;
use super::choose::{Direction, Mechanism, Thresholds, Transfer, choose};
use super::client::{Adapter, VerbsOptions, connect_error};
use super::credits::{Credits, WINDOW_MIN};
use super::envelope::{Accepting, Asking, ENVELOPE_BYTES, Envelope, FastBuffers, MESSAGE_BYTES, PartKind};
use super::keys::describe;
use super::memory::Slots;
use super::{FAST_BYTES, FAST_DATA_BYTES, FAST_HEAD_BYTES, RECEIVE};
use crate::channel::request_fault;
use crate::error::{FrameError, LinkError};
use crate::framing::FrameLimits;
use crate::link::{Bulk, BulkMemory, Completion, Link, LinkKind};
use crate::registration::Pinned;
use crate::runs::{Cursor, MemoryRuns};
use crate::segment::{KnownSegments, Segment};
use crate::socket::{checked, owned, random};

/// Work that may wait in a link's send queue, or less if the adapter has not so much room.
const SEND_DEPTH: u32 = 64;
/// Every so many posted pieces of work one reports its end, with which those before it are known to have ended.
const SIGNAL_EVERY: u64 = 4;
/// Of so many looks by who watches one takes everything in.
const WATCHED_MAX: u32 = 256;
/// Completions taken at once.
const POLLED: usize = 32;

/// What is still to be sent.
struct Outgoing {
    request_id: u64,
    /// Header, body, and payload of the link's own.
    head: Vec<u8>,
    /// The caller's data behind it.
    data: MemoryRuns,
    data_bytes: u64,
    sent: u64,
    way: Way,
}

enum Way {
    /// Cut into parts.
    Parts,
    /// In one write into this buffer of the server's, from this staging slot.
    FastCopied { buffer: u16, staging: usize },
    /// In one write into this buffer of the server's, from these pieces of the caller's.
    FastGathered { buffer: u16, pieces: Vec<MemoryPiece> },
}

/// A request under way.
struct Pending<D: Device> {
    request_id: u64,
    /// Where the server's data goes, as far as it comes in messages or through staging.
    memory: MemoryRuns,
    bytes: u64,
    delivered_bytes: u64,
    /// The server reaches the memory itself.
    described_put: bool,
    /// A slot of staging that the server writes into, to be copied out at the end.
    staging: Option<usize>,
    /// A buffer of the server's that this request occupies.
    fast: Option<u16>,
    /// Keeps the memory registered.
    _pinned: Option<Pinned<D>>,
    /// Sent as a whole.
    sent: bool,
    /// Its completion waits for the end of this piece of work, which reads the caller's memory.
    waits_for: Option<u64>,
    reply: Option<(Header, Vec<u8>)>,
}

/// What is free again once a piece of work has ended.
enum Freed {
    Send(usize),
    Staging(usize),
}

struct Inner<F: Fabric> {
    // The order of dropping: with the endpoint all work has ended, and only then registrations may.
    endpoint: F::Endpoint,
    queue: F::Queue,
    pending: Vec<Pending<F::Device>>,
    receives: Slots<F::Device>,
    sends: Slots<F::Device>,
    staging: Slots<F::Device>,
    adapter: Adapter<F>,
    epoll: OwnedFd,
    armed: bool,
    /// Times that it was watched, round and round.
    watched: u32,
    address: SocketAddr,
    peer: String,
    options: VerbsOptions,
    fast: FastBuffers,
    fast_free: Vec<u16>,
    staging_free: Vec<usize>,
    sends_free: Vec<usize>,
    /// Posted and not known to have ended, in order.
    posted: VecDeque<(u64, Freed)>,
    /// Number of the next piece of work.
    next_work: u64,
    signalled_work: u64,
    send_depth: u64,
    credits: Credits,
    assembler: Assembler,
    outgoing: VecDeque<Outgoing>,
    ready: Vec<Completion>,
    request_credits: u16,
    request_credits_max: u16,
    segments: KnownSegments,
    /// Why the link can no longer be used.
    broken: Option<String>,
    failed: bool,
}

/// A client's connection over RDMA.
pub struct VerbsLink<F: Fabric> {
    inner: ManuallyDrop<Box<Inner<F>>>,
    process: u32,
}

impl<F: Fabric> Drop for VerbsLink<F> {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return; // a forked child: connection and registrations are the parent's
        }
        self.inner.endpoint.disconnect();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

impl<F: Fabric> VerbsLink<F> {
    pub(super) fn connect(
        mut endpoint: F::Endpoint,
        adapter: Adapter<F>,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<VerbsLink<F>, LinkError> {
        let failed = |error: VerbsError| connect_error(address, error);
        let device = adapter.device.clone();
        let limits = device.limits();
        let receive_count = u32::from(options.receives).max(WINDOW_MIN);
        let send_depth = SEND_DEPTH.min(limits.send_depth_max);
        let (both, write) = (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let receives = Slots::new(&*device, MESSAGE_BYTES, receive_count as usize, both).map_err(failed)?;
        let sends = Slots::new(&*device, MESSAGE_BYTES, options.sends.max(2).into(), both).map_err(failed)?;
        let staging = Slots::new(&*device, FAST_BYTES, options.fast_buffers.into(), write).map_err(failed)?;
        let queue = device.completion_queue(receive_count + send_depth).map_err(failed)?;
        let endpoint_options = EndpointOptions {
            send_depth,
            pieces: limits.send_pieces_max as u32,
            inline_bytes: 0,
            reads_out: 1,
            reads_in: limits.reads_in_max,
        };
        endpoint
            .create_queue_pair(&endpoint_options, &queue, Receives::Own(receive_count))
            .map_err(failed)?;
        let posts: Vec<_> = (0..receives.count())
            .map(|slot| (RECEIVE | slot as u64, receives.piece(slot, MESSAGE_BYTES)))
            .collect();
        // SAFETY: the slots are registered, and the link's until it is dropped, after its endpoint.
        unsafe { endpoint.post_receive(&posts) }.map_err(failed)?;
        let accepting = ask(&mut endpoint, address, receive_count as u16, options, timeout)?;
        let epoll = epoll_of(&[queue.fd(), endpoint.event_fd(), device.event_fd()])
            .map_err(|source| LinkError::Local { what: "make an epoll set", source })?;
        let (sends_free, staging_free) =
            ((0..sends.count()).collect(), (0..options.fast_buffers.into()).collect());
        let inner = Inner {
            endpoint,
            queue,
            pending: Vec::new(),
            receives,
            sends,
            staging,
            adapter,
            epoll,
            armed: false,
            watched: 0,
            address,
            peer: format!("server {address}"),
            options: options.clone(),
            fast: accepting.fast,
            fast_free: (0..accepting.fast.count).collect(),
            staging_free,
            sends_free,
            posted: VecDeque::new(),
            next_work: 1,
            signalled_work: 0,
            send_depth: send_depth.into(),
            credits: Credits::new(accepting.receives, receive_count),
            assembler: Assembler::default(),
            outgoing: VecDeque::new(),
            ready: Vec::new(),
            request_credits: 1,
            request_credits_max: 1,
            segments: KnownSegments::default(),
            broken: None,
            failed: false,
        };
        Ok(VerbsLink { inner: ManuallyDrop::new(Box::new(inner)), process: std::process::id() })
    }

    /// Where it leads.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The number of its queue pair, by which the adapter's tools name it.
    pub fn queue_pair(&self) -> u32 {
        self.inner.endpoint.queue_pair()
    }

    fn see(
        &mut self,
        done: &mut Vec<Completion>,
        look: impl FnOnce(&mut Inner<F>) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        self.inner.check_open()?;
        let result = look(&mut self.inner);
        self.inner.failed |= result.is_err();
        done.append(&mut self.inner.ready);
        result
    }
}

/// Asks for the connection, and makes sure that who accepts it knows the key.
fn ask<E: Endpoint>(
    endpoint: &mut E,
    address: SocketAddr,
    receives: u16,
    options: &VerbsOptions,
    timeout: Duration,
) -> Result<Accepting, LinkError> {
    let mut nonce = [0; 16];
    random(&mut nonce).map_err(|source| LinkError::Local { what: "get random bytes", source })?;
    let key = options.key.clone().unwrap_or(Key([0; 32]));
    let message_bytes = MESSAGE_BYTES as u32;
    let asking = Asking { versions: VERSIONS, role: options.role, message_bytes, receives, nonce };
    endpoint.connect(&asking.encode(&key), timeout).map_err(|error| connect_error(address, error))?;
    let refuse = |text: &str| {
        let peer = format!("server {address} over RDMA");
        Err(LinkError::Connect { peer, source: io::Error::other(text.to_string()) })
    };
    let Some(accepting) = Accepting::decode(endpoint.private_data(), &key, &nonce) else {
        return refuse("it did not show that it knows the cluster's key");
    };
    let fast_fits = accepting.fast.count == 0 || accepting.fast.bytes as usize >= FAST_BYTES;
    if accepting.message_bytes != message_bytes || !fast_fits || u32::from(accepting.receives) < WINDOW_MIN {
        return refuse("its buffers are of other sizes than this release's");
    }
    Ok(accepting)
}

fn epoll_of(fds: &[RawFd]) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed, and the result is new.
    let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }?;
    for (at, fd) in fds.iter().enumerate() {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: at as u64 };
        // SAFETY: a live event.
        checked(unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &mut event) } as isize)?;
    }
    Ok(epoll)
}

impl<F: Fabric> Inner<F> {
    fn stream_error(&self, text: String) -> LinkError {
        LinkError::Stream { peer: self.peer.clone(), source: FrameError::Io(io::Error::other(text)) }
    }

    fn protocol(&self, what: &'static str) -> LinkError {
        LinkError::Protocol { peer: self.peer.clone(), what }
    }

    fn check_open(&self) -> Result<(), LinkError> {
        if self.failed { Err(LinkError::Closed { peer: self.peer.clone() }) } else { Ok(()) }
    }

    fn posted_error(&self, error: VerbsError) -> LinkError {
        self.stream_error(error.to_string())
    }

    // ---- sending ----

    /// Sends what credits, slots and the queue allow, with one ring of the doorbell.
    fn flush(&mut self) -> Result<(), LinkError> {
        let mut batch = Batch::default();
        while let Some(message) = self.outgoing.pop_front() {
            let (left, more) = self.send_some(message, &mut batch);
            if let Some(message) = left {
                self.outgoing.push_front(message);
            }
            if !more {
                break;
            }
        }
        if self.credits.wants_to_tell()
            && self.has_room()
            && let Some(slot) = self.sends_free.pop()
        {
            self.fill(slot, PartKind::Credits, |_| 0);
            let piece = self.sends.piece(slot, ENVELOPE_BYTES);
            self.add(&mut batch, Work::Send, [piece], Freed::Send(slot), false);
        }
        // SAFETY: slots stay registered and are not used again until their work has ended; of the caller's memory the
        // completion waits.
        unsafe { batch.post(&mut self.endpoint) }.map_err(|error| self.posted_error(error))
    }

    fn has_room(&self) -> bool {
        (self.posted.len() as u64) < self.send_depth
    }

    /// Adds parts of a message to the batch. Returns what is left of it, and whether more may be sent.
    fn send_some(&mut self, mut message: Outgoing, batch: &mut Batch) -> (Option<Outgoing>, bool) {
        let total = message.head.len() as u64 + message.data_bytes;
        while message.sent < total {
            if !self.credits.may_send() || !self.has_room() {
                return (Some(message), false);
            }
            let sent = match &message.way {
                Way::Parts => self.send_part(&mut message, total, batch),
                Way::FastCopied { buffer, staging } => {
                    let (buffer, staging) = (*buffer, *staging);
                    self.write_copied(&mut message, buffer, staging, batch);
                    true
                }
                Way::FastGathered { .. } => self.write_gathered(&mut message, batch),
            };
            if !sent {
                return (Some(message), false);
            }
        }
        self.note_sent(message.request_id);
        (None, true)
    }

    /// Writes an envelope, and what `write` puts behind it, into a slot; returns the bytes of both.
    fn fill(&mut self, slot: usize, kind: PartKind, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let credits = self.credits.spend();
        // SAFETY: the slot was free, so no work uses it.
        let memory = unsafe { self.sends.fill(slot) };
        let (envelope, rest) = memory.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind }.encode());
        ENVELOPE_BYTES + write(rest)
    }

    fn send_part(&mut self, message: &mut Outgoing, total: u64, batch: &mut Batch) -> bool {
        let Some(slot) = self.sends_free.pop() else { return false };
        let kind = if message.sent == 0 { PartKind::First } else { PartKind::Further };
        let bytes = self.fill(slot, kind, |room| message.take(total, room));
        let piece = self.sends.piece(slot, bytes);
        self.add(batch, Work::Send, [piece], Freed::Send(slot), false);
        true
    }

    fn fast_work(&self, buffer: u16) -> Work {
        let remote_address = self.fast.address + u64::from(buffer) * u64::from(self.fast.bytes);
        Work::WriteImmediate { remote_address, remote_key: self.fast.remote_key, immediate: buffer.into() }
    }

    /// Envelope, head and data one behind the other in a staging slot.
    fn write_copied(&mut self, message: &mut Outgoing, buffer: u16, staging: usize, batch: &mut Batch) {
        let credits = self.credits.spend();
        let total = message.head.len() as u64 + message.data_bytes;
        // SAFETY: the slot was taken for this request and no work uses it.
        let memory = unsafe { self.staging.fill(staging) };
        let (envelope, rest) = memory.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind: PartKind::First }.encode());
        let bytes = ENVELOPE_BYTES + message.take(total, rest);
        let piece = self.staging.piece(staging, bytes);
        self.add(batch, self.fast_work(buffer), [piece], Freed::Staging(staging), false);
    }

    /// Envelope and head from a send slot, data from where the caller has it.
    fn write_gathered(&mut self, message: &mut Outgoing, batch: &mut Batch) -> bool {
        let Some(slot) = self.sends_free.pop() else { return false };
        let Way::FastGathered { buffer, pieces } = &mut message.way else { return false };
        let (buffer, pieces) = (*buffer, std::mem::take(pieces));
        let bytes = self.fill(slot, PartKind::First, |room| {
            room[..message.head.len()].copy_from_slice(&message.head);
            message.head.len()
        });
        message.sent = message.head.len() as u64 + message.data_bytes;
        let pieces = [self.sends.piece(slot, bytes)].into_iter().chain(pieces);
        let work = self.add(batch, self.fast_work(buffer), pieces, Freed::Send(slot), true);
        let request_id = message.request_id;
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.request_id == request_id) {
            pending.waits_for = Some(work);
        }
        true
    }

    fn add(
        &mut self,
        batch: &mut Batch,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        freed: Freed,
        signalled: bool,
    ) -> u64 {
        let number = self.next_work;
        self.next_work += 1;
        let signalled = signalled || number - self.signalled_work >= SIGNAL_EVERY.min(self.send_depth / 2);
        if signalled {
            self.signalled_work = number;
        }
        self.posted.push_back((number, freed));
        batch.add(number, work, pieces, signalled);
        number
    }

    fn note_sent(&mut self, request_id: u64) {
        if let Some(at) = self.pending.iter().position(|pending| pending.request_id == request_id) {
            self.pending[at].sent = true;
            self.complete(at);
        }
    }

    /// Work up to this number has ended.
    fn note_ended(&mut self, number: u64) {
        while let Some((first, _)) = self.posted.front()
            && *first <= number
        {
            match self.posted.pop_front() {
                Some((_, Freed::Send(slot))) => self.sends_free.push(slot),
                Some((_, Freed::Staging(slot))) => self.staging_free.push(slot),
                None => {}
            }
        }
        for at in (0..self.pending.len()).rev() {
            if self.pending[at].waits_for.is_some_and(|work| work <= number) {
                self.pending[at].waits_for = None;
                self.complete(at);
            }
        }
    }

    // ---- receiving ----

    /// Takes all that has ended. Says whether there was anything.
    fn poll(&mut self) -> Result<bool, LinkError> {
        let mut done = Vec::with_capacity(POLLED);
        let mut any = false;
        loop {
            done.clear();
            self.queue.poll(&mut done, POLLED).map_err(|error| self.posted_error(error))?;
            if done.is_empty() {
                return Ok(any);
            }
            any = true;
            let mut posts = Vec::new();
            for one in &done {
                self.take_done(one, &mut posts)?;
            }
            if self.broken.is_none() && !posts.is_empty() {
                // SAFETY: what was in these slots has been taken out; they are the adapter's again.
                let posted = unsafe { self.endpoint.post_receive(&posts) };
                posted.map_err(|error| self.posted_error(error))?;
                posts.iter().for_each(|_| self.credits.dealt_with());
            }
        }
    }

    fn take_done(&mut self, done: &WorkDone, posts: &mut Vec<(u64, MemoryPiece)>) -> Result<(), LinkError> {
        if done.status != WorkStatus::Ok {
            self.broken.get_or_insert_with(|| match done.status {
                WorkStatus::Flushed => "the connection has ended".to_string(),
                status => format!("RDMA work failed: {status:?}"),
            });
            return Ok(());
        }
        match done.kind {
            WorkKind::Sent => self.note_ended(done.id),
            WorkKind::ReceivedImmediate(_) => {
                return Err(self.protocol("it wrote with immediate data"));
            }
            WorkKind::Received | WorkKind::ReceivedInvalidate(_) => {
                let slot = (done.id & !RECEIVE) as usize;
                // SAFETY: the receive has ended, and the slot is posted again only after this.
                let message = unsafe { self.receives.read(slot, done.bytes as usize) };
                self.take_part(message)?;
                posts.push((done.id, self.receives.piece(slot, MESSAGE_BYTES)));
            }
        }
        Ok(())
    }

    fn take_part(&mut self, message: &[u8]) -> Result<(), LinkError> {
        let Some(envelope) = Envelope::decode(message) else {
            return Err(self.protocol("a message has no envelope"));
        };
        if self.credits.received(envelope.credits).is_err() {
            return Err(self.protocol("it sent more than it had credits for"));
        }
        if envelope.kind == PartKind::Credits {
            return Ok(());
        }
        let mut assembler = std::mem::take(&mut self.assembler);
        let step = assembler.part(envelope.kind, &message[ENVELOPE_BYTES..], &FrameLimits::client());
        self.assembler = assembler;
        let step = step.map_err(|source| LinkError::Stream { peer: self.peer.clone(), source })?;
        self.take_step(step.header, step.payload_at, step.payload, step.whole)
    }

    fn take_step(
        &mut self,
        header: Header,
        payload_at: u64,
        payload: &[u8],
        whole: Option<Vec<u8>>,
    ) -> Result<(), LinkError> {
        let Some(at) = self.pending.iter().position(|pending| pending.request_id == header.request_id) else {
            return Err(self.protocol("it answered a request that is not under way"));
        };
        if self.pending[at].reply.is_some() {
            return Err(self.protocol("it answered a request twice"));
        }
        let reply = header.kind == Kind::Reply;
        if !payload.is_empty() {
            let outside = self.protocol("it sent data outside of the memory it was given");
            let pending = &mut self.pending[at];
            let offset = (if reply { 0 } else { header.share_offset }).saturating_add(payload_at);
            if offset.checked_add(payload.len() as u64).is_none_or(|end| end > pending.bytes) {
                return Err(outside);
            }
            // SAFETY: the caller of `submit` keeps these pieces valid until the completion.
            unsafe { place(&pending.memory, offset, payload) };
            self.adapter.transfers.copied(payload.len());
            pending.delivered_bytes += payload.len() as u64;
        }
        let Some(body) = whole.filter(|_| reply) else { return Ok(()) };
        self.request_credits =
            self.request_credits.saturating_add(header.credit).min(self.request_credits_max);
        self.pending[at].reply = Some((header, body));
        self.complete(at);
        Ok(())
    }

    /// Gives the completion of a request that is sent and answered, and whose memory no work uses.
    fn complete(&mut self, at: usize) {
        let pending = &self.pending[at];
        if !pending.sent || pending.waits_for.is_some() || pending.reply.is_none() {
            return;
        }
        let pending = self.pending.swap_remove(at);
        let Pending { reply, mut delivered_bytes, staging, memory, bytes, .. } = pending;
        let Some((header, body)) = reply else { return };
        let well = header.status == weft_wire::Status::Ok;
        if let Some(slot) = staging {
            if well && delivered_bytes == 0 {
                // SAFETY: the server has answered and writes no more; the slot is this request's.
                let data = unsafe { self.staging.read(slot, bytes as usize) };
                // SAFETY: the caller of `submit` keeps these pieces valid until the completion.
                unsafe { place(&memory, 0, data) };
                self.adapter.transfers.copied(data.len());
            }
            self.staging_free.push(slot);
        }
        if pending.described_put {
            delivered_bytes = if well { bytes } else { 0 };
        }
        self.fast_free.extend(pending.fast);
        self.ready.push(Completion { header, body, delivered_bytes });
    }

    // ---- waiting ----

    /// Looks at the three descriptors without waiting.
    fn look(&mut self) -> Result<(), LinkError> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 3];
        // SAFETY: room for the number of events given.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 3, 0) };
        for event in events.iter().take(count.max(0) as usize) {
            match event.u64 {
                0 => {
                    self.queue.take_wakeups().map_err(|error| self.posted_error(error))?;
                    self.armed = false;
                }
                1 => {
                    if let EndpointState::Ended(cause) = self.endpoint.state() {
                        self.broken.get_or_insert(cause);
                    }
                }
                _ => {
                    let fatal = self.adapter.device.events().into_iter().find_map(|event| match event {
                        DeviceEvent::Fatal(cause) => Some(cause),
                        _ => None,
                    });
                    if let Some(cause) = fatal {
                        self.broken.get_or_insert(cause);
                    }
                }
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<(), LinkError> {
        self.look()?;
        self.poll()?;
        self.flush()?;
        let waits = !self.pending.is_empty() || !self.outgoing.is_empty();
        if waits && !self.armed && self.broken.is_none() {
            self.queue.arm().map_err(|error| self.posted_error(error))?;
            self.armed = true;
            // What ended before the queue was armed is not told by the descriptor.
            if self.poll()? {
                self.flush()?;
            }
        }
        self.check_broken()
    }

    /// As [`Inner::progress`] without the descriptors, but now and then: an end of the connection with nothing under way is told
    /// only there.
    fn watch(&mut self) -> Result<(), LinkError> {
        self.watched = (self.watched + 1) % WATCHED_MAX;
        if self.watched == 0 {
            return self.progress();
        }
        self.poll()?;
        self.flush()?;
        self.check_broken()
    }

    fn check_broken(&mut self) -> Result<(), LinkError> {
        match self.broken.take() {
            Some(cause) => Err(self.stream_error(cause)),
            None => Ok(()),
        }
    }

    // ---- requests ----

    /// A message in parts, with the caller's data behind `head`.
    fn start(&mut self, head: Vec<u8>, data: (MemoryRuns, u64), way: Way, pending: Pending<F::Device>) {
        let request_id = pending.request_id;
        self.pending.push(pending);
        let (data, data_bytes) = data;
        self.outgoing.push_back(Outgoing { request_id, head, data, data_bytes, sent: 0, way });
    }

    fn pending(&self, request_id: u64, memory: MemoryRuns, bytes: u64) -> Pending<F::Device> {
        Pending {
            request_id,
            memory,
            bytes,
            delivered_bytes: 0,
            described_put: false,
            staging: None,
            fast: None,
            _pinned: None,
            sent: false,
            waits_for: None,
            reply: None,
        }
    }

    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        self.check_open()?;
        let in_use = self.pending.iter().any(|pending| pending.request_id == header.request_id);
        if self.request_credits == 0 {
            return Err(LinkError::NoCredit { peer: self.peer.clone() });
        }
        if let Some(what) = request_fault(&header, body, in_use) {
            return Err(LinkError::Request { peer: self.peer.clone(), what });
        }
        let (memory, direction) = match bulk {
            Bulk::None => (MemoryRuns::new().into(), Direction::Get),
            Bulk::Put(memory) => (memory, Direction::Put),
            Bulk::Get(memory) => (memory, Direction::Get),
        };
        let BulkMemory { mut runs, allocations } = memory;
        let bytes = self.segments.resolve(&mut runs)?;
        let memory = BulkMemory { runs, allocations };
        let (mechanism, pinned) = self.mechanism(direction, &memory.runs, bytes, HEADER_BYTES + body.len());
        if bytes > 0 {
            self.adapter.transfers.add(mechanism);
        }
        match (mechanism, pinned) {
            (Mechanism::Inline, _) => self.submit_inline(header, body, direction, memory.runs, bytes),
            (Mechanism::Fast, pinned) => match direction {
                Direction::Get => self.submit_fast(header, body, memory.runs, bytes, pinned),
                Direction::Put => self.submit_staged(header, body, memory.runs, bytes),
            },
            (Mechanism::Remote, pinned) => {
                // SAFETY: as the caller promises.
                unsafe { self.submit_remote(header, body, direction, &memory, bytes, pinned) }?;
            }
        }
        self.request_credits -= 1;
        self.flush()
    }

    /// Chooses; with the registration of the memory where it has one and it counts.
    fn mechanism(
        &self,
        direction: Direction,
        runs: &[MemoryRun],
        bytes: u64,
        head_bytes: usize,
    ) -> (Mechanism, Option<Pinned<F::Device>>) {
        let VerbsOptions { inline_bytes_max, fast_bytes_max, mechanism, .. } = self.options;
        let thresholds = Thresholds {
            inline_bytes_max,
            fast_bytes_max: fast_bytes_max.min(FAST_DATA_BYTES as u64),
            message_data_bytes_max: MESSAGE_DATA_BYTES_MAX as u64,
        };
        let may_be_fast =
            bytes <= thresholds.fast_bytes_max && bytes > inline_bytes_max || mechanism.is_some();
        let pinned = if may_be_fast && bytes > 0 {
            self.adapter.cache.check_if_registered(runs, direction == Direction::Put)
        } else {
            None
        };
        let registered = pinned.is_some();
        let fast_free = match direction {
            Direction::Put => !self.staging_free.is_empty(),
            Direction::Get => {
                let source_free = registered || !self.staging_free.is_empty();
                !self.fast_free.is_empty() && source_free && ENVELOPE_BYTES + head_bytes <= FAST_HEAD_BYTES
            }
        };
        let transfer = Transfer { direction, bytes, registered, fast_free };
        (choose(&transfer, &thresholds, mechanism), pinned)
    }

    fn submit_inline(
        &mut self,
        header: Header,
        body: &[u8],
        direction: Direction,
        runs: MemoryRuns,
        bytes: u64,
    ) {
        let (data, memory) = match direction {
            Direction::Get => ((runs, bytes), (MemoryRuns::new(), 0)),
            Direction::Put => ((MemoryRuns::new(), 0), (runs, bytes)),
        };
        self.adapter.transfers.copied(data.1 as usize);
        let head = head_of(header, body, &[], data.1);
        let pending = self.pending(header.request_id, memory.0, memory.1);
        self.start(head, data, Way::Parts, pending);
    }

    /// A write into a Fast buffer of the server's.
    fn submit_fast(
        &mut self,
        header: Header,
        body: &[u8],
        runs: MemoryRuns,
        bytes: u64,
        pinned: Option<Pinned<F::Device>>,
    ) {
        let Some(buffer) = self.fast_free.pop() else {
            return self.submit_inline(header, body, Direction::Get, runs, bytes);
        };
        let pieces_max = self.adapter.device.limits().send_pieces_max.saturating_sub(1);
        let pieces = pinned.as_ref().and_then(|pinned| gathered(pinned, &runs, bytes, pieces_max));
        let way = match (pieces, self.staging_free.pop()) {
            (Some(pieces), staging) => {
                self.staging_free.extend(staging);
                Way::FastGathered { buffer, pieces }
            }
            (None, Some(staging)) => {
                self.adapter.transfers.copied(bytes as usize);
                Way::FastCopied { buffer, staging }
            }
            (None, None) => {
                self.fast_free.push(buffer);
                return self.submit_inline(header, body, Direction::Get, runs, bytes);
            }
        };
        let head = head_of(header, body, &[], bytes);
        let mut pending = self.pending(header.request_id, MemoryRuns::new(), 0);
        (pending.fast, pending._pinned) = (Some(buffer), pinned);
        self.start(head, (runs, bytes), way, pending);
    }

    /// A read through a staging slot of the link's.
    fn submit_staged(&mut self, mut header: Header, body: &[u8], runs: MemoryRuns, bytes: u64) {
        let Some(slot) = self.staging_free.pop() else {
            return self.submit_inline(header, body, Direction::Put, runs, bytes);
        };
        let address = self.staging.base(slot).as_ptr() as u64;
        let region = RemoteKey { address, bytes, remote_key: self.staging.remote_key() };
        let run = MemoryRun { segment: 1, address, bytes, stride_bytes: 0, count: 1 };
        let told = weft_wire::messages::RemoteKeys { keys: vec![region], runs: vec![run] };
        header.flags |= flags::REMOTE_MEMORY;
        let head = head_of(header, body, &told.to_bytes(), 0);
        let mut pending = self.pending(header.request_id, runs, bytes);
        (pending.staging, pending.described_put) = (Some(slot), true);
        self.start(head, (MemoryRuns::new(), 0), Way::Parts, pending);
    }

    /// The server reads or writes the caller's memory.
    ///
    /// # Safety
    /// As for [`Link::submit`].
    unsafe fn submit_remote(
        &mut self,
        mut header: Header,
        body: &[u8],
        direction: Direction,
        memory: &BulkMemory,
        bytes: u64,
        pinned: Option<Pinned<F::Device>>,
    ) -> Result<(), LinkError> {
        let write = direction == Direction::Put;
        let pinned = match pinned {
            Some(pinned) => pinned,
            None => {
                // SAFETY: as the caller promises.
                let pinned = unsafe { self.adapter.cache.pin(&memory.runs, &memory.allocations, write) };
                pinned.map_err(|error| {
                    let source = io::Error::other(error.to_string());
                    LinkError::Local { what: "register memory with the RDMA adapter", source }
                })?
            }
        };
        let regions: Vec<RemoteKey> = pinned
            .regions()
            .iter()
            .map(|region| RemoteKey {
                address: region.address,
                bytes: region.bytes,
                remote_key: region.remote_key,
            })
            .collect();
        let told = describe(&memory.runs, &regions)?;
        header.flags |= flags::REMOTE_MEMORY;
        let head = head_of(header, body, &told.to_bytes(), 0);
        let place = if write { memory.runs.clone() } else { MemoryRuns::new() };
        let mut pending = self.pending(header.request_id, place, if write { bytes } else { 0 });
        (pending._pinned, pending.described_put) = (Some(pinned), write);
        self.start(head, (MemoryRuns::new(), 0), Way::Parts, pending);
        Ok(())
    }
}

impl Outgoing {
    /// Copies what comes next into `room`, as much as fits; returns how much.
    fn take(&mut self, total: u64, room: &mut [u8]) -> usize {
        let bytes = (total - self.sent).min(room.len() as u64) as usize;
        let head_left = (self.head.len() as u64).saturating_sub(self.sent).min(bytes as u64) as usize;
        let (head, data) = room[..bytes].split_at_mut(head_left);
        let head_at = self.sent.min(self.head.len() as u64) as usize;
        head.copy_from_slice(&self.head[head_at..head_at + head_left]);
        if !data.is_empty() {
            let from = self.sent + head_left as u64 - self.head.len() as u64;
            let mut to = data;
            Cursor::at(&self.data, from).walk(&self.data, to.len() as u64, |_, address, bytes| {
                let (part, rest) = std::mem::take(&mut to).split_at_mut(bytes as usize);
                let memory = address as usize as *const u8;
                // SAFETY: the caller of `submit` keeps its pieces valid until the completion, which waits until all is sent.
                unsafe { std::ptr::copy_nonoverlapping(memory, part.as_mut_ptr(), part.len()) };
                to = rest;
                true
            });
        }
        self.sent += bytes as u64;
        bytes
    }
}

/// Header, body and a payload of the link's own; `data_bytes` of the caller's come behind.
fn head_of(mut header: Header, body: &[u8], payload: &[u8], data_bytes: u64) -> Vec<u8> {
    header.body_bytes = body.len() as u32;
    header.payload_bytes = payload.len() as u64 + data_bytes;
    let mut head = Vec::with_capacity(HEADER_BYTES + body.len() + payload.len());
    head.extend_from_slice(&header.encode());
    head.extend_from_slice(body);
    head.extend_from_slice(payload);
    head
}

/// The caller's pieces with their keys, if there are no more than one work request can hold.
fn gathered<D: Device>(
    pinned: &Pinned<D>,
    runs: &[MemoryRun],
    bytes: u64,
    pieces_max: usize,
) -> Option<Vec<MemoryPiece>> {
    let mut pieces: Vec<MemoryPiece> = Vec::new();
    let mut all = true;
    Cursor::default().walk(runs, bytes, |_, address, bytes| {
        let region = pinned.find(address, bytes);
        all = pieces.len() < pieces_max && region.is_some();
        pieces.extend(region.map(|region| MemoryPiece {
            address,
            bytes: bytes as u32,
            local_key: region.local_key,
        }));
        all
    });
    all.then_some(pieces)
}

/// Copies data into pieces, from a share offset on.
///
/// # Safety
/// The runs are tidy, lie in this process, hold that much, and nobody else uses their memory.
unsafe fn place(runs: &[MemoryRun], share_offset: u64, data: &[u8]) {
    let mut left = data;
    Cursor::at(runs, share_offset).walk(runs, data.len() as u64, |_, address, bytes| {
        let (part, rest) = left.split_at(bytes as usize);
        // SAFETY: as the caller promises; a walk never exceeds what was asked for.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), address as usize as *mut u8, part.len()) };
        left = rest;
        true
    });
}

impl<F: Fabric> Link for VerbsLink<F> {
    fn kind(&self) -> LinkKind {
        let device = &self.inner.adapter.device;
        LinkKind::Verbs {
            device: device.name().into(),
            link_layer: device.limits().link_layer.to_string(),
            registration: self.inner.adapter.cache.stats().foreign,
        }
    }

    fn peer(&self) -> &str {
        &self.inner.peer
    }

    fn fd(&self) -> RawFd {
        self.inner.epoll.as_raw_fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn credits(&self) -> u16 {
        self.inner.request_credits
    }

    fn set_credits(&mut self, credits: u16) {
        // Each request under way has a receive for its reply, so that a server never waits for a client that computes.
        let receives = self.inner.options.receives.max(WINDOW_MIN as u16);
        self.inner.request_credits_max = credits.min(CREDITS_PER_CONNECTION).min(receives - 2);
        self.inner.request_credits = self.inner.request_credits_max;
    }

    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        // SAFETY: as the caller promises.
        let result = unsafe { self.inner.submit(header, body, bulk) };
        self.inner.failed |= result.as_ref().is_err_and(LinkError::is_fatal);
        result
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.see(done, Inner::progress)
    }

    fn watch(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.see(done, Inner::watch)
    }

    fn must_arm(&self) -> bool {
        true
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.inner.segments.add(segment, false);
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        self.inner.segments.remove(id);
        Ok(())
    }
}
