//! What stands above a port.

use std::rc::Rc;

use weft_verbs::{Fabric, WorkKind};

use crate::channel::Channel;

/// What a peer says when it asks for a connection, checked by whoever listens: a stranger is sent away before
/// it costs a queue pair.
pub trait Check: Clone + Send + 'static {
    /// What was said, understood and found right. It may move to another thread, which accepts the
    /// connection.
    type Asked: Send + 'static;

    /// Checks the private data of a connection request, which the connection manager may have padded with
    /// zeros.
    ///
    /// # Errors
    /// The private data of the refusal, at most 148 bytes.
    fn check(&self, said: &[u8]) -> Result<Self::Asked, Vec<u8>>;
}

/// Why a port takes no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No receives or queues are left.
    Full,
    /// Something failed here.
    Failed,
}

/// A protocol on the thread that takes connections for it.
pub trait Protocol<F: Fabric> {
    /// See [`Check::Asked`].
    type Asked;
    /// Its part of a connection.
    type Connection: Connection<F>;

    /// RDMA Reads of each peer that are served at once: 0, if peers get no keys to memory of this process.
    fn reads_in(&self) -> u8;

    /// Makes the state of a connection, around the channel, and the private data of the acceptance (at most
    /// 196 bytes). The channel has a queue pair; [`Channel::window`] receives may be promised.
    fn accept(&self, channel: Channel<F>, asked: Self::Asked) -> (Rc<Self::Connection>, Vec<u8>);

    /// The private data of a refusal, at most 148 bytes.
    fn refuse(&self, why: Refusal) -> Vec<u8>;
}

/// A protocol's part of a connection, around the [`Channel`] that the port drives. All calls come from the
/// port's task, between two awaits of others; they must not wait.
///
/// The channel is the first field of what implements this: memory of work outlives it.
pub trait Connection<F: Fabric>: 'static {
    /// The part below.
    fn channel(&self) -> &Channel<F>;

    /// A message has arrived, or an RDMA Write with immediate data or a Send with Invalidate (`kind` says
    /// which). The bytes are gone when this returns: the receive is posted again.
    fn received(&self, kind: WorkKind, message: &[u8]);

    /// The receives of all that [`Connection::received`] took until now are posted again: credits for them
    /// may be granted.
    fn receives_posted(&self) {}

    /// Work has ended since [`Port::try_later`](crate::Port::try_later) was called for this connection.
    fn try_again(&self) {}

    /// The connection has failed or was closed ([`Channel::ended`] says why): tasks that wait for messages or
    /// credits wake and find out. Called once.
    fn failed(&self) {}

    /// The queue pair is about to go, with no work under way: keys that were given out end now.
    fn ending(&self) {}
}
