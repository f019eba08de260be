//! RDMA of a server thread: its ports, and what Weft keeps for each.

use std::rc::Rc;

use weft_rdma::{Port, PortOptions, PortStatus, Ports};
use weft_verbs::{Fabric, VerbsError};

use super::conn::{VerbsConn, Weft};
use super::counts::VerbsTransfers;
use super::options::{PortState, VerbsServerOptions};
use super::peers::VerbsAccepted;
use crate::error::ConnError;

/// An adapter of a server thread, for people.
#[derive(Debug, Clone)]
pub struct VerbsPortStatus {
    /// Of the port below.
    pub port: PortStatus,
    /// How data moved over this thread's connections.
    pub transfers: VerbsTransfers,
    /// Bytes of Fast RDMA buffers that its connections have.
    pub fast_bytes: u64,
}

/// RDMA of one server thread. Clones are the same; when the last is dropped, its connections end.
pub struct VerbsThread<F: Fabric> {
    ports: Ports<F>,
    weft: Weft,
}

impl<F: Fabric> Clone for VerbsThread<F> {
    fn clone(&self) -> Self {
        VerbsThread { ports: self.ports.clone(), weft: self.weft }
    }
}

impl<F: Fabric> VerbsThread<F> {
    /// Adapters are opened when the first connection over them comes.
    pub fn new(options: VerbsServerOptions) -> VerbsThread<F> {
        let ports = Ports::new(PortOptions { windows: options.lends, ..options.port });
        VerbsThread { ports, weft: Weft { options } }
    }

    /// As [`Ports::add_zone`].
    ///
    /// # Errors
    /// As [`Ports::add_zone`].
    ///
    /// # Safety
    /// As [`Ports::add_zone`].
    pub unsafe fn add_zone(&self, address: *mut u8, bytes: usize) -> Result<(), VerbsError> {
        // SAFETY: as the caller promises.
        unsafe { self.ports.add_zone(address, bytes) }
    }

    /// As [`Ports::remove_zone`].
    pub fn remove_zone(&self, address: *mut u8) {
        self.ports.remove_zone(address);
    }

    /// The adapters that connections came over.
    pub fn status(&self) -> Vec<VerbsPortStatus> {
        let status = |port: &Rc<Port<F>>| {
            let state = port.state::<PortState>();
            VerbsPortStatus {
                port: port.status(),
                transfers: state.transfers.counts(),
                fast_bytes: state.fast_bytes.get(),
            }
        };
        self.ports.live().iter().map(status).collect()
    }

    /// Takes a connection; over an adapter that is new to this thread its queues are made first.
    ///
    /// # Errors
    /// There is no room for it, the adapter failed, or the client gave up meanwhile. The client is told where
    /// it can be.
    pub async fn accept(&self, accepted: VerbsAccepted<F>) -> Result<VerbsConn<F>, ConnError> {
        VerbsConn::accept(&self.ports, &self.weft, accepted).await
    }
}
