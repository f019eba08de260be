//! Requests to any number of servers, driven by the thread that waits for them.
//!
//! A server that says nothing is asked whether it lives, on the same connection. One that does may take its time.
//!
//! One step submits what is ready, lets every lane in use send and receive, and looks at the replies. Between steps the
//! thread busy-polls for a moment, if the requests are small and that has helped before, and then sleeps in `poll(2)` on
//! all its lanes at once (`sleep.rs`).

mod ask;
mod detached;
mod sleep;

pub use ask::{ask, ask_all, ask_each, ask_looking, decode};
pub use detached::{finish_detached, reap};
pub use sleep::rest;

use std::sync::Arc;
use std::time::Instant;

use weft_transport::Completion;
use weft_wire::Op;

use crate::call::{Call, Content, State};
use crate::deadline::{self, Operation};
use crate::dial::is_of_another_cluster;
use crate::error::{Error, ErrorKind};
use crate::lane::{Lane, LaneUse};
use crate::rpc::Rpc;
use crate::wait::lock;
use crate::waits;

/// A request that is over.
pub struct Finished {
    /// What it was pushed with.
    pub tag: usize,
    /// What was asked.
    pub content: Content,
    /// The reply, or why there is none.
    pub result: Result<Completion, Error>,
}

/// Requests under way together.
#[derive(Default)]
pub struct Batch {
    calls: Vec<Call>,
    lanes: Vec<(usize, LaneUse)>,
    /// Much data: watching would take the processor from those who move it.
    pub bulky: bool,
    /// When it was last asked whether the wait is to end.
    looked_at: Option<Instant>,
}

impl Batch {
    /// Adds a request.
    pub fn push(&mut self, call: Call) {
        if let Some((lane, ..)) = call.sent() {
            self.lanes.push((call.server, LaneUse::new(lane)));
        }
        self.calls.push(call);
    }

    /// Whether all requests are over and taken.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The next request that is over, without waiting.
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

    /// Gives requests that were made before the program began to wait for them as much time as new ones have.
    pub fn begin_wait(&mut self, rpc: &Rpc) {
        let (now, end) = (Instant::now(), deadline::end(rpc.options.timeout()));
        for call in &mut self.calls {
            call.end = call.end.zip(end).map(|(old, new)| old.max(new));
            if let State::Sent { since, .. } = &mut call.state {
                *since = now;
            }
        }
    }

    /// Ends what is under way, for whoever waits for it does so no longer.
    fn interrupt(&mut self, rpc: &Rpc) {
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            if call.is_done() {
                continue;
            }
            // The server must let go of memory that goes back to its owner.
            if let (true, Some((lane, ..))) = (call.lends(), call.sent()) {
                lane.give_up("whoever waited for an answer was interrupted");
            }
            let server = rpc.session().server(call.server).describe(None);
            let error = Error::new(call.op.name(), ErrorKind::Local(libc::EINTR), "the wait was interrupted");
            let rest = call.leave(error.at_server(server));
            if matches!(rest.state, State::Sent { .. }) && !rest.op.idempotent() {
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
            State::Done(result) => Some(Finished { tag, content, result }),
            _ => None,
        }
    }

    fn step(&mut self, rpc: &Rpc) {
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
        self.progress();
        self.calls.iter_mut().for_each(|call| call.settle(rpc));
    }

    fn start(&mut self, rpc: &Rpc, at: usize) {
        let call = &mut self.calls[at];
        let server = call.server;
        let begun = Instant::now();
        let mut part = None;
        if let (true, Some(end)) = (call.hasty, call.end) {
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

    /// The lane of this batch to a server: the same for all its requests, or where there is much to move, one over each rail in
    /// turn.
    fn lane(&mut self, rpc: &Rpc, server: usize) -> Result<Arc<Lane>, Error> {
        self.lanes.retain(|(_, used)| used.lane().is_alive());
        let rails: Vec<usize> = self.lanes_to(server).map(|lane| lane.rail()).collect();
        let wanted = if self.bulky { rpc.session().server(server).rails() } else { 1 };
        if rails.is_empty() {
            self.lanes.push((server, rpc.take_lane(server, self.bulky, None)?));
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
}
