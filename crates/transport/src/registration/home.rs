//! Which process something belongs to.
//!
//! ```text
//!   parent   mark 1 ──── a cache is made: home 1 ───────────── home 1 = mark 1: it is here
//!               └─ fork ─► child   mark 0 (wiped) ──────────── home 1 ≠ mark 0: it is the parent's
//!                                  mark 2 ── a cache is made: home 2
//! ```
//!
//! A forked child has copies of all objects of its parent, but keys, pinned pages, threads and kernel objects
//! behind them are the parent's. The mark lies on a page that the kernel wipes in the child, so that looking
//! costs one load and no fork is missed, whichever way it was made.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::page::page_bytes;

/// The process that something was made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home(u64);

/// The last mark that was given in this line of processes.
static LAST: AtomicU64 = AtomicU64::new(0);
static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// The page; `None` where the kernel cannot wipe one (before 4.14).
fn mark() -> Option<&'static AtomicU64> {
    *MARK.get_or_init(|| {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = page_bytes() as usize;
        // SAFETY: a new mapping of zeros that is never unmapped, large and aligned enough for the number.
        unsafe {
            let page = libc::mmap(std::ptr::null_mut(), bytes, read_write, private, -1, 0);
            let is_wiped = page != libc::MAP_FAILED && libc::madvise(page, bytes, libc::MADV_WIPEONFORK) == 0;
            is_wiped.then(|| &*page.cast::<AtomicU64>())
        }
    })
}

impl Home {
    /// This process.
    pub fn here() -> Home {
        let Some(mark) = mark() else {
            return Home(u64::from(std::process::id()));
        };
        let current = mark.load(Ordering::Relaxed);
        if current != 0 {
            return Home(current);
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        match mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Home(next),
            Err(others) => Home(others),
        }
    }

    /// Whether this is still the process.
    pub fn is_here(self) -> bool {
        match mark() {
            Some(mark) => mark.load(Ordering::Relaxed) == self.0,
            None => u64::from(std::process::id()) == self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_elsewhere() {
        let home = Home::here();
        assert!(home.is_here());
        assert_eq!(home, Home::here());
        // SAFETY: the child only calls what is safe after a fork, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_elsewhere = !home.is_here() && Home::here() != home && Home::here().is_here();
            // SAFETY: no handlers, no destructors.
            unsafe { libc::_exit(if is_elsewhere { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(home.is_here());
    }
}
