//! Calls of the lock manager and the status monitor in datagrams: the status monitor of Linux tells of a restart
//! in no other way, and some clients lock in no other way.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;

use weft_log::once_a_minute;
use weft_onc_rpc::{CallError, CallHeader, Refusal, nlm, nsm, reply};
use weft_onc_server::{Buffers, Call, Reply, Service};
use weft_reactor::{Interest, Readiness, Semaphore, spawn};

use crate::gateway::Gateway;

/// Bytes of a call; those of the two programs have fewer.
const CALL_BYTES_MAX: usize = 8192;
/// Calls under way. What comes beyond is dropped, and sent again by its client.
const CALLS_MAX: usize = 256;

/// Answers the calls that come to a socket.
///
/// # Errors
/// The socket cannot be waited for.
pub(crate) async fn serve(gateway: Rc<Gateway>, socket: UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let (socket, calls) = (Rc::new(socket), Semaphore::new(CALLS_MAX));
    let readiness = Readiness::new(&*socket)?;
    let mut room = vec![0; CALL_BYTES_MAX];
    loop {
        let (bytes, peer) = match readiness.io(Interest::Read, || socket.recv_from(&mut room)).await {
            Ok(received) => received,
            // An earlier reply has not reached its client.
            Err(error) => {
                if once_a_minute("datagrams of lock calls") {
                    tracing::debug!(%error, "a datagram cannot be received");
                }
                continue;
            }
        };
        let Some(turn) = calls.try_acquire(1) else { continue };
        let (header, at) = match CallHeader::decode(&room[..bytes]) {
            Ok(decoded) => decoded,
            Err(CallError::Refused { xid, refusal }) => {
                send(&socket, &reply::refused(xid, refusal), peer);
                continue;
            }
            Err(_) => continue,
        };
        let (gateway, socket, arguments) = (gateway.clone(), socket.clone(), room[at..bytes].to_vec());
        spawn(async move {
            if let Some(reply) = answer(gateway, header, arguments, peer).await {
                send(&socket, &reply, peer);
            }
            drop(turn);
        });
    }
}

async fn answer(
    gateway: Rc<Gateway>,
    header: CallHeader,
    arguments: Vec<u8>,
    peer: SocketAddr,
) -> Option<Vec<u8>> {
    let xid = header.xid;
    if header.program != nlm::PROGRAM && header.program != nsm::PROGRAM {
        return Some(reply::refused(xid, Refusal::NoProgram));
    }
    let (payload, buffers) = (None, Buffers::default());
    let call = Call { peer, connection: 0, header, arguments, payload, buffers };
    match Service::call(gateway, call).await {
        Reply::Results(results) => {
            let mut reply = reply::success(xid).into_bytes();
            reply.extend(results.before);
            Some(reply)
        }
        Reply::Refused(refusal) => Some(reply::refused(xid, refusal)),
        Reply::Nothing => None,
    }
}

/// Without waiting: a reply that is lost is asked for again.
fn send(socket: &UdpSocket, reply: &[u8], peer: SocketAddr) {
    if let Err(error) = socket.send_to(reply, peer) {
        tracing::debug!(%peer, %error, "a reply to a lock call cannot be sent");
    }
}
