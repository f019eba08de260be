//! What a server process offers on its connections: [`Service`], which `accept` and `session` are generic
//! over.
//!
//! ```text
//!   accept ─► session: greeting, requests, replies ─► Service::dispatch ─┬─ IoService    io/    file bytes
//!                │                                                       └─ MetaService  meta/  names and attributes
//!                └──────────► Node: identity, counters, limits of connections, requests under way, stop
//! ```
//!
//! A service has one table from operations to functions. It is a match without a wildcard: a new operation
//! does not compile before each service has decided about it. What every service needs is in its [`Node`].
//!
//! A service of another protocol (NFS) brings its own session code, which reads that protocol's messages from
//! an accepted socket. It shares the rest: the turns of the threads in `accept`, and the [`Node`] with its
//! limits of connections, counters, table of requests under way, and stop.

use crate::answer::{Answer, Refusal};
use crate::identity::Session;
use crate::node::Node;
use std::rc::Rc;
use weft_transport::ServerBulk;
use weft_wire::{Header, Op};

/// One thread's view of what a server offers.
pub(crate) trait Service: Sized + 'static {
    /// What it shares with every other service.
    fn node(&self) -> &Rc<Node>;

    /// Whether a connection should take its next requests while one of this operation is under way.
    fn may_wait(&self, op: Op) -> bool;

    /// Does a request.
    async fn dispatch<B: ServerBulk>(
        &self,
        session: &Session,
        header: &Header,
        body: &[u8],
        bulk: &mut B,
    ) -> Result<Answer, Refusal>;

    /// Notes a proven connection; [`Service::disconnected`] is its end. Returns the epoch for the client.
    fn connected(&self, _session: &Session) -> u64 {
        self.node().shared.epoch
    }

    /// See [`Service::connected`]. `is_ended`: the client's host has closed the connection in order
    /// ([`ConnError::Ended`](weft_transport::ConnError::Ended)).
    fn disconnected(&self, _session: &Session, _is_ended: bool) {}

    /// See [`ProveReply::loss_epoch`](weft_wire::messages::ProveReply::loss_epoch).
    fn loss_epoch(&self) -> u64 {
        0
    }

    /// The server is to stop: ends what requests under way wait for.
    fn stop(&self) {}
}
