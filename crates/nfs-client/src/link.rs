//! The seam to the network: one connection that carries calls and replies. TCP is behind it; RDMA fits, too.

use std::os::fd::RawFd;
use std::rc::Rc;

use crate::incoming::{Memory, Reply};

/// A call as a link sends it.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub xid: u32,
    /// Record mark, header and arguments.
    pub head: Rc<Vec<u8>>,
    /// Data of a WRITE, which follow.
    pub payload: Memory,
    /// Where the data of a READ go.
    pub sink: Memory,
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

    /// Whether something is left to send.
    fn wants_write(&self) -> bool;
}
