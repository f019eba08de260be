//! Copies between mapped pages of data files and a request's memory that survive a page which cannot be had.
//!
//! A program that touches a mapped page gets SIGBUS where the file was cut, its disk is full or the page cannot be read. The
//! same goes for memory that a client shares: it is a file too, and what becomes of it is up to the client. A server must not
//! die of either:
//!
//! ```text
//!   copy ──► page is gone ──► SIGBUS ──► handler: sets the flag of its side; an empty page takes the lost one's place
//!     ▲                                     │
//!     └──────── goes on, with zeros ◄───────┘     then the copier looks at the flags
//! ```
//!
//! A broken window of a data file stays so: whoever copies looks after the copy, so that no other thread can take the empty
//! page's bytes for the file's. Memory of a request that is gone fails the request, and must not be used any more.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Pages of a request's memory cannot be had. An empty page may have taken the place of one, so that none of the memory's
/// mappings may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("pages of the request's memory cannot be had")]
pub struct MemoryGone;

/// What this thread is copying between.
#[derive(Clone, Copy)]
struct Watched {
    /// The window of a data file: begin, end, and what to set when a page is gone.
    begin: usize,
    end: usize,
    broken: *const AtomicBool,
    /// Pieces of the request's memory, and what to set when a page of theirs is gone.
    memory: *const (NonNull<u8>, usize),
    pieces: usize,
    gone: *const AtomicBool,
}

const NOTHING: Watched = Watched {
    begin: 0,
    end: 0,
    broken: std::ptr::null(),
    memory: std::ptr::null(),
    pieces: 0,
    gone: std::ptr::null(),
};

impl Watched {
    /// What to set when the page at `page` is gone.
    ///
    /// # Safety
    /// What it points to is alive, as it is while this thread watches.
    unsafe fn flag(&self, page: usize, page_bytes: usize) -> Option<*const AtomicBool> {
        let touches = |begin: usize, end: usize| begin < end && page < end && begin < page + page_bytes;
        if touches(self.begin, self.end) {
            return Some(self.broken);
        }
        for at in 0..self.pieces {
            // SAFETY: one of the pieces.
            let (base, bytes) = unsafe { *self.memory.add(at) };
            let begin = base.as_ptr() as usize;
            if touches(begin, begin + bytes) {
                return Some(self.gone);
            }
        }
        None
    }
}

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

/// A mapping of a data file, and what is set when a page of it is gone.
#[derive(Clone, Copy)]
pub(crate) struct WatchedFile<'a> {
    pub begin: *mut u8,
    pub bytes: usize,
    pub broken: &'a AtomicBool,
}

/// Runs `copy`, which touches no mapped file but `file` and `memory`. If a page of the file is gone, its flag is set, and what
/// was copied from or to it is worth nothing.
///
/// # Errors
/// A page of the memory is gone.
pub(crate) fn watch<R>(
    file: Option<WatchedFile<'_>>,
    memory: &[(NonNull<u8>, usize)],
    copy: impl FnOnce() -> R,
) -> Result<R, MemoryGone> {
    struct Unwatch;
    impl Drop for Unwatch {
        fn drop(&mut self) {
            WATCHED.set(NOTHING);
        }
    }
    install();
    let gone = AtomicBool::new(false);
    let mut watched = Watched { memory: memory.as_ptr(), pieces: memory.len(), gone: &gone, ..NOTHING };
    if let Some(file) = file {
        watched.begin = file.begin as usize;
        watched.end = file.begin as usize + file.bytes;
        watched.broken = file.broken;
    }
    WATCHED.set(watched);
    // The handler runs on this thread: only the compiler could move the copy out of here.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    let unwatch = Unwatch;
    let result = copy();
    fence(Ordering::SeqCst);
    drop(unwatch);
    if gone.load(Ordering::SeqCst) { Err(MemoryGone) } else { Ok(result) }
}

/// Runs `copy`, which touches `memory` and no mapped file besides. Memory that a client shares is only ever touched in here.
///
/// # Errors
/// A page of the memory is gone; what was copied is worth nothing.
pub fn guarded<R>(memory: &[(NonNull<u8>, usize)], copy: impl FnOnce() -> R) -> Result<R, MemoryGone> {
    watch(None, memory, copy)
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
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let page = address & !(page_bytes - 1);
    // SAFETY: whoever watches on this thread borrows all of it for as long.
    if let Some(flag) = unsafe { WATCHED.get().flag(page, page_bytes) } {
        // SAFETY: as above.
        unsafe { (*flag).store(true, Ordering::SeqCst) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: `errno` is this thread's; the page lies in a watched mapping, to whose bytes nobody holds references.
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
    use std::os::fd::AsRawFd;
    use weft_buffers::Mapping;

    #[test]
    fn a_copy_beyond_the_end_of_a_file_ends_and_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let page = page_bytes();
        file.set_len(2 * page as u64).unwrap();
        let mapping = Mapping::of_file(file.as_raw_fd(), 0, 4 * page).unwrap();
        let broken = AtomicBool::new(false);
        let mut into = vec![7u8; page];
        let mut copy = |from: usize| {
            let file = WatchedFile { begin: mapping.as_ptr(), bytes: mapping.bytes(), broken: &broken };
            let copied = watch(Some(file), &[], || {
                // SAFETY: the source is within the mapping, the target is as long.
                unsafe { std::ptr::copy_nonoverlapping(mapping.as_ptr().add(from), into.as_mut_ptr(), page) };
            });
            assert_eq!(copied, Ok(()));
            broken.load(Ordering::SeqCst)
        };
        assert!(!copy(page));
        assert!(copy(3 * page - 8), "half of it lies beyond the end");
    }

    #[test]
    fn memory_that_is_gone_fails_the_copy_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        let page = page_bytes();
        file.set_len(page as u64).unwrap();
        let mapping = Mapping::of_file(file.as_raw_fd(), 0, 2 * page).unwrap();
        let base = NonNull::new(mapping.as_ptr()).unwrap();
        // SAFETY: within the mapping.
        let pieces = [(base, page), (unsafe { base.add(page + 100) }, 50)];
        let fill = |(base, bytes): (NonNull<u8>, usize)| {
            // SAFETY: within the mapping; pages that are not there are what is tested.
            guarded(&pieces, || unsafe { std::ptr::write_bytes(base.as_ptr(), 7, bytes) })
        };
        assert_eq!(fill(pieces[0]), Ok(()));
        assert_eq!(fill(pieces[1]), Err(MemoryGone));
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
