//! Calls over one connection to another server, on the reactor of the task that makes them.
//!
//! ```text
//!   task a ─ call ─► submit ─┐                ┌─► reply of a, by its number
//!   task b ─ call ─► submit ─┴─ Link ─ driver ┴─► reply of b
//! ```
//!
//! Several calls may be under way at once, as many as the server gives credits for. A call that is dropped is forgotten: its
//! credit is free again when its reply has come.

use crate::both::either;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;
use weft_reactor::{Event, Interest, JoinHandle, Notify, Permit, Readiness, Semaphore, timeout};
use weft_rpc::error::{Error, ErrorKind};
use weft_rpc::greet::answer;
use weft_transport::{Bulk, Completion, Link};
use weft_wire::{Header, Op, Request, body};

/// How long a server may take for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of the first call, behind those of the handshake.
const FIRST_REQUEST_ID: u64 = 3;

/// A connection on which the handshake is done.
pub(crate) struct Connection {
    state: Rc<State>,
    driver: Option<JoinHandle<()>>,
}

struct State {
    /// The server's, in the cluster file.
    name: String,
    /// Dropped before the link closes its descriptor.
    readiness: Readiness,
    link: RefCell<Box<dyn Link>>,
    calls: RefCell<HashMap<u64, Call>>,
    next_request_id: Cell<u64>,
    credits: Semaphore,
    submitted: Notify,
    ended: Event,
    cause: RefCell<String>,
}

/// A call whose reply has not come.
struct Call {
    reply: Rc<Reply>,
    _credit: Permit,
}

#[derive(Default)]
struct Reply {
    came: Event,
    completion: RefCell<Option<Completion>>,
}

impl Connection {
    /// To the server of this name, on the current reactor.
    ///
    /// # Errors
    /// The reactor cannot wait for the link's descriptor.
    pub fn new(name: &str, link: Box<dyn Link>) -> io::Result<Connection> {
        // SAFETY: the descriptor is the link's, which lives as long as the state that both are put into.
        let readiness = Readiness::new(&unsafe { BorrowedFd::borrow_raw(link.fd()) })?;
        let state = Rc::new(State {
            name: name.to_owned(),
            readiness,
            credits: Semaphore::new(usize::from(link.credits()).max(1)),
            link: RefCell::new(link),
            calls: RefCell::default(),
            next_request_id: Cell::new(FIRST_REQUEST_ID),
            submitted: Notify::new(),
            ended: Event::new(),
            cause: RefCell::default(),
        });
        let driver = Some(weft_reactor::spawn(drive(state.clone())));
        Ok(Connection { state, driver })
    }

    /// Whether it cannot be used any more.
    pub fn has_ended(&self) -> bool {
        self.state.ended.is_set()
    }

    /// Waits until it cannot be used any more.
    pub async fn ended(&self) {
        self.state.ended.wait().await
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// [`ErrorKind::Status`] where the server refuses, [`ErrorKind::Unreachable`] where it is silent or the connection is lost,
    /// [`ErrorKind::Protocol`] where the reply makes no sense.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Reply, Error> {
        let (state, reply) = (&self.state, Rc::new(Reply::default()));
        let answered = async {
            let credit = state.credits.acquire(1).await;
            state.submit(R::OP, &body::encode(request), reply.clone(), credit)?;
            either(reply.came.wait(), state.ended.wait()).await;
            let completion = reply.completion.take();
            completion.ok_or_else(|| unreachable(R::OP, &state.cause.borrow()))
        };
        let silent =
            || unreachable(R::OP, &format!("it did not answer within {} s", REPLY_TIMEOUT.as_secs()));
        match timeout(REPLY_TIMEOUT, answered).await {
            Ok(completion) => answer::<R>(&completion?),
            Err(_) => {
                state.end("it did not answer in time");
                Err(silent())
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.take().into_iter().for_each(JoinHandle::cancel);
    }
}

impl State {
    fn submit(&self, op: Op, body: &[u8], reply: Rc<Reply>, credit: Permit) -> Result<(), Error> {
        if self.ended.is_set() {
            return Err(unreachable(op, &self.cause.borrow()));
        }
        let request_id = self.next_request_id.replace(self.next_request_id.get() + 1);
        let trace = weft_log::trace::current_or_fresh();
        let header = Header { trace, ..Header::request(op, request_id) };
        tracing::debug!(op = op.name(), trace, "asks {}", self.name);
        // SAFETY: the request has no bulk memory.
        let submitted = unsafe { self.link.borrow_mut().submit(header, body, Bulk::None) };
        if let Err(error) = submitted {
            if error.is_fatal() {
                self.end(&error.to_string());
            }
            return Err(unreachable(op, &error.to_string()));
        }
        self.calls.borrow_mut().insert(request_id, Call { reply, _credit: credit });
        self.submitted.notify();
        Ok(())
    }

    /// Sends and receives what can be without waiting.
    fn progress(&self) {
        let mut done = Vec::new();
        let progressed = self.link.borrow_mut().progress(&mut done);
        for completion in done {
            if let Some(call) = self.calls.borrow_mut().remove(&completion.header.request_id) {
                *call.reply.completion.borrow_mut() = Some(completion);
                call.reply.came.set();
            }
        }
        if let Err(error) = progressed {
            self.end(&error.to_string());
        }
    }

    fn end(&self, cause: &str) {
        if !self.ended.is_set() {
            *self.cause.borrow_mut() = cause.to_owned();
            self.ended.set();
        }
    }

    /// Waits until the link may have something to do.
    async fn wait(&self) {
        let wants_write = self.link.borrow().wants_write();
        self.readiness.clear(Interest::Read);
        if wants_write {
            self.readiness.clear(Interest::Write);
        }
        // The reactor hears only of changes; a link need not have received all that is there.
        if is_ready(self.link.borrow().fd(), wants_write) {
            return weft_reactor::yield_now().await;
        }
        let writable = async {
            match wants_write {
                true => self.readiness.writable().await,
                false => std::future::pending().await,
            }
        };
        either(either(self.readiness.readable(), writable), self.submitted.notified()).await;
    }
}

/// Whether there is something to read, an end or an error at a descriptor now, or room to write.
fn is_ready(fd: RawFd, wants_write: bool) -> bool {
    let events = if wants_write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live pollfd; it does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

async fn drive(state: Rc<State>) {
    while !state.ended.is_set() {
        state.progress();
        if !state.ended.is_set() {
            either(state.wait(), state.ended.wait()).await;
        }
    }
}

fn unreachable(op: Op, cause: &str) -> Error {
    Error::new(op.name(), ErrorKind::Unreachable, cause)
}
