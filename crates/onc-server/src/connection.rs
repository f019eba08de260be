//! A connection over TCP: one task that reads, one that writes, and one for each call.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use weft_onc_rpc::{CallHeader, reply};
use weft_reactor::{Event, Interest, Permit, Readiness, spawn, timeout, yield_now};

use crate::buffers::{Buffer, Buffers};
use crate::counts::add;
use crate::incoming::{Incoming, Reader};
use crate::limits::Patience;
use crate::outgoing::{Outgoing, Queue};
use crate::server::{Inner, Member, first_of};
use crate::service::{Call, Reply, Service};

/// A peer that is silent is asked by the kernel whether it is still there: after so long, so often, so many
/// times.
const KEEPALIVE: [(i32, i32); 3] =
    [(libc::TCP_KEEPIDLE, 60), (libc::TCP_KEEPINTVL, 10), (libc::TCP_KEEPCNT, 6)];

/// How long a peer has to take the last replies and to end its side.
const PARTING: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(crate) async fn serve<S: Service>(
    inner: &Rc<Inner<S>>,
    stream: TcpStream,
    member: &Rc<Member>,
) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let stream = Rc::new(stream);
    let readiness = Rc::new(Readiness::new(&*stream)?);
    let queue = Rc::new(Queue::default());
    let failed = Rc::new(Event::new());
    let writer = spawn({
        let (inner, stream, readiness) = (inner.clone(), stream.clone(), readiness.clone());
        let (queue, failed) = (queue.clone(), failed.clone());
        async move {
            let patience = Patience::new(&inner.limits, &inner.memory);
            let sent = queue.send(&stream, &readiness, patience, &inner.counters).await;
            queue.close();
            failed.set();
            sent
        }
    });
    let dismissed = async { first_of(inner.stopping.wait(), member.leaves.wait()).await };
    let ended = async { first_of(failed.wait(), dismissed).await };
    let reading = read_calls(inner, member, &stream, &readiness, &queue);
    let outcome = first_of(reading, ended).await.unwrap_or(Ok(()));
    // What is under way is still done, and answered if anybody takes it.
    let all = inner.limits.calls_per_connection;
    let was_busy = member.calls.available() < all;
    let _all = member.calls.acquire(all).await;
    queue.end();
    let sent = writer.await;
    if was_busy && sent.is_ok() {
        part(&stream, &readiness).await;
    }
    outcome.and(sent)
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let set = |level, name, value: i32| {
        let bytes = size_of::<i32>() as u32;
        // SAFETY: the kernel reads an integer of four bytes, which lives for the call.
        let result = unsafe {
            libc::setsockopt(stream.as_raw_fd(), level, name, std::ptr::from_ref(&value).cast(), bytes)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    KEEPALIVE.iter().try_for_each(|(name, value)| set(libc::IPPROTO_TCP, *name, *value))
}

/// Ends this side, and throws away what still comes: closed with bytes unread, TCP would reset the connection
/// and lose replies that are on their way.
async fn part(stream: &TcpStream, readiness: &Readiness) {
    let _ = stream.shutdown(Shutdown::Write);
    let mut source = stream;
    let mut room = [0; 1024];
    let discarding = async {
        while let Ok(1..) = readiness.io(Interest::Read, || source.read(&mut room)).await {
            yield_now().await;
        }
    };
    let _ = timeout(PARTING, discarding).await;
}

async fn read_calls<S: Service>(
    inner: &Rc<Inner<S>>,
    member: &Member,
    stream: &TcpStream,
    readiness: &Readiness,
    queue: &Rc<Queue>,
) -> io::Result<()> {
    let mut reader = Reader::new(stream, readiness, inner, member);
    loop {
        let turn = member.calls.acquire(1).await;
        match reader.next(&*inner.service).await? {
            Incoming::End => return Ok(()),
            Incoming::Answered(reply) => {
                add(&inner.counters.refused_calls, 1);
                queue.push(Outgoing::new(reply, Buffer::default(), vec![turn]));
            }
            Incoming::Call { header, arguments, payload, memory } => {
                let (peer, connection) = (member.peer, member.number);
                let buffers = Buffers::default();
                let call = Call { peer, connection, header, arguments, payload, buffers };
                spawn(answer(inner.clone(), queue.clone(), call, vec![turn, memory]));
            }
        }
    }
}

async fn answer<S: Service>(inner: Rc<Inner<S>>, queue: Rc<Queue>, call: Call, held: Vec<Permit>) {
    let CallHeader { xid, program, version, procedure, .. } = call.header;
    match inner.service.clone().call(call).await {
        Reply::Results(results) => {
            inner.counters.answered((program, version, procedure));
            let mut head = reply::success(xid).into_bytes();
            head.extend_from_slice(&results.before);
            queue.push(Outgoing::new(head, results.data, held));
        }
        Reply::Refused(refusal) => {
            add(&inner.counters.refused_calls, 1);
            queue.push(Outgoing::new(reply::refused(xid, refusal), Buffer::default(), held));
        }
        Reply::Nothing => {}
    }
}
