//! A server as the client of another one: it connects when it first has something to ask, and again after a
//! connection was lost.
//!
//! ```text
//!   call ─► connected? ──────────────────────────────► calls.rs
//!             └ no: a thread dials and greets (weft-rpc) ─┘
//! ```
//!
//! Dialling looks names up and waits for the other kernel, which a reactor must not; so it has a thread of its
//! own, for as long as it takes. TCP is tried first, then RDMA.

use crate::calls::Connection;
use crate::key_ring::KeyRing;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_reactor::{LocalLock, mailbox};
use weft_rpc::dial::{Dial, Greet, NetworkDial, Transport, Wish};
use weft_rpc::error::{Error, ErrorKind};
use weft_rpc::greet::{Identity, ask, is_proved_with};
use weft_rpc::host::random;
use weft_rpc::rdma::{RdmaOptions, RdmaSource};
use weft_rpc::traffic::Traffic;
use weft_transport::Link;
use weft_wire::messages::{HelloRequest, ProveReply, ServerInfo};
use weft_wire::security::Key;
use weft_wire::{Request, Status, body};

/// How long one attempt to connect may take, over one transport.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a handshake may take: a busy server greets late.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// What it says of itself to other servers.
const PROGRAM: &str = "weft server";

/// Why another server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("{name} refused: {status}: {text}")]
    Refused { name: String, status: Status, text: String },
    #[error("{name} does not have this cluster's key")]
    WrongKey { name: String },
    #[error("{name}: {cause}")]
    Unreachable { name: String, cause: String },
}

impl PeerError {
    fn of(name: &str, error: &Error) -> PeerError {
        let (name, text) = (name.to_owned(), error.detail().to_owned());
        match error.kind() {
            ErrorKind::Status(status) => PeerError::Refused { name, status, text },
            ErrorKind::Untrusted => PeerError::WrongKey { name },
            _ => PeerError::Unreachable { name, cause: text },
        }
    }
}

/// Another server of the cluster.
pub(crate) struct Peer {
    server: RefCell<ServerInfo>,
    keys: KeyRing,
    connection: LocalLock<Option<Rc<Connection>>>,
}

impl Peer {
    /// Not connected yet.
    pub fn new(server: ServerInfo, keys: KeyRing) -> Peer {
        Peer { server: RefCell::new(server), keys, connection: LocalLock::new(None) }
    }

    /// The same server, over a connection of its own.
    pub fn apart(&self) -> Peer {
        Peer::new(self.server.borrow().clone(), self.keys.clone())
    }

    /// Its name in the cluster file.
    pub fn name(&self) -> String {
        self.server.borrow().name.clone()
    }

    /// The server is where `server` says from now on. A connection that stands goes on.
    pub fn is_at(&self, server: &ServerInfo) {
        if *self.server.borrow() != *server {
            self.server.replace(server.clone());
        }
    }

    /// Waits until the connection that stands is gone; for ever where there is none.
    pub async fn gone(&self) {
        let connection = self.connection.lock().await.clone();
        match connection.filter(|connection| !connection.has_ended()) {
            Some(connection) => connection.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Asks, and waits for the answer; connects first where there is no connection.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Reply, PeerError> {
        let connection = self.connect().await?;
        connection.call(request).await.map_err(|error| PeerError::of(&self.server.borrow().name, &error))
    }

    async fn connect(&self) -> Result<Rc<Connection>, PeerError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref().filter(|connection| !connection.has_ended()) {
            return Ok(connection.clone());
        }
        // One that has ended is closed before there is another one.
        *connection = None;
        let server = self.server.borrow().clone();
        let name = server.name.clone();
        let (sender, mut dialled) = mailbox(1);
        let dialler = Dialler::new(server, &self.keys);
        let failed = |cause: String| PeerError::Unreachable { name: name.clone(), cause };
        let thread = std::thread::Builder::new().name("weft-dial".into());
        thread
            // Nobody waits for it any more where the call was dropped.
            .spawn(move || drop(sender.send(dialler.dial())))
            .map_err(|error| failed(format!("no thread to connect to it: {error}")))?;
        let link = dialled.receive().await.ok_or_else(|| failed("connecting to it has failed".into()))?;
        let link = link.map_err(|error| PeerError::of(&name, &error))?;
        let new = Connection::new(&name, link).map_err(|error| failed(error.to_string()))?;
        let new = Rc::new(new);
        *connection = Some(new.clone());
        Ok(new)
    }
}

/// One attempt to connect, which may be made on any thread.
struct Dialler {
    server: ServerInfo,
    identity: Identity,
}

impl Dialler {
    fn new(server: ServerInfo, keys: &KeyRing) -> Dialler {
        Dialler { server, identity: Identity::server(keys.server_keys(), Some(keys.knock_key()), PROGRAM) }
    }

    fn dial(&self) -> Result<Box<dyn Link>, Error> {
        let session = random()?;
        let mut greet = |link: &mut dyn Link| {
            let proven = self.identity.greet(link, session, GREETING_TIMEOUT)?.proven;
            self.check(&proven).map(|()| proven)
        };
        over_any_transport(&self.server, &self.identity, &mut greet)
    }

    /// Whether the server that answered is the one that was meant: one that moved may have left its address to another.
    fn check(&self, proven: &ProveReply) -> Result<(), Error> {
        let (other, name) = (&proven.server_name, &self.server.name);
        if other == name {
            return Ok(());
        }
        let text = format!("{other} answers at its address, where {name} was expected");
        Err(Error::new("connect", ErrorKind::Unreachable, text))
    }
}

/// Whether a server proves with `secret` that it knows the key of `identity`. The greeting goes no further.
///
/// # Errors
/// It cannot be reached, or refuses the greeting.
pub(crate) fn proves_with(server: &ServerInfo, identity: &Identity, secret: &Key) -> Result<bool, PeerError> {
    let failed = |error: &Error| PeerError::of(&server.name, error);
    let session = random().map_err(|error| failed(&error))?;
    let mut proved = None;
    let mut greet = |link: &mut dyn Link| {
        let hello = identity.hello(session)?;
        let reply = ask(link, 1, &hello, Instant::now() + GREETING_TIMEOUT)?;
        proved = Some(is_proved_with(secret, &body::encode(&hello), &reply));
        Err(Error::new(HelloRequest::OP.name(), ErrorKind::Invalid, "nothing more is asked"))
    };
    let dialled = over_any_transport(server, identity, &mut greet);
    match (proved, dialled) {
        (Some(proved), _) => Ok(proved),
        (None, Err(error)) => Err(failed(&error)),
        (None, Ok(_)) => unreachable!("the greeting ends with an error"),
    }
}

/// Connects over the first transport that works. The error is that of the first.
fn over_any_transport(
    server: &ServerInfo,
    identity: &Identity,
    greet: &mut Greet<'_>,
) -> Result<Box<dyn Link>, Error> {
    let rdma = Arc::new(RdmaSource::new(RdmaOptions::default(), None));
    let wish = Wish { traffic: Traffic::Metadata, rail: None };
    let mut failure = None;
    for transport in [Transport::Tcp, Transport::Rdma] {
        let dial = NetworkDial::new(transport, CONNECT_TIMEOUT, identity.knock().cloned(), rdma.clone());
        match dial.dial(server, &wish, greet) {
            Ok(dialled) => return Ok(dialled.link),
            Err(error) if error.kind() == ErrorKind::Unreachable => drop(failure.get_or_insert(error)),
            Err(error) => return Err(failure.unwrap_or(error)),
        }
    }
    Err(failure.expect("every transport was tried, and has failed"))
}
