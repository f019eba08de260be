//! The types of the seam.

use std::ops::BitOr;

/// Access rights of an adapter to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// As a source of Sends and Writes only.
    pub const LOCAL_READ: Access = Access(0);
    /// As a target of receives and Reads.
    pub const LOCAL_WRITE: Access = Access(1);
    /// Peers may write; needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Access = Access(2);
    /// Peers may read.
    pub const REMOTE_READ: Access = Access(4);
    /// Windows may be bound to it.
    pub const WINDOW_BIND: Access = Access(8);
    /// The adapter pages it in on demand instead of pinning it ([`DeviceLimits::on_demand`]).
    pub const ON_DEMAND: Access = Access(16);

    /// Whether it includes all of `other`.
    pub fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Access;
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// The kind of network of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
    /// Emulated, in tests.
    Pretended,
}

impl std::fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Roce => "RoCE",
            LinkLayer::Iwarp => "iWARP",
            LinkLayer::Pretended => "pretended",
        })
    }
}

/// The limits of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Its kind of network.
    pub link_layer: LinkLayer,
    /// Local pieces of one Send or Write.
    pub send_pieces_max: usize,
    /// Local pieces of one RDMA Read.
    pub read_pieces_max: usize,
    /// Work requests in one send queue.
    pub send_depth_max: u32,
    /// Concurrent RDMA Reads as the initiator, on one connection.
    pub reads_out_max: u8,
    /// Concurrent RDMA Reads as the target, on one connection.
    pub reads_in_max: u8,
    /// Receives in one shared queue; 0: it has none.
    pub shared_receives_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// Limit of registrations, of all processes together.
    pub registrations_max: u64,
    /// Limit of bytes of one registration.
    pub registration_bytes_max: u64,
    /// Whether it has memory windows of type 2.
    pub windows: bool,
    /// Whether binds and invalidations must be posted alone, after all earlier work requests have completed.
    /// When rdma_rxe retransmits after a lost packet, it also repeats the binds after it, which fails, and
    /// its queue pair hangs.
    pub binds_alone: bool,
    /// Whether memory need not be pinned.
    pub on_demand: bool,
}

/// A piece of registered memory of this process. Its layout is that of `struct ibv_sge`, so that lists of it
/// need no copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryPiece {
    /// The address.
    pub address: u64,
    /// The length.
    pub bytes: u32,
    /// The key of a registration that covers it.
    pub local_key: u32,
}

/// The kind of a work request. Pieces are gathered in order for Sends and Writes, and scattered for Reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Sends a message, which consumes a receive of the peer.
    Send,
    /// Sends a message that also invalidates a key of the peer.
    SendInvalidate {
        /// The key of a window or registration of the peer.
        remote_key: u32,
    },
    /// Writes memory of the peer.
    Write {
        /// The address.
        remote_address: u64,
        /// The key of a registration of the peer.
        remote_key: u32,
    },
    /// Writes memory of the peer and consumes a receive of the peer, which gets a number.
    WriteImmediate {
        /// The address.
        remote_address: u64,
        /// The key of a registration of the peer.
        remote_key: u32,
        /// The number.
        immediate: u32,
    },
    /// Reads memory of the peer.
    Read {
        /// The address.
        remote_address: u64,
        /// The key of a registration of the peer.
        remote_key: u32,
    },
    /// Binds a window: gives a part of this process's memory a separate key for peers.
    Bind {
        /// The key, from [`crate::Window::next_key`].
        window_key: u32,
        /// The local key of a registration with [`Access::WINDOW_BIND`].
        local_key: u32,
        /// The address.
        address: u64,
        /// The length.
        bytes: u64,
        /// The access rights of peers.
        access: Access,
    },
    /// Invalidates a key of this process.
    Invalidate {
        /// The key.
        key: u32,
    },
}

/// A work request to post.
#[derive(Debug, Clone, Copy)]
pub struct SendWork<'a> {
    /// Returned in [`WorkDone::id`].
    pub id: u64,
    /// The kind of work request.
    pub work: Work,
    /// Its memory.
    pub pieces: &'a [MemoryPiece],
    /// Whether its completion is reported.
    pub signalled: bool,
    /// Whether it waits until earlier Reads have completed.
    pub fenced: bool,
    /// Whether its bytes are copied when it is posted, so that the memory need not be registered or kept
    /// ([`EndpointOptions::inline_bytes`] at most).
    pub inline: bool,
}

/// The kind of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Of [`SendWork`]. Of flushed work the kind is not known.
    Sent,
    /// A message was received.
    Received,
    /// The peer wrote with this immediate number.
    ReceivedImmediate(u32),
    /// A message was received that invalidated this key.
    ReceivedInvalidate(u32),
}

/// The status of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// Success.
    Ok,
    /// Flushed: the connection had ended.
    Flushed,
    /// Local memory did not match its keys.
    LocalProtection,
    /// The peer's adapter refused: keys, range or rights.
    RemoteAccess,
    /// The peer had no receive posted, within the time limit.
    ReceiverNotReady,
    /// The peer did not acknowledge, within the time limit.
    RetriesExceeded,
    /// Another status, by its number in the verbs.
    Other(u32),
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkDone {
    /// The id of the work request or receive.
    pub id: u64,
    /// The queue pair of the endpoint.
    pub queue_pair: u32,
    /// What.
    pub kind: WorkKind,
    /// How.
    pub status: WorkStatus,
    /// Bytes received or read.
    pub bytes: u32,
}

/// The receive queue of an endpoint.
pub enum Receives<'a, S> {
    /// Its own queue, of this depth.
    Own(u32),
    /// A shared queue.
    Shared(&'a S),
}

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Limit of outstanding work requests.
    pub send_depth: u32,
    /// Limit of local pieces of one work request.
    pub pieces: u32,
    /// Limit of inline bytes; less if the adapter has less.
    pub inline_bytes: u32,
    /// Limit of concurrent RDMA Reads that this side starts.
    pub reads_out: u8,
    /// Limit of concurrent RDMA Reads that the peer starts.
    pub reads_in: u8,
}

/// The state of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointState {
    /// Accepted, but not known to be established.
    Accepting,
    /// Established.
    Connected,
    /// Ended, for this reason.
    Ended(String),
}

/// An event of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// It was removed or has failed. Everything created from it is unusable.
    Fatal(String),
    /// A port went down; connections over it may fail.
    PortDown(u32),
    /// A port came up.
    PortUp(u32),
    /// Another event, for logs.
    Other(String),
}

/// The traffic class of a connection in the network (IB 3.4): a service level or type of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficClass(pub u8);
