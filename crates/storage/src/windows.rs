//! The windows of data files that are mapped at the moment (`window.rs`): those that were not used for longest make room.
//!
//! **Pages may vanish** when the file is cut. System calls then say `EFAULT`; copies of our own go through
//! [`guard`](crate::guard).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_layout::Extent;

use crate::handles::RecentlyUsed;
use crate::limits::WINDOW_BYTES;
use crate::mapped::{MappedPieces, NewPages, Part};
use crate::window::Window;

/// The place of a window: the inode number, the opening of the data file, the window's index.
type Key = (u64, u64, u64);

pub(crate) struct Windows {
    state: Mutex<State>,
}

struct State {
    recent: RecentlyUsed<Key, Window>,
    last_shrink: u64,
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
