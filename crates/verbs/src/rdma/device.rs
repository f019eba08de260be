//! Adapters: their limits, registrations, windows and events.

use super::bindings::*;
use super::connection::Connection;
use super::library::{Library, Owned, outcome, set_nonblocking};
use super::queue::{RdmaQueue, RdmaShared};
use crate::{
    Access, Counters, Device, DeviceEvent, DeviceLimits, LinkLayer, Registration, VerbsError, Window,
};
use libc::{c_int, c_uint};
use std::collections::HashMap;
use std::io;
use std::mem::{MaybeUninit, offset_of, size_of, zeroed};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The adapters that this process has open. They are found by their context; the connection manager has one
/// for each adapter.
static OPEN: Mutex<Vec<Weak<RdmaDevice>>> = Mutex::new(Vec::new());

/// Size of the pages that registered memory is counted in.
const PAGE_BYTES: usize = 4096;
/// The part of a window's key that stays the same; the rest changes with every bind.
const WINDOW_MASK: u32 = !0xff;

/// Locks a mutex and ignores poisoning: the state is consistent between any two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An adapter that is open.
pub struct RdmaDevice {
    itself: Weak<RdmaDevice>,
    name: String,
    limits: DeviceLimits,
    /// Completion flags, any of which means that a key was invalidated.
    invalidated_flags: c_uint,
    counters: Counters,
    next_vector: AtomicUsize,
    /// Windows that binds may use, by the constant part of their keys.
    windows: Mutex<HashMap<u32, WindowPointer>>,
    /// Registrations that binds may use, by their local keys.
    bindable: Mutex<HashMap<u32, RegionPointer>>,
    // Dropped in this order.
    /// Registrations that were dropped, but which a window still refers to.
    lingering: Mutex<Vec<Owned<ibv_mr>>>,
    domain: Owned<ibv_pd>,
    /// An identifier that is bound to the adapter. The connection manager keeps an adapter open as long as
    /// there is one.
    _anchor: Connection,
}

#[derive(Clone, Copy)]
struct WindowPointer(*mut ibv_mw);
// SAFETY: it is used only in calls on the window by the thread that binds it. Its owner removes it from the
// table before destroying it.
unsafe impl Send for WindowPointer {}

#[derive(Clone, Copy)]
struct RegionPointer(*mut ibv_mr);
// SAFETY: as above.
unsafe impl Send for RegionPointer {}

impl RdmaDevice {
    /// The adapter that an identifier is bound to.
    pub(super) fn of(connection: &Connection) -> Result<Arc<RdmaDevice>, VerbsError> {
        let (context, port) = connection.adapter();
        let mut open = lock(&OPEN);
        open.retain(|device| device.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade).find(|device| device.context() == context);
        if let Some(device) = known {
            return Ok(device);
        }
        let device = RdmaDevice::open(connection, context, port)?;
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    fn open(
        connection: &Connection,
        context: *mut ibv_context,
        port: u8,
    ) -> Result<Arc<RdmaDevice>, VerbsError> {
        let library = connection.library();
        // SAFETY: an identifier that is bound has a live context, with a device.
        let name = unsafe { library.text((library.ibv_get_device_name)((*context).device)) };
        let failed = |what| {
            let device = name.clone();
            move |source| VerbsError::Device { device, what, source }
        };
        let anchor = anchor(connection).map_err(failed("be kept open"))?;
        let attributes = attributes(library, context).map_err(failed("report its limits"))?;
        let limits = limits(library, &attributes, context, port).map_err(failed("report its limits"))?;
        // SAFETY: the context is live. The domain is destroyed after everything that is created in it.
        let domain = unsafe {
            Owned::take(library, (library.ibv_alloc_pd)(context), |library, domain| {
                (library.ibv_dealloc_pd)(domain)
            })
        };
        let domain = domain.map_err(failed("create a protection domain"))?;
        // SAFETY: the context is live.
        set_nonblocking(unsafe { (*context).async_fd }).map_err(failed("deliver events"))?;
        Ok(Arc::new_cyclic(|itself| RdmaDevice {
            itself: itself.clone(),
            name,
            limits,
            invalidated_flags: match attributes.vendor_id {
                RXE_VENDOR_ID => IBV_WC_WITH_INV | IB_WC_WITH_INVALIDATE,
                _ => IBV_WC_WITH_INV,
            },
            counters: Counters::default(),
            next_vector: AtomicUsize::new(0),
            windows: Mutex::default(),
            bindable: Mutex::default(),
            lingering: Mutex::default(),
            domain,
            _anchor: anchor,
        }))
    }

    pub(super) fn library(&self) -> &'static Library {
        self.domain.library()
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        // SAFETY: the domain is live.
        unsafe { (*self.domain.as_ptr()).context }
    }

    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }

    /// Operations that are functions of the adapter's driver, not of the libraries.
    pub(super) fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context lives for as long as the anchor does, and its operations do not change.
        unsafe { &(*self.context()).ops }
    }

    pub(super) fn invalidated_flags(&self) -> c_uint {
        self.invalidated_flags
    }

    pub(super) fn error(&self, what: &'static str, source: io::Error) -> VerbsError {
        VerbsError::Device { device: self.name.clone(), what, source }
    }

    /// The next interrupt vector, in turn.
    pub(super) fn completion_vector(&self) -> c_int {
        // SAFETY: the context is live.
        let vectors = unsafe { (*self.context()).num_comp_vectors }.max(1) as usize;
        (self.next_vector.fetch_add(1, Ordering::Relaxed) % vectors) as c_int
    }

    /// The window of a key.
    pub(super) fn find_window(&self, key: u32) -> Option<*mut ibv_mw> {
        lock(&self.windows).get(&(key & WINDOW_MASK)).map(|window| window.0)
    }

    /// The registration of a local key, if windows can be bound to it.
    pub(super) fn find_bindable(&self, local_key: u32) -> Option<*mut ibv_mr> {
        lock(&self.bindable).get(&local_key).map(|region| region.0)
    }

    fn strong(&self) -> Arc<RdmaDevice> {
        self.itself.upgrade().expect("a method is called on something that is alive")
    }

    /// Deregisters memory, or keeps it until no window refers to it.
    fn retire(&self, region: Owned<ibv_mr>) {
        if let Err(region) = region.end() {
            lock(&self.lingering).push(region);
        }
    }

    fn retire_lingering(&self) {
        // In a forked child a lock may be held for ever, by a thread that does not exist there.
        if self.library().is_forked() {
            return;
        }
        for region in std::mem::take(&mut *lock(&self.lingering)) {
            self.retire(region);
        }
    }

    fn access_flags(&self, access: Access) -> c_int {
        let pairs = [
            (Access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
            (Access::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
            (Access::WINDOW_BIND, IBV_ACCESS_MW_BIND),
            (Access::ON_DEMAND, IBV_ACCESS_ON_DEMAND),
        ];
        let flags =
            pairs.iter().filter(|(ours, _)| access.contains(*ours)).fold(0, |sum, (_, theirs)| sum | theirs);
        // RDMA over TCP implements a read by a write from the peer (RFC 5040, section 5.2), so the target
        // must be writable by peers.
        let target = self.limits.link_layer == LinkLayer::Iwarp && access.contains(Access::LOCAL_WRITE);
        if target { flags | IBV_ACCESS_REMOTE_WRITE } else { flags }
    }

    /// A pending event, if there is one.
    fn next_event(&self) -> Option<DeviceEvent> {
        let library = self.library();
        // SAFETY: all zeros is such a structure.
        let mut event: ibv_async_event = unsafe { zeroed() };
        // SAFETY: the context is live; its descriptor does not wait.
        outcome(unsafe { (library.ibv_get_async_event)(self.context(), &mut event) }).ok()?;
        let told = self.translate(&event);
        // SAFETY: it is from the call above, and is reported only once.
        unsafe { (library.ibv_ack_async_event)(&mut event) };
        Some(told)
    }

    /// Called before the event is acknowledged, since its object cannot be destroyed until then.
    fn translate(&self, event: &ibv_async_event) -> DeviceEvent {
        // SAFETY: the library's texts are constants.
        let text = unsafe { self.library().text((self.library().ibv_event_type_str)(event.event_type)) };
        match event.event_type {
            IBV_EVENT_DEVICE_FATAL => DeviceEvent::Fatal(format!("{}: {text}", self.name)),
            IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR => {
                // SAFETY: these events are about a port.
                let port = unsafe { event.element.port_num } as u32;
                if event.event_type == IBV_EVENT_PORT_ERR {
                    DeviceEvent::PortDown(port)
                } else {
                    DeviceEvent::PortUp(port)
                }
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: these events are about a queue pair, which stays until they are acknowledged.
                let number = unsafe { (*event.element.qp).qp_num };
                DeviceEvent::Other(format!("{}: queue pair {number}: {text}", self.name))
            }
            IBV_EVENT_CQ_ERR => DeviceEvent::Other(format!("{}: a completion queue: {text}", self.name)),
            _ => DeviceEvent::Other(format!("{}: {text}", self.name)),
        }
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        self.retire_lingering();
    }
}

impl Device for RdmaDevice {
    type Queue = RdmaQueue;
    type Shared = RdmaShared;
    type Registration = RdmaRegistration;
    type Window = RdmaWindow;

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
    ) -> Result<RdmaRegistration, VerbsError> {
        let library = self.library();
        let flags = self.access_flags(access);
        // SAFETY: the domain is live; the kernel checks the memory. The caller is responsible for its use by
        // peers.
        let region = unsafe {
            let region = (library.ibv_reg_mr)(self.domain(), address as *mut _, bytes, flags);
            Owned::take(library, region, |library, region| (library.ibv_dereg_mr)(region))
        };
        let region = region.map_err(|source| {
            Counters::add(&self.counters.registrations_refused, 1);
            VerbsError::Register { device: self.name.clone(), address, bytes, source }
        })?;
        Counters::add(&self.counters.registrations, 1);
        Counters::add(&self.counters.registered_pages, pages(address, bytes));
        // SAFETY: the registration is live.
        let (local_key, remote_key) = unsafe { ((*region.as_ptr()).lkey, (*region.as_ptr()).rkey) };
        let remote = access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_READ);
        if access.contains(Access::WINDOW_BIND) {
            lock(&self.bindable).insert(local_key, RegionPointer(region.as_ptr()));
        }
        let remote_key = if remote { remote_key } else { 0 };
        Ok(RdmaRegistration { region: Some(region), local_key, remote_key, device: self.strong() })
    }

    fn window(&self) -> Result<RdmaWindow, VerbsError> {
        let failed = |source| self.error("create a memory window", source);
        let operations = self.operations();
        let (Some(allocate), true) = (operations.alloc_mw, self.limits.windows) else {
            return Err(failed(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        };
        // SAFETY: the domain is live. The window is destroyed once, by the same driver.
        let window =
            unsafe {
                Owned::take(self.library(), allocate(self.domain(), IBV_MW_TYPE_2), |_, window| {
                    match (*(*window).context).ops.dealloc_mw {
                        Some(end) => end(window),
                        None => libc::EOPNOTSUPP,
                    }
                })
            };
        let window = window.map_err(failed)?;
        // SAFETY: the window is live.
        let key = unsafe { (*window.as_ptr()).rkey };
        lock(&self.windows).insert(key & WINDOW_MASK, WindowPointer(window.as_ptr()));
        Ok(RdmaWindow { window: Some(window), key, device: self.strong() })
    }

    fn completion_queue(&self, depth: u32) -> Result<RdmaQueue, VerbsError> {
        RdmaQueue::new(self.strong(), depth)
    }

    fn shared_receives(&self, depth: u32) -> Result<RdmaShared, VerbsError> {
        RdmaShared::new(self.strong(), depth)
    }

    fn event_fd(&self) -> RawFd {
        // SAFETY: the context is live.
        unsafe { (*self.context()).async_fd }
    }

    fn events(&self) -> Vec<DeviceEvent> {
        std::iter::from_fn(|| self.next_event()).collect()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// Registered memory.
pub struct RdmaRegistration {
    /// `Some` until it is dropped.
    region: Option<Owned<ibv_mr>>,
    local_key: u32,
    remote_key: u32,
    device: Arc<RdmaDevice>,
}

impl Registration for RdmaRegistration {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
    }
}

impl Drop for RdmaRegistration {
    fn drop(&mut self) {
        let Some(region) = self.region.take().filter(|region| !region.library().is_forked()) else { return };
        lock(&self.device.bindable).remove(&self.local_key);
        Counters::add(&self.device.counters.deregistrations, 1);
        self.device.retire(region);
    }
}

/// A memory window of type 2.
pub struct RdmaWindow {
    /// `Some` until it is dropped.
    window: Option<Owned<ibv_mw>>,
    /// The last key that was returned.
    key: u32,
    device: Arc<RdmaDevice>,
}

impl Window for RdmaWindow {
    fn next_key(&mut self) -> u32 {
        self.key = (self.key & WINDOW_MASK) | (self.key.wrapping_add(1) & !WINDOW_MASK);
        self.key
    }
}

impl Drop for RdmaWindow {
    fn drop(&mut self) {
        if self.device.library().is_forked() {
            return;
        }
        lock(&self.device.windows).remove(&(self.key & WINDOW_MASK));
        drop(self.window.take());
        self.device.retire_lingering();
    }
}

/// An identifier on the same adapter.
fn anchor(connection: &Connection) -> io::Result<Connection> {
    let mut address = connection.local();
    address.set_port(0);
    let anchor = Connection::new(connection.library())?;
    anchor.bind(address)?;
    let same = anchor.adapter().0 == connection.adapter().0;
    if same { Ok(anchor) } else { Err(io::Error::from_raw_os_error(libc::ENODEV)) }
}

fn pages(address: usize, bytes: usize) -> u64 {
    (address.saturating_add(bytes).div_ceil(PAGE_BYTES) - address / PAGE_BYTES) as u64
}

fn attributes(library: &Library, context: *mut ibv_context) -> io::Result<ibv_device_attr> {
    let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: the context is live, and the buffer has space for the result.
    outcome(unsafe { (library.ibv_query_device)(context, attributes.as_mut_ptr()) })?;
    // SAFETY: it is filled in.
    Ok(unsafe { attributes.assume_init() })
}

fn limits(
    library: &Library,
    attributes: &ibv_device_attr,
    context: *mut ibv_context,
    port: u8,
) -> io::Result<DeviceLimits> {
    let number = |value: c_int| u32::try_from(value).unwrap_or(0);
    let depth = |value: c_int| value.clamp(0, u8::MAX as c_int) as u8;
    let type_2 = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    // SAFETY: the context is live.
    let has_windows = unsafe { (*context).ops.alloc_mw.is_some() && (*context).ops.dealloc_mw.is_some() };
    Ok(DeviceLimits {
        link_layer: link_layer(library, context, port)?,
        send_pieces_max: number(attributes.max_sge) as usize,
        read_pieces_max: number(attributes.max_sge_rd).min(number(attributes.max_sge)).max(1) as usize,
        send_depth_max: number(attributes.max_qp_wr),
        reads_out_max: depth(attributes.max_qp_init_rd_atom),
        reads_in_max: depth(attributes.max_qp_rd_atom),
        shared_receives_max: if attributes.max_srq > 0 { number(attributes.max_srq_wr) } else { 0 },
        completions_max: number(attributes.max_cqe),
        registrations_max: u64::from(number(attributes.max_mr)),
        registration_bytes_max: attributes.max_mr_size,
        windows: has_windows && attributes.device_cap_flags & type_2 != 0,
        binds_alone: attributes.vendor_id == RXE_VENDOR_ID,
        on_demand: has_on_demand(context),
    })
}

fn link_layer(library: &Library, context: *mut ibv_context, port: u8) -> io::Result<LinkLayer> {
    // SAFETY: the context is live, with a device.
    if unsafe { (*(*context).device).transport_type } == IBV_TRANSPORT_IWARP {
        return Ok(LinkLayer::Iwarp);
    }
    let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
    // SAFETY: the context is live, and the buffer has space for the result.
    outcome(unsafe { (library.ibv_query_port)(context, port, attributes.as_mut_ptr()) })?;
    // SAFETY: fields that the library does not set are zero.
    let link_layer = unsafe { attributes.assume_init() }.link_layer;
    Ok(if link_layer == IBV_LINK_LAYER_ETHERNET { LinkLayer::Roce } else { LinkLayer::InfiniBand })
}

/// Whether all operations used here work with memory that is not pinned.
fn has_on_demand(context: *mut ibv_context) -> bool {
    // SAFETY: the context is live.
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return false;
    }
    let before = offset_of!(verbs_context_end, context);
    // SAFETY: such a context is the end of a larger structure, as large as its `sz` says.
    let end = unsafe { &*context.byte_sub(before).cast::<verbs_context_end>() };
    let Some(query) = end.query_device_ex.filter(|_| end.sz >= size_of::<verbs_context_end>()) else {
        return false;
    };
    let input = ibv_query_device_ex_input { comp_mask: 0 };
    let mut attributes = MaybeUninit::<ibv_device_attr_ex>::zeroed();
    // SAFETY: the context is live, and the buffer has the given size.
    let result = unsafe { query(context, &input, attributes.as_mut_ptr(), size_of::<ibv_device_attr_ex>()) };
    // SAFETY: fields that the driver does not set are zero.
    let on_demand = unsafe { attributes.assume_init() }.odp_caps;
    let needed: c_uint =
        IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
    result == 0 && on_demand.general_caps & IBV_ODP_SUPPORT != 0 && on_demand.rc_odp_caps & needed == needed
}
