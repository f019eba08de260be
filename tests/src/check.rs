//! What the checker (tests/tests/checker.rs) and its processes (`weft-check`) have in common.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The file that all work on at once, each in regions of its own.
pub const SHARED: &str = "shared";
/// A region: whole pages, since a page has one owner where it is mapped; and never whole strips.
pub const REGION_BYTES: u64 = 27 * 4096;
/// Regions of the shared file.
pub const REGIONS: u64 = 20;

/// The file that belongs to one process for a round.
pub fn own_name(index: u64) -> String {
    format!("own{index}")
}

/// A part of a file in memory; unmapped when dropped.
pub struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    /// Changes go to the file.
    pub fn shared(file: &File, offset: u64, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(file, offset, bytes, libc::MAP_SHARED)
    }

    /// Changes stay here.
    pub fn private(file: &File, offset: u64, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(file, offset, bytes, libc::MAP_PRIVATE)
    }

    fn new(file: &File, offset: u64, bytes: usize, flags: i32) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping, where the kernel wants it.
        let address = unsafe { libc::mmap(null, bytes, protection, flags, fd, offset as i64) };
        if address == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Mapping { address, bytes })
        }
    }

    /// A copy of what is there.
    ///
    /// # Panics
    /// If it is not all in the mapping.
    pub fn get(&self, at: usize, bytes: usize) -> Vec<u8> {
        assert!(at + bytes <= self.bytes);
        let mut data = vec![0; bytes];
        // SAFETY: within the mapping; `data` is as long.
        unsafe { std::ptr::copy_nonoverlapping(self.address.cast::<u8>().add(at), data.as_mut_ptr(), bytes) };
        data
    }

    /// Changes what is there.
    ///
    /// # Panics
    /// If it is not all in the mapping.
    pub fn put(&mut self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.bytes);
        // SAFETY: within the mapping, which is writable.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.cast::<u8>().add(at), data.len())
        };
    }

    /// Has the file have what was changed.
    ///
    /// # Errors
    /// That of msync(2).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping itself.
        match unsafe { libc::msync(self.address, self.bytes, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping itself, which nobody uses any more.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}
