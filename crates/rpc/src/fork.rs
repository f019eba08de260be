//! Noticing a fork: a child must not use its parent's connections, for both would read the same stream.
//!
//! Everything that belongs to one process (sessions, lanes, wake-up descriptors, adapters) notes the generation it was made in. The
//! child's generation is one higher, so a comparison tells it apart without a system call.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Begins to notice forks of this process.
pub fn watch() {
    REGISTERED.call_once(|| {
        // SAFETY: the handler only adds to an atomic number, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// How many forks lie between the first process and this one.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// A value that every process makes for itself when it first asks. A forked child leaves its parent's as it is: threads
/// that are not in the child may have been using it.
pub struct PerProcess<T> {
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    generation: u64,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// None yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess { made: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's value, if it has made one.
    pub fn get(&self) -> Option<&T> {
        self.of_this_process(self.made.load(Ordering::Acquire))
    }

    fn of_this_process(&self, made: *mut Made<T>) -> Option<&T> {
        // SAFETY: null, or from `Box::into_raw`; what was published is freed with `self` at the earliest.
        let made = unsafe { made.as_ref() };
        made.filter(|made| made.generation == generation()).map(|made| &made.value)
    }

    /// This process's value, made now if it has none. Of threads that make it at once, one prevails.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        watch();
        let before = self.made.load(Ordering::Acquire);
        if let Some(value) = self.of_this_process(before) {
            return value;
        }
        let fresh = Box::into_raw(Box::new(Made { generation: generation(), value: make() }));
        // A lock would not do: after a fork, a thread that is not there any more may hold it for ever.
        if self.made.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: made above, and not published.
            drop(unsafe { Box::from_raw(fresh) });
            return self.get().expect("another thread of this process made it");
        }
        // SAFETY: as in `get`.
        unsafe { &(*fresh).value }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.made.get_mut();
        // SAFETY: null, or published and not freed before; nobody has a reference any more.
        if unsafe { made.as_ref() }.is_some_and(|made| made.generation == generation()) {
            // SAFETY: as above, and from `Box::into_raw`.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_makes_its_value_once_and_a_child_its_own() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(VALUE.get(), None);
        assert_eq!((*VALUE.get_or_make(|| 1), *VALUE.get_or_make(|| 2)), (1, 1));
        // SAFETY: the child only reads atomic numbers and its own memory, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = VALUE.get().is_none() && *VALUE.get_or_make(|| 3) == 3;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = 0;
        // SAFETY: a live place for the status of a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(VALUE.get(), Some(&1));
    }
}
