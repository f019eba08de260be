//! The words of the seam.

use std::ops::BitOr;

/// How memory may be used by an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Sent from only.
    pub const LOCAL_READ: Access = Access(0);
    /// Received into, and the target of reads.
    pub const LOCAL_WRITE: Access = Access(1);
    /// Written by peers; needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Access = Access(2);
    /// Read by peers.
    pub const REMOTE_READ: Access = Access(4);
    /// Bound to windows.
    pub const WINDOW_BIND: Access = Access(8);
    /// Faulted in by the adapter instead of being pinned ([`DeviceLimits::on_demand`]).
    pub const ON_DEMAND: Access = Access(16);

    /// Whether all of `other` is in it.
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

/// What kind of network an adapter is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// RDMA over TCP.
    Iwarp,
    /// A test's pretence.
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

/// What an adapter can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Its network.
    pub link_layer: LinkLayer,
    /// Local pieces of one send or write.
    pub send_pieces_max: usize,
    /// Local pieces of one RDMA Read.
    pub read_pieces_max: usize,
    /// Work waiting in one send queue.
    pub send_depth_max: u32,
    /// RDMA Reads under way as their initiator, on one connection.
    pub reads_out_max: u8,
    /// RDMA Reads under way as their target, on one connection.
    pub reads_in_max: u8,
    /// Receives waiting in one shared queue; 0: it has none.
    pub shared_receives_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// Registrations of all processes.
    pub registrations_max: u64,
    /// Bytes of one registration.
    pub registration_bytes_max: u64,
    /// Memory windows of type 2.
    pub windows: bool,
    /// Binds and invalidations are posted only when all other work before them is known to have ended. When work is sent again,
    /// because a packet was lost, rdma_rxe does those behind it again too, which fails, and its queue pair stands still for ever.
    pub binds_alone: bool,
    /// Memory need not be pinned.
    pub on_demand: bool,
}

/// Registered memory of this process. Laid out as adapters want it (`struct ibv_sge`), so that lists of it need no copying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryPiece {
    /// Where.
    pub address: u64,
    /// How much.
    pub bytes: u32,
    /// Of a registration that covers it.
    pub local_key: u32,
}

/// What is to be done. Pieces are gathered in order for sends and writes, and scattered into for reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A message; takes a receive of the peer's.
    Send,
    /// A message that also ends the validity of a key of the peer's.
    SendInvalidate {
        /// The key, of a window or registration of the peer's.
        remote_key: u32,
    },
    /// Into memory of the peer's.
    Write {
        /// Where.
        remote_address: u64,
        /// Of a registration of the peer's.
        remote_key: u32,
    },
    /// Into memory of the peer's, and a receive of the peer's is told.
    WriteImmediate {
        /// Where.
        remote_address: u64,
        /// Of a registration of the peer's.
        remote_key: u32,
        /// What it is told.
        immediate: u32,
    },
    /// Out of memory of the peer's.
    Read {
        /// Where.
        remote_address: u64,
        /// Of a registration of the peer's.
        remote_key: u32,
    },
    /// Gives a part of this process's memory a key of its own for peers.
    Bind {
        /// From [`crate::Window::next_key`].
        window_key: u32,
        /// Of a registration with [`Access::WINDOW_BIND`].
        local_key: u32,
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
        /// What peers may do.
        access: Access,
    },
    /// Ends the validity of a key of this process's.
    Invalidate {
        /// The key.
        key: u32,
    },
}

/// A piece of work to post.
#[derive(Debug, Clone, Copy)]
pub struct SendWork<'a> {
    /// Comes back in [`WorkDone::id`].
    pub id: u64,
    /// What is to be done.
    pub work: Work,
    /// With this memory.
    pub pieces: &'a [MemoryPiece],
    /// Whether its end is reported.
    pub signalled: bool,
    /// Whether it waits until reads before it have ended.
    pub fenced: bool,
    /// Whether its bytes are taken at once, so that the memory need be neither registered nor kept
    /// ([`EndpointOptions::inline_bytes`] at most).
    pub inline: bool,
}

/// What ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// Of [`SendWork`]; of flushed work which is not known.
    Sent,
    /// A message was received.
    Received,
    /// The peer wrote, and says this.
    ReceivedImmediate(u32),
    /// A message was received that ended the validity of this key.
    ReceivedInvalidate(u32),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// Well.
    Ok,
    /// Not done: the connection had ended before.
    Flushed,
    /// The memory of this side was not as its keys say.
    LocalProtection,
    /// The peer's adapter refused: keys, range or rights.
    RemoteAccess,
    /// The peer had no receive posted, for longer than was waited.
    ReceiverNotReady,
    /// The peer did not answer, for longer than was waited.
    RetriesExceeded,
    /// Something else, by the number of the verbs.
    Other(u32),
}

/// The end of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkDone {
    /// Of the work or the receive.
    pub id: u64,
    /// Which endpoint's.
    pub queue_pair: u32,
    /// What.
    pub kind: WorkKind,
    /// How.
    pub status: WorkStatus,
    /// Bytes received or read.
    pub bytes: u32,
}

/// Where an endpoint's messages are received.
pub enum Receives<'a, S> {
    /// In a queue of its own of this depth.
    Own(u32),
    /// In one that many share.
    Shared(&'a S),
}

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Work that may wait.
    pub send_depth: u32,
    /// Local pieces of one piece of work.
    pub pieces: u32,
    /// Bytes that are taken at once; fewer if the adapter has no room.
    pub inline_bytes: u32,
    /// RDMA Reads that this side starts at once.
    pub reads_out: u8,
    /// RDMA Reads that the peer may start at once.
    pub reads_in: u8,
}

/// Where a connection stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointState {
    /// Accepted, and not known to stand yet.
    Accepting,
    /// It stands.
    Connected,
    /// It is over, because of this.
    Ended(String),
}

/// What has happened to an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// It was removed or has failed: everything made from it is useless.
    Fatal(String),
    /// A port went down; connections over it may fail.
    PortDown(u32),
    /// A port came up.
    PortUp(u32),
    /// Something else, for logs.
    Other(String),
}

/// What the network is to think of a connection's traffic (IB 3.4): a service level or type of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficClass(pub u8);
