//! Connections: a queue pair and its identifier together.

use super::bindings::*;
use super::connection::{Connection, Event};
use super::device::RdmaDevice;
use super::library::outcome;
use super::queue::{Completions, RdmaQueue, RdmaShared, SharedQueue, position, post_receives};
use crate::{
    Access, Counters, Device, Endpoint, EndpointOptions, EndpointState, MemoryPiece, Receives, SendWork,
    TrafficClass, VerbsError, Work,
};
use libc::{c_int, c_uint};
use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits of private data in a connection request, an acceptance and a rejection: the space that the
/// connection manager's messages leave after addresses (InfiniBand Architecture Specification, volume 1,
/// section 12.6).
const REQUEST_BYTES_MAX: usize = 56;
const ACCEPT_BYTES_MAX: usize = 196;

/// Retransmissions without an acknowledgement. (The maximum would be 7, which the driver rdma_rxe takes as
/// unlimited.)
const RETRIES: u8 = 6;
/// Unlimited retries while the peer has no receive posted: a slow or malicious peer only slows its own
/// connection.
const RECEIVER_RETRIES: u8 = 7;

/// Reasons of a rejection by a program, and because no program listens.
const REFUSED_BY_PROGRAM: c_int = 28;
const NOBODY_LISTENS: c_int = 8;

/// One end of a connection.
pub struct RdmaEndpoint {
    // Dropped in this order.
    queue_pair: Option<QueuePair>,
    connection: Connection,
    device: Arc<RdmaDevice>,
    private_data: Vec<u8>,
    /// Limits of RDMA Reads that this side and the peer start.
    reads: (u8, u8),
    state: EndpointState,
    /// Memory for chains, so that posting allocates nothing.
    requests: Vec<ibv_send_wr>,
}

// SAFETY: the pointers in the requests are used only while a chain is posted.
unsafe impl Send for RdmaEndpoint {}

struct QueuePair {
    pointer: NonNull<ibv_qp>,
    id: *mut rdma_cm_id,
    inline_bytes: u32,
    device: Arc<RdmaDevice>,
    // Its completion queue and receive queue are kept alive as long as it lives.
    _completions: Arc<Completions>,
    _shared: Option<Arc<SharedQueue>>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let library = self.device.library();
        if !library.is_forked() {
            // SAFETY: the identifier is live, this is its queue pair, and it is destroyed once.
            unsafe { (library.rdma_destroy_qp)(self.id) };
        }
    }
}

impl QueuePair {
    fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.pointer.as_ptr()).qp_num }
    }
}

impl RdmaEndpoint {
    /// An endpoint on an identifier that is bound to an adapter. `request` is the connection request that is
    /// to be accepted.
    pub(super) fn new(connection: Connection, request: Option<Event>) -> Result<RdmaEndpoint, VerbsError> {
        let device = RdmaDevice::of(&connection)?;
        let reads = request.as_ref().map_or((u8::MAX, u8::MAX), |event| (event.reads_out, event.reads_in));
        Ok(RdmaEndpoint {
            queue_pair: None,
            connection,
            device,
            private_data: request.map(|event| event.private_data).unwrap_or_default(),
            reads,
            state: EndpointState::Accepting,
            requests: Vec::new(),
        })
    }

    /// Finds the adapter and the path to an address.
    pub(super) fn resolve(
        library: &'static super::library::Library,
        address: SocketAddr,
        class: TrafficClass,
        timeout: Duration,
    ) -> Result<RdmaEndpoint, VerbsError> {
        RdmaEndpoint::new(Connection::resolve(library, address, class, timeout)?, None)
    }

    fn parameters(&self, private_data: &[u8]) -> rdma_conn_param {
        rdma_conn_param {
            private_data: private_data.as_ptr().cast(),
            private_data_len: private_data.len() as u8,
            responder_resources: self.reads.1,
            initiator_depth: self.reads.0,
            flow_control: 1,
            retry_count: RETRIES,
            rnr_retry_count: RECEIVER_RETRIES,
            srq: 0,
            qp_num: 0,
        }
    }

    fn not_connected(&self, cause: impl ToString) -> VerbsError {
        VerbsError::Connect { address: self.peer(), cause: cause.to_string() }
    }

    /// Handles the reply to a connection request.
    fn answered(&mut self, event: Event) -> Result<(), VerbsError> {
        let said_no = event.kind == RDMA_CM_EVENT_REJECTED;
        match event.status {
            _ if event.kind == RDMA_CM_EVENT_ESTABLISHED => {
                self.private_data = event.private_data;
                self.state = EndpointState::Connected;
                Ok(())
            }
            NOBODY_LISTENS if said_no => Err(self.not_connected("nobody listens there")),
            status if said_no && (status == REFUSED_BY_PROGRAM || status == -libc::ECONNREFUSED) => {
                Err(VerbsError::Rejected { address: self.peer(), private_data: event.private_data })
            }
            _ => Err(self.not_connected(event.describe(self.connection.library()))),
        }
    }

    /// Records that the connection has ended.
    fn ended(&mut self, cause: String) {
        self.connection.disconnect();
        self.state = EndpointState::Ended(cause);
    }

    fn happened(&mut self, event: &Event) {
        if matches!(self.state, EndpointState::Ended(_)) {
            return;
        }
        let text = event.describe(self.connection.library());
        match event.kind {
            RDMA_CM_EVENT_ESTABLISHED => self.state = EndpointState::Connected,
            RDMA_CM_EVENT_DISCONNECTED => self.ended(format!("{} ended the connection", self.peer())),
            RDMA_CM_EVENT_DEVICE_REMOVAL => {
                self.ended(format!("the adapter {} was removed", self.device.name()))
            }
            RDMA_CM_EVENT_ADDR_CHANGE => {
                self.ended(format!("the address {} has moved to another adapter", self.local()));
            }
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_REJECTED => {
                self.ended(format!("the connection with {} was not established: {text}", self.peer()));
            }
            _ => {}
        }
    }

    fn queue_pair_or_error(&self) -> Result<&QueuePair, VerbsError> {
        self.queue_pair.as_ref().ok_or_else(|| self.post_error(0, io::ErrorKind::NotConnected.into()))
    }

    fn post_error(&self, posted: usize, source: io::Error) -> VerbsError {
        VerbsError::Post { device: self.device.name().to_string(), posted, source }
    }

    /// Builds the list of work requests for the driver.
    fn prepare(&mut self, chain: &[SendWork<'_>]) -> Result<(), VerbsError> {
        self.requests.clear();
        for work in chain {
            let request = request(&self.device, work).map_err(|source| self.post_error(0, source))?;
            self.requests.push(request);
        }
        let first = self.requests.as_mut_ptr();
        for index in 1..self.requests.len() {
            self.requests[index - 1].next = first.wrapping_add(index);
        }
        Ok(())
    }

    /// Counts posted work requests, and updates the keys of bound windows.
    fn note(&self, posted: &[SendWork<'_>]) {
        let counters = self.device.counters();
        for (work, request) in posted.iter().zip(&self.requests) {
            let bytes = work.pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
            let (counter, volume) = match work.work {
                Work::Send | Work::SendInvalidate { .. } => (&counters.sends, &counters.sent_bytes),
                Work::Write { .. } => (&counters.writes, &counters.sent_bytes),
                Work::WriteImmediate { .. } => (&counters.writes_immediate, &counters.sent_bytes),
                Work::Read { .. } => (&counters.reads, &counters.read_bytes),
                Work::Bind { window_key, .. } => {
                    // SAFETY: the window is live, as the caller has promised, and nobody else binds it now.
                    unsafe { (*request.bind_mw.mw).rkey = window_key };
                    (&counters.binds, &counters.sent_bytes)
                }
                Work::Invalidate { .. } => (&counters.binds, &counters.sent_bytes),
            };
            Counters::add(counter, 1);
            Counters::add(volume, bytes);
        }
    }
}

/// A work request for the driver.
fn request(device: &RdmaDevice, work: &SendWork<'_>) -> io::Result<ibv_send_wr> {
    // SAFETY: all zeros are a valid value.
    let mut request: ibv_send_wr = unsafe { zeroed() };
    request.wr_id = work.id;
    request.sg_list = work.pieces.as_ptr().cast_mut().cast();
    request.num_sge = work.pieces.len() as c_int;
    request.send_flags = flags(work);
    let to = |remote_addr, rkey| ibv_send_wr_to { rdma: ibv_send_wr_rdma { remote_addr, rkey } };
    match work.work {
        Work::Send => request.opcode = IBV_WR_SEND,
        Work::SendInvalidate { remote_key } => {
            (request.opcode, request.imm_data) = (IBV_WR_SEND_WITH_INV, remote_key);
        }
        Work::Write { remote_address, remote_key } => {
            (request.opcode, request.wr) = (IBV_WR_RDMA_WRITE, to(remote_address, remote_key));
        }
        Work::WriteImmediate { remote_address, remote_key, immediate } => {
            (request.opcode, request.wr) = (IBV_WR_RDMA_WRITE_WITH_IMM, to(remote_address, remote_key));
            request.imm_data = immediate.to_be();
        }
        Work::Read { remote_address, remote_key } => {
            (request.opcode, request.wr) = (IBV_WR_RDMA_READ, to(remote_address, remote_key));
        }
        Work::Invalidate { key } => (request.opcode, request.imm_data) = (IBV_WR_LOCAL_INV, key),
        Work::Bind { window_key, local_key, address, bytes, access } => {
            let unknown = || io::Error::from_raw_os_error(libc::EINVAL);
            request.opcode = IBV_WR_BIND_MW;
            request.bind_mw = ibv_send_wr_bind {
                mw: device.find_window(window_key).ok_or_else(unknown)?,
                rkey: window_key,
                bind_info: ibv_mw_bind_info {
                    mr: device.find_bindable(local_key).ok_or_else(unknown)?,
                    addr: address,
                    length: bytes,
                    mw_access_flags: window_access(access),
                },
            };
        }
    }
    Ok(request)
}

fn flags(work: &SendWork<'_>) -> c_uint {
    let pairs =
        [(work.signalled, IBV_SEND_SIGNALED), (work.fenced, IBV_SEND_FENCE), (work.inline, IBV_SEND_INLINE)];
    pairs.iter().filter(|(wanted, _)| *wanted).fold(0, |sum, (_, flag)| sum | flag)
}

/// Access flags of a window, which grants rights to peers only.
fn window_access(access: Access) -> c_uint {
    let pairs =
        [(Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE), (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ)];
    pairs.iter().filter(|(ours, _)| access.contains(*ours)).fold(0, |sum, (_, flag)| sum | *flag as c_uint)
}

impl Endpoint for RdmaEndpoint {
    type Device = RdmaDevice;
    type Queue = RdmaQueue;
    type Shared = RdmaShared;

    fn device(&self) -> Arc<RdmaDevice> {
        self.device.clone()
    }

    fn peer(&self) -> SocketAddr {
        self.connection.peer()
    }

    fn local(&self) -> SocketAddr {
        self.connection.local()
    }

    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn create_queue_pair(
        &mut self,
        options: &EndpointOptions,
        queue: &RdmaQueue,
        receives: Receives<'_, RdmaShared>,
    ) -> Result<(), VerbsError> {
        let limits = self.device.limits();
        self.reads.0 = self.reads.0.min(options.reads_out).min(limits.reads_out_max);
        self.reads.1 = self.reads.1.min(options.reads_in).min(limits.reads_in_max);
        let (depth, shared) = match receives {
            Receives::Own(depth) => (depth, None),
            Receives::Shared(shared) => (0, Some(shared.shared.clone())),
        };
        let wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue.completions.as_ptr(),
            recv_cq: queue.completions.as_ptr(),
            srq: shared.as_ref().map_or(null_mut(), |shared| shared.as_ptr()),
            cap: ibv_qp_cap {
                max_send_wr: options.send_depth,
                max_recv_wr: depth,
                max_send_sge: options.pieces,
                max_recv_sge: 1,
                max_inline_data: options.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let (pointer, inline_bytes) = self.make_queue_pair(wanted)?;
        self.queue_pair = Some(QueuePair {
            pointer,
            id: self.connection.as_ptr(),
            inline_bytes: inline_bytes.min(options.inline_bytes),
            device: self.device.clone(),
            _completions: queue.completions.clone(),
            _shared: shared,
        });
        Ok(())
    }

    fn connect(&mut self, private_data: &[u8], timeout: Duration) -> Result<(), VerbsError> {
        if private_data.len() > REQUEST_BYTES_MAX {
            return Err(
                self.not_connected(format!("at most {REQUEST_BYTES_MAX} bytes of private data can be sent"))
            );
        }
        let deadline = Instant::now() + timeout;
        let mut parameters = self.parameters(private_data);
        self.connection.shorten_ack_timeout();
        let connect = self.connection.library().rdma_connect;
        // SAFETY: the identifier is live, the data is read during the call.
        outcome(unsafe { connect(self.connection.as_ptr(), &mut parameters) })
            .map_err(|error| self.not_connected(error))?;
        let answer = self.connection.wait(deadline).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => self.not_connected(format!("no answer in {} ms", timeout.as_millis())),
            _ => self.not_connected(error),
        })?;
        self.answered(answer)
    }

    fn accept(&mut self, private_data: &[u8]) -> Result<(), VerbsError> {
        if private_data.len() > ACCEPT_BYTES_MAX {
            return Err(
                self.not_connected(format!("at most {ACCEPT_BYTES_MAX} bytes of private data can be sent"))
            );
        }
        let mut parameters = self.parameters(private_data);
        self.connection.shorten_ack_timeout();
        let accept = self.connection.library().rdma_accept;
        // SAFETY: the identifier is live, the data is read during the call.
        outcome(unsafe { accept(self.connection.as_ptr(), &mut parameters) })
            .map_err(|error| self.not_connected(error))
    }

    fn reject(self, private_data: &[u8]) {
        self.connection.reject(private_data);
    }

    fn event_fd(&self) -> RawFd {
        self.connection.fd()
    }

    fn state(&mut self) -> EndpointState {
        loop {
            match self.connection.next() {
                Ok(Some(event)) => self.happened(&event),
                Ok(None) => return self.state.clone(),
                Err(error) => {
                    self.ended(format!("cannot read events of the connection manager: {error}"));
                    return self.state.clone();
                }
            }
        }
    }

    fn disconnect(&mut self) {
        if !matches!(self.state, EndpointState::Ended(_)) {
            self.ended("the connection was ended locally".to_string());
        }
    }

    unsafe fn post_send(&mut self, chain: &[SendWork<'_>]) -> Result<(), VerbsError> {
        if chain.is_empty() {
            return Ok(());
        }
        let queue_pair = self.queue_pair_or_error()?.pointer.as_ptr();
        self.prepare(chain)?;
        let post = self.device.operations().post_send.expect("every driver has it");
        let (first, mut refused) = (self.requests.as_mut_ptr(), null_mut());
        // SAFETY: the queue pair is live, the list is whole, and its memory is as the caller promises.
        let result = outcome(unsafe { post(queue_pair, first, &mut refused) });
        let posted = if result.is_ok() { chain.len() } else { position(first, refused, chain.len()) };
        Counters::add(&self.device.counters().doorbells, 1);
        self.note(&chain[..posted]);
        result.map_err(|source| self.post_error(posted, source))
    }

    unsafe fn post_receive(&mut self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError> {
        let queue_pair = self.queue_pair_or_error()?.pointer.as_ptr();
        let post = self.device.operations().post_recv.expect("every driver has it");
        // SAFETY: the queue pair is live, and the buffers are as the caller promises.
        post_receives(&self.device, receives, |first, refused| unsafe { post(queue_pair, first, refused) })
    }

    fn queue_pair(&self) -> u32 {
        self.queue_pair.as_ref().map_or(0, QueuePair::number)
    }

    fn inline_bytes(&self) -> u32 {
        self.queue_pair.as_ref().map_or(0, |queue_pair| queue_pair.inline_bytes)
    }
}

impl RdmaEndpoint {
    /// Creates the queue pair, with less space for inline data if the adapter has less. Returns it and that
    /// space.
    fn make_queue_pair(&self, mut wanted: ibv_qp_init_attr) -> Result<(NonNull<ibv_qp>, u32), VerbsError> {
        let create = self.connection.library().rdma_create_qp;
        loop {
            let mut given = wanted;
            // SAFETY: the identifier is live and bound to the adapter. Its queues are live, and the caller
            // keeps them alive.
            match outcome(unsafe { create(self.connection.as_ptr(), self.device.domain(), &mut given) }) {
                Ok(()) => {
                    // SAFETY: the identifier is live and now has a queue pair.
                    let pointer = NonNull::new(unsafe { (*self.connection.as_ptr()).qp });
                    return Ok((pointer.expect("a queue pair was made"), given.cap.max_inline_data));
                }
                Err(error)
                    if error.raw_os_error() == Some(libc::EINVAL) && wanted.cap.max_inline_data > 0 =>
                {
                    wanted.cap.max_inline_data /= 2;
                }
                Err(error) => return Err(self.device.error("create a queue pair", error)),
            }
        }
    }
}
