//! A server: its listeners, and who is connected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use weft_log::once_a_minute;
use weft_reactor::{Event, Interest, Readiness, Semaphore, sleep, spawn, yield_now};

use crate::connection;
use crate::counts::{Counters, Counts, add};
use crate::limits::Limits;
use crate::service::Service;

/// A pause after a connection could not be accepted for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Descriptors that connections leave to the rest of the process, at most a quarter of its limit: a gateway needs
/// some for its own connections to the cluster.
const DESCRIPTORS_LEFT: u64 = 64;

/// Serves calls. Clones are the same server.
pub struct Server<S> {
    pub(crate) inner: Rc<Inner<S>>,
}

pub(crate) struct Inner<S> {
    pub(crate) service: Rc<S>,
    pub(crate) limits: Limits,
    pub(crate) memory: Semaphore,
    pub(crate) counters: Counters,
    pub(crate) stopping: Event,
    next: Cell<u64>,
    members: RefCell<BTreeMap<u64, Rc<Member>>>,
}

/// Who is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The connection, a number of its own.
    pub number: u64,
    /// Its other end.
    pub address: SocketAddr,
    /// What carries its calls.
    pub transport: Transport,
}

/// What carries calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A byte stream.
    Tcp,
    /// RPC-over-RDMA, version 1.
    Rdma,
}

/// A connection, as others see it.
pub(crate) struct Member {
    pub(crate) peer: SocketAddr,
    pub(crate) number: u64,
    transport: Transport,
    /// Since when no part of a record has come.
    pub(crate) silent_since: Cell<Option<Instant>>,
    /// Calls that may begin.
    pub(crate) calls: Semaphore,
    /// It must make room for another.
    pub(crate) leaves: Event,
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Server<S> {
        Server { inner: self.inner.clone() }
    }
}

impl<S: Service> Server<S> {
    /// A server that listens nowhere yet.
    pub fn new(service: Rc<S>, limits: Limits) -> Server<S> {
        let inner = Inner {
            service,
            memory: Semaphore::new(limits.memory_bytes),
            limits,
            counters: Counters::default(),
            stopping: Event::new(),
            next: Cell::new(0),
            members: RefCell::default(),
        };
        Server { inner: Rc::new(inner) }
    }

    /// Who is connected.
    pub fn peers(&self) -> Vec<Peer> {
        let peer = |member: &Rc<Member>| Peer {
            number: member.number,
            address: member.peer,
            transport: member.transport,
        };
        self.inner.members.borrow().values().map(peer).collect()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let held = self.inner.limits.memory_bytes.saturating_sub(self.inner.memory.available());
        self.inner.counters.snapshot(self.inner.members.borrow().len(), held)
    }

    /// Accepts connections over TCP until [`Server::stop`].
    ///
    /// # Errors
    /// The listener cannot be waited for.
    pub async fn listen(&self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let readiness = Readiness::new(&listener)?;
        let stopping = &self.inner.stopping;
        let descriptors = descriptors_for_connections();
        let accepting = async {
            loop {
                match readiness.io(Interest::Read, || listener.accept()).await {
                    // The kernel gives out the lowest number that is free.
                    Ok((stream, _))
                        if stream.as_raw_fd() >= descriptors && !self.inner.frees_descriptor() => {}
                    Ok((stream, peer)) => self.accept(stream, peer),
                    Err(error) if lacks_descriptors(&error) && self.inner.frees_descriptor() => {
                        // The task of the connection that is closed gets its turn.
                        yield_now().await;
                    }
                    Err(error) => {
                        if once_a_minute("accept calls") {
                            tracing::warn!("a connection of a client cannot be accepted: {error}");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        first_of(accepting, stopping.wait()).await;
        Ok(())
    }

    /// Ends listening, and reading from all connections. Calls under way are still answered; when all are,
    /// there are no [`Server::peers`].
    pub fn stop(&self) {
        self.inner.stopping.set();
    }

    fn accept(&self, stream: TcpStream, peer: SocketAddr) {
        let Some(member) = self.inner.admit(peer, Transport::Tcp) else { return };
        let inner = self.inner.clone();
        spawn(async move {
            let served = connection::serve(&inner, stream, &member).await;
            inner.part_with(&member, served);
        });
    }
}

impl<S> Inner<S> {
    /// Puts a connection into the table; `None` if there is no room for it.
    pub(crate) fn admit(&self, peer: SocketAddr, transport: Transport) -> Option<Rc<Member>> {
        let count = self.limits.connections;
        if self.members.borrow().len() >= count
            && !self.makes_room(&format!("{count} clients are connected, as many as may be"))
        {
            return None;
        }
        add(&self.counters.accepted, 1);
        let number = self.next.replace(self.next.get() + 1);
        let member = Rc::new(Member {
            peer,
            number,
            transport,
            silent_since: Cell::new(Some(Instant::now())),
            calls: Semaphore::new(self.limits.calls_per_connection),
            leaves: Event::new(),
        });
        self.members.borrow_mut().insert(number, member.clone());
        Some(member)
    }

    /// Closes the connection that was idle longest, so that another one can be served. Whether there was one.
    fn makes_room(&self, why: &str) -> bool {
        add(&self.counters.crowded_out, 1);
        let has_room = self.dismiss_idlest();
        if once_a_minute("too many connections of clients") {
            let which = if has_room { "one that is idle" } else { "the new one" };
            tracing::warn!("{why}: {which} is closed");
        }
        has_room
    }

    /// As [`makes_room`](Inner::makes_room), where the process is out of descriptors.
    fn frees_descriptor(&self) -> bool {
        self.makes_room("the connections of clients take all file descriptors; raise LimitNOFILE (ulimit -n)")
    }

    /// Takes a connection out of the table that has ended like this.
    pub(crate) fn part_with(&self, member: &Member, served: io::Result<()>) {
        if let Err(error) = served {
            self.note_end(member.peer, &error);
        }
        self.members.borrow_mut().remove(&member.number);
    }

    /// Takes the connection from the table that has been idle longest, which closes it. Whether there is one.
    fn dismiss_idlest(&self) -> bool {
        let mut members = self.members.borrow_mut();
        // One turn is held by who waits for the next call.
        let idle = members.values().filter(|member| {
            member.calls.available() + 1 >= self.limits.calls_per_connection
                && member.silent_since.get().is_some()
        });
        let Some(number) = idle.min_by_key(|member| member.silent_since.get()).map(|member| member.number)
        else {
            return false;
        };
        members.remove(&number).inspect(|member| member.leaves.set()).is_some()
    }

    /// Tells why a connection has ended, if the peer is to blame.
    fn note_end(&self, peer: SocketAddr, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::TimedOut => {
                add(&self.counters.cut_off, 1);
                if once_a_minute(&format!("cut off {}", peer.ip())) {
                    tracing::warn!("the connection of {peer} is closed: {error}");
                }
            }
            _ => tracing::debug!("the connection of {peer} has ended: {error}"),
        }
    }
}

/// Connections have descriptors of smaller numbers.
fn descriptors_for_connections() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and writable.
    let has_limit = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let all = if has_limit { limit.rlim_cur } else { u64::MAX };
    RawFd::try_from(all - DESCRIPTORS_LEFT.min(all / 4)).unwrap_or(RawFd::MAX)
}

/// Whether the process, or the host, has no descriptor left.
fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Waits for whichever ends first, and drops the other. The result of `one`, if it was that.
pub(crate) async fn first_of<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> Option<A> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = one.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        other.as_mut().poll(cx).map(|_| None)
    })
    .await
}
