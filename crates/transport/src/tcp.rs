//! TCP: everything moves as a stream.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use weft_wire::Header;

use crate::channel::{Channel, Payload};
use crate::error::{ConnError, LinkError};
use crate::link::{Bulk, BulkMemory, Completion, Link, LinkKind, LinkTraits};
use crate::runs::MemoryRuns;
use crate::segment::{KnownSegments, Segment};
use crate::server::{Incoming, PeerInfo, ServerConn};
use crate::socket::{Address, congestion, is_local, set_congestion, set_option, stream_socket};
use crate::stream::ServerStream;
use crate::stream_bulk::StreamBulk;

/// Seconds of silence after which a peer is asked whether it lives.
const KEEP_ALIVE_IDLE_S: i32 = 30;
/// Seconds between such questions.
const KEEP_ALIVE_INTERVAL_S: i32 = 10;
/// Questions without an answer after which it is given up.
const KEEP_ALIVE_PROBES: i32 = 3;
/// Milliseconds that sent bytes may stay unacknowledged.
const USER_TIMEOUT_MS: u32 = 60_000;
/// linux/tcp.h: the longest time between retransmissions, in milliseconds. Not in the libc crate.
const TCP_RTO_MAX_MS: i32 = 44;
/// After an outage of the network, what was not acknowledged is sent again so soon.
const RETRANSMIT_MAX_MS: i32 = 1_000;
/// On one host these move bytes twice as fast as BBR, which paces them.
const LOCAL_CONGESTION: [&str; 2] = ["cubic", "reno"];

/// Which congestion control a connection asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Congestion {
    /// Between ends on one host cubic or reno, else the system's.
    #[default]
    Auto,
    /// The system's.
    System,
    /// This one.
    Named(String),
}

/// How TCP sockets are set up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TcpOptions {
    /// Congestion control.
    pub congestion: Congestion,
    /// Size of the send buffer; the kernel adapts it where nothing is given.
    pub send_buffer_bytes: Option<u32>,
    /// Size of the receive buffer; the kernel adapts it where nothing is given.
    pub receive_buffer_bytes: Option<u32>,
}

impl TcpOptions {
    /// What has to be known before the connection is made.
    fn before(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        for (name, bytes) in
            [(libc::SO_SNDBUF, self.send_buffer_bytes), (libc::SO_RCVBUF, self.receive_buffer_bytes)]
        {
            if let Some(bytes) = bytes {
                set_option(fd, libc::SOL_SOCKET, name, &(bytes.min(i32::MAX as u32) as i32))?;
            }
        }
        Ok(())
    }

    /// The rest; returns the congestion control in effect.
    fn after(&self, fd: BorrowedFd<'_>) -> io::Result<String> {
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
        set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &KEEP_ALIVE_IDLE_S)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &KEEP_ALIVE_INTERVAL_S)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &KEEP_ALIVE_PROBES)?;
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &USER_TIMEOUT_MS)?;
        // Since Linux 6.15; without it a connection may stay silent after an outage for as long as that lasted.
        let _ = set_option(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, &RETRANSMIT_MAX_MS);
        match &self.congestion {
            // Not every user may choose every one: then the system's stays.
            Congestion::Auto if is_local(fd) => {
                let _ = LOCAL_CONGESTION.iter().any(|name| set_congestion(fd, name).is_ok());
            }
            Congestion::Auto | Congestion::System => {}
            Congestion::Named(name) => set_congestion(fd, name)?,
        }
        congestion(fd)
    }
}

/// Smaller pieces of memory are better packed: a piece costs its place in a list of the kernel's, which from
/// this size on is less than the copy.
const PACK_BELOW_BYTES: u64 = 256;

/// A client's TCP connection.
pub struct TcpLink {
    channel: Channel,
    congestion: String,
    segments: KnownSegments,
}

/// Connects to a server.
///
/// # Errors
/// [`LinkError::Connect`], after at most `timeout`.
pub fn connect_tcp(
    address: SocketAddr,
    options: &TcpOptions,
    timeout: Duration,
) -> Result<TcpLink, LinkError> {
    let connect = || -> io::Result<(OwnedFd, String)> {
        let fd = stream_socket(if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 })?;
        options.before(fd.as_fd())?;
        Address::internet(address).connect(fd.as_fd(), Instant::now() + timeout)?;
        let congestion = options.after(fd.as_fd())?;
        Ok((fd, congestion))
    };
    let peer = format!("server {address}");
    match connect() {
        Ok((fd, congestion)) => Ok(TcpLink {
            channel: Channel::new(fd, peer, false),
            congestion,
            segments: KnownSegments::default(),
        }),
        Err(source) => Err(LinkError::Connect { peer, source }),
    }
}

impl Link for TcpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Tcp { congestion: self.congestion.clone() }
    }

    fn traits(&self) -> LinkTraits {
        LinkTraits { pack_below_bytes: PACK_BELOW_BYTES, ..LinkTraits::default() }
    }

    fn peer(&self) -> &str {
        self.channel.peer()
    }

    fn fd(&self) -> RawFd {
        self.channel.raw_fd()
    }

    fn wants_write(&self) -> bool {
        self.channel.wants_write()
    }

    fn moved_bytes(&self) -> u64 {
        self.channel.moved_bytes()
    }

    fn despair(&mut self) {
        self.channel.despair();
    }

    fn give_up(&mut self) {
        self.channel.reset_at_close();
    }

    fn credits(&self) -> u16 {
        self.channel.credits()
    }

    fn set_credits(&mut self, credits: u16) {
        self.channel.set_credits(credits);
    }

    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        self.channel.check_request(&header, body)?;
        let nothing = (MemoryRuns::new(), 0);
        let (payload, memory) = match bulk {
            Bulk::None => (Payload::None, nothing),
            Bulk::Put(BulkMemory { mut runs, .. }) => {
                let bytes = self.segments.resolve(&mut runs)?;
                (Payload::None, (runs, bytes))
            }
            Bulk::Get(BulkMemory { mut runs, .. }) => {
                let bytes = self.segments.resolve(&mut runs)?;
                (Payload::Pieces(runs, bytes), nothing)
            }
        };
        self.channel.take_credit()?;
        // SAFETY: as the caller promises.
        unsafe { self.channel.start(header, body, payload, memory, None) }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.channel.flush()
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.channel.progress(done)
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.segments.add(segment, false);
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        self.segments.remove(id);
        Ok(())
    }
}

/// A server's end of a TCP connection.
#[derive(Clone)]
pub struct TcpConn {
    stream: Rc<ServerStream>,
}

impl TcpConn {
    /// On the current reactor, from an accepted socket.
    ///
    /// # Errors
    /// Of the kernel; also if a named congestion control is not there or not allowed.
    pub fn from_fd(fd: OwnedFd, options: &TcpOptions) -> io::Result<TcpConn> {
        options.before(fd.as_fd())?;
        let congestion = options.after(fd.as_fd())?;
        let socket = TcpStream::from(fd);
        let address = socket.peer_addr()?.to_string();
        let transport = format!("tcp {congestion}");
        let peer = PeerInfo { transport, address, process_id: None, user_id: None, group_ids: Vec::new() };
        Ok(TcpConn { stream: Rc::new(ServerStream::new(socket.into(), false, peer)?) })
    }

    /// Changes the time in which a message that has begun must make progress
    /// ([`weft_wire::limits::STALL_TIMEOUT_MS`] otherwise).
    pub fn set_stall_timeout(&self, stall_timeout: Duration) {
        self.stream.set_stall_timeout(stall_timeout);
    }
}

impl ServerConn for TcpConn {
    type Bulk = StreamBulk;

    async fn recv(&self) -> Result<Incoming<StreamBulk>, ConnError> {
        let (header, body) = self.stream.message(false).await?;
        Ok(Incoming { header, body, bulk: StreamBulk::new(&self.stream, header) })
    }

    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError> {
        self.stream.send_message(header, body, payload).await
    }

    fn prove(&self) {
        self.stream.prove();
    }

    fn peer(&self) -> PeerInfo {
        self.stream.peer()
    }

    fn close(&self) {
        self.stream.close();
    }
}
