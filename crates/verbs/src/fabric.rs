//! The seam: what an RDMA stack offers, in traits. The crate's documentation has the drawing.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::counters::Counters;
use crate::error::VerbsError;
use crate::types::{
    Access, DeviceEvent, DeviceLimits, EndpointOptions, EndpointState, MemoryPiece, Receives, SendWork,
    TrafficClass, WorkDone,
};

/// RDMA of one host (or, in tests, of one process that emulates it). Clones are the same fabric.
pub trait Fabric: Clone + Send + Sync + 'static {
    /// Its adapters.
    type Device: Device<Queue = Self::Queue, Shared = Self::Shared>;
    /// Completion queues.
    type Queue: CompletionQueue;
    /// Shared receive queues.
    type Shared: SharedReceives;
    /// Connections.
    type Endpoint: Endpoint<Device = Self::Device, Queue = Self::Queue, Shared = Self::Shared>;
    /// Addresses that are listened on.
    type Listener: Listener<Endpoint = Self::Endpoint>;

    /// The names of the adapters. It is not an error if there are none.
    ///
    /// # Errors
    /// The system refuses to list them.
    fn device_names(&self) -> Result<Vec<String>, VerbsError>;

    /// Finds the adapter and the path to `address`. Opens the adapter if it is not open.
    ///
    /// # Errors
    /// [`VerbsError::Resolve`]: no adapter of this host leads there. The error says which step failed and
    /// what to check.
    fn resolve(
        &self,
        address: SocketAddr,
        class: TrafficClass,
        timeout: Duration,
    ) -> Result<Self::Endpoint, VerbsError>;

    /// Listens on an address of an adapter.
    ///
    /// # Errors
    /// [`VerbsError::Listen`]: no adapter has the address, or it is in use.
    fn listen(&self, address: SocketAddr, backlog: u32) -> Result<Self::Listener, VerbsError>;
}

/// An open adapter with its protection domain, one per process. It is closed when the last object made from
/// it is dropped.
pub trait Device: Send + Sync + 'static {
    /// See [`Fabric::Queue`].
    type Queue;
    /// See [`Fabric::Shared`].
    type Shared;
    /// See [`Registration`].
    type Registration: Registration;
    /// See [`Window`].
    type Window: Window;

    /// "rxe0", "mlx5_0", and so on.
    fn name(&self) -> &str;

    /// Its limits.
    fn limits(&self) -> &DeviceLimits;

    /// Registers memory with the adapter, which pins its pages. Fails as a whole if a part of it is not
    /// mapped, or not writable although write access is requested.
    ///
    /// # Errors
    /// [`VerbsError::Register`], with the system's error: `EFAULT` for memory that is not mapped, `ENOMEM`
    /// for a limit.
    ///
    /// # Safety
    /// With [`Access::LOCAL_WRITE`] or [`Access::REMOTE_WRITE`], receives and peers with the key change the
    /// memory without the compiler's knowledge until the registration is dropped. Memory that is unmapped
    /// meanwhile stays pinned.
    unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Self::Registration, VerbsError>;

    /// Creates a memory window (type 2), to be bound to a part of a registration by
    /// [`Work::Bind`](crate::Work::Bind).
    ///
    /// # Errors
    /// The adapter has no windows ([`DeviceLimits::windows`] is false), or no more.
    fn window(&self) -> Result<Self::Window, VerbsError>;

    /// Creates a completion queue whose events can be waited for.
    ///
    /// # Errors
    /// Of the system.
    fn completion_queue(&self, depth: u32) -> Result<Self::Queue, VerbsError>;

    /// Creates a receive queue for many endpoints.
    ///
    /// # Errors
    /// The adapter has none, or none of this depth.
    fn shared_receives(&self, depth: u32) -> Result<Self::Shared, VerbsError>;

    /// Readable when [`Device::events`] has something.
    fn event_fd(&self) -> RawFd;

    /// Events of the adapter since the last call.
    fn events(&self) -> Vec<DeviceEvent>;

    /// Operations of this process on it.
    fn counters(&self) -> &Counters;
}

/// Registered memory. Dropping it deregisters it: keys become invalid, pages are unpinned.
pub trait Registration: Send + Sync + 'static {
    /// For [`MemoryPiece::local_key`].
    fn local_key(&self) -> u32;
    /// For peers; 0 without remote access.
    fn remote_key(&self) -> u32;
}

/// A memory window: a separate key for peers, for a part of a registration. It is bound again only after its
/// last key was invalidated. It is not bound again after a failed bind or invalidation, since its key is then
/// unknown. It is dropped before the endpoint on which it is bound: not every adapter can destroy a queue
/// pair with windows.
pub trait Window: Send + Sync + 'static {
    /// The key that the next [`Work::Bind`](crate::Work::Bind) of this window makes valid. It changes with
    /// every bind.
    fn next_key(&mut self) -> u32;
}

/// Where endpoints report completions. Used by one thread at a time.
pub trait CompletionQueue: Send + 'static {
    /// Appends completions to `done`, at most `most`, without waiting.
    ///
    /// # Errors
    /// The queue is unusable (overrun, adapter gone).
    fn poll(&mut self, done: &mut Vec<WorkDone>, most: usize) -> Result<(), VerbsError>;

    /// Requests that [`CompletionQueue::fd`] becomes readable at the next completion of any kind. Completions
    /// between the last poll and this call are not reported by the descriptor: poll once more after it.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    fn arm(&mut self) -> Result<(), VerbsError>;

    /// A descriptor to wait on.
    fn fd(&self) -> RawFd;

    /// Consumes the wake-ups of the descriptor. Call it when it is readable, before arming again. Returns
    /// their number.
    ///
    /// # Errors
    /// Of the system.
    fn take_wakeups(&mut self) -> Result<u32, VerbsError>;
}

/// A receive queue that many endpoints share.
pub trait SharedReceives: Send + Sync + 'static {
    /// Posts receives, each an id and a buffer.
    ///
    /// # Errors
    /// [`VerbsError::Post`]: the queue is full, or the adapter gone. Receives before the one in the error are
    /// posted.
    ///
    /// # Safety
    /// The buffers are registered and writable, and nobody else uses them until their [`WorkDone`] arrives.
    unsafe fn post(&self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError>;
}

/// One reliable connection.
pub trait Endpoint: Send + 'static {
    /// See [`Fabric::Device`].
    type Device;
    /// See [`Fabric::Queue`].
    type Queue;
    /// See [`Fabric::Shared`].
    type Shared;

    /// Its adapter.
    fn device(&self) -> Arc<Self::Device>;
    /// The address of the peer.
    fn peer(&self) -> SocketAddr;
    /// The local address.
    fn local(&self) -> SocketAddr;
    /// The peer's private data, from its request ([`Listener::next`]) or its acceptance
    /// ([`Endpoint::connect`]). The connection manager may have padded it with zeros.
    fn private_data(&self) -> &[u8];

    /// Creates the queue pair. Call it once, before connecting or accepting.
    ///
    /// # Errors
    /// The options exceed [`DeviceLimits`], or the adapter has no more queue pairs.
    fn create_queue_pair(
        &mut self,
        options: &EndpointOptions,
        queue: &Self::Queue,
        receives: Receives<'_, Self::Shared>,
    ) -> Result<(), VerbsError>;

    /// Requests the connection and waits for the reply. At most 56 bytes of private data.
    ///
    /// # Errors
    /// [`VerbsError::Rejected`], with the private data of the refusal; [`VerbsError::Connect`] else.
    fn connect(&mut self, private_data: &[u8], timeout: Duration) -> Result<(), VerbsError>;

    /// Accepts a connection request. [`Endpoint::state`] says when it is established. At most 196 bytes of
    /// private data.
    ///
    /// # Errors
    /// An error of the system, or the peer has given up.
    fn accept(&mut self, private_data: &[u8]) -> Result<(), VerbsError>;

    /// Rejects a connection request. At most 148 bytes of private data.
    fn reject(self, private_data: &[u8]);

    /// Readable when [`Endpoint::state`] may have changed.
    fn event_fd(&self) -> RawFd;

    /// The state of the connection. Consumes the events of the descriptor.
    fn state(&mut self) -> EndpointState;

    /// Disconnects. Outstanding work requests are flushed.
    fn disconnect(&mut self);

    /// Posts a chain of work requests with one doorbell. All are posted or, on an error, only those before
    /// the one named in it. With [`SendWork::signalled`] the completion (which implies that of all earlier
    /// ones) is reported. Errors are always reported.
    ///
    /// # Errors
    /// [`VerbsError::Post`]: the queue is full, there are too many pieces, or the connection has ended.
    ///
    /// # Safety
    /// The local pieces, and the registrations of binds, are live until completion is known, and for reads
    /// nobody else uses them. The windows of binds are live until then, or until [`Endpoint::disconnect`].
    unsafe fn post_send(&mut self, chain: &[SendWork<'_>]) -> Result<(), VerbsError>;

    /// Posts receives to the endpoint's own queue. There is none with [`Receives::Shared`].
    ///
    /// # Errors
    /// As [`Endpoint::post_send`].
    ///
    /// # Safety
    /// As [`SharedReceives::post`].
    unsafe fn post_receive(&mut self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError>;

    /// The number of its queue pair in [`WorkDone::queue_pair`]; 0 before it is created.
    fn queue_pair(&self) -> u32;

    /// Limit of bytes of a work request with [`SendWork::inline`]: the requested
    /// [`EndpointOptions::inline_bytes`], or less if the adapter has less; 0 before the queue pair is
    /// created.
    fn inline_bytes(&self) -> u32;
}

/// A listening address.
pub trait Listener: Send + 'static {
    /// See [`Fabric::Endpoint`].
    type Endpoint;
    /// Readable when there is a connection request.
    fn fd(&self) -> RawFd;
    /// The address, with the chosen port.
    fn address(&self) -> SocketAddr;
    /// The next connection request, to be accepted or rejected on any thread. `None` if there is none now.
    ///
    /// # Errors
    /// The listener is unusable.
    fn next(&mut self) -> Result<Option<Self::Endpoint>, VerbsError>;
}
