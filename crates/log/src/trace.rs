//! Ids that identify one call, from a program or a mount to the disk of a server.
//!
//! One call of a program has one id, however many requests, servers and attempts it takes. Each request has
//! it in its header. Servers pass it on in requests that they send for it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// The id of this thread's current call; 0: none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Random, different in each process; 0: not drawn yet.
static SEED: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
static FORKS: Once = Once::new();

extern "C" fn in_child() {
    SEED.store(0, Ordering::Relaxed);
}

/// A new id: unique in this process, and with high probability among all processes. Never 0.
pub fn fresh() -> u64 {
    let seed = match SEED.load(Ordering::Relaxed) {
        0 => draw_seed(),
        seed => seed,
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    scatter(seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))).max(1)
}

#[cold]
fn draw_seed() -> u64 {
    FORKS.call_once(|| {
        // SAFETY: the handler only stores an atomic number, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let mut bytes = [0; 8];
    // SAFETY: the buffer is live and has this length. Without random numbers, process id and time are used.
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    let seed = match drawn {
        8 => u64::from_ne_bytes(bytes),
        _ => scatter(u64::from(std::process::id()) << 32 ^ crate::time::coarse_ms()),
    };
    let seed = seed.max(1);
    // Of threads that draw at the same time, one wins.
    SEED.compare_exchange(0, seed, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(seed)
}

/// SplitMix64's last step: different numbers remain different and look random.
fn scatter(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// The id of this thread's current call; a new one outside of any call.
pub fn current_or_fresh() -> u64 {
    match CURRENT.get() {
        0 => fresh(),
        id => id,
    }
}

/// A call of the current thread, until it is dropped.
#[must_use = "it ends when it is dropped"]
#[derive(Debug)]
pub struct Scope {
    before: u64,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    /// Begins a call with a new id. Within another call it gets that one's id.
    pub fn begin() -> Scope {
        let before = CURRENT.get();
        if before == 0 {
            CURRENT.set(fresh());
        }
        Scope { before, _thread: PhantomData }
    }

    /// Continues a call that has this id; 0: no known call.
    pub fn on_behalf_of(id: u64) -> Scope {
        let before = CURRENT.replace(if id == 0 { fresh() } else { id });
        Scope { before, _thread: PhantomData }
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        CURRENT.get()
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_another_has_its_id() {
        let outer = Scope::begin();
        let id = outer.id();
        assert_eq!((Scope::begin().id(), current_or_fresh()), (id, id));
        assert_eq!(Scope::on_behalf_of(7).id(), 7);
        assert_eq!(outer.id(), id);
        drop(outer);
        let next = Scope::begin();
        assert!(next.id() != id && next.id() != 0);
    }

    #[test]
    fn a_forked_child_draws_a_seed_of_its_own() {
        let mine = fresh();
        in_child();
        COUNT.fetch_sub(1, Ordering::Relaxed);
        assert_ne!(fresh(), mine);
    }
}
