//! Cached shared mappings of data files: their pages at addresses of this process.
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
//!
//! **Pages may vanish** when the file is cut. System calls then say `EFAULT`; copies of our own go through
//! [`guard`](crate::guard).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_buffers::Mapping;
use weft_layout::Extent;

use crate::directory::is_in_memory;
use crate::guard::{self, MemoryGone, WatchedFile};
use crate::handles::RecentlyUsed;
use crate::limits::WINDOW_BYTES;
use crate::residency;

/// The place of a window: the inode number, the opening of the data file, the window's index.
type Key = (u64, u64, u64);

/// Pages in one word of [`Window::seen`], and words looked up in the kernel at once.
const WORD_PAGES: usize = 64;
const LOOK_WORDS: usize = 4;
/// How many pieces before its turn a piece is brought into the processor's cache.
const AHEAD: usize = 8;
/// From so many new pages of a word on all of its pages are entered at once.
const DENSE_PAGES: u64 = 16;

pub(crate) struct Windows {
    state: Mutex<State>,
}

struct State {
    recent: RecentlyUsed<Key, Window>,
    last_shrink: u64,
}

/// One window.
pub(crate) struct Window {
    mapping: Mapping,
    /// Where it begins in the data file.
    offset: u64,
    /// The file is kept in memory.
    in_memory_system: bool,
    broken: AtomicBool,
    /// A bit for each page: it was in memory when somebody looked.
    seen: Box<[AtomicU64]>,
    /// A bit for each page: it was copied from or to, so that the processor finds it without the kernel's help.
    entered: Box<[AtomicU64]>,
}

impl Window {
    fn map(fd: RawFd, offset: u64) -> io::Result<Window> {
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
    fn is_in_memory(&self, fd: RawFd, start: usize, bytes: usize) -> bool {
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
    fn enter(&self, start: usize, bytes: usize) -> u64 {
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
    fn enter_words(&self, words: &[usize]) {
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

    fn forget_seen(&self) {
        self.seen.iter().for_each(|seen| seen.store(0, Ordering::Relaxed));
    }
}

/// Bits `first` to `last` of a word.
fn bits(first: usize, last: usize) -> u64 {
    (u64::MAX << first) & (u64::MAX >> (WORD_PAGES - 1 - last))
}

/// Pieces of a data file at addresses of this process. They stay mapped while this lives.
pub struct MappedPieces {
    windows: Vec<Arc<Window>>,
    parts: Vec<Part>,
    pages_to_enter: u64,
    /// Windows and their words of which many pages are to be entered, in rising order for each window.
    dense: Vec<(usize, Vec<usize>)>,
}

/// A piece, or the part of it that is in one window.
#[derive(Clone, Copy)]
struct Part {
    window: usize,
    start: usize,
    bytes: usize,
}

/// How many new pages the parts of a request bring to each word of bitmaps.
#[derive(Default)]
struct NewPages(BTreeMap<(usize, usize), u64>);

impl NewPages {
    /// Of a part that reaches over several words each gets as many as there may be.
    fn add(&mut self, part: &Part, new_pages: u64) {
        let word_bytes = WORD_PAGES * guard::page_bytes();
        let words = part.start / word_bytes..=(part.start + part.bytes - 1) / word_bytes;
        for word in words {
            *self.0.entry((part.window, word)).or_default() += new_pages.min(WORD_PAGES as u64);
        }
    }

    /// The words with many, by window.
    fn dense(self) -> Vec<(usize, Vec<usize>)> {
        let mut dense: Vec<(usize, Vec<usize>)> = Vec::new();
        for ((window, word), _) in self.0.into_iter().filter(|(_, pages)| *pages >= DENSE_PAGES) {
            match dense.last_mut() {
                Some((last, words)) if *last == window => words.push(word),
                _ => dense.push((window, vec![word])),
            }
        }
        dense
    }
}

impl MappedPieces {
    /// Pages that nobody has copied from or to since they were mapped: the kernel has to enter them first.
    pub fn pages_to_enter(&self) -> u64 {
        self.pages_to_enter
    }

    /// Where they are, in order. For system calls only, which say so where a page is gone; see also
    /// [`MappedPieces::is_whole`].
    pub fn addresses(&self) -> Vec<(NonNull<u8>, usize)> {
        let address = |part: &Part| {
            let base =
                NonNull::new(self.windows[part.window].mapping.as_ptr()).expect("a mapping is not at 0");
            // SAFETY: the part is within its window.
            (unsafe { base.add(part.start) }, part.bytes)
        };
        self.parts.iter().map(address).collect()
    }

    /// Whether what was moved from or to the pages until now was moved from or to the file. Look after moving.
    pub fn is_whole(&self) -> bool {
        self.windows.iter().all(|window| !window.broken.load(Ordering::SeqCst))
    }

    /// The same, parted where one mapping ends and another begins, to be filled by whom may touch the pages.
    pub fn runs(&self) -> impl Iterator<Item = MappedRun<'_>> {
        let mut addresses = self.addresses().into_iter();
        self.parts.chunk_by(|one, next| one.window == next.window).map(move |parts| MappedRun {
            window: &self.windows[parts[0].window],
            rest: addresses.by_ref().take(parts.len()).collect(),
            filled: 0,
        })
    }

    /// Copies them, one behind the other, into pieces of memory. False: a page was gone, and the copy is worth nothing.
    ///
    /// # Errors
    /// A page of the memory is gone.
    ///
    /// # Safety
    /// The memory is mapped and writable for the time, is no part of these pages, and is as long as they are together.
    pub unsafe fn copy_to(&self, memory: &[(NonNull<u8>, usize)]) -> Result<bool, MemoryGone> {
        // SAFETY: `both_sides` gives addresses within both sides and equal lengths.
        self.both_sides(memory, |file, memory, bytes| unsafe {
            std::ptr::copy_nonoverlapping(file, memory, bytes);
        })
    }

    /// The other way.
    ///
    /// # Errors
    /// A page of the memory is gone.
    ///
    /// # Safety
    /// As for [`MappedPieces::copy_to`], but readable.
    pub unsafe fn copy_from(&self, memory: &[(NonNull<u8>, usize)]) -> Result<bool, MemoryGone> {
        self.enter_to_write();
        // SAFETY: as above.
        self.both_sides(memory, |file, memory, bytes| unsafe {
            std::ptr::copy_nonoverlapping(memory.cast_const(), file, bytes);
        })
    }

    /// Enters pages, many at once, where that is cheaper than to have the first write to each do it. To be called before the
    /// addresses are written to.
    pub fn enter_to_write(&self) {
        for (window, words) in &self.dense {
            self.windows[*window].enter_words(words);
        }
    }

    fn both_sides(
        &self,
        pieces: &[(NonNull<u8>, usize)],
        mut copy: impl FnMut(*mut u8, *mut u8, usize),
    ) -> Result<bool, MemoryGone> {
        let mut memory = pieces.iter().copied();
        let (mut base, mut left) = (NonNull::dangling(), 0);
        let mut at = 0;
        while let Some(window) = self.parts.get(at).map(|part| part.window) {
            let Window { mapping, broken, .. } = &*self.windows[window];
            let file = WatchedFile { begin: mapping.as_ptr(), bytes: mapping.bytes(), broken };
            guard::watch(Some(file), pieces, || {
                while let Some(Part { start, bytes, .. }) =
                    self.parts.get(at).filter(|part| part.window == window)
                {
                    if let Some(soon) = self.parts.get(at + AHEAD) {
                        prefetch(self.windows[soon.window].mapping.as_ptr().wrapping_add(soon.start));
                    }
                    at += 1;
                    let (start, bytes) = (*start, *bytes);
                    let mut done = 0;
                    while done < bytes {
                        if left == 0 {
                            (base, left) = memory.next().expect("the memory is as long as the pieces");
                        }
                        let count = left.min(bytes - done);
                        // SAFETY: within the window, and within the memory's piece.
                        let (file, here) = unsafe { (mapping.as_ptr().add(start + done), base.as_ptr()) };
                        copy(file, here, count);
                        // SAFETY: at most the end of the piece.
                        base = unsafe { base.add(count) };
                        left -= count;
                        done += count;
                    }
                }
            })?;
        }
        Ok(self.is_whole())
    }
}

/// Pieces of a data file in one mapping, filled from the first one on.
pub struct MappedRun<'a> {
    window: &'a Window,
    /// What is not filled, behind pieces that are.
    rest: Vec<(NonNull<u8>, usize)>,
    /// Pieces that are filled.
    filled: usize,
}

impl MappedRun<'_> {
    /// Whether nothing is left to be filled.
    pub fn is_full(&self) -> bool {
        self.filled == self.rest.len()
    }

    /// Runs `fill`, which writes to what is left, from its front on, and says how many bytes. It may touch the pages: one that
    /// is gone harms nobody, and shows in [`MappedPieces::is_whole`].
    ///
    /// # Errors
    /// That of `fill`.
    pub fn fill<E>(
        &mut self,
        fill: impl FnOnce(&[(NonNull<u8>, usize)]) -> Result<u64, E>,
    ) -> Result<u64, E> {
        let Window { mapping, broken, .. } = self.window;
        let file = WatchedFile { begin: mapping.as_ptr(), bytes: mapping.bytes(), broken };
        let rest = &mut self.rest[self.filled..];
        let bytes = guard::watch(Some(file), &[], || fill(rest)).expect("no other memory is watched")?;
        let mut left = bytes as usize;
        for (base, length) in rest {
            let part = left.min(*length);
            // SAFETY: at most the end of the piece.
            (*base, *length) = (unsafe { base.add(part) }, *length - part);
            if *length > 0 {
                break;
            }
            left -= part;
            self.filled += 1;
        }
        Ok(bytes)
    }
}

/// Has a processor bring memory into its cache, if it can: small pieces from anywhere wait for little else.
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Windows {
    pub(crate) fn new(capacity: usize) -> Self {
        Windows { state: Mutex::new(State { recent: RecentlyUsed::new(capacity), last_shrink: 0 }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces of an open data file, if all of them are in memory; `None` if not, or if all windows are in use, or the
    /// kernel does not map this file.
    pub(crate) fn pieces(
        &self,
        ino: u64,
        opening: u64,
        fd: RawFd,
        pieces: &[Extent],
    ) -> Option<MappedPieces> {
        let mut windows: Vec<Arc<Window>> = Vec::new();
        let mut parts = Vec::with_capacity(pieces.len());
        let mut pages_to_enter = 0;
        let mut by_word = NewPages::default();
        for piece in pieces {
            let (mut offset, end) = (piece.offset, piece.end());
            while offset < end {
                let start = offset % WINDOW_BYTES;
                let bytes = (end - offset).min(WINDOW_BYTES - start);
                let window = match windows.iter().position(|window| window.offset == offset - start) {
                    Some(known) => known,
                    None => {
                        windows.push(self.get((ino, opening, offset / WINDOW_BYTES), fd)?);
                        windows.len() - 1
                    }
                };
                let part = Part { window, start: start as usize, bytes: bytes as usize };
                if !windows[window].is_in_memory(fd, part.start, part.bytes) {
                    return None;
                }
                let new_pages = windows[window].enter(part.start, part.bytes);
                if new_pages > 0 && windows[window].in_memory_system {
                    by_word.add(&part, new_pages);
                }
                pages_to_enter += new_pages;
                parts.push(part);
                offset += bytes;
            }
        }
        Some(MappedPieces { windows, parts, pages_to_enter, dense: by_word.dense() })
    }

    fn get(&self, key: Key, fd: RawFd) -> Option<Arc<Window>> {
        let mut state = self.state();
        if let Some(window) = state.recent.get(key).filter(|window| !window.broken.load(Ordering::SeqCst)) {
            return Some(window);
        }
        let broken = state.recent.remove(key);
        let (room, old) = state.recent.make_room();
        let window = if room { Window::map(fd, key.2 * WINDOW_BYTES).ok().map(Arc::new) } else { None };
        if let Some(window) = &window {
            state.recent.insert(key, window.clone());
        }
        drop(state);
        drop((broken, old));
        window
    }

    /// Forgets the windows of a file: so that its space comes free when it is removed, and nothing is taken to be in memory
    /// after it was cut.
    pub(crate) fn forget(&self, ino: u64) {
        let removed = self.state().recent.remove_where(|key| key.0 == ino);
        drop(removed);
    }

    /// Unmaps windows that were not used since the last call, and forgets what was seen in the others.
    pub(crate) fn shrink_idle(&self) {
        let mut state = self.state();
        let since = state.last_shrink;
        let removed = state.recent.remove_unused_since(since);
        state.recent.for_each(Window::forget_seen);
        state.last_shrink = state.recent.time();
        drop(state);
        drop(removed);
    }

    pub(crate) fn len(&self) -> usize {
        self.state().recent.len()
    }
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

    /// A cached file of 1 MiB, and two pieces of it at addresses.
    fn mapped_pieces() -> (std::fs::File, MappedPieces) {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![0; 1 << 20], 0).unwrap();
        let pieces = [Extent::new(10, 100), Extent::new(5000, 50)];
        let mapped = Windows::new(2).pieces(1, 1, file.as_raw_fd(), &pieces).unwrap();
        (file, mapped)
    }

    #[test]
    fn a_run_is_filled_from_its_front_as_bytes_come() {
        use std::os::unix::fs::FileExt;
        let (file, mapped) = mapped_pieces();
        let mut run = mapped.runs().next().unwrap();
        let mut next = 0;
        while !run.is_full() {
            let filled = run.fill(|pieces| {
                let (base, bytes) = pieces[0];
                let part = bytes.min(40);
                for at in 0..part {
                    // SAFETY: within the piece.
                    unsafe { base.add(at).write(next) };
                    next += 1;
                }
                Ok::<_, ()>(part as u64)
            });
            assert!(filled.unwrap() > 0);
        }
        assert!(mapped.is_whole() && mapped.runs().count() == 1);
        let mut content = vec![0; 5050];
        file.read_exact_at(&mut content, 0).unwrap();
        assert!(content[10..110].iter().copied().eq(0..100));
        assert!(content[5000..].iter().copied().eq(100..150));
    }

    #[test]
    fn a_page_that_goes_while_it_is_filled_shows_and_kills_nobody() {
        let (file, mapped) = mapped_pieces();
        file.set_len(0).unwrap();
        let mut run = mapped.runs().next().unwrap();
        // SAFETY: in the first piece.
        let filled = run.fill(|pieces| unsafe {
            pieces[0].0.write(1);
            Ok::<_, ()>(1)
        });
        assert_eq!(filled, Ok(1));
        assert!(!mapped.is_whole());
    }
}
