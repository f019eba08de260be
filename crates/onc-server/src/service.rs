//! What a server of calls is asked to do.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use weft_onc_rpc::xdr::padding;
use weft_onc_rpc::{CallHeader, Refusal};

use crate::buffers::{Buffer, Buffers};

/// What serves programs.
pub trait Service: 'static {
    /// What a call needs, by its head and as many bytes of its arguments as have come.
    fn needs(&self, header: &CallHeader, arguments: &[u8]) -> Needs;

    /// Answers a call. Calls of one connection run beside each other.
    fn call(self: Rc<Self>, call: Call) -> Pin<Box<dyn Future<Output = Reply>>>;
}

/// What a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// More of the arguments must be there to tell; if they are all there, then nothing.
    More,
    /// This.
    Known {
        /// Where in the arguments bytes are that no decoder has to see.
        payload: Option<Placed>,
        /// Bytes of data that the reply may have.
        reply_bytes: usize,
    },
}

/// A part of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Bytes of the arguments before it.
    pub at: usize,
    /// Its own bytes, without padding.
    pub bytes: usize,
}

impl Placed {
    /// Whether it lies, with its padding, within so many bytes of arguments.
    pub(crate) fn is_within(self, bytes: usize) -> bool {
        let padded = self.bytes.checked_add(padding(self.bytes));
        padded.and_then(|padded| padded.checked_add(self.at)).is_some_and(|end| end <= bytes)
    }
}

/// A call, whole.
#[derive(Debug)]
pub struct Call {
    /// Who has sent it.
    pub peer: SocketAddr,
    /// The connection, a number of its own among all of the process.
    pub connection: u64,
    /// Its head.
    pub header: CallHeader,
    /// Its arguments, without the payload.
    pub arguments: Vec<u8>,
    /// The payload, where [`Needs`] named one.
    pub payload: Option<Buffer>,
    /// Where the data of its reply are best read into.
    pub buffers: Buffers,
}

/// What a call is answered.
#[derive(Debug)]
pub enum Reply {
    /// With results.
    Results(Results),
    /// With why there are none.
    Refused(Refusal),
    /// With nothing.
    Nothing,
}

/// The results of a call: `before`, then `data`, padded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// Encoded, a multiple of four bytes.
    pub before: Vec<u8>,
    /// Sent as they are; the length is in `before`. A client may have said where in its memory it wants them.
    pub data: Buffer,
}

impl From<Vec<u8>> for Reply {
    fn from(before: Vec<u8>) -> Reply {
        Reply::Results(Results { before, data: Buffer::default() })
    }
}
