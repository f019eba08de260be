//! RDMA as the rest of Weft sees it: a small seam in the words of the InfiniBand verbs, and rdma-core behind it, loaded at run
//! time, so that a program runs the same where no RDMA library is installed.
//!
//! ```text
//!   Fabric ── resolve(address) ──► Endpoint ── create_queue_pair ── connect(private data) ──► post_send, post_receive
//!      │                              ▲                                                            │
//!      └───── listen(address) ──► Listener::next()  ── create_queue_pair ── accept(private data)    │ completions
//!                                                                                                  ▼
//!   Endpoint::device() ──► Device ── register(memory) ──► Registration { local_key, remote_key }    CompletionQueue::poll
//!                             ├───── completion_queue(depth) ──► CompletionQueue                     (fd, arm, poll)
//!                             └───── shared_receives(depth) ───► SharedReceives
//! ```
//!
//! One reliable connection is one [`Endpoint`]: the queue pair and its connection identifier together. An endpoint's work ends in
//! the order in which it was posted. A failed piece of work ends the queue pair: what was posted behind it is flushed.
//!
//! Everything is non-blocking but [`Fabric::resolve`] and [`Endpoint::connect`], which take a timeout: a server never calls
//! these two. Nothing here copies data or decides anything; [`Device::counters`] counts what was asked of the device.

mod counters;
mod error;
mod rdma;
mod types;

pub use counters::{Counters, Counts};
pub use error::VerbsError;
pub use rdma::{
    RdmaCore, RdmaDevice, RdmaEndpoint, RdmaListener, RdmaQueue, RdmaRegistration, RdmaShared, RdmaWindow,
};
pub use types::{
    Access, DeviceEvent, DeviceLimits, EndpointOptions, EndpointState, LinkLayer, MemoryPiece, Receives,
    SendWork, TrafficClass, Work, WorkDone, WorkKind, WorkStatus,
};

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// RDMA of one host (or, in tests, of one process that only pretends to have it). Clones are the same fabric.
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

    /// The adapters' names; none is no error.
    ///
    /// # Errors
    /// The system refuses to list them.
    fn device_names(&self) -> Result<Vec<String>, VerbsError>;

    /// Finds the adapter, and the path to `address`. Opens the adapter if nothing else has it open.
    ///
    /// # Errors
    /// [`VerbsError::Resolve`]: no adapter of this host leads there (says which step failed, and what to check).
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

/// An opened adapter with its protection domain, one for a process. It is closed when the last thing made from it is dropped.
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

    /// What it can do.
    fn limits(&self) -> &DeviceLimits;

    /// Makes memory known to the adapter and pins its pages. Fails as a whole when a part of it is not mapped, or not
    /// writable where that is asked for.
    ///
    /// # Errors
    /// [`VerbsError::Register`], with the system's error: `EFAULT` for memory that is not there, `ENOMEM` for a limit.
    ///
    /// # Safety
    /// With [`Access::LOCAL_WRITE`] or [`Access::REMOTE_WRITE`], receives and peers with the key change the memory behind
    /// the compiler's back until the registration is dropped. Memory that is unmapped meanwhile stays pinned as it was.
    unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Self::Registration, VerbsError>;

    /// A memory window (type 2), to be bound to a part of a registration by [`Work::Bind`].
    ///
    /// # Errors
    /// The adapter has none ([`DeviceLimits::windows`] is false) or no more.
    fn window(&self) -> Result<Self::Window, VerbsError>;

    /// A completion queue that can be slept on.
    ///
    /// # Errors
    /// Of the system.
    fn completion_queue(&self, depth: u32) -> Result<Self::Queue, VerbsError>;

    /// A receive queue for many endpoints.
    ///
    /// # Errors
    /// The adapter has none, or not so deep.
    fn shared_receives(&self, depth: u32) -> Result<Self::Shared, VerbsError>;

    /// Becomes readable when [`Device::events`] has something.
    fn event_fd(&self) -> RawFd;

    /// What has happened to the adapter since the last call.
    fn events(&self) -> Vec<DeviceEvent>;

    /// What was asked of it by this process.
    fn counters(&self) -> &Counters;
}

/// Memory that an adapter knows. Dropping it ends that: keys become invalid, pages are unpinned.
pub trait Registration: Send + Sync + 'static {
    /// For [`MemoryPiece::local_key`].
    fn local_key(&self) -> u32;
    /// For peers; 0 without remote access.
    fn remote_key(&self) -> u32;
}

/// A key for peers of its own for a part of a registration. It is bound again only after its last key was invalidated, and not
/// at all after a bind or invalidation that did not end well: then nobody knows which key it has. It ends before the endpoint that
/// it is bound on: not every adapter ends a queue pair with windows.
pub trait Window: Send + Sync + 'static {
    /// The key that the next [`Work::Bind`] of this window makes valid; it changes with every bind.
    fn next_key(&mut self) -> u32;
}

/// Where work of endpoints reports its end. Of one thread at a time.
pub trait CompletionQueue: Send + 'static {
    /// Adds what has ended to `done`, at most `most`, without waiting.
    ///
    /// # Errors
    /// The queue is unusable (overrun, adapter gone).
    fn poll(&mut self, done: &mut Vec<WorkDone>, most: usize) -> Result<(), VerbsError>;

    /// Asks for [`CompletionQueue::fd`] to become readable when the next work ends (all of it, not only solicited). What
    /// ended between the last poll and this call is not reported by the descriptor: poll once more after it.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll`].
    fn arm(&mut self) -> Result<(), VerbsError>;

    /// To wait on.
    fn fd(&self) -> RawFd;

    /// Takes the wake-ups out of the descriptor; to be called when it is readable, before arming again. Returns how many.
    ///
    /// # Errors
    /// Of the system.
    fn take_wakeups(&mut self) -> Result<u32, VerbsError>;
}

/// Receive buffers that many endpoints share.
pub trait SharedReceives: Send + Sync + 'static {
    /// Adds receives, each a number and a buffer.
    ///
    /// # Errors
    /// [`VerbsError::Post`]: the queue is full, or the adapter gone. What is before the one named in it is posted.
    ///
    /// # Safety
    /// The buffers are registered, writable, and nobody else's until their [`WorkDone`] comes.
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

    /// The adapter that it runs over.
    fn device(&self) -> Arc<Self::Device>;
    /// The other end.
    fn peer(&self) -> SocketAddr;
    /// This end.
    fn local(&self) -> SocketAddr;
    /// What the peer said when it asked for the connection ([`Listener::next`]) or accepted it ([`Endpoint::connect`]). The
    /// connection manager may have padded it with zeros.
    fn private_data(&self) -> &[u8];

    /// Makes the queue pair; to be called once, before connecting or accepting.
    ///
    /// # Errors
    /// The options are beyond [`DeviceLimits`], or the adapter has no more queue pairs.
    fn create_queue_pair(
        &mut self,
        options: &EndpointOptions,
        queue: &Self::Queue,
        receives: Receives<'_, Self::Shared>,
    ) -> Result<(), VerbsError>;

    /// Asks the other side for the connection and waits for its answer. At most 56 bytes of private data.
    ///
    /// # Errors
    /// [`VerbsError::Rejected`], with the private data of the refusal; [`VerbsError::Connect`] else.
    fn connect(&mut self, private_data: &[u8], timeout: Duration) -> Result<(), VerbsError>;

    /// Takes a connection that was asked for; [`Endpoint::state`] tells when it stands. At most 196 bytes.
    ///
    /// # Errors
    /// Of the system, or the peer has given up.
    fn accept(&mut self, private_data: &[u8]) -> Result<(), VerbsError>;

    /// Refuses it. At most 148 bytes.
    fn reject(self, private_data: &[u8]);

    /// Readable when [`Endpoint::state`] may have changed.
    fn event_fd(&self) -> RawFd;

    /// Where the connection stands; takes what has happened out of the descriptor.
    fn state(&mut self) -> EndpointState;

    /// Says goodbye; work under way is flushed.
    fn disconnect(&mut self);

    /// Posts a chain of work with one ring of the doorbell. All of it is posted or, on an error, only what is before the
    /// piece named in it. With [`SendWork::signalled`] its end (and, implied, that of everything before it) is reported;
    /// errors always are.
    ///
    /// # Errors
    /// [`VerbsError::Post`]: the queue is full, a piece too much, or the connection gone.
    ///
    /// # Safety
    /// The local pieces, and the registrations of binds, are live and (for reads) nobody else's until the end of the work is
    /// known; the windows of binds until then or [`Endpoint::disconnect`].
    unsafe fn post_send(&mut self, chain: &[SendWork<'_>]) -> Result<(), VerbsError>;

    /// Adds receives to the endpoint's own queue; none with [`Receives::Shared`].
    ///
    /// # Errors
    /// As [`Endpoint::post_send`].
    ///
    /// # Safety
    /// As [`SharedReceives::post`].
    unsafe fn post_receive(&mut self, receives: &[(u64, MemoryPiece)]) -> Result<(), VerbsError>;

    /// The number of its queue pair in [`WorkDone::queue_pair`]; 0 before there is one.
    fn queue_pair(&self) -> u32;

    /// How many bytes one piece of work can have with [`SendWork::inline`]: what was asked for in
    /// [`EndpointOptions::inline_bytes`], or less where the adapter has less room; 0 before there is a queue pair.
    fn inline_bytes(&self) -> u32;
}

/// An address that is listened on.
pub trait Listener: Send + 'static {
    /// See [`Fabric::Endpoint`].
    type Endpoint;
    /// Readable when somebody asks for a connection.
    fn fd(&self) -> RawFd;
    /// Where, with the port that was chosen.
    fn address(&self) -> SocketAddr;
    /// The next request for a connection: to be accepted or rejected, on any thread. `None` when there is none now.
    ///
    /// # Errors
    /// The listener is unusable.
    fn next(&mut self) -> Result<Option<Self::Endpoint>, VerbsError>;
}
