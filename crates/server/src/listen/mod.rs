//! Where clients reach a server, and connections on their way to the thread that serves them.
//!
//! ```text
//!   cluster file ─► Doors: sockets.rs (TCP, Unix), rdma.rs         whatever listens; all that can fail, fails here
//!   thread 0        accept_all ── Arrivals, in turn ──► its own sessions
//!                                                  └──► mailbox of thread 1, 2, … ──► their sessions
//! ```
//!
//! This file is the list of transports: a further one has a file of its own, a field in [`Doors`], a variant of
//! [`By`], and, where it keeps something on each thread, a field in [`PerThread`].

mod addresses;
mod rdma;
mod rdma_report;
mod sockets;

pub(crate) use rdma_report::RdmaReport;

use crate::config::{ClusterConfig, ServerConfig};
use crate::crowd::Place;
use crate::error::ServerError;
use crate::key_ring::KeyRing;
use crate::log;
use crate::service::Service;
use crate::session;
use crate::shared::Shared;
use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weft_reactor::{JoinHandle, MailSender};
use weft_storage::BufferPool;
use weft_transport::{Accepted, Listening, VerbsAccepted, VerbsListening, VerbsThread};
use weft_verbs::{Fabric, VerbsError};

/// Where a server listens.
pub(crate) struct Doors<F: Fabric> {
    pub sockets: Vec<Listening>,
    pub rdma: Vec<VerbsListening<F>>,
}

/// A connection that was asked for, not yet of any thread.
pub(crate) struct Arrival<F: Fabric> {
    place: Place,
    by: By<F>,
}

/// The transport of a connection.
enum By<F: Fabric> {
    Socket(Accepted),
    Rdma(VerbsAccepted<F>),
}

impl<F: Fabric> By<F> {
    /// The descriptor that the connection has taken.
    fn descriptor(&self) -> Option<RawFd> {
        match self {
            By::Socket(accepted) => Some(accepted.fd.as_raw_fd()),
            By::Rdma(_) => None,
        }
    }
}

impl<F: Fabric> Doors<F> {
    /// Listens as the cluster file says. Where RDMA cannot be and need not, the report has the reason.
    ///
    /// # Errors
    /// An address cannot be found or listened on, or RDMA is required and cannot be had.
    pub fn open(
        config: &ClusterConfig,
        server: &ServerConfig,
        keys: &KeyRing,
        load: impl FnOnce() -> Result<F, VerbsError>,
    ) -> Result<(Doors<F>, RdmaReport), ServerError> {
        let sockets = sockets::listen(config, server)?;
        let (rdma, report) = rdma::listen(server, keys, load)?;
        Ok((Doors { sockets, rdma }, report))
    }

    /// Logs where it listens, and which addresses no other host reaches.
    pub fn log(&self, server: &ServerConfig) {
        let bound: Vec<SocketAddr> = self.sockets.iter().filter_map(Listening::address).collect();
        for address in &bound {
            log::info!(&server.name, "listens on {address}");
        }
        for address in &server.addresses {
            let found = addresses::resolve(server, address).unwrap_or_default();
            if let Some(warning) = addresses::unreachable_from_elsewhere(address, &found) {
                log::warning!(&server.name, "{warning}");
            }
        }
    }
}

/// What transports keep on a thread that serves connections.
pub(crate) struct PerThread<F: Fabric> {
    /// Where the server listens with it.
    pub rdma: Option<VerbsThread<F>>,
}

impl<F: Fabric> PerThread<F> {
    /// On the current reactor, the one of the thread with this number.
    pub fn start(shared: &Arc<Shared>, number: usize, spin_us: u32) -> PerThread<F> {
        PerThread { rdma: rdma::on_thread(shared, number, spin_us) }
    }

    /// Makes the thread's buffers known to what moves data by itself.
    pub fn use_buffers(&self, pool: &BufferPool, server: &str) {
        if let Some(thread) = &self.rdma {
            rdma::keep_zones(pool, thread, server);
        }
    }
}

/// One thread that serves connections.
pub(crate) struct Host<F: Fabric, S: Service> {
    pub service: Rc<S>,
    pub transports: PerThread<F>,
}

impl<F: Fabric, S: Service> Host<F, S> {
    fn name(&self) -> &str {
        &self.service.node().shared.name
    }

    /// Begins a session with whoever has come.
    pub fn serve(&self, arrival: Arrival<F>) {
        let (service, place) = (self.service.clone(), arrival.place);
        let begun: Result<(), String> = match arrival.by {
            By::Socket(accepted) => {
                sockets::serve(service, accepted, place).map_err(|error| error.to_string())
            }
            By::Rdma(accepted) => {
                let rdma =
                    self.transports.rdma.clone().expect("who listens with RDMA has it on every thread");
                weft_reactor::spawn(async move {
                    match rdma.accept(accepted).await {
                        Ok(conn) => session::serve(service, conn, place).await,
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

/// Logs that connections are closed as soon as they come.
fn no_descriptors(server: &str, limit: u64) {
    if log::once_a_minute("no descriptors") {
        log::warning!(
            server,
            "is out of file descriptors and closes new connections: its limit is {limit}; raise LimitNOFILE (ulimit -n)"
        );
    }
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
    fn give(&self, by: By<F>) {
        let shared = &self.here.service.node().shared;
        let Some(place) = shared.crowd.accept(by.descriptor()) else {
            shared.counters.refused_connections.fetch_add(1, Ordering::Relaxed);
            return no_descriptors(&shared.name, shared.crowd.shares().descriptors);
        };
        let arrival = Arrival { place, by };
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
}

/// Accepts connections, from now until the tasks are cancelled, for this thread and the others.
pub(crate) fn accept_all<F: Fabric, S: Service>(
    doors: Doors<F>,
    here: Host<F, S>,
    others: Vec<MailSender<Arrival<F>>>,
) -> Vec<JoinHandle<()>> {
    let shared = here.service.node().shared.clone();
    let turns = Rc::new(Turns { here, others, next: Cell::new(0) });
    let sockets = doors.sockets.into_iter().map(|door| {
        let turns = turns.clone();
        let give = move |accepted| turns.give(By::Socket(accepted));
        weft_reactor::spawn(sockets::accept(door, shared.clone(), give))
    });
    let mut accepting: Vec<_> = sockets.collect();
    accepting.extend(doors.rdma.into_iter().map(|door| {
        let turns = turns.clone();
        let give = move |accepted| turns.give(By::Rdma(accepted));
        weft_reactor::spawn(rdma::accept(door, shared.clone(), give))
    }));
    accepting
}
