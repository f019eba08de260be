//! The handshake on a new connection: versions, then each side proves to the other that it knows the key.
//!
//! ```text
//!   this side                                          the server
//!   Hello: role, key's number, nonce ───────────────►
//!           ◄─────────────── proof that it knows the key, its nonce
//!   Prove: proof that this side knows the key ──────►
//!           ◄─────────────── cluster, name, run, credits
//! ```
//!
//! [`Handshake`] never waits: a reactor calls [`Handshake::poll`] when the link's descriptor is ready. A
//! thread that may wait calls [`Identity::greet`].

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use weft_log::trace::current_or_fresh;
use weft_transport::{Bulk, Completion, Link, LinkError};
use weft_wire::keys::{IssuedKey, KeyInfo};
use weft_wire::messages::{ErrorDetail, HelloReply, HelloRequest, ProveReply, ProveRequest, peer_role};
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{Added, Header, Op, Request, Status, VERSIONS, body};

use crate::deadline::{self, LOOK_EVERY};
use crate::error::{Error, ErrorKind};
use crate::host::random;
use crate::wait::{PollSet, Waker};

/// What this program shows and says of itself to every server.
#[derive(Debug, Clone)]
pub struct Identity {
    role: u8,
    /// The key by whose number a server finds the secret; `None` where the role implies it.
    key: Option<KeyInfo>,
    /// A server must prove that it knows one of these. The proof to it is made with the same one.
    secrets: Vec<Key>,
    /// What is shown before there is an RDMA connection.
    knock: Option<Key>,
    host: String,
    program: String,
    boot_id: [u8; 16],
    ends_with_connection: bool,
    member: u16,
}

impl Identity {
    /// A client with this key. Without a key it is served over Unix sockets only, where the kernel tells
    /// servers who this process is. `program` is for the servers' list of clients; without it: the name of
    /// the executable.
    pub fn client(key: Option<&IssuedKey>, program: Option<&str>) -> Identity {
        let executable = std::env::current_exe().ok();
        let executable =
            executable.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        let program = program.map(str::to_string).or(executable.map(|name| name.into_owned()));
        Identity {
            role: if key.is_some() { peer_role::CLIENT } else { peer_role::PROCESS },
            key: key.map(|key| key.info.clone()),
            secrets: vec![key.map_or(Key::ZERO, |key| key.secret.clone())],
            knock: key.map(|key| key.knock.clone()),
            host: weft_host::name(),
            program: program.unwrap_or_default(),
            boot_id: weft_host::boot_id(),
            ends_with_connection: false,
            member: 0,
        }
    }

    /// Whether sessions end with their last connection (over TCP), as soon as the client's host closes it: when the process
    /// is killed, too. Without that the server waits for a while whether the client comes back.
    pub fn ending_with_connection(self, ends_with_connection: bool) -> Identity {
        Identity { ends_with_connection, ..self }
    }

    /// One of the processes that share a session, with this number.
    pub(crate) fn of_member(self, member: u16) -> Identity {
        Identity { member, ..self }
    }

    /// A server of the cluster, which has one of these keys of servers. `knock` is needed for RDMA.
    pub fn server(secrets: Vec<Key>, knock: Option<Key>, program: &str) -> Identity {
        Identity {
            role: peer_role::SERVER,
            key: None,
            knock,
            secrets,
            host: weft_host::name(),
            program: program.to_string(),
            boot_id: weft_host::boot_id(),
            ends_with_connection: false,
            member: 0,
        }
    }

    /// Whether there is no key to show.
    pub fn is_keyless(&self) -> bool {
        self.role == peer_role::PROCESS
    }

    /// What is shown before there is an RDMA connection; `None` without a key.
    pub fn knock(&self) -> Option<&Key> {
        self.knock.as_ref()
    }

    /// The first message on a connection of `session`, with a nonce of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Local`] where the kernel gives no random bytes.
    pub fn hello(&self, session: [u8; 16]) -> Result<HelloRequest, Error> {
        Ok(HelloRequest {
            version_min: VERSIONS.0,
            version_max: VERSIONS.1,
            role: self.role,
            client_nonce: random()?,
            key: self.key.clone(),
            session,
            boot_id: self.boot_id,
            process_id: std::process::id(),
            host: self.host.clone(),
            program: self.program.clone(),
            ends_with_connection: Added(self.ends_with_connection),
            member: Added(self.member),
        })
    }

    /// Greets the server at the other end of `link`, as a connection of `session`, and waits for its replies.
    ///
    /// # Errors
    /// As for [`Handshake::poll`].
    pub fn greet(&self, link: &mut dyn Link, session: [u8; 16], timeout: Duration) -> Result<Greeted, Error> {
        let deadline = Instant::now() + timeout;
        let mut handshake = Handshake::begin(self, session, link)?;
        loop {
            if let Some(proven) = handshake.poll(link)? {
                return Ok(Greeted { proven, version: handshake.version });
            }
            let slept = sleep_on(link, deadline);
            slept.map_err(|cause| lost(handshake.op(), &*link, cause))?;
        }
    }
}

/// Whether a server's reply to a `HelloRequest` with the body `hello` is proved with this key.
pub fn is_proved_with(secret: &Key, hello: &[u8], reply: &HelloReply) -> bool {
    same_proof(&reply.proof, &server_proof(secret, hello, &reply.server_nonce))
}

/// Which server a connection is expected to lead to.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The cluster's id.
    pub cluster_id: &'a [u8; 16],
    /// The server's name in the map.
    pub name: &'a str,
}

impl Expected<'_> {
    /// Checks who answered.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for a server of another cluster; [`ErrorKind::Unreachable`] for another
    /// server of this one, for then a newer map has the address.
    pub fn check(&self, proven: &ProveReply) -> Result<(), Error> {
        let (kind, text) = if proven.cluster_id != *self.cluster_id {
            (ErrorKind::Untrusted, "a server of another cluster answered at its address".to_string())
        } else if proven.server_name != self.name {
            let text = format!("server `{}` answered where `{}` was expected", proven.server_name, self.name);
            (ErrorKind::Unreachable, text)
        } else {
            return Ok(());
        };
        Err(Error::new("connect", kind, text).at_server(self.name))
    }
}

/// A handshake under way on one connection, with nothing else on it.
pub struct Handshake {
    /// The body of the first message.
    hello: Vec<u8>,
    secrets: Vec<Key>,
    step: Step,
    version: u8,
}

/// What a server said when it was greeted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeted {
    /// The last of its replies.
    pub proven: ProveReply,
    /// The version of the protocol that is used with it: the newest that both sides speak.
    pub version: u8,
}

enum Step {
    Hello(Exchange<HelloRequest>),
    Prove(Exchange<ProveRequest>),
}

impl Handshake {
    /// Sends the first message.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] where the connection is lost, [`ErrorKind::Local`] where the kernel gives
    /// no random bytes.
    pub fn begin(identity: &Identity, session: [u8; 16], link: &mut dyn Link) -> Result<Handshake, Error> {
        let hello = identity.hello(session)?;
        let step = Step::Hello(Exchange::begin(link, 1, &hello)?);
        let (hello, secrets) = (body::encode(&hello), identity.secrets.clone());
        Ok(Handshake { hello, secrets, step, version: VERSIONS.0 })
    }

    /// Goes on as far as it can without waiting. `None`: to be called again when the link's descriptor is
    /// ready. The link has its credits when it is over.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] where the server does not know the key, its status where it refuses this
    /// side, and [`ErrorKind::Unreachable`] where the connection is lost.
    pub fn poll(&mut self, link: &mut dyn Link) -> Result<Option<ProveReply>, Error> {
        if let Step::Hello(exchange) = &mut self.step {
            let Some(reply) = exchange.poll(link)? else { return Ok(None) };
            let prove = self.prove(&reply).map_err(|error| error.at_server(link.peer()))?;
            self.version = reply.version;
            self.step = Step::Prove(Exchange::begin(link, 2, &prove)?);
        }
        let Step::Prove(exchange) = &mut self.step else { return Ok(None) };
        let proven = exchange.poll(link)?;
        if let Some(proven) = &proven {
            link.set_credits(proven.credits);
        }
        Ok(proven)
    }

    /// The request whose reply is awaited.
    pub fn op(&self) -> Op {
        match self.step {
            Step::Hello(_) => HelloRequest::OP,
            Step::Prove(_) => ProveRequest::OP,
        }
    }

    fn prove(&self, reply: &HelloReply) -> Result<ProveRequest, Error> {
        if !(VERSIONS.0..=VERSIONS.1).contains(&reply.version) {
            let (theirs, (oldest, newest)) = (reply.version, VERSIONS);
            let text = format!(
                "it speaks version {theirs} of the protocol, this program {oldest} to {newest}; upgrade the older one"
            );
            return Err(Error::new("connect", ErrorKind::Protocol, text));
        }
        let known = self.secrets.iter().find(|secret| is_proved_with(secret, &self.hello, reply));
        let secret = known.ok_or_else(|| {
            let text = "it did not prove that it knows the cluster's key; the key here is another cluster's or was \
                        changed, or the server is no part of this one";
            Error::new("connect", ErrorKind::Untrusted, text)
        })?;
        Ok(ProveRequest { proof: client_proof(secret, &self.hello, &reply.server_nonce) })
    }
}

/// One request and its reply, with nothing else under way on the link.
pub struct Exchange<R> {
    request_id: u64,
    done: Vec<Completion>,
    request: PhantomData<R>,
}

impl<R: Request> Exchange<R> {
    /// Sends the request.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] where the connection is lost.
    pub fn begin(link: &mut dyn Link, request_id: u64, request: &R) -> Result<Exchange<R>, Error> {
        let header = Header { trace: current_or_fresh(), ..Header::request(R::OP, request_id) };
        // SAFETY: there is no bulk memory.
        let sent = unsafe { link.submit(header, &body::encode(request), Bulk::None) };
        sent.map_err(|error| lost(R::OP, &*link, error.to_string()))?;
        Ok(Exchange { request_id, done: Vec::new(), request: PhantomData })
    }

    /// The reply, if it has come.
    ///
    /// # Errors
    /// The server's status, or [`ErrorKind::Unreachable`] where the connection is lost.
    pub fn poll(&mut self, link: &mut dyn Link) -> Result<Option<R::Reply>, Error> {
        let progress = link.progress(&mut self.done);
        if let Some(completion) = self.done.drain(..).find(|done| done.header.request_id == self.request_id) {
            let reply = answer::<R>(&completion).map_err(|error| error.at_server(link.peer()));
            return reply.map(Some);
        }
        progress.map(|()| None).map_err(|error: LinkError| lost(R::OP, &*link, error.to_string()))
    }
}

fn lost(op: Op, link: &dyn Link, cause: String) -> Error {
    Error::new(op.name(), ErrorKind::Unreachable, cause).at_server(link.peer())
}

/// One request and its reply, with nothing else under way on the link; waits for the reply.
///
/// # Errors
/// As for [`Exchange::poll`].
pub fn ask<R: Request>(
    link: &mut dyn Link,
    request_id: u64,
    request: &R,
    deadline: Instant,
) -> Result<R::Reply, Error> {
    let mut exchange = Exchange::begin(link, request_id, request)?;
    loop {
        if let Some(reply) = exchange.poll(link)? {
            return Ok(reply);
        }
        sleep_on(link, deadline).map_err(|cause| lost(R::OP, &*link, cause))?;
    }
}

/// Sleeps until something may have come over the link.
fn sleep_on(link: &mut dyn Link, deadline: Instant) -> Result<(), String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("it did not answer in time; it is overloaded, or no Weft server".to_string());
    }
    let mut sleep = PollSet::new();
    sleep.add(link.fd(), link.wants_write());
    let waker = Waker::current();
    // A server that hangs takes connections, and says nothing.
    let step = if deadline::is_looked_after() { left.min(LOOK_EVERY) } else { left };
    let begin = Instant::now();
    let signalled = sleep.sleep(&waker, step.as_millis() as u64 + 1);
    waker.awake(signalled);
    if begin.elapsed() >= LOOK_EVERY && deadline::is_interrupted() {
        return Err("the wait for it was interrupted".to_string());
    }
    Ok(())
}

/// The body of a reply, or the server's error.
///
/// # Errors
/// [`ErrorKind::Status`] with the server's words, [`ErrorKind::Protocol`] for a body that cannot be read.
pub fn answer<R: Request>(completion: &Completion) -> Result<R::Reply, Error> {
    let name = R::OP.name();
    match completion.header.status {
        Status::Ok => body::decode(&completion.header, &completion.body).map_err(|error| {
            Error::new(name, ErrorKind::Protocol, format!("its answer cannot be read: {error}"))
        }),
        status => {
            let detail =
                body::decode(&completion.header, &completion.body).map(|detail: ErrorDetail| detail.text);
            Err(Error::new(name, ErrorKind::Status(status), detail.unwrap_or_default()))
        }
    }
}
