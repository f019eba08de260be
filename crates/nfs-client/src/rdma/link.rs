//! The link: what waits for credits, what is under way, and how a call is sent.
//!
//! ```text
//!   submit ─► waiting ─ credit, slot, room ─► [Bind of windows ▸] Send ─► under way ─► reply ─► [Invalidate ─► ending] ─► Reply
//!                                                                                       └─► fetching (Read-Read) ─┘
//! ```

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::time::Duration;

use rustc_hash::FxHashMap;
use weft_onc_rpc::rdma::{Body, Chunks, INLINE_BYTES_DEFAULT, PrivateData, RdmaHeader, ReadSegment};
use weft_onc_rpc::xdr::padding;
use weft_rdma::{Batch, RECEIVE, Requester, Slots, Tag};
use weft_transport::registration::RegistrationCache;
use weft_verbs::{
    Access, Device, DeviceLimits, Endpoint, EndpointOptions, Fabric, Receives, VerbsError, Work,
};

use super::chunks::Given;
use super::exposed::{Direction, Exposed, Exposer};
use super::fetch::Fetching;
use super::left::LeftRoom;
use super::memory::{RdmaDesign, RdmaMemory};
use super::plan::{Inline, Sizes, plan};
use super::status::RdmaCounts;
use crate::error::{ErrorKind, Failure};
use crate::incoming::{Memory, Reply};
use crate::link::{Link, Lost, Message};

/// The longest message, in both directions: what Linux sends and takes.
pub(super) const MESSAGE_BYTES: usize = 4096;
/// Calls that may be under way at a time, if the server grants so many.
const CREDITS_MAX: u32 = 128;
/// Messages that are being sent at a time.
const SENDS: usize = 32;
/// Work that may wait in the send queue, or less if the adapter has not so much room.
const SEND_DEPTH: u32 = 128;

/// Work of one call at most: the message, and a bind for each segment of its chunks.
const WORK_MAX: usize = 8;

/// What is free again once a piece of work has ended.
pub(super) enum Sent {
    /// A slot for a message.
    Slot(usize),
    /// A bind or an invalidation.
    Local,
    /// An RDMA Read.
    Read,
}

impl Tag for Sent {
    fn is_local(&self) -> bool {
        matches!(self, Sent::Local)
    }

    fn is_message(&self) -> bool {
        matches!(self, Sent::Slot(_))
    }
}

/// A call that the server has not answered.
pub(super) struct UnderWay<D: Device> {
    pub sink: Memory,
    pub given: Given,
    pub exposed: Vec<Exposed<D>>,
    /// Which of them is the sink, and which the buffer for a long reply.
    pub sink_at: Option<usize>,
    pub reply_at: Option<usize>,
    /// Bytes of data that the server reads from a chunk.
    pub read_chunk_bytes: usize,
    /// What the server may leave for this side to read.
    pub left_room: LeftRoom,
    /// Nobody waits for it.
    pub is_abandoned: bool,
}

/// A call that is answered, and some of whose keys are to be ended.
pub(super) struct Ending<D: Device> {
    pub reply: Option<Reply>,
    pub exposed: Vec<Exposed<D>>,
    pub keys: VecDeque<u32>,
    /// The work that ends the last of them.
    pub waits_for: Option<u64>,
}

pub(super) struct Inner<F: Fabric> {
    // The order of dropping: with the queue pair all work has ended, and only then registrations may.
    pub requester: Requester<F, Sent>,
    pub calls: FxHashMap<u32, UnderWay<F::Device>>,
    pub ending: Vec<Ending<F::Device>>,
    /// Replies that are being read.
    pub fetching: Vec<Fetching<F::Device>>,
    /// Calls whose replies were read, of which the server is to be told.
    pub done: VecDeque<u32>,
    pub design: RdmaDesign,
    pub exposer: Exposer<F::Device>,
    pub receives: Slots<F::Device>,
    sends: Slots<F::Device>,
    pub sends_free: Vec<usize>,
    waiting: VecDeque<Message>,
    inline: Inline,
    /// Calls that may be under way, as the server grants them.
    pub granted: u32,
    /// The same, as there are receives for their replies.
    pub credits_max: u32,
    /// Replies to be given.
    pub ready: Vec<Reply>,
}

/// A connection over RDMA.
pub(super) struct RdmaLink<F: Fabric> {
    inner: ManuallyDrop<Box<Inner<F>>>,
    process: u32,
}

impl<F: Fabric> Drop for RdmaLink<F> {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return; // a forked child: connection and registrations are the parent's
        }
        self.inner.end("it is not needed any more");
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

/// Sizes of the queue pair.
fn endpoint_options(limits: &DeviceLimits, design: RdmaDesign) -> EndpointOptions {
    EndpointOptions {
        send_depth: SEND_DEPTH.min(limits.send_depth_max),
        pieces: 1,
        inline_bytes: 0,
        reads_out: if design == RdmaDesign::ReadRead { limits.reads_out_max } else { 0 },
        reads_in: limits.reads_in_max,
    }
}

/// What both sides take inline: what the server has said of itself, or what every server takes.
fn inline_of(private_data: &[u8]) -> Inline {
    let usual = INLINE_BYTES_DEFAULT;
    let said = PrivateData::decode(private_data);
    let (receive, send) = said.map_or((usual, usual), |said| (said.receive_bytes, said.send_bytes));
    Inline {
        send_bytes: MESSAGE_BYTES.min(receive as usize),
        receive_bytes: MESSAGE_BYTES.min(send as usize),
    }
}

impl<F: Fabric> RdmaLink<F> {
    /// Connects; waits for it, so long at most.
    pub(super) fn connect(
        mut endpoint: F::Endpoint,
        design: RdmaDesign,
        memory: RdmaMemory,
        cache: RegistrationCache<F::Device>,
        counts: RdmaCounts,
        patience: Duration,
    ) -> Result<RdmaLink<F>, Lost> {
        let lost = |error: VerbsError| Lost::new(error.to_string());
        let device = cache.device().clone();
        let options = endpoint_options(device.limits(), design);
        let credits_max = CREDITS_MAX.min(device.limits().send_depth_max);
        let access = Access::LOCAL_WRITE;
        let receives = Slots::new(&*device, MESSAGE_BYTES, credits_max as usize, access).map_err(lost)?;
        let sends = Slots::new(&*device, MESSAGE_BYTES, SENDS, access).map_err(lost)?;
        let queue = device.completion_queue(credits_max + options.send_depth).map_err(lost)?;
        let own = Receives::Own(credits_max);
        endpoint.create_queue_pair(&options, &queue, own).map_err(lost)?;
        let posts: Vec<_> = (0..receives.count())
            .map(|slot| (RECEIVE | slot as u64, receives.piece(slot, MESSAGE_BYTES)))
            .collect();
        // SAFETY: the slots are registered, and the link's until it is dropped, after its endpoint.
        unsafe { endpoint.post_receive(&posts) }.map_err(lost)?;
        let bytes = MESSAGE_BYTES as u32;
        let takes_invalidation = memory == RdmaMemory::Windows;
        let own = PrivateData { takes_invalidation, send_bytes: bytes, receive_bytes: bytes };
        endpoint.connect(&own.to_bytes(), patience).map_err(lost)?;
        let inline = inline_of(endpoint.private_data());
        let requester = Requester::new(endpoint, queue, options.send_depth, takes_invalidation);
        let mut requester = requester.map_err(|error| Lost::new(error.to_string()))?;
        requester.arm().map_err(lost)?;
        let inner = Inner {
            requester,
            calls: FxHashMap::default(),
            ending: Vec::new(),
            fetching: Vec::new(),
            done: VecDeque::new(),
            design,
            exposer: Exposer::new(memory, cache, counts),
            receives,
            sends_free: (0..sends.count()).collect(),
            sends,
            waiting: VecDeque::new(),
            inline,
            granted: 1,
            credits_max,
            ready: Vec::new(),
        };
        Ok(RdmaLink { inner: ManuallyDrop::new(Box::new(inner)), process: std::process::id() })
    }
}

/// What of a reply the server may leave in its own memory.
fn left_room(design: RdmaDesign, sizes: &Sizes, sink_local: bool) -> LeftRoom {
    match design {
        RdmaDesign::ReadWrite => LeftRoom::default(),
        RdmaDesign::ReadRead => LeftRoom {
            data_bytes: if sink_local { sizes.sink } else { 0 },
            reply_bytes: sizes.reply_max + sizes.sink + padding(sizes.sink),
        },
    }
}

/// How a call is sent.
struct Prepared<D: Device> {
    header: RdmaHeader,
    /// Binds that go before it.
    binds: VecDeque<Work>,
    /// Its head is in a chunk.
    long_call: bool,
    /// Its data are inline.
    payload_inline: bool,
    under_way: UnderWay<D>,
}

impl<F: Fabric> Inner<F> {
    /// Ends the connection; no memory is touched from here on.
    pub(super) fn end(&mut self, why: &str) {
        self.requester.disconnect(why);
        let calls = self.calls.values_mut().flat_map(|call| &mut call.exposed);
        let ending = self.ending.iter_mut().flat_map(|ending| &mut ending.exposed);
        let fetching = self.fetching.iter_mut().flat_map(|fetching| &mut fetching.call.exposed);
        self.exposer.drop_windows(calls.chain(ending).chain(fetching));
    }

    pub(super) fn check(&self) -> Result<(), Lost> {
        match self.requester.ended() {
            Some(why) => Err(Lost::new(why)),
            None => Ok(()),
        }
    }

    /// Sends what credits, slots and the queue allow, with one ring of the doorbell.
    pub(super) fn send(&mut self) -> Result<(), Lost> {
        self.check()?;
        let mut batch = Batch::default();
        // Calls that came one after the other could keep keys valid for ever.
        if self.end_keys(&mut batch) {
            self.send_fetches(&mut batch);
            while self.under_way() < self.granted
                && let Some(message) = self.waiting.pop_front()
            {
                if !self.send_call(&message, &mut batch) {
                    self.waiting.push_front(message);
                    break;
                }
            }
        }
        // SAFETY: slots and windows stay until their work has ended; of the caller's memory whoever submitted it has
        // promised it until the reply.
        unsafe { self.requester.post(&batch) }.map_err(|error| Lost::new(error.to_string()))
    }

    /// Calls that count against what the server grants.
    fn under_way(&self) -> u32 {
        (self.calls.len() + self.fetching.len() + self.done.len()) as u32
    }

    /// Adds a message of these parts, in this slot, which is free.
    pub(super) fn send_from(&mut self, slot: usize, parts: &[&[u8]], batch: &mut Batch, signalled: bool) {
        // SAFETY: the slot was free, so no work uses it.
        let room = unsafe { self.sends.fill(slot) };
        let mut bytes = 0;
        for part in parts {
            room[bytes..bytes + part.len()].copy_from_slice(part);
            bytes += part.len();
        }
        let piece = self.sends.piece(slot, bytes);
        self.requester.add(batch, Work::Send, [piece], Sent::Slot(slot), signalled);
    }

    /// Adds a call to the batch; false if there is no room for it now. One that cannot be sent at all has its reply.
    fn send_call(&mut self, message: &Message, batch: &mut Batch) -> bool {
        if self.sends_free.is_empty() || !self.requester.has_room_for(WORK_MAX) {
            return false;
        }
        if self.exposer.memory == RdmaMemory::Windows && !self.requester.takes_local_work() {
            return false;
        }
        let prepared = match self.prepare(message) {
            Ok(prepared) => prepared,
            Err(why) => {
                let why = format!("the memory of the call cannot be used over RDMA: {why}");
                let failure = Failure::new(ErrorKind::Local(libc::ENOMEM), why);
                self.ready.push(Reply::failed(message.xid, failure));
                return true;
            }
        };
        let Prepared { header, binds, long_call, payload_inline, under_way } = prepared;
        // Where the next call finds no room, the end of this one is what it waits for.
        let signalled = !self.requester.has_room_for(binds.len() + 1 + WORK_MAX);
        for bind in binds {
            self.requester.add(batch, bind, [], Sent::Local, false);
        }
        let slot = self.sends_free.pop().expect("there is one");
        let header = header.write().into_bytes();
        let head = if long_call { &[] } else { &message.head[..] };
        let payload = if payload_inline { message.data.payload } else { Memory::NONE };
        // SAFETY: whoever submitted the call keeps the payload readable.
        let payload = unsafe { payload.as_slice() };
        let parts = [&header, head, payload, &[0; 4][..padding(payload.len())]];
        self.send_from(slot, &parts, batch, signalled);
        self.count(message, &under_way, long_call, payload_inline);
        self.calls.insert(message.xid, under_way);
        true
    }

    fn count(&self, message: &Message, call: &UnderWay<F::Device>, long_call: bool, payload_inline: bool) {
        self.exposer.counts.update(|totals| {
            totals.calls += 1;
            totals.long_calls += u64::from(long_call);
            totals.read_chunk_bytes += call.read_chunk_bytes as u64;
            if payload_inline {
                totals.copied_bytes += message.data.payload.bytes as u64;
            }
        });
    }

    /// Decides how a call is sent, and gives its memory keys.
    fn prepare(&mut self, message: &Message) -> Result<Prepared<F::Device>, String> {
        let (head, data) = (&*message.head, &message.data);
        let sizes = Sizes {
            head: head.len(),
            payload: data.payload.bytes,
            sink: data.sink.bytes,
            reply_max: data.reply_bytes_max,
        };
        // What is registered at once is one segment.
        let registered_max = self.requester.device().limits().registration_bytes_max as usize;
        let segments = sizes.payload.max(sizes.sink).div_ceil(registered_max) + 1;
        let plan = plan(&sizes, &self.inline, segments, self.design);
        let (mut binds, mut chunks) = (VecDeque::new(), Chunks::default());
        let mut call = UnderWay {
            sink: data.sink,
            given: Given::default(),
            exposed: Vec::new(),
            sink_at: None,
            reply_at: None,
            read_chunk_bytes: 0,
            left_room: left_room(self.design, &sizes, plan.sink_local),
            is_abandoned: false,
        };
        let read = |position: usize, exposed: &Exposed<F::Device>| -> Vec<ReadSegment> {
            let position = position as u32;
            exposed.segments.iter().map(|segment| ReadSegment { position, segment: *segment }).collect()
        };
        if plan.long_call {
            let mut buffer = self.exposer.buffers.take(head.len()).map_err(|error| error.to_string())?;
            // SAFETY: the buffer was free.
            let memory = unsafe { buffer.fill() };
            memory[..head.len()].copy_from_slice(head);
            let exposed = self.exposer.expose_buffer(buffer, head.len(), Direction::Out, &mut binds)?;
            chunks.reads.extend(read(0, &exposed));
            call.exposed.push(exposed);
        }
        if plan.payload_chunk {
            // SAFETY: whoever submitted the call keeps the payload readable.
            let exposed = unsafe { self.exposer.expose(data.payload, Direction::Out, &mut binds) }?;
            chunks.reads.extend(read(head.len(), &exposed));
            call.read_chunk_bytes = data.payload.bytes;
            call.exposed.push(exposed);
        }
        if plan.sink_chunk {
            // SAFETY: whoever submitted the call keeps the sink writable, and uses it for nothing else.
            let exposed = unsafe { self.exposer.expose(data.sink, Direction::In, &mut binds) }?;
            call.given.write = Some(exposed.segments.clone());
            chunks.writes.push(exposed.segments.clone());
            call.sink_at = Some(call.exposed.len());
            call.exposed.push(exposed);
        }
        if plan.sink_local {
            // SAFETY: whoever submitted the call keeps the sink writable, and uses it for nothing else.
            let local = unsafe { self.exposer.expose(data.sink, Direction::Local, &mut binds) }?;
            call.sink_at = Some(call.exposed.len());
            call.exposed.push(local);
        }
        if plan.reply_chunk {
            let bytes = sizes.reply_max + sizes.sink;
            let buffer = self.exposer.buffers.take(bytes).map_err(|error| error.to_string())?;
            let exposed = self.exposer.expose_buffer(buffer, bytes, Direction::In, &mut binds)?;
            call.given.reply = Some(exposed.segments.clone());
            chunks.reply = Some(exposed.segments.clone());
            call.reply_at = Some(call.exposed.len());
            call.exposed.push(exposed);
        }
        if binds.len() >= WORK_MAX {
            return Err("it is in too many registrations".into());
        }
        let body = if plan.long_call { Body::NoMessage(chunks) } else { Body::Message(chunks) };
        let header = RdmaHeader { xid: message.xid, credits: self.credits_max, body };
        let payload_inline = sizes.payload > 0 && !plan.payload_chunk;
        Ok(Prepared { header, binds, long_call: plan.long_call, payload_inline, under_way: call })
    }

    /// Adds the work that ends keys of answered calls; false if it has to wait until other work has ended.
    fn end_keys(&mut self, batch: &mut Batch) -> bool {
        for ending in self.ending.iter_mut().filter(|ending| !ending.keys.is_empty()) {
            if !self.requester.takes_local_work() {
                return false;
            }
            while let Some(key) = ending.keys.front().copied() {
                if !self.requester.has_room_for(1) {
                    return false;
                }
                ending.keys.pop_front();
                let is_last = ending.keys.is_empty();
                let work = Work::Invalidate { key };
                let number = self.requester.add(batch, work, [], Sent::Local, is_last);
                ending.waits_for = is_last.then_some(number);
            }
        }
        true
    }

    /// Work up to this number has ended.
    ///
    /// # Errors
    /// What was read with it makes no sense.
    pub(super) fn note_ended(&mut self, number: u64) -> Result<(), Lost> {
        for sent in self.requester.take_ended(number) {
            if let Sent::Slot(slot) = sent {
                self.sends_free.push(slot);
            }
        }
        for at in (0..self.ending.len()).rev() {
            if self.ending[at].waits_for.is_some_and(|work| work <= number) {
                let Ending { reply, exposed, .. } = self.ending.swap_remove(at);
                exposed.into_iter().for_each(|exposed| self.exposer.take_back(exposed));
                self.ready.extend(reply);
            }
        }
        self.end_fetches(number)
    }

    fn cancel(&mut self, xid: u32) {
        self.waiting.retain(|message| message.xid != xid);
        self.ready.retain(|reply| reply.xid != xid);
        for ending in &mut self.ending {
            if ending.reply.as_ref().is_some_and(|reply| reply.xid == xid) {
                ending.reply = None;
                if ending.exposed.iter().any(Exposed::is_callers) {
                    return self.end("a call was given up before its keys had ended");
                }
            }
        }
        self.cancel_fetch(xid);
        let Some(call) = self.calls.get_mut(&xid) else { return };
        (call.is_abandoned, call.sink) = (true, Memory::NONE);
        // What this side would have read into is the caller's again at once.
        for local in call.exposed.extract_if(.., |exposed| !exposed.has_keys()) {
            self.exposer.take_back(local);
        }
        if call.exposed.iter().any(Exposed::is_callers) {
            self.end("a call was given up for which the server has a key to its caller's memory");
        }
    }
}

impl<F: Fabric> Link for RdmaLink<F> {
    unsafe fn submit(&mut self, message: Message) {
        self.inner.waiting.push_back(message);
    }

    fn send(&mut self) -> Result<(), Lost> {
        self.inner.send()
    }

    fn receive(&mut self, replies: &mut Vec<Reply>) -> Result<bool, Lost> {
        self.inner.receive(replies)
    }

    fn cancel(&mut self, xid: u32) {
        self.inner.cancel(xid);
    }

    fn fd(&self) -> RawFd {
        self.inner.requester.fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn is_ready(&self) -> bool {
        !self.inner.ready.is_empty() || self.inner.requester.ended().is_some()
    }
}
