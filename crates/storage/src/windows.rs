//! Cached shared mappings of data files, for copies that the kernel makes between a data file's pages
//! and another process (`process_vm_writev`, `process_vm_readv`).
//!
//! A window covers [`WINDOW_BYTES`] of a data file from a multiple of it on, whatever the file's size:
//!
//! ```text
//!   data file   |---- window 0 ----|---- window 1 ----|---- wi. 2 (mapped to its end; file ends ->|)
//! ```
//!
//! **The pointers are never dereferenced by our code.** A data file may be cut at any time, and memory
//! beyond its end raises SIGBUS when touched by a program. A system call given such an address says
//! `EFAULT` or moves less instead, and the caller then goes the ordinary way.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffers::Mapping;
use crate::handles::RecentlyUsed;
use crate::limits::WINDOW_BYTES;

/// The place of a window: the inode number, the opening of the data file, the window's index.
type Key = (u64, u64, u64);

pub(crate) struct Windows {
    state: Mutex<State>,
}

struct State {
    recent: RecentlyUsed<Key, Mapping>,
    last_shrink: u64,
}

/// A part of a data file at an address of this process. The mapping stays while this lives.
#[derive(Clone)]
pub struct MappedWindow {
    mapping: Arc<Mapping>,
    start: usize,
    bytes: usize,
}

impl MappedWindow {
    /// The address of the first byte asked for. Only for system calls: see the module's header.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` is within the mapping.
        unsafe { self.mapping.as_ptr().add(self.start) }
    }

    /// How many of the bytes asked for this window has: all up to the window's end.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Windows {
    pub(crate) fn new(capacity: usize) -> Self {
        Windows { state: Mutex::new(State { recent: RecentlyUsed::new(capacity), last_shrink: 0 }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The window at `offset` of an open data file; `None` if all windows are in use, or the kernel
    /// does not map this file.
    pub(crate) fn get(
        &self,
        ino: u64,
        opening: u64,
        fd: RawFd,
        offset: u64,
        bytes: u64,
    ) -> Option<MappedWindow> {
        let key = (ino, opening, offset / WINDOW_BYTES);
        let start = offset % WINDOW_BYTES;
        let window = |mapping| MappedWindow {
            mapping,
            start: start as usize,
            bytes: bytes.min(WINDOW_BYTES - start) as usize,
        };
        let mut state = self.state();
        if let Some(mapping) = state.recent.get(key) {
            return Some(window(mapping));
        }
        let (room, old) = state.recent.make_room();
        let mapping = if room { map(fd, offset - start).ok().map(Arc::new) } else { None };
        if let Some(mapping) = &mapping {
            state.recent.insert(key, mapping.clone());
        }
        drop(state);
        drop(old);
        mapping.map(window)
    }

    /// Forgets the windows of a file, so that its space comes free when it is removed.
    pub(crate) fn forget(&self, ino: u64) {
        let removed = self.state().recent.remove_where(|key| key.0 == ino);
        drop(removed);
    }

    /// Unmaps windows that were not used since the last call.
    pub(crate) fn shrink_idle(&self) {
        let mut state = self.state();
        let since = state.last_shrink;
        let removed = state.recent.remove_unused_since(since);
        state.last_shrink = state.recent.time();
        drop(state);
        drop(removed);
    }

    pub(crate) fn len(&self) -> usize {
        self.state().recent.len()
    }
}

fn map(fd: RawFd, offset: u64) -> io::Result<Mapping> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    Mapping::of_file(fd, offset, WINDOW_BYTES as usize)
}
