//! The implementation over rdma-core: libibverbs for the adapters' work, librdmacm for connections. Both are
//! loaded when they are first used.
//!
//! ```text
//!   RdmaCore ─► Library                 functions of both libraries (bindings.rs has their structures)
//!      │
//!      ├─ resolve, listen ─► Connection identifier and event channel of its own
//!      │                         │
//!      │                     RdmaEndpoint ── queue pair ──► Completions, SharedQueue (kept alive by it)
//!      │                         │                              │
//!      └──────────────────── RdmaDevice ◄────────────────────────┘   one per adapter and process: protection
//!                              │                                     domain, limits, counters
//!                              └─ anchor: an identifier that keeps the adapter open
//! ```
//!
//! In whatever order a user drops objects, they are destroyed in the order that the verbs need: every object
//! keeps those alive that it needs. In a forked child nothing is destroyed and nothing can be used, since the
//! adapters are its parent's.

mod address;
mod bindings;
mod connection;
mod device;
mod endpoint;
#[cfg(test)]
mod layout;
mod library;
mod queue;

pub use device::{RdmaDevice, RdmaRegistration, RdmaWindow};
pub use endpoint::RdmaEndpoint;
pub use queue::{RdmaQueue, RdmaShared};

use crate::{Fabric, Listener, TrafficClass, VerbsError};
use bindings::{RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL};
use connection::Connection;
use library::Library;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::time::Duration;

/// Where the kernel lists its adapters.
const ADAPTERS: &str = "/sys/class/infiniband";

/// RDMA of this host.
#[derive(Clone, Copy)]
pub struct RdmaCore {
    library: &'static Library,
}

impl RdmaCore {
    /// Loads the libraries and lists the adapters. Once this has succeeded in a process, it always does.
    ///
    /// # Errors
    /// [`VerbsError::Unavailable`]: what is missing, and how to get it.
    pub fn load() -> Result<RdmaCore, VerbsError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY.get_or_init(Library::load).as_ref();
        let core = RdmaCore { library: library.map_err(|cause| VerbsError::Unavailable(cause.clone()))? };
        core.check_process()?;
        core.library.make_fork_safe();
        check_kernel()?;
        if core.device_names()?.is_empty() {
            let text = "libibverbs has no driver for the kernel's adapters (Debian: ibverbs-providers)";
            return Err(VerbsError::Unavailable(text.to_string()));
        }
        Connection::new(core.library).map_err(|cause| {
            let text = format!("the connection manager is not there (`modprobe rdma_ucm`): {cause}");
            VerbsError::Unavailable(text)
        })?;
        Ok(core)
    }

    fn check_process(&self) -> Result<(), VerbsError> {
        if !self.library.is_forked() {
            return Ok(());
        }
        let text = "this process is the fork of one that uses RDMA; it has to execute a program before it can use it itself";
        Err(VerbsError::Unavailable(text.to_string()))
    }
}

fn check_kernel() -> Result<(), VerbsError> {
    let has_adapters = std::fs::read_dir(ADAPTERS).is_ok_and(|mut adapters| adapters.next().is_some());
    if has_adapters {
        return Ok(());
    }
    let text = format!(
        "the kernel has no RDMA adapter ({ADAPTERS} is empty or missing); load the driver of one, or make one of software \
         with `rdma link add`"
    );
    Err(VerbsError::Unavailable(text))
}

impl Fabric for RdmaCore {
    type Device = RdmaDevice;
    type Queue = RdmaQueue;
    type Shared = RdmaShared;
    type Endpoint = RdmaEndpoint;
    type Listener = RdmaListener;

    fn device_names(&self) -> Result<Vec<String>, VerbsError> {
        let mut count = 0;
        // SAFETY: the list is freed below.
        let list = unsafe { (self.library.ibv_get_device_list)(&mut count) };
        if list.is_null() {
            let text = format!("the adapters cannot be listed: {}", io::Error::last_os_error());
            return Err(VerbsError::Unavailable(text));
        }
        let name = |index| {
            // SAFETY: the list has this many devices, which are live until it is freed.
            unsafe { self.library.text((self.library.ibv_get_device_name)(*list.add(index))) }
        };
        let names = (0..usize::try_from(count).unwrap_or(0)).map(name).collect();
        // SAFETY: it is not used after this.
        unsafe { (self.library.ibv_free_device_list)(list) };
        Ok(names)
    }

    fn resolve(
        &self,
        address: SocketAddr,
        class: TrafficClass,
        timeout: Duration,
    ) -> Result<RdmaEndpoint, VerbsError> {
        self.check_process()?;
        RdmaEndpoint::resolve(self.library, address, class, timeout)
    }

    fn listen(&self, address: SocketAddr, backlog: u32) -> Result<RdmaListener, VerbsError> {
        self.check_process()?;
        let failed = |source| VerbsError::Listen { address, source };
        let connection = Connection::new(self.library).map_err(failed)?;
        connection.bind(address).map_err(failed)?;
        connection.listen(backlog).map_err(failed)?;
        Ok(RdmaListener { connection })
    }
}

/// A listening address.
pub struct RdmaListener {
    connection: Connection,
}

impl Listener for RdmaListener {
    type Endpoint = RdmaEndpoint;

    fn fd(&self) -> RawFd {
        self.connection.fd()
    }

    fn address(&self) -> SocketAddr {
        self.connection.local()
    }

    /// A request that cannot be taken, for lack of descriptors or memory, is rejected.
    fn next(&mut self) -> Result<Option<RdmaEndpoint>, VerbsError> {
        let failed = |source| VerbsError::Listen { address: self.address(), source };
        while let Some(event) = self.connection.next().map_err(failed)? {
            match event.kind {
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    // SAFETY: the identifier is from a request.
                    let connection = unsafe { Connection::from_request(self.connection.library(), event.id) };
                    let endpoint = connection
                        .ok()
                        .and_then(|connection| RdmaEndpoint::new(connection, Some(event)).ok());
                    if endpoint.is_some() {
                        return Ok(endpoint);
                    }
                }
                RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    return Err(failed(io::Error::from_raw_os_error(libc::ENODEV)));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
