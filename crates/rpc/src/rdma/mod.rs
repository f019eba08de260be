//! RDMA of this process: the libraries, loaded when somebody first asks for them; the adapters; and the memory that is
//! registered by name.
//!
//! ```text
//!   weft_mem_alloc, weft_mem_register ──► memory (a list of this process) ──► every Rdma that there is
//!   a connection over RDMA ──► RdmaSource ──► librdmacm, adapters, registration cache      once in a process
//!                                 └── cannot be: why, kept for status; the libraries are not looked for again
//! ```
//!
//! A forked child begins with nothing: what its parent made stays untouched, for threads that are not in the child may have been
//! using it, and adapters do not follow memory into children.

mod memory;
mod options;

pub(crate) use memory::Refusal;
pub(crate) use memory::{register_arena, unregister};
pub use memory::{register_memory, unregister_memory};
pub use options::{ForeignMemory, RdmaMechanism, RdmaOptions, RdmaTos};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weft_transport::registration::{PinError, RegistrationCost};
use weft_transport::{Link, LinkError};
use weft_transport::{VerbsClient, VerbsDeviceStatus, VerbsOptions, VerbsStatus};
use weft_verbs::{Fabric, RdmaCore};

use crate::fork::{self, PerProcess};

/// RDMA as connections use it. Clones are the same.
#[derive(Clone)]
pub struct Rdma {
    adapters: Arc<dyn Adapters>,
    generation: u64,
}

/// What is asked of adapters, whatever they are made of.
pub(crate) trait Adapters: Send + Sync {
    /// The adapters' names; none is an error, for there is nothing to use.
    fn names(&self) -> Result<Vec<String>, String>;
    fn connect(
        &self,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<Box<dyn Link>, LinkError>;
    fn register(&self, address: usize, bytes: usize) -> Result<(), Refusal>;
    fn unregister(&self, address: usize);
    fn status(&self) -> VerbsStatus;
}

struct Over<F: Fabric> {
    fabric: F,
    client: VerbsClient<F>,
}

impl<F: Fabric> Adapters for Over<F> {
    fn names(&self) -> Result<Vec<String>, String> {
        match self.fabric.device_names() {
            Ok(names) if names.is_empty() => Err("this host has no RDMA adapter".into()),
            names => names.map_err(|error| error.to_string()),
        }
    }

    fn connect(
        &self,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<Box<dyn Link>, LinkError> {
        Ok(Box::new(self.client.connect(address, options, timeout)?))
    }

    fn register(&self, address: usize, bytes: usize) -> Result<(), Refusal> {
        // SAFETY: whoever registers memory keeps it mapped until it is unregistered.
        unsafe { self.client.register(address as *mut u8, bytes) }.map_err(|error| Refusal::of(&error))
    }

    fn unregister(&self, address: usize) {
        self.client.unregister(address as *mut u8);
    }

    fn status(&self) -> VerbsStatus {
        self.client.status()
    }
}

impl Refusal {
    fn of(error: &PinError) -> Refusal {
        Refusal { errno: error.errno(), text: error.to_string() }
    }
}

impl Rdma {
    /// Over these adapters: for simulations and tests. A connection without adapters of its own uses the host's.
    pub fn over<F: Fabric>(fabric: F, options: &RdmaOptions) -> Rdma {
        fork::watch();
        let client = VerbsClient::new(fabric.clone(), options.for_registration());
        Rdma::of(Arc::new(Over { fabric, client }))
    }

    pub(crate) fn of(adapters: Arc<dyn Adapters>) -> Rdma {
        memory::join(&adapters);
        Rdma { adapters, generation: fork::generation() }
    }

    pub(crate) fn connect(
        &self,
        address: SocketAddr,
        options: &VerbsOptions,
        timeout: Duration,
    ) -> Result<Box<dyn Link>, LinkError> {
        self.adapters.connect(address, options, timeout)
    }
}

impl std::fmt::Debug for Rdma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rdma")
    }
}

/// This host's RDMA, or why there is none. What cannot be loaded is not looked for again.
static HOST: PerProcess<Result<Rdma, String>> = PerProcess::new();

/// Where the connections of a client get RDMA from.
pub struct RdmaSource {
    options: RdmaOptions,
    given: Option<Rdma>,
}

impl RdmaSource {
    /// From `given`, else from the host, when it is first asked for.
    pub fn new(options: RdmaOptions, given: Option<Rdma>) -> RdmaSource {
        RdmaSource { options, given }
    }

    /// How RDMA is used.
    pub fn options(&self) -> &RdmaOptions {
        &self.options
    }

    /// RDMA that has an adapter, or why there is none.
    pub fn get(&self) -> Result<Rdma, String> {
        let rdma = match &self.given {
            Some(given) if given.generation == fork::generation() => given.clone(),
            Some(_) => return Err("its adapters were given to the process that forked this one".into()),
            None => HOST.get_or_make(|| self.load()).clone()?,
        };
        rdma.adapters.names()?;
        Ok(rdma)
    }

    fn load(&self) -> Result<Rdma, String> {
        let fabric = RdmaCore::load().map_err(|error| error.to_string())?;
        Ok(Rdma::over(fabric, &self.options))
    }

    /// What registering memory costs with an adapter that connections were made over, and its name.
    pub fn cost(&self) -> Option<(String, RegistrationCost)> {
        let rdma = self.given.as_ref().or_else(|| HOST.get()?.as_ref().ok())?;
        let device = rdma.adapters.status().devices.into_iter().next()?;
        Some((device.name, device.cost))
    }

    /// Pieces of memory that an adapter which connections were made over gathers in one piece of work.
    pub fn pieces_max(&self, write: bool) -> Option<usize> {
        let rdma = self.given.as_ref().or_else(|| HOST.get()?.as_ref().ok())?;
        let limits = rdma.adapters.status().devices.into_iter().next()?.limits;
        Some(if write { limits.send_pieces_max } else { limits.read_pieces_max })
    }

    /// What is known of RDMA in this process.
    pub fn status(&self) -> RdmaStatus {
        let found = self.get().and_then(|rdma| Ok((rdma.adapters.names()?, rdma.adapters.status())));
        match found {
            Ok((names, status)) => RdmaStatus {
                unavailable: None,
                refusal: status.refusal.clone().or_else(memory::refusal),
                names,
                in_use: status.devices.iter().map(RdmaAdapter::of).collect(),
            },
            Err(reason) => RdmaStatus::none(reason),
        }
    }
}

/// RDMA of this process.
#[derive(Debug, Clone)]
pub struct RdmaStatus {
    /// Why there is none.
    pub unavailable: Option<String>,
    /// Why memory that was to be registered by name is not: it is used like any other.
    pub refusal: Option<String>,
    /// The adapters of this host.
    pub names: Vec<String>,
    /// Those that connections were made over.
    pub in_use: Vec<RdmaAdapter>,
}

/// An adapter that connections of this process were made over.
#[derive(Debug, Clone)]
pub struct RdmaAdapter {
    /// "mlx5_0", "rxe0".
    pub name: String,
    /// Its network: "InfiniBand", "RoCE", "iWARP".
    pub link_layer: String,
    /// What happens to memory that nobody registered by name: "watched", "on demand", "not cached: …".
    pub foreign: String,
    /// Pieces of memory that it gathers or scatters in one piece of work.
    pub pieces_max: usize,
    /// Whether servers get at memory by windows, whose keys end with each request.
    pub windows: bool,
    /// The registration cache: what it did, and what it holds.
    pub registrations: Vec<(&'static str, u64)>,
    /// What was asked of the adapter, how many requests moved data by each mechanism, and bytes that were copied for it.
    pub counts: Vec<(&'static str, u64)>,
}

impl RdmaAdapter {
    fn of(device: &VerbsDeviceStatus) -> RdmaAdapter {
        let stats = &device.registrations;
        RdmaAdapter {
            name: device.name.clone(),
            link_layer: device.limits.link_layer.to_string(),
            foreign: stats.foreign.clone(),
            pieces_max: device.limits.send_pieces_max,
            windows: device.windows,
            registrations: vec![
                ("entries", stats.entries),
                ("bytes", stats.bytes),
                ("arenas", stats.arenas),
                ("arena_bytes", stats.arena_bytes),
                ("hits", stats.hits),
                ("misses", stats.misses),
                ("registrations", stats.registrations),
                ("registered_pages", stats.registered_pages),
                ("refused", stats.refused),
                ("transient", stats.transient),
                ("invalidated", stats.invalidated),
                ("evicted", stats.evicted),
                ("wrong", stats.wrong),
            ],
            counts: [device.counts.named(), device.transfers.named().to_vec()].concat(),
        }
    }
}

impl RdmaStatus {
    /// There is none, for this reason.
    pub fn none(reason: impl Into<String>) -> RdmaStatus {
        RdmaStatus { unavailable: Some(reason.into()), refusal: None, names: Vec::new(), in_use: Vec::new() }
    }
}
