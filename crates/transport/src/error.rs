//! What goes wrong between two peers: each error says what happened, with whom, and what to do.

use std::io;

use weft_wire::messages::ErrorDetail;
use weft_wire::{Header, HeaderError, Op, Status, VERSIONS, body};

use crate::registration::error::PinError;

/// Why the bytes of a stream are not messages that may be taken.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream ended between two messages.
    #[error("the peer closed the connection")]
    Closed,
    /// The stream ended inside a message.
    #[error("the connection ended in the middle of a message")]
    Truncated,
    /// The fixed part is not a header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A length is beyond what the receiver allows at this point.
    #[error("a message announces {bytes} bytes of {part}, at most {bytes_max} are allowed here")]
    TooBig {
        /// "body" or "payload".
        part: &'static str,
        /// Announced.
        bytes: u64,
        /// Allowed.
        bytes_max: u64,
        /// The message.
        header: Box<Header>,
    },
    /// A message of a kind, or with a flag, that this end of this transport never receives.
    #[error("a message that does not belong here: {what}")]
    Misplaced {
        /// What it is.
        what: &'static str,
        /// The message.
        header: Box<Header>,
    },
    /// What came over RDMA is no part of a message.
    #[error("what came is no part of a message: {0}")]
    Parts(&'static str),
    /// The system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl FrameError {
    /// What the peer is told before its connection is cut, where it can be told: header and body of a reply.
    pub(crate) fn refusal(&self) -> Option<(Header, Vec<u8>)> {
        let header = match self {
            FrameError::Header(HeaderError::Unknown { version, request_id, .. }) => {
                let known = (VERSIONS.0..=VERSIONS.1).contains(version);
                let status = if known { Status::Unsupported } else { Status::Version };
                Header::request(Op::Ping, *request_id).reply(status)
            }
            FrameError::TooBig { header, .. } => header.reply(Status::TooBig),
            FrameError::Misplaced { header, .. } => header.reply(Status::Malformed),
            _ => return None,
        };
        Some((header, body::encode(&ErrorDetail { text: self.to_string() })))
    }
}

/// What a client's link reports.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection came about.
    #[error("cannot connect to {peer}: {source}; check that the server runs and that its address is right")]
    Connect {
        /// The server.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// The link had failed before; it has to be made anew.
    #[error("the connection to {peer} is closed; connect again")]
    Closed {
        /// The server.
        peer: String,
    },
    /// The connection broke, or what came over it is no message.
    #[error("the connection to {peer} failed: {source}")]
    Stream {
        /// The server.
        peer: String,
        /// Why.
        source: FrameError,
    },
    /// The server sent something that fits no request.
    #[error("{peer} broke the protocol: {what}; its software may be of another version")]
    Protocol {
        /// The server.
        peer: String,
        /// What it did.
        what: &'static str,
    },
    /// All credits are in use: wait for a completion, then submit again.
    #[error("{peer} has as many requests under way as it allows; wait for one to complete")]
    NoCredit {
        /// The server.
        peer: String,
    },
    /// More than one request may move over this link.
    #[error(
        "a request of {bytes} bytes is larger than the {bytes_max} that fit one request to {peer}; cut it"
    )]
    TooLarge {
        /// The server.
        peer: String,
        /// Asked for.
        bytes: u64,
        /// Most.
        bytes_max: u64,
    },
    /// The list of memory pieces makes no sense.
    #[error("bad list of memory pieces: {0}")]
    Memory(#[from] RunsError),
    /// The request cannot be sent as it is.
    #[error("a request to {peer} cannot be sent: {what}")]
    Request {
        /// The server.
        peer: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The server did not answer while the link was set up.
    #[error("{peer} did not answer within {timeout_ms} ms while the connection was set up")]
    SetUpTimeout {
        /// The server.
        peer: String,
        /// How long the client waited.
        timeout_ms: u64,
    },
    /// The memory of a request cannot be made known to the adapter.
    #[error("a request to {peer} cannot be sent: {source}")]
    Register {
        /// The server.
        peer: String,
        /// Why not.
        source: Box<PinError>,
    },
    /// A local resource is missing.
    #[error("cannot {what}: {source}")]
    Local {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl LinkError {
    /// Whether the link can no longer be used; the other errors concern one request that was not taken.
    pub fn is_fatal(&self) -> bool {
        match self {
            LinkError::Connect { .. }
            | LinkError::Closed { .. }
            | LinkError::Stream { .. }
            | LinkError::Protocol { .. }
            | LinkError::SetUpTimeout { .. } => true,
            LinkError::NoCredit { .. }
            | LinkError::TooLarge { .. }
            | LinkError::Memory(_)
            | LinkError::Request { .. }
            | LinkError::Register { .. }
            | LinkError::Local { .. } => false,
        }
    }
}

/// What a server's end of a connection reports.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The client went away between two messages, or [`close`](crate::ServerConn::close) was called.
    #[error("{peer} closed the connection")]
    Closed {
        /// The client.
        peer: String,
    },
    /// The client's host closed a TCP connection in order, between two messages: nobody has it any more. A client that gives
    /// it up and goes on resets it instead ([`Link::give_up`](crate::Link::give_up)).
    #[error("{peer} has ended")]
    Ended {
        /// The client.
        peer: String,
    },
    /// The connection broke, or what came over it is no message; it is cut.
    #[error("the connection of {peer} was cut: {source}")]
    Stream {
        /// The client.
        peer: String,
        /// Why.
        source: FrameError,
    },
    /// A message or unit began and made no progress for so long; the connection is cut.
    #[error("{peer} was cut off: no progress in the middle of a message for {timeout_ms} ms")]
    Stalled {
        /// The client.
        peer: String,
        /// How long.
        timeout_ms: u64,
    },
    /// The kernel refused to reach the client's memory.
    #[error(
        "the memory that {peer} named cannot be reached: {source}; its buffer is not mapped or not writable"
    )]
    ClientMemory {
        /// The client.
        peer: String,
        /// Why.
        source: io::Error,
    },
    /// Bytes outside of what the request holds or describes.
    #[error("{peer} described {bytes} bytes of memory, but {end} are needed for its request")]
    Range {
        /// The client.
        peer: String,
        /// Described or streamed.
        bytes: u64,
        /// End of what was to be moved.
        end: u64,
    },
    /// The handler does what this transport cannot do (it says beforehand what it can).
    #[error("the connection of {peer} cannot {what}")]
    Mechanism {
        /// The client.
        peer: String,
        /// What was tried.
        what: &'static str,
    },
}

/// Why a list of memory pieces is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RunsError {
    /// A piece lies beyond the end of the address space.
    #[error("a piece wraps around the address space")]
    Overflow,
    /// All pieces together are more than one request may move.
    #[error("the pieces hold {0} bytes, more than one request may move")]
    TooLong(u128),
    /// More runs than one request may describe.
    #[error("{0} runs of pieces are more than one request may describe; cut the request")]
    TooMany(usize),
    /// A segment that was not made known, or was dropped.
    #[error("segment {0} is not known on this connection")]
    UnknownSegment(u16),
    /// A piece lies in memory that the adapter does not know.
    #[error("a piece lies outside of the memory that is registered for its request")]
    NotRegistered,
    /// A piece does not lie inside its segment.
    #[error("a piece lies outside of segment {0}")]
    OutsideSegment(u16),
}
