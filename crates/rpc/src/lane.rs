//! A lane: one connection to a server, which any number of threads may use at once.
//!
//! ```text
//!   thread 1 ─┐ submit          ┌─ waiting: 17 ─► answer of thread 1
//!   thread 2 ─┼────► lane ──────┤           18 ─► answer of thread 2
//!             │      (link)     └─ progress: whoever gets the lock receives for all
//! ```
//!
//! The lock is held only for calls that never wait, so a thread that finds it taken goes on to its other
//! lanes: who holds it does the work for both.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use weft_log::trace::current_or_fresh;
use weft_transport::{Bulk, Completion, Link, LinkError, LinkKind, Segment};
use weft_wire::messages::{Endpoint, PingRequest};
use weft_wire::{Header, Op, body};

use crate::dial::Dialled;
use crate::fork;
use crate::links::Links;
use crate::traffic::Traffic;
use crate::wait::{Answer, LaneFailure, lock};

/// One connection.
pub struct Lane {
    fd: RawFd,
    kind: LinkKind,
    /// What it is for, and which of the server's RDMA addresses it leads to.
    traffic: Traffic,
    rail: usize,
    /// Where the server was reached, if that is known.
    endpoint: Option<Endpoint>,
    /// Whether the server is to be reached elsewhere now.
    retired: AtomicBool,
    /// Whether a faster transport was expected, and may come.
    is_fallback: bool,
    links: Links,
    must_arm: bool,
    generation: u64,
    /// Operations that have chosen it.
    users: AtomicUsize,
    dead: AtomicBool,
    wants_write: AtomicBool,
    state: Mutex<LaneState>,
}

struct LaneState {
    /// `None` once it has failed.
    link: Option<Box<dyn Link>>,
    waiting: Vec<(u64, Arc<Answer>)>,
    done: Vec<Completion>,
    segments: Vec<u16>,
    /// Replies so far.
    replies: u64,
    /// What had come when it was last looked at, and since when it was no more.
    heard: (u64, Instant),
    /// How often a request found no credit.
    refused: u64,
}

/// What the server takes on a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credits {
    /// Requests that can be sent at the moment.
    pub free: u16,
    /// How often a request could not be sent as there was no credit for it. It is sent over another connection, or tried again.
    pub refused: u64,
}

/// Why a request was not sent.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// The server takes no more at the moment.
    NoCredit,
    /// The request is at fault.
    Refused(LinkError),
    /// The lane is.
    Failed(LaneFailure),
}

impl Lane {
    /// Over a connection on which the handshake is done.
    pub(crate) fn new(dialled: Dialled, traffic: Traffic) -> Arc<Lane> {
        let Dialled { link, rail, fallback, endpoint, .. } = dialled;
        Arc::new(Lane {
            fd: link.fd(),
            kind: link.kind(),
            traffic,
            rail,
            endpoint,
            retired: AtomicBool::new(false),
            is_fallback: fallback.is_some_and(|fallback| fallback.may_mend),
            links: Links { bulk_bytes_max: link.bulk_bytes_max(), traits: link.traits(), ..Links::default() },
            must_arm: link.must_arm(),
            generation: fork::generation(),
            users: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            wants_write: AtomicBool::new(false),
            state: Mutex::new(LaneState {
                link: Some(link),
                waiting: Vec::new(),
                done: Vec::new(),
                segments: Vec::new(),
                replies: 0,
                heard: (0, Instant::now()),
                refused: 0,
            }),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// How it moves data.
    pub fn kind(&self) -> &LinkKind {
        &self.kind
    }

    /// What the server takes on it at the moment.
    pub fn credits(&self) -> Credits {
        let state = lock(&self.state);
        Credits { free: state.link.as_ref().map_or(0, |link| link.credits()), refused: state.refused }
    }

    /// What it carries.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(crate) fn rail(&self) -> usize {
        self.rail
    }

    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The server is to be reached elsewhere: it is used no more as soon as that is so.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub(crate) fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    pub(crate) fn links(&self) -> Links {
        self.links
    }

    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::Relaxed)
    }

    /// Whether it can carry requests of this process.
    pub(crate) fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Acquire) && self.is_ours()
    }

    /// Whether it was made by this process and not by the one that forked it.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.wants_write.load(Ordering::Relaxed)
    }

    /// Sends a request whose reply goes to `answer`. `segments` are shared memory that its pieces may lie in.
    /// `bulk` is called once it is sure that the server takes the request.
    ///
    /// # Safety
    /// The memory of `bulk` stays valid, and untouched by others, until `answer` is ready.
    pub(crate) unsafe fn submit(
        &self,
        header: Header,
        body: &[u8],
        bulk: impl FnOnce() -> Bulk,
        segments: &[Segment],
        answer: &Arc<Answer>,
    ) -> Result<(), NotSent> {
        let mut state = lock(&self.state);
        let LaneState { link, segments: known, refused, .. } = &mut *state;
        let Some(link) = link else {
            return Err(NotSent::Failed(LaneFailure("the connection failed".into())));
        };
        if link.credits() == 0 {
            *refused += 1;
            return Err(NotSent::NoCredit);
        }
        let request_id = header.request_id;
        let mut make_known = |segment: &Segment| {
            if !known.contains(&segment.id()) {
                link.add_segment(segment)?;
                known.push(segment.id());
            }
            Ok(())
        };
        let made_known = segments.iter().try_for_each(&mut make_known);
        // SAFETY: the caller keeps the memory until the answer is ready. It is made ready by a completion, or
        // by `fail`, which drops the link first.
        match made_known.and_then(|()| unsafe { link.submit(header, body, bulk()) }) {
            Ok(()) => {
                self.wants_write.store(link.wants_write(), Ordering::Relaxed);
                state.waiting.push((request_id, answer.clone()));
                Ok(())
            }
            Err(LinkError::NoCredit { .. }) => Err(NotSent::NoCredit),
            Err(error) if error.is_fatal() => Err(NotSent::Failed(self.fail(&mut state, &error.to_string()))),
            Err(error) => Err(NotSent::Refused(error)),
        }
    }

    /// Sends and receives what can be without waiting, for all threads; nothing where another thread is at
    /// it.
    pub fn progress(&self) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.receive(&mut state, |link, done| link.watch(done));
    }

    /// To be called before a sleep on the descriptor, with nothing in between but another look at the
    /// answers.
    pub(crate) fn prepare_sleep(&self) {
        // Not `try_lock`: who holds it may be about to leave a descriptor that is not armed.
        if self.must_arm {
            self.receive(&mut lock(&self.state), |link, done| link.progress(done));
        }
    }

    /// Sends what was kept for this moment; see [`weft_transport::hold_requests`].
    pub(crate) fn flush(&self) {
        if !self.wants_write() {
            return;
        }
        let mut state = lock(&self.state);
        let Some(link) = &mut state.link else { return };
        let flushed = link.flush();
        self.wants_write.store(link.wants_write(), Ordering::Relaxed);
        if let Err(error) = flushed {
            self.fail(&mut state, &error.to_string());
        }
    }

    fn receive(
        &self,
        state: &mut LaneState,
        look: impl FnOnce(&mut dyn Link, &mut Vec<Completion>) -> Result<(), LinkError>,
    ) {
        let LaneState { link, waiting, done, replies, .. } = &mut *state;
        let Some(link) = link else { return };
        let result = look(&mut **link, done);
        self.wants_write.store(link.wants_write(), Ordering::Relaxed);
        *replies += done.len() as u64;
        for completion in done.drain(..) {
            let id = completion.header.request_id;
            if let Some(at) = waiting.iter().position(|(waiting_id, _)| *waiting_id == id) {
                waiting.swap_remove(at).1.complete(Ok(completion));
            }
        }
        if let Err(error) = result {
            self.fail(state, &error.to_string());
        }
    }

    /// Since when nothing has come from the server, as far as it was looked at.
    pub(crate) fn silent_since(&self) -> Instant {
        let mut state = lock(&self.state);
        let moved = state.link.as_ref().map_or(0, |link| link.moved_bytes()).wrapping_add(state.replies);
        if state.heard.0 != moved {
            state.heard = (moved, Instant::now());
        }
        state.heard.1
    }

    /// Asks the server whether it lives; nobody waits for the reply.
    pub(crate) fn ping(&self, request_id: u64) {
        let mut state = lock(&self.state);
        let Some(link) = state.link.as_mut().filter(|link| link.credits() > 0) else { return };
        let header = Header { trace: current_or_fresh(), ..Header::request(Op::Ping, request_id) };
        // SAFETY: no memory is lent.
        let sent =
            unsafe { link.submit(header, &body::encode(&PingRequest { echo: Vec::new() }), Bulk::None) };
        self.wants_write.store(link.wants_write(), Ordering::Relaxed);
        if let Err(error) = sent
            && error.is_fatal()
        {
            self.fail(&mut state, &error.to_string());
        }
    }

    /// Gives the connection up: every request on it fails.
    pub(crate) fn give_up(&self, cause: &str) {
        let mut state = lock(&self.state);
        if let Some(link) = &mut state.link {
            link.despair();
        }
        self.fail(&mut state, cause);
    }

    /// The link is dropped before anybody is notified, for until then the server may use the requests' memory.
    fn fail(&self, state: &mut LaneState, cause: &str) -> LaneFailure {
        self.dead.store(true, Ordering::Release);
        if let Some(mut link) = state.link.take() {
            link.give_up();
        }
        let failure = LaneFailure(cause.into());
        for (_, answer) in state.waiting.drain(..) {
            answer.complete(Err(failure.clone()));
        }
        failure
    }

    /// Forgets shared memory that is about to be freed.
    pub(crate) fn drop_segment(&self, id: u16) {
        let mut state = lock(&self.state);
        let Some(at) = state.segments.iter().position(|known| *known == id) else { return };
        state.segments.swap_remove(at);
        let dropped = state.link.as_mut().map_or(Ok(()), |link| link.drop_segment(id));
        if let Err(error) = dropped
            && error.is_fatal()
        {
            self.fail(&mut state, &error.to_string());
        }
    }
}

/// A lane chosen by an operation.
pub struct LaneUse(Arc<Lane>);

impl LaneUse {
    pub(crate) fn new(lane: &Arc<Lane>) -> LaneUse {
        lane.users.fetch_add(1, Ordering::Relaxed);
        LaneUse(lane.clone())
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.0
    }
}

impl Drop for LaneUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}
