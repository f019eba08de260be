//! Mappings for tests.

use std::cell::RefCell;
use std::ptr::null_mut;

use weft_transport::registration::page_bytes;

/// Some pages of private memory, unmapped at the end.
pub struct Pages {
    pub address: u64,
    count: u64,
    /// Pages that are not there any more. Others may have memory in their place.
    holes: RefCell<Vec<u64>>,
}

impl Pages {
    pub fn new(count: u64) -> Pages {
        let address = map(0, count, libc::PROT_READ | libc::PROT_WRITE);
        Pages { address, count, holes: RefCell::default() }
    }

    /// The address of a page.
    pub fn at(&self, page: u64) -> u64 {
        self.address + page * page_bytes()
    }

    pub fn protect(&self, first: u64, count: u64, protection: i32) {
        // SAFETY: pages of the test's own.
        let result = unsafe { libc::mprotect(pointer(self.at(first)), bytes(count), protection) };
        assert_eq!(result, 0);
    }

    /// Leaves a hole.
    pub fn unmap(&self, first: u64, count: u64) {
        unmap(self.at(first), count);
        self.holes.borrow_mut().extend(first..first + count);
    }

    /// Fills a hole of one page, which is too small for anything else to have been mapped there.
    pub fn map_again(&self, page: u64) {
        map(self.at(page), 1, libc::PROT_READ | libc::PROT_WRITE);
        self.holes.borrow_mut().retain(|hole| *hole != page);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let is_there = |page: &u64| !self.holes.borrow().contains(page);
        (0..self.count).filter(is_there).for_each(|page| unmap(self.at(page), 1));
    }
}

pub fn pointer(address: u64) -> *mut libc::c_void {
    address as *mut libc::c_void
}

pub fn bytes(pages: u64) -> usize {
    (pages * page_bytes()) as usize
}

/// Maps pages of private memory, over what is at an address if one is given.
pub fn map(address: u64, pages: u64, protection: i32) -> u64 {
    let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, or one over pages of the test's own.
    let mapped = unsafe { libc::mmap(pointer(address), bytes(pages), protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as u64
}

/// Maps pages of a file in memory.
pub fn map_shared(pages: u64) -> u64 {
    // SAFETY: a name that ends with 0; then a new mapping of the new file.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, bytes(pages) as i64) == 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(null_mut(), bytes(pages), protection, libc::MAP_SHARED, fd, 0);
        assert_ne!(mapped, libc::MAP_FAILED);
        libc::close(fd);
        mapped as u64
    }
}

pub fn unmap(address: u64, pages: u64) {
    // SAFETY: pages of the test's own that nobody uses.
    assert_eq!(unsafe { libc::munmap(pointer(address), bytes(pages)) }, 0);
}
