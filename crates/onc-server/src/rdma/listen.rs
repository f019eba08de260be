//! Listening for clients over RDMA.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use weft_log::once_a_minute;
use weft_rdma::{Asked, Listening, Place};
use weft_reactor::{sleep, spawn};
use weft_verbs::{Fabric, VerbsError};

use super::Rdma;
use super::connection::{RpcOverRdma, Said, Session};
use crate::buffers::Buffers;
use crate::server::{Server, Transport, first_of};
use crate::service::Service;

/// Time after which it is tried to listen again on the address of an adapter that is gone.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// An address of an adapter that is listened on. Connections queue up from now on.
pub struct RdmaListener<F: Fabric> {
    listening: Listening<F, AnyClient>,
}

/// Whoever asks is let in: what a client may do is the service's business.
#[derive(Clone)]
struct AnyClient;

impl weft_rdma::Check for AnyClient {
    type Asked = Said;

    fn check(&self, said: &[u8]) -> Result<Said, Vec<u8>> {
        Ok(Said::of(said))
    }
}

impl<F: Fabric> RdmaListener<F> {
    /// Listens.
    ///
    /// # Errors
    /// No adapter has the address, it is in use, or RDMA cannot be used.
    pub fn bind(fabric: &F, address: SocketAddr) -> Result<RdmaListener<F>, VerbsError> {
        Place::new(fabric, address, AnyClient).listen().map(|listening| RdmaListener { listening })
    }

    /// Where, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

impl<S: Service> Server<S> {
    /// Accepts connections over RDMA until [`Server::stop`]; after the loss of the adapter, again when it is
    /// back.
    pub async fn listen_rdma<F: Fabric>(&self, rdma: &Rdma<F>, listener: RdmaListener<F>) {
        let place = listener.listening.place();
        let mut listening = Some(listener.listening);
        let accepting = async {
            loop {
                let error = match listening.take().map_or_else(|| place.clone().listen(), Ok) {
                    Ok(listening) => self.accept_at(rdma, listening).await,
                    Err(error) => error.to_string(),
                };
                if once_a_minute("accept calls over RDMA") {
                    let address = place.address();
                    tracing::warn!("no client can connect over RDMA at {address} now: {error}");
                }
                sleep(LISTEN_AGAIN).await;
            }
        };
        first_of(accepting, self.inner.stopping.wait()).await;
    }

    /// Accepts until the listener is of no more use: why.
    async fn accept_at<F: Fabric>(&self, rdma: &Rdma<F>, listening: Listening<F, AnyClient>) -> String {
        let mut acceptor = match listening.acceptor() {
            Ok(acceptor) => acceptor,
            Err(error) => return error.to_string(),
        };
        loop {
            match acceptor.next().await {
                Ok(asked) => self.accept_rdma(rdma, asked),
                Err(error) => return error.to_string(),
            }
        }
    }

    fn accept_rdma<F: Fabric>(&self, rdma: &Rdma<F>, asked: Asked<F, Said>) {
        let Some(member) = self.inner.admit(asked.peer(), Transport::Rdma) else { return };
        let (inner, rdma) = (self.inner.clone(), rdma.clone());
        let calls_max = inner.limits.calls_per_connection.try_into().unwrap_or(u32::MAX);
        spawn(async move {
            let protocol = RpcOverRdma {
                calls_max,
                options: rdma.options,
                exposed_bytes_max: inner.limits.exposed_bytes,
                exposed: inner.counters.exposed.clone(),
            };
            let accepted = rdma.ports.accept(&protocol, asked).await;
            let served = match accepted {
                Ok(connection) => {
                    let buffers = Buffers::registered(rdma.pool.clone(), member.number);
                    let session =
                        Session { inner: inner.clone(), connection, member: member.clone(), buffers };
                    Rc::new(session).serve().await
                }
                Err(error) => {
                    if once_a_minute("accept a connection over RDMA") {
                        tracing::warn!("a client cannot connect over RDMA: {error}");
                    }
                    Err(io::Error::other(error))
                }
            };
            inner.part_with(&member, served);
        });
    }
}
