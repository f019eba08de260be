//! A server's end of one connection: Weft's messages on a [`Channel`](weft_rdma::Channel).
//!
//! ```text
//!   received ─► parts ─► arrived ─► recv ─► handler ── bulk.put / bulk.get ──► Channel::transfer
//!                                           handler ── reply ──► [deferred Writes ▸ Send], one doorbell
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `state.rs` | what a connection is made of |
//! | `accept.rs` | how it is made, and what the client learns of it |
//! | `receive.rs`, `send.rs` | from messages to requests, from replies to messages |
//! | `lend.rs` | memory that the client accesses itself |

mod accept;
mod lend;
mod receive;
mod send;
pub(super) mod state;

use std::io::IoSlice;
use std::rc::Rc;

use weft_rdma::{Ended, Ports};
use weft_verbs::Fabric;
use weft_wire::Header;

pub(super) use accept::Weft;

use super::bulk::VerbsBulk;
use super::peers::VerbsAccepted;
use crate::error::ConnError;
use crate::server::{Incoming, PeerInfo, ServerConn};
use state::ConnInner;

/// A server's end of an RDMA connection.
pub struct VerbsConn<F: Fabric> {
    end: Rc<ConnEnd<F>>,
}

impl<F: Fabric> Clone for VerbsConn<F> {
    fn clone(&self) -> Self {
        VerbsConn { end: self.end.clone() }
    }
}

struct ConnEnd<F: Fabric> {
    inner: Rc<ConnInner<F>>,
}

impl<F: Fabric> Drop for ConnEnd<F> {
    fn drop(&mut self) {
        self.inner.channel.fail(Ended::Closed);
    }
}

impl<F: Fabric> VerbsConn<F> {
    pub(super) async fn accept(
        ports: &Ports<F>,
        weft: &Weft,
        accepted: VerbsAccepted<F>,
    ) -> Result<VerbsConn<F>, ConnError> {
        let inner = ports.accept(weft, accepted).await.map_err(|error| {
            let peer = format!("client {} (verbs)", error.peer);
            ConnError::of_channel(peer, error.cause)
        })?;
        Ok(VerbsConn { end: Rc::new(ConnEnd { inner }) })
    }
}

impl<F: Fabric> ServerConn for VerbsConn<F> {
    type Bulk = VerbsBulk<F>;

    async fn recv(&self) -> Result<Incoming<VerbsBulk<F>>, ConnError> {
        let (header, body, source) = self.end.inner.recv().await?;
        let bulk = VerbsBulk::new(self.end.inner.clone(), header, source);
        Ok(Incoming { header, body, bulk })
    }

    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        self.end.inner.reply(header, body, payload).await
    }

    fn prove(&self) {
        self.end.inner.proven.set(true);
    }

    fn peer(&self) -> PeerInfo {
        self.end.inner.peer.clone()
    }

    fn close(&self) {
        self.end.inner.channel.fail(Ended::Closed);
    }
}
