//! The seam to the network: one connection that carries calls and replies. TCP and RDMA are behind it.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::incoming::{Memory, Reply};
use crate::rdma::RdmaStatus;

/// Bytes of a reply of the usual kind at most, without data: handles, attributes, numbers.
pub(crate) const REPLY_BYTES_USUAL: usize = 512;

/// What of a call is not in its head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    /// Data of a WRITE, which follow the head.
    pub payload: Memory,
    /// Where the data of a READ go.
    pub sink: Memory,
    /// The reply has so many bytes at most, without data of a READ.
    pub reply_bytes_max: usize,
}

impl Data {
    /// Of a call without data whose reply is of the usual kind.
    pub(crate) const NONE: Data =
        Data { payload: Memory::NONE, sink: Memory::NONE, reply_bytes_max: REPLY_BYTES_USUAL };

    /// Of a call without data whose reply has besides the usual so many bytes at most.
    pub(crate) fn with_reply(bytes: usize) -> Data {
        Data { reply_bytes_max: REPLY_BYTES_USUAL + bytes, ..Data::NONE }
    }
}

/// A call as a link sends it.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub xid: u32,
    /// Header and arguments.
    pub head: Rc<Vec<u8>>,
    pub data: Data,
}

/// Why a connection is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    pub why: String,
    /// The server sent what no server sends.
    pub is_garbage: bool,
}

impl Lost {
    pub(crate) fn new(why: impl Into<String>) -> Lost {
        Lost { why: why.into(), is_garbage: false }
    }
}

/// One connection. No method waits.
pub(crate) trait Link {
    /// Takes a call, to be sent with the next [`Link::send`].
    ///
    /// # Safety
    /// The payload stays readable and the sink writable until the reply is given, the call is cancelled or the link dropped.
    unsafe fn submit(&mut self, message: Message);

    /// Sends what can be sent.
    fn send(&mut self) -> Result<(), Lost>;

    /// Adds replies that have come; whether anything has come.
    fn receive(&mut self, replies: &mut Vec<Reply>) -> Result<bool, Lost>;

    /// Nobody waits for this call. Its memory is not touched from here on.
    fn cancel(&mut self, xid: u32);

    /// What to wait for.
    fn fd(&self) -> RawFd;

    /// Whether something is left to send, for which the descriptor becomes writable.
    fn wants_write(&self) -> bool;

    /// Whether there is something to do without waiting for the descriptor.
    fn is_ready(&self) -> bool {
        false
    }
}

/// What beginning a connection has led to.
pub(crate) enum Begun {
    /// It is made.
    Made(Box<dyn Link>),
    /// It is being made.
    Connecting(Box<dyn Connecting>),
}

/// A connection that is being made.
pub(crate) trait Connecting {
    /// What becomes writable when it is made, or cannot be.
    fn fd(&self) -> RawFd;

    /// The connection, if it is made; `None` if that is not known. Does not wait.
    fn finish(&mut self) -> Option<Result<Box<dyn Link>, Lost>>;
}

/// How connections are made.
pub(crate) trait Way {
    /// Begins one. Over RDMA this waits, about `patience` at most.
    fn begin(&mut self, address: SocketAddr, patience: Duration) -> Result<Begun, Lost>;

    /// RDMA of the connections that were made.
    fn rdma_status(&self) -> Option<RdmaStatus> {
        None
    }
}
