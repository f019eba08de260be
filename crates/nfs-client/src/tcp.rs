//! A connection over TCP.
//!
//! Calls are sent by `writev` from where they are: heads from the session, data from the caller's memory. Several calls go
//! with one system call. [`crate::incoming`] has the way back.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::incoming::{Incoming, Memory, Reply};
use crate::link::{Link, Lost, Message};
use crate::xdr::padded;

/// Most pieces of one system call.
const PIECES_MAX: usize = 64;
/// How often the socket is read before others have their turn.
const RECEIVES_MAX: usize = 64;
/// Ports that only root binds to, and that some servers ask for.
const RESERVED_PORTS: std::ops::Range<u16> = 600..1024;

struct Outgoing {
    message: Message,
    /// The payload, if it is the caller's no more.
    own: Option<Vec<u8>>,
    sent: usize,
}

impl Outgoing {
    /// Its parts: head, payload, padding.
    fn parts(&self) -> [(*const u8, usize); 3] {
        const ZEROS: [u8; 4] = [0; 4];
        let payload = match &self.own {
            Some(own) => (own.as_ptr(), own.len()),
            None => (self.message.payload.start.cast_const(), self.message.payload.bytes),
        };
        let head = &*self.message.head;
        [(head.as_ptr(), head.len()), payload, (ZEROS.as_ptr(), padded(payload.1) - payload.1)]
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
pub(crate) struct TcpLink {
    fd: OwnedFd,
    outgoing: VecDeque<Outgoing>,
    incoming: Incoming,
}

impl TcpLink {
    /// Over a connected socket.
    pub(crate) fn new(fd: OwnedFd) -> TcpLink {
        TcpLink { fd, outgoing: VecDeque::new(), incoming: Incoming::new() }
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
        unsafe { self.incoming.expect(message.xid, message.sink) };
        self.outgoing.push_back(Outgoing { message, own: None, sent: 0 });
    }

    fn send(&mut self) -> Result<(), Lost> {
        while !self.outgoing.is_empty() {
            let mut pieces = Vec::with_capacity(PIECES_MAX + 2);
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
            let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &message, flags) };
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
            let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
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
            let Memory { start, bytes } = outgoing.message.payload;
            let copy = if bytes == 0 {
                Vec::new()
            } else {
                // SAFETY: the payload is readable until now.
                unsafe { std::slice::from_raw_parts(start, bytes) }.to_vec()
            };
            outgoing.own = Some(copy);
        }
    }

    fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }
}

/// A socket that is being connected.
pub(crate) struct Connecting {
    fd: OwnedFd,
}

impl Connecting {
    /// Begins to connect, from a port below 1024 if that is wished.
    pub(crate) fn begin(address: SocketAddr, from_reserved_port: bool) -> io::Result<Connecting> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is passed.
        let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
        if from_reserved_port {
            bind_reserved(&fd, address.is_ipv4())?;
        }
        let (storage, length) = raw(address);
        // SAFETY: the address is live and of this length.
        let begun = unsafe { libc::connect(fd.as_raw_fd(), (&raw const storage).cast(), length) };
        match checked(begun) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(Connecting { fd }),
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The connection, if it is made. Does not wait.
    pub(crate) fn finish(self) -> Result<io::Result<OwnedFd>, Connecting> {
        let mut entry = libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live entry.
        match checked(unsafe { libc::poll(&mut entry, 1, 0) }) {
            Ok(0) => return Err(self),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(self),
            Err(error) => return Ok(Err(error)),
            Ok(_) => {}
        }
        let mut errno: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value is live and of this length.
        let asked = unsafe {
            let value = (&raw mut errno).cast();
            libc::getsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_ERROR, value, &mut length)
        };
        Ok(match checked(asked) {
            Ok(_) if errno == 0 => Ok(self.fd),
            Ok(_) => Err(io::Error::from_raw_os_error(errno)),
            Err(error) => Err(error),
        })
    }
}

/// Turns the -1 of a system call into its error.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is live and of this length.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const on).cast(), length) })?;
    Ok(())
}

/// Binds to a free port below 1024. Where all are taken or it is not allowed, to none.
fn bind_reserved(fd: &OwnedFd, is_ipv4: bool) -> io::Result<()> {
    let first = (std::process::id() % u32::from(RESERVED_PORTS.end - RESERVED_PORTS.start)) as u16;
    let count = RESERVED_PORTS.end - RESERVED_PORTS.start;
    for number in 0..count {
        let port = RESERVED_PORTS.start + (first + number) % count;
        let any = if is_ipv4 { "0.0.0.0" } else { "::" };
        let any = any.parse().expect("an address");
        let (storage, length) = raw(SocketAddr::new(any, port));
        // SAFETY: the address is live and of this length.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const storage).cast(), length) };
        match checked(bound) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) if error.raw_os_error() != Some(libc::EACCES) => return Err(error),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// An address as the kernel takes it.
fn raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: plain data; all zeros is valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has room for every address, and is aligned for it.
            let raw = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            raw.sin_family = libc::AF_INET as _;
            raw.sin_port = address.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: the storage has room for every address, and is aligned for it.
            let raw = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            raw.sin6_family = libc::AF_INET6 as _;
            raw.sin6_port = address.port().to_be();
            raw.sin6_addr.s6_addr = address.ip().octets();
            raw.sin6_scope_id = address.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
}
