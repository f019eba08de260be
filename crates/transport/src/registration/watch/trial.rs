//! Trying out, on a few pages, everything that watching relies on.

use std::ptr::null_mut;
use std::sync::Arc;

use super::{Change, PageRange, Watcher, page_bytes};

/// Says what is different.
pub fn run(watcher: &Arc<Watcher>) -> Result<(), &'static str> {
    let pages = Pages::map(8).ok_or("no memory")?;
    let mut seen = 0;
    expect(!watcher.inner.is_changing(), "it always seems to change")?;
    expect(watcher.inner.ask(&pages.range(0, 8)) == libc::ENOENT, "memory seems to be watched always")?;
    let watch = watcher.watch(pages.range(0, 8)).ok_or("memory cannot be watched")?;
    expect(watcher.next_change(&mut seen).is_none(), "it tells of nothing")?;
    // SAFETY: pages of this function's own, which nobody uses.
    unsafe {
        libc::munmap(pages.at(1), pages.bytes(1));
        let told = Some(Change::Unmapped(pages.range(1, 2)));
        expect(watcher.next_change(&mut seen) == told, "it does not tell of munmap")?;
        expect(watcher.inner.ask(&pages.range(0, 8)) == libc::ENOENT, "holes seem to be watched")?;
        expect(!watcher.is_watched_as_a_whole(&pages.range(0, 8)), "holes seem to be watched")?;
        expect(watcher.is_one_watched(&pages.range(2, 8)), "what is left is not watched")?;
        libc::madvise(pages.at(2), pages.bytes(1), libc::MADV_DONTNEED);
        let told = Some(Change::Emptied(pages.range(2, 3)));
        expect(watcher.next_change(&mut seen) == told, "it does not tell of madvise")?;
        let (move_to, flags) = (pages.at(1), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        libc::mremap(pages.at(3), pages.bytes(1), pages.bytes(1), flags, move_to);
        let told = Some(Change::Unmapped(pages.range(3, 4)));
        expect(watcher.next_change(&mut seen) == told, "it does not tell of mremap")?;
    }
    expect(watcher.settle(), "it does not settle")?;
    watch.end(None);
    expect(watcher.inner.ask(&pages.range(4, 8)) == libc::ENOENT, "watching does not end")
}

fn expect(is_so: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if is_so { Ok(()) } else { Err(otherwise) }
}

/// A few new pages.
struct Pages {
    base: *mut libc::c_void,
    count: usize,
}

impl Pages {
    fn map(count: usize) -> Option<Pages> {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = count * page_bytes() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), bytes, read_write, private, -1, 0) };
        (base != libc::MAP_FAILED).then_some(Pages { base, count })
    }

    fn bytes(&self, pages: usize) -> usize {
        pages * page_bytes() as usize
    }

    fn at(&self, page: usize) -> *mut libc::c_void {
        self.base.wrapping_byte_add(self.bytes(page))
    }

    fn range(&self, first: usize, end: usize) -> PageRange {
        PageRange { start: self.at(first) as u64, end: self.at(end) as u64 }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nobody uses them. Other threads cannot have mapped anything there: only one page was ever unmapped, and was
        // mapped again.
        unsafe { libc::munmap(self.base, self.bytes(self.count)) };
    }
}
