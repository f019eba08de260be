//! What a connection is wanted for, and what is known of one on which the handshake is done.

use weft_transport::Link;
use weft_wire::Status;
use weft_wire::messages::{Endpoint, ProveReply, ServerInfo};

use crate::error::{Error, ErrorKind};
use crate::traffic::Traffic;

/// The handshake, done on a connection before anything else.
pub type Greet<'a> = dyn FnMut(&mut dyn Link) -> Result<ProveReply, Error> + 'a;

/// What a connection is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// What it will carry.
    pub traffic: Traffic,
    /// Which of the server's RDMA addresses it is to lead to, if it leads to one; `None`: the one whose turn
    /// it is.
    pub rail: Option<usize>,
}

/// A connection on which the handshake is done.
pub struct Dialled {
    /// The connection.
    pub link: Box<dyn Link>,
    /// What the server said.
    pub proven: ProveReply,
    /// Which of the server's RDMA addresses it leads to; 0 where it leads to none.
    pub rail: usize,
    /// Which of the server's addresses it leads to, if that is known.
    pub endpoint: Option<Endpoint>,
    /// Why not over a faster transport, where one was expected.
    pub fallback: Option<Fallback>,
}

impl Dialled {
    /// A connection over the transport that was asked for.
    pub fn new(link: Box<dyn Link>, proven: ProveReply) -> Dialled {
        Dialled { link, proven, rail: 0, endpoint: None, fallback: None }
    }
}

/// Why a connection is slower than it might be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// In words.
    pub reason: String,
    /// Whether it may be over later, so that the faster transport is worth trying again.
    pub may_mend: bool,
}

/// Makes connections to servers. [`NetworkDial`](super::NetworkDial) is built in; tests and simulations give their own.
pub trait Dial: Send + Sync {
    /// Connects to `server` and calls `greet`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] is tried again for as long as the operation may take; others are final.
    fn dial(&self, server: &ServerInfo, wish: &Wish, greet: &mut Greet<'_>) -> Result<Dialled, Error>;
}

/// Whether the server that answered may be of another cluster: it may have taken the address of one that
/// moved.
pub fn is_of_another_cluster(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Untrusted | ErrorKind::Status(Status::Unauthenticated))
}
