//! Requests and replies over sockets: a ping-pong is one of each at a time, as long as the other.

use super::measure::{Done, Ready, measure, measure_each_after};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// The socket between two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Socket {
    Tcp,
    Unix,
}

/// Listens, reports the address, and takes one connection.
fn accept(socket: Socket, dir: &Path, ready: Ready<'_>) -> Result<OwnedFd> {
    match socket {
        Socket::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            ready(listener.local_addr()?.to_string())?;
            let stream = listener.accept()?.0;
            stream.set_nodelay(true)?;
            Ok(stream.into())
        }
        Socket::Unix => {
            let path = dir.join(format!("answer-{}", std::process::id()));
            let listener = UnixListener::bind(&path)?;
            ready(path.display().to_string())?;
            let stream = listener.accept()?.0;
            std::fs::remove_file(&path)?;
            Ok(stream.into())
        }
    }
}

fn connect(socket: Socket, to: &str) -> Result<OwnedFd> {
    match socket {
        Socket::Tcp => {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            Ok(stream.into())
        }
        Socket::Unix => Ok(UnixStream::connect(to)?.into()),
    }
}

/// Requests and their replies, several of which are under way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Exchange {
    pub request_bytes: usize,
    pub reply_bytes: usize,
    pub depth: usize,
    /// How long both ends are idle before each group.
    pub pause_us: u64,
    /// How long the calling and the answering end poll before they sleep.
    pub spin_us: [u64; 2],
}

impl Exchange {
    /// One request of `bytes` and as long a reply at a time, without pauses.
    pub fn ping_pong(bytes: usize, spin_us: [u64; 2]) -> Exchange {
        Exchange { request_bytes: bytes, reply_bytes: bytes, depth: 1, pause_us: 0, spin_us }
    }
}

/// Answers each request with a reply until the other end closes its socket. Reports the address.
pub fn answer(socket: Socket, dir: &Path, exchange: Exchange, ready: Ready<'_>) -> Result<Done> {
    let stream = accept(socket, dir, ready)?;
    let (mut request, reply) = (vec![0; exchange.request_bytes], vec![2; exchange.reply_bytes]);
    measure(|| {
        while receive(&stream, &mut request, exchange.spin_us[1])? {
            send(&stream, &reply)?;
        }
        Ok(())
    })
}

/// Sends requests in groups of `depth`, and times each group with its replies.
pub fn exchange(
    socket: Socket,
    to: &str,
    exchange: Exchange,
    rounds: usize,
    ready: Ready<'_>,
) -> Result<Done> {
    let stream = connect(socket, to)?;
    let (request, mut reply) = (vec![1; exchange.request_bytes], vec![0; exchange.reply_bytes]);
    ready(String::new())?;
    measure_each_after(Duration::from_micros(exchange.pause_us), rounds, || {
        (0..exchange.depth).try_for_each(|_| send(&stream, &request))?;
        for _ in 0..exchange.depth {
            if !receive(&stream, &mut reply, exchange.spin_us[0])? {
                bail!("the other end has ended");
            }
        }
        Ok(())
    })
}

fn send(socket: &OwnedFd, data: &[u8]) -> Result<()> {
    let mut sent = 0;
    while sent < data.len() {
        let rest = &data[sent..];
        // SAFETY: the buffer is live and its true size is given.
        let count =
            unsafe { libc::send(socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        if count < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        sent += count as usize;
    }
    Ok(())
}

/// Fills the buffer: polls for `spin_us`, then sleeps. Returns false if the other end has closed.
fn receive(socket: &OwnedFd, buffer: &mut [u8], spin_us: u64) -> Result<bool> {
    let mut filled = 0;
    let mut begun = Instant::now();
    while filled < buffer.len() {
        let spin = (begun.elapsed().as_micros() as u64) < spin_us;
        let rest = &mut buffer[filled..];
        let flags = if spin { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the buffer is live and its true size is given.
        let got = unsafe { libc::recv(socket.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), flags) };
        match got {
            0 => return Ok(false),
            got if got > 0 => {
                filled += got as usize;
                begun = Instant::now();
            }
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::WouldBlock {
                    return Err(error.into());
                }
            }
        }
    }
    Ok(true)
}
