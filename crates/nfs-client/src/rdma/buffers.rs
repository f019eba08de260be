//! Buffers of a link's own that stay registered: for long calls, long replies, and data that are copied.

use std::sync::Arc;

use weft_rdma::Slots;
use weft_verbs::{Access, Device, MemoryPiece, VerbsError};

/// The smallest buffer.
const BYTES_MIN: usize = 64 << 10;
/// Free buffers that are kept.
const KEPT: usize = 16;

/// Buffers, of sizes that are powers of two.
pub(super) struct Buffers<D: Device> {
    device: Arc<D>,
    access: Access,
    free: Vec<Buffer<D>>,
}

/// Registered memory of the link's.
pub(super) struct Buffer<D: Device> {
    slot: Slots<D>,
    bytes: usize,
}

impl<D: Device> Buffers<D> {
    /// `windows`: peers get at them by windows only.
    pub(super) fn new(device: Arc<D>, windows: bool) -> Buffers<D> {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let access = Access::LOCAL_WRITE | if windows { Access::WINDOW_BIND } else { remote };
        Buffers { device, access, free: Vec::new() }
    }

    /// One with room for so many bytes: the smallest that is free, or a new one.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Buffer<D>, VerbsError> {
        let fits = self.free.iter().enumerate().filter(|(_, buffer)| buffer.bytes >= bytes);
        if let Some((at, _)) = fits.min_by_key(|(_, buffer)| buffer.bytes) {
            return Ok(self.free.swap_remove(at));
        }
        let bytes = bytes.max(BYTES_MIN).next_power_of_two();
        Ok(Buffer { slot: Slots::new(&*self.device, bytes, 1, self.access)?, bytes })
    }

    /// Takes back one that no work and no peer uses.
    pub(super) fn give_back(&mut self, buffer: Buffer<D>) {
        if self.free.len() < KEPT {
            self.free.push(buffer);
        }
    }
}

impl<D: Device> Buffer<D> {
    /// The first `bytes`, for work requests.
    pub(super) fn piece(&self, bytes: usize) -> MemoryPiece {
        self.slot.piece(0, bytes)
    }

    /// The key of peers; 0 where they get at it by windows.
    pub(super) fn remote_key(&self) -> u32 {
        self.slot.remote_key()
    }

    /// # Safety
    /// Nobody else uses it as long as the slice is used.
    pub(super) unsafe fn fill(&mut self) -> &mut [u8] {
        // SAFETY: as the caller promises.
        unsafe { self.slot.fill(0) }
    }

    /// # Safety
    /// Nobody writes to it as long as the slice is used.
    pub(super) unsafe fn read(&self, bytes: usize) -> &[u8] {
        // SAFETY: as the caller promises.
        unsafe { self.slot.read(0, bytes) }
    }
}
