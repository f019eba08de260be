//! Connections on their way from where a server listens to the thread that serves them.
//!
//! ```text
//!   thread 0   TCP, Unix socket, RDMA ── round robin ──► its own sessions
//!                                                   └──► mailbox of thread 1, 2, … ──► their sessions
//! ```

use crate::log;
use crate::service::Service;
use crate::session;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use weft_reactor::{JoinHandle, MailSender};
use weft_transport::{
    Accepted, Listening, Network, ShmConn, TcpConn, TcpOptions, VerbsAccepted, VerbsListening, VerbsThread,
};
use weft_verbs::Fabric;

/// Time after which it is tried to listen again on the address of an adapter that is gone.
const LISTEN_AGAIN: Duration = Duration::from_secs(2);

/// Where a server listens.
pub(crate) struct Doors<F: Fabric> {
    pub sockets: Vec<Listening>,
    pub rdma: Vec<VerbsListening<F>>,
}

/// A connection that was asked for, not yet of any thread.
pub(crate) enum Arrival<F: Fabric> {
    Socket(Accepted),
    Rdma(VerbsAccepted<F>),
}

/// One thread that serves connections.
pub(crate) struct Host<F: Fabric, S: Service> {
    pub service: Rc<S>,
    /// Its RDMA, where that is used.
    pub rdma: Option<VerbsThread<F>>,
}

impl<F: Fabric, S: Service> Host<F, S> {
    fn name(&self) -> &str {
        &self.service.node().shared.name
    }

    /// Begins a session with whoever has come.
    pub fn serve(&self, arrival: Arrival<F>) {
        let service = self.service.clone();
        let begun: Result<(), String> = match arrival {
            Arrival::Socket(accepted) => serve_socket(service, accepted).map_err(|error| error.to_string()),
            Arrival::Rdma(accepted) => {
                let rdma = self.rdma.clone().expect("who listens with RDMA has it on every thread");
                weft_reactor::spawn(async move {
                    match rdma.accept(accepted).await {
                        Ok(conn) => session::serve(service, conn).await,
                        Err(error) => cannot_serve(&service.node().shared.name, &error.to_string()),
                    }
                });
                Ok(())
            }
        };
        if let Err(error) = begun {
            cannot_serve(self.name(), &error);
        }
    }
}

fn serve_socket<S: Service>(service: Rc<S>, accepted: Accepted) -> io::Result<()> {
    match accepted.network {
        Network::Tcp => {
            let conn = TcpConn::from_fd(accepted.fd, &TcpOptions::default())?;
            weft_reactor::spawn(session::serve(service, conn));
        }
        Network::Unix => {
            let conn = ShmConn::from_fd(accepted.fd)?;
            weft_reactor::spawn(session::serve(service, conn));
        }
    }
    Ok(())
}

fn cannot_serve(server: &str, error: &str) {
    if log::once_a_minute("start session") {
        log::warning!(server, "cannot serve a connection: {error}");
    }
}

/// Gives arrivals to the threads in turn.
struct Turns<F: Fabric, S: Service> {
    here: Host<F, S>,
    others: Vec<MailSender<Arrival<F>>>,
    next: Cell<usize>,
}

impl<F: Fabric, S: Service> Turns<F, S> {
    fn give(&self, arrival: Arrival<F>) {
        let turn = self.next.get();
        self.next.set((turn + 1) % (self.others.len() + 1));
        match turn.checked_sub(1).and_then(|other| self.others.get(other)) {
            None => self.here.serve(arrival),
            Some(other) => {
                // A thread that takes no more connections is stopping, or has more of them than it can begin.
                if other.send(arrival).is_err() && log::once_a_minute("hand over") {
                    let server = self.here.name();
                    log::warning!(server, "dropped a connection: the thread it was for takes none");
                }
            }
        }
    }

    fn no_longer_accepts(&self, error: &dyn std::fmt::Display) {
        let server = self.here.name();
        log::warning!(server, "no longer accepts connections on one of its addresses: {error}");
    }
}

/// Accepts connections, from now until the tasks are cancelled, for this thread and the others.
pub(crate) fn accept_all<F: Fabric, S: Service>(
    doors: Doors<F>,
    here: Host<F, S>,
    others: Vec<MailSender<Arrival<F>>>,
) -> Vec<JoinHandle<()>> {
    let turns = Rc::new(Turns { here, others, next: Cell::new(0) });
    let sockets = doors.sockets.into_iter().map(|door| weft_reactor::spawn(accept(door, turns.clone())));
    let mut accepting: Vec<_> = sockets.collect();
    let rdma = doors.rdma.into_iter().map(|door| weft_reactor::spawn(accept_rdma(door, turns.clone())));
    accepting.extend(rdma);
    accepting
}

async fn accept<F: Fabric, S: Service>(door: Listening, turns: Rc<Turns<F, S>>) {
    let accepted_all: io::Result<()> = async {
        let mut acceptor = door.acceptor()?;
        let server = turns.here.name().to_owned();
        acceptor.when_exhausted(move |error| {
            if log::once_a_minute("exhausted") {
                log::warning!(
                    &server,
                    "cannot accept connections for now: {error}; raise the limit (LimitNOFILE)"
                );
            }
        });
        loop {
            turns.give(Arrival::Socket(acceptor.accept().await?));
        }
    }
    .await;
    if let Err(error) = accepted_all {
        turns.no_longer_accepts(&error);
    }
}

async fn accept_rdma<F: Fabric, S: Service>(door: VerbsListening<F>, turns: Rc<Turns<F, S>>) {
    let place = door.place();
    let shared = turns.here.service.node().shared.clone();
    let mut door = Some(door);
    loop {
        let listening = match door.take() {
            Some(door) => Ok(door),
            None => place.clone().listen().map_err(|error| error.to_string()),
        };
        let acceptor = listening.and_then(|door| door.acceptor().map_err(|error| error.to_string()));
        if let Ok(mut acceptor) = acceptor {
            shared.rdma.found(place.address());
            let error = loop {
                match acceptor.next().await {
                    Ok(accepted) => turns.give(Arrival::Rdma(accepted)),
                    Err(error) => break error.to_string(),
                }
            };
            log::warning!(
                &shared.name,
                "no longer accepts connections over RDMA, until the adapter is back: {error}"
            );
            shared.rdma.lost(place.address(), &error);
        }
        weft_reactor::sleep(LISTEN_AGAIN).await;
    }
}
