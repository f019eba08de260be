//! A shared mapping of a part of a data file: its pages at addresses of this process.
//!
//! A window covers [`WINDOW_BYTES`] of a data file from a multiple of it on, whatever the file's size, and knows which of its
//! pages were seen in memory:
//!
//! ```text
//!   data file   |---- window 0 ----|---- window 1 ----|---- wi. 2 (mapped to its end; file ends ->|)
//!   seen        #####..####.#######  ##..............
//! ```
//!
//! A page that is not in memory is left alone: it may have to come from a device, while other clients wait for this thread, and
//! a look at a hole of a tmpfs file fills it with memory. What was seen is forgotten when the file is cut and, as the kernel
//! may need the memory, about every second; a page that went meanwhile costs time, nothing else.
//!
//! **Entering pages.** The first write to a page of a mapping costs more than a copy of it. In memory file systems (tmpfs) the
//! kernel enters many at once, for reading and writing, at a quarter of that (`docs/decisions/0017-what-was-tried-for-speed.md`): where a write needs a good part
//! of a bitmap word's pages they are asked for in one call. Reads enter neighbours as they go and gain nothing by it.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_buffers::Mapping;
use weft_layout::Extent;

use crate::directory::is_in_memory;
use crate::guard;
use crate::limits::WINDOW_BYTES;
use crate::residency;

/// Pages in one word of [`Window::seen`], and words looked up in the kernel at once.
pub(crate) const WORD_PAGES: usize = 64;
const LOOK_WORDS: usize = 4;

/// One window.
pub(crate) struct Window {
    pub mapping: Mapping,
    /// Where it begins in the data file.
    pub offset: u64,
    /// The file is kept in memory.
    pub in_memory_system: bool,
    pub broken: AtomicBool,
    /// A bit for each page: it was in memory when somebody looked.
    seen: Box<[AtomicU64]>,
    /// A bit for each page: it was copied from or to, so that the processor finds it without the kernel's help.
    entered: Box<[AtomicU64]>,
}

impl Window {
    pub fn map(fd: RawFd, offset: u64) -> io::Result<Window> {
        let begin = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        let mapping = Mapping::of_file(fd, begin, WINDOW_BYTES as usize)?;
        let words = mapping.bytes() / guard::page_bytes() / WORD_PAGES;
        let bitmap = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Window {
            mapping,
            offset,
            in_memory_system: is_in_memory(&fd).unwrap_or(false),
            broken: AtomicBool::new(false),
            seen: bitmap(),
            entered: bitmap(),
        })
    }

    /// Whether all pages of a range within the window are in memory, as far as is known.
    pub fn is_in_memory(&self, fd: RawFd, start: usize, bytes: usize) -> bool {
        let page_bytes = guard::page_bytes();
        let (first, last) = (start / page_bytes, (start + bytes - 1) / page_bytes);
        let mut page = first;
        while page <= last {
            let word = page / WORD_PAGES;
            let mask = bits(page % WORD_PAGES, (last - word * WORD_PAGES).min(WORD_PAGES - 1));
            if self.seen[word].load(Ordering::Relaxed) & mask != mask {
                self.look(fd, word, (last / WORD_PAGES + 1).max(word + LOOK_WORDS));
                if self.seen[word].load(Ordering::Relaxed) & mask != mask {
                    return false;
                }
            }
            page = (word + 1) * WORD_PAGES;
        }
        true
    }

    /// How many pages of a range were not entered yet; from now on they count as entered.
    pub fn enter(&self, start: usize, bytes: usize) -> u64 {
        let page_bytes = guard::page_bytes();
        let (first, last) = (start / page_bytes, (start + bytes - 1) / page_bytes);
        let mut new_pages = 0;
        for word in first / WORD_PAGES..=last / WORD_PAGES {
            let begin = word * WORD_PAGES;
            let mask = bits(first.max(begin) - begin, (last - begin).min(WORD_PAGES - 1));
            let missing = mask & !self.entered[word].load(Ordering::Relaxed);
            if missing != 0 {
                self.entered[word].fetch_or(missing, Ordering::Relaxed);
                new_pages += u64::from(missing.count_ones());
            }
        }
        new_pages
    }

    /// Enters all pages of some words, those that are in memory as a whole. What fails is left to the copies.
    pub fn enter_words(&self, words: &[usize]) {
        let word_bytes = WORD_PAGES * guard::page_bytes();
        let whole = |word: &usize| self.seen[*word].load(Ordering::Relaxed) == u64::MAX;
        for run in words.chunk_by(|word, next| word + 1 == *next) {
            for run in run.split(|word| !whole(word)).filter(|run| !run.is_empty()) {
                self.mapping.enter(run[0] * word_bytes, run.len() * word_bytes);
            }
        }
    }

    /// Asks the kernel about the pages of some words: whether all are there, and only if not, which.
    fn look(&self, fd: RawFd, word: usize, end: usize) {
        let end = end.min(self.seen.len());
        let word_bytes = WORD_PAGES * guard::page_bytes();
        let (start, bytes) = (word * word_bytes, (end - word) * word_bytes);
        let extent = Extent { offset: self.offset + start as u64, bytes: bytes as u64 };
        if residency::cached_bytes(fd, extent) == Some(extent.bytes) {
            self.seen[word..end].iter().for_each(|seen| seen.store(u64::MAX, Ordering::Relaxed));
            return;
        }
        let mut pages = vec![0u8; (end - word) * WORD_PAGES];
        // SAFETY: the range is within the mapping, and the vector has a byte for each of its pages.
        let known =
            unsafe { libc::mincore(self.mapping.as_ptr().add(start).cast(), bytes, pages.as_mut_ptr()) };
        if known == 0 {
            for (seen, pages) in self.seen[word..end].iter().zip(pages.chunks(WORD_PAGES)) {
                let bit = |(at, page): (usize, &u8)| u64::from(page & 1) << at;
                seen.store(
                    pages.iter().enumerate().map(bit).fold(0, |all, bit| all | bit),
                    Ordering::Relaxed,
                );
            }
        }
    }

    pub fn forget_seen(&self) {
        self.seen.iter().for_each(|seen| seen.store(0, Ordering::Relaxed));
    }
}

/// Bits `first` to `last` of a word.
fn bits(first: usize, last: usize) -> u64 {
    (u64::MAX << first) & (u64::MAX >> (WORD_PAGES - 1 - last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_entered_once() {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let window = Window::map(file.as_raw_fd(), 0).unwrap();
        let page = guard::page_bytes();
        assert_eq!(window.enter(10, 10), 1);
        assert_eq!(window.enter(page - 1, 2), 1);
        assert_eq!(window.enter(0, 130 * page), 128);
        assert_eq!(window.enter(0, 130 * page), 0);
    }

    #[test]
    fn masks_have_the_bits_from_first_to_last() {
        assert_eq!(bits(0, 63), u64::MAX);
        assert_eq!(bits(3, 5), 0b11_1000);
        assert_eq!(bits(63, 63), 1 << 63);
    }
}
