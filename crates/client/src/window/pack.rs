//! Buffers for pieces that are packed, kept for the next request.
//!
//! On a host with its servers they are shared memory, which servers read files into and write files from
//! directly; each connection is told of such a buffer once. So there are few, and where all are in use a
//! request takes memory of its own.
//!
//! ```text
//!   take ◄── idle: [4 MiB] [4 MiB] … at most 8 ◄── dropped by the last share that used it
//! ```

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError};

use weft_transport::Segment;

use crate::fork;
use crate::wait::lock;

/// Size of a buffer.
pub(crate) const PACK_BYTES: usize = 4 << 20;
/// Buffers that are kept of either kind.
const BUFFERS_MAX: usize = 8;

/// Who has buffers.
pub(crate) trait Buffers: Send + Sync {
    /// One of at least `bytes`; `shared`: better of memory that connections know.
    fn take(&self, bytes: usize, shared: bool) -> PackBuffer;
}

/// The buffers of a client.
#[derive(Default)]
pub(crate) struct PackPool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    generation: u64,
    shared: Vec<Segment>,
    /// Shared ones in use and idle: connections know of them.
    shared_count: usize,
    own: Vec<Vec<u8>>,
}

impl State {
    /// A forked child's shared buffers are still in its parent's use.
    fn forget_parents(&mut self) {
        if self.generation != fork::generation() {
            *self = State { generation: fork::generation(), ..State::default() };
        }
    }
}

/// Memory of up to [`PACK_BYTES`], or more where more was asked for.
pub(crate) struct PackBuffer {
    memory: Memory,
    base: NonNull<u8>,
    pool: Arc<PackPool>,
    generation: u64,
}

enum Memory {
    Shared(Segment),
    Own(Vec<u8>),
}

// SAFETY: the buffer is plain memory of its own, reached only through raw pointers whose users see to their
// own order.
unsafe impl Send for PackBuffer {}
// SAFETY: as above.
unsafe impl Sync for PackBuffer {}

impl PackPool {
    /// A buffer of at least `bytes`, whatever is in it; `announce` is told of shared memory that is new.
    pub(crate) fn take(
        self: &Arc<Self>,
        bytes: usize,
        shared: bool,
        announce: impl FnOnce(&Segment),
    ) -> PackBuffer {
        let kept = self.take_kept(bytes, shared, announce);
        let mut memory = kept.unwrap_or_else(|| Memory::Own(vec![0; bytes.max(PACK_BYTES)]));
        let base = match &mut memory {
            Memory::Shared(segment) => segment.base(),
            Memory::Own(bytes) => NonNull::from(bytes.as_mut_slice()).cast(),
        };
        PackBuffer { memory, base, pool: self.clone(), generation: fork::generation() }
    }

    fn take_kept(&self, bytes: usize, shared: bool, announce: impl FnOnce(&Segment)) -> Option<Memory> {
        if bytes > PACK_BYTES {
            return None;
        }
        // In a forked child a thread that is not there any more may hold it for ever.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        state.forget_parents();
        if !shared {
            return state.own.pop().map(Memory::Own);
        }
        if let Some(segment) = state.shared.pop() {
            return Some(Memory::Shared(segment));
        }
        if state.shared_count == BUFFERS_MAX {
            return None;
        }
        let segment = Segment::new(PACK_BYTES).ok()?;
        state.shared_count += 1;
        announce(&segment);
        Some(Memory::Shared(segment))
    }
}

impl PackBuffer {
    /// Where it begins.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Whether this process has it for itself.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }
}

impl Drop for PackBuffer {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        match &mut self.memory {
            // This process had the lock when it took the buffer, so no thread that is gone holds it.
            Memory::Shared(segment) => lock(&self.pool.state).shared.push(segment.clone()),
            Memory::Own(bytes) if bytes.len() == PACK_BYTES => {
                if let Ok(mut state) = self.pool.state.try_lock()
                    && state.own.len() < BUFFERS_MAX
                {
                    state.own.push(std::mem::take(bytes));
                }
            }
            Memory::Own(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_bounded() {
        let pool = Arc::new(PackPool::default());
        let mut announced = 0;
        let first = pool.take(100, true, |_| announced += 1);
        let base = first.base();
        drop(first);
        let again = pool.take(PACK_BYTES, true, |_| announced += 1);
        assert_eq!((again.base(), announced), (base, 1));
        let many: Vec<_> = (0..20).map(|_| pool.take(1, true, |_| announced += 1)).collect();
        assert_eq!(announced, BUFFERS_MAX);
        drop((again, many));
        assert_eq!(pool.state.lock().unwrap().shared.len(), BUFFERS_MAX);
        let large = pool.take(PACK_BYTES + 1, true, |_| panic!("not shared"));
        assert!(matches!(&large.memory, Memory::Own(bytes) if bytes.len() == PACK_BYTES + 1));
    }
}
