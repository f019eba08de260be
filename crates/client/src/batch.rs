//! Requests to any number of servers, driven by the thread that waits for them.
//!
//! ```text
//!   Ready ──submit on a lane──► Sent ──reply──► Done
//!     ▲                           │
//!     ├──── pause, new lane ◄─────┤ the connection broke, or the server has been silent for too long
//!     └──── newer map ◄───────────┘ refused: the server goes by a newer map (`follow.rs`)
//!
//!   Done with an error once the time of the operation is over (`deadline.rs`), at once where the server is dead (`health.rs`)
//! ```
//!
//! A server that says nothing is asked whether it lives, on the same connection. One that does may take its time.
//!
//! One step submits what is ready, lets every lane in use send and receive, and looks at the answers. Between steps the thread
//! watches for a moment, if the requests are small and watching has helped before, and then sleeps in `poll(2)` on all
//! its lanes at once.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_log::trace;
use weft_transport::{Bulk, Completion, LinkError};
use weft_wire::messages::ErrorDetail;
use weft_wire::{Header, Op, Request, Status, body, flags};

use crate::ConnectOptions;
use crate::deadline::{self, LOOK_EVERY, Operation};
use crate::dial::is_of_another_cluster;
use crate::error::{Error, ErrorKind};
use crate::greet;
use crate::inner::Inner;
use crate::lane::{Lane, LaneUse, NotSent};
use crate::session::SlotLease;
use crate::wait::{Answer, PollSet, Waker, lock};
use crate::waits;
use crate::window::Share;

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How soon to look again where a server's credits, or all exactly-once slots, are in others' use.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);
/// Replies that nobody waits for, before somebody does.
const DETACHED_MAX: usize = 32;
/// How long they are waited for at the end.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(1);
/// A server is not asked sooner whether it lives.
const PING_AFTER_MIN: Duration = Duration::from_millis(100);
/// A server that is silent for less is not given up.
const SILENCE_MIN: Duration = Duration::from_secs(1);
/// How long it is tried to connect for a request that can do without the answer.
const HASTY_RETRY: Duration = Duration::from_millis(200);
/// How long a server may be silent about requests that were given up, and whose time is over.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// What a request says.
pub(crate) enum Content {
    /// A body.
    Message(Vec<u8>),
    /// One server's part of a window of a read or write.
    Share(Box<Share>),
}

enum State {
    Ready { not_before: Option<Instant> },
    Sent { lane: Arc<Lane>, answer: Arc<Answer>, since: Instant },
    Done(Result<Completion, Error>),
}

/// One request.
pub(crate) struct Call {
    server: usize,
    op: Op,
    content: Content,
    tag: usize,
    state: State,
    /// Chosen at the first submission; the same at every repetition.
    request_id: Option<u64>,
    lease: Option<SlotLease>,
    generation: u64,
    /// Of the call of the program that needs it.
    trace: u64,
    /// Whether a server may have executed it already.
    sent_before: bool,
    /// Version of the map that it was sent by.
    map_version: u32,
    /// It was refused by a server that goes by this version of the map, or a newer one.
    wanted_map: Option<u32>,
    refusals: u32,
    begun: Instant,
    pause: Duration,
    /// When it is given up; `None`: never.
    end: Option<Instant>,
    /// It can do without the answer: then the connection stays.
    hasty: bool,
    /// How long it is tried to connect.
    connect_patience: Duration,
}

/// A request that is over.
pub(crate) struct Finished {
    pub tag: usize,
    pub content: Content,
    pub result: Result<Completion, Error>,
}

impl Call {
    /// To be asked of the server with this index; `tag` comes back with its end.
    pub(crate) fn new(inner: &Inner, server: usize, op: Op, content: Content, tag: usize) -> Call {
        Call {
            server,
            op,
            content,
            tag,
            state: State::Ready { not_before: None },
            request_id: None,
            lease: None,
            generation: crate::fork::generation(),
            trace: trace::current_or_fresh(),
            sent_before: false,
            map_version: 0,
            wanted_map: None,
            refusals: 0,
            begun: Instant::now(),
            pause: Duration::ZERO,
            end: deadline::end(inner.options.timeout()),
            hasty: false,
            connect_patience: Duration::MAX,
        }
    }

    /// With a message.
    pub(crate) fn of<R: Request>(inner: &Inner, server: usize, request: &R, tag: usize) -> Call {
        Call::new(inner, server, R::OP, Content::Message(body::encode(request)), tag)
    }

    /// Waits only so long, whatever the operation may take.
    pub(crate) fn patience(mut self, patience: Duration) -> Call {
        let end = Instant::now() + patience;
        self.end = Some(self.end.map_or(end, |before| before.min(end)));
        self.hasty = true;
        self.connect_patience = HASTY_RETRY;
        self
    }

    /// As [`Call::patience`], and a server that can be reached again within that time is waited for.
    pub(crate) fn patience_also_to_connect(self, patience: Duration) -> Call {
        Call { connect_patience: patience, ..self.patience(patience) }
    }

    /// As [`Call::patience`], with one attempt to connect.
    pub(crate) fn asking_once(self, patience: Duration) -> Call {
        Call { connect_patience: Duration::ZERO, ..self.patience(patience) }
    }

    /// Whether the map matters for it.
    fn goes_by_map(&self) -> bool {
        !matches!(self.op, Op::ClusterMap | Op::Status | Op::Ping)
    }

    fn is_over_at(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// Whether a server may use memory of the caller's for it.
    fn lends(&self) -> bool {
        let sent = self.sent().is_some_and(|(lane, answer, _)| lane.is_ours() && !answer.is_ready());
        sent && matches!(self.content, Content::Share(_))
    }

    /// Ends here; what is left of it goes on by itself.
    fn leave(&mut self, error: Error) -> Call {
        let rest = Call {
            content: std::mem::replace(&mut self.content, Content::Message(Vec::new())),
            state: std::mem::replace(&mut self.state, State::Done(Err(error))),
            lease: self.lease.take(),
            ..*self
        };
        // A share is none of anybody's any more but its owner's.
        match rest.content {
            Content::Message(_) => rest,
            Content::Share(share) => {
                self.content = Content::Share(share);
                Call { content: Content::Message(Vec::new()), ..rest }
            }
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        matches!(self.state, State::Ready { not_before } if not_before.is_none_or(|at| at <= now))
    }

    fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    fn sent(&self) -> Option<(&Arc<Lane>, &Arc<Answer>, Instant)> {
        match &self.state {
            State::Sent { lane, answer, since } => Some((lane, answer, *since)),
            _ => None,
        }
    }

    /// Number and slot, new ones in a forked child.
    fn number(&mut self, inner: &Inner) -> Option<(u64, u16)> {
        let session = inner.session();
        if self.generation != session.generation {
            (self.request_id, self.lease) = (None, None);
            (self.generation, self.sent_before) = (session.generation, false);
        }
        if !self.op.idempotent() && self.lease.is_none() {
            self.lease = Some(session.lease_slot()?);
        }
        let id = *self.request_id.get_or_insert_with(|| session.next_request_id());
        Some((id, self.lease.as_ref().map_or(0, SlotLease::number)))
    }

    fn start(&mut self, inner: &Inner, lane: &Arc<Lane>) {
        let Some((request_id, slot)) = self.number(inner) else {
            self.state = State::Ready { not_before: Some(Instant::now() + BLOCKED_PAUSE) };
            return;
        };
        let retry = if self.sent_before && !self.op.idempotent() { flags::RETRY } else { 0 };
        self.map_version = if self.goes_by_map() { inner.session().map_version() } else { 0 };
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
            inner.session().server(self.server).info().name,
            if self.sent_before { " again" } else { "" }
        );
        let answer = Arc::new(Answer::default());
        let sent = match &mut self.content {
            // SAFETY: no memory.
            Content::Message(body) => unsafe { lane.submit(header, body, || Bulk::None, &[], &answer) },
            Content::Share(share) => {
                let segments = inner.segments_in(share.memory_span());
                let body = share.body();
                // SAFETY: whoever made the share keeps its memory until the call is over; a batch that is dropped
                // before waits for that.
                unsafe { lane.submit(header, &body, || share.bulk(), &segments, &answer) }
            }
        };
        match sent {
            Ok(()) => self.state = State::Sent { lane: lane.clone(), answer, since: Instant::now() },
            Err(NotSent::NoCredit) => {
                self.state = State::Ready { not_before: Some(Instant::now() + BLOCKED_PAUSE) }
            }
            Err(NotSent::Refused(error)) => {
                let server = inner.session().server(self.server).describe(Some(lane));
                let kind = match &error {
                    LinkError::Register { source, .. } => ErrorKind::Local(source.errno()),
                    _ => ErrorKind::Invalid,
                };
                let error = Error::new(self.op.name(), kind, error.to_string());
                self.state = State::Done(Err(error.at_server(server)));
            }
            Err(NotSent::Failed(failure)) => {
                self.sent_before = true;
                self.later(inner, &failure.0);
            }
        }
    }

    /// To be tried again after a pause, or over if it has been tried for long enough.
    fn later(&mut self, inner: &Inner, cause: &str) {
        self.failed(inner, Instant::now(), cause);
    }

    /// As [`Call::later`], of a server that has been silent since `since`.
    fn failed(&mut self, inner: &Inner, since: Instant, cause: &str) {
        let now = Instant::now();
        let is_over = self.is_over_at(now) || self.begun.elapsed() >= self.connect_patience;
        inner.note_failure(self.server, since, cause, is_over && !self.hasty);
        if let Some(error) = inner.dead(self.server).filter(|_| !is_over) {
            self.state = State::Done(Err(error.of_operation(self.op.name())));
            return;
        }
        if is_over {
            self.state = State::Done(Err(self.timed_out(inner, cause)));
            return;
        }
        let left = self.end.map_or(PAUSE_MAX, |end| end.saturating_duration_since(now));
        let pause = self.pause.min(left);
        self.state = State::Ready { not_before: (!pause.is_zero()).then(|| now + pause) };
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
    }

    fn timed_out(&self, inner: &Inner, cause: &str) -> Error {
        let waited_ms = self.begun.elapsed().as_millis();
        let text = format!("it did not come back within {waited_ms} ms; last: {cause}");
        let server = inner.session().server(self.server).describe(None);
        Error::timed_out(self.op.name(), text).at_server(server)
    }

    /// Takes the answer if it is there.
    fn settle(&mut self, inner: &Inner) {
        let State::Sent { lane, answer, .. } = &self.state else { return };
        if !lane.is_ours() {
            return self.later(inner, "the process has forked");
        }
        if !answer.is_ready() {
            return;
        }
        match answer.take() {
            Some(Ok(completion)) if completion.header.status == Status::ShuttingDown => {
                self.later(inner, "the server is shutting down");
            }
            Some(Ok(completion)) if completion.header.status == Status::StaleMap => {
                inner.note_answer(self.server);
                self.refused_for_map(inner, completion.header.map_version);
            }
            Some(Ok(completion)) => {
                let server = &lane.clone();
                inner.note_answer(self.server);
                inner.hear_of_map(completion.header.map_version, self.server);
                let result = self.check(inner, server, completion);
                self.state = State::Done(result);
            }
            Some(Err(failure)) => {
                self.sent_before = true;
                self.later(inner, &failure.0);
            }
            None => {}
        }
    }

    /// The server goes by a newer map, and has not executed it: to be repeated as it is by that map.
    fn refused_for_map(&mut self, inner: &Inner, version: u32) {
        let now = Instant::now();
        self.refusals += 1;
        if self.refusals > 1 && self.is_over_at(now) {
            let cause = format!(
                "it goes by version {version} of the cluster's map, and nobody serves one newer than version {}",
                self.map_version
            );
            self.state = State::Done(Err(self.timed_out(inner, &cause)));
            return;
        }
        self.wanted_map = Some(version.max(self.map_version.saturating_add(1)));
        let not_before = (self.refusals > 1).then(|| {
            self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
            now + self.pause
        });
        self.state = State::Ready { not_before };
    }

    /// Turns a refusal into an error that names the server.
    fn check(&self, inner: &Inner, lane: &Lane, completion: Completion) -> Result<Completion, Error> {
        if completion.header.status == Status::Ok {
            return Ok(completion);
        }
        let detail = body::decode(&completion.header, &completion.body);
        let kind = ErrorKind::Status(completion.header.status);
        let error = Error::new(
            self.op.name(),
            kind,
            detail.map(|detail: ErrorDetail| detail.text).unwrap_or_default(),
        );
        Err(error.at_server(inner.session().server(self.server).describe(Some(lane))))
    }
}

/// Requests under way together.
#[derive(Default)]
pub(crate) struct Batch {
    calls: Vec<Call>,
    lanes: Vec<(usize, LaneUse)>,
    /// Much data: watching would take the processor from those who move it.
    pub bulky: bool,
    /// When it was last asked whether the wait is to end.
    looked_at: Option<Instant>,
}

impl Batch {
    pub(crate) fn push(&mut self, call: Call) {
        if let Some((lane, ..)) = call.sent() {
            self.lanes.push((call.server, LaneUse::new(lane)));
        }
        self.calls.push(call);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The next request that is over, without waiting.
    pub(crate) fn poll(&mut self, inner: &Inner) -> Option<Finished> {
        if let Some(finished) = self.take_done() {
            return Some(finished);
        }
        self.step(inner);
        self.take_done()
    }

    /// Waits for the next request that is over. `None` when there is none left.
    pub(crate) fn wait(&mut self, inner: &Inner) -> Option<Finished> {
        if self.is_empty() {
            return None;
        }
        loop {
            if let Some(finished) = self.poll(inner) {
                return Some(finished);
            }
            if !self.watch(inner) {
                self.sleep(inner);
            }
        }
    }

    /// Ends what is under way, for whoever waits for it does so no longer.
    fn interrupt(&mut self, inner: &Inner) {
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            if call.is_done() {
                continue;
            }
            // The server must let go of memory that goes back to its owner.
            if let (true, Some((lane, ..))) = (call.lends(), call.sent()) {
                lane.give_up("whoever waited for an answer was interrupted");
            }
            let server = inner.session().server(call.server).describe(None);
            let error = Error::new(call.op.name(), ErrorKind::Local(libc::EINTR), "the wait was interrupted");
            let rest = call.leave(error.at_server(server));
            if matches!(rest.state, State::Sent { .. }) && !rest.op.idempotent() {
                // Its slot is taken until it is answered.
                lock(&inner.session().detached).push(rest);
            }
        }
    }

    fn take_done(&mut self) -> Option<Finished> {
        let at = self.calls.iter().position(Call::is_done)?;
        let Call { tag, content, state, server, op, begun, trace, .. } = self.calls.swap_remove(at);
        let took = begun.elapsed();
        waits::note(server, took.as_millis() as u64);
        if let State::Done(result) = &state {
            let us = took.as_micros() as u64;
            match result {
                Ok(_) => tracing::debug!(op = op.name(), us, trace, "was answered"),
                Err(error) => tracing::debug!(op = op.name(), us, trace, "failed: {error}"),
            }
        }
        match state {
            State::Done(result) => Some(Finished { tag, content, result }),
            _ => None,
        }
    }

    fn step(&mut self, inner: &Inner) {
        let now = Instant::now();
        // Whom it may take long to connect to comes last.
        for failing in [false, true] {
            for at in 0..self.calls.len() {
                let server = self.calls[at].server;
                if self.calls[at].is_due(now) && inner.session().server(server).health.is_failing() == failing
                {
                    self.start(inner, at);
                }
            }
        }
        self.progress();
        self.calls.iter_mut().for_each(|call| call.settle(inner));
    }

    fn start(&mut self, inner: &Inner, at: usize) {
        let call = &mut self.calls[at];
        let server = call.server;
        let begun = Instant::now();
        let mut part = None;
        if let (true, Some(end)) = (call.hasty, call.end) {
            let left = end.saturating_duration_since(begun);
            if !inner.session().server(server).health.is_worth_asking(begun, end - call.begun) {
                let cause = "it does not answer others";
                inner.note_failure(server, begun, cause, false);
                call.state = State::Done(Err(call.timed_out(inner, cause)));
                return;
            }
            part = Some(Operation::part(left));
        }
        if let Some(version) = call.wanted_map.take() {
            if let Err(error) = inner.follow_to(version, server) {
                call.state = State::Done(Err(error.of_operation(call.op.name())));
                return;
            }
        } else if call.op != Op::ClusterMap {
            inner.follow_heard();
        }
        let version = inner.session().map_version();
        let lane = self.lane(inner, server);
        let may_have_moved = |error: &Error| {
            !error.is_down() && (error.kind() == ErrorKind::Unreachable || is_of_another_cluster(error))
        };
        if self.calls[at].op != Op::ClusterMap
            && lane.as_ref().is_err_and(may_have_moved)
            && inner.follow_moved(server, version)
        {
            self.calls[at].state = State::Ready { not_before: None };
            return;
        }
        drop(part);
        match lane {
            Ok(lane) => self.calls[at].start(inner, &lane),
            Err(error) if error.is_down() => {
                self.calls[at].state = State::Done(Err(error.of_operation(self.calls[at].op.name())));
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.calls[at].failed(inner, begun, &error.to_string());
            }
            Err(error) => self.calls[at].state = State::Done(Err(error)),
        }
    }

    /// The lane of this batch to a server: the same for all its requests, or where there is much to move, one over each rail in
    /// turn.
    fn lane(&mut self, inner: &Inner, server: usize) -> Result<Arc<Lane>, Error> {
        self.lanes.retain(|(_, used)| used.lane().is_alive());
        let rails: Vec<usize> = self.lanes_to(server).map(|lane| lane.rail()).collect();
        let wanted = if self.bulky { inner.session().server(server).rails() } else { 1 };
        if rails.is_empty() {
            self.lanes.push((server, inner.take_lane(server, self.bulky, None)?));
        } else if let Some(rail) = (0..wanted).find(|rail| !rails.contains(rail))
            && let Ok(another) = inner.take_lane(server, self.bulky, Some(rail))
        {
            self.lanes.push((server, another));
        }
        let requests = |lane: &&Arc<Lane>| {
            self.calls.iter().filter_map(Call::sent).filter(|(other, ..)| Arc::ptr_eq(lane, other)).count()
        };
        Ok(self.lanes_to(server).min_by_key(requests).expect("one was taken").clone())
    }

    fn lanes_to(&self, server: usize) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().filter(move |(index, _)| *index == server).map(|(_, used)| used.lane())
    }

    /// Lets the lanes with requests of this batch send and receive.
    fn progress(&self) {
        self.lanes_waited_on().for_each(|lane| lane.progress());
    }

    fn lanes_waited_on(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let waits_on = |lane: &Arc<Lane>| {
            let mut sent = self.calls.iter().filter_map(Call::sent);
            lane.is_ours() && sent.any(|(other, answer, _)| Arc::ptr_eq(lane, other) && !answer.is_ready())
        };
        self.lanes.iter().map(|(_, used)| used.lane()).filter(move |lane| waits_on(lane))
    }

    fn any_ready(&self) -> bool {
        self.calls.iter().filter_map(Call::sent).any(|(_, answer, _)| answer.is_ready())
    }

    /// Watches the lanes for a moment instead of sleeping. Says whether something came.
    fn watch(&self, inner: &Inner) -> bool {
        let spin_us = inner.options.spin_us;
        if self.bulky
            || spin_us == 0
            || self.calls.iter().any(|call| call.sent().is_none())
            || !watching_helps()
        {
            return false;
        }
        let end = Instant::now() + Duration::from_micros(spin_us.into());
        loop {
            // On a machine with more to do than processors the server may be waiting for this one.
            std::thread::yield_now();
            self.progress();
            let came = self.any_ready();
            if came || Instant::now() >= end {
                note_watching(came);
                return came;
            }
        }
    }

    /// Sleeps until something may have happened, and ends what is over.
    fn sleep(&mut self, inner: &Inner) {
        let is_looked_after = deadline::is_looked_after();
        let begin = Instant::now();
        sleep_at_most(inner, &[&*self], is_looked_after.then_some(LOOK_EVERY));
        let now = Instant::now();
        let looked_at = self.looked_at.get_or_insert(begin);
        let is_due = now.saturating_duration_since(*looked_at) >= LOOK_EVERY;
        *looked_at = if is_due { now } else { *looked_at };
        let long_failing = inner.options.hard && self.calls.iter().any(|call| inner.is_failing(call.server));
        if is_looked_after && is_due && deadline::is_interrupted()
            || long_failing && deadline::was_signalled()
        {
            self.interrupt(inner);
        }
        self.end_hasty(inner);
    }

    /// Ends those that can do without an answer.
    fn end_hasty(&mut self, inner: &Inner) {
        let now = Instant::now();
        for call in self.calls.iter_mut().filter(|call| call.hasty && call.is_over_at(now)) {
            if let Some((.., since)) = call.sent().filter(|(_, answer, _)| !answer.is_ready()) {
                inner.note_failure(call.server, since, "no answer", false);
                let error = call.timed_out(inner, "no answer");
                drop(call.leave(error));
            }
        }
    }

    /// Whom to wake for this batch's answers, and when to look again at the latest.
    fn prepare_sleep(&self, waker: &Arc<Waker>, now: Instant, options: &ConnectOptions) -> Instant {
        let reply_timeout = Duration::from_millis(options.reply_timeout_ms);
        let mut wake_at = now + reply_timeout;
        for call in &self.calls {
            match &call.state {
                State::Sent { answer, since, .. } => {
                    answer.wake_on_ready(waker);
                    wake_at = wake_at.min(*since + reply_timeout).min(now + ping_after(options));
                    wake_at = call.end.filter(|end| *end > now).map_or(wake_at, |end| wake_at.min(end));
                }
                State::Ready { not_before } => wake_at = wake_at.min(not_before.unwrap_or(now)),
                State::Done(_) => wake_at = now,
            }
        }
        wake_at
    }

    /// Gives up connections whose servers have been silent for too long, and asks others whether they live.
    fn cut_silent(&self, inner: &Inner) {
        let now = Instant::now();
        let options = &inner.options;
        for call in self.calls.iter().filter(|call| !call.hasty) {
            let Some((lane, answer, since)) = call.sent() else { continue };
            let waited = now.saturating_duration_since(since);
            if answer.is_ready() || waited < ping_after(options).min(options.reply_timeout()) {
                continue;
            }
            let silent = now.saturating_duration_since(lane.silent_since().max(since));
            let is_over = match options.hard {
                true => silent >= options.patience(),
                false => call.is_over_at(now) && silent >= (options.patience() / 2).max(SILENCE_MIN),
            };
            if is_over || waited > options.reply_timeout() {
                inner.note_failure(call.server, since, "no answer", is_over);
                lane.give_up(&format!("no answer for {} ms", waited.as_millis()));
            } else if silent >= ping_after(options) {
                lane.ping(inner.session().next_request_id());
            }
        }
    }

    /// Sends what there is and leaves the replies to whoever comes next.
    pub(crate) fn detach(mut self, inner: &Inner) {
        self.step(inner);
        let calls = std::mem::take(&mut self.calls);
        lock(&inner.session().detached).extend(calls.into_iter().filter(|call| !call.is_done()));
    }
}

/// After which silence a server is asked whether it lives.
fn ping_after(options: &ConnectOptions) -> Duration {
    (options.patience() / 4).max(PING_AFTER_MIN)
}

/// Sleeps until something may have happened to one of the batches.
pub(crate) fn sleep_on(inner: &Inner, batches: &[&Batch]) {
    sleep_at_most(inner, batches, None);
}

/// As [`sleep_on`], for so long at most.
fn sleep_at_most(inner: &Inner, batches: &[&Batch], longest: Option<Duration>) {
    let waker = Waker::current();
    let now = Instant::now();
    let wake_times = batches.iter().map(|batch| batch.prepare_sleep(&waker, now, &inner.options));
    let wake_at = wake_times.chain(longest.map(|longest| now + longest)).min().unwrap_or(now);
    batches.iter().flat_map(|batch| batch.lanes_waited_on()).for_each(|lane| lane.prepare_sleep());
    waker.about_to_sleep();
    if batches.iter().any(|batch| batch.any_ready()) {
        return waker.awake(false);
    }
    let mut set = PollSet::new();
    for lane in batches.iter().flat_map(|batch| batch.lanes_waited_on()) {
        set.add(lane.fd(), lane.wants_write());
    }
    let left = wake_at.saturating_duration_since(now);
    let signalled = set.sleep(&waker, left.as_micros().div_ceil(1000) as u64);
    waker.awake(signalled);
    batches.iter().for_each(|batch| batch.cut_silent(inner));
}

impl Drop for Batch {
    /// Memory of requests that are under way must not be given back to its owner before they are over.
    fn drop(&mut self) {
        while self.calls.iter().any(Call::lends) {
            self.progress();
            self.lanes_waited_on().for_each(|lane| lane.prepare_sleep());
            if !self.calls.iter().any(Call::lends) {
                return;
            }
            let now = Instant::now();
            for call in self.calls.iter().filter(|call| call.lends() && call.is_over_at(now)) {
                if let Some((lane, _, since)) = call.sent() {
                    let silent_since = lane.silent_since().max(since);
                    if now.saturating_duration_since(silent_since) >= DROP_PATIENCE {
                        lane.give_up("no answer to a request that nobody waits for any more");
                    }
                }
            }
            let waker = Waker::current();
            let mut set = PollSet::new();
            self.lanes_waited_on().for_each(|lane| set.add(lane.fd(), lane.wants_write()));
            const LOOK_AGAIN_MS: u64 = 100;
            let signalled = set.sleep(&waker, LOOK_AGAIN_MS);
            waker.awake(signalled);
        }
    }
}

/// Takes the replies that nobody waited for; repeats what was lost.
pub(crate) fn reap(inner: &Inner) {
    let mut again = Batch::default();
    {
        let mut detached = lock(&inner.session().detached);
        if detached.is_empty() {
            return;
        }
        let too_many = detached.len() >= DETACHED_MAX;
        let mut at = 0;
        while at < detached.len() {
            detached[at].settle(inner);
            match detached[at].state {
                State::Done(_) => drop(detached.swap_remove(at)),
                State::Sent { .. } if !too_many => at += 1,
                _ => again.push(detached.swap_remove(at)),
            }
        }
    }
    while again.wait(inner).is_some() {}
}

/// Waits a little for the replies that nobody waited for, before the connections end.
pub(crate) fn finish_detached(inner: &Inner) {
    let mut last = Batch::default();
    lock(&inner.session().detached).drain(..).for_each(|call| last.push(call));
    let end = Instant::now() + DETACHED_TIMEOUT;
    while !last.is_empty() && Instant::now() < end {
        if last.poll(inner).is_none() {
            std::thread::sleep(BLOCKED_PAUSE);
        }
    }
}

/// One request, and its reply.
pub(crate) fn ask<R: Request>(inner: &Inner, server: usize, request: &R) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::of(inner, server, request, 0));
    let finished = batch.wait(inner).expect("a request that was pushed ends");
    decode::<R>(inner, server, finished.result)
}

/// One request whose reply may be long in coming: calls `look` every so often meanwhile.
pub(crate) fn ask_looking<R: Request>(
    inner: &Inner,
    server: usize,
    request: &R,
    every: Duration,
    mut look: impl FnMut() -> Result<(), Error>,
) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::of(inner, server, request, 0));
    loop {
        if let Some(finished) = batch.poll(inner) {
            return decode::<R>(inner, server, finished.result);
        }
        sleep_at_most(inner, &[&batch], Some(every));
        look()?;
    }
}

/// The same request, or different ones of one kind, to several servers at once; replies in the order of the requests.
pub(crate) fn ask_all<R: Request>(
    inner: &Inner,
    requests: impl IntoIterator<Item = (usize, R)>,
    patience: Option<Duration>,
) -> Vec<Result<R::Reply, Error>> {
    ask_each(inner, requests, |_, call| match patience {
        Some(patience) => call.patience(patience),
        None => call,
    })
}

/// As [`ask_all`]; `adapt` gets the place of each request, and may change how long it is waited for.
pub(crate) fn ask_each<R: Request>(
    inner: &Inner,
    requests: impl IntoIterator<Item = (usize, R)>,
    adapt: impl Fn(usize, Call) -> Call,
) -> Vec<Result<R::Reply, Error>> {
    let mut batch = Batch::default();
    let mut servers = Vec::new();
    for (tag, (server, request)) in requests.into_iter().enumerate() {
        batch.push(adapt(tag, Call::of(inner, server, &request, tag)));
        servers.push(server);
    }
    let mut replies: Vec<Option<Result<R::Reply, Error>>> = servers.iter().map(|_| None).collect();
    while let Some(finished) = batch.wait(inner) {
        let tag = finished.tag;
        replies[tag] = Some(decode::<R>(inner, servers[tag], finished.result));
    }
    replies.into_iter().map(|reply| reply.expect("every request ends")).collect()
}

/// Reads a reply.
pub(crate) fn decode<R: Request>(
    inner: &Inner,
    server: usize,
    result: Result<Completion, Error>,
) -> Result<R::Reply, Error> {
    greet::answer::<R>(&result?)
        .map_err(|error| error.at_server(inner.session().server(server).describe(None)))
}

thread_local! {
    /// Waits in which this thread does not watch, now and after the next time that it did not help.
    static NOT_WATCHING: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

const NOT_WATCHING_MAX: u32 = 64;

fn watching_helps() -> bool {
    let (left, step) = NOT_WATCHING.get();
    NOT_WATCHING.set((left.saturating_sub(1), step));
    left == 0
}

fn note_watching(helped: bool) {
    let (_, step) = NOT_WATCHING.get();
    let step = if helped { 0 } else { (step * 2).clamp(1, NOT_WATCHING_MAX) };
    NOT_WATCHING.set((step, step));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watching_stops_where_it_does_not_help_and_is_tried_again() {
        NOT_WATCHING.set((0, 0));
        assert!(watching_helps());
        let mut tries = 0;
        for _ in 0..1000 {
            if watching_helps() {
                tries += 1;
                note_watching(false);
            }
        }
        assert!((10..40).contains(&tries), "{tries}");
        note_watching(true);
        assert!(watching_helps() && watching_helps());
    }
}
