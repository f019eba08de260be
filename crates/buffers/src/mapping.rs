//! Anonymous memory and views of files.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Memory from `mmap`, unmapped on drop.
pub struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it owns a range of addresses, of which it hands out raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above; `release` needs exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private zeroed memory, committed when touched.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(bytes, flags, -1, 0)
    }

    /// The same, beginning at a multiple of `alignment`, which is a power of two.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> io::Result<Mapping> {
        let larger = Mapping::anonymous(bytes + alignment)?;
        let before = larger.start.align_offset(alignment);
        let aligned = Mapping { start: larger.start.wrapping_add(before), bytes };
        let ends = [(larger.start, before), (aligned.start.wrapping_add(bytes), alignment - before)];
        std::mem::forget(larger);
        for (start, bytes) in ends.into_iter().filter(|(_, bytes)| *bytes > 0) {
            // SAFETY: pages of the larger mapping, which nobody knows, outside the aligned part.
            unsafe { libc::munmap(start.cast(), bytes) };
        }
        Ok(aligned)
    }

    /// A shared view of a file. Addresses beyond the file's end are not backed.
    ///
    /// # Errors
    /// That of `mmap`.
    pub fn of_file(fd: RawFd, offset: i64, bytes: usize) -> io::Result<Mapping> {
        Self::map(bytes, libc::MAP_SHARED, fd, offset)
    }

    fn map(bytes: usize, flags: i32, fd: RawFd, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), bytes })
    }

    /// Where it begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The place at an offset.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes);
        NonNull::new(self.start.wrapping_add(offset)).expect("no mapping begins at zero")
    }

    /// Asks for huge pages; without them all works the same.
    pub(crate) fn prefer_huge_pages(&mut self) {
        // SAFETY: changes no content; the range is this mapping.
        unsafe { libc::madvise(self.start.cast(), self.bytes, libc::MADV_HUGEPAGE) };
    }

    /// Makes the memory of a part present.
    pub(crate) fn populate(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: within this mapping; the call changes no content. A failure (an old kernel, memory that is
        // short) leaves it to the first touch, which is what happens to all other memory.
        unsafe { libc::madvise(self.start.add(offset).cast(), bytes, libc::MADV_POPULATE_WRITE) };
    }

    /// Enters the pages of a part, all by one call. If that fails (before Linux 5.14), their first touch does
    /// it.
    ///
    /// # Panics
    /// If the part is not within the mapping.
    pub fn enter(&self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: the range is within this mapping, and no page's content is changed.
        unsafe { libc::madvise(self.start.add(offset).cast(), bytes, libc::MADV_POPULATE_READ) };
    }

    /// Gives the memory of a part that nobody uses back to the system; it reads as zeros again.
    pub(crate) fn release(&mut self, offset: usize, bytes: usize) {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: the range is within this private anonymous mapping and, by the pool's books, in no
        // buffer. A failure only keeps the memory.
        unsafe { libc::madvise(self.start.add(offset).cast(), bytes, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this struct, and whoever has pointers into it keeps the struct.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
