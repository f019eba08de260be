//! A server as the client of another one: one request at a time, waiting with `poll(2)`.

use crate::key_ring::KeyRing;
use crate::stop::{StopFlag, Wake};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};
use weft_transport::{Bulk, Completion, Link, LinkError, TcpLink, TcpOptions, connect_tcp};
use weft_wire::keys::KeyInfo;
use weft_wire::messages::{
    ErrorDetail, HelloReply, HelloRequest, ProveRequest, ServerInfo, endpoint, peer_role,
};
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{DecodeError, Header, Request, Status, VERSIONS, body};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a wait goes on before it looks whether this server is to stop.
const WAIT_STEP: Duration = Duration::from_millis(50);

/// Why another server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("{name}: {source}")]
    Link { name: String, source: LinkError },
    #[error("{name}: cannot find its address {address}: {source}")]
    Address { name: String, address: String, source: std::io::Error },
    #[error("{name} does not have this cluster's key")]
    WrongKey { name: String },
    #[error("{other} answers at {address}, where {name} was expected")]
    Another { name: String, address: String, other: String },
    #[error("{name} refused: {status}: {text}")]
    Refused { name: String, status: Status, text: String },
    #[error("{name} sent a reply that cannot be read: {source}")]
    Reply { name: String, source: DecodeError },
    #[error("{name} did not answer within {} s", REPLY_TIMEOUT.as_secs())]
    Timeout { name: String },
    #[error("this server is stopping")]
    Stopping,
}

/// A connection to another server of the cluster, made when it is needed.
pub(crate) struct Peer {
    server: ServerInfo,
    keys: KeyRing,
    stop: StopFlag,
    link: Option<TcpLink>,
    next_request_id: u64,
}

impl Peer {
    /// Not connected yet.
    pub fn new(server: ServerInfo, keys: KeyRing, stop: StopFlag) -> Peer {
        Peer { server, keys, stop, link: None, next_request_id: 1 }
    }

    /// Its name in the cluster file.
    pub fn name(&self) -> &str {
        &self.server.name
    }

    /// The server is where `server` says from now on. A connection that stands goes on.
    pub fn is_at(&mut self, server: &ServerInfo) {
        if self.server != *server {
            self.server = server.clone();
        }
    }

    /// Waits until the server is to stop, the connection is gone, `wake` is raised or `time` is over.
    pub fn idle(&mut self, time: Duration, wake: &Wake) {
        let mut polls = [self.stop.event_fd(), self.link.as_ref().map_or(-1, TcpLink::fd), wake.fd()]
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: three live pollfds; one with a negative descriptor is left out. An interrupted wait only ends early.
        unsafe { libc::poll(polls.as_mut_ptr(), 3, time.as_millis() as i32) };
        wake.clear();
        if polls[1].revents != 0 {
            // Nothing was asked, so nothing but the end can have come.
            self.link = None;
        }
    }

    /// Asks, and waits for the answer; connects first where there is no connection.
    pub fn call<R: Request>(&mut self, request: &R) -> Result<R::Reply, PeerError> {
        if self.link.is_none() {
            self.connect()?;
        }
        let reply = self.exchange(request);
        if matches!(reply, Err(PeerError::Link { .. } | PeerError::Timeout { .. } | PeerError::Reply { .. }))
        {
            self.link = None;
        }
        reply
    }

    /// Connects to the first of its addresses where it answers.
    fn connect(&mut self) -> Result<(), PeerError> {
        let (server, mut failure) = (self.server.clone(), None);
        for address in server.addresses(endpoint::TCP) {
            match self.connect_to(address) {
                Ok(()) => return Ok(()),
                Err(PeerError::Stopping) => return Err(PeerError::Stopping),
                Err(error) => drop(failure.get_or_insert(error)),
            }
            self.link = None;
        }
        Err(failure.unwrap_or(PeerError::Timeout { name: server.name }))
    }

    fn connect_to(&mut self, address: &str) -> Result<(), PeerError> {
        self.reach(address)?;
        let (name, other) = (self.server.name.clone(), self.prove()?);
        if other != name {
            return Err(PeerError::Another { name, address: address.to_owned(), other });
        }
        Ok(())
    }

    /// Connects to an address.
    fn reach(&mut self, address: &str) -> Result<(), PeerError> {
        let name = self.server.name.clone();
        let found = address.to_socket_addrs().map_err(|source| PeerError::Address {
            name: name.clone(),
            address: address.to_owned(),
            source,
        })?;
        let mut failure = PeerError::Timeout { name: name.clone() };
        for found in found {
            match connect_tcp(found, &TcpOptions::default(), CONNECT_TIMEOUT) {
                Ok(link) => {
                    self.link = Some(link);
                    return Ok(());
                }
                Err(source) => failure = PeerError::Link { name: name.clone(), source },
            }
        }
        Err(failure)
    }

    /// Proves to each other that both know a key of the cluster; returns the server's name.
    fn prove(&mut self) -> Result<String, PeerError> {
        let (hello, greeted) = self.greet(peer_role::SERVER, None)?;
        let keys = self.keys.server_keys();
        let Some(key) = keys.iter().find(|key| is_proved_with(key, &hello, &greeted)) else {
            return Err(PeerError::WrongKey { name: self.server.name.clone() });
        };
        let proof = client_proof(key, &hello, &greeted.server_nonce);
        Ok(self.exchange(&ProveRequest { proof })?.server_name)
    }

    /// Whether the server's answer to a greeting in this role is proved with `secret`, at the first of its addresses where there is
    /// one. The greeting goes no further.
    pub fn proves_with(&mut self, role: u8, key: Option<KeyInfo>, secret: &Key) -> Result<bool, PeerError> {
        let mut failure = PeerError::Timeout { name: self.server.name.clone() };
        for address in self.server.clone().addresses(endpoint::TCP) {
            let greeted = self.reach(address).and_then(|()| self.greet(role, key.clone()));
            self.link = None;
            match greeted {
                Ok((hello, greeted)) => return Ok(is_proved_with(secret, &hello, &greeted)),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn greet(&mut self, role: u8, key: Option<KeyInfo>) -> Result<(Vec<u8>, HelloReply), PeerError> {
        let no_random = |source| PeerError::Link {
            name: self.server.name.clone(),
            source: LinkError::Local { what: "make random numbers", source },
        };
        let client_nonce = weft_host::random().map_err(no_random)?;
        let session = weft_host::random().map_err(no_random)?;
        let hello = HelloRequest {
            version_min: VERSIONS.0,
            version_max: VERSIONS.1,
            role,
            client_nonce,
            key,
            session,
            boot_id: weft_host::boot_id(),
            process_id: std::process::id(),
            host: weft_host::name(),
            program: "weft metadata server".into(),
        };
        let greeted = self.exchange(&hello)?;
        Ok((body::encode(&hello), greeted))
    }

    fn exchange<R: Request>(&mut self, request: &R) -> Result<R::Reply, PeerError> {
        let name = self.server.name.clone();
        let request_id = self.next_request_id;
        self.next_request_id += 1;
        let trace = weft_log::trace::current_or_fresh();
        let header = Header { trace, ..Header::request(R::OP, request_id) };
        tracing::debug!(op = R::OP.name(), trace, "asks {name}");
        let completion = self.round_trip(header, &body::encode(request))?;
        let status = completion.header.status;
        if status != Status::Ok {
            let text = body::decode(&completion.header, &completion.body)
                .map_or(String::new(), |detail: ErrorDetail| detail.text);
            return Err(PeerError::Refused { name, status, text });
        }
        body::decode(&completion.header, &completion.body).map_err(|source| PeerError::Reply { name, source })
    }

    fn round_trip(&mut self, header: Header, body: &[u8]) -> Result<Completion, PeerError> {
        let name = &self.server.name;
        let failed = |source| PeerError::Link { name: name.clone(), source };
        let Some(link) = &mut self.link else { return Err(PeerError::Timeout { name: name.clone() }) };
        // SAFETY: the request has no bulk memory.
        unsafe { link.submit(header, body, Bulk::None) }.map_err(failed)?;
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut done = Vec::new();
        loop {
            link.progress(&mut done).map_err(failed)?;
            if let Some(at) = done.iter().position(|done| done.header.request_id == header.request_id) {
                return Ok(done.swap_remove(at));
            }
            if self.stop.is_stopped() {
                return Err(PeerError::Stopping);
            }
            if Instant::now() >= deadline {
                return Err(PeerError::Timeout { name: name.clone() });
            }
            wait(link);
        }
    }
}

fn is_proved_with(key: &Key, hello: &[u8], greeted: &HelloReply) -> bool {
    same_proof(&greeted.proof, &server_proof(key, hello, &greeted.server_nonce))
}

/// Waits a little for the link's descriptor.
fn wait(link: &TcpLink) {
    let events = libc::POLLIN | if link.wants_write() { libc::POLLOUT } else { 0 };
    let mut poll = libc::pollfd { fd: link.fd(), events, revents: 0 };
    // SAFETY: one live pollfd. An interrupted or failed wait only ends early.
    unsafe { libc::poll(&mut poll, 1, WAIT_STEP.as_millis() as i32) };
}
