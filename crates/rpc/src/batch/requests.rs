//! The requests of a batch: submitted, moved forward, taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_transport::Completion;
use weft_wire::{Op, Request};

use super::sleep::rest;
use crate::call::{Call, Content, State};
use crate::deadline::{self, Operation};
use crate::dial::is_of_another_cluster;
use crate::error::{Error, ErrorKind};
use crate::greet;
use crate::lane::{Lane, LaneUse};
use crate::rpc::Rpc;
use crate::wait::lock;
use crate::waits;

/// A request that is over.
pub struct Finished {
    /// What it was pushed with.
    pub tag: usize,
    /// The index of the server that was asked.
    pub server: usize,
    /// What was asked.
    pub content: Content,
    /// The reply, or why there is none.
    pub result: Result<Completion, Error>,
}

impl Finished {
    /// Reads the reply to a request of this type.
    ///
    /// # Errors
    /// The request's, or those of a body that is not such a reply. They name the server.
    pub fn decode<R: Request>(self, rpc: &Rpc) -> Result<R::Reply, Error> {
        let server = self.server;
        greet::answer::<R>(&self.result?)
            .map_err(|error| error.at_server(rpc.session().server(server).describe(None)))
    }
}

/// Requests under way together.
#[derive(Default)]
pub struct Batch {
    pub(super) calls: Vec<Call>,
    lanes: Vec<(usize, LaneUse)>,
    /// Much data: watching would take the processor from those who move it.
    pub bulky: bool,
    /// It takes a connection that others use rather than to wait while one is made.
    shares: bool,
    /// When it was last asked whether the wait is to end.
    pub(super) looked_at: Option<Instant>,
    /// Since when the program, which has waited for it, does something else.
    paused_at: Option<Instant>,
}

impl Batch {
    /// One that takes a connection that others use rather than to wait while one is made.
    pub fn sharing() -> Batch {
        let mut batch = Batch::default();
        batch.share();
        batch
    }

    /// From now on it is as one that [`Batch::sharing`] makes.
    pub fn share(&mut self) {
        self.shares = true;
    }

    /// Adds a request.
    pub fn push(&mut self, call: Call) {
        if let Some((lane, ..)) = call.sent()
            && !self.lanes.iter().any(|(_, used)| Arc::ptr_eq(used.lane(), lane))
        {
            self.lanes.push((call.server, LaneUse::new(lane)));
        }
        self.calls.push(call);
    }

    /// Whether all requests are over and taken.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether a request is under way.
    pub fn is_sent(&self) -> bool {
        self.calls.iter().any(|call| call.sent().is_some())
    }

    /// The next request that is over, without waiting for a reply.
    pub fn poll(&mut self, rpc: &Rpc) -> Option<Finished> {
        if let Some(finished) = self.take_done() {
            return Some(finished);
        }
        self.step(rpc);
        self.take_done()
    }

    /// Waits for the next request that is over. `None` when there is none left.
    pub fn wait(&mut self, rpc: &Rpc) -> Option<Finished> {
        if self.is_empty() {
            return None;
        }
        loop {
            if let Some(finished) = self.poll(rpc) {
                return Some(finished);
            }
            rest(&mut [(rpc, &mut *self)]);
        }
    }

    /// Gives requests that were made before the program began to wait for them as much time as new ones have. Where it goes
    /// on with a wait that it paused, they have what was left, and the length of the pause is returned.
    pub fn begin_wait(&mut self, rpc: &Rpc, now: Instant) -> Option<Duration> {
        let Some(paused_at) = self.paused_at.take() else {
            let end = deadline::end(rpc.options.timeout());
            for call in &mut self.calls {
                call.end = call.end.zip(end).map(|(old, new)| old.max(new));
                if let State::Sent { since, .. } = &mut call.state {
                    *since = now;
                }
            }
            return None;
        };
        let paused = now.saturating_duration_since(paused_at);
        for call in &mut self.calls {
            call.end = call.end.map(|end| end + paused);
            if let State::Sent { since, .. } = &mut call.state {
                *since = (*since + paused).min(now);
            }
        }
        Some(paused)
    }

    /// The program stops waiting for a while: that time does not count.
    pub fn pause_wait(&mut self, now: Instant) {
        self.paused_at = Some(now);
    }

    /// Ends what is under way, for the caller waits no longer.
    pub(super) fn interrupt(&mut self, rpc: &Rpc) {
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            if call.is_done() {
                continue;
            }
            // The server must let go of memory that goes back to its owner.
            if let (true, Some((lane, ..))) = (call.lends(), call.sent()) {
                lane.give_up("the wait for a reply was interrupted");
            }
            let server = rpc.session().server(call.server).describe(None);
            let error = Error::new(call.op.name(), ErrorKind::Local(libc::EINTR), "the wait was interrupted");
            let rest = call.leave(error.at_server(server));
            if rest.holds_slot() {
                // Its slot is taken until it is answered.
                lock(rpc.detached()).push(rest);
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
            State::Done(result) => Some(Finished { tag, server, content, result }),
            _ => None,
        }
    }

    /// As [`Batch::poll`], where [`super::progress`] has just received what there was.
    pub fn advance(&mut self, rpc: &Rpc) -> Option<Finished> {
        if let Some(finished) = self.take_done() {
            return Some(finished);
        }
        self.begin_due(rpc);
        self.settle(rpc);
        self.take_done()
    }

    pub(super) fn step(&mut self, rpc: &Rpc) {
        self.begin_due(rpc);
        self.progress();
        self.settle(rpc);
    }

    fn settle(&mut self, rpc: &Rpc) {
        self.calls.iter_mut().for_each(|call| call.settle(rpc));
    }

    fn begin_due(&mut self, rpc: &Rpc) {
        let now = Instant::now();
        // Whom it may take long to connect to comes last.
        for failing in [false, true] {
            for at in 0..self.calls.len() {
                let server = self.calls[at].server;
                if self.calls[at].is_due(now) && rpc.session().server(server).health.is_failing() == failing {
                    self.start(rpc, at);
                }
            }
        }
    }

    fn start(&mut self, rpc: &Rpc, at: usize) {
        let call = &mut self.calls[at];
        let server = call.server;
        let begun = Instant::now();
        let mut part = None;
        if let (Some(_), Some(end)) = (call.hasty, call.end) {
            let left = end.saturating_duration_since(begun);
            if !rpc.session().server(server).health.is_worth_asking(begun, end - call.begun) {
                let cause = "it does not answer others";
                rpc.note_failure(server, begun, cause, false);
                call.state = State::Done(Err(call.timed_out(rpc, cause)));
                return;
            }
            part = Some(Operation::part(left));
        }
        if let Some(version) = call.wanted_map.take() {
            if let Err(error) = rpc.follow_to(version, server) {
                call.state = State::Done(Err(error.of_operation(call.op.name())));
                return;
            }
        } else if call.op != Op::ClusterMap {
            rpc.follow_heard();
        }
        let version = rpc.session().map_version();
        let lane = self.lane(rpc, server);
        let may_have_moved = |error: &Error| {
            !error.is_down() && (error.kind() == ErrorKind::Unreachable || is_of_another_cluster(error))
        };
        if self.calls[at].op != Op::ClusterMap
            && lane.as_ref().is_err_and(may_have_moved)
            && rpc.follow_moved(server, version)
        {
            self.calls[at].state = State::Ready { not_before: None };
            return;
        }
        drop(part);
        match lane {
            Ok(lane) => self.calls[at].start(rpc, &lane),
            Err(error) if error.is_down() => {
                self.calls[at].state = State::Done(Err(error.of_operation(self.calls[at].op.name())));
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.calls[at].failed(rpc, begun, &error.to_string());
            }
            Err(error) => self.calls[at].state = State::Done(Err(error)),
        }
    }

    /// The lane of this batch to a server: the same for all its requests, or where there is much to move, one
    /// over each rail in turn.
    fn lane(&mut self, rpc: &Rpc, server: usize) -> Result<Arc<Lane>, Error> {
        self.lanes.retain(|(_, used)| used.lane().is_alive());
        let rails: Vec<usize> = self.lanes_to(server).map(|lane| lane.rail()).collect();
        let wanted = if self.bulky { rpc.session().server(server).rails() } else { 1 };
        if rails.is_empty() {
            let shared = self.shares.then(|| rpc.share_lane(server)).flatten();
            let used = shared.map_or_else(|| rpc.take_lane(server, self.bulky, None), Ok)?;
            self.lanes.push((server, used));
        } else if let Some(rail) = (0..wanted).find(|rail| !rails.contains(rail))
            && let Ok(another) = rpc.take_lane(server, self.bulky, Some(rail))
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
    pub(super) fn progress(&self) {
        self.lanes_waited_on().for_each(|lane| lane.progress());
    }

    /// Also those on which nothing could be sent, for want of credits: their end has to be noticed.
    pub(super) fn lanes_waited_on(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let waits_on = |server: usize, lane: &Arc<Lane>| {
            let mut sent = self.calls.iter().filter_map(Call::sent);
            let mut unsent = self.calls.iter().filter(|call| call.is_ready_to_send());
            lane.is_ours() && sent.any(|(other, answer, _)| Arc::ptr_eq(lane, other) && !answer.is_ready())
                || lane.is_alive() && unsent.any(|call| call.server == server)
        };
        self.lanes
            .iter()
            .map(|(server, used)| (*server, used.lane()))
            .filter(move |(server, lane)| waits_on(*server, lane))
            .map(|(_, lane)| lane)
    }

    pub(super) fn any_ready(&self) -> bool {
        self.calls.iter().filter_map(Call::sent).any(|(_, answer, _)| answer.is_ready())
    }
}
