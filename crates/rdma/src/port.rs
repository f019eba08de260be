//! An adapter of a thread: a completion queue, shared receives, send slots, and the zones registered with it.
//!
//! ```text
//!   one task per adapter:   poll ─► by queue pair ─► connection: a message, or the end of work
//!        busy: again at once                              │ receives posted again, then credits granted
//!        idle for spin_us: armed, asleep on the fd    ◄───┘
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_reactor::yield_now;
use weft_verbs::{
    Access, CompletionQueue, Counts, Device, DeviceEvent, DeviceLimits, Fabric, MemoryPiece, SharedReceives,
    VerbsError, WorkDone, WorkStatus,
};

use crate::channel::Ended;
use crate::options::PortOptions;
use crate::pool::{Slot, SlotPool};
use crate::protocol::Connection;
use crate::schedule::{Limits, Schedule};
use crate::shares::Shares;
use crate::slots::Slots;
use crate::watched::Watched;
use crate::zones::{Known, ZoneOptions, Zones};

/// Marks the number of a receive among those of sent work.
pub const RECEIVE: u64 = 1 << 63;
/// Size of a buffer for data that does not lie in a zone.
pub const BOUNCE_BYTES: usize = 256 << 10;
/// Completions taken at once.
const POLLED: usize = 64;

/// An adapter of a thread.
pub struct Port<F: Fabric> {
    pub(crate) device: Arc<F::Device>,
    pub(crate) queue: RefCell<F::Queue>,
    pub(crate) shared: F::Shared,
    receives: Slots<F::Device>,
    message_bytes: usize,
    sends: Rc<SlotPool<F::Device>>,
    bounces: Rc<SlotPool<F::Device>>,
    pub(crate) zones: Zones<F::Device>,
    pub(crate) shares: RefCell<Shares>,
    pub(crate) schedule: Schedule,
    /// What the protocols keep here, one of each type.
    states: RefCell<Vec<Rc<dyn Any>>>,
    connections_max: u32,
    pub(crate) send_depth: u32,
    stall: Duration,
    connections: RefCell<HashMap<u32, Weak<dyn Connection<F>>>>,
    /// Connections that had something to send and found no room, by queue pair.
    later: RefCell<Vec<u32>>,
    sleeps: Cell<u64>,
    dead: Cell<bool>,
    next_number: Cell<u64>,
}

/// An adapter of a thread, for people.
#[derive(Debug, Clone)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// What it can do; its network is among it.
    pub limits: DeviceLimits,
    /// What was asked of it by this process.
    pub counts: Counts,
    /// Connections of this thread over it.
    pub connections: usize,
    /// Bytes of zones registered with it by this thread.
    pub zone_bytes: u64,
    /// Bytes under way.
    pub under_way_bytes: u64,
    /// Transfers that wait for their turn.
    pub waiting: usize,
    /// Times that the thread went to sleep.
    pub sleeps: u64,
    /// Receives that are posted for the connections, …
    pub receives: u32,
    /// … and how many of them are promised to peers.
    pub promised_receives: u32,
}

impl<F: Fabric> Port<F> {
    pub(crate) fn new(device: Arc<F::Device>, options: &PortOptions) -> Result<Port<F>, VerbsError> {
        let limits = device.limits();
        let receive_count = options.receives.min(limits.shared_receives_max);
        let send_depth = options.send_depth.min(limits.send_depth_max);
        let wanted = receive_count.saturating_add(options.connections_max.saturating_mul(send_depth));
        let completions = wanted.min(limits.completions_max);
        let connections_max = (completions - receive_count.min(completions)) / send_depth.max(1);
        let shared = device.shared_receives(receive_count)?;
        let message_bytes = options.message_bytes;
        let receives = Slots::new(&*device, message_bytes, receive_count as usize, Access::LOCAL_WRITE)?;
        let windows = options.windows && limits.windows;
        let data_access =
            if windows { Access::LOCAL_WRITE | Access::WINDOW_BIND } else { Access::LOCAL_WRITE };
        let posts: Vec<_> = (0..receives.count())
            .map(|slot| (RECEIVE | slot as u64, receives.piece(slot, message_bytes)))
            .collect();
        // SAFETY: the slots are registered, and this port's until it is dropped, after its queue.
        unsafe { shared.post(&posts) }?;
        let limits =
            Limits { destination_bytes: options.destination_bytes_max, total_bytes: options.total_bytes_max };
        Ok(Port {
            queue: RefCell::new(device.completion_queue(completions)?),
            shared,
            receives,
            message_bytes,
            sends: SlotPool::new(&*device, message_bytes, options.sends, Access::LOCAL_WRITE)?,
            bounces: SlotPool::new(&*device, BOUNCE_BYTES, options.bounces, data_access)?,
            zones: Zones::new(ZoneOptions {
                registration: options.zone_registration,
                windows,
                remote_read: options.remote_read,
            }),
            shares: RefCell::new(Shares::new(receive_count)),
            schedule: Schedule::new(limits),
            states: RefCell::default(),
            connections_max,
            send_depth,
            stall: Duration::from_millis(options.stall_ms),
            connections: RefCell::default(),
            later: RefCell::default(),
            sleeps: Cell::new(0),
            dead: Cell::new(false),
            next_number: Cell::new(0),
            device,
        })
    }

    /// What it is and does.
    pub fn status(&self) -> PortStatus {
        let (under_way_bytes, waiting) = self.schedule.load();
        PortStatus {
            name: self.device.name().into(),
            limits: self.limits().clone(),
            counts: self.device.counters().counts(),
            connections: self.connections.borrow().len(),
            zone_bytes: self.zones.bytes(),
            under_way_bytes,
            waiting,
            sleeps: self.sleeps.get(),
            receives: self.receives.count() as u32,
            promised_receives: self.shares.borrow().given(),
        }
    }

    /// Its adapter.
    pub fn device(&self) -> &F::Device {
        &self.device
    }

    /// What the adapter can do.
    pub fn limits(&self) -> &DeviceLimits {
        self.device.limits()
    }

    /// What a protocol keeps for this port, made when it first asks.
    pub fn state<T: Default + 'static>(&self) -> Rc<T> {
        let known = self.states.borrow().iter().find_map(|state| state.clone().downcast().ok());
        known.unwrap_or_else(|| {
            let state: Rc<T> = Rc::default();
            self.states.borrow_mut().push(state.clone());
            state
        })
    }

    /// Registered memory as pieces for work requests, if all of it lies in zones.
    pub fn zone_pieces(&self, parts: impl Iterator<Item = (*const u8, usize)>) -> Option<Vec<MemoryPiece>> {
        self.zones.pieces(parts)
    }

    /// Memory for work requests, registered as [`PortOptions::zone_registration`] has it; `None` if it cannot be.
    ///
    /// # Safety
    /// It stays mapped as long as the result lives, and nobody but its users minds that an adapter writes to it.
    pub unsafe fn known(&self, memory: &[u8]) -> Option<Known<F::Device>> {
        // SAFETY: as the caller promises.
        unsafe { self.zones.known(&self.device, memory.as_ptr() as u64, memory.len() as u64) }
    }

    /// The same for memory that is registered by itself, whatever zone it is in.
    ///
    /// # Safety
    /// As for [`Port::known`].
    pub unsafe fn known_alone(&self, memory: &[u8]) -> Option<Known<F::Device>> {
        // SAFETY: as the caller promises.
        unsafe { self.zones.alone(&self.device, memory.as_ptr() as u64, memory.len() as u64) }
    }

    /// How long a peer may take to make progress.
    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// Waits for a slot for a message.
    pub async fn message_slot(&self) -> Slot<F::Device> {
        self.sends.take().await
    }

    /// A slot for a message if one is free.
    pub fn try_message_slot(&self) -> Option<Slot<F::Device>> {
        self.sends.try_take()
    }

    /// Waits for a slot of [`BOUNCE_BYTES`].
    pub async fn bounce_slot(&self) -> Slot<F::Device> {
        self.bounces.take().await
    }

    /// Has [`Connection::try_again`] called for this queue pair after work has ended: it found no slot or no
    /// room.
    pub fn try_later(&self, queue_pair: u32) {
        self.later.borrow_mut().push(queue_pair);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.set(self.next_number.get() + 1);
        self.next_number.get()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.connections.borrow().len() >= self.connections_max as usize
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    pub(crate) fn add(&self, connection: &Rc<dyn Connection<F>>) {
        let queue_pair = connection.channel().queue_pair();
        self.connections.borrow_mut().insert(queue_pair, Rc::downgrade(connection));
    }

    pub(crate) fn remove(&self, queue_pair: u32) {
        self.connections.borrow_mut().remove(&queue_pair);
    }

    pub(crate) fn connection(&self, queue_pair: u32) -> Option<Rc<dyn Connection<F>>> {
        self.connections.borrow().get(&queue_pair).and_then(Weak::upgrade)
    }

    /// Takes what has ended, at most so much as is taken at once. Says how much it was.
    pub(crate) fn poll(&self) -> Result<usize, VerbsError> {
        let mut done = Vec::with_capacity(POLLED);
        self.queue.borrow_mut().poll(&mut done, POLLED)?;
        let mut posts = Vec::new();
        let mut touched: Vec<(u32, Rc<dyn Connection<F>>)> = Vec::new();
        for one in &done {
            let connection = self.connection(one.queue_pair);
            if one.id & RECEIVE != 0 {
                self.take_receive(one, connection, &mut posts, &mut touched);
            } else if let Some(connection) = connection {
                connection.channel().take_ended(one);
            }
        }
        if !posts.is_empty() {
            // SAFETY: what was in these slots has been taken out; they are the adapter's again.
            unsafe { self.shared.post(&posts) }?;
        }
        // Credits are granted only now that the receives are posted.
        for (_, connection) in touched {
            connection.receives_posted();
        }
        for queue_pair in self.later.take() {
            self.connection(queue_pair).into_iter().for_each(|connection| connection.try_again());
        }
        Ok(done.len())
    }

    fn take_receive(
        &self,
        done: &WorkDone,
        connection: Option<Rc<dyn Connection<F>>>,
        posts: &mut Vec<(u64, MemoryPiece)>,
        touched: &mut Vec<(u32, Rc<dyn Connection<F>>)>,
    ) {
        let slot = (done.id & !RECEIVE) as usize;
        if let Some(connection) = connection {
            if done.status != WorkStatus::Ok {
                connection.channel().fail(Ended::Closed);
            } else if !connection.channel().is_over() {
                connection.channel().stands.set();
                // SAFETY: the receive has ended, and the slot is posted again only after this.
                connection.received(done.kind, unsafe { self.receives.read(slot, done.bytes as usize) });
            }
            if !touched.iter().any(|(queue_pair, _)| *queue_pair == done.queue_pair) {
                touched.push((done.queue_pair, connection));
            }
        }
        posts.push((done.id, self.receives.piece(slot, self.message_bytes)));
    }

    fn arm(&self) -> Result<(), VerbsError> {
        let mut queue = self.queue.borrow_mut();
        queue.take_wakeups()?;
        queue.arm()
    }

    /// Ends all connections.
    pub(crate) fn fail_all(&self, cause: &str) {
        let connections: Vec<_> = self.connections.borrow().values().filter_map(Weak::upgrade).collect();
        for connection in connections {
            connection.channel().fail(Ended::Broken(cause.into()));
        }
    }

    /// The adapter is of no more use.
    fn die(&self, cause: &str) {
        self.dead.set(true);
        self.fail_all(cause);
    }
}

/// Polls while there is work, sleeps while there is none.
pub(crate) async fn poll<F: Fabric>(port: Rc<Port<F>>, watched: Watched, spin: Duration) {
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
        // The descriptor does not report what ended before the queue was armed.
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

/// Waits for the end of an adapter.
pub(crate) async fn watch<F: Fabric>(port: Rc<Port<F>>, watched: Watched) {
    loop {
        for event in port.device.events() {
            if let DeviceEvent::Fatal(cause) = event {
                return port.die(&cause);
            }
        }
        watched.readable().await;
    }
}
