//! Pins pages as fixed buffers of io_uring: the cost of registering memory on any machine, without an
//! adapter's part.
//!
//! ```text
//!   register an adapter's memory   look up and pin pages ── enter them in the adapter's tables ── a key
//!   a fixed buffer of io_uring     look up and pin pages ── an entry in the ring's table
//! ```
//!
//! It is a proxy for RDMA. It implements the memory part of the seam to RDMA, so that the same code measures
//! adapters and this, and it refuses everything else. As with adapters, registering fails as a whole if a
//! page is missing (`EFAULT`), and counts against the limit on locked memory.

use io_uring::IoUring;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use weft_verbs::{
    Access, Counters, Device, DeviceEvent, DeviceLimits, LinkLayer, RdmaQueue, RdmaShared, Registration,
    VerbsError, Window,
};

/// Upper limit of buffers: the size of the kernel's table.
const BUFFERS_MAX: u32 = 1 << 14;
/// Upper limit of a buffer's size, from the kernel.
const BUFFER_BYTES_MAX: u64 = 1 << 30;
const NAME: &str = "io_uring";

/// A ring without submissions.
pub struct Pinning {
    table: Arc<Table>,
    limits: DeviceLimits,
    counters: Arc<Counters>,
}

struct Table {
    ring: IoUring,
    free: Mutex<Vec<u32>>,
}

/// Pinned pages.
pub struct Pinned {
    table: Arc<Table>,
    counters: Arc<Counters>,
    place: u32,
}

/// Memory windows, which do not exist here.
pub enum NoWindow {}

impl Pinning {
    /// A ring with room for buffers.
    pub fn new() -> Result<Pinning, String> {
        let ring = IoUring::new(1).map_err(|error| format!("io_uring cannot be used here: {error}"))?;
        let sparse = ring.submitter().register_buffers_sparse(BUFFERS_MAX);
        sparse.map_err(|error| format!("this kernel has no table of fixed buffers: {error}"))?;
        let limits = DeviceLimits {
            link_layer: LinkLayer::Pretended,
            send_pieces_max: 1,
            read_pieces_max: 1,
            send_depth_max: 0,
            reads_out_max: 0,
            reads_in_max: 0,
            shared_receives_max: 0,
            completions_max: 0,
            registrations_max: u64::from(BUFFERS_MAX),
            registration_bytes_max: BUFFER_BYTES_MAX,
            windows: false,
            binds_alone: false,
            on_demand: false,
        };
        let table = Table { ring, free: Mutex::new((0..BUFFERS_MAX).rev().collect()) };
        Ok(Pinning { table: Arc::new(table), limits, counters: Arc::default() })
    }
}

impl Table {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, place: u32, address: usize, bytes: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes };
        // SAFETY: nothing is submitted to the ring, so nothing accesses the pages.
        unsafe { self.ring.submitter().register_buffers_update(place, &[buffer], None) }
    }
}

fn none(what: &'static str) -> VerbsError {
    let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    VerbsError::Device { device: NAME.into(), what, source }
}

impl Device for Pinning {
    type Queue = RdmaQueue;
    type Shared = RdmaShared;
    type Registration = Pinned;
    type Window = NoWindow;

    fn name(&self) -> &str {
        NAME
    }

    fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    unsafe fn register(&self, address: usize, bytes: usize, _: Access) -> Result<Pinned, VerbsError> {
        let refused = |source| VerbsError::Register { device: NAME.into(), address, bytes, source };
        let place = self.table.free().pop();
        let place = place.ok_or_else(|| refused(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        if let Err(error) = self.table.set(place, address, bytes) {
            self.table.free().push(place);
            Counters::add(&self.counters.registrations_refused, 1);
            return Err(refused(error));
        }
        let page_bytes = 4096;
        let pages = (address + bytes).div_ceil(page_bytes) - address / page_bytes;
        Counters::add(&self.counters.registrations, 1);
        Counters::add(&self.counters.registered_pages, pages as u64);
        Ok(Pinned { table: self.table.clone(), counters: self.counters.clone(), place })
    }

    fn window(&self) -> Result<NoWindow, VerbsError> {
        Err(none("create a window"))
    }

    fn completion_queue(&self, _: u32) -> Result<RdmaQueue, VerbsError> {
        Err(none("create a completion queue"))
    }

    fn shared_receives(&self, _: u32) -> Result<RdmaShared, VerbsError> {
        Err(none("create a receive queue"))
    }

    fn event_fd(&self) -> RawFd {
        -1
    }

    fn events(&self) -> Vec<DeviceEvent> {
        Vec::new()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Registration for Pinned {
    fn local_key(&self) -> u32 {
        self.place
    }

    fn remote_key(&self) -> u32 {
        0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // An empty entry unpins its pages. If that fails they are unpinned with the ring.
        if self.table.set(self.place, 0, 0).is_ok() {
            self.table.free().push(self.place);
        }
        Counters::add(&self.counters.deregistrations, 1);
    }
}

impl Window for NoWindow {
    fn next_key(&mut self) -> u32 {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_there_are_pinned_and_others_refused() {
        let Ok(pinning) = Pinning::new() else { return };
        let memory = vec![1u8; 3 * 4096];
        let register = |address: usize, bytes| {
            // SAFETY: nothing accesses the pages.
            unsafe { pinning.register(address, bytes, Access::LOCAL_READ) }
        };
        let pinned = register(memory.as_ptr() as usize, memory.len()).unwrap();
        drop(pinned);
        let error = register(4096, 4096).map(|_| ()).unwrap_err();
        assert!(
            matches!(error, VerbsError::Register { source, .. } if source.raw_os_error() == Some(libc::EFAULT))
        );
        let counts = pinning.counters().counts();
        assert_eq!((counts.registrations, counts.deregistrations, counts.registrations_refused), (1, 1, 1));
        assert!(pinning.completion_queue(1).is_err());
    }
}
