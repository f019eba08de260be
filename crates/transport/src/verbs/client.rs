//! A client's adapters: one registration cache for each, shared by all links over it; and how links are made.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_verbs::{Counts, Device, DeviceLimits, Fabric, TrafficClass};
use weft_wire::security::Key;

use super::choose::Mechanism;
use super::envelope::VerbsRole;
use super::link::VerbsLink;
use super::{CLIENT_FAST_BUFFERS, CLIENT_RECEIVES, CLIENT_SENDS, FAST_DATA_BYTES};
use crate::error::LinkError;
use crate::registration::{RegistrationCache, RegistrationOptions, RegistrationStats};

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
    /// Receives of the link, 8 KiB each, which also bound the requests under way.
    pub receives: u16,
    /// Messages that may be on their way, 8 KiB each.
    pub sends: u16,
    /// Fast RDMA buffers of the link's own, 72 KiB each.
    pub fast_buffers: u16,
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
            receives: CLIENT_RECEIVES,
            sends: CLIENT_SENDS,
            fast_buffers: CLIENT_FAST_BUFFERS,
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
}

/// An adapter that links were made over.
pub(super) struct Adapter<F: Fabric> {
    pub device: Arc<F::Device>,
    pub cache: RegistrationCache<F::Device>,
}

impl<F: Fabric> Clone for Adapter<F> {
    fn clone(&self) -> Self {
        Adapter { device: self.device.clone(), cache: self.cache.clone() }
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
    /// Registered memory.
    pub registrations: RegistrationStats,
}

/// RDMA of a client, for people.
#[derive(Debug, Clone, Default)]
pub struct VerbsStatus {
    /// The adapters that links were made over.
    pub devices: Vec<VerbsDeviceStatus>,
}

impl<F: Fabric> VerbsClient<F> {
    /// With adapters that are opened when a link leads over them.
    pub fn new(fabric: F, options: RegistrationOptions) -> VerbsClient<F> {
        let known = Mutex::new(Known { adapters: Vec::new(), arenas: Vec::new() });
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
        let adapter = self.adapter(weft_verbs::Endpoint::device(&endpoint));
        VerbsLink::connect(endpoint, adapter, address, options, timeout)
    }

    /// The adapter with its cache, made when it is met first or was opened anew.
    fn adapter(&self, device: Arc<F::Device>) -> Adapter<F> {
        let mut known = self.known();
        if let Some(adapter) = known.adapters.iter().find(|adapter| Arc::ptr_eq(&adapter.device, &device)) {
            return adapter.clone();
        }
        let cache = RegistrationCache::new(device.clone(), self.shared.options.clone());
        for (address, bytes) in &known.arenas {
            // Where it cannot be registered now, it is when it is used.
            // SAFETY: as the caller of `register` promises.
            let _ = unsafe { cache.add_arena(*address, *bytes) };
        }
        let adapter: Adapter<F> = Adapter { device, cache };
        known.adapters.retain(|other: &Adapter<F>| other.device.name() != adapter.device.name());
        known.adapters.push(adapter.clone());
        adapter
    }

    /// Makes memory known to every adapter that is in use or will be, and keeps it registered until [`VerbsClient::unregister`].
    ///
    /// # Errors
    /// [`LinkError::Local`]: an adapter refused; it is then registered with none.
    ///
    /// # Safety
    /// The memory stays mapped until it is unregistered.
    pub unsafe fn register(&self, address: *mut u8, bytes: usize) -> Result<(), LinkError> {
        let mut known = self.known();
        for at in 0..known.adapters.len() {
            // SAFETY: as the caller promises.
            let added = unsafe { known.adapters[at].cache.add_arena(address as u64, bytes as u64) };
            if let Err(error) = added {
                for adapter in &known.adapters[..at] {
                    adapter.cache.remove_arena(address as u64);
                }
                let source = std::io::Error::other(error.to_string());
                return Err(LinkError::Local { what: "register memory with the RDMA adapter", source });
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
            registrations: adapter.cache.stats(),
        };
        VerbsStatus { devices: self.known().adapters.iter().map(describe).collect() }
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
