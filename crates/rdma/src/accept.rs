//! Taking a connection, and seeing it to its end.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weft_reactor::{sleep, spawn, timeout};
use weft_verbs::{Endpoint, EndpointOptions, EndpointState, Fabric, Receives, VerbsError};

use crate::channel::{Channel, Ended};
use crate::listen::Asked;
use crate::port::Port;
use crate::ports::Ports;
use crate::protocol::{Connection, Protocol, Refusal};
use crate::watched::Watched;
use crate::work::FLUSH_TIMEOUT;

/// How long what was posted may take when a connection is closed.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Receives that were under way when a connection ended come within this time.
const LAST_RECEIVES: Duration = Duration::from_millis(20);

/// A connection was not taken. The peer knows why, where it could be said.
#[derive(Debug, thiserror::Error)]
#[error("no RDMA connection with {peer}: {cause}")]
pub struct NotAccepted {
    /// Who asked for it.
    pub peer: SocketAddr,
    /// Why.
    pub cause: Ended,
}

impl<F: Fabric> Ports<F> {
    /// Takes a connection; over an adapter that is new to this thread its queues are made first. One that stood may have ended when
    /// this returns: its first message may have broken the protocol.
    ///
    /// # Errors
    /// There is no room for it, the adapter failed, or the peer gave up meanwhile.
    pub async fn accept<P: Protocol<F>>(
        &self,
        protocol: &P,
        asked: Asked<F, P::Asked>,
    ) -> Result<Rc<P::Connection>, NotAccepted> {
        let peer = asked.endpoint.peer();
        let (connection, watched) =
            self.begin(protocol, asked).map_err(|cause| NotAccepted { peer, cause })?;
        let keep_alive = Duration::from_millis(self.options().keep_alive_ms.max(1).into());
        spawn(watch(connection.clone(), watched, keep_alive));
        let channel = connection.channel();
        let limit = Duration::from_millis(self.options().accept_ms);
        if let Ok(true) = timeout(limit, either(channel.stands.wait(), channel.over())).await {
            return Ok(connection);
        }
        channel.fail(Ended::Closed);
        Err(NotAccepted { peer, cause: channel.ended() })
    }

    /// Makes the queue pair and says yes.
    fn begin<P: Protocol<F>>(
        &self,
        protocol: &P,
        asked: Asked<F, P::Asked>,
    ) -> Result<(Rc<P::Connection>, Watched), Ended> {
        let Asked { mut endpoint, said } = asked;
        let refuse = |endpoint: F::Endpoint, why| endpoint.reject(&protocol.refuse(why));
        let broken = |error: VerbsError| Ended::Broken(error.to_string());
        let port = match self.port(endpoint.device()) {
            Ok(port) => port,
            Err(error) => {
                refuse(endpoint, Refusal::Failed);
                return Err(broken(error));
            }
        };
        let window = if port.is_full() { None } else { port.shares.borrow_mut().join() };
        let Some(window) = window else {
            refuse(endpoint, Refusal::Full);
            return Err(Ended::Broken("there is no room for a further RDMA connection".into()));
        };
        if let Err(error) = create_queue_pair(&mut endpoint, &port, protocol.reads_in()) {
            port.shares.borrow_mut().leave(window);
            refuse(endpoint, Refusal::Failed);
            return Err(broken(error));
        }
        let (connection, accepting) = protocol.accept(Channel::new(endpoint, port.clone(), window), said);
        port.add(&(connection.clone() as Rc<dyn Connection<F>>));
        let channel = connection.channel();
        let accepted = channel.with_endpoint(|endpoint| {
            endpoint.accept(&accepting).map_err(broken)?;
            Watched::new(endpoint.event_fd()).map_err(|error| Ended::Broken(error.to_string()))
        });
        let watched = accepted.unwrap_or_else(|| Err(channel.ended()))?;
        Ok((connection, watched))
    }
}

fn create_queue_pair<F: Fabric>(
    endpoint: &mut F::Endpoint,
    port: &Port<F>,
    reads_in: u8,
) -> Result<(), VerbsError> {
    let limits = port.limits();
    let options = EndpointOptions {
        send_depth: port.send_depth,
        pieces: limits.send_pieces_max.max(limits.read_pieces_max) as u32,
        inline_bytes: 0,
        reads_out: limits.reads_out_max,
        reads_in: reads_in.min(limits.reads_in_max),
    };
    endpoint.create_queue_pair(&options, &port.queue.borrow(), Receives::Shared(&port.shared))
}

/// Waits for whichever comes first; true for the first.
pub async fn either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) -> bool {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|cx| {
        if first.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        second.as_mut().poll(cx).map(|()| false)
    })
    .await
}

/// Sees a connection to its end.
async fn watch<F: Fabric>(connection: Rc<impl Connection<F>>, watched: Watched, keep_alive: Duration) {
    let channel = connection.channel();
    let mut still = None;
    loop {
        match channel.state() {
            Some(EndpointState::Connected) => channel.stands.set(),
            Some(EndpointState::Accepting) => {}
            Some(EndpointState::Ended(_)) | None => channel.fail(Ended::Closed),
        }
        if channel.is_over() {
            break;
        }
        if timeout(keep_alive, either(watched.readable(), channel.over())).await.is_err() {
            channel.ask_whether_it_lives(&mut still);
        }
    }
    let last = channel.posted();
    if channel.ended() == Ended::Closed {
        // What was said before the connection was closed is still delivered.
        let _ = timeout(CLOSE_TIMEOUT, channel.work_ended(last)).await;
    }
    channel.disconnect();
    let _ = timeout(FLUSH_TIMEOUT, channel.work_ended(channel.posted())).await;
    sleep(LAST_RECEIVES).await;
    drop(watched);
    channel.destroy();
}
