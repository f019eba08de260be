//! A client's adapters: one registration cache for each, shared by all links over it; and how links are made.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_verbs::{Counts, Device, DeviceLimits, Fabric, TrafficClass};
use weft_wire::limits::MESSAGE_DATA_BYTES_MAX;
use weft_wire::security::Key;

use super::choose::{Direction, Mechanism, Thresholds, Transfer, choose};
use super::counts::{Transfers, VerbsTransfers};
use super::envelope::VerbsRole;
use super::link::VerbsLink;
use super::{CLIENT_FAST_BUFFERS, CLIENT_RECEIVES, CLIENT_SENDS, FAST_DATA_BYTES};
use crate::error::LinkError;
use crate::registration::{
    PinError, RegistrationCache, RegistrationCost, RegistrationOptions, RegistrationStats,
};

/// Fewest pieces of a request for which a client asks for the server's units, by default.
const LEND_PIECES_MIN: u64 = 128;

/// How a link over RDMA is made, and how it moves data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The key of the cluster's clients, or of its servers; `None` where there is none.
    pub key: Option<Key>,
    /// Which of the two.
    pub role: VerbsRole,
    /// What the network is to think of this link's traffic.
    pub class: TrafficClass,
    /// Data of up to this size rides in messages.
    pub inline_bytes_max: u64,
    /// Data of up to this size goes through Fast RDMA buffers where one is free.
    pub fast_bytes_max: u64,
    /// Always this mechanism where it is possible, for comparisons.
    pub mechanism: Option<Mechanism>,
    /// Data in at least so many pieces, that are short, is moved by this side into and out of units that the server lends; 0: never.
    pub lend_pieces_min: u64,
    /// Receives of the link, 8 KiB each, which also bound the requests under way.
    pub receives: u16,
    /// Messages that may be on their way, 8 KiB each.
    pub sends: u16,
    /// Fast RDMA buffers of the link's own, 72 KiB each.
    pub fast_buffers: u16,
    /// Servers get at memory by keys that end with each request, where the adapter has memory windows. Registrations are shared: what
    /// the first link over an adapter says holds for all.
    pub windows: bool,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions {
            key: None,
            role: VerbsRole::Client,
            class: TrafficClass::default(),
            inline_bytes_max: 4096,
            fast_bytes_max: FAST_DATA_BYTES as u64,
            mechanism: None,
            lend_pieces_min: LEND_PIECES_MIN,
            receives: CLIENT_RECEIVES,
            sends: CLIENT_SENDS,
            fast_buffers: CLIENT_FAST_BUFFERS,
            windows: true,
        }
    }
}

impl VerbsOptions {
    /// How the data of a request moves whose memory, in so many pieces, is not registered yet, to a server that allows the same, has a
    /// Fast buffer free, and lends; `write`: a write of a file.
    pub fn mechanism_for(&self, bytes: u64, pieces: u64, write: bool) -> Mechanism {
        let direction = if write { Direction::Get } else { Direction::Put };
        let fast_free = self.fast_buffers > 0;
        let transfer = Transfer { direction, bytes, pieces, registered: false, fast_free, lent: true };
        choose(&transfer, &self.thresholds(), self.mechanism)
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        Thresholds {
            inline_bytes_max: self.inline_bytes_max,
            fast_bytes_max: self.fast_bytes_max.min(FAST_DATA_BYTES as u64),
            message_data_bytes_max: MESSAGE_DATA_BYTES_MAX as u64,
            lend_pieces_min: self.lend_pieces_min,
        }
    }
}

/// RDMA of a process that is a client. Clones are the same.
pub struct VerbsClient<F: Fabric> {
    shared: Arc<Shared<F>>,
}

impl<F: Fabric> Clone for VerbsClient<F> {
    fn clone(&self) -> Self {
        VerbsClient { shared: self.shared.clone() }
    }
}

struct Shared<F: Fabric> {
    fabric: F,
    options: RegistrationOptions,
    known: Mutex<Known<F>>,
}

struct Known<F: Fabric> {
    adapters: Vec<Adapter<F>>,
    /// Memory for every adapter: address and bytes.
    arenas: Vec<(u64, u64)>,
    /// Why an adapter that came later did not take one of them.
    refusal: Option<String>,
}

/// An adapter that links were made over.
pub(super) struct Adapter<F: Fabric> {
    pub device: Arc<F::Device>,
    pub cache: RegistrationCache<F::Device>,
    pub transfers: Arc<Transfers>,
    /// Its registrations have no remote keys: each request binds windows.
    pub windows: bool,
}

impl<F: Fabric> Clone for Adapter<F> {
    fn clone(&self) -> Self {
        let Adapter { device, cache, transfers, windows } = self;
        Adapter {
            device: device.clone(),
            cache: cache.clone(),
            transfers: transfers.clone(),
            windows: *windows,
        }
    }
}

/// An adapter of a client, for people.
#[derive(Debug, Clone)]
pub struct VerbsDeviceStatus {
    /// Its name.
    pub name: String,
    /// What it can do; its network is among it.
    pub limits: DeviceLimits,
    /// What was asked of it by this process.
    pub counts: Counts,
    /// How data moved over the links.
    pub transfers: VerbsTransfers,
    /// Registered memory.
    pub registrations: RegistrationStats,
    /// What registering costs.
    pub cost: RegistrationCost,
    /// Servers get at memory by windows.
    pub windows: bool,
}

/// RDMA of a client, for people.
#[derive(Debug, Clone, Default)]
pub struct VerbsStatus {
    /// The adapters that links were made over.
    pub devices: Vec<VerbsDeviceStatus>,
    /// Why memory that was registered before an adapter was in use is not known to it.
    pub refusal: Option<String>,
}

impl<F: Fabric> VerbsClient<F> {
    /// With adapters that are opened when a link leads over them.
    pub fn new(fabric: F, options: RegistrationOptions) -> VerbsClient<F> {
        let known = Mutex::new(Known { adapters: Vec::new(), arenas: Vec::new(), refusal: None });
        VerbsClient { shared: Arc::new(Shared { fabric, options, known }) }
    }

    fn known(&self) -> MutexGuard<'_, Known<F>> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to a server. The handshake is still to be done.
    ///
    /// # Errors
    /// [`LinkError::Connect`], after at most about twice `timeout`; says which step failed, and why a server refused.
    pub fn connect(
        &self,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<VerbsLink<F>, LinkError> {
        let failed = |error: weft_verbs::VerbsError| connect_error(address, error);
        let endpoint = self.shared.fabric.resolve(address, options.class, timeout).map_err(failed)?;
        let adapter = self.adapter(weft_verbs::Endpoint::device(&endpoint), options.windows);
        VerbsLink::connect(endpoint, adapter, address, options, timeout)
    }

    /// The adapter with its cache, made when it is met first or was opened anew.
    fn adapter(&self, device: Arc<F::Device>, windows: bool) -> Adapter<F> {
        let mut known = self.known();
        if let Some(adapter) = known.adapters.iter().find(|adapter| Arc::ptr_eq(&adapter.device, &device)) {
            return adapter.clone();
        }
        let windows = windows && device.limits().windows;
        let options = RegistrationOptions { windows, ..self.shared.options.clone() };
        let cache = RegistrationCache::new(device.clone(), options);
        let Known { arenas, refusal, .. } = &mut *known;
        for (address, bytes) in arenas {
            // SAFETY: as the caller of `register` promises.
            if let Err(error) = unsafe { cache.add_arena(*address, *bytes) } {
                // It is registered when it is used.
                *refusal = Some(format!("{}: {error}", device.name()));
            }
        }
        let adapter: Adapter<F> = Adapter { device, cache, transfers: Arc::default(), windows };
        known.adapters.retain(|other: &Adapter<F>| other.device.name() != adapter.device.name());
        known.adapters.push(adapter.clone());
        adapter
    }

    /// Makes memory known to every adapter that is in use or will be, and keeps it registered until [`VerbsClient::unregister`].
    ///
    /// # Errors
    /// Of an adapter that refused; the memory is then registered with none.
    ///
    /// # Safety
    /// The memory stays mapped until it is unregistered.
    pub unsafe fn register(&self, address: *mut u8, bytes: usize) -> Result<(), PinError> {
        let mut known = self.known();
        for at in 0..known.adapters.len() {
            // SAFETY: as the caller promises.
            let added = unsafe { known.adapters[at].cache.add_arena(address as u64, bytes as u64) };
            if let Err(error) = added {
                for adapter in &known.adapters[..at] {
                    adapter.cache.remove_arena(address as u64);
                }
                return Err(error);
            }
        }
        known.arenas.push((address as u64, bytes as u64));
        Ok(())
    }

    /// Ends what [`VerbsClient::register`] began. Says whether the memory was known.
    pub fn unregister(&self, address: *mut u8) -> bool {
        let mut known = self.known();
        let before = known.arenas.len();
        known.arenas.retain(|(start, _)| *start != address as u64);
        for adapter in &known.adapters {
            adapter.cache.remove_arena(address as u64);
        }
        known.arenas.len() < before
    }

    /// What the adapters are and did.
    pub fn status(&self) -> VerbsStatus {
        let describe = |adapter: &Adapter<F>| VerbsDeviceStatus {
            name: adapter.device.name().into(),
            limits: adapter.device.limits().clone(),
            counts: adapter.device.counters().counts(),
            transfers: adapter.transfers.counts(),
            registrations: adapter.cache.stats(),
            cost: adapter.cache.cost(),
            windows: adapter.windows,
        };
        let known = self.known();
        VerbsStatus { devices: known.adapters.iter().map(describe).collect(), refusal: known.refusal.clone() }
    }
}

/// Of the seam's words, with the server's reason where it refused.
pub(super) fn connect_error(address: SocketAddr, error: weft_verbs::VerbsError) -> LinkError {
    let text = match &error {
        weft_verbs::VerbsError::Rejected { private_data, .. } => {
            super::envelope::Rejection::text(private_data).to_string()
        }
        other => other.to_string(),
    };
    LinkError::Connect { peer: format!("server {address} over RDMA"), source: std::io::Error::other(text) }
}
