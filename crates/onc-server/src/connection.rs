//! Connections: accepting, one task that reads, one that writes, and one for each call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use weft_onc_rpc::reply;
use weft_reactor::{Event, Interest, Readiness, Semaphore, sleep, spawn};

use crate::incoming::{Incoming, Reader};
use crate::outgoing::{Outgoing, Queue};
use crate::service::{Call, Reply, Service};

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; what comes beyond is closed.
    pub connections: usize,
    /// Calls under way on one connection; what comes beyond is not read.
    pub calls_per_connection: usize,
    /// Bytes of all calls and their replies together. At least twice a record.
    pub memory_bytes: usize,
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Time for a record once it has begun, and for the peer to take some of its replies.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            calls_per_connection: 128,
            memory_bytes: 256 << 20,
            record_bytes: (1 << 20) + (64 << 10),
            stall: Duration::from_secs(60),
        }
    }
}

/// A pause after a connection could not be accepted for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves calls. Clones are the same server.
pub struct Server<S> {
    inner: Rc<Inner<S>>,
}

struct Inner<S> {
    service: Rc<S>,
    limits: Limits,
    memory: Semaphore,
    next: Cell<u64>,
    peers: RefCell<BTreeMap<u64, SocketAddr>>,
    stopping: Event,
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
            next: Cell::new(0),
            peers: RefCell::default(),
            stopping: Event::new(),
        };
        Server { inner: Rc::new(inner) }
    }

    /// Who is connected: the number of each connection, and its peer.
    pub fn peers(&self) -> Vec<(u64, SocketAddr)> {
        self.inner.peers.borrow().iter().map(|(number, peer)| (*number, *peer)).collect()
    }

    /// Accepts connections until [`Server::stop`].
    ///
    /// # Errors
    /// The listener cannot be waited for.
    pub async fn listen(&self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let readiness = Readiness::new(&listener)?;
        let stopping = &self.inner.stopping;
        let accepting = async {
            loop {
                match readiness.io(Interest::Read, || listener.accept()).await {
                    Ok((stream, peer)) => self.accept(stream, peer),
                    Err(error) => {
                        tracing::warn!("a connection cannot be accepted: {error}");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        first_of(accepting, stopping.wait()).await;
        Ok(())
    }

    /// Ends listening, and reading from all connections. Calls under way are still answered.
    pub fn stop(&self) {
        self.inner.stopping.set();
    }

    fn accept(&self, stream: TcpStream, peer: SocketAddr) {
        let count = self.inner.peers.borrow().len();
        if count >= self.inner.limits.connections {
            tracing::warn!("{peer} is refused: there are {count} connections");
            return;
        }
        let number = self.inner.next.replace(self.inner.next.get() + 1);
        self.inner.peers.borrow_mut().insert(number, peer);
        let inner = self.inner.clone();
        spawn(async move {
            if let Err(error) = serve(&inner, stream, peer, number).await {
                tracing::debug!("{peer}: {error}");
            }
            inner.peers.borrow_mut().remove(&number);
        });
    }
}

/// Waits for whichever ends first, and drops the other.
async fn first_of<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|cx| match one.as_mut().poll(cx).is_ready() || other.as_mut().poll(cx).is_ready() {
        true => std::task::Poll::Ready(()),
        false => std::task::Poll::Pending,
    })
    .await
}

async fn serve<S: Service>(
    inner: &Rc<Inner<S>>,
    stream: TcpStream,
    peer: SocketAddr,
    number: u64,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = Rc::new(stream);
    let readiness = Rc::new(Readiness::new(&*stream)?);
    let queue = Rc::new(Queue::default());
    let stall = inner.limits.stall;
    let failed = Rc::new(Event::new());
    let writer = spawn({
        let (stream, readiness, queue, failed) =
            (stream.clone(), readiness.clone(), queue.clone(), failed.clone());
        async move {
            let sent = queue.send(&stream, &readiness, stall).await;
            failed.set();
            sent
        }
    });
    let calls = Semaphore::new(inner.limits.calls_per_connection);
    let mut reader = Reader::new(&stream, &readiness, &inner.limits, &inner.memory);
    let reading = async {
        loop {
            let turn = calls.acquire(1).await;
            match reader.next(&*inner.service).await? {
                Incoming::End => return Ok(()),
                Incoming::Answered(reply) => queue.push(Outgoing::new(reply, Vec::new(), vec![turn])),
                Incoming::Call { header, arguments, payload, memory } => {
                    let (service, queue, xid) = (inner.service.clone(), queue.clone(), header.xid);
                    let call = Call { peer, connection: number, header, arguments, payload };
                    spawn(async move {
                        let held = vec![turn, memory];
                        match service.call(call).await {
                            Reply::Results(results) => {
                                let mut head = reply::success(xid).into_bytes();
                                head.extend_from_slice(&results.before);
                                queue.push(Outgoing::new(head, results.data, held));
                            }
                            Reply::Refused(refusal) => {
                                queue.push(Outgoing::new(reply::refused(xid, refusal), Vec::new(), held));
                            }
                            Reply::Nothing => drop(held),
                        }
                    });
                }
            }
        }
    };
    let outcome: RefCell<io::Result<()>> = RefCell::new(Ok(()));
    let reading = async { *outcome.borrow_mut() = reading.await };
    let ended = async { first_of(failed.wait(), inner.stopping.wait()).await };
    first_of(reading, ended).await;
    if !failed.is_set() {
        // What is under way is still answered.
        let _all = calls.acquire(inner.limits.calls_per_connection).await;
        queue.end();
    }
    writer.await?;
    outcome.into_inner()
}
