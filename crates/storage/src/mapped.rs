//! Pieces of a data file at addresses of this process: moved by system calls, or copied.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::guard::{self, MemoryGone, WatchedFile};
use crate::window::{WORD_PAGES, Window};

/// How many pieces before its turn a piece is brought into the processor's cache.
const AHEAD: usize = 8;
/// From so many new pages of a word on all of its pages are entered at once.
const DENSE_PAGES: u64 = 16;

/// Pieces of a data file at addresses of this process. They stay mapped while this lives.
pub struct MappedPieces {
    pub(crate) windows: Vec<Arc<Window>>,
    pub(crate) parts: Vec<Part>,
    pub(crate) pages_to_enter: u64,
    /// Windows and their words of which many pages are to be entered, in rising order for each window.
    pub(crate) dense: Vec<(usize, Vec<usize>)>,
}

/// A piece, or the part of it that is in one window.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub window: usize,
    pub start: usize,
    pub bytes: usize,
}

/// How many new pages the parts of a request bring to each word of bitmaps.
#[derive(Default)]
pub(crate) struct NewPages(BTreeMap<(usize, usize), u64>);

impl NewPages {
    /// Of a part that reaches over several words each gets as many as there may be.
    pub fn add(&mut self, part: &Part, new_pages: u64) {
        let word_bytes = WORD_PAGES * guard::page_bytes();
        let words = part.start / word_bytes..=(part.start + part.bytes - 1) / word_bytes;
        for word in words {
            *self.0.entry((part.window, word)).or_default() += new_pages.min(WORD_PAGES as u64);
        }
    }

    /// The words with many, by window.
    pub fn dense(self) -> Vec<(usize, Vec<usize>)> {
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
