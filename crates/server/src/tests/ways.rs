//! The ways to a server of this process.

use super::support::cluster_key;
use crate::listen::{Doors, Host, PerThread, accept_all};
use crate::service::Service;
use crate::session;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_storage::BufferPool;
use weft_transport::registration::RegistrationOptions;
use weft_transport::{
    Link, MemoryConn, MemoryConnector, MemoryFaults, MemoryHub, MemoryLink, VerbsClient, VerbsKeys,
    VerbsLink, VerbsListening, VerbsOptions, VerbsServerOptions, VerbsThread, listen_verbs,
};
use weft_verbs_double::{Pretend, PretendOptions};

/// How a client of these tests reaches a server.
pub(super) trait Way: 'static {
    /// As [`weft_wire::messages::ClientInfo::transport`] begins.
    const NAME: &'static str;
    type Link: Link;
    /// What a client needs to connect.
    type Connector;
    /// What a server needs to be connected to.
    type Hub: Send + 'static;

    fn open() -> (Self::Connector, Self::Hub);

    /// Not yet proven.
    fn connect(to: &Self::Connector) -> Self::Link;

    /// Accepts on the current reactor; an I/O server has a pool.
    fn serve<S: Service>(hub: Self::Hub, service: Rc<S>, pool: Option<&BufferPool>);
}

/// By copies.
pub(super) struct Memory;

impl Way for Memory {
    const NAME: &'static str = "memory";
    type Link = MemoryLink;
    type Connector = MemoryConnector;
    type Hub = MemoryHub;

    fn open() -> (MemoryConnector, MemoryHub) {
        MemoryHub::new(MemoryFaults::default())
    }

    fn connect(to: &MemoryConnector) -> MemoryLink {
        to.connect().unwrap()
    }

    fn serve<S: Service>(mut hub: MemoryHub, service: Rc<S>, _pool: Option<&BufferPool>) {
        weft_reactor::spawn(async move {
            while let Some(end) = hub.accept().await {
                weft_reactor::spawn(session::serve(
                    service.clone(),
                    MemoryConn::from_end(end),
                    service.node().shared.crowd.accept(None).unwrap(),
                ));
            }
        });
    }
}

/// By RDMA on a network that exists in this process only: the transport's own code over adapters that count and check.
pub(super) struct Pretended;

impl Way for Pretended {
    const NAME: &'static str = "verbs";
    type Link = VerbsLink<Pretend>;
    type Connector = (VerbsClient<Pretend>, SocketAddr);
    type Hub = VerbsListening<Pretend>;

    fn open() -> (Self::Connector, Self::Hub) {
        let host = Pretend::new(PretendOptions::default());
        let address = "127.0.0.1:0".parse().unwrap();
        let hub = listen_verbs(&host, address, VerbsKeys::of_cluster(&(&cluster_key()).into())).unwrap();
        let client = VerbsClient::new(host, RegistrationOptions::default());
        ((client, hub.address()), hub)
    }

    fn connect((client, address): &Self::Connector) -> VerbsLink<Pretend> {
        let options = VerbsOptions { key: Some(cluster_key().knock_key()), ..VerbsOptions::default() };
        client.connect(*address, &options, Duration::from_secs(5)).unwrap()
    }

    fn serve<S: Service>(hub: Self::Hub, service: Rc<S>, pool: Option<&BufferPool>) {
        let thread = VerbsThread::new(VerbsServerOptions::default());
        let transports = PerThread { rdma: Some(thread) };
        if let Some(pool) = pool {
            transports.use_buffers(pool, &service.node().shared.name);
        }
        let doors = Doors { sockets: Vec::new(), rdma: vec![hub] };
        // The tasks go on by themselves.
        drop(accept_all(doors, Host { service, transports }, Vec::new()));
    }
}
