//! The fabric and its adapters, as the seam wants them.

use crate::charges::Charged;
use crate::endpoint::{PretendEndpoint, PretendListener};
use crate::engine::errno;
use crate::memory::{Memory, PAGE_BYTES, pages_of};
use crate::options::{Adapter, Faults, Pinning, PretendOptions};
use crate::pinned::{PinnedPages, SLOT_BYTES_MAX, SLOTS};
use crate::queues::{PretendQueue, PretendShared};
use crate::state::{AdapterState, End, Listening, Network, Queue, Shared, Standing, State};
use crate::wakeup::Wakeup;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;
use weft_test_random::Random;
use weft_verbs::{
    Access, Counters, Counts, Device, DeviceEvent, DeviceLimits, Fabric, LinkLayer, Registration,
    TrafficClass, VerbsError, Window,
};

/// A host on a network that exists in this process only. Clones are the same host; [`Pretend::another_host`] adds one to the
/// network.
#[derive(Clone)]
pub struct Pretend {
    network: Arc<Network>,
    host: u32,
}

impl Pretend {
    /// A network with one host.
    ///
    /// # Panics
    /// The system has no descriptors left or, with [`Pinning::Pinned`], no io_uring.
    pub fn new(options: PretendOptions) -> Pretend {
        let pinned = (options.pinning == Pinning::Pinned)
            .then(|| PinnedPages::new().expect("an io_uring with registered buffers"));
        let state = State {
            costs: options.costs,
            faults: options.faults,
            delivery: options.delivery,
            not_ready: options.not_ready,
            pinned_bytes_max: options.pinned_bytes_max,
            random: Random(options.seed),
            hosts: 0,
            adapters: Vec::new(),
            memory: Memory::new(pinned),
            queues: BTreeMap::new(),
            shared: BTreeMap::new(),
            ends: BTreeMap::new(),
            listening: BTreeMap::new(),
            ready: VecDeque::new(),
            complaints: Vec::new(),
            registrations_asked: 0,
            works_begun: 0,
            next_number: 16,
            next_port: 0,
        };
        Pretend { network: Arc::new(Network::new(state)), host: 0 }.another_host(options.adapters)
    }

    /// Another host on the same network.
    ///
    /// # Panics
    /// An address is taken, or the system has no descriptors left.
    pub fn another_host(&self, adapters: Vec<Adapter>) -> Pretend {
        let mut state = self.network.lock();
        state.hosts += 1;
        let host = state.hosts;
        for adapter in adapters {
            let taken = |address: &IpAddr| {
                state.adapters.iter().find(|other| other.addresses.contains(address)).map(|_| *address)
            };
            assert_eq!(adapter.addresses.iter().find_map(taken), None, "an address of two adapters");
            let mut limits = DeviceLimits { link_layer: LinkLayer::Pretended, ..adapter.limits };
            if state.memory.pins() {
                limits.registrations_max = limits.registrations_max.min(u64::from(SLOTS));
                limits.registration_bytes_max = limits.registration_bytes_max.min(SLOT_BYTES_MAX);
            }
            state.adapters.push(AdapterState {
                host,
                name: adapter.name,
                addresses: adapter.addresses,
                limits,
                inline_bytes_max: adapter.inline_bytes_max,
                counters: Arc::new(Counters::default()),
                charged: Charged::default(),
                events: Vec::new(),
                wakeup: Arc::new(Wakeup::new().expect("a descriptor")),
                opened: Weak::new(),
                registrations: 0,
                registered_bytes: 0,
                removed: false,
                port_down: false,
            });
        }
        drop(state);
        Pretend { network: self.network.clone(), host }
    }

    /// What was asked of all adapters of this host.
    pub fn counts(&self) -> Counts {
        let state = self.network.lock();
        let own = state.adapters.iter().filter(|adapter| adapter.host == self.host);
        own.fold(Counts::default(), |sum, adapter| sum.plus(&adapter.counters.counts()))
    }

    /// What was charged to an adapter of the network; nothing if there is none of that name.
    pub fn charged(&self, adapter: &str) -> Charged {
        let state = self.network.lock();
        state
            .adapters
            .iter()
            .find(|known| known.name == adapter)
            .map_or(Charged::default(), |known| known.charged)
    }

    /// What was done on the network that a correct program never does: work with memory that its local keys do not allow, an
    /// overrun completion queue, a registration ended that windows are bound to.
    pub fn complaints(&self) -> Vec<String> {
        self.network.lock().complaints.clone()
    }

    /// What goes wrong from now on. Counts go on, from the beginning of the network.
    pub fn set_faults(&self, faults: Faults) {
        self.network.lock().faults = faults;
    }

    /// Registrations that were asked for, and work that has begun, on the whole network so far: what [`Faults`] counts.
    pub fn counted(&self) -> (u64, u64) {
        let state = self.network.lock();
        (state.registrations_asked, state.works_begun)
    }

    /// Lets everything happen that can ([`crate::Delivery::Shuffled`]).
    pub fn settle(&self) {
        self.network.lock().settle();
    }

    /// Breaks the network under a connection for good: what is posted from now on finds nobody. Saying goodbye still works.
    pub fn sever(&self, queue_pair: u32) {
        self.network.lock().sever(queue_pair);
    }

    /// Takes an adapter of the network away: what is posted is flushed, its connections end, and nothing can be made from it.
    pub fn remove_adapter(&self, adapter: &str) {
        let mut state = self.network.lock();
        let Some(index) = state.adapters.iter().position(|known| known.name == adapter) else { return };
        state.adapters[index].removed = true;
        state.adapters[index].happened(DeviceEvent::Fatal("the adapter was removed".to_string()));
        let ends: Vec<u32> =
            state.ends.iter().filter(|(_, end)| end.adapter == index).map(|(number, _)| *number).collect();
        for number in ends {
            state.hang_up(number, "the adapter was removed");
            state.fail(number);
        }
        let AdapterState { host, addresses, .. } = &state.adapters[index];
        let (host, addresses) = (*host, addresses.clone());
        for listening in state.listening.values_mut() {
            if listening.host == host && addresses.contains(&listening.address.ip()) {
                listening.gone = true;
                listening.wakeup.ring();
            }
        }
        state.run();
        self.network.tell();
    }

    /// Brings an adapter of the network back that was removed: a new one of the same name, with the same addresses.
    pub fn return_adapter(&self, adapter: &str) {
        let mut state = self.network.lock();
        let Some(removed) = state.adapters.iter().rposition(|known| known.name == adapter && known.removed)
        else {
            return;
        };
        let old = &mut state.adapters[removed];
        let back = AdapterState {
            host: old.host,
            name: old.name.clone(),
            addresses: std::mem::take(&mut old.addresses),
            limits: old.limits.clone(),
            inline_bytes_max: old.inline_bytes_max,
            counters: Arc::new(Counters::default()),
            charged: Charged::default(),
            events: Vec::new(),
            wakeup: Arc::new(Wakeup::new().expect("a descriptor for an adapter")),
            opened: Weak::new(),
            registrations: 0,
            registered_bytes: 0,
            removed: false,
            port_down: false,
        };
        state.adapters.push(back);
    }

    /// Takes the port of an adapter of the network down, or brings it up. Work over it fails meanwhile.
    pub fn set_port(&self, adapter: &str, up: bool) {
        const PORT: u32 = 1;
        let mut state = self.network.lock();
        if let Some(known) = state.adapters.iter_mut().find(|known| known.name == adapter) {
            known.port_down = !up;
            known.happened(if up { DeviceEvent::PortUp(PORT) } else { DeviceEvent::PortDown(PORT) });
        }
    }

    /// The adapter of this host that leads to one of the network.
    fn way_to(&self, state: &State, target: usize, address: IpAddr) -> Option<usize> {
        let own = |index: &usize| state.adapters[*index].host == self.host && state.adapters[*index].works();
        let near =
            |index: &usize| state.adapters[*index].addresses.iter().any(|own| same_network(*own, address));
        let all = || (0..state.adapters.len()).filter(own);
        all().find(|index| *index == target).or_else(|| all().find(near)).or_else(|| all().next())
    }

    fn open(&self, state: &mut State, index: usize) -> Arc<PretendDevice> {
        let adapter = &mut state.adapters[index];
        if let Some(opened) = adapter.opened.upgrade() {
            return opened;
        }
        let device = Arc::new(PretendDevice {
            network: self.network.clone(),
            index,
            name: adapter.name.clone(),
            limits: adapter.limits.clone(),
            inline_bytes_max: adapter.inline_bytes_max,
            counters: adapter.counters.clone(),
            wakeup: adapter.wakeup.clone(),
        });
        adapter.opened = Arc::downgrade(&device);
        device
    }
}

/// What a forked child is told.
pub(crate) fn forked() -> VerbsError {
    VerbsError::Unavailable("this process is the fork of one that pretends to have RDMA".to_string())
}

/// Whether two addresses look like those of one network: the first 24 bits of IPv4, the first 64 of IPv6.
fn same_network(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => false,
    }
}

impl Fabric for Pretend {
    type Device = PretendDevice;
    type Queue = PretendQueue;
    type Shared = PretendShared;
    type Endpoint = PretendEndpoint;
    type Listener = PretendListener;

    fn device_names(&self) -> Result<Vec<String>, VerbsError> {
        let state = self.network.enter().map_err(|_| forked())?;
        let own = |adapter: &&AdapterState| adapter.host == self.host && !adapter.removed;
        Ok(state.adapters.iter().filter(own).map(|adapter| adapter.name.clone()).collect())
    }

    fn resolve(
        &self,
        address: SocketAddr,
        _class: TrafficClass,
        _timeout: Duration,
    ) -> Result<PretendEndpoint, VerbsError> {
        let failed = |step, number| VerbsError::Resolve { address, step, source: errno(number) };
        let mut state = self.network.enter().map_err(|_| forked())?;
        let reached =
            state.adapters.iter().position(|known| known.addresses.contains(&address.ip()) && known.works());
        let target =
            reached.ok_or_else(|| failed("finding the adapter of the address", libc::EHOSTUNREACH))?;
        let index = self
            .way_to(&state, target, address.ip())
            .ok_or_else(|| failed("finding an adapter of this host", libc::ENODEV))?;
        let wakeup =
            Wakeup::new().map_err(|source| VerbsError::Resolve { address, step: "descriptor", source })?;
        let device = self.open(&mut state, index);
        let ip = state.adapters[index].addresses.first().copied().unwrap_or(address.ip());
        let local = SocketAddr::new(ip, state.port());
        let number = state.number();
        let wakeup = Arc::new(wakeup);
        state.ends.insert(
            number,
            End {
                adapter: index,
                local,
                peer: address,
                private_data: Vec::new(),
                standing: Standing::Idle,
                other: None,
                wakeup: wakeup.clone(),
                pair: None,
                severed: false,
            },
        );
        Ok(PretendEndpoint::new(self.network.clone(), device, number, (local, address), Vec::new(), wakeup))
    }

    fn listen(&self, address: SocketAddr, backlog: u32) -> Result<PretendListener, VerbsError> {
        let failed = |number| VerbsError::Listen { address, source: errno(number) };
        let mut state = self.network.enter().map_err(|_| forked())?;
        let own = |adapter: &AdapterState| {
            adapter.host == self.host && !adapter.removed && adapter.addresses.contains(&address.ip())
        };
        if !address.ip().is_unspecified() && !state.adapters.iter().any(own) {
            return Err(failed(libc::EADDRNOTAVAIL));
        }
        let mut chosen = address;
        if chosen.port() == 0 {
            chosen.set_port(state.port());
        }
        let clashes = |other: &Listening| {
            let same_ip = other.address.ip() == chosen.ip()
                || other.address.ip().is_unspecified()
                || chosen.ip().is_unspecified();
            other.host == self.host && other.address.port() == chosen.port() && same_ip
        };
        if state.listening.values().any(clashes) {
            return Err(failed(libc::EADDRINUSE));
        }
        let wakeup = Arc::new(Wakeup::new().map_err(|source| VerbsError::Listen { address, source })?);
        let number = state.number();
        let waiting = VecDeque::new();
        state.listening.insert(
            number,
            Listening {
                host: self.host,
                address: chosen,
                backlog,
                waiting,
                wakeup: wakeup.clone(),
                gone: false,
            },
        );
        Ok(PretendListener::new(self.clone(), self.network.clone(), number, chosen, wakeup))
    }
}

impl Pretend {
    /// The handle of an end that somebody asked for.
    pub(crate) fn endpoint(&self, number: u32) -> Option<PretendEndpoint> {
        let mut state = self.network.lock();
        let end = state.ends.get(&number)?;
        let (index, addresses) = (end.adapter, (end.local, end.peer));
        let (private_data, wakeup) = (end.private_data.clone(), end.wakeup.clone());
        let device = self.open(&mut state, index);
        Some(PretendEndpoint::new(self.network.clone(), device, number, addresses, private_data, wakeup))
    }
}

/// An adapter that only pretends.
pub struct PretendDevice {
    network: Arc<Network>,
    index: usize,
    name: String,
    limits: DeviceLimits,
    inline_bytes_max: u32,
    counters: Arc<Counters>,
    wakeup: Arc<Wakeup>,
}

impl PretendDevice {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn inline_bytes_max(&self) -> u32 {
        self.inline_bytes_max
    }

    /// An error of something tried with it.
    pub(crate) fn error(&self, what: &'static str, number: i32) -> VerbsError {
        VerbsError::Device { device: self.name.clone(), what, source: errno(number) }
    }

    /// What was charged to it.
    pub fn charged(&self) -> Charged {
        self.network.lock().adapters[self.index].charged
    }

    /// To make something of an adapter that is there.
    fn enter(&self, what: &'static str) -> Result<MutexGuard<'_, State>, VerbsError> {
        let state = self.network.enter().map_err(|_| self.error(what, libc::EPERM))?;
        if state.adapters[self.index].removed { Err(self.error(what, libc::ENODEV)) } else { Ok(state) }
    }

    /// Why a registration is refused before its memory is looked at.
    fn check_registration(&self, state: &mut State, bytes: u64, access: Access) -> io::Result<()> {
        state.registrations_asked += 1;
        let asked = state.registrations_asked;
        let adapter = &state.adapters[self.index];
        if adapter.removed {
            return Err(errno(libc::ENODEV));
        }
        let host = adapter.host;
        let writes_unreadable =
            access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE);
        let beyond_adapter = (access.contains(Access::ON_DEMAND) && !adapter.limits.on_demand)
            || (access.contains(Access::WINDOW_BIND) && !adapter.limits.windows);
        if bytes == 0 || writes_unreadable || beyond_adapter {
            return Err(errno(libc::EINVAL));
        }
        let pinned: u64 = state
            .adapters
            .iter()
            .filter(|known| known.host == host)
            .map(|known| known.registered_bytes)
            .sum();
        let faulty = state.faults.refused_registrations.strikes(asked, &mut state.random);
        let too_much = adapter.registrations >= adapter.limits.registrations_max
            || bytes > adapter.limits.registration_bytes_max
            || pinned + bytes > state.pinned_bytes_max;
        if faulty || too_much { Err(errno(libc::ENOMEM)) } else { Ok(()) }
    }

    fn try_register(&self, address: u64, bytes: u64, access: Access) -> io::Result<PretendRegistration> {
        let mut state = self.network.enter()?;
        self.check_registration(&mut state, bytes, access)?;
        if address.checked_add(bytes + PAGE_BYTES).is_none() {
            return Err(errno(libc::EFAULT));
        }
        let state = &mut *state;
        let local_key = state.memory.register(self.index, address, bytes, access, &mut state.random)?;
        let adapter = &mut state.adapters[self.index];
        adapter.registrations += 1;
        adapter.registered_bytes += bytes;
        adapter.charged.registration(&state.costs, pages_of(address, bytes));
        Counters::add(&self.counters.registrations, 1);
        Counters::add(&self.counters.registered_pages, pages_of(address, bytes));
        let remote_key = state.memory.remote_key(local_key);
        Ok(PretendRegistration { network: self.network.clone(), local_key, remote_key })
    }
}

impl Device for PretendDevice {
    type Queue = PretendQueue;
    type Shared = PretendShared;
    type Registration = PretendRegistration;
    type Window = PretendWindow;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    unsafe fn register(
        &self,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<PretendRegistration, VerbsError> {
        self.try_register(address as u64, bytes as u64, access).map_err(|source| {
            Counters::add(&self.counters.registrations_refused, 1);
            VerbsError::Register { device: self.name.clone(), address, bytes, source }
        })
    }

    fn window(&self) -> Result<PretendWindow, VerbsError> {
        let mut state = self.enter("make a memory window")?;
        if !self.limits.windows {
            return Err(self.error("make a memory window", libc::EOPNOTSUPP));
        }
        let base = state.memory.add_window(self.index);
        Ok(PretendWindow { network: self.network.clone(), base, tag: 0 })
    }

    fn completion_queue(&self, depth: u32) -> Result<PretendQueue, VerbsError> {
        const WHAT: &str = "create a completion queue";
        let mut state = self.enter(WHAT)?;
        if depth == 0 || depth > self.limits.completions_max {
            return Err(self.error(WHAT, libc::EINVAL));
        }
        let wakeup = Wakeup::new().map_err(|source| VerbsError::Device {
            device: self.name.clone(),
            what: WHAT,
            source,
        })?;
        let wakeup = Arc::new(wakeup);
        let number = state.number();
        let (adapter, entries) = (self.index, VecDeque::new());
        state.queues.insert(
            number,
            Queue { adapter, depth, entries, armed: false, overrun: false, wakeup: wakeup.clone() },
        );
        Ok(PretendQueue::new(self.network.clone(), self.name.clone(), number, wakeup))
    }

    fn shared_receives(&self, depth: u32) -> Result<PretendShared, VerbsError> {
        const WHAT: &str = "create a shared receive queue";
        let mut state = self.enter(WHAT)?;
        if depth == 0 || depth > self.limits.shared_receives_max {
            return Err(self.error(WHAT, libc::EINVAL));
        }
        let number = state.number();
        let (adapter, posted, waiting) = (self.index, VecDeque::new(), VecDeque::new());
        state.shared.insert(number, Shared { adapter, depth, used: 0, posted, waiting });
        Ok(PretendShared::new(self.network.clone(), self.name.clone(), number))
    }

    fn event_fd(&self) -> RawFd {
        self.wakeup.fd()
    }

    fn events(&self) -> Vec<DeviceEvent> {
        let Ok(mut state) = self.network.enter() else { return Vec::new() };
        self.wakeup.take();
        std::mem::take(&mut state.adapters[self.index].events)
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Memory that a pretending adapter knows.
pub struct PretendRegistration {
    network: Arc<Network>,
    local_key: u32,
    remote_key: u32,
}

impl Registration for PretendRegistration {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for PretendRegistration {
    fn drop(&mut self) {
        let Ok(mut state) = self.network.enter() else { return };
        let state = &mut *state;
        let Some((gone, had_windows)) = state.memory.deregister(self.local_key) else { return };
        if had_windows {
            state
                .complaints
                .push(format!("registration {:#x} ended with windows bound to it", self.local_key));
        }
        let adapter = &mut state.adapters[gone.adapter];
        adapter.registrations -= 1;
        adapter.registered_bytes -= gone.bytes;
        adapter.charged.deregistration(&state.costs, pages_of(gone.address, gone.bytes));
        Counters::add(&adapter.counters.deregistrations, 1);
    }
}

/// A key for a part of a registration.
pub struct PretendWindow {
    network: Arc<Network>,
    base: u32,
    tag: u8,
}

impl Window for PretendWindow {
    fn next_key(&mut self) -> u32 {
        self.tag = self.tag.wrapping_add(1);
        self.base | u32::from(self.tag)
    }
}

impl Drop for PretendWindow {
    fn drop(&mut self) {
        if let Ok(mut state) = self.network.enter() {
            state.memory.remove_window(self.base);
        }
    }
}
