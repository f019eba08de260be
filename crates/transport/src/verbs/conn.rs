//! A server's end of one connection.
//!
//! ```text
//!   port's poll ─► parts ─► arrived ─► recv ─► handler ── bulk.put / bulk.get ──► chain of Writes / Reads ─┐
//!              └─► work ended ─► slots free, waiting tasks wake ◄──────────────────────────────────────────┤
//!                                       handler ── reply ──► [deferred Writes ▸ Send], one doorbell ───────┘
//! ```
//!
//! Its end has three steps: no more requests (`failure` is set); disconnected, so that work under way is flushed and its
//! memory free; the queue pair is destroyed. A task of its own sees to the steps.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weft_reactor::{Event, LocalLock, Semaphore, sleep, spawn, timeout};
use weft_verbs::{
    Access, Device, Endpoint, EndpointOptions, EndpointState, Fabric, MemoryPiece, Receives, VerbsError,
    Work, WorkDone, WorkKind, WorkStatus,
};
use weft_wire::limits::{HANDSHAKE_TIMEOUT_MS, STALL_TIMEOUT_MS};
use weft_wire::messages::{ErrorDetail, RemoteKeys};
use weft_wire::{HEADER_BYTES, Header, HeaderError, Op, Status, VERSIONS, Wire, flags, negotiate};

use super::assembly::Assembler;
use super::batch::Batch;
use super::bulk::{Source, VerbsBulk};
use super::chain::{Chain, Link};
use super::credits::Credits;
use super::envelope::{Accepting, ENVELOPE_BYTES, Envelope, FastBuffers, MESSAGE_BYTES, PartKind, Rejection};
use super::keys::Described;
use super::listen::{VerbsAccepted, Watched};
use super::memory::Slots;
use super::schedule::Turn;
use super::thread::{BOUNCE_BYTES, Port, Slot, VerbsThread};
use super::{FAST_BYTES, FAST_DATA_BYTES, FAST_HEAD_BYTES};
use crate::error::{ConnError, FrameError, RunsError};
use crate::framing::FrameLimits;
use crate::server::{Incoming, PeerInfo, ServerConn};

/// Work of one chain that is posted at once.
const BATCH: usize = 64;
/// How long what was posted may take when a connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long work may take to be flushed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Receives that were under way when a connection ended come within this time.
const LAST_RECEIVES: Duration = Duration::from_millis(20);

/// Why a connection ended.
#[derive(Debug, Clone)]
pub(super) enum Cause {
    /// One of both wanted it.
    Closed,
    /// Something went wrong.
    Broken(String),
}

/// A request as it arrived.
struct Arrived {
    header: Header,
    body: Vec<u8>,
    source: ArrivedSource,
}

enum ArrivedSource {
    /// The payload, or none.
    Payload(Vec<u8>),
    /// In this Fast buffer, from this byte on.
    Fast(u16, usize),
}

/// Fast RDMA buffers of a connection.
pub(super) struct Fast<D: Device> {
    pub slots: Slots<D>,
    used: RefCell<Vec<bool>>,
}

/// What belongs to a request until its reply.
pub(super) struct Request<F: Fabric> {
    fast: Option<u16>,
    described: Option<Rc<Described>>,
    deferred: RefCell<Vec<Deferred<F>>>,
}

impl<F: Fabric> Request<F> {
    fn new(fast: Option<u16>, described: Option<Rc<Described>>) -> Rc<Request<F>> {
        Rc::new(Request { fast, described, deferred: RefCell::new(Vec::new()) })
    }

    /// Adds data that goes out with the reply.
    pub(super) fn defer(&self, deferred: Deferred<F>) {
        self.deferred.borrow_mut().push(deferred);
    }
}

/// What a request moves, and what of it is kept until the reply.
type SourceOf<F> = (Source<F>, Option<Rc<Request<F>>>);

/// Data that goes out with the reply.
pub(super) struct Deferred<F: Fabric> {
    pub share_offset: u64,
    pub pieces: Vec<MemoryPiece>,
    pub bytes: u64,
    /// Keeps the memory.
    pub freed: Freed<F>,
}

/// Writes that go before a message.
pub(super) struct Before<F: Fabric> {
    chain: Chain,
    /// Links from here on are still to be posted.
    first: usize,
    freed: Rc<Vec<Freed<F>>>,
}

impl<F: Fabric> Default for Before<F> {
    fn default() -> Self {
        Before { chain: Chain::default(), first: 0, freed: Rc::default() }
    }
}

/// What is dropped once a piece of work has ended.
#[expect(dead_code, reason = "held to be dropped")]
pub(super) enum Freed<F: Fabric> {
    Slot(Slot<F>),
    Keeper(Rc<dyn Any>),
    Turn(Turn),
    Shared(Rc<Vec<Freed<F>>>),
}

pub(super) struct ConnInner<F: Fabric> {
    /// `None` when it is over: no work is under way then. The first field, so that memory of work outlives it.
    endpoint: RefCell<Option<F::Endpoint>>,
    this: Weak<ConnInner<F>>,
    pub port: Rc<Port<F>>,
    queue_pair: u32,
    /// Names it in the schedule.
    pub number: u64,
    peer: PeerInfo,
    proven: Cell<bool>,
    credits: RefCell<Credits>,
    /// Parts whose receives are being posted again.
    dealt_with: Cell<u32>,
    assembler: RefCell<Assembler>,
    payload: RefCell<Vec<u8>>,
    arrived: RefCell<VecDeque<Arrived>>,
    refused: RefCell<Option<FrameError>>,
    receiver: RefCell<Option<Waker>>,
    credit_waiter: RefCell<Option<Waker>>,
    sending: LocalLock<()>,
    room: Semaphore,
    posted: Cell<u64>,
    ended: Cell<u64>,
    in_flight: RefCell<VecDeque<(u64, Vec<Freed<F>>)>>,
    work_waiters: RefCell<Vec<(u64, Waker)>>,
    requests: RefCell<HashMap<u64, Rc<Request<F>>>>,
    pub fast: Option<Rc<Fast<F::Device>>>,
    failure: RefCell<Option<Cause>>,
    failed: Event,
}

impl<F: Fabric> Drop for ConnInner<F> {
    fn drop(&mut self) {
        self.endpoint.take();
        self.port.remove(self.queue_pair);
        self.port.shares.borrow_mut().leave(&self.credits.borrow());
        if let Some(fast) = &self.fast {
            let bytes = (fast.slots.count() * FAST_BYTES) as u64;
            self.port.fast_bytes.set(self.port.fast_bytes.get() - bytes);
        }
    }
}

/// Waits for whichever comes first; true for the first.
async fn either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) -> bool {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|cx| {
        if first.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        second.as_mut().poll(cx).map(|()| false)
    })
    .await
}

impl<F: Fabric> VerbsThread<F> {
    /// Takes a connection; over an adapter that is new to this thread its queues are made first.
    ///
    /// # Errors
    /// There is no room for it, the adapter failed, or the client gave up meanwhile. The client is told where it can be.
    pub async fn accept(&self, accepted: VerbsAccepted<F>) -> Result<VerbsConn<F>, ConnError> {
        let address = accepted.endpoint.peer().to_string();
        let (inner, watched) = self.make(accepted).map_err(|error| match error {
            NotTaken::Full => ConnError::Stream {
                peer: format!("client {address} (verbs)"),
                source: FrameError::Io(io::Error::other("there is no room for a further RDMA connection")),
            },
            NotTaken::Failed(text) => ConnError::Stream {
                peer: format!("client {address} (verbs)"),
                source: FrameError::Io(io::Error::other(text)),
            },
        })?;
        let stands = Rc::new(Event::new());
        let keep_alive = Duration::from_millis(self.inner.options.keep_alive_ms.max(1).into());
        spawn(watch(inner.clone(), watched, stands.clone(), keep_alive));
        let conn = VerbsConn { end: Rc::new(ConnEnd { inner: inner.clone() }) };
        let limit = Duration::from_millis(HANDSHAKE_TIMEOUT_MS);
        let stood = timeout(limit, either(stands.wait(), inner.failed.wait())).await;
        match stood {
            Ok(true) => Ok(conn),
            _ => Err(inner.error()),
        }
    }

    /// Makes the queue pair and says yes.
    fn make(&self, accepted: VerbsAccepted<F>) -> Result<(Rc<ConnInner<F>>, Watched), NotTaken> {
        let VerbsAccepted { mut endpoint, asking, key } = accepted;
        let port = match self.port(endpoint.device()) {
            Ok(port) => port,
            Err(error) => return Err(internal(endpoint, error.to_string())),
        };
        let window = if port.is_full() { None } else { port.shares.borrow_mut().join() };
        let Some(window) = window else {
            endpoint.reject(&Rejection::Busy.encode());
            return Err(NotTaken::Full);
        };
        let credits = Credits::new(asking.receives, window);
        let fast = match set_up(&mut endpoint, &port, &self.inner.options) {
            Ok(fast) => fast,
            Err(error) => {
                port.shares.borrow_mut().leave(&credits);
                return Err(internal(endpoint, error));
            }
        };
        let version = negotiate(VERSIONS, asking.versions).unwrap_or(VERSIONS.1);
        let accepting = Accepting {
            version,
            receives: window as u16,
            message_bytes: MESSAGE_BYTES as u32,
            fast: fast.as_ref().map_or_else(FastBuffers::default, |fast| FastBuffers {
                count: fast.slots.count() as u16,
                bytes: FAST_BYTES as u32,
                remote_key: fast.slots.remote_key(),
                address: fast.slots.base(0).as_ptr() as u64,
            }),
        };
        let inner = ConnInner::new(endpoint, port, credits, fast);
        let failed = |text: String| NotTaken::Failed(text);
        let mut endpoint = inner.endpoint.borrow_mut();
        let endpoint = endpoint.as_mut().ok_or_else(|| failed("it is gone".into()))?;
        endpoint.accept(&accepting.encode(&key, &asking.nonce)).map_err(|error| failed(error.to_string()))?;
        let watched = Watched::new(endpoint.event_fd()).map_err(|error| failed(error.to_string()))?;
        Ok((inner.clone(), watched))
    }
}

/// Why a connection was not taken.
enum NotTaken {
    Full,
    Failed(String),
}

fn internal(endpoint: impl Endpoint, text: String) -> NotTaken {
    endpoint.reject(&Rejection::Internal.encode());
    NotTaken::Failed(text)
}

/// Queue pair and Fast buffers.
fn set_up<F: Fabric>(
    endpoint: &mut F::Endpoint,
    port: &Rc<Port<F>>,
    options: &super::thread::VerbsServerOptions,
) -> Result<Option<Rc<Fast<F::Device>>>, String> {
    let limits = port.device.limits();
    let endpoint_options = EndpointOptions {
        send_depth: port.send_depth,
        pieces: limits.send_pieces_max.max(limits.read_pieces_max) as u32,
        inline_bytes: 0,
        reads_out: limits.reads_out_max,
        reads_in: 1,
    };
    endpoint
        .create_queue_pair(&endpoint_options, &port.queue.borrow(), Receives::Shared(&port.shared))
        .map_err(|error| error.to_string())?;
    let count = port.take_fast(options);
    if count == 0 {
        return Ok(None);
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    match Slots::new(&*port.device, FAST_BYTES, count.into(), access) {
        Ok(slots) => Ok(Some(Rc::new(Fast { slots, used: RefCell::new(vec![false; count.into()]) }))),
        // Without them small writes are slower, and nothing else.
        Err(_) => {
            port.fast_bytes.set(port.fast_bytes.get() - u64::from(count) * FAST_BYTES as u64);
            Ok(None)
        }
    }
}

/// Sees a connection to its end.
async fn watch<F: Fabric>(
    inner: Rc<ConnInner<F>>,
    watched: Watched,
    stands: Rc<Event>,
    keep_alive: Duration,
) {
    loop {
        let state = inner.endpoint.borrow_mut().as_mut().map(Endpoint::state);
        match state {
            Some(EndpointState::Connected) => stands.set(),
            Some(EndpointState::Accepting) => {}
            Some(EndpointState::Ended(_)) | None => inner.fail(Cause::Closed),
        }
        if inner.failed.is_set() {
            break;
        }
        if timeout(keep_alive, either(watched.readable(), inner.failed.wait())).await.is_err() {
            inner.ask_whether_it_lives();
        }
    }
    let last = inner.posted.get();
    if matches!(*inner.failure.borrow(), Some(Cause::Closed)) {
        // What was said before the connection was closed is still delivered.
        let _ = timeout(CLOSE_TIMEOUT, inner.work_ended(last)).await;
    }
    inner.disconnect();
    let _ = timeout(FLUSH_TIMEOUT, inner.work_ended(inner.posted.get())).await;
    sleep(LAST_RECEIVES).await;
    drop(watched);
    inner.destroy();
}

impl<F: Fabric> ConnInner<F> {
    fn new(
        endpoint: F::Endpoint,
        port: Rc<Port<F>>,
        credits: Credits,
        fast: Option<Rc<Fast<F::Device>>>,
    ) -> Rc<ConnInner<F>> {
        let peer = PeerInfo {
            transport: format!("verbs {} {}", port.device.name(), port.device.limits().link_layer),
            address: endpoint.peer().to_string(),
            process_id: None,
            user_id: None,
        };
        let (queue_pair, number, room) =
            (endpoint.queue_pair(), port.next_number(), port.send_depth as usize);
        let inner = Rc::new_cyclic(|this: &Weak<ConnInner<F>>| ConnInner {
            endpoint: RefCell::new(Some(endpoint)),
            this: this.clone(),
            port: port.clone(),
            queue_pair,
            number,
            peer,
            proven: Cell::new(false),
            credits: RefCell::new(credits),
            dealt_with: Cell::new(0),
            assembler: RefCell::new(Assembler::default()),
            payload: RefCell::new(Vec::new()),
            arrived: RefCell::new(VecDeque::new()),
            refused: RefCell::new(None),
            receiver: RefCell::new(None),
            credit_waiter: RefCell::new(None),
            sending: LocalLock::new(()),
            room: Semaphore::new(room),
            posted: Cell::new(0),
            ended: Cell::new(0),
            in_flight: RefCell::new(VecDeque::new()),
            work_waiters: RefCell::new(Vec::new()),
            requests: RefCell::new(HashMap::new()),
            fast,
            failure: RefCell::new(None),
            failed: Event::new(),
        });
        port.add(queue_pair, &inner);
        inner
    }

    pub(super) fn peer_text(&self) -> String {
        self.peer.to_string()
    }

    // ---- the end ----

    pub(super) fn error(&self) -> ConnError {
        let peer = self.peer_text();
        match &*self.failure.borrow() {
            Some(Cause::Broken(text)) => {
                ConnError::Stream { peer, source: FrameError::Io(io::Error::other(text.clone())) }
            }
            _ => ConnError::Closed { peer },
        }
    }

    fn check_open(&self) -> Result<(), ConnError> {
        if self.failed.is_set() { Err(self.error()) } else { Ok(()) }
    }

    /// No more requests and replies from now on; the first cause counts.
    pub(super) fn fail(&self, cause: Cause) {
        if self.failed.is_set() {
            return;
        }
        let broken = matches!(cause, Cause::Broken(_));
        *self.failure.borrow_mut() = Some(cause);
        self.failed.set();
        if broken {
            self.disconnect();
        }
        let wakers = [self.receiver.take(), self.credit_waiter.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Work under way is flushed.
    fn disconnect(&self) {
        if let Some(endpoint) = self.endpoint.borrow_mut().as_mut() {
            endpoint.disconnect();
        }
    }

    /// No work is under way after this.
    fn destroy(&self) {
        self.endpoint.take();
        self.port.remove(self.queue_pair);
        self.note_ended(self.posted.get());
    }

    // ---- work ----

    /// The end of sent work.
    pub(super) fn take_ended(&self, done: &WorkDone) {
        match done.status {
            WorkStatus::Ok => {}
            WorkStatus::Flushed => self.fail(Cause::Closed),
            status => self.fail(Cause::Broken(format!("RDMA work failed: {status:?}"))),
        }
        self.note_ended(done.id);
    }

    /// Work up to this number has ended: its slots are free, its tasks wake.
    fn note_ended(&self, number: u64) {
        let before = self.ended.get();
        if number <= before {
            return;
        }
        self.ended.set(number);
        self.room.add((number - before) as usize);
        loop {
            let mut in_flight = self.in_flight.borrow_mut();
            if in_flight.front().is_none_or(|(work, _)| *work > number) {
                break;
            }
            let freed = in_flight.pop_front();
            drop(in_flight);
            drop(freed);
        }
        let mut waiters = self.work_waiters.borrow_mut();
        for (_, waker) in waiters.extract_if(.., |(work, _)| *work <= number) {
            waker.wake();
        }
    }

    /// Waits until work up to this number has ended, well or not.
    pub(super) async fn work_ended(&self, number: u64) {
        std::future::poll_fn(|cx| {
            if self.ended.get() >= number {
                return Poll::Ready(());
            }
            self.work_waiters.borrow_mut().push((number, cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Writes nothing to the client, which its adapter has to acknowledge: what is broken shows.
    fn ask_whether_it_lives(&self) {
        if self.ended.get() < self.posted.get() {
            return; // something is under way, and shows as well
        }
        let Some(room) = self.room.try_acquire(1) else { return };
        room.forget();
        let mut batch = Batch::default();
        self.add_work(&mut batch, Work::Write { remote_address: 0, remote_key: 0 }, [], true);
        // SAFETY: there is no memory.
        let _ = unsafe { self.post(&batch, Vec::new()) };
    }

    /// As [`ConnInner::work_ended`] without giving way, for a handler that is dropped: the connection ends.
    fn end_work_now(&self, number: u64) {
        self.fail(Cause::Broken("a transfer was given up in the middle".into()));
        self.disconnect();
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while self.ended.get() < number {
            if self.port.poll().is_err() || Instant::now() > deadline {
                return self.destroy();
            }
        }
    }

    /// Numbers for work, and the place in the queue that it was given room for.
    fn add_work(
        &self,
        batch: &mut Batch,
        work: Work,
        pieces: impl IntoIterator<Item = MemoryPiece>,
        signalled: bool,
    ) -> u64 {
        let number = self.posted.get() + batch.len() as u64 + 1;
        batch.add(number, work, pieces, signalled);
        number
    }

    /// Posts a batch for which there is room, and whose last piece is signalled.
    ///
    /// # Safety
    /// Memory of the batch stays as it is until [`ConnInner::work_ended`] or `freed` is dropped.
    unsafe fn post(&self, batch: &Batch, freed: Vec<Freed<F>>) -> Result<(), ConnError> {
        let result = match self.endpoint.borrow_mut().as_mut() {
            // SAFETY: as the caller promises.
            Some(endpoint) if !self.failed.is_set() => unsafe { batch.post(endpoint) }.map_err(Some),
            _ => Err(None),
        };
        let posted = match &result {
            Ok(()) => batch.len(),
            Err(Some(VerbsError::Post { posted, .. })) => *posted,
            Err(_) => 0,
        };
        self.posted.set(self.posted.get() + posted as u64);
        self.room.add(batch.len() - posted);
        if posted > 0 {
            self.in_flight.borrow_mut().push_back((self.posted.get(), freed));
        }
        if let Err(error) = result {
            if let Some(error) = error {
                self.fail(Cause::Broken(error.to_string()));
            }
            return Err(self.error());
        }
        Ok(())
    }

    /// Posts a chain of Reads or Writes, in batches as there is room.
    ///
    /// # Safety
    /// The local pieces stay as they are until [`UnderWay`] is dropped, or the end of the work is known.
    pub(super) async unsafe fn post_chain(
        &self,
        chain: &Chain,
        read: bool,
        under_way: &mut UnderWay<'_, F>,
    ) -> Result<(), ConnError> {
        for links in chain.links.chunks(self.batch_max()) {
            self.room.acquire(links.len()).await.forget();
            let mut batch = Batch::default();
            self.add_links(&mut batch, chain, links, read, true);
            // SAFETY: as the caller promises.
            let posted = unsafe { self.post(&batch, Vec::new()) };
            under_way.number = self.posted.get();
            posted?;
        }
        Ok(())
    }

    fn batch_max(&self) -> usize {
        BATCH.min(self.port.send_depth as usize / 2).max(1)
    }

    fn add_links(&self, batch: &mut Batch, chain: &Chain, links: &[Link], read: bool, signalled: bool) {
        for (at, link) in links.iter().enumerate() {
            let Link { remote_address, remote_key, .. } = *link;
            let work = if read {
                Work::Read { remote_address, remote_key }
            } else {
                Work::Write { remote_address, remote_key }
            };
            let last = signalled && at + 1 == links.len();
            self.add_work(batch, work, chain.pieces(link).iter().copied(), last);
        }
    }

    // ---- receiving ----

    /// A receive has ended; called by the port, which posts it again.
    pub(super) fn take_received(&self, done: &WorkDone, message: &[u8]) {
        if done.status != WorkStatus::Ok {
            return self.fail(Cause::Closed);
        }
        if self.failed.is_set() || self.refused.borrow().is_some() {
            return;
        }
        let taken = match done.kind {
            WorkKind::ReceivedImmediate(number) => self.take_fast(number),
            _ => self.take_part(message),
        };
        if let Err(error) = taken {
            *self.refused.borrow_mut() = Some(error);
            self.receiver.take().into_iter().for_each(Waker::wake);
        }
    }

    fn take_envelope(&self, message: &[u8]) -> Result<PartKind, FrameError> {
        let envelope = Envelope::decode(message).ok_or(FrameError::Parts("it has no envelope"))?;
        let overrun = |_| FrameError::Parts("more was sent than there were credits for");
        self.credits.borrow_mut().received(envelope.credits).map_err(overrun)?;
        if self.credits.borrow().may_send() {
            self.credit_waiter.take().into_iter().for_each(Waker::wake);
        }
        Ok(envelope.kind)
    }

    fn take_part(&self, message: &[u8]) -> Result<(), FrameError> {
        let kind = self.take_envelope(message)?;
        if kind == PartKind::Credits {
            self.dealt_with.set(self.dealt_with.get() + 1);
            return Ok(());
        }
        let limits = FrameLimits::verbs_server(self.proven.get());
        let mut assembler = self.assembler.borrow_mut();
        let step = assembler.part(kind, &message[ENVELOPE_BYTES..], &limits)?;
        let mut payload = self.payload.borrow_mut();
        payload.extend_from_slice(step.payload);
        match step.whole {
            None => self.dealt_with.set(self.dealt_with.get() + 1),
            Some(body) => {
                let source = ArrivedSource::Payload(std::mem::take(&mut *payload));
                self.arrive(Arrived { header: step.header, body, source });
            }
        }
        Ok(())
    }

    /// A request and its data were written into a Fast buffer. What is in it may change at any time: what is looked at is
    /// copied first.
    fn take_fast(&self, number: u32) -> Result<(), FrameError> {
        let wrong = FrameError::Parts("it names no Fast buffer that is free");
        let Some(fast) = &self.fast else { return Err(wrong) };
        let at = number as usize;
        if fast.used.borrow().get(at).copied().unwrap_or(true) {
            return Err(wrong);
        }
        let mut head = vec![0; FAST_HEAD_BYTES];
        // SAFETY: within the buffer; the client may write it meanwhile, and no reference to it is made.
        unsafe { std::ptr::copy_nonoverlapping(fast.slots.base(at).as_ptr(), head.as_mut_ptr(), head.len()) };
        // Only an envelope of credits alone has a length of its own.
        let kind = self.take_envelope(&head)?;
        if kind != PartKind::First {
            return Err(FrameError::Parts("a Fast RDMA Write holds no whole request"));
        }
        let first = head[ENVELOPE_BYTES..].first_chunk().expect("a head is larger than a header");
        let header = Header::decode(first)?;
        FrameLimits::verbs_server(self.proven.get()).check(&header)?;
        let data_at = ENVELOPE_BYTES + HEADER_BYTES + header.body_bytes as usize;
        let remote = header.flags & flags::REMOTE_MEMORY != 0;
        if data_at > FAST_HEAD_BYTES || header.payload_bytes > FAST_DATA_BYTES as u64 || remote {
            return Err(FrameError::Misplaced {
                what: "what it announces fits no Fast buffer",
                header: Box::new(header),
            });
        }
        fast.used.borrow_mut()[at] = true;
        let body = head[ENVELOPE_BYTES + HEADER_BYTES..data_at].to_vec();
        self.arrive(Arrived { header, body, source: ArrivedSource::Fast(number as u16, data_at) });
        Ok(())
    }

    fn arrive(&self, arrived: Arrived) {
        self.arrived.borrow_mut().push_back(arrived);
        self.receiver.take().into_iter().for_each(Waker::wake);
    }

    /// The receives of parts that need no more are posted again: what the peer may use of them is told.
    pub(super) fn received_posted(&self) {
        for _ in 0..self.dealt_with.replace(0) {
            self.credits.borrow_mut().dealt_with();
        }
        self.port.shares.borrow_mut().adjust(&mut self.credits.borrow_mut());
        self.tell();
    }

    /// Sends credits alone if they are to be told now; later if there is no slot for them.
    pub(super) fn tell(&self) {
        if self.failed.is_set() || !self.credits.borrow().wants_to_tell() {
            return;
        }
        let Some(mut slot) = self.port.try_message_slot() else { return self.port.tell_later(&self.this) };
        let Some(room) = self.room.try_acquire(1) else { return self.port.tell_later(&self.this) };
        room.forget();
        let piece = self.fill(&mut slot, PartKind::Credits, &[], &mut Parts::default());
        let mut batch = Batch::default();
        self.add_work(&mut batch, Work::Send, [piece], true);
        // SAFETY: the slot is this message's until its work has ended.
        let _ = unsafe { self.post(&batch, vec![Freed::Slot(slot)]) };
    }

    /// The next request, or why there is none.
    async fn next(&self) -> Result<Arrived, FrameError> {
        std::future::poll_fn(|cx| {
            if let Some(arrived) = self.arrived.borrow_mut().pop_front() {
                return Poll::Ready(Ok(arrived));
            }
            if let Some(error) = self.refused.take() {
                return Poll::Ready(Err(error));
            }
            if self.failed.is_set() {
                return Poll::Ready(Err(FrameError::Closed));
            }
            *self.receiver.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// What a request moves.
    fn source(&self, header: &Header, arrived: ArrivedSource) -> Result<SourceOf<F>, FrameError> {
        let misplaced = |what| FrameError::Misplaced { what, header: Box::new(*header) };
        let payload = match arrived {
            ArrivedSource::Fast(number, data_at) => {
                let fast = self.fast.clone().ok_or(FrameError::Parts("there are no Fast buffers"))?;
                let source = Source::Fast { fast, number: number.into(), data_at };
                return Ok((source, Some(Request::new(Some(number), None))));
            }
            ArrivedSource::Payload(payload) => payload,
        };
        if header.flags & flags::REMOTE_MEMORY == 0 {
            let source = if payload.is_empty() { Source::Nothing } else { Source::Inline(Rc::new(payload)) };
            return Ok((source, None));
        }
        let told = RemoteKeys::from_bytes(&payload)
            .map_err(|_| misplaced("its description of memory cannot be read"))?;
        let described = Described::accept(told).map_err(|error| match error {
            RunsError::OutsideSegment(_) => misplaced("a piece of memory lies outside of its key"),
            RunsError::UnknownSegment(_) => misplaced("a piece of memory has no key"),
            _ => misplaced("the memory that it describes is too much, or wraps around"),
        })?;
        let described = Rc::new(described);
        let request = Request::new(None, Some(described.clone()));
        Ok((Source::Remote { described, request: request.clone() }, Some(request)))
    }

    async fn recv(self: &Rc<Self>) -> Result<Incoming<VerbsBulk<F>>, ConnError> {
        match self.next().await {
            Ok(Arrived { header, body, source }) => {
                self.credits.borrow_mut().dealt_with();
                self.received_posted();
                match self.begin(header, source) {
                    Ok(bulk) => Ok(Incoming { header, body, bulk }),
                    Err(error) => Err(self.refuse(error).await),
                }
            }
            Err(FrameError::Closed) => Err(self.error()),
            Err(error) => Err(self.refuse(error).await),
        }
    }

    fn begin(self: &Rc<Self>, header: Header, source: ArrivedSource) -> Result<VerbsBulk<F>, FrameError> {
        let (source, request) = self.source(&header, source)?;
        if let Some(mechanism) = source.mechanism() {
            self.port.transfers.add(mechanism);
        }
        if let Some(request) = request {
            let mut requests = self.requests.borrow_mut();
            if requests.contains_key(&header.request_id) {
                let what = "its number is in use by a request under way";
                return Err(FrameError::Misplaced { what, header: Box::new(header) });
            }
            requests.insert(header.request_id, request);
        }
        Ok(VerbsBulk::new(self.clone(), header, source))
    }

    /// Tells a peer whose message cannot be taken why, where it can be told, and ends the connection.
    async fn refuse(&self, error: FrameError) -> ConnError {
        let refusal = match &error {
            FrameError::Header(HeaderError::Unknown { version, request_id, .. }) => {
                let known = (VERSIONS.0..=VERSIONS.1).contains(version);
                let status = if known { Status::Unsupported } else { Status::Version };
                Some(Header::request(Op::Ping, *request_id).reply(status))
            }
            FrameError::TooBig { header, .. } => Some(header.reply(Status::TooBig)),
            FrameError::Misplaced { header, .. } => Some(header.reply(Status::Malformed)),
            _ => None,
        };
        if let Some(header) = refusal {
            let detail = ErrorDetail { text: error.to_string() }.to_bytes();
            let told = async {
                self.send_message(header, &detail, &[], Vec::new()).await?;
                self.work_ended(self.posted.get()).await;
                Ok::<(), ConnError>(())
            };
            let _ = timeout(CLOSE_TIMEOUT, told).await;
        }
        self.fail(Cause::Broken(error.to_string()));
        ConnError::Stream { peer: self.peer_text(), source: error }
    }

    // ---- sending ----

    /// Writes an envelope and what comes next of a message into a slot; returns the piece of both.
    fn fill(&self, slot: &mut Slot<F>, kind: PartKind, message: &[&[u8]], at: &mut Parts) -> MemoryPiece {
        let credits = self.credits.borrow_mut().spend();
        // SAFETY: the slot is new, so no work uses it.
        let (envelope, room) = unsafe { slot.fill() }.split_at_mut(ENVELOPE_BYTES);
        envelope.copy_from_slice(&Envelope { credits, kind }.encode());
        let bytes = ENVELOPE_BYTES + at.take(message, room);
        slot.piece(bytes)
    }

    /// Waits for a credit for a part of a message.
    async fn credit(&self) -> Result<(), ConnError> {
        let wait = std::future::poll_fn(|cx| {
            if self.failed.is_set() {
                return Poll::Ready(Err(self.error()));
            }
            if self.credits.borrow().may_send() {
                return Poll::Ready(Ok(()));
            }
            *self.credit_waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        match timeout(Duration::from_millis(STALL_TIMEOUT_MS), wait).await {
            Ok(result) => result,
            Err(_) => {
                self.fail(Cause::Broken("it takes no replies".into()));
                Err(ConnError::Stalled { peer: self.peer_text(), timeout_ms: STALL_TIMEOUT_MS })
            }
        }
    }

    /// Sends a message in this task's turn, behind `before`, whose last pieces are posted together with its first part.
    pub(super) async fn send_message(
        &self,
        mut header: Header,
        body: &[u8],
        payload: &[IoSlice<'_>],
        before: Vec<Before<F>>,
    ) -> Result<(), ConnError> {
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        header.body_bytes = body.len() as u32;
        header.payload_bytes = payload_bytes as u64;
        let head = header.encode();
        let message: Vec<&[u8]> =
            [&head[..], body].into_iter().chain(payload.iter().map(|part| &**part)).collect();
        let total = HEADER_BYTES + body.len() + payload_bytes;
        let mut at = Parts::default();
        let _turn = self.sending.lock().await;
        self.check_open()?;
        let mut before = self.send_before(before).await?;
        while at.sent < total {
            self.credit().await?;
            let mut slot = self.port.message_slot().await;
            let Before { chain, first, freed } = before.take().unwrap_or_default();
            let links = &chain.links[first..];
            self.room.acquire(links.len() + 1).await.forget();
            let mut batch = Batch::default();
            self.add_links(&mut batch, &chain, links, false, false);
            let kind = if at.sent == 0 { PartKind::First } else { PartKind::Further };
            let piece = self.fill(&mut slot, kind, &message, &mut at);
            self.add_work(&mut batch, Work::Send, [piece], true);
            // SAFETY: slots and keepers live until the work has ended; they hold all its memory.
            unsafe { self.post(&batch, vec![Freed::Shared(freed), Freed::Slot(slot)]) }?;
        }
        Ok(())
    }

    /// Writes what is to be written before a message, but for an end of it that fits one post with the message; all of it, if
    /// the message has to wait for credits.
    async fn send_before(&self, before: Vec<Before<F>>) -> Result<Option<Before<F>>, ConnError> {
        let may_send = self.credits.borrow().may_send();
        let mut waiting = before.into_iter().peekable();
        while let Some(Before { chain, mut first, freed }) = waiting.next() {
            let most = self.batch_max();
            let kept = if may_send && waiting.peek().is_none() { most } else { 0 };
            while chain.links.len() - first > kept {
                let links = &chain.links[first..chain.links.len().min(first + most)];
                self.room.acquire(links.len()).await.forget();
                let mut batch = Batch::default();
                self.add_links(&mut batch, &chain, links, false, true);
                // SAFETY: what holds the memory is held until the end of this work too.
                unsafe { self.post(&batch, vec![Freed::Shared(freed.clone())]) }?;
                first += links.len();
            }
            if kept > 0 {
                return Ok(Some(Before { chain, first, freed }));
            }
        }
        Ok(None)
    }

    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        self.check_open()?;
        let request = self.requests.borrow_mut().remove(&header.request_id);
        let Some(request) = request else {
            return self.send_message(header, body, payload, Vec::new()).await;
        };
        let bytes: usize = payload.iter().map(|part| part.len()).sum();
        let mut deferred = request.deferred.take();
        let described = request.described.as_ref();
        let payload = match described {
            Some(described) if bytes > 0 && bytes as u64 <= described.bytes().min(BOUNCE_BYTES as u64) => {
                deferred.push(self.bounced(payload, bytes).await);
                &[]
            }
            _ => payload,
        };
        let mut before = Vec::new();
        for Deferred { share_offset, pieces, bytes, freed } in deferred {
            let Some(described) = described else { continue };
            let pieces_max = self.port.device.limits().send_pieces_max;
            let chain = Chain::new(&pieces, described.pieces(share_offset, bytes), pieces_max);
            let turn = self.port.schedule.turn(self.number, bytes).await;
            before.push(Before { chain, first: 0, freed: Rc::new(vec![freed, Freed::Turn(turn)]) });
        }
        if let (Some(number), Some(fast)) = (request.fast, &self.fast) {
            fast.used.borrow_mut()[usize::from(number)] = false;
        }
        self.send_message(header, body, payload, before).await
    }

    /// Inline data for memory that was described, in a registered buffer.
    async fn bounced(&self, payload: &[IoSlice<'_>], bytes: usize) -> Deferred<F> {
        let mut slot = self.port.bounce_slot().await;
        // SAFETY: the slot is new, so no work uses it.
        let memory = unsafe { slot.fill() };
        let mut at = 0;
        for part in payload {
            memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.port.transfers.copied(bytes);
        let pieces = vec![slot.piece(bytes)];
        Deferred { share_offset: 0, pieces, bytes: bytes as u64, freed: Freed::Slot(slot) }
    }
}

/// How far a message is sent.
#[derive(Default)]
struct Parts {
    sent: usize,
}

impl Parts {
    /// Copies what comes next into `room`, as much as fits; returns how much.
    fn take(&mut self, message: &[&[u8]], room: &mut [u8]) -> usize {
        let (mut skip, mut filled) = (self.sent, 0);
        for part in message {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let bytes = (part.len() - skip).min(room.len() - filled);
            room[filled..filled + bytes].copy_from_slice(&part[skip..skip + bytes]);
            filled += bytes;
            skip = 0;
            if filled == room.len() {
                break;
            }
        }
        self.sent += filled;
        filled
    }
}

/// Work in memory that a handler has only lent: if the handler is dropped before its end, the connection ends, and the work
/// with it, before the memory is anybody else's.
pub(super) struct UnderWay<'a, F: Fabric> {
    conn: &'a ConnInner<F>,
    number: u64,
}

impl<'a, F: Fabric> UnderWay<'a, F> {
    pub(super) fn new(conn: &'a ConnInner<F>) -> Self {
        UnderWay { conn, number: 0 }
    }

    /// Waits for the end of the work.
    pub(super) async fn end(self) -> Result<(), ConnError> {
        self.conn.work_ended(self.number).await;
        self.conn.check_open()
    }
}

impl<F: Fabric> Drop for UnderWay<'_, F> {
    fn drop(&mut self) {
        if self.conn.ended.get() < self.number {
            self.conn.end_work_now(self.number);
        }
    }
}

/// A server's end of an RDMA connection.
pub struct VerbsConn<F: Fabric> {
    end: Rc<ConnEnd<F>>,
}

impl<F: Fabric> Clone for VerbsConn<F> {
    fn clone(&self) -> Self {
        VerbsConn { end: self.end.clone() }
    }
}

struct ConnEnd<F: Fabric> {
    inner: Rc<ConnInner<F>>,
}

impl<F: Fabric> Drop for ConnEnd<F> {
    fn drop(&mut self) {
        self.inner.fail(Cause::Closed);
    }
}

impl<F: Fabric> ServerConn for VerbsConn<F> {
    type Bulk = VerbsBulk<F>;

    async fn recv(&self) -> Result<Incoming<VerbsBulk<F>>, ConnError> {
        self.end.inner.recv().await
    }

    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        self.end.inner.reply(header, body, payload).await
    }

    fn prove(&self) {
        self.end.inner.proven.set(true);
    }

    fn peer(&self) -> PeerInfo {
        self.end.inner.peer.clone()
    }

    fn close(&self) {
        self.end.inner.fail(Cause::Closed);
    }
}
