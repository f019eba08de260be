//! Memory of replies that a client reads: from its key to the end of that.
//!
//! ```text
//!   room ─► key: of its zone, its registration, a window ─► [Bind ▸] Send with read chunks ─► exposed
//!     ▲                                                                                     │ RDMA_DONE
//!     └──── the buffer is free ◄──── [the window's key has ended ◄─ Invalidate ◄──]──────────┘
//!                        ▲ the queue pair goes
//!                        └─────────────────── a client that never says so, or is gone
//! ```
//!
//! A buffer that a key leads to is nobody else's until that key has ended, or RDMA_DONE has come for it. With the pool
//! and the cache it is the client's word alone that it reads no more: keys of registrations stay.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use weft_log::once_a_minute;
use weft_onc_rpc::rdma::Segment;
use weft_rdma::{Batch, Channel, Ended, FreeWindows, Known};
use weft_reactor::{Event, Notify, Permit, Semaphore};
use weft_verbs::{Access, Device, Fabric, Work};

use super::exposures::{Exposures, InUse};
use super::options::RdmaMemory;
use crate::buffers::Buffer;
use crate::counts::{CountedExposure, ExposedCounters};
use crate::server::first_of;

/// Windows that are ended with one ring of the doorbell.
const ENDED_AT_ONCE: usize = 32;

/// A reply in memory, with its keys.
struct Memory<D: Device> {
    // The order of dropping: keys before what they lead to.
    window: Option<(u32, D::Window)>,
    _known: Known<D>,
    _data: Buffer,
    _room: Room,
    _counted: CountedExposure,
}

/// What a reply that is exposed counts against, until its end.
pub(super) struct Room {
    _turn: Permit,
    _bytes: Permit,
    /// The memory that its call was granted.
    _memory: Rc<Permit>,
}

/// A reply that is about to be exposed.
pub(super) struct Exposing<D: Device> {
    /// Where the client finds it.
    pub(super) segment: Segment,
    /// To be posted before the client is told.
    pub(super) bind: Option<Work>,
    memory: Memory<D>,
}

/// The replies of a connection that its client reads.
pub(super) struct Exposer<F: Fabric> {
    memory: RdmaMemory,
    replies: RefCell<Exposures<Memory<F::Device>>>,
    /// Those that were read, and whose windows are to be ended.
    read: RefCell<Vec<Memory<F::Device>>>,
    news: Notify,
    windows: RefCell<FreeWindows<F::Device>>,
    /// As many as there are receives for RDMA_DONE.
    pub(super) turns: Semaphore,
    bytes: Semaphore,
    bytes_max: usize,
    counters: Rc<ExposedCounters>,
    /// Nothing is exposed any more, nor will be.
    pub(super) ended: Event,
}

impl<F: Fabric> Exposer<F> {
    /// At most so many bytes, and at first so many replies, are exposed at a time.
    pub(super) fn new(
        memory: RdmaMemory,
        bytes_max: usize,
        turns: u32,
        counters: Rc<ExposedCounters>,
    ) -> Exposer<F> {
        Exposer {
            memory,
            replies: RefCell::default(),
            read: RefCell::default(),
            news: Notify::new(),
            windows: RefCell::default(),
            turns: Semaphore::new(turns as usize),
            bytes: Semaphore::new(bytes_max),
            bytes_max,
            counters,
            ended: Event::new(),
        }
    }

    /// How many are exposed, for each of which an RDMA_DONE may come.
    pub(super) fn count(&self) -> u32 {
        self.replies.borrow().count() as u32
    }

    /// Since when the oldest is exposed.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.replies.borrow().oldest()
    }

    /// Waits until a reply of so many bytes may be exposed.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn room(
        &self,
        channel: &Channel<F>,
        bytes: usize,
        memory: Rc<Permit>,
    ) -> Result<Room, Ended> {
        let room = async {
            let turn = self.turns.acquire(1).await;
            Room { _turn: turn, _bytes: self.bytes.acquire(bytes.min(self.bytes_max)).await, _memory: memory }
        };
        first_of(room, channel.over()).await.ok_or_else(|| channel.ended())
    }

    /// Gives a reply its keys; `None` if it cannot have any.
    pub(super) fn expose(
        &self,
        channel: &Channel<F>,
        data: Buffer,
        room: Room,
    ) -> Option<Exposing<F::Device>> {
        let port = channel.port();
        // SAFETY: the buffer stays where it is, and goes after what is known of it.
        let known = unsafe { port.known(&data) }.or_else(|| unsafe { port.known_alone(&data) });
        let known = known.or_else(|| {
            self.lacks("it cannot be registered; raise the limit of locked memory (ulimit -l)");
            None
        })?;
        let piece = known.piece;
        let (mut handle, mut bind, mut window) = (known.remote_key, None, None);
        if self.memory == RdmaMemory::Windows {
            let taken = self.windows.borrow_mut().take(port.device());
            let (key, taken) = taken.map_err(|error| self.lacks(&error.to_string())).ok()?;
            bind = Some(Work::Bind {
                window_key: key,
                local_key: piece.local_key,
                address: piece.address,
                bytes: piece.bytes.into(),
                access: Access::REMOTE_READ,
            });
            (handle, window) = (key, Some((key, taken)));
        }
        let segment = Segment { handle, bytes: piece.bytes, offset: piece.address };
        let counted = CountedExposure::new(&self.counters, data.len());
        let memory = Memory { window, _known: known, _data: data, _room: room, _counted: counted };
        Some(Exposing { segment, bind, memory })
    }

    fn lacks(&self, why: &str) {
        if once_a_minute("expose replies over RDMA") {
            tracing::warn!("a client gets an error (ERR_CHUNK) instead of a reply that it could read: {why}");
        }
    }

    /// From now on the client may read the reply to this call: it is told with the next post.
    pub(super) fn begin(&self, xid: u32, exposing: Exposing<F::Device>) -> Result<(), InUse> {
        self.replies.borrow_mut().begin(xid, Instant::now(), exposing.memory)
    }

    /// The client says that it has read the reply to this call. Whether it was exposed.
    pub(super) fn done(&self, xid: u32) -> bool {
        let Some(memory) = self.replies.borrow_mut().done(xid) else { return false };
        if memory.window.is_some() {
            self.read.borrow_mut().push(memory);
            self.news.notify();
        }
        true
    }

    /// Ends the windows of replies that were read, until the connection has ended.
    pub(super) async fn end_windows(&self, channel: &Channel<F>) -> Result<(), Ended> {
        loop {
            self.news.notified().await;
            loop {
                let keys: Vec<u32> = self
                    .read
                    .borrow()
                    .iter()
                    .flat_map(|memory| &memory.window)
                    .map(|(key, _)| *key)
                    .take(ENDED_AT_ONCE)
                    .collect();
                if keys.is_empty() {
                    break;
                }
                let room = channel.room(keys.len()).await;
                channel.ready_to_bind().await?;
                let mut batch = Batch::default();
                for (at, key) in keys.iter().enumerate() {
                    channel.add(&mut batch, Work::Invalidate { key: *key }, [], at + 1 == keys.len());
                }
                // SAFETY: there is no memory; the windows are kept until their keys have ended.
                unsafe { channel.post(room, &batch, Vec::new()) }?;
                channel.work_ended(channel.posted()).await;
                channel.check_open()?;
                let ended: Vec<_> = self.read.borrow_mut().drain(..keys.len()).collect();
                for mut memory in ended {
                    let window = memory.window.take();
                    window.into_iter().for_each(|(_, window)| self.windows.borrow_mut().give_back(window));
                }
            }
        }
    }

    /// The queue pair is about to go, and no client reads anything: all is given back.
    pub(super) fn end(&self) {
        let replies = self.replies.borrow_mut().take_all();
        let read = self.read.take();
        drop((replies, read));
        self.windows.borrow_mut().clear();
        self.ended.set();
    }
}
