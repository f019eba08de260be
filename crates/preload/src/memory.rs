//! This library's allocator, separate from the program's.
//!
//! A signal may interrupt the program inside `malloc`, and its handler may call `unlink` on a path in Weft.
//! So nothing here may use `malloc`. Signals are blocked while this library runs, so no holder of these locks
//! is ever interrupted.
//!
//! ```text
//!   16 │ 32 │ 64 │ … │ 32 KiB     a list of free blocks each, cut from chunks
//!   larger                        whole pages from the kernel
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

const CLASS_BYTES_MIN: usize = 16;
const CLASSES: usize = 12;
const CLASS_BYTES_MAX: usize = CLASS_BYTES_MIN << (CLASSES - 1);
const CHUNK_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;

/// A lock that can be used while signals are blocked, and can be held across a fork.
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> SpinLock<T> {
        SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.hold();
        // SAFETY: the lock is held.
        let result = body(unsafe { &mut *self.value.get() });
        self.release();
        result
    }
}

/// What is held over a fork.
pub(crate) trait Held {
    /// Locks it until [`Held::release`].
    fn hold(&self);

    /// Unlocks it. Only the holder may call this.
    fn release(&self);
}

impl<T> Held for SpinLock<T> {
    fn hold(&self) {
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: no preconditions. The holder may need this processor.
            unsafe { libc::sched_yield() };
        }
    }

    fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// A free block, which points to the next one of its size.
struct Free {
    next: *mut Free,
}

/// Free blocks of one size, and the rest of the chunk that they are cut from.
struct Class {
    free: *mut Free,
    chunk: *mut u8,
    left_bytes: usize,
}

// SAFETY: only the class knows the memory that the pointers are to.
unsafe impl Send for Class {}

#[global_allocator]
pub(crate) static OWN: Own = Own::new();

/// The allocator of this library.
pub(crate) struct Own {
    classes: [SpinLock<Class>; CLASSES],
}

impl Own {
    const fn new() -> Own {
        Own {
            classes: [const {
                SpinLock::new(Class { free: ptr::null_mut(), chunk: ptr::null_mut(), left_bytes: 0 })
            }; CLASSES],
        }
    }
}

impl Held for Own {
    fn hold(&self) {
        self.classes.iter().for_each(Held::hold);
    }

    fn release(&self) {
        self.classes.iter().for_each(Held::release);
    }
}

fn class_of(layout: &Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(CLASS_BYTES_MIN);
    (bytes <= CLASS_BYTES_MAX)
        .then(|| (bytes.next_power_of_two() / CLASS_BYTES_MIN).trailing_zeros() as usize)
}

fn map(bytes: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // The system call itself, since `mmap` is one of the hooks. SAFETY: a new mapping overlaps no other
    // memory.
    let place =
        unsafe { libc::syscall(libc::SYS_mmap, ptr::null::<u8>(), bytes, protection, flags, -1, 0usize) };
    if place == -1 { ptr::null_mut() } else { place as *mut u8 }
}

impl Class {
    fn take(&mut self, bytes: usize) -> *mut u8 {
        if !self.free.is_null() {
            let piece = self.free;
            // SAFETY: blocks in the list are free, and were initialised when they were added.
            self.free = unsafe { (*piece).next };
            return piece.cast();
        }
        if self.left_bytes < bytes {
            self.chunk = map(CHUNK_BYTES);
            if self.chunk.is_null() {
                self.left_bytes = 0;
                return ptr::null_mut();
            }
            self.left_bytes = CHUNK_BYTES;
        }
        let piece = self.chunk;
        self.chunk = piece.wrapping_add(bytes);
        self.left_bytes -= bytes;
        piece
    }

    fn give(&mut self, piece: *mut u8) {
        let piece = piece.cast::<Free>();
        // SAFETY: nobody uses the block any more, and it is large and aligned enough for a pointer.
        unsafe { (*piece).next = self.free };
        self.free = piece;
    }
}

// SAFETY: blocks are disjoint, have at least the requested size, and are aligned: chunks to pages, and blocks
// to multiples of their size, a power of two not below the alignment.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(&layout) {
            Some(class) => self.classes[class].with(|list| list.take(CLASS_BYTES_MIN << class)),
            None if layout.align() > PAGE_BYTES => ptr::null_mut(),
            None => map(layout.size().next_multiple_of(PAGE_BYTES)),
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        match class_of(&layout) {
            Some(class) => self.classes[class].with(|list| list.give(place)),
            None => {
                let bytes = layout.size().next_multiple_of(PAGE_BYTES);
                // SAFETY: a whole mapping from `map`, unmapped by its owner.
                unsafe { libc::syscall(libc::SYS_munmap, place, bytes) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_used_again() {
        let own = Own::new();
        for (bytes, align) in [(1, 1), (17, 8), (4096, 4096), (32768, 16), (100_000, 4096)] {
            let layout = Layout::from_size_align(bytes, align).unwrap();
            // SAFETY: blocks are written within their sizes and freed once.
            unsafe {
                let (first, second) = (own.alloc(layout), own.alloc(layout));
                assert!((first as usize | second as usize).is_multiple_of(align) && first != second);
                first.write_bytes(1, bytes);
                second.write_bytes(2, bytes);
                assert_eq!(*first.add(bytes - 1), 1);
                own.dealloc(first, layout);
                if class_of(&layout).is_some() {
                    assert_eq!(own.alloc(layout), first);
                }
            }
        }
    }
}
