//! The protocol by hand, over a plain socket: for peers that do not keep to it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::wait_until;
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{ErrorDetail, HelloReply, HelloRequest, ProveReply, ProveRequest, peer_role};
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{Added, HEADER_BYTES, Header, Kind, Op, Request, Status, VERSIONS, Wire, body};

/// Longest wait for bytes of a server; a server that should have answered or hung up by then has failed the test.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A socket of either family.
pub trait Socket: Read + Write + Send {
    /// Sets how long reads wait.
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Its descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

impl Socket for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Socket for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// A message as it came.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// Its body.
    pub body: Vec<u8>,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Message {
    /// The words of an error reply.
    pub fn error_text(&self) -> String {
        body::decode(&self.header, &self.body).map(|detail: ErrorDetail| detail.text).unwrap_or_default()
    }
}

/// A connection that sends whatever it is told to.
pub struct Raw {
    /// The socket, for bytes that are no messages.
    pub socket: Box<dyn Socket>,
    next_request: u64,
}

impl Raw {
    /// Over TCP, to `host:port`.
    pub fn tcp(address: &str) -> io::Result<Raw> {
        Raw::over(TcpStream::connect(address)?)
    }

    /// Over a Unix socket, at which a server listens a moment after it listens by TCP.
    pub fn unix(path: &Path) -> io::Result<Raw> {
        wait_until("the server's Unix socket is there", READ_TIMEOUT, || path.exists());
        Raw::over(UnixStream::connect(path)?)
    }

    fn over(socket: impl Socket + 'static) -> io::Result<Raw> {
        socket.set_timeout(READ_TIMEOUT)?;
        Ok(Raw { socket: Box::new(socket), next_request: 1 })
    }

    /// Sends a header as it is, with its lengths set to what follows.
    pub fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) -> io::Result<()> {
        let header = Header { body_bytes: body.len() as u32, payload_bytes: payload.len() as u64, ..header };
        let mut all = header.encode().to_vec();
        all.extend_from_slice(body);
        all.extend_from_slice(payload);
        self.socket.write_all(&all)
    }

    /// Asks with a descriptor beside the request; for a Unix socket.
    pub fn ask_with<R: Request>(&mut self, request: &R, descriptor: BorrowedFd<'_>) -> io::Result<Message> {
        let body = body::encode(request);
        let header = Header { body_bytes: body.len() as u32, ..self.request(R::OP) };
        let mut all = header.encode().to_vec();
        all.extend_from_slice(&body);
        let mut piece = libc::iovec { iov_base: all.as_mut_ptr().cast(), iov_len: all.len() };
        let mut control = [0u64; 4];
        // SAFETY: the message points to live buffers, and the control buffer is aligned and has room for one descriptor.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut piece;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _;
            let first = libc::CMSG_FIRSTHDR(&message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
            libc::sendmsg(self.socket.descriptor().as_raw_fd(), &message, 0)
        };
        if sent != all.len() as isize {
            return Err(io::Error::last_os_error());
        }
        self.receive_reply()
    }

    /// The next message.
    pub fn receive(&mut self) -> io::Result<Message> {
        let mut bytes = [0; HEADER_BYTES];
        self.socket.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes).map_err(io::Error::other)?;
        let mut body = vec![0; header.body_bytes as usize];
        self.socket.read_exact(&mut body)?;
        let mut payload = vec![0; header.payload_bytes as usize];
        self.socket.read_exact(&mut payload)?;
        Ok(Message { header, body, payload })
    }

    /// The next reply; data units before it are dropped.
    pub fn receive_reply(&mut self) -> io::Result<Message> {
        loop {
            let message = self.receive()?;
            if message.header.kind == Kind::Reply {
                return Ok(message);
            }
        }
    }

    /// A header for the next request.
    pub fn request(&mut self, op: Op) -> Header {
        self.next_request += 1;
        Header::request(op, self.next_request)
    }

    /// Sends a request and returns its reply, whatever it says.
    pub fn ask<R: Request>(&mut self, request: &R) -> io::Result<Message> {
        let header = self.request(R::OP);
        self.send(header, &body::encode(request), &[])?;
        self.receive_reply()
    }

    /// As [`ask`](Raw::ask), for a request that must succeed.
    #[track_caller]
    pub fn must<R: Request>(&mut self, request: &R) -> R::Reply {
        let reply = self.ask(request).unwrap_or_else(|error| panic!("{}: {error}", R::OP.name()));
        assert_eq!(reply.header.status, Status::Ok, "{}: {}", R::OP.name(), reply.error_text());
        body::decode(&reply.header, &reply.body).expect("a reply of its kind")
    }

    /// Greets, and proves the key.
    pub fn greet(&mut self, key: &IssuedKey) -> io::Result<ProveReply> {
        self.greet_as(key, hello())
    }

    /// Greets in the given words as the holder of `key`, and proves it.
    pub fn greet_as(&mut self, key: &IssuedKey, hello: HelloRequest) -> io::Result<ProveReply> {
        self.prove(&key.secret, HelloRequest { key: Some(key.info.clone()), ..hello })
    }

    /// Greets in the given words, and proves a secret.
    pub fn prove(&mut self, key: &Key, hello: HelloRequest) -> io::Result<ProveReply> {
        let reply = self.ask(&hello)?;
        if reply.header.status != Status::Ok {
            return Err(io::Error::other(reply.error_text()));
        }
        let server: HelloReply = body::decode(&reply.header, &reply.body).map_err(io::Error::other)?;
        if !same_proof(&server.proof, &server_proof(key, &hello.to_bytes(), &server.server_nonce)) {
            return Err(io::Error::other("the server does not know this key"));
        }
        let reply =
            self.ask(&ProveRequest { proof: client_proof(key, &hello.to_bytes(), &server.server_nonce) })?;
        if reply.header.status != Status::Ok {
            return Err(io::Error::other(reply.error_text()));
        }
        body::decode(&reply.header, &reply.body).map_err(io::Error::other)
    }

    /// Whether the server has hung up: nothing but an end comes within `timeout`.
    pub fn is_cut_within(&mut self, timeout: Duration) -> bool {
        let deadline = std::time::Instant::now() + timeout;
        let mut bytes = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() || self.socket.set_timeout(left).is_err() {
                return false;
            }
            match self.socket.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

/// The greeting of a key's holder, with a session of its own.
pub fn hello_of(key: &IssuedKey) -> HelloRequest {
    HelloRequest { key: Some(key.info.clone()), ..hello() }
}

/// A client's greeting, with a session of its own, but without its key.
pub fn hello() -> HelloRequest {
    let mut random = [0u8; 48];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
    read.expect("random numbers");
    HelloRequest {
        version_min: VERSIONS.0,
        version_max: VERSIONS.1,
        role: peer_role::CLIENT,
        key: None,
        client_nonce: random[..32].try_into().expect("32 bytes"),
        session: random[32..].try_into().expect("16 bytes"),
        boot_id: [0; 16],
        process_id: std::process::id(),
        host: "test".into(),
        program: "test".into(),
        ends_with_connection: Added(false),
        member: Added(0),
    }
}
