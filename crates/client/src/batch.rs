//! Requests to any number of servers, driven by the thread that waits for them.
//!
//! ```text
//!   Ready ──submit on a lane──► Sent ──reply──► Done
//!     ▲                           │
//!     └──── pause, new lane ◄─────┘ the connection broke (for at most the retry time; then Done with an error)
//! ```
//!
//! One step submits what is ready, lets every lane in use send and receive, and looks at the answers. Between steps the thread
//! watches for a moment, if the requests are small and watching has helped before, and then sleeps in `poll(2)` on all
//! its lanes at once.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_transport::{Bulk, Completion, LinkError};
use weft_wire::{Header, Op, Request, Status, Wire, flags};

use crate::error::{Error, ErrorKind};
use crate::greet;
use crate::inner::Inner;
use crate::lane::{Lane, LaneUse, NotSent};
use crate::session::SlotLease;
use crate::wait::{Answer, PollSet, Waker, lock};
use crate::window::Share;

const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How soon to look again where a server's credits, or all exactly-once slots, are in others' use.
const BLOCKED_PAUSE: Duration = Duration::from_millis(1);
/// Replies that nobody waits for, before somebody does.
const DETACHED_MAX: usize = 32;
/// How long they are waited for at the end.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// Whether a server may have got it already.
    sent_before: bool,
    failing_since: Option<Instant>,
    pause: Duration,
    patience: Duration,
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
            sent_before: false,
            failing_since: None,
            pause: Duration::ZERO,
            patience: Duration::from_millis(inner.options.retry_timeout_ms),
        }
    }

    /// With a message.
    pub(crate) fn of<R: Request>(inner: &Inner, server: usize, request: &R, tag: usize) -> Call {
        Call::new(inner, server, R::OP, Content::Message(request.to_bytes()), tag)
    }

    /// Goes on trying only so long.
    pub(crate) fn patience(mut self, patience: Duration) -> Call {
        self.patience = patience;
        self
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
        let header = Header { slot, flags: retry, ..Header::request(self.op, request_id) };
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
        let now = Instant::now();
        let since = *self.failing_since.get_or_insert(now);
        let failing = now.duration_since(since);
        if failing >= self.patience {
            let text = format!("it did not come back within {} ms; last: {cause}", failing.as_millis());
            let error = Error::new(self.op.name(), ErrorKind::Unreachable, text);
            let server = inner.session().server(self.server).describe(None);
            self.state = State::Done(Err(error.at_server(server)));
            return;
        }
        let pause = self.pause.min(self.patience - failing);
        self.state = State::Ready { not_before: (!pause.is_zero()).then(|| now + pause) };
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
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
            Some(Ok(completion)) => {
                let server = &lane.clone();
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

    /// Turns a refusal into an error that names the server.
    fn check(&self, inner: &Inner, lane: &Lane, completion: Completion) -> Result<Completion, Error> {
        if completion.header.status == Status::Ok {
            return Ok(completion);
        }
        let detail = weft_wire::messages::ErrorDetail::from_bytes(&completion.body);
        let kind = ErrorKind::Status(completion.header.status);
        let error = Error::new(self.op.name(), kind, detail.map(|detail| detail.text).unwrap_or_default());
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

    fn take_done(&mut self) -> Option<Finished> {
        let at = self.calls.iter().position(Call::is_done)?;
        let Call { tag, content, state, .. } = self.calls.swap_remove(at);
        match state {
            State::Done(result) => Some(Finished { tag, content, result }),
            _ => None,
        }
    }

    fn step(&mut self, inner: &Inner) {
        let now = Instant::now();
        for at in 0..self.calls.len() {
            if self.calls[at].is_due(now) {
                self.start(inner, at);
            }
        }
        self.progress();
        self.calls.iter_mut().for_each(|call| call.settle(inner));
    }

    fn start(&mut self, inner: &Inner, at: usize) {
        let server = self.calls[at].server;
        match self.lane(inner, server) {
            Ok(lane) => self.calls[at].start(inner, &lane),
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.calls[at].later(inner, &error.to_string());
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

    fn sleep(&self, inner: &Inner) {
        sleep_on(inner, &[self]);
    }

    /// Whom to wake for this batch's answers, and when to look again at the latest.
    fn prepare_sleep(&self, waker: &Arc<Waker>, now: Instant, reply_timeout: Duration) -> Instant {
        let mut wake_at = now + reply_timeout;
        for call in &self.calls {
            match &call.state {
                State::Sent { answer, since, .. } => {
                    answer.wake_on_ready(waker);
                    wake_at = wake_at.min(*since + reply_timeout);
                }
                State::Ready { not_before } => wake_at = wake_at.min(not_before.unwrap_or(now)),
                State::Done(_) => wake_at = now,
            }
        }
        wake_at
    }

    /// Gives up connections whose servers have been silent for too long.
    fn cut_silent(&self, reply_timeout: Duration) {
        for (lane, answer, since) in self.calls.iter().filter_map(Call::sent) {
            if !answer.is_ready() && since.elapsed() > reply_timeout {
                lane.give_up(&format!("no answer for {} ms", reply_timeout.as_millis()));
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

/// Sleeps until something may have happened to one of the batches.
pub(crate) fn sleep_on(inner: &Inner, batches: &[&Batch]) {
    sleep_at_most(inner, batches, None);
}

/// As [`sleep_on`], for so long at most.
fn sleep_at_most(inner: &Inner, batches: &[&Batch], longest: Option<Duration>) {
    let waker = Waker::current();
    let now = Instant::now();
    let reply_timeout = Duration::from_millis(inner.options.reply_timeout_ms);
    let wake_times = batches.iter().map(|batch| batch.prepare_sleep(&waker, now, reply_timeout));
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
    batches.iter().for_each(|batch| batch.cut_silent(reply_timeout));
}

impl Drop for Batch {
    /// Memory of requests that are under way must not be given back to its owner before they are over.
    fn drop(&mut self) {
        let lends = |call: &Call| match call.sent() {
            Some((lane, answer, _)) => {
                matches!(call.content, Content::Share(_)) && lane.is_ours() && !answer.is_ready()
            }
            None => false,
        };
        while self.calls.iter().any(lends) {
            self.progress();
            self.lanes_waited_on().for_each(|lane| lane.prepare_sleep());
            if !self.calls.iter().any(lends) {
                return;
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
    let mut batch = Batch::default();
    let mut servers = Vec::new();
    for (tag, (server, request)) in requests.into_iter().enumerate() {
        let call = Call::of(inner, server, &request, tag);
        batch.push(match patience {
            Some(patience) => call.patience(patience),
            None => call,
        });
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
