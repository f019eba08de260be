//! A server thread's adapters: for each a completion queue, shared receives, send slots, and the zones registered with it.
//!
//! ```text
//!   one task per adapter:   poll ─► by queue pair ─► connection: part of a message, or the end of work
//!        busy: again at once                                      │ receives posted again, then credits told
//!        idle for spin_us: armed, asleep on the descriptor  ◄─────┘
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_reactor::{JoinHandle, Semaphore, spawn, yield_now};
use weft_verbs::{
    Access, CompletionQueue, Counts, Device, DeviceEvent, DeviceLimits, Fabric, MemoryPiece, Registration,
    SharedReceives, VerbsError, WorkDone,
};
use weft_wire::limits::STALL_TIMEOUT_MS;

use super::conn::{Cause, ConnInner};
use super::counts::{Transfers, VerbsTransfers};
use super::credits::Shares;
use super::envelope::MESSAGE_BYTES;
use super::listen::Watched;
use super::memory::Slots;
use super::schedule::{Limits, Schedule};
use super::{FAST_BYTES, RECEIVE};

/// Completions taken at once.
const POLLED: usize = 64;
/// The longest time that a thread without work looks for some.
const SPIN_US_MAX: u32 = 1000;
/// Size of a buffer for data that does not lie in a zone.
pub(super) const BOUNCE_BYTES: usize = 256 << 10;

/// Sizes of a server thread's RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbsServerOptions {
    /// Receives per adapter, 8 KiB each, shared by all connections.
    pub receives: u32,
    /// Messages on their way per adapter, 8 KiB each.
    pub sends: u32,
    /// Buffers per adapter for data that lies in no zone, 256 KiB each.
    pub bounces: u32,
    /// Connections per adapter.
    pub connections_max: u32,
    /// Work that may wait per connection.
    pub send_depth: u32,
    /// Fast RDMA buffers of a connection, 72 KiB each.
    pub fast_buffers: u16,
    /// Bytes of these in all connections; with none left, connections get none.
    pub fast_bytes_max: u64,
    /// Bytes under way to one client.
    pub destination_bytes_max: u64,
    /// Bytes under way to all clients.
    pub total_bytes_max: u64,
    /// Clients may move data themselves, into and out of units that are lent to them, where the adapter has memory windows.
    pub lends: bool,
    /// Milliseconds that a client may keep what is lent to it.
    pub stall_ms: u64,
    /// Milliseconds of silence after which a client is asked whether it lives, without its knowing.
    pub keep_alive_ms: u32,
    /// Microseconds to keep looking for work before going to sleep, at most 1000.
    pub spin_us: u32,
}

impl Default for VerbsServerOptions {
    fn default() -> Self {
        VerbsServerOptions {
            receives: 1024,
            sends: 256,
            bounces: 8,
            connections_max: 256,
            send_depth: 128,
            fast_buffers: 4,
            fast_bytes_max: 32 << 20,
            destination_bytes_max: 4 << 20,
            total_bytes_max: 32 << 20,
            lends: true,
            stall_ms: STALL_TIMEOUT_MS,
            keep_alive_ms: 30_000,
            spin_us: 50,
        }
    }
}

/// RDMA of one server thread. Clones are the same; when the last is dropped, its connections end.
pub struct VerbsThread<F: Fabric> {
    pub(super) inner: Rc<ThreadInner<F>>,
}

impl<F: Fabric> Clone for VerbsThread<F> {
    fn clone(&self) -> Self {
        VerbsThread { inner: self.inner.clone() }
    }
}

pub(super) struct ThreadInner<F: Fabric> {
    pub options: VerbsServerOptions,
    ports: RefCell<Vec<PortEntry<F>>>,
    /// Registered memory that units are in: address and bytes.
    zones: RefCell<BTreeMap<u64, u64>>,
}

struct PortEntry<F: Fabric> {
    port: Rc<Port<F>>,
    tasks: Vec<JoinHandle<()>>,
}

impl<F: Fabric> Drop for ThreadInner<F> {
    fn drop(&mut self) {
        for entry in self.ports.take() {
            entry.port.fail_all("the server stops");
            entry.tasks.into_iter().for_each(JoinHandle::cancel);
        }
    }
}

/// An adapter of a server thread, for people.
#[derive(Debug, Clone)]
pub struct VerbsPortStatus {
    /// Its name.
    pub name: String,
    /// What it can do; its network is among it.
    pub limits: DeviceLimits,
    /// What was asked of it by this process.
    pub counts: Counts,
    /// How data moved over this thread's connections.
    pub transfers: VerbsTransfers,
    /// Connections of this thread over it.
    pub connections: usize,
    /// Bytes of zones registered with it by this thread.
    pub zone_bytes: u64,
    /// Bytes of Fast RDMA buffers that its connections have.
    pub fast_bytes: u64,
    /// Bytes under way.
    pub under_way_bytes: u64,
    /// Transfers that wait for their turn.
    pub waiting: usize,
    /// Times that the thread went to sleep.
    pub sleeps: u64,
    /// Receives that are posted for the connections, …
    pub receives: u32,
    /// … and how many of them are promised to clients.
    pub promised_receives: u32,
}

impl<F: Fabric> VerbsThread<F> {
    /// Adapters are opened when the first connection over them comes.
    pub fn new(options: VerbsServerOptions) -> VerbsThread<F> {
        let (ports, zones) = (RefCell::new(Vec::new()), RefCell::new(BTreeMap::new()));
        VerbsThread { inner: Rc::new(ThreadInner { options, ports, zones }) }
    }

    /// Registers memory, with every adapter that connections come over: what lies in it moves without a copy.
    ///
    /// # Errors
    /// An adapter refused. With the others it is registered; data in it is copied over that one.
    ///
    /// # Safety
    /// It stays mapped until [`VerbsThread::remove_zone`], and nobody but its users minds that clients' data appears in it.
    pub unsafe fn add_zone(&self, address: *mut u8, bytes: usize) -> Result<(), VerbsError> {
        let (address, bytes) = (address as u64, bytes as u64);
        self.inner.zones.borrow_mut().insert(address, bytes);
        let ports: Vec<_> = self.inner.ports.borrow().iter().map(|entry| entry.port.clone()).collect();
        ports.iter().map(|port| port.add_zone(address, bytes)).fold(Ok(()), Result::and)
    }

    /// Ends that. Nothing may be under way in it.
    pub fn remove_zone(&self, address: *mut u8) {
        let address = address as u64;
        self.inner.zones.borrow_mut().remove(&address);
        for entry in self.inner.ports.borrow().iter() {
            entry.port.zones.borrow_mut().remove(&address);
        }
    }

    /// The adapters that connections came over.
    pub fn status(&self) -> Vec<VerbsPortStatus> {
        self.let_go();
        self.inner.ports.borrow().iter().map(|entry| entry.port.status()).collect()
    }

    /// Lets go of adapters that are of no more use: some systems do not take one away before.
    fn let_go(&self) {
        let dead: Vec<_> =
            self.inner.ports.borrow_mut().extract_if(.., |entry| entry.port.dead.get()).collect();
        dead.into_iter().flat_map(|entry| entry.tasks).for_each(JoinHandle::cancel);
    }

    /// The port of an adapter, made when its first connection comes.
    pub(super) fn port(&self, device: Arc<F::Device>) -> Result<Rc<Port<F>>, VerbsError> {
        self.let_go();
        let mut ports = self.inner.ports.borrow_mut();
        if let Some(entry) = ports.iter().find(|entry| Arc::ptr_eq(&entry.port.device, &device)) {
            return Ok(entry.port.clone());
        }
        let failed = |what: &'static str| {
            let name = device.name().to_string();
            move |source: io::Error| VerbsError::Device { device: name, what, source }
        };
        let port: Rc<Port<F>> = Rc::new(Port::new(device.clone(), &self.inner.options)?);
        for (address, bytes) in self.inner.zones.borrow().iter() {
            port.add_zone(*address, *bytes)?;
        }
        let queue = Watched::new(port.queue.borrow().fd()).map_err(failed("watch its completion queue"))?;
        let events = Watched::new(device.event_fd()).map_err(failed("watch its events"))?;
        let spin = Duration::from_micros(self.inner.options.spin_us.min(SPIN_US_MAX).into());
        let tasks = vec![spawn(poll(port.clone(), queue, spin)), spawn(watch(port.clone(), events))];
        ports.push(PortEntry { port: port.clone(), tasks });
        Ok(port)
    }
}

/// Slots of which some are free, and tasks that wait for one.
struct Free {
    free: RefCell<Vec<usize>>,
    turns: Semaphore,
}

impl Free {
    fn new(count: usize) -> Free {
        Free { free: RefCell::new((0..count).collect()), turns: Semaphore::new(count) }
    }

    async fn take(&self) -> usize {
        self.turns.acquire(1).await.forget();
        self.free.borrow_mut().pop().expect("as many turns as slots")
    }

    fn try_take(&self) -> Option<usize> {
        self.turns.try_acquire(1)?.forget();
        self.free.borrow_mut().pop()
    }

    fn give(&self, slot: usize) {
        self.free.borrow_mut().push(slot);
        self.turns.add(1);
    }
}

/// A slot for a message or a part of a transfer. To be dropped when no work uses it.
pub(super) struct Slot<F: Fabric> {
    port: Rc<Port<F>>,
    bounces: bool,
    number: usize,
}

impl<F: Fabric> Drop for Slot<F> {
    fn drop(&mut self) {
        if self.bounces { &self.port.bounces_free } else { &self.port.sends_free }.give(self.number);
    }
}

impl<F: Fabric> Slot<F> {
    fn slots(&self) -> &Slots<F::Device> {
        if self.bounces { &self.port.bounces } else { &self.port.sends }
    }

    /// The first `bytes` of it, for work requests.
    pub(super) fn piece(&self, bytes: usize) -> MemoryPiece {
        self.slots().piece(self.number, bytes)
    }

    /// To be filled.
    ///
    /// # Safety
    /// No work uses it as long as the slice is used.
    pub(super) unsafe fn fill(&mut self) -> &mut [u8] {
        // SAFETY: the slot is this value's, which is borrowed; of work the caller promises it.
        unsafe { self.slots().fill(self.number) }
    }
}

/// An adapter of a server thread.
pub(super) struct Port<F: Fabric> {
    pub device: Arc<F::Device>,
    pub queue: RefCell<F::Queue>,
    pub shared: F::Shared,
    receives: Slots<F::Device>,
    sends: Slots<F::Device>,
    sends_free: Free,
    bounces: Slots<F::Device>,
    bounces_free: Free,
    zones: RefCell<BTreeMap<u64, Zone<F>>>,
    pub shares: RefCell<Shares>,
    pub schedule: Schedule,
    pub transfers: Transfers,
    pub fast_bytes: Cell<u64>,
    pub connections_max: u32,
    pub send_depth: u32,
    pub stall_ms: u64,
    /// What memory that units are in is registered for.
    unit_access: Access,
    connections: RefCell<HashMap<u32, Weak<ConnInner<F>>>>,
    /// Connections that have credits to tell and could not yet.
    telling: RefCell<Vec<Weak<ConnInner<F>>>>,
    sleeps: Cell<u64>,
    dead: Cell<bool>,
    next_number: Cell<u64>,
}

struct Zone<F: Fabric> {
    bytes: u64,
    registration: <F::Device as Device>::Registration,
}

impl<F: Fabric> Port<F> {
    fn new(device: Arc<F::Device>, options: &VerbsServerOptions) -> Result<Port<F>, VerbsError> {
        let limits = device.limits();
        let receive_count = options.receives.min(limits.shared_receives_max);
        let send_depth = options.send_depth.min(limits.send_depth_max);
        let wanted = receive_count.saturating_add(options.connections_max.saturating_mul(send_depth));
        let completions = wanted.min(limits.completions_max);
        let connections_max = (completions - receive_count.min(completions)) / send_depth.max(1);
        let shared = device.shared_receives(receive_count)?;
        let slots = |bytes, count: u32| Slots::new(&*device, bytes, count as usize, Access::LOCAL_WRITE);
        let (receives, sends) = (slots(MESSAGE_BYTES, receive_count)?, slots(MESSAGE_BYTES, options.sends)?);
        let windows = options.lends && limits.windows;
        let unit_access =
            if windows { Access::LOCAL_WRITE | Access::WINDOW_BIND } else { Access::LOCAL_WRITE };
        let bounces = Slots::new(&*device, BOUNCE_BYTES, options.bounces as usize, unit_access)?;
        let posts: Vec<_> = (0..receives.count())
            .map(|slot| (RECEIVE | slot as u64, receives.piece(slot, MESSAGE_BYTES)))
            .collect();
        // SAFETY: the slots are registered, and this port's until it is dropped, after its queue.
        unsafe { shared.post(&posts) }?;
        let limits =
            Limits { destination_bytes: options.destination_bytes_max, total_bytes: options.total_bytes_max };
        Ok(Port {
            queue: RefCell::new(device.completion_queue(completions)?),
            shared,
            sends_free: Free::new(sends.count()),
            bounces_free: Free::new(bounces.count()),
            receives,
            sends,
            bounces,
            zones: RefCell::new(BTreeMap::new()),
            shares: RefCell::new(Shares::new(receive_count)),
            schedule: Schedule::new(limits),
            transfers: Transfers::default(),
            fast_bytes: Cell::new(0),
            connections_max,
            send_depth,
            stall_ms: options.stall_ms,
            unit_access,
            connections: RefCell::new(HashMap::new()),
            telling: RefCell::new(Vec::new()),
            sleeps: Cell::new(0),
            dead: Cell::new(false),
            next_number: Cell::new(0),
            device,
        })
    }

    fn status(&self) -> VerbsPortStatus {
        let (under_way_bytes, waiting) = self.schedule.load();
        VerbsPortStatus {
            name: self.device.name().into(),
            limits: self.device.limits().clone(),
            counts: self.device.counters().counts(),
            transfers: self.transfers.counts(),
            connections: self.connections.borrow().len(),
            zone_bytes: self.zones.borrow().values().map(|zone| zone.bytes).sum(),
            fast_bytes: self.fast_bytes.get(),
            under_way_bytes,
            waiting,
            sleeps: self.sleeps.get(),
            receives: self.receives.count() as u32,
            promised_receives: self.shares.borrow().given(),
        }
    }

    fn add_zone(&self, address: u64, bytes: u64) -> Result<(), VerbsError> {
        // SAFETY: as the caller of `VerbsThread::add_zone` promises.
        let registration =
            unsafe { self.device.register(address as usize, bytes as usize, self.unit_access) }?;
        self.zones.borrow_mut().insert(address, Zone { bytes, registration });
        Ok(())
    }

    /// Registered memory as pieces for work requests, if all of it lies in zones.
    pub(super) fn zone_pieces(
        &self,
        parts: impl Iterator<Item = (*const u8, usize)>,
    ) -> Option<Vec<MemoryPiece>> {
        let zones = self.zones.borrow();
        let piece = |(base, bytes): (*const u8, usize)| {
            let address = base as u64;
            let (start, zone) = zones.range(..=address).next_back()?;
            let inside = address + bytes as u64 <= start + zone.bytes;
            let local_key = zone.registration.local_key();
            inside.then_some(MemoryPiece { address, bytes: u32::try_from(bytes).ok()?, local_key })
        };
        parts.filter(|(_, bytes)| *bytes > 0).map(piece).collect()
    }

    /// Waits for a slot for a message.
    pub(super) async fn message_slot(self: &Rc<Self>) -> Slot<F> {
        let number = self.sends_free.take().await;
        Slot { port: self.clone(), bounces: false, number }
    }

    /// A slot for a message if one is free.
    pub(super) fn try_message_slot(self: &Rc<Self>) -> Option<Slot<F>> {
        let number = self.sends_free.try_take()?;
        Some(Slot { port: self.clone(), bounces: false, number })
    }

    /// Waits for a slot of [`BOUNCE_BYTES`].
    pub(super) async fn bounce_slot(self: &Rc<Self>) -> Slot<F> {
        let number = self.bounces_free.take().await;
        Slot { port: self.clone(), bounces: true, number }
    }

    pub(super) fn next_number(&self) -> u64 {
        self.next_number.set(self.next_number.get() + 1);
        self.next_number.get()
    }

    pub(super) fn is_full(&self) -> bool {
        self.connections.borrow().len() >= self.connections_max as usize
    }

    /// Bytes for a connection's Fast buffers: as many as there are within the budget, down to none.
    pub(super) fn take_fast(&self, options: &VerbsServerOptions) -> u16 {
        let left = options.fast_bytes_max.saturating_sub(self.fast_bytes.get()) / FAST_BYTES as u64;
        let count = u64::from(options.fast_buffers).min(left) as u16;
        self.fast_bytes.set(self.fast_bytes.get() + u64::from(count) * FAST_BYTES as u64);
        count
    }

    pub(super) fn add(&self, queue_pair: u32, connection: &Rc<ConnInner<F>>) {
        self.connections.borrow_mut().insert(queue_pair, Rc::downgrade(connection));
    }

    pub(super) fn remove(&self, queue_pair: u32) {
        self.connections.borrow_mut().remove(&queue_pair);
    }

    pub(super) fn tell_later(&self, connection: &Weak<ConnInner<F>>) {
        self.telling.borrow_mut().push(connection.clone());
    }

    /// Takes what has ended, at most so much as is taken at once. Says how much it was.
    pub(super) fn poll(&self) -> Result<usize, VerbsError> {
        let mut done = Vec::with_capacity(POLLED);
        self.queue.borrow_mut().poll(&mut done, POLLED)?;
        let mut posts = Vec::new();
        let mut touched: Vec<Rc<ConnInner<F>>> = Vec::new();
        for one in &done {
            let connection = self.connections.borrow().get(&one.queue_pair).and_then(Weak::upgrade);
            if one.id & RECEIVE != 0 {
                self.take_receive(one, connection, &mut posts, &mut touched);
            } else if let Some(connection) = connection {
                connection.take_ended(one);
            }
        }
        if !posts.is_empty() {
            // SAFETY: what was in these slots has been taken out; they are the adapter's again.
            unsafe { self.shared.post(&posts) }?;
        }
        // Credits are told only now that the receives are posted.
        for connection in touched {
            connection.received_posted();
        }
        for connection in self.telling.take() {
            connection.upgrade().into_iter().for_each(|connection| connection.tell());
        }
        Ok(done.len())
    }

    fn arm(&self) -> Result<(), VerbsError> {
        let mut queue = self.queue.borrow_mut();
        queue.take_wakeups()?;
        queue.arm()
    }

    fn take_receive(
        &self,
        done: &WorkDone,
        connection: Option<Rc<ConnInner<F>>>,
        posts: &mut Vec<(u64, MemoryPiece)>,
        touched: &mut Vec<Rc<ConnInner<F>>>,
    ) {
        let slot = (done.id & !RECEIVE) as usize;
        if let Some(connection) = connection {
            // SAFETY: the receive has ended, and the slot is posted again only after this.
            let message = unsafe { self.receives.read(slot, done.bytes as usize) };
            connection.take_received(done, message);
            if !touched.iter().any(|other| Rc::ptr_eq(other, &connection)) {
                touched.push(connection);
            }
        }
        posts.push((done.id, self.receives.piece(slot, MESSAGE_BYTES)));
    }

    /// Ends all connections.
    fn fail_all(&self, cause: &str) {
        let connections: Vec<_> = self.connections.borrow().values().filter_map(Weak::upgrade).collect();
        for connection in connections {
            connection.fail(Cause::Broken(cause.into()));
        }
    }

    /// The adapter is of no more use.
    fn die(&self, cause: &str) {
        self.dead.set(true);
        self.fail_all(cause);
    }
}

/// Polls while there is work, sleeps while there is none.
async fn poll<F: Fabric>(port: Rc<Port<F>>, watched: Watched, spin: Duration) {
    let mut last_work = Instant::now();
    loop {
        match port.poll() {
            Ok(0) => {}
            Ok(_) => {
                last_work = Instant::now();
                yield_now().await;
                continue;
            }
            Err(error) => return port.die(&error.to_string()),
        }
        if last_work.elapsed() < spin {
            yield_now().await;
            continue;
        }
        // What ended before the queue was armed is not told by the descriptor.
        match port.arm().and_then(|()| port.poll()) {
            Ok(0) => {
                port.sleeps.set(port.sleeps.get() + 1);
                watched.readable().await;
            }
            Ok(_) => {}
            Err(error) => return port.die(&error.to_string()),
        }
        last_work = Instant::now();
    }
}

/// Hears of the end of an adapter.
async fn watch<F: Fabric>(port: Rc<Port<F>>, watched: Watched) {
    loop {
        for event in port.device.events() {
            if let DeviceEvent::Fatal(cause) = event {
                return port.die(&cause);
            }
        }
        watched.readable().await;
    }
}
