//! Memory of payloads, used again: fresh memory costs its pages and their zeros, about as much as the copy into it.
//!
//! ```text
//!   a call over TCP    Buffers::default ─► Buffer: the heap's, kept by each thread for the next one
//!   a call over RDMA   Buffers of its   ─► Buffer: registered with the adapter; the heap's if all that is in use
//!                      connection
//! ```
//!
//! What a buffer held before is in it still: who takes one fills it, or cuts it to what was filled, before
//! anybody else sees it.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use weft_buffers::BufferPool;

/// Sizes are powers of two, the least of which this is. What is smaller is left to the allocator.
const LEAST_BYTES: usize = 4 << 10;
/// How many sizes there are: up to 1 MiB.
const SIZES: usize = 9;
/// Bytes that are kept of each size.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The buffers of one size.
#[derive(Default)]
struct Kept {
    /// The one that was given back last is taken first: it is in the processor's cache still.
    buffers: Vec<Vec<u8>>,
    /// Fewest that were kept since they were looked at: so many are not needed.
    least: usize,
}

thread_local! {
    static KEPT: RefCell<[Kept; SIZES]> = RefCell::default();
}

/// Which size has room for so many bytes, and how large it is.
fn size_of(bytes: usize) -> Option<(usize, usize)> {
    let size_bytes = bytes.checked_next_power_of_two()?;
    let number = (size_bytes / LEAST_BYTES).checked_ilog2()? as usize;
    (number < SIZES).then_some((number, size_bytes))
}

/// Where a call's buffers are from.
#[derive(Clone, Default)]
pub struct Buffers {
    registered: Option<Registered>,
}

/// Memory that adapters know.
#[derive(Clone)]
struct Registered {
    pool: BufferPool,
    /// Whose share of the pool counts.
    connection: u64,
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.registered.is_some() { "registered" } else { "of the heap" })
    }
}

impl Buffers {
    /// Those of a connection over RDMA.
    pub(crate) fn registered(pool: BufferPool, connection: u64) -> Buffers {
        Buffers { registered: Some(Registered { pool, connection }) }
    }

    /// Whether the call has come over RDMA.
    pub fn are_of_rdma(&self) -> bool {
        self.registered.is_some()
    }

    /// A buffer of so many bytes, with anything in it.
    pub fn take(&self, bytes: usize) -> Buffer {
        let pooled = self.registered.as_ref().filter(|_| bytes > 0).and_then(|from| {
            // It gives less where less is free.
            from.pool.try_take_more(from.connection, bytes).filter(|buffer| buffer.len() == bytes)
        });
        let memory = pooled.map_or_else(|| Memory::Heap(take(bytes)), Memory::Pooled);
        Buffer { memory, bytes }
    }
}

/// Bytes of a payload. Their memory is used again when they are dropped.
pub struct Buffer {
    memory: Memory,
    /// How many of the memory's bytes count.
    bytes: usize,
}

enum Memory {
    Heap(Vec<u8>),
    Pooled(weft_buffers::Buffer),
}

impl Buffer {
    /// Cuts it to so many bytes, if it has more.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Vec::new().into()
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer { bytes: bytes.len(), memory: Memory::Heap(bytes) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(memory) => &memory[..self.bytes],
            Memory::Pooled(memory) => &memory[..self.bytes],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(memory) => &mut memory[..self.bytes],
            Memory::Pooled(memory) => &mut memory[..self.bytes],
        }
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Heap(memory) = &mut self.memory {
            give(std::mem::take(memory));
        }
    }
}

/// Memory of the heap of so many bytes, with anything in it.
fn take(bytes: usize) -> Vec<u8> {
    let Some((number, size_bytes)) = size_of(bytes) else { return vec![0; bytes] };
    let known = KEPT.with_borrow_mut(|kept| {
        let Kept { buffers, least } = &mut kept[number];
        let buffer = buffers.pop();
        *least = (*least).min(buffers.len());
        buffer
    });
    let mut buffer = known.unwrap_or_else(|| vec![0; size_bytes]);
    buffer.truncate(bytes);
    buffer
}

/// Keeps what [`take`] has made; other memory is freed.
fn give(mut buffer: Vec<u8>) {
    let bytes = buffer.capacity();
    let Some((number, _)) = size_of(bytes).filter(|(_, size_bytes)| *size_bytes == bytes) else { return };
    // A buffer that a thread drops as it ends is freed.
    let _ = KEPT.try_with(|kept| {
        let buffers = &mut kept.borrow_mut()[number].buffers;
        if (buffers.len() + 1) * bytes <= KEPT_BYTES_MAX {
            buffer.resize(bytes, 0);
            buffers.push(buffer);
        }
    });
}

/// Frees memory of this thread that was not needed since the last call.
pub fn trim() {
    KEPT.with_borrow_mut(|kept| {
        for Kept { buffers, least } in kept {
            buffers.drain(..(*least).min(buffers.len()));
            *least = buffers.len();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_taken_again() {
        let buffers = Buffers::default();
        for bytes in [1 << 20, (1 << 20) - 5, 4096, 5000] {
            let mut first = buffers.take(bytes);
            assert_eq!(first.len(), bytes);
            let address = first.as_ptr();
            first.truncate(100);
            assert_eq!(first.len(), 100);
            drop(first);
            let again = buffers.take(bytes);
            assert_eq!((again.as_ptr(), again.len()), (address, bytes));
            let other = buffers.take(bytes);
            assert_ne!(other.as_ptr(), address, "it is in use");
        }
        assert_eq!([0, 5, 3 << 20].map(|bytes| buffers.take(bytes).len()), [0, 5, 3 << 20]);
    }

    #[test]
    fn no_more_is_kept_than_was_needed() {
        let buffers = Buffers::default();
        let hold = |count: usize| drop((0..count).map(|_| buffers.take(1 << 20)).collect::<Vec<_>>());
        let kept = || KEPT.with_borrow(|kept| kept[SIZES - 1].buffers.len());
        hold(40);
        assert_eq!(kept(), 16);
        trim();
        hold(3);
        trim();
        assert_eq!(kept(), 3);
        trim();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn registered_memory_comes_first_and_the_heap_when_it_is_used_up() {
        let pool = BufferPool::new(4 << 20).unwrap();
        let buffers = Buffers::registered(pool.clone(), 7);
        let held: Vec<_> = (0..5).map(|_| buffers.take(1 << 20)).collect();
        assert!(held.iter().all(|buffer| buffer.len() == 1 << 20));
        let used = pool.stats().used_bytes;
        assert!(used > 0 && used < 5 << 20, "{used}");
        drop(held);
        assert_eq!((pool.stats().used_bytes, buffers.take(0).len()), (0, 0));
    }
}
