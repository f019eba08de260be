//! Listening sockets: bound on any thread, accepting on a reactor.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_reactor::{Interest, Readiness, sleep};

use crate::socket::{Address, checked, owned, set_option, stream_socket};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long accepting rests when the process or the host has no descriptors or memory left.
const EXHAUSTED_REST: Duration = Duration::from_millis(50);

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; {advice}")]
pub struct ListenError {
    /// Where.
    pub address: String,
    /// Why.
    pub source: io::Error,
    /// What to do.
    pub advice: &'static str,
}

/// What kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// TCP: for [`crate::TcpConn`].
    Tcp,
    /// A Unix socket: for [`crate::ShmConn`].
    Unix,
}

/// An accepted connection, which may be moved to another thread's reactor.
#[derive(Debug)]
pub struct Accepted {
    /// The socket.
    pub fd: OwnedFd,
    /// What to make of it.
    pub network: Network,
}

/// A bound socket. Connections queue up from now on.
#[derive(Debug)]
pub struct Listening {
    fd: OwnedFd,
    network: Network,
    /// Of TCP: where it is really bound, if port 0 was asked for.
    address: Option<SocketAddr>,
    _path: Option<SocketPath>,
}

/// A Unix socket's name, removed at the end.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens on a TCP address; port 0 lets the kernel choose.
///
/// # Errors
/// The address is in use, not this host's, or not allowed.
pub fn listen_tcp(address: SocketAddr) -> Result<Listening, ListenError> {
    let listen = || -> io::Result<(OwnedFd, SocketAddr)> {
        let fd = stream_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 })?;
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
        Address::internet(address).bind(fd.as_fd())?;
        start_listening(&fd)?;
        let listener = TcpListener::from(fd);
        let bound = listener.local_addr()?;
        Ok((listener.into(), bound))
    };
    match listen() {
        Ok((fd, bound)) => Ok(Listening { fd, network: Network::Tcp, address: Some(bound), _path: None }),
        Err(source) => {
            let advice = "choose a free port of an address of this host";
            Err(ListenError { address: address.to_string(), source, advice })
        }
    }
}

/// Listens on a Unix socket that any user may connect to (the handshake decides as whom a client is served). A name left behind by a server
/// that is gone is replaced; one in use is not.
///
/// # Errors
/// The name is in use or cannot be made.
pub fn listen_unix(path: &Path) -> Result<Listening, ListenError> {
    let listen = || -> io::Result<OwnedFd> {
        remove_stale(path)?;
        let fd = stream_socket(libc::AF_UNIX)?;
        Address::unix(path)?.bind(fd.as_fd())?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        start_listening(&fd)?;
        Ok(fd)
    };
    match listen() {
        Ok(fd) => {
            let name = SocketPath(path.to_path_buf());
            Ok(Listening { fd, network: Network::Unix, address: None, _path: Some(name) })
        }
        Err(source) => {
            let advice = "choose a name in a directory that exists, that no running server uses";
            Err(ListenError { address: path.display().to_string(), source, advice })
        }
    }
}

fn start_listening(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    checked(unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } as isize).map(drop)
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        Ok(_) => {}
    }
    let fd = stream_socket(libc::AF_UNIX)?;
    match Address::unix(path)?.connect(fd.as_fd(), Instant::now()) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl Listening {
    /// Where a TCP socket is bound.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Puts it on the current reactor.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn acceptor(self) -> io::Result<Acceptor> {
        Ok(Acceptor { readiness: Readiness::new(&self.fd)?, listening: self, exhausted: Box::new(|_| {}) })
    }
}

/// A listening socket on a reactor.
pub struct Acceptor {
    // Before the descriptor: it has to be taken off the reactor first.
    readiness: Readiness,
    listening: Listening,
    exhausted: Box<dyn Fn(&io::Error)>,
}

impl Acceptor {
    /// Has `tell` called whenever descriptors or memory have run out, which is several times a second as long as it lasts.
    pub fn when_exhausted(&mut self, tell: impl Fn(&io::Error) + 'static) {
        self.exhausted = Box::new(tell);
    }

    /// The next connection. Waits for better times when descriptors or memory have run out.
    ///
    /// # Errors
    /// The socket itself is broken.
    pub async fn accept(&self) -> io::Result<Accepted> {
        loop {
            let accepted = self.readiness.io(Interest::Read, || {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                let null = std::ptr::null_mut();
                // SAFETY: no address is asked for; the result is new.
                unsafe { owned(libc::accept4(self.listening.fd.as_raw_fd(), null, null.cast(), flags)) }
            });
            match accepted.await {
                Ok(fd) => return Ok(Accepted { fd, network: self.listening.network }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        (self.exhausted)(&error);
                        sleep(EXHAUSTED_REST).await
                    }
                    // Errors of a connection that is gone already (accept(2)).
                    Some(
                        libc::ECONNABORTED
                        | libc::EPROTO
                        | libc::EPERM
                        | libc::ENETDOWN
                        | libc::ENOPROTOOPT
                        | libc::EHOSTDOWN
                        | libc::ENONET
                        | libc::EHOSTUNREACH
                        | libc::ENETUNREACH,
                    ) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Where a TCP socket is bound.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listening.address
    }
}
