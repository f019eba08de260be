//! Memory of its own mapping, so that what is around it is not mapped.

/// Zeroed pages, unmapped when dropped.
pub struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// Writable pages.
    pub fn new(bytes: usize) -> Mapping {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the system likes.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "mmap");
        Mapping { address: address as usize, bytes }
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its bytes as they are now. Adapters change them behind the compiler's back, so each look is a copy.
    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.bytes);
        let start = (self.address + offset) as *const u8;
        // SAFETY: within the mapping; volatile, as somebody else may write.
        (0..bytes).map(|index| unsafe { start.add(index).read_volatile() }).collect()
    }

    /// Puts bytes into it.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        let start = (self.address + offset) as *mut u8;
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: within the mapping; volatile, as somebody else may read.
            unsafe { start.add(index).write_volatile(*byte) };
        }
    }

    /// Makes it unwritable.
    pub fn make_read_only(&self) {
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::mprotect(self.address as *mut _, self.bytes, libc::PROT_READ) }, 0);
    }

    /// Unmaps a page and maps another in its place.
    pub fn replace_page(&self, offset: usize) {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let page = (self.address + offset) as *mut _;
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::mmap(page, 4096, protection, flags, -1, 0) }, page);
    }

    /// Puts a hole of a page into it.
    pub fn unmap_page(&self, offset: usize) {
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::munmap((self.address + offset) as *mut _, 4096) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.address as *mut _, self.bytes) };
    }
}
