//! A client's adapters: one registration cache for each, shared by all links over it; and how links are made.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_verbs::{Counts, Device, DeviceLimits, Fabric};

use super::adapter::{Adapter, connect_error};
use super::counts::VerbsTransfers;
use super::link::VerbsLink;
use super::link_options::VerbsOptions;
use crate::error::LinkError;
use crate::registration::{
    PinError, RegistrationCache, RegistrationCost, RegistrationOptions, RegistrationStats,
};

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
    /// [`LinkError::Connect`], after at most about twice `timeout`; says which step failed, and why a server
    /// refused.
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

    /// Makes memory known to every adapter that is in use or will be, and keeps it registered until
    /// [`VerbsClient::unregister`].
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
