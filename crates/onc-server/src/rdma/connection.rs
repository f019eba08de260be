//! A connection over RDMA: what arrives, and a task for each call.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_onc_rpc::rdma::{
    Body, Chunks, INLINE_BYTES_DEFAULT, PrivateData, RdmaError, RdmaHeader, RdmaRefusal,
};
use weft_rdma::{CLOSE_TIMEOUT, Channel, Connection, Ended, Protocol, Refusal};
use weft_reactor::{Notify, sleep, spawn, timeout};
use weft_verbs::{Fabric, WorkKind};

use super::MESSAGE_BYTES;
use super::credits::Credits;
use super::exposed::Exposer;
use super::options::{RdmaDesign, RdmaOptions};
use crate::buffers::Buffers;
use crate::counts::{ExposedCounters, add};
use crate::limits::Limits;
use crate::server::{Inner, Member, first_of};
use crate::service::Service;

/// The protocol, as a port knows it.
pub(super) struct RpcOverRdma {
    /// Calls of one connection that may be under way.
    pub(super) calls_max: u32,
    pub(super) options: RdmaOptions,
    /// Bytes of its replies that may be exposed.
    pub(super) exposed_bytes_max: usize,
    pub(super) exposed: Rc<ExposedCounters>,
}

/// What a client has said of itself, or what counts for one that has said nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    /// The longest message that it takes.
    pub(super) message_bytes: usize,
    /// Replies may end the validity of its keys.
    pub(super) takes_invalidation: bool,
}

impl Said {
    /// From the private data of its request.
    pub(super) fn of(private_data: &[u8]) -> Said {
        let said = PrivateData::decode(private_data);
        let receive_bytes = said.map_or(INLINE_BYTES_DEFAULT, |said| said.receive_bytes);
        Said {
            message_bytes: MESSAGE_BYTES.min(receive_bytes as usize),
            takes_invalidation: said.is_some_and(|said| said.takes_invalidation),
        }
    }
}

impl<F: Fabric> Protocol<F> for RpcOverRdma {
    type Asked = Said;
    type Connection = RdmaConnection<F>;

    fn reads_in(&self) -> u8 {
        match self.options.design {
            RdmaDesign::ReadWrite => 0,
            RdmaDesign::ReadRead => u8::MAX,
        }
    }

    fn accept(&self, channel: Channel<F>, said: Said) -> (Rc<RdmaConnection<F>>, Vec<u8>) {
        let bytes = MESSAGE_BYTES as u32;
        let own = PrivateData { takes_invalidation: true, send_bytes: bytes, receive_bytes: bytes };
        let RdmaOptions { design, memory } = self.options;
        let credits = Credits::new(calls_in(channel.window(), design).min(self.calls_max));
        let (bytes_max, exposed) = (self.exposed_bytes_max, self.exposed.clone());
        let connection = RdmaConnection {
            channel,
            said,
            design,
            exposer: Exposer::new(memory, bytes_max, credits.told(), exposed),
            calls_max: self.calls_max,
            credits: Rc::new(RefCell::new(credits)),
            arrived: RefCell::default(),
            news: Notify::new(),
            is_closing: Cell::new(false),
            broken: Cell::new(None),
        };
        (Rc::new(connection), own.to_bytes().to_vec())
    }

    fn refuse(&self, _why: Refusal) -> Vec<u8> {
        Vec::new()
    }
}

/// Calls for which a window of receives is enough: where a client tells that it has read a reply, each takes two.
fn calls_in(window: u32, design: RdmaDesign) -> u32 {
    match design {
        RdmaDesign::ReadWrite => window,
        RdmaDesign::ReadRead => window / 2,
    }
}

/// A connection, around its channel.
pub(super) struct RdmaConnection<F: Fabric> {
    pub(super) channel: Channel<F>,
    pub(super) said: Said,
    design: RdmaDesign,
    pub(super) exposer: Exposer<F>,
    calls_max: u32,
    credits: Rc<RefCell<Credits>>,
    arrived: RefCell<VecDeque<Arrived>>,
    news: Notify,
    /// Nothing that arrives is taken any more.
    is_closing: Cell<bool>,
    /// How its peer has broken the protocol.
    broken: Cell<Option<&'static str>>,
}

/// A message that wants an answer.
pub(super) struct Arrived {
    pub(super) xid: u32,
    /// Calls that its sender wants to have under way.
    pub(super) wanted: u32,
    /// What it is, or how it is answered that it was not understood.
    pub(super) what: Result<Message, RdmaError>,
    pub(super) credit: Credit,
    bytes: usize,
}

/// A call, in part perhaps still in the client's memory.
pub(super) struct Message {
    pub(super) chunks: Chunks,
    /// Nothing of it is inline.
    pub(super) is_long: bool,
    pub(super) inline: Vec<u8>,
}

/// A call that counts as under way until this is dropped.
pub(super) struct Credit {
    credits: Rc<RefCell<Credits>>,
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.credits.borrow_mut().end();
    }
}

impl<F: Fabric> Connection<F> for RdmaConnection<F> {
    fn channel(&self) -> &Channel<F> {
        &self.channel
    }

    fn received(&self, _kind: WorkKind, message: &[u8]) {
        if self.is_closing.get() {
            return;
        }
        match self.take(message) {
            Ok(Some(arrived)) => self.arrived.borrow_mut().push_back(arrived),
            Ok(None) => {}
            Err(how) => self.break_off(how),
        }
        self.news.notify();
    }

    fn receives_posted(&self) {
        self.channel.adjust_window(self.credits.borrow().under_way() + self.exposer.count());
    }

    fn failed(&self) {
        self.news.notify();
    }

    fn ending(&self) {
        self.exposer.end();
    }
}

impl<F: Fabric> RdmaConnection<F> {
    /// A message; `None` if it wants no answer.
    ///
    /// # Errors
    /// How its sender breaks the protocol.
    fn take(&self, message: &[u8]) -> Result<Option<Arrived>, &'static str> {
        let (xid, wanted, what) = match RdmaHeader::decode(message) {
            Ok((RdmaHeader { xid, credits, body }, header_bytes)) => {
                let (chunks, is_long) = match body {
                    Body::Message(chunks) => (chunks, false),
                    Body::NoMessage(chunks) => (chunks, true),
                    Body::Done if self.exposes() && !self.exposer.done(xid) => {
                        return Err("it has read a reply that was not exposed (RDMA_DONE)");
                    }
                    // Else of no use for a server that exposes nothing and calls nobody.
                    Body::Done | Body::Error(_) => return Ok(None),
                };
                (xid, credits, Ok(Message { chunks, is_long, inline: message[header_bytes..].to_vec() }))
            }
            Err(RdmaRefusal::Error { xid, error }) => (xid, 1, Err(error)),
            Err(RdmaRefusal::Nothing) => return Err("it sends a message that has no header"),
        };
        self.credits.borrow_mut().begin().map_err(|_| "it sends more calls than it was granted")?;
        let credit = Credit { credits: self.credits.clone() };
        Ok(Some(Arrived { xid, wanted, what, credit, bytes: message.len() }))
    }

    /// Ends the connection: its peer breaks the protocol.
    pub(super) fn break_off(&self, how: &'static str) {
        self.broken.set(Some(how));
        self.channel.fail(Ended::Broken(how.into()));
    }

    /// Replies that have no room are exposed.
    pub(super) fn exposes(&self) -> bool {
        self.design == RdmaDesign::ReadRead
    }

    /// What a reply grants a client that wants so many calls under way.
    pub(super) fn grant(&self, wanted: u32) -> u32 {
        let room = calls_in(self.channel.window(), self.design).min(self.calls_max);
        let mut credits = self.credits.borrow_mut();
        let told = credits.told();
        let granted = credits.grant(wanted, room);
        self.exposer.turns.add((credits.told() - told) as usize);
        granted
    }

    /// The next message; `None` once the connection has ended.
    async fn next(&self) -> Option<Arrived> {
        loop {
            if self.channel.is_over() {
                return None;
            }
            if let Some(arrived) = self.arrived.borrow_mut().pop_front() {
                return Some(arrived);
            }
            self.news.notified().await;
        }
    }

    fn outcome(&self) -> io::Result<()> {
        match (self.broken.get(), self.channel.ended()) {
            (Some(how), _) => Err(io::Error::new(io::ErrorKind::InvalidData, how)),
            (None, Ended::Closed) => Ok(()),
            (None, Ended::Broken(cause)) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, cause)),
        }
    }
}

/// A connection that is served.
pub(super) struct Session<F: Fabric, S> {
    pub(super) inner: Rc<Inner<S>>,
    pub(super) connection: Rc<RdmaConnection<F>>,
    pub(super) member: Rc<Member>,
    pub(super) buffers: Buffers,
}

impl<F: Fabric, S: Service> Session<F, S> {
    /// Serves it to its end.
    ///
    /// # Errors
    /// Why it has ended, if its peer has not closed it.
    pub(super) async fn serve(self: Rc<Self>) -> io::Result<()> {
        let channel = &self.connection.channel;
        let dismissed = first_of(self.inner.stopping.wait(), self.member.leaves.wait());
        first_of(self.take_calls(), first_of(dismissed, self.look_after_exposed())).await;
        self.connection.is_closing.set(true);
        let dropped = self.connection.arrived.take();
        drop(dropped);
        // What is under way is still done, and answered if anybody takes it.
        let _all = self.member.calls.acquire(self.inner.limits.calls_per_connection).await;
        let _ = timeout(CLOSE_TIMEOUT, channel.work_ended(channel.posted())).await;
        let outcome = self.connection.outcome();
        channel.fail(Ended::Closed);
        if self.connection.exposes() {
            self.connection.exposer.ended.wait().await;
        }
        outcome
    }

    /// Ends keys of replies that were read, and the connection of a client that does not read.
    async fn look_after_exposed(&self) {
        if !self.connection.exposes() {
            return std::future::pending().await;
        }
        let ending = self.connection.exposer.end_windows(&self.connection.channel);
        first_of(ending, self.reads_too_slowly()).await;
    }

    /// Returns when a reply was exposed for too long, and the connection is broken off.
    async fn reads_too_slowly(&self) {
        let Limits { stall, stall_when_scarce, .. } = self.inner.limits;
        loop {
            sleep(stall.min(stall_when_scarce) / 2).await;
            let waited = self.connection.exposer.oldest().map_or(Duration::ZERO, |since| since.elapsed());
            let is_scarce = self.inner.memory.waiting() > 0;
            if waited >= stall || (is_scarce && waited >= stall_when_scarce) {
                return self.connection.break_off("it does not say that it has read a reply (RDMA_DONE)");
            }
        }
    }

    async fn take_calls(self: &Rc<Self>) {
        while let Some(arrived) = self.connection.next().await {
            let turn = self.member.calls.acquire(1).await;
            self.member.silent_since.set(None);
            add(&self.inner.counters.received_bytes, arrived.bytes);
            let session = self.clone();
            spawn(async move {
                // Where the connection has ended, nobody waits for an answer.
                let _ = session.answer(arrived).await;
                drop(turn);
                if session.connection.credits.borrow().under_way() == 0 {
                    session.member.silent_since.set(Some(Instant::now()));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_taken_at_its_word_and_else_as_the_rfc_has_it() {
        let silent = Said { message_bytes: 1024, takes_invalidation: false };
        assert_eq!(Said::of(b""), silent);
        assert_eq!(Said::of(&[0; 56]), silent);
        let said = PrivateData { takes_invalidation: true, send_bytes: 1 << 16, receive_bytes: 1 << 16 };
        let taken = Said { message_bytes: MESSAGE_BYTES, takes_invalidation: true };
        assert_eq!(Said::of(&said.to_bytes()), taken, "no more than is sent here");
        let small = PrivateData { receive_bytes: 2048, ..said };
        assert_eq!(Said::of(&small.to_bytes()).message_bytes, 2048);
    }
}
