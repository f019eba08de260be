//! Memory for what is read ahead, before it goes to the kernel.
//!
//! It comes from [`Client::alloc`], so that a server on the same host puts its data there without a copy in between. The piece
//! that was given back last is lent first, whichever thread asks: it is still in the processor's cache.

use crate::read_ahead::CHUNK_BYTES_MAX;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_client::{Arena, Client};

/// Chunks fetched ahead at a time, of all open files together.
const CHUNKS_LENT_MAX: usize = 32;

/// Pieces that are not lent.
#[derive(Default)]
pub(crate) struct ReadBuffers {
    free: Mutex<Vec<Arena>>,
    lent: AtomicUsize,
}

/// Memory of [`CHUNK_BYTES_MAX`], given back on drop.
pub(crate) struct LentChunk {
    memory: Option<Arena>,
    buffers: Arc<ReadBuffers>,
}

impl ReadBuffers {
    /// Memory for a chunk; `None` where too much is lent already.
    pub(crate) fn take_chunk(self: &Arc<Self>, client: &Client) -> Option<LentChunk> {
        let lent_before = self.lent.fetch_add(1, Ordering::Relaxed);
        let mut lent = LentChunk { memory: None, buffers: self.clone() };
        if lent_before < CHUNKS_LENT_MAX {
            lent.memory = self.free().pop().or_else(|| client.alloc(CHUNK_BYTES_MAX as usize).ok());
        }
        lent.memory.is_some().then_some(lent)
    }

    fn free(&self) -> MutexGuard<'_, Vec<Arena>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for LentChunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl DerefMut for LentChunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for LentChunk {
    fn drop(&mut self) {
        self.buffers.free().extend(self.memory.take());
        self.buffers.lent.fetch_sub(1, Ordering::Relaxed);
    }
}
