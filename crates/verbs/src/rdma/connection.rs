//! Identifiers of the connection manager. Each has its own event channel, so that any thread can serve it.

use super::address::{from_storage, to_storage};
use super::bindings::*;
use super::library::{Library, Owned, outcome, set_nonblocking};
use crate::{TrafficClass, VerbsError};
use libc::{c_int, c_uint, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{null_mut, slice_from_raw_parts};
use std::time::{Duration, Instant};

/// Time that an adapter waits for an acknowledgement before it retransmits: 4.096 µs · 2^16 = 268 ms. All
/// attempts take two seconds. The connection manager's default on Ethernet takes up to seventeen.
const ACK_TIMEOUT: u8 = 16;

/// An event of the connection manager.
pub struct Event {
    /// `RDMA_CM_EVENT_*`.
    pub kind: c_uint,
    /// 0, or the cause of a failure: a negative errno, or a reason of the network.
    pub status: c_int,
    /// Its identifier.
    pub id: *mut rdma_cm_id,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// Limit of RDMA Reads that the peer starts.
    pub reads_in: u8,
    /// Limit of RDMA Reads that the peer allows.
    pub reads_out: u8,
}

impl Event {
    /// Its name, with the reason of a failure.
    pub fn describe(&self, library: &Library) -> String {
        // SAFETY: the library's texts are constants.
        let name = unsafe { library.text((library.rdma_event_str)(self.kind)) };
        match self.status {
            0 => name,
            status if status < 0 => format!("{name}: {}", io::Error::from_raw_os_error(-status)),
            status => format!("{name}: reason {status}"),
        }
    }
}

/// An event channel.
struct Channel(Owned<rdma_event_channel>);

impl Channel {
    fn new(library: &'static Library) -> io::Result<Channel> {
        // SAFETY: a channel is destroyed once, after all its identifiers.
        let channel = unsafe {
            Owned::take(library, (library.rdma_create_event_channel)(), |library, channel| {
                (library.rdma_destroy_event_channel)(channel);
                0
            })?
        };
        let channel = Channel(channel);
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the channel is live.
        unsafe { (*self.0.as_ptr()).fd }
    }

    /// The next event, if there is one now.
    fn next(&self) -> io::Result<Option<Event>> {
        let library = self.0.library();
        let mut event = null_mut();
        // SAFETY: the channel is live; the event is acknowledged below, once everything is copied out of it.
        if let Err(error) = outcome(unsafe { (library.rdma_get_cm_event)(self.0.as_ptr(), &mut event) }) {
            let none = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if none { Ok(None) } else { Err(error) };
        }
        // SAFETY: a successful call returns an event, which stays until it is acknowledged.
        let told = unsafe { &*event };
        let said = &told.param.conn;
        let bytes = if said.private_data.is_null() { 0 } else { said.private_data_len as usize };
        let private_data = match bytes {
            0 => Vec::new(),
            // SAFETY: this many bytes are valid until the event is acknowledged.
            _ => unsafe { (*slice_from_raw_parts(said.private_data.cast::<u8>(), bytes)).to_vec() },
        };
        let copied = Event {
            kind: told.event,
            status: told.status,
            id: told.id,
            private_data,
            reads_in: said.responder_resources,
            reads_out: said.initiator_depth,
        };
        // SAFETY: it is from the call above, and nothing of it is kept.
        unsafe { (library.rdma_ack_cm_event)(event) };
        Ok(Some(copied))
    }
}

/// An identifier: one end of a connection, or a listening address.
pub struct Connection {
    // Dropped in this order.
    id: Owned<rdma_cm_id>,
    channel: Channel,
}

unsafe fn destroy_id(library: &Library, id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `Owned` calls it once, on an identifier without a queue pair.
    unsafe { (library.rdma_destroy_id)(id) }
}

impl Connection {
    /// Creates an identifier.
    pub fn new(library: &'static Library) -> io::Result<Connection> {
        let channel = Channel::new(library)?;
        let mut id = null_mut();
        // SAFETY: the channel is live.
        outcome(unsafe { (library.rdma_create_id)(channel.0.as_ptr(), &mut id, null_mut(), RDMA_PS_TCP) })?;
        // SAFETY: the call returned an identifier to its caller.
        let id = unsafe { Owned::take(library, id, destroy_id)? };
        Ok(Connection { id, channel })
    }

    /// Takes the identifier of a connection request out of the listener's channel.
    ///
    /// # Errors
    /// It cannot be taken; the request is then rejected.
    ///
    /// # Safety
    /// `id` is from a connection request, which is reported only once.
    pub unsafe fn from_request(library: &'static Library, id: *mut rdma_cm_id) -> io::Result<Connection> {
        // SAFETY: as the caller promises.
        let id = unsafe { Owned::take(library, id, destroy_id)? };
        let channel = Channel::new(library)?;
        // SAFETY: both are live, and its only event so far is acknowledged.
        outcome(unsafe { (library.rdma_migrate_id)(id.as_ptr(), channel.0.as_ptr()) })?;
        Ok(Connection { id, channel })
    }

    /// The pointer for calls of the libraries.
    pub fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// The library that it belongs to.
    pub fn library(&self) -> &'static Library {
        self.id.library()
    }

    /// Readable when [`Connection::next`] has something.
    pub fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// The next event.
    pub fn next(&self) -> io::Result<Option<Event>> {
        self.channel.next()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// `TimedOut`, or an error of the system.
    pub fn wait(&self, deadline: Instant) -> io::Result<Event> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut waiting = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor is passed.
            unsafe { libc::poll(&mut waiting, 1, milliseconds(left)) };
        }
    }

    fn wait_for(&self, kind: c_uint, deadline: Instant) -> io::Result<()> {
        let event = self.wait(deadline)?;
        match event.status {
            0 if event.kind == kind => Ok(()),
            status if status < 0 => Err(io::Error::from_raw_os_error(-status)),
            _ => Err(io::Error::other(event.describe(self.library()))),
        }
    }

    /// The adapter and its port; null before an address was resolved or bound.
    pub fn adapter(&self) -> (*mut ibv_context, u8) {
        // SAFETY: the identifier is live.
        unsafe { ((*self.as_ptr()).verbs, (*self.as_ptr()).port_num) }
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        // SAFETY: the identifier is live, and its addresses change only in calls on it.
        from_storage(unsafe { &(*self.as_ptr()).route.addr.src_storage })
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        // SAFETY: as above.
        from_storage(unsafe { &(*self.as_ptr()).route.addr.dst_storage })
    }

    /// Binds it to an address of an adapter.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut storage = to_storage(address);
        // SAFETY: the identifier is live, the address is read during the call.
        outcome(unsafe { (self.library().rdma_bind_addr)(self.as_ptr(), (&raw mut storage).cast()) })
    }

    /// Listens on the address that it is bound to.
    pub fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is live.
        outcome(unsafe { (self.library().rdma_listen)(self.as_ptr(), backlog) })
    }

    /// Finds the adapter and the path to an address.
    pub fn resolve(
        library: &'static Library,
        address: SocketAddr,
        class: TrafficClass,
        timeout: Duration,
    ) -> Result<Connection, VerbsError> {
        let failed = |step| move |source| VerbsError::Resolve { address, step, source };
        let deadline = Instant::now() + timeout;
        let connection = Connection::new(library)
            .map_err(failed("making an identifier (is the module rdma_ucm loaded?)"))?;
        if class != TrafficClass::default() {
            connection
                .set_option(RDMA_OPTION_ID_TOS, class.0)
                .map_err(failed("setting the type of service"))?;
        }
        connection.resolve_address(address, timeout, deadline).map_err(failed(
            "resolving the address (does a route lead there through an RDMA adapter's interface? \
             see `ip route get`, `rdma link`)",
        ))?;
        connection.resolve_route(timeout, deadline).map_err(failed(
            "resolving the route (is the adapter's port active, and for InfiniBand a subnet manager running? \
             see `rdma link`, `ibv_devinfo`; 127.0.0.1 has none)",
        ))?;
        Ok(connection)
    }

    fn resolve_address(&self, address: SocketAddr, timeout: Duration, deadline: Instant) -> io::Result<()> {
        let mut storage = to_storage(address);
        let (resolve, timeout_ms) = (self.library().rdma_resolve_addr, milliseconds(timeout));
        // SAFETY: the identifier is live, the address is read during the call.
        outcome(unsafe { resolve(self.as_ptr(), null_mut(), (&raw mut storage).cast(), timeout_ms) })?;
        self.wait_for(RDMA_CM_EVENT_ADDR_RESOLVED, deadline)?;
        if self.adapter().0.is_null() { Err(io::Error::from_raw_os_error(libc::ENODEV)) } else { Ok(()) }
    }

    fn resolve_route(&self, timeout: Duration, deadline: Instant) -> io::Result<()> {
        // SAFETY: the identifier is live.
        outcome(unsafe { (self.library().rdma_resolve_route)(self.as_ptr(), milliseconds(timeout)) })?;
        self.wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED, deadline)
    }

    fn set_option(&self, option: c_int, mut value: u8) -> io::Result<()> {
        let set = self.library().rdma_set_option;
        // SAFETY: the identifier is live, and both options are of one byte.
        outcome(unsafe { set(self.as_ptr(), RDMA_OPTION_ID, option, (&raw mut value).cast(), 1) })
    }

    /// Makes the adapter retransmit lost packets sooner than by default. Call it before connecting or
    /// accepting.
    pub fn shorten_ack_timeout(&self) {
        // Older kernels do not know this option; the connection works without it.
        let _ = self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, ACK_TIMEOUT);
    }

    /// Rejects the connection request.
    pub fn reject(&self, private_data: &[u8]) {
        let data = private_data.as_ptr().cast::<c_void>();
        // SAFETY: the identifier is live, the data is read during the call. If it fails, destroying the
        // identifier rejects too.
        unsafe { (self.library().rdma_reject)(self.as_ptr(), data, private_data.len().min(148) as u8) };
    }

    /// Ends the connection and flushes its queue pair.
    pub fn disconnect(&self) {
        // SAFETY: the identifier is live. It fails if the connection has already ended and the queue pair is
        // flushed.
        unsafe { (self.library().rdma_disconnect)(self.as_ptr()) };
    }
}

fn milliseconds(duration: Duration) -> c_int {
    c_int::try_from(duration.as_millis().max(1)).unwrap_or(c_int::MAX)
}
