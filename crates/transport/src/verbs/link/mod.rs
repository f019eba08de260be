//! A client's link: poll style, no threads. The calling thread posts, polls and copies.
//!
//! ```text
//!   submit ─► outgoing ─► [Bind of windows ▸] send slot (envelope, header, body, data) ─► Send ► server
//!                     └─► staging or user's memory ─────────────────► WriteImmediate ──►
//!   progress: completions ─► parts ─► reply ─► Completion;   receives posted again, credits told
//! ```
//!
//! The queue pair, its work and its descriptors are a [`Requester`]'s.

mod lend;
mod receive;
mod request;
mod send;
mod windows;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use weft_rdma::{RECEIVE, Requester, Slots, Tag, WINDOW_MIN};
use weft_verbs::{
    Access, Device, Endpoint, EndpointOptions, Fabric, MemoryPiece, Receives, VerbsError, Work,
};
use weft_wire::limits::CREDITS_PER_CONNECTION;
use weft_wire::security::Key;
use weft_wire::{Header, VERSIONS};

use super::adapter::{Adapter, connect_error};
use super::assembly::Assembler;
use super::choose::Mechanism;
use super::credits::Credits;
use super::envelope::{Accepting, Asking, FastBuffers, MESSAGE_BYTES};
use super::lend::{Budget, LENT_READS};
use super::link_options::VerbsOptions;
use super::locked;
use super::sizes::FAST_BYTES;
use crate::error::{FrameError, LinkError, RunsError};
use crate::link::{Bulk, Completion, Link, LinkKind, LinkTraits};
use crate::registration::Pinned;
use crate::runs::MemoryRuns;
use crate::segment::{KnownSegments, Segment};

use lend::{LentPart, Moved};
use windows::Windows;

/// Work that may wait in a link's send queue, or less if the adapter has not so much room.
const SEND_DEPTH: u32 = 64;
/// Of so many looks by who watches one takes everything in.
const WATCHED_MAX: u32 = 256;
/// What is still to be sent.
struct Outgoing {
    request_id: u64,
    /// Header, body, and payload of the link's own.
    head: Vec<u8>,
    /// The caller's data behind it.
    data: MemoryRuns,
    data_bytes: u64,
    sent: u64,
    way: Way,
}

enum Way {
    /// Cut into parts, behind binds of windows that it tells the keys of.
    Parts { binds: VecDeque<Work> },
    /// In one write into this buffer of the server's, from this staging slot.
    FastCopied { buffer: u16, staging: usize },
    /// In one write into this buffer of the server's, from these pieces of the caller's.
    FastGathered { buffer: u16, pieces: Vec<MemoryPiece> },
}

/// A request under way.
struct Pending<D: Device> {
    request_id: u64,
    /// Where the server's data goes, as far as it comes in messages or through staging.
    memory: MemoryRuns,
    bytes: u64,
    delivered_bytes: u64,
    /// The server reaches the memory itself.
    described_put: bool,
    /// A slot of staging that the server writes into, to be copied out at the end.
    staging: Option<usize>,
    /// A buffer of the server's that this request occupies.
    fast: Option<u16>,
    /// By which the server gets at the memory.
    windows: Windows<D::Window>,
    /// This side moves the data.
    moved: Option<Moved>,
    /// Keeps the memory registered.
    pinned: Option<Pinned<D>>,
    /// Sent as a whole.
    sent: bool,
    /// Its completion waits for the end of this piece of work, which reads the caller's memory.
    waits_for: Option<u64>,
    reply: Option<(Header, Vec<u8>)>,
}

/// What is free again once a piece of work has ended.
enum Freed {
    Send(usize),
    Staging(usize),
    /// So many bytes between the caller's memory and what is lent.
    Lent(u64),
    /// A bind or an invalidation, which the adapter does by itself.
    Local,
}

impl Tag for Freed {
    fn is_local(&self) -> bool {
        matches!(self, Freed::Local)
    }

    fn is_message(&self) -> bool {
        matches!(self, Freed::Send(_) | Freed::Staging(_))
    }
}

struct Inner<F: Fabric> {
    // The order of dropping: with the endpoint all work has ended, and only then registrations may.
    requester: Requester<F, Freed>,
    pending: Vec<Pending<F::Device>>,
    /// Windows without a valid key.
    windows_free: Vec<<F::Device as Device>::Window>,
    /// Keys to be ended by work of this side, with their requests.
    ending: VecDeque<(u64, u32)>,
    /// Memory of the server's that this side works on.
    lent: VecDeque<LentPart>,
    budget: Budget,
    /// The server lends.
    lends: bool,
    receives: Slots<F::Device>,
    sends: Slots<F::Device>,
    staging: Slots<F::Device>,
    adapter: Adapter<F>,
    /// Times that it was watched, round and round.
    watched: u32,
    address: SocketAddr,
    peer: String,
    options: VerbsOptions,
    fast: FastBuffers,
    fast_free: Vec<u16>,
    staging_free: Vec<usize>,
    sends_free: Vec<usize>,
    credits: Credits,
    assembler: Assembler,
    outgoing: VecDeque<Outgoing>,
    ready: Vec<Completion>,
    request_credits: u16,
    request_credits_max: u16,
    segments: KnownSegments,
    failed: bool,
}

/// A client's connection over RDMA.
pub struct VerbsLink<F: Fabric> {
    inner: ManuallyDrop<Box<Inner<F>>>,
    process: u32,
}

impl<F: Fabric> Drop for VerbsLink<F> {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return; // a forked child: connection and registrations are the parent's
        }
        self.inner.requester.disconnect("the link is dropped");
        self.inner.drop_windows();
        // SAFETY: dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

impl<F: Fabric> VerbsLink<F> {
    pub(super) fn connect(
        mut endpoint: F::Endpoint,
        adapter: Adapter<F>,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<VerbsLink<F>, LinkError> {
        let failed = |error: VerbsError| connect_error(address, error);
        let device = adapter.device.clone();
        let limits = device.limits();
        let receive_count = u32::from(options.receives).max(WINDOW_MIN);
        let send_depth = SEND_DEPTH.min(limits.send_depth_max);
        let (both, write) = (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let receives = Slots::new(&*device, MESSAGE_BYTES, receive_count as usize, both).map_err(failed)?;
        let sends = Slots::new(&*device, MESSAGE_BYTES, options.sends.max(2).into(), both).map_err(failed)?;
        let staging = Slots::new(&*device, FAST_BYTES, options.fast_buffers.into(), write).map_err(failed)?;
        let queue = device.completion_queue(receive_count + send_depth).map_err(failed)?;
        let endpoint_options = EndpointOptions {
            send_depth,
            pieces: limits.send_pieces_max as u32,
            inline_bytes: 0,
            reads_out: LENT_READS.min(limits.reads_out_max),
            reads_in: limits.reads_in_max,
        };
        endpoint
            .create_queue_pair(&endpoint_options, &queue, Receives::Own(receive_count))
            .map_err(failed)?;
        let posts: Vec<_> = (0..receives.count())
            .map(|slot| (RECEIVE | slot as u64, receives.piece(slot, MESSAGE_BYTES)))
            .collect();
        // SAFETY: the slots are registered, and the link's until it is dropped, after its endpoint.
        unsafe { endpoint.post_receive(&posts) }.map_err(failed)?;
        let accepting = ask(&mut endpoint, address, receive_count as u16, options, timeout)?;
        let requester = Requester::new(endpoint, queue, send_depth, adapter.windows)
            .map_err(|source| LinkError::Local { what: "make an epoll set", source })?;
        let (sends_free, staging_free) =
            ((0..sends.count()).collect(), (0..options.fast_buffers.into()).collect());
        let inner = Inner {
            requester,
            pending: Vec::new(),
            windows_free: Vec::new(),
            ending: VecDeque::new(),
            lent: VecDeque::new(),
            budget: Budget::default(),
            lends: accepting.lent_max > 0,
            receives,
            sends,
            staging,
            adapter,
            watched: 0,
            address,
            peer: format!("server {address}"),
            options: options.clone(),
            fast: accepting.fast,
            fast_free: (0..accepting.fast.count).collect(),
            staging_free,
            sends_free,
            credits: Credits::new(accepting.receives, receive_count),
            assembler: Assembler::default(),
            outgoing: VecDeque::new(),
            ready: Vec::new(),
            request_credits: 1,
            request_credits_max: 1,
            segments: KnownSegments::default(),
            failed: false,
        };
        Ok(VerbsLink { inner: ManuallyDrop::new(Box::new(inner)), process: std::process::id() })
    }

    /// Where it leads.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The number of its queue pair, by which the adapter's tools name it.
    pub fn queue_pair(&self) -> u32 {
        self.inner.requester.queue_pair()
    }

    fn see(
        &mut self,
        done: &mut Vec<Completion>,
        look: impl FnOnce(&mut Inner<F>) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        self.inner.check_open()?;
        let result = look(&mut self.inner);
        self.inner.failed |= result.is_err();
        done.append(&mut self.inner.ready);
        result
    }
}

/// Asks for the connection, and makes sure that who accepts it knows the key.
fn ask<E: Endpoint>(
    endpoint: &mut E,
    address: SocketAddr,
    receives: u16,
    options: &VerbsOptions,
    timeout: Duration,
) -> Result<Accepting, LinkError> {
    let mut nonce = [0; 16];
    weft_host::fill_random(&mut nonce)
        .map_err(|source| LinkError::Local { what: "get random bytes", source })?;
    let key = options.key.clone().unwrap_or(Key([0; 32]));
    let message_bytes = MESSAGE_BYTES as u32;
    let asking = Asking { versions: VERSIONS, role: options.role, message_bytes, receives, nonce };
    endpoint.connect(&asking.encode(&key), timeout).map_err(|error| connect_error(address, error))?;
    let refuse = |text: &str| {
        let peer = format!("server {address} over RDMA");
        Err(LinkError::Connect { peer, source: io::Error::other(text.to_string()) })
    };
    let Some(accepting) = Accepting::decode(endpoint.private_data(), &key, &nonce) else {
        return refuse("it did not show that it knows the cluster's key");
    };
    let fast_fits = accepting.fast.count == 0 || accepting.fast.bytes as usize >= FAST_BYTES;
    if accepting.message_bytes != message_bytes || !fast_fits || u32::from(accepting.receives) < WINDOW_MIN {
        return refuse("its buffers are of other sizes than this release's");
    }
    Ok(accepting)
}

impl<F: Fabric> Inner<F> {
    fn stream_error(&self, text: String) -> LinkError {
        LinkError::Stream { peer: self.peer.clone(), source: FrameError::Io(io::Error::other(text)) }
    }

    fn protocol(&self, what: &'static str) -> LinkError {
        LinkError::Protocol { peer: self.peer.clone(), what }
    }

    fn check_open(&self) -> Result<(), LinkError> {
        if self.failed { Err(LinkError::Closed { peer: self.peer.clone() }) } else { Ok(()) }
    }

    fn posted_error(&self, error: VerbsError) -> LinkError {
        self.stream_error(error.to_string())
    }

    fn progress(&mut self) -> Result<(), LinkError> {
        self.requester.look().map_err(|error| self.posted_error(error))?;
        self.poll()?;
        self.flush()?;
        let waits = !self.pending.is_empty() || !self.outgoing.is_empty();
        let is_new = waits && self.requester.ended().is_none() && {
            let armed = self.requester.arm();
            armed.map_err(|error| self.posted_error(error))?
        };
        // What ended before the queue was armed is not told by the descriptor.
        if is_new && self.poll()? {
            self.flush()?;
        }
        self.check_broken()
    }

    /// As [`Inner::progress`] without the descriptors, but now and then: an end of the connection with
    /// nothing under way is told only there.
    fn watch(&mut self) -> Result<(), LinkError> {
        self.watched = (self.watched + 1) % WATCHED_MAX;
        if self.watched == 0 {
            return self.progress();
        }
        self.poll()?;
        self.flush()?;
        self.check_broken()
    }

    fn check_broken(&self) -> Result<(), LinkError> {
        match self.requester.ended() {
            Some(cause) => Err(self.stream_error(cause.to_string())),
            None => Ok(()),
        }
    }
}

impl<F: Fabric> Link for VerbsLink<F> {
    fn kind(&self) -> LinkKind {
        let device = &self.inner.adapter.device;
        LinkKind::Verbs {
            device: device.name().into(),
            link_layer: device.limits().link_layer.to_string(),
            registration: self.inner.adapter.cache.stats().foreign,
        }
    }

    fn traits(&self) -> LinkTraits {
        self.inner.options.traits()
    }

    fn peer(&self) -> &str {
        &self.inner.peer
    }

    fn fd(&self) -> RawFd {
        self.inner.requester.fd()
    }

    fn wants_write(&self) -> bool {
        false
    }

    fn bulk_bytes_max(&self) -> u64 {
        locked::share_bytes_max()
    }

    fn credits(&self) -> u16 {
        self.inner.request_credits
    }

    fn set_credits(&mut self, credits: u16) {
        // Each request under way has a receive for its reply, so that a server never waits for a client that
        // computes.
        let receives = self.inner.options.receives.max(WINDOW_MIN as u16);
        self.inner.request_credits_max = credits.min(CREDITS_PER_CONNECTION).min(receives - 2);
        self.inner.request_credits = self.inner.request_credits_max;
    }

    unsafe fn submit(&mut self, header: Header, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
        // SAFETY: as the caller promises.
        let result = unsafe { self.inner.submit(header, body, bulk) };
        self.inner.failed |= result.as_ref().is_err_and(LinkError::is_fatal);
        result
    }

    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.see(done, Inner::progress)
    }

    fn watch(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        self.see(done, Inner::watch)
    }

    fn must_arm(&self) -> bool {
        true
    }

    fn add_segment(&mut self, segment: &Segment) -> Result<(), LinkError> {
        self.inner.segments.add(segment, false);
        Ok(())
    }

    fn drop_segment(&mut self, id: u16) -> Result<(), LinkError> {
        self.inner.segments.remove(id);
        Ok(())
    }
}
