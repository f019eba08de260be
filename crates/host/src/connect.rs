//! Connections over TCP that are begun without waiting.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Ports that only root binds to, and that some servers ask for.
const RESERVED_PORTS: std::ops::Range<u16> = 600..1024;

/// Begins to connect. The socket does not block and is not inherited. It is writable as soon as [`is_connected`]
/// has an answer.
///
/// `from_reserved_port`: from a port below 1024, which only root may use. Where none is free or it is not allowed,
/// from any.
///
/// # Errors
/// Those of `socket` and `connect`.
pub fn begin_connect(to: SocketAddr, from_reserved_port: bool) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a call without memory.
    let fd = checked(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the descriptor is new, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    if from_reserved_port {
        bind_reserved(&socket, to.is_ipv4())?;
    }
    let (address, bytes) = raw_address(to);
    // SAFETY: the kernel reads `bytes` bytes of `address`, which lives for the call and has at least so many.
    match checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(TcpStream::from(socket)),
    }
}

/// Whether a connection that was begun is made.
///
/// # Errors
/// Why it cannot be made.
pub fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(false),
        },
        Err(error) => Err(error),
    }
}

/// An address as the kernel takes it, and how many bytes of it count.
pub fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: plain data; all zeros is an address of no family.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let bytes = match address {
        SocketAddr::V4(address) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough for any address, and aligned for it.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(value) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(value) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, bytes as libc::socklen_t)
}

/// Processes begin at different ports, so that they seldom ask for one that is taken.
fn bind_reserved(socket: &OwnedFd, is_ipv4: bool) -> io::Result<()> {
    let count = RESERVED_PORTS.end - RESERVED_PORTS.start;
    let first = (std::process::id() % u32::from(count)) as u16;
    for number in 0..count {
        let port = RESERVED_PORTS.start + (first + number) % count;
        let any = match is_ipv4 {
            true => (Ipv4Addr::UNSPECIFIED, port).into(),
            false => (Ipv6Addr::UNSPECIFIED, port).into(),
        };
        let (address, bytes) = raw_address(any);
        // SAFETY: as for `connect`.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        match checked(bound) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) if error.raw_os_error() != Some(libc::EACCES) => return Err(error),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Turns the -1 of a system call into its error.
fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Waits until a connection is made, or cannot be made.
    fn finished(stream: &TcpStream) -> io::Result<()> {
        let mut entry = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live entry.
        while unsafe { libc::poll(&mut entry, 1, -1) } != 1 {}
        is_connected(stream).map(|is_made| assert!(is_made))
    }

    #[test]
    fn a_connection_is_made_or_fails_without_waiting() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A host may be without IPv6.
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let address = listener.local_addr().unwrap();
            for from_reserved_port in [false, true] {
                let stream = begin_connect(address, from_reserved_port).unwrap();
                finished(&stream).unwrap();
                assert_eq!(stream.peer_addr().unwrap(), address);
            }
            drop(listener);
            let refused = begin_connect(address, false).and_then(|stream| finished(&stream));
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
    }
}
