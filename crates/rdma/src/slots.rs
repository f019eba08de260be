//! Internal buffers: registered once, cut into slots of one size, never moved.

use std::io;
use std::ptr::NonNull;

use weft_verbs::{Access, Device, MemoryPiece, Registration, VerbsError};

/// Anonymous memory of whole pages. A forked child does not have it: the adapter of the parent knows these
/// very pages, and they must not become copies.
struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory, reached only through raw pointers whose users see to their own order.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> io::Result<Pages> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping that was just made. Where it fails a child has pages that it does not use.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) };
        Ok(Pages { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?, bytes })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` has mapped; its registration is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Registered slots of equal size.
pub struct Slots<D: Device> {
    // Before the pages, which it needs.
    registration: D::Registration,
    pages: Pages,
    slot_bytes: usize,
    count: usize,
}

impl<D: Device> Slots<D> {
    /// `count` slots of `slot_bytes`, at least one.
    pub fn new(device: &D, slot_bytes: usize, count: usize, access: Access) -> Result<Self, VerbsError> {
        let count = count.max(1);
        let pages = Pages::new(slot_bytes * count).map_err(|source| VerbsError::Device {
            device: device.name().into(),
            what: "get memory for its internal buffers",
            source,
        })?;
        // SAFETY: the pages are this struct's alone, unmapped after the registration has ended, and only
        // reached through raw pointers.
        let registration =
            unsafe { device.register(pages.base.as_ptr() as usize, slot_bytes * count, access) }?;
        Ok(Slots { registration, pages, slot_bytes, count })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The key of peers for all of them; 0 without remote access.
    pub fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    /// Where a slot begins.
    pub fn base(&self, slot: usize) -> NonNull<u8> {
        debug_assert!(slot < self.count);
        // SAFETY: within the pages.
        unsafe { self.pages.base.add(slot * self.slot_bytes) }
    }

    /// The first `bytes` of a slot, for work requests.
    pub fn piece(&self, slot: usize, bytes: usize) -> MemoryPiece {
        debug_assert!(bytes <= self.slot_bytes);
        let address = self.base(slot).as_ptr() as u64;
        MemoryPiece { address, bytes: bytes as u32, local_key: self.registration.local_key() }
    }

    /// What is in a slot, up to `bytes`.
    ///
    /// # Safety
    /// Nothing is written to the slot, by this process or an adapter, as long as the slice is used.
    pub unsafe fn read<'a>(&self, slot: usize, bytes: usize) -> &'a [u8] {
        let bytes = bytes.min(self.slot_bytes);
        // SAFETY: within the pages, which outlive every use of a slot.
        unsafe { std::slice::from_raw_parts(self.base(slot).as_ptr(), bytes) }
    }

    /// A slot to be filled.
    ///
    /// # Safety
    /// Nobody else uses the slot as long as the slice is used.
    pub unsafe fn fill<'a>(&self, slot: usize) -> &'a mut [u8] {
        // SAFETY: within the pages.
        unsafe { std::slice::from_raw_parts_mut(self.base(slot).as_ptr(), self.slot_bytes) }
    }
}
