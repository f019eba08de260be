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

mod accept;
mod lend;
mod receive;
mod send;
mod work;

pub(super) use work::UnderWay;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use weft_reactor::{Event, LocalLock, Semaphore, sleep, timeout};
use weft_verbs::{Device, Endpoint, EndpointState, Fabric, MemoryPiece};
use weft_wire::Header;

use super::FAST_BYTES;
use super::assembly::Assembler;
use super::bulk::{Source, VerbsBulk};
use super::chain::Chain;
use super::credits::Credits;
use super::keys::Described;
use super::listen::Watched;
use super::memory::Slots;
use super::schedule::Turn;
use super::thread::{Port, Slot};
use crate::error::{ConnError, FrameError};
use crate::server::{Incoming, PeerInfo, ServerConn};
use lend::Lending;

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
    /// Windows for what is lent to the client.
    lending: Option<Lending<<F::Device as Device>::Window>>,
    failure: RefCell<Option<Cause>>,
    failed: Event,
}

impl<F: Fabric> Drop for ConnInner<F> {
    fn drop(&mut self) {
        self.end_windows();
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

/// Sees a connection to its end.
async fn watch<F: Fabric>(
    inner: Rc<ConnInner<F>>,
    watched: Watched,
    stands: Rc<Event>,
    keep_alive: Duration,
) {
    let mut still = None;
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
            inner.ask_whether_it_lives(&mut still);
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
        lending: Option<Lending<<F::Device as Device>::Window>>,
    ) -> Rc<ConnInner<F>> {
        let peer = PeerInfo {
            transport: format!("verbs {} {}", port.device.name(), port.device.limits().link_layer),
            address: endpoint.peer().to_string(),
            process_id: None,
            user_id: None,
            group_ids: Vec::new(),
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
            lending,
            failure: RefCell::new(None),
            failed: Event::new(),
        });
        port.add(queue_pair, &inner);
        inner
    }

    pub(super) fn peer_text(&self) -> String {
        self.peer.to_string()
    }

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

    /// No work is under way after this. Windows go before the queue pair that they are bound on.
    fn destroy(&self) {
        self.end_windows();
        self.endpoint.take();
        self.port.remove(self.queue_pair);
        self.note_ended(self.posted.get());
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
