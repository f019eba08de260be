//! Trying out, on a few pages, everything that watching relies on.

use std::ptr::null_mut;
use std::sync::Arc;

use super::{Change, PageRange, Watcher, page_bytes};

/// Says what is different.
pub fn run(watcher: &Arc<Watcher>) -> Result<(), &'static str> {
    let pages = Pages::map().ok_or("no memory")?;
    let mut seen = 0;
    let mut is_next = |change| watcher.next_change(&mut seen) == change;
    expect(!watcher.inner.is_changing(), "it always seems to change")?;
    expect(watcher.inner.ask(&pages.range(0, PAGES)) == libc::ENOENT, "memory seems to be watched always")?;
    let watch = watcher.watch(pages.range(0, PAGES)).ok_or("memory cannot be watched")?;
    expect(is_next(None), "it tells of nothing")?;
    // SAFETY: pages of this function's own, which nobody uses.
    unsafe {
        libc::munmap(pages.at(HOLE), pages.bytes(1));
        expect(is_next(Some(Change::Unmapped(pages.range(HOLE, PAGES)))), "it does not tell of munmap")?;
        expect(watcher.inner.ask(&pages.range(0, PAGES)) == libc::ENOENT, "holes seem to be watched")?;
        expect(watcher.watch(pages.range(0, PAGES)).is_none(), "holes seem to be watched")?;
        expect(watcher.is_one_watched(&pages.range(0, HOLE)), "what is left is not watched")?;
        libc::madvise(pages.at(1), pages.bytes(1), libc::MADV_DONTNEED);
        expect(is_next(Some(Change::Emptied(pages.range(1, 2)))), "it does not tell of madvise")?;
        let (target, flags) = (pages.at(4), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        libc::mremap(pages.at(MOVED), pages.bytes(1), pages.bytes(1), flags, target);
        expect(
            is_next(Some(Change::Unmapped(pages.range(4, 5)))),
            "it does not tell of what mremap replaces",
        )?;
        let moved = pages.range(MOVED, MOVED + 1);
        expect(is_next(Some(Change::Unmapped(moved))), "it does not tell of mremap")?;
    }
    expect(watcher.settle(), "it does not settle")?;
    watch.end();
    watcher.inner.unwatch_left();
    expect(watcher.inner.ask(&pages.range(4, 5)) == libc::ENOENT, "watching does not end")
}

fn expect(is_so: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if is_so { Ok(()) } else { Err(otherwise) }
}

const PAGES: usize = 6;
/// The page that is moved to the place of the fourth, and the one that is unmapped. Other threads may have
/// memory there at once.
const MOVED: usize = 2;
const HOLE: usize = 5;

/// A few new pages.
struct Pages {
    base: *mut libc::c_void,
}

impl Pages {
    fn map() -> Option<Pages> {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = PAGES * page_bytes() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), bytes, read_write, private, -1, 0) };
        (base != libc::MAP_FAILED).then_some(Pages { base })
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
        // SAFETY: nobody uses them. If the trial was broken off, some may stay.
        unsafe {
            libc::munmap(self.at(0), self.bytes(MOVED));
            libc::munmap(self.at(MOVED + 1), self.bytes(HOLE - MOVED - 1));
        }
    }
}
