//! One request to a server: its state from the first attempt to its reply.
//!
//! ```text
//!   Ready ──submit on a lane──► Sent ──reply──► Done
//!     ▲                           │
//!     ├──── pause, new lane ◄─────┤ the connection broke, or the server has been silent for too long
//!     └──── newer map ◄───────────┘ refused: the server goes by a newer map (`follow.rs`)
//!
//!   Done with an error once the operation's time is over (`deadline.rs`), at once where the server is dead
//!   (`health.rs`)
//! ```
//!
//! Its number and slot are the same at every repetition, so that a server that has executed it repeats its
//! reply.

mod retry;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_log::trace;
use weft_transport::{Bulk, Completion, LinkError};
use weft_wire::{Header, Op, Owned, Request, Status, body, flags};

use crate::deadline;
use crate::error::{Error, ErrorKind};
use crate::fork;
use crate::lane::{Lane, NotSent};
use crate::rpc::Rpc;
use crate::slots::SlotLease;
use crate::wait::Answer;

/// How soon to look again where a server's credits, or all exactly-once slots, are in others' use.
pub(crate) const BLOCKED_PAUSE: Duration = Duration::from_millis(1);
/// How long it is tried to connect for a request that can do without the answer.
const HASTY_RETRY: Duration = Duration::from_millis(200);

/// A server that is silent for less is not given up.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(1);

/// A request that moves bytes between a server and memory of this process.
pub trait BulkRequest: Any + Send {
    /// The body of its message.
    fn body(&self) -> Vec<u8>;
    /// Its memory. Whoever made the request keeps that valid until the call is over.
    fn bulk(&mut self) -> Bulk;
    /// First address and end of its memory.
    fn memory_span(&self) -> (u64, u64);
}

/// Permission that a request needs each time it is sent. A request may wait long for its server, and its process
/// may be suspended meanwhile.
pub trait Guard: Send + Sync {
    /// Fails if the request must not be sent any more. May itself ask servers.
    ///
    /// # Errors
    /// The result of the request, which is not sent.
    fn check(&self) -> Result<(), Error>;
}

/// What a request says.
pub enum Content {
    /// A body.
    Message(Vec<u8>),
    /// A body with memory that the server reads or writes.
    Bulk(Box<dyn BulkRequest>),
}

impl Content {
    /// The request with memory, if it is one of this type.
    pub fn into_bulk<T: BulkRequest>(self) -> Option<Box<T>> {
        match self {
            Content::Message(_) => None,
            Content::Bulk(request) => (request as Box<dyn Any>).downcast().ok(),
        }
    }
}

pub(crate) enum State {
    Ready { not_before: Option<Instant> },
    Sent { lane: Arc<Lane>, answer: Arc<Answer>, since: Instant },
    Done(Result<Completion, Error>),
}

/// One request.
pub struct Call {
    pub(crate) server: usize,
    pub(crate) op: Op,
    pub(crate) content: Content,
    pub(crate) tag: usize,
    pub(crate) state: State,
    /// Chosen at the first submission; the same at every repetition.
    request_id: Option<u64>,
    lease: Option<SlotLease>,
    generation: u64,
    /// Of the call of the program that needs it.
    pub(crate) trace: u64,
    /// Whether a server may have executed it already.
    sent_before: bool,
    /// Version of the map that it was sent by.
    map_version: u32,
    /// It was refused by a server that goes by this version of the map, or a newer one.
    pub(crate) wanted_map: Option<u32>,
    refusals: u32,
    pub(crate) begun: Instant,
    pause: Duration,
    /// When it is given up; `None`: never.
    pub(crate) end: Option<Instant>,
    /// It can do without the answer: then the connection stays. A server to which it was sent has at least this
    /// long to answer.
    pub(crate) hasty: Option<Duration>,
    /// How long it is tried to connect.
    connect_patience: Duration,
    guard: Option<Arc<dyn Guard>>,
}

impl Call {
    /// To be asked of the server with this index; `tag` comes back with its end.
    pub fn new(rpc: &Rpc, server: usize, op: Op, content: Content, tag: usize) -> Call {
        Call {
            server,
            op,
            content,
            tag,
            state: State::Ready { not_before: None },
            request_id: None,
            lease: None,
            generation: fork::generation(),
            trace: trace::current_or_fresh(),
            sent_before: false,
            map_version: 0,
            wanted_map: None,
            refusals: 0,
            begun: Instant::now(),
            pause: Duration::ZERO,
            end: deadline::end(rpc.options.timeout()),
            hasty: None,
            connect_patience: Duration::MAX,
            guard: None,
        }
    }

    /// It is sent only while this allows it.
    pub fn guarded(self, guard: Option<Arc<dyn Guard>>) -> Call {
        Call { guard, ..self }
    }

    /// A message to the metadata server that owns what it is about.
    pub fn to_owner<R: Owned>(rpc: &Rpc, request: &R, tag: usize) -> Call {
        Call::of(rpc, rpc.owner(request.shard()), request, tag)
    }

    /// A message to the server with this index.
    pub fn of<R: Request>(rpc: &Rpc, server: usize, request: &R, tag: usize) -> Call {
        Call::new(rpc, server, R::OP, Content::Message(body::encode(request)), tag)
    }

    /// Waits only so long, whatever the operation may take. A server that was reached gets up to a second for
    /// its answer even if the operation's time is over.
    pub fn patience(mut self, patience: Duration) -> Call {
        let end = Instant::now() + patience;
        self.end = Some(self.end.map_or(end, |before| before.min(end)));
        self.hasty = Some(patience.min(SILENCE_MIN));
        self.connect_patience = HASTY_RETRY;
        self
    }

    /// As [`Call::patience`], and a server that can be reached again within that time is waited for.
    pub fn patience_also_to_connect(self, patience: Duration) -> Call {
        Call { connect_patience: patience, ..self.patience(patience) }
    }

    /// As [`Call::patience`], with one attempt to connect.
    pub fn asking_once(self, patience: Duration) -> Call {
        Call { connect_patience: Duration::ZERO, ..self.patience(patience) }
    }

    /// Whether the map matters for it.
    fn goes_by_map(&self) -> bool {
        !matches!(self.op, Op::ClusterMap | Op::Status | Op::Ping)
    }

    pub(crate) fn is_over_at(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// When it is given up although it was sent, at `since`: one that can do without the answer. `None`: not
    /// for its time.
    pub(crate) fn hasty_end(&self, since: Instant) -> Option<Instant> {
        self.end.zip(self.hasty).map(|(end, answer_wait_min)| end.max(since + answer_wait_min))
    }

    /// Whether a server may use memory of the caller's for it.
    pub(crate) fn lends(&self) -> bool {
        let sent = self.sent().is_some_and(|(lane, answer, _)| lane.is_ours() && !answer.is_ready());
        sent && matches!(self.content, Content::Bulk(_))
    }

    /// Ends here; what is left of it goes on by itself.
    pub(crate) fn leave(&mut self, error: Error) -> Call {
        let rest = Call {
            content: std::mem::replace(&mut self.content, Content::Message(Vec::new())),
            state: std::mem::replace(&mut self.state, State::Done(Err(error))),
            lease: self.lease.take(),
            guard: self.guard.take(),
            ..*self
        };
        // Memory stays its owner's.
        match rest.content {
            Content::Message(_) => rest,
            Content::Bulk(request) => {
                self.content = Content::Bulk(request);
                Call { content: Content::Message(Vec::new()), ..rest }
            }
        }
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Ready { not_before } if not_before.is_none_or(|at| at <= now))
    }

    /// Whether it was sent and a server keeps its reply in a slot.
    pub(crate) fn holds_slot(&self) -> bool {
        self.sent().is_some_and(|(lane, ..)| lane.is_ours()) && !self.op.idempotent()
    }

    pub(crate) fn is_ready_to_send(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    pub(crate) fn sent(&self) -> Option<(&Arc<Lane>, &Arc<Answer>, Instant)> {
        match &self.state {
            State::Sent { lane, answer, since } => Some((lane, answer, *since)),
            _ => None,
        }
    }

    /// Number and slot, new ones in a forked child.
    fn number(&mut self, rpc: &Rpc) -> Option<(u64, u16)> {
        let session = rpc.session();
        if self.generation != session.generation {
            (self.request_id, self.lease) = (None, None);
            (self.generation, self.sent_before) = (session.generation, false);
        }
        if !self.op.idempotent() && self.lease.is_none() {
            self.lease = Some(session.server(self.server).slots.lease()?);
        }
        let id = *self.request_id.get_or_insert_with(|| session.next_request_id());
        Some((id, self.lease.as_ref().map_or(0, SlotLease::number)))
    }

    /// Why the server cannot be asked for this, if it runs a release of before the operation.
    fn too_new_for_server(&self, rpc: &Rpc) -> Option<Error> {
        let server = rpc.session().server(self.server);
        let version = server.version();
        if version >= self.op.since() {
            return None;
        }
        let text = format!(
            "it runs an older release, which cannot do this: it speaks version {version} of the protocol, and version {} \
             is needed; upgrade it",
            self.op.since()
        );
        let error = Error::new(self.op.name(), ErrorKind::Status(Status::Unsupported), text);
        Some(error.at_server(server.describe(None)))
    }

    pub(crate) fn start(&mut self, rpc: &Rpc, lane: &Arc<Lane>) {
        if let Some(error) = self.too_new_for_server(rpc) {
            self.state = State::Done(Err(error));
            return;
        }
        let Some((request_id, slot)) = self.number(rpc) else {
            self.state = State::Ready { not_before: Some(Instant::now() + BLOCKED_PAUSE) };
            return;
        };
        if let Some(Err(error)) = self.guard.as_ref().map(|guard| guard.check()) {
            self.state = State::Done(Err(error));
            return;
        }
        let retry = if self.sent_before && !self.op.idempotent() { flags::RETRY } else { 0 };
        self.map_version = if self.goes_by_map() { rpc.session().map_version() } else { 0 };
        let header = Header {
            slot,
            flags: retry,
            map_version: self.map_version,
            trace: self.trace,
            ..Header::request(self.op, request_id)
        };
        tracing::debug!(
            op = self.op.name(),
            request = request_id,
            trace = self.trace,
            "asks {}{}",
            rpc.session().server(self.server).info().name,
            if self.sent_before { " again" } else { "" }
        );
        let answer = Arc::new(Answer::default());
        let sent = match &mut self.content {
            // SAFETY: no memory.
            Content::Message(body) => unsafe { lane.submit(header, body, || Bulk::None, &[], &answer) },
            Content::Bulk(request) => {
                let segments = rpc.arenas.overlapping(request.memory_span());
                let body = request.body();
                // SAFETY: the caller of `Call::new` keeps its memory until the call is over; a batch that is
                // dropped before waits for that.
                unsafe { lane.submit(header, &body, || request.bulk(), &segments, &answer) }
            }
        };
        match sent {
            Ok(()) => self.state = State::Sent { lane: lane.clone(), answer, since: Instant::now() },
            Err(NotSent::NoCredit) => {
                self.state = State::Ready { not_before: Some(Instant::now() + BLOCKED_PAUSE) }
            }
            Err(NotSent::Refused(error)) => {
                let server = rpc.session().server(self.server).describe(Some(lane));
                let kind = match &error {
                    LinkError::Register { source, .. } => ErrorKind::Local(source.errno()),
                    _ => ErrorKind::Invalid,
                };
                let error = Error::new(self.op.name(), kind, error.to_string());
                self.state = State::Done(Err(error.at_server(server)));
            }
            Err(NotSent::Failed(failure)) => {
                self.sent_before = true;
                self.later(rpc, &failure.0);
            }
        }
    }

    /// Takes the answer if it is there.
    pub(crate) fn settle(&mut self, rpc: &Rpc) {
        let State::Sent { lane, answer, .. } = &self.state else { return };
        if !lane.is_ours() {
            return self.later(rpc, "the process has forked");
        }
        if !answer.is_ready() {
            return;
        }
        match answer.take() {
            Some(Ok(completion)) if completion.header.status == Status::ShuttingDown => {
                self.later(rpc, "the server is shutting down");
            }
            Some(Ok(completion)) if completion.header.status == Status::StaleMap => {
                rpc.note_answer(self.server);
                self.refused_for_map(rpc, completion.header.map_version);
            }
            Some(Ok(completion)) => {
                let server = &lane.clone();
                rpc.note_answer(self.server);
                rpc.hear_of_map(completion.header.map_version, self.server);
                let result = self.check(rpc, server, completion);
                self.state = State::Done(result);
            }
            Some(Err(failure)) => {
                self.sent_before = true;
                self.later(rpc, &failure.0);
            }
            None => {}
        }
    }

    /// Turns a refusal into an error that names the server.
    fn check(&self, rpc: &Rpc, lane: &Lane, completion: Completion) -> Result<Completion, Error> {
        if completion.header.status == Status::Ok {
            return Ok(completion);
        }
        let detail = body::decode(&completion.header, &completion.body);
        let kind = ErrorKind::Status(completion.header.status);
        let error = Error::new(
            self.op.name(),
            kind,
            detail.map(|detail: weft_wire::messages::ErrorDetail| detail.text).unwrap_or_default(),
        );
        Err(error.at_server(rpc.session().server(self.server).describe(Some(lane))))
    }
}
