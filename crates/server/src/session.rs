//! One connection: greeting and proof, then requests until it ends.
//!
//! ```text
//!   accepted ──Hello──► versions? who? ──HelloReply──► Prove ──right──► requests: recv, dispatch, reply
//!                 │                                       │
//!                 └── refused ◄───────── wrong ───────────┘            all within the handshake's time
//! ```
//!
//! A request that has to wait goes on as a task of its own, as many as the connection has credits; the others are
//! done in place, which costs nothing but their own time. A connection ends when its key expires or is
//! revoked. An error is a reply; only a peer that breaks the protocol is cut off.

use crate::answer::{Answer, Refusal};
use crate::both::{Either, either};
use crate::counters::{ClientDone, shortened};
use crate::crowd::{self, Guest, Place};
use crate::identity::{Identity, Session};
use crate::log;
use crate::node::Node;
use crate::service::Service;
use crate::shared::Shared;
use crate::spent;
use std::cell::Cell;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};
use weft_transport::{ConnError, Incoming, PeerInfo, ServerBulk, ServerConn};
use weft_wire::limits::{CREDITS_PER_CONNECTION, HANDSHAKE_TIMEOUT_MS};
use weft_wire::messages::{HelloReply, HelloRequest, ProveReply, ProveRequest, peer_role};
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{Header, Op, Status, VERSIONS, body, negotiate};

/// Requests done in place, one behind the other, before other connections get their turn.
const TURNS: u32 = 8;

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("it did not prove itself within {HANDSHAKE_TIMEOUT_MS} ms")]
    Timeout,
    #[error("its peer has too many connections that prove nothing, and this is the oldest")]
    Crowded,
    #[error("{0}")]
    Connection(#[from] ConnError),
    #[error("{}", .0.text)]
    Refused(Refusal),
}

/// Serves a connection to its end, which has this place among all.
pub(crate) async fn serve<C: ServerConn, S: Service>(service: Rc<S>, conn: C, place: Place) {
    let node = service.node();
    let limit = Duration::from_millis(HANDSHAKE_TIMEOUT_MS);
    let peer = crowd::name_of(&conn.peer());
    let stranger = node.shared.crowd.enter(&peer, place);
    let greeted =
        match either(weft_reactor::timeout(limit, greet(&service, &conn, place)), stranger.leaves()).await {
            Either::First(greeted) => greeted.unwrap_or(Err(HandshakeError::Timeout)),
            Either::Second(()) => Err(HandshakeError::Crowded),
        };
    drop(stranger);
    let member = match greeted {
        Ok(member) => member,
        Err(HandshakeError::Connection(ConnError::Closed { .. } | ConnError::Ended { .. })) => return,
        Err(error) => {
            node.shared.counters.refused_connections.fetch_add(1, Ordering::Relaxed);
            if log::once_a_minute(&format!("refused {peer}")) {
                log::warning!(&node.shared.name, "refused a connection of {}: {error}", who(&conn.peer()));
            }
            return conn.close();
        }
    };
    let PeerInfo { transport, user_id, .. } = conn.peer();
    let connections = node.shared.counters.gauge(connections_over(&transport));
    connections.fetch_add(1, Ordering::Relaxed);
    let session = member.session.clone();
    let done = node.shared.clients.connected(&session, transport, user_id);
    let connection =
        Rc::new(Connection { service: service.clone(), conn, session, done, under_way: Cell::new(0) });
    let weak = Rc::downgrade(&connection);
    node.look_after_requests();
    let guard = node.guard(&connection.session.identity, move || {
        if let Some(connection) = weak.upgrade() {
            connection.conn.close();
        }
    });
    let end = connection.run().await;
    member.is_ended.set(matches!(end, End::ByHost));
    let cause = guard.cause().map(str::to_owned).or(end.cause());
    drop(guard);
    connection.conn.close();
    node.shared.clients.disconnected(&connection.session.hello.session);
    drop(member);
    connections.fetch_sub(1, Ordering::Relaxed);
    if let Some(cause) = cause {
        node.shared.counters.cut_connections.fetch_add(1, Ordering::Relaxed);
        if log::once_a_minute(&format!("cut {peer}")) {
            log::warning!(&node.shared.name, "cut off {}: {cause}", who(&connection.conn.peer()));
        }
    }
}

/// A peer for the log: its address, or its process and user.
fn who(peer: &PeerInfo) -> String {
    match peer.user_id {
        Some(user_id) => format!("{} of user {user_id}", peer.address),
        None => peer.address.clone(),
    }
}

/// The gauge of a transport.
fn connections_over(transport: &str) -> &'static str {
    match transport.split(' ').next() {
        Some("tcp") => "connections_tcp",
        Some("shm") => "connections_shm",
        Some("verbs") => "connections_rdma",
        _ => "connections_in_process",
    }
}

/// Greeting and proof.
async fn greet<C: ServerConn, S: Service>(
    service: &Rc<S>,
    conn: &C,
    place: Place,
) -> Result<Member<S>, HandshakeError> {
    let shared = &service.node().shared;
    let (header, body) = message(conn).await?;
    let hello = match check_hello(&header, &body) {
        Ok(hello) => hello,
        Err(refusal) => return refuse(conn, &header, refusal).await,
    };
    let (identity, key) = match identify(shared, &hello, &conn.peer()) {
        Ok(identified) => identified,
        Err(refusal) => return refuse(conn, &header, refusal).await,
    };
    let server_nonce = match weft_host::random() {
        Ok(nonce) => nonce,
        Err(error) => {
            let refusal = Refusal::new(Status::Internal, format!("no random numbers: {error}"));
            return refuse(conn, &header, refusal).await;
        }
    };
    let version = negotiate(VERSIONS, (hello.version_min, hello.version_max)).unwrap_or(VERSIONS.1);
    let reply = HelloReply { version, server_nonce, proof: server_proof(&key, &body, &server_nonce) };
    conn.reply(header.reply(Status::Ok), &body::encode(&reply), &[]).await?;
    let expected = client_proof(&key, &body, &server_nonce);

    let (header, body) = message(conn).await?;
    let proof = body::decode(&header, &body).ok().filter(|_| header.op == Op::Prove);
    if !proof.is_some_and(|given: ProveRequest| same_proof(&given.proof, &expected)) {
        let text =
            "the proof is wrong: the peer does not have a key of this cluster, or its key file was changed";
        return refuse(conn, &header, Refusal::new(Status::Unauthenticated, text)).await;
    }
    if let Some(why) = shared.ended(&identity) {
        return refuse(conn, &header, Refusal::new(Status::Unauthenticated, why)).await;
    }
    // A server of the cluster always finds a place.
    let guest = match hello.role {
        peer_role::SERVER => None,
        _ => match shared.crowd.seat(&crowd::name_of(&conn.peer()), place) {
            Ok(guest) => Some(guest),
            Err(refusal) => return refuse(conn, &header, refusal).await,
        },
    };
    // Before it hears of its session's run, so that the run does not end meanwhile.
    let (member, epoch) = Member::join(service, Session::new(hello, identity), guest);
    let reply = ProveReply {
        cluster_id: shared.cluster_id,
        server_name: shared.name.clone(),
        epoch,
        credits: CREDITS_PER_CONNECTION,
        boot_id: shared.boot_id,
        loss_epoch: service.loss_epoch(),
    };
    conn.prove();
    let header = Header { map_version: shared.map.version(), ..header.reply(Status::Ok) };
    conn.reply(header, &body::encode(&reply), &[]).await?;
    Ok(member)
}

/// Who a greeting claims to be, and the key that makes the proofs of it.
fn identify(shared: &Shared, hello: &HelloRequest, peer: &PeerInfo) -> Result<(Identity, Key), Refusal> {
    match (hello.role, &hello.key) {
        (peer_role::CLIENT, Some(key)) => Ok((Identity::of_key(key), shared.keys.secret_of(key))),
        (peer_role::SERVER, None) => Ok((Identity::server(), shared.keys.server_keys().swap_remove(0))),
        (peer_role::PROCESS, None) => match Identity::of_process(peer, shared.own_uid) {
            Some(identity) => Ok((identity, Key::ZERO)),
            None => {
                let text = "without a key clients are served over the server's Unix socket only; see: weft help keys";
                Err(Refusal::new(Status::Unauthenticated, text))
            }
        },
        _ => {
            let text = format!("a greeting of role {} that cannot be", hello.role);
            Err(Refusal::new(Status::Invalid, text))
        }
    }
}

/// A proven connection as one of its session's, until it is dropped.
struct Member<S: Service> {
    service: Rc<S>,
    session: Rc<Session>,
    _guest: Option<Guest>,
    /// The client's host has closed the connection in order.
    is_ended: Cell<bool>,
}

impl<S: Service> Member<S> {
    /// With the epoch for the client.
    fn join(service: &Rc<S>, session: Session, guest: Option<Guest>) -> (Member<S>, u64) {
        let epoch = service.connected(&session);
        let member = Member {
            service: service.clone(),
            session: Rc::new(session),
            _guest: guest,
            is_ended: Cell::new(false),
        };
        (member, epoch)
    }
}

impl<S: Service> Drop for Member<S> {
    fn drop(&mut self) {
        self.service.disconnected(&self.session, self.is_ended.get());
    }
}

/// The next message of the handshake, which has no bulk data.
async fn message<C: ServerConn>(conn: &C) -> Result<(Header, Vec<u8>), HandshakeError> {
    let incoming = conn.recv().await?;
    incoming.bulk.discard().await?;
    Ok((incoming.header, incoming.body))
}

fn check_hello(header: &Header, body: &[u8]) -> Result<HelloRequest, Refusal> {
    if header.op != Op::Hello {
        let text = format!("{} before the peer has proved that it knows the cluster's key", header.op.name());
        return Err(Refusal::new(Status::Unauthenticated, text));
    }
    let hello: HelloRequest = body::decode(header, body)?;
    if negotiate(VERSIONS, (hello.version_min, hello.version_max)).is_none() {
        let text = format!(
            "the peer speaks versions {} to {} of the protocol, this server {} to {}; upgrade the older one",
            hello.version_min, hello.version_max, VERSIONS.0, VERSIONS.1
        );
        return Err(Refusal::new(Status::Version, text));
    }
    Ok(hello)
}

async fn refuse<C: ServerConn, T>(conn: &C, header: &Header, refusal: Refusal) -> Result<T, HandshakeError> {
    conn.reply(header.reply(refusal.status), &refusal.body(), &[]).await?;
    Err(HandshakeError::Refused(refusal))
}

/// A proven connection.
struct Connection<C: ServerConn, S: Service> {
    service: Rc<S>,
    conn: C,
    session: Rc<Session>,
    done: Arc<ClientDone>,
    under_way: Cell<u16>,
}

/// How a connection ends.
enum End {
    /// It is closed on this side, or broken, or the client has reset it.
    Closed,
    /// See [`ConnError::Ended`].
    ByHost,
    /// It is cut.
    Cut(String),
}

impl End {
    /// Why it is cut, if it is.
    fn cause(self) -> Option<String> {
        match self {
            End::Cut(cause) => Some(cause),
            End::Closed | End::ByHost => None,
        }
    }
}

impl<C: ServerConn, S: Service> Connection<C, S> {
    fn node(&self) -> &Node {
        self.service.node()
    }

    /// Takes requests until the connection ends or the server stops.
    async fn run(self: &Rc<Self>) -> End {
        let mut transport_known = false;
        let mut turns = 0u32;
        loop {
            let incoming = match either(self.conn.recv(), self.node().stopping.wait()).await {
                Either::First(Ok(incoming)) => incoming,
                Either::First(Err(ConnError::Closed { .. })) => return End::Closed,
                Either::First(Err(ConnError::Ended { .. })) => return End::ByHost,
                Either::First(Err(error)) => return End::Cut(error.to_string()),
                Either::Second(()) => {
                    self.drain().await;
                    return End::Closed;
                }
            };
            if !std::mem::replace(&mut transport_known, true) {
                let transport = self.conn.peer().transport;
                self.node().shared.clients.transport_is(&self.session.hello.session, transport);
            }
            if self.under_way.get() >= CREDITS_PER_CONNECTION {
                return End::Cut(format!(
                    "it sent more than the {CREDITS_PER_CONNECTION} requests it has credits for"
                ));
            }
            let under_way = UnderWay::begin(self.clone());
            if self.under_way.get() == CREDITS_PER_CONNECTION {
                self.node().shared.counters.credits_used_up.fetch_add(1, Ordering::Relaxed);
            }
            if self.service.may_wait(incoming.header.op) {
                // The future is large, and most end without a wait: they need no task.
                let mut served = Box::pin(under_way.serve(incoming));
                if !ends_at_once(served.as_mut()).await {
                    weft_reactor::spawn(served);
                    continue;
                }
            } else {
                under_way.serve(incoming).await;
            }
            turns += 1;
            if turns.is_multiple_of(TURNS) {
                weft_reactor::yield_now().await;
            }
        }
    }

    /// Lets what is under way end, within the server's time for stopping.
    async fn drain(&self) {
        while self.under_way.get() > 0 {
            weft_reactor::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The header of a reply, from which the client hears whether there is a newer map.
    fn reply_to(&self, header: &Header, status: Status) -> Header {
        Header { map_version: self.node().shared.map.version(), ..header.reply(status) }
    }

    async fn serve_one(&self, incoming: Incoming<C::Bulk>) {
        let Incoming { header, body, mut bulk } = incoming;
        let begun_ms = weft_log::coarse_ms();
        let counters = &self.node().shared.counters;
        let is_told = tracing::enabled!(tracing::Level::DEBUG);
        let begun = (is_told || counters.keeps_times()).then(Instant::now);
        let mut request = spent::Request::new(header.trace);
        let place = self.node().requests.begin(header.op, begun_ms, request, &self.session);
        let result = {
            let handler = pin!(self.service.dispatch(&self.session, &header, &body, &mut bulk));
            spent::serving(&mut request, handler, |request| place.note(request)).await
        };
        let moved_bytes = result.as_ref().map_or(0, |answer| answer.moved_bytes);
        let status = result.as_ref().err().map_or(Status::Ok, |refusal| refusal.status);
        counters.done(header.op, status, moved_bytes, begun.map(|begun| begun.elapsed()));
        self.done.note(header.op, moved_bytes);
        let reply_begun_ms = weft_log::coarse_ms();
        request.begin(spent::Part::Send, reply_begun_ms);
        place.note(&request);
        let replied = match result {
            Ok(Answer { body, payload, .. }) => {
                let header = self.reply_to(&header, Status::Ok).moved(moved_bytes);
                self.conn.reply(header, &body, &[IoSlice::new(&payload)]).await
            }
            Err(refusal) => match bulk.discard().await {
                Ok(()) => {
                    let status = refusal.status.for_version(header.version);
                    self.conn.reply(self.reply_to(&header, status), &refusal.body(), &[]).await
                }
                Err(error) => Err(error),
            },
        };
        let ended_ms = weft_log::coarse_ms();
        self.node().busy.note(request.ino, header.op, status, moved_bytes, ended_ms);
        drop(place);
        request.add(spent::Part::Send, ended_ms - reply_begun_ms);
        self.node().shared.slow.look(
            &self.node().shared.name,
            header.op,
            request,
            status,
            ended_ms - begun_ms,
            &self.session.hello,
        );
        if let Some(begun) = begun.filter(|_| is_told) {
            tracing::debug!(
                server = self.node().shared.name,
                op = header.op.name(),
                ino = request.ino,
                bytes = moved_bytes,
                status = status.to_string(),
                us = begun.elapsed().as_micros() as u64,
                request = header.request_id,
                trace = header.trace,
                "done for {}({})",
                shortened(&self.session.hello.program),
                self.session.hello.process_id,
            );
        }
        if replied.is_err() {
            // The connection is gone, which its receiving side hears too.
            self.conn.close();
        }
    }
}

/// Whether a request ends when it is polled for the first time. Else it is to be polled on.
async fn ends_at_once(mut request: Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_ready())).await
}

/// Counts a request while it is under way, however it ends.
struct UnderWay<C: ServerConn, S: Service> {
    connection: Rc<Connection<C, S>>,
}

impl<C: ServerConn, S: Service> UnderWay<C, S> {
    fn begin(connection: Rc<Connection<C, S>>) -> Self {
        connection.under_way.set(connection.under_way.get() + 1);
        connection.node().under_way.set(connection.node().under_way.get() + 1);
        connection.node().shared.counters.active_requests.fetch_add(1, Ordering::Relaxed);
        UnderWay { connection }
    }

    async fn serve(self, incoming: Incoming<C::Bulk>) {
        self.connection.serve_one(incoming).await;
    }
}

impl<C: ServerConn, S: Service> Drop for UnderWay<C, S> {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.under_way.set(connection.under_way.get() - 1);
        connection.node().under_way.set(connection.node().under_way.get() - 1);
        connection.node().shared.counters.active_requests.fetch_sub(1, Ordering::Relaxed);
    }
}
