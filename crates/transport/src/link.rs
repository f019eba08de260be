//! The client's side of the seam.

use std::os::fd::RawFd;
use std::sync::Arc;

use weft_wire::Header;
use weft_wire::limits::SHARE_BYTES_MAX;

use crate::error::LinkError;
use crate::runs::MemoryRuns;
use crate::segment::Segment;
use crate::together::Together;

/// Request ids from here on belong to the transport itself (setting up memory); a caller's are below.
pub const OWN_REQUEST_IDS: u64 = 1 << 63;

/// Memory that was allocated as one, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// The memory of a request, as far as the caller knows it.
///
/// ```text
///   allocations   [──────────── an array ────────────]
///   runs             [piece]   [piece]   [piece]
/// ```
///
/// Pieces with segment 0 are addresses in this process, whether they lie in a [`Segment`] or not: a link
/// finds out by itself. With a segment's number the address is an offset in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkMemory {
    /// The pieces.
    pub runs: MemoryRuns,
    /// Allocations that the pieces are parts of, all of them, or none where the caller did not say: a
    /// transport that has to register memory registers these instead of every piece (NC 4.2.1).
    pub allocations: Arc<[Allocation]>,
    /// The pieces of all requests that this is one of, its own among them: what has to be registered is
    /// registered for all.
    pub together: Option<Arc<Together>>,
}

impl From<MemoryRuns> for BulkMemory {
    fn from(runs: MemoryRuns) -> BulkMemory {
        BulkMemory { runs, allocations: Arc::default(), together: None }
    }
}

/// What of the caller's memory a request moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bulk {
    /// None.
    None,
    /// The server fills these pieces.
    Put(BulkMemory),
    /// The server fetches these pieces.
    Get(BulkMemory),
}

impl Bulk {
    /// The server fills pieces of which nothing more is known.
    pub fn put(runs: MemoryRuns) -> Bulk {
        Bulk::Put(runs.into())
    }

    /// The server fetches them.
    pub fn get(runs: MemoryRuns) -> Bulk {
        Bulk::Get(runs.into())
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The reply's header; its `request_id` says which request.
    pub header: Header,
    /// The reply's body.
    pub body: Vec<u8>,
    /// Bytes that came over the stream into the memory of a put. Where the server reaches the memory itself:
    /// as far as the reply's header says ([`weft_wire::Header::moved`]) when it answered
    /// [`weft_wire::Status::Ok`], else 0.
    pub delivered_bytes: u64,
}

/// How a link moves data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// TCP, with this congestion control.
    Tcp {
        /// Its name in the kernel.
        congestion: String,
    },
    /// Shared memory; the server reaches this process's memory.
    ShmDirect,
    /// Shared memory; data is copied through a segment of the link's.
    ShmStaged {
        /// Why the server cannot reach this process's memory.
        reason: String,
    },
    /// RDMA.
    Verbs {
        /// The adapter: "mlx5_0", "rxe0".
        device: String,
        /// Its network: "InfiniBand", "RoCE", "iWARP".
        link_layer: String,
        /// What happens to memory that nobody registered by name.
        registration: String,
    },
    /// In one process, for tests.
    Memory,
}

impl std::fmt::Display for LinkKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LinkKind::Tcp { congestion } => write!(f, "tcp {congestion}"),
            LinkKind::ShmDirect => f.write_str("shm direct"),
            LinkKind::ShmStaged { reason } => write!(f, "shm staged: {reason}"),
            LinkKind::Verbs { device, link_layer, registration } => {
                write!(f, "verbs {device} {link_layer} {registration}")
            }
            LinkKind::Memory => f.write_str("memory"),
        }
    }
}

/// What suits a link: how its caller is to pack data, and what memory is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkTraits {
    /// Pieces of memory smaller than this, on average, are better packed …
    pub pack_below_bytes: u64,
    /// … in requests larger than this: others the link packs by itself, into memory that adapters know.
    pub pack_above_bytes: u64,
    /// Whether buffers that are kept are better of memory that the link was told of ([`Link::add_segment`]).
    pub shared: bool,
    /// Whether memory has to be registered.
    pub registers: bool,
}

impl LinkTraits {
    /// What suits both.
    pub fn and(self, other: LinkTraits) -> LinkTraits {
        LinkTraits {
            pack_below_bytes: self.pack_below_bytes.min(other.pack_below_bytes),
            pack_above_bytes: self.pack_above_bytes.max(other.pack_above_bytes),
            shared: self.shared || other.shared,
            registers: self.registers || other.registers,
        }
    }
}

/// A client's connection to a server. The calling thread does all the work: it submits requests on any number
/// of links, waits for their descriptors with `poll(2)`, and calls [`Link::progress`] on those that are
/// ready.
///
/// Dropping a link closes it. The memory of requests under way is the caller's again when drop returns: over
/// shared memory it first tells the server to let go (in a forked child it only closes descriptors).
pub trait Link: Send {
    /// How it moves data, for status.
    fn kind(&self) -> LinkKind;
    /// What suits it, from when it is set up.
    fn traits(&self) -> LinkTraits {
        LinkTraits::default()
    }
    /// The server, for people.
    fn peer(&self) -> &str;
    /// To wait for: readable always, writable too while [`Link::wants_write`].
    fn fd(&self) -> RawFd;
    /// Whether something is waiting to be sent.
    fn wants_write(&self) -> bool;
    /// Requests that may still be submitted. It is 1 until [`Link::set_credits`] is told what the server
    /// allows.
    fn credits(&self) -> u16;
    /// Sets the requests that the server allows at once, from its handshake; nothing may be under way.
    fn set_credits(&mut self, credits: u16);
    /// The largest bulk of one request whose memory is not all in segments.
    fn bulk_bytes_max(&self) -> u64 {
        SHARE_BYTES_MAX
    }
    /// Sends a request. `header` has operation, id, slot and trace; lengths and flags are set here.
    ///
    /// # Errors
    /// See [`LinkError::is_fatal`]: other errors refuse this request and leave the link as it was.
    ///
    /// # Safety
    /// The memory of `bulk` stays valid, and untouched by others, until the completion comes or the link is
    /// dropped.
    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError>;
    /// Sends and receives what can be without waiting; adds completed requests to `done`, also when it
    /// returns an error.
    ///
    /// # Errors
    /// The link has failed and so have all its requests under way.
    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError>;
    /// Sends what [`hold_requests`](crate::hold_requests) has kept, as far as the network takes it.
    ///
    /// # Errors
    /// As [`Link::progress`].
    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }
    /// As [`Link::progress`], for a caller that looks again soon, and calls `progress` before it waits for
    /// [`Link::fd`]: where [`Link::must_arm`], nothing is armed, and wake-ups are left to those who wait.
    ///
    /// # Errors
    /// As [`Link::progress`].
    fn watch(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.progress(done)
    }
    /// Whether [`Link::fd`] tells of what comes only after [`Link::progress`] has found nothing and armed it
    /// (IB 3.2.4).
    fn must_arm(&self) -> bool {
        false
    }
    /// Rises while data comes, and while a message that the network does not take at once goes out: over a
    /// slow network a request may take long, and its server be well. Replies need not count.
    fn moved_bytes(&self) -> u64 {
        0
    }
    /// The server has been silent for long: a drop does not wait for it.
    fn despair(&mut self) {}
    /// The link is given up by a client that goes on: its end must not look like that of the client's process. Over TCP it is
    /// reset instead of closed. In a forked child nothing is done.
    fn give_up(&mut self) {}
    /// Makes a segment known, so that requests with pieces in it move without a copy where the transport can.
    ///
    /// # Errors
    /// The link has failed.
    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError>;
    /// Forgets a segment. Requests under way may still use it.
    ///
    /// # Errors
    /// The link has failed.
    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError>;
}
