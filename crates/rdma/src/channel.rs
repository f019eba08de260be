//! A server's end of one connection, below its messages.
//!
//! ```text
//!   room for work ─► numbers ─► posted ──── adapter ────► ended: what was held is dropped, tasks wake
//! ```
//!
//! Its end has three steps: no more messages (`failure` is set); disconnected, so that work under way is
//! flushed and its memory free; the queue pair is destroyed. A task of its own (module `accept`) sees to the
//! steps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Waker;

use weft_reactor::{Event, Semaphore};
use weft_verbs::{DeviceLimits, Endpoint, EndpointState, Fabric};

use crate::held::Held;
use crate::port::Port;

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// One of both wanted it.
    #[error("the connection is closed")]
    Closed,
    /// Something went wrong.
    #[error("{0}")]
    Broken(String),
}

/// Work that was posted, and what it holds.
pub(crate) struct Posted<F: Fabric> {
    /// In the order of posting, each with the number of the last work that needs it.
    pub held: RefCell<VecDeque<(u64, Vec<Held<F>>)>>,
    /// Tasks that wait for the end of work with this number.
    pub waiters: RefCell<Vec<(u64, Waker)>>,
    /// The number of the last work that was posted.
    pub posted: Cell<u64>,
    /// The number of the last work that has ended.
    pub ended: Cell<u64>,
}

/// A server's end of one connection, below its messages.
pub struct Channel<F: Fabric> {
    /// `None` when it is over: no work is under way then. The first field, so that memory of work outlives
    /// it.
    endpoint: RefCell<Option<F::Endpoint>>,
    port: Rc<Port<F>>,
    queue_pair: u32,
    /// Names it in the schedule.
    pub(crate) number: u64,
    peer: SocketAddr,
    window: Cell<u32>,
    pub(crate) room: Semaphore,
    pub(crate) work: Posted<F>,
    /// The peer knows that it stands: an event of the adapter's, or a message of the peer's, has told.
    pub(crate) stands: Event,
    failure: RefCell<Option<Ended>>,
    failed: Event,
}

impl<F: Fabric> Drop for Channel<F> {
    fn drop(&mut self) {
        self.endpoint.take();
        self.port.remove(self.queue_pair);
        self.port.shares.borrow_mut().leave(self.window.get());
    }
}

impl<F: Fabric> Channel<F> {
    /// Of an endpoint with a queue pair, to which `window` receives were given.
    pub(crate) fn new(endpoint: F::Endpoint, port: Rc<Port<F>>, window: u32) -> Channel<F> {
        Channel {
            queue_pair: endpoint.queue_pair(),
            number: port.next_number(),
            peer: endpoint.peer(),
            window: Cell::new(window),
            room: Semaphore::new(port.send_depth as usize),
            work: Posted {
                held: RefCell::default(),
                waiters: RefCell::default(),
                posted: Cell::new(0),
                ended: Cell::new(0),
            },
            stands: Event::new(),
            failure: RefCell::new(None),
            failed: Event::new(),
            endpoint: RefCell::new(Some(endpoint)),
            port,
        }
    }

    /// Its port.
    pub fn port(&self) -> &Rc<Port<F>> {
        &self.port
    }

    /// What the port's adapter can do.
    pub fn limits(&self) -> &DeviceLimits {
        self.port.limits()
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The number of its queue pair, by which the port knows it.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// Receives that the peer may use.
    pub fn window(&self) -> u32 {
        self.window.get()
    }

    /// Lets the window of a connection that is at work grow, or shrink as far as its receives are not
    /// `in_use`. Returns the new one.
    pub fn adjust_window(&self, in_use: u32) -> u32 {
        self.window.set(self.port.shares.borrow_mut().adjust(self.window.get(), in_use));
        self.window.get()
    }

    /// Why it ended.
    pub fn ended(&self) -> Ended {
        self.failure.borrow().clone().unwrap_or(Ended::Closed)
    }

    /// Whether it has failed, or was closed.
    pub fn is_over(&self) -> bool {
        self.failed.is_set()
    }

    /// # Errors
    /// It has ended.
    pub fn check_open(&self) -> Result<(), Ended> {
        if self.is_over() { Err(self.ended()) } else { Ok(()) }
    }

    /// Waits until it has failed or is closed.
    pub async fn over(&self) {
        self.failed.wait().await;
    }

    /// No more messages from now on; the first cause counts.
    pub fn fail(&self, cause: Ended) {
        if self.is_over() {
            return;
        }
        let broken = matches!(cause, Ended::Broken(_));
        *self.failure.borrow_mut() = Some(cause);
        self.failed.set();
        if broken {
            self.disconnect();
        }
        if let Some(connection) = self.port.connection(self.queue_pair) {
            connection.failed();
        }
    }

    /// Work under way is flushed.
    pub fn disconnect(&self) {
        if let Some(endpoint) = self.endpoint.borrow_mut().as_mut() {
            endpoint.disconnect();
        }
    }

    /// No work is under way after this. Keys go before the queue pair: not every adapter ends one with
    /// windows.
    pub(crate) fn destroy(&self) {
        if let Some(connection) = self.port.connection(self.queue_pair) {
            connection.ending();
        }
        self.endpoint.take();
        self.port.remove(self.queue_pair);
        self.note_ended(self.work.posted.get());
    }

    /// Where the connection stands, and what has happened is taken out of its descriptor.
    pub(crate) fn state(&self) -> Option<EndpointState> {
        self.endpoint.borrow_mut().as_mut().map(Endpoint::state)
    }

    /// Does something with the endpoint, while there is one and the connection has not failed.
    pub(crate) fn with_endpoint<R>(&self, act: impl FnOnce(&mut F::Endpoint) -> R) -> Option<R> {
        if self.is_over() { None } else { self.endpoint.borrow_mut().as_mut().map(act) }
    }

    /// Work up to this number has ended: what it held is dropped, its tasks wake.
    pub(crate) fn note_ended(&self, number: u64) {
        let before = self.work.ended.get();
        if number <= before {
            return;
        }
        self.work.ended.set(number);
        self.room.add((number - before) as usize);
        loop {
            let mut held = self.work.held.borrow_mut();
            if held.front().is_none_or(|(work, _)| *work > number) {
                break;
            }
            let freed = held.pop_front();
            drop(held);
            drop(freed);
        }
        let mut waiters = self.work.waiters.borrow_mut();
        for (_, waker) in waiters.extract_if(.., |(work, _)| *work <= number) {
            waker.wake();
        }
    }
}
