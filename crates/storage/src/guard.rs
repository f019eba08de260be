//! Copies from and to mapped pages of data files that survive a page which cannot be had.
//!
//! A program that touches a mapped page gets SIGBUS where the file was cut, its disk is full or the page cannot be read. A
//! server must not die of that:
//!
//! ```text
//!   copy ──► page is gone ──► SIGBUS ──► handler: window is broken; an empty page takes the lost one's place
//!     ▲                                     │
//!     └──────── goes on, with zeros ◄───────┘     then the copier sees that the window is broken, and does it by read or write
//! ```
//!
//! A broken window stays so: whoever copies looks after the copy, so that no other thread can take the empty page's bytes
//! for the file's.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// The mapping that this thread is copying from or to: begin, end, and what to set when a page is gone.
#[derive(Clone, Copy)]
struct Watched {
    begin: usize,
    end: usize,
    broken: *const AtomicBool,
}

const NOTHING: Watched = Watched { begin: 0, end: 0, broken: std::ptr::null() };

thread_local! {
    static WATCHED: Cell<Watched> = const { Cell::new(NOTHING) };
}

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
static INSTALL: Once = Once::new();
static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

/// The size of a page of memory.
pub(crate) fn page_bytes() -> usize {
    install();
    PAGE_BYTES.load(Ordering::Relaxed)
}

/// Runs `copy`, which touches no mapped file but the one at `begin..end`. If a page of it is gone, `broken` is set, and what
/// was copied from or to it is worth nothing.
pub(crate) fn watch<R>(begin: *mut u8, bytes: usize, broken: &AtomicBool, copy: impl FnOnce() -> R) -> R {
    struct Unwatch;
    impl Drop for Unwatch {
        fn drop(&mut self) {
            WATCHED.set(NOTHING);
        }
    }
    install();
    WATCHED.set(Watched { begin: begin as usize, end: begin as usize + bytes, broken });
    // The handler runs on this thread: only the compiler could move the copy out of here.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    let _unwatch = Unwatch;
    let result = copy();
    fence(Ordering::SeqCst);
    result
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: asks for a constant of the system.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_BYTES.store(page_bytes as usize, Ordering::Relaxed);
        // SAFETY: all-zero bytes are a valid `sigaction`; the handler only does what is allowed in one, and `BEFORE` is
        // written here alone, before the handler can run.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = page_is_gone as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, (&raw mut BEFORE).cast());
        }
    });
}

extern "C" fn page_is_gone(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`.
    let address = unsafe { (*info).si_addr() } as usize;
    let watched = WATCHED.get();
    if (watched.begin..watched.end).contains(&address) {
        // SAFETY: whoever watches borrows the flag for as long.
        unsafe { (*watched.broken).store(true, Ordering::SeqCst) };
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address & !(page_bytes - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: `errno` is this thread's; the page lies in the watched mapping, to whose bytes nobody holds references.
        unsafe {
            let errno = *libc::__errno_location();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let placed = libc::mmap(page as *mut libc::c_void, page_bytes, protection, flags, -1, 0);
            *libc::__errno_location() = errno;
            if placed != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not ours: what was there before deals with it when the instruction faults again.
    // SAFETY: `BEFORE` was filled when this handler was installed.
    unsafe { libc::sigaction(libc::SIGBUS, (&raw const BEFORE).cast(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Mapping;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_copy_beyond_the_end_of_a_file_ends_and_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let page = page_bytes();
        file.set_len(2 * page as u64).unwrap();
        let mapping = Mapping::of_file(file.as_raw_fd(), 0, 4 * page).unwrap();
        let broken = AtomicBool::new(false);
        let mut into = vec![7u8; page];
        let mut copy = |from: usize| {
            watch(mapping.as_ptr(), mapping.bytes(), &broken, || {
                // SAFETY: the source is within the mapping, the target is as long.
                unsafe { std::ptr::copy_nonoverlapping(mapping.as_ptr().add(from), into.as_mut_ptr(), page) };
            });
            broken.load(Ordering::SeqCst)
        };
        assert!(!copy(page));
        assert!(copy(3 * page - 8), "half of it lies beyond the end");
    }

    #[test]
    fn other_faults_kill_as_before() {
        install();
        // SAFETY: the child only touches its own memory and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let file = tempfile::tempfile().unwrap();
            let mapping = Mapping::of_file(file.as_raw_fd(), 0, page_bytes()).unwrap();
            // SAFETY: meant to fault: the file is empty, and nobody watches.
            unsafe { mapping.as_ptr().read_volatile() };
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a live result.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status}");
    }
}
