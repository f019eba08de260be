//! Which bytes of a file are in the page cache: `cachestat(2)`, Linux 6.5.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_layout::Extent;

use crate::directory::size_of_file;
use crate::guard::page_bytes;

/// The system call's number, the same on every architecture but Alpha.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages that are cached of those that `extent` touches. `None` where the kernel cannot tell. A hole that was never read
/// counts as not cached.
fn cached_pages(fd: RawFd, extent: Extent) -> Option<u64> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if MISSING.load(Ordering::Relaxed) {
        return None;
    }
    let range = CachestatRange { offset: extent.offset, bytes: extent.bytes };
    let mut counts = Cachestat::default();
    // SAFETY: both structs are live and laid out as the kernel's; the last argument is its flags.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd, &range, &mut counts, 0u32) };
    if result != 0 {
        MISSING.store(true, Ordering::Relaxed);
        return None;
    }
    Some(counts.cached)
}

/// Bytes of whole pages that are cached of those that `extent` touches. `None` where the kernel cannot tell.
pub(crate) fn cached_bytes(fd: RawFd, extent: Extent) -> Option<u64> {
    cached_pages(fd, extent).map(|pages| pages * page_bytes() as u64)
}

/// Whether the part of `extent` that the file has is cached as a whole. `false` where the kernel cannot tell.
pub(crate) fn is_cached(file: &File, extent: Extent) -> bool {
    if extent.bytes == 0 {
        return true;
    }
    let Some(cached) = cached_pages(file.as_raw_fd(), extent) else { return false };
    if cached >= pages(extent.offset, extent.end()) {
        return true;
    }
    // Pages beyond the end are never cached: compare with those that exist.
    let Ok(size) = size_of_file(file) else { return false };
    let end = extent.end().min(size);
    end <= extent.offset || cached >= pages(extent.offset, end)
}

fn pages(begin: u64, end: u64) -> u64 {
    let page = page_bytes() as u64;
    end.div_ceil(page) - begin / page
}
