//! A connection over TCP.
//!
//! Calls are sent by `writev` from where they are: heads from the session, data from the caller's memory. Several calls go
//! with one system call. [`crate::incoming`] has the way back.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use weft_onc_rpc::record::{MARK_BYTES, Mark};
use weft_onc_rpc::xdr::padding;

use crate::incoming::{Incoming, Reply};
use crate::link::{Begun, Connecting, Link, Lost, Message, Way};

/// Most pieces of one system call.
const PIECES_MAX: usize = 64;
/// How often the socket is read before others have their turn.
const RECEIVES_MAX: usize = 64;

struct Outgoing {
    mark: [u8; MARK_BYTES],
    message: Message,
    /// The payload, if it is the caller's no more.
    own: Option<Vec<u8>>,
    sent: usize,
}

impl Outgoing {
    fn new(message: Message) -> Outgoing {
        let payload_bytes = message.data.payload.bytes;
        let bytes = message.head.len() + payload_bytes + padding(payload_bytes);
        let mark = Mark { is_last: true, bytes: bytes as u32 }.to_bytes();
        Outgoing { mark, message, own: None, sent: 0 }
    }

    /// Its parts: mark, head, payload, padding.
    fn parts(&self) -> [(*const u8, usize); 4] {
        const ZEROS: [u8; 4] = [0; 4];
        let payload = match &self.own {
            Some(own) => (own.as_ptr(), own.len()),
            None => (self.message.data.payload.start.cast_const(), self.message.data.payload.bytes),
        };
        let head = &*self.message.head;
        let mark = (self.mark.as_ptr(), self.mark.len());
        [mark, (head.as_ptr(), head.len()), payload, (ZEROS.as_ptr(), padding(payload.1))]
    }

    fn left(&self) -> usize {
        self.parts().iter().map(|part| part.1).sum::<usize>() - self.sent
    }

    /// Adds what is left of its parts.
    fn add_pieces(&self, pieces: &mut Vec<libc::iovec>) {
        let mut skip = self.sent;
        for (start, bytes) in self.parts() {
            let skipped = skip.min(bytes);
            skip -= skipped;
            if skipped < bytes {
                // SAFETY: `skipped` is within the part.
                let iov_base = unsafe { start.add(skipped) }.cast_mut().cast();
                pieces.push(libc::iovec { iov_base, iov_len: bytes - skipped });
            }
        }
    }
}

/// The connection.
struct TcpLink {
    stream: TcpStream,
    outgoing: VecDeque<Outgoing>,
    incoming: Incoming,
}

impl TcpLink {
    /// Over a connected socket.
    fn new(stream: TcpStream) -> TcpLink {
        TcpLink { stream, outgoing: VecDeque::new(), incoming: Incoming::new() }
    }

    fn note_sent(&mut self, mut bytes: usize) {
        while let Some(first) = self.outgoing.front_mut() {
            let now = bytes.min(first.left());
            first.sent += now;
            bytes -= now;
            if first.left() > 0 {
                return;
            }
            self.outgoing.pop_front();
        }
    }
}

impl Link for TcpLink {
    unsafe fn submit(&mut self, message: Message) {
        // SAFETY: as the caller promises.
        unsafe { self.incoming.expect(message.xid, message.data.sink) };
        self.outgoing.push_back(Outgoing::new(message));
    }

    fn send(&mut self) -> Result<(), Lost> {
        while !self.outgoing.is_empty() {
            let mut pieces = Vec::with_capacity(PIECES_MAX + 3);
            for outgoing in &self.outgoing {
                if pieces.len() >= PIECES_MAX {
                    break;
                }
                outgoing.add_pieces(&mut pieces);
            }
            // SAFETY: msghdr is plain data; all zeros is its empty state.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the pieces are readable: heads are held by the messages, payloads by whoever submitted them.
            let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &message, flags) };
            match usize::try_from(sent) {
                Ok(bytes) => self.note_sent(bytes),
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(Lost::new(error.to_string())),
                },
            }
        }
        Ok(())
    }

    fn receive(&mut self, replies: &mut Vec<Reply>) -> Result<bool, Lost> {
        for turn in 0..RECEIVES_MAX {
            let mut pieces = self.incoming.room();
            let room = pieces[0].iov_len + pieces[1].iov_len;
            // SAFETY: msghdr is plain data; all zeros is its empty state.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len());
            // SAFETY: the pieces are writable: the buffer is ours, and sinks are held by whoever submitted them.
            let received =
                unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
            match usize::try_from(received) {
                Ok(0) => return Err(Lost::new("the server closed the connection")),
                Ok(bytes) => {
                    let taken = self.incoming.received(bytes, replies);
                    taken.map_err(|why| Lost { why: why.into(), is_garbage: true })?;
                    if bytes < room {
                        return Ok(true);
                    }
                }
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(turn > 0),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(Lost::new(error.to_string())),
                },
            }
        }
        Ok(true)
    }

    fn cancel(&mut self, xid: u32) {
        self.incoming.forget(xid);
        let Some(at) = self.outgoing.iter().position(|outgoing| outgoing.message.xid == xid) else { return };
        let outgoing = &mut self.outgoing[at];
        if outgoing.sent == 0 {
            self.outgoing.remove(at);
        } else if outgoing.own.is_none() {
            // What has begun has to be sent to its end, or the server would not understand what follows.
            // SAFETY: the payload is readable until now.
            outgoing.own = Some(unsafe { outgoing.message.data.payload.as_slice() }.to_vec());
        }
    }

    fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

/// Connections over TCP.
pub(crate) struct TcpWay {
    /// From a port below 1024.
    pub from_reserved_port: bool,
}

impl Way for TcpWay {
    fn begin(&mut self, address: SocketAddr, _patience: Duration) -> Result<Begun, Lost> {
        match TcpConnecting::begin(address, self.from_reserved_port) {
            Ok(connecting) => Ok(Begun::Connecting(Box::new(connecting))),
            Err(error) => Err(Lost::new(error.to_string())),
        }
    }
}

/// A socket that is being connected.
struct TcpConnecting {
    /// Until it is connected.
    stream: Option<TcpStream>,
}

impl TcpConnecting {
    fn begin(address: SocketAddr, from_reserved_port: bool) -> io::Result<TcpConnecting> {
        let stream = weft_host::begin_connect(address, from_reserved_port)?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        Ok(TcpConnecting { stream: Some(stream) })
    }
}

impl Connecting for TcpConnecting {
    fn fd(&self) -> RawFd {
        self.stream.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    fn finish(&mut self) -> Option<Result<Box<dyn Link>, Lost>> {
        match weft_host::is_connected(self.stream.as_ref()?) {
            Ok(false) => None,
            Ok(true) => Some(Ok(Box::new(TcpLink::new(self.stream.take()?)))),
            Err(error) => Some(Err(Lost::new(error.to_string()))),
        }
    }
}

/// Has the kernel find out where a peer is gone while no calls are under way.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (value, bytes) = ((&raw const on).cast(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value is live and of this length.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, value, bytes) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
