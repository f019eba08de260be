//! TCP and Unix sockets of a server.

use super::addresses::resolve;
use crate::config::{ClusterConfig, ServerConfig};
use crate::crowd::Place;
use crate::error::ServerError;
use crate::log;
use crate::service::Service;
use crate::session;
use crate::shared::Shared;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_transport::{Accepted, Listening, Network, ShmConn, TcpConn, TcpOptions, listen_tcp, listen_unix};

/// How long a new connection waits for a descriptor that clients may have, and how often it looks.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(50);
const DESCRIPTOR_LOOK: Duration = Duration::from_millis(2);

/// Binds all sockets of a server.
pub(super) fn listen(config: &ClusterConfig, server: &ServerConfig) -> Result<Vec<Listening>, ServerError> {
    let mut listeners = Vec::new();
    for address in &server.addresses {
        for address in resolve(server, address)? {
            let failed = |source| ServerError::Listen { server: server.name.clone(), source };
            listeners.push(listen_tcp(address).map_err(failed)?);
        }
    }
    match listen_unix(&config.socket_of(server)) {
        Ok(listening) => listeners.push(listening),
        Err(source) if server.socket.is_some() => {
            return Err(ServerError::Listen { server: server.name.clone(), source });
        }
        Err(source) => {
            log::warning!(
                &server.name,
                "no shared memory for clients on this host: {source}; set socket to a short path"
            );
        }
    }
    Ok(listeners)
}

/// Accepts on one socket, for as long as it works.
pub(super) async fn accept(door: Listening, shared: Arc<Shared>, give: impl Fn(Accepted)) {
    let accepted_all: io::Result<()> = async {
        let mut acceptor = door.acceptor()?;
        let server = shared.name.clone();
        acceptor.when_exhausted(move |error| {
            if log::once_a_minute("exhausted") {
                log::warning!(
                    &server,
                    "cannot accept connections for now: {error}; raise LimitNOFILE (ulimit -n)"
                );
            }
        });
        loop {
            let mut accepted = acceptor.accept().await?;
            wait_for_descriptor(&mut accepted, &shared).await;
            give(accepted);
        }
    }
    .await;
    if let Err(error) = accepted_all {
        log::warning!(&shared.name, "no longer accepts connections on one of its addresses: {error}");
    }
}

/// Gives a connection that has one of the last descriptors another one, if one is free in a moment: connections that
/// were just closed may not have given theirs back yet.
async fn wait_for_descriptor(accepted: &mut Accepted, shared: &Shared) {
    let deadline = Instant::now() + DESCRIPTOR_WAIT;
    while !shared.crowd.is_free(accepted.fd.as_raw_fd()) && Instant::now() < deadline {
        weft_reactor::sleep(DESCRIPTOR_LOOK).await;
        // A copy gets the lowest number that is free.
        if let Ok(fd) = accepted.fd.try_clone()
            && fd.as_raw_fd() < accepted.fd.as_raw_fd()
        {
            accepted.fd = fd;
        }
    }
}

/// Begins a session over a socket.
pub(super) fn serve<S: Service>(service: Rc<S>, accepted: Accepted, place: Place) -> io::Result<()> {
    match accepted.network {
        Network::Tcp => {
            let conn = TcpConn::from_fd(accepted.fd, &TcpOptions::default())?;
            weft_reactor::spawn(session::serve(service, conn, place));
        }
        Network::Unix => {
            let conn = ShmConn::from_fd(accepted.fd)?;
            weft_reactor::spawn(session::serve(service, conn, place));
        }
    }
    Ok(())
}
