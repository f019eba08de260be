//! The transactional seam under the namespace: ordered byte keys, atomic batches, durability on demand.
//!
//! Serialisability comes from structure, not from the engine: every operation of the file system is one function
//! that runs to its end on the one metadata thread, reads what it needs, and produces one atomic batch. Operations
//! therefore never interleave, and there are no locks. An engine that others write to as well, or that does not have
//! everything at hand, may answer [`EngineError::Conflict`]: nothing has changed then, and the operation is run again
//! ([`run_again`](crate::run_again)). The engines here never do.
//!
//! ```text
//!   metadata thread                               sync thread
//!   op 1: get get   commit -> 1   (in the OS: survives a killed process)
//!   op 2: get scan  commit -> 2                   sync() starts, sees 2 committed
//!   op 3: get       commit -> 3                   fsync ...
//!                                                 ... returns 2: replies 1 and 2 may leave, 3 waits for the next
//! ```
//!
//! One fsync so covers all operations committed while the one before it ran (group commit).

mod creation;
mod fjall;
mod journal;
mod mem;
mod record;
mod space;
mod syncer;
mod tables;

pub use self::fjall::{FjallEngine, FjallOptions};
pub use mem::MemEngine;

use crate::EngineError;
use crate::codec::{Encode, Writer};

/// The number of a commit since the engine was opened, from 1; 0 says "nothing yet".
pub type CommitSeq = u64;

/// A key with its value, as a scan yields them.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What a scan yields: pairs in key order.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<Pair, EngineError>> + 'a>;

/// The writes of one operation; all become visible and durable together. A later write of the same key wins.
///
/// Keys and values lie one behind the other in one buffer, so that a batch that is cleared and filled again allocates nothing:
///
/// ```text
///   bytes    i7 <inode>  n1a <entry>  o1,16
///   writes     ^       ^    ^       ^      ^     ends of key and value; of a deletion, of the key only
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Writer,
    writes: Vec<Write>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    key_end: usize,
    value_end: Option<usize>,
}

impl Batch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_with(key, |out| out.bytes.extend_from_slice(value.as_ref()));
    }

    /// Sets `key` to the encoding of `value`.
    pub(crate) fn put_encoded(&mut self, key: impl AsRef<[u8]>, value: &impl Encode) {
        self.put_with(key, |out| value.encode_to(out));
    }

    /// Sets `key` to what `encode` appends.
    pub(crate) fn put_with(&mut self, key: impl AsRef<[u8]>, encode: impl FnOnce(&mut Writer)) {
        self.bytes.bytes.extend_from_slice(key.as_ref());
        let key_end = self.bytes.bytes.len();
        encode(&mut self.bytes);
        self.writes.push(Write { key_end, value_end: Some(self.bytes.bytes.len()) });
    }

    /// Deletes `key`; no error if it does not exist.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.bytes.bytes.extend_from_slice(key.as_ref());
        self.writes.push(Write { key_end: self.bytes.bytes.len(), value_end: None });
    }

    /// How many writes there are.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Takes all writes out, and keeps the memory for others.
    pub fn clear(&mut self) {
        self.bytes.bytes.clear();
        self.writes.clear();
    }

    /// Each key with its new value, or with `None` to delete it.
    pub fn writes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let bytes = &self.bytes.bytes;
        let mut start = 0;
        self.writes.iter().map(move |write| {
            let key = &bytes[start..write.key_end];
            start = write.value_end.unwrap_or(write.key_end);
            (key, write.value_end.map(|end| &bytes[write.key_end..end]))
        })
    }
}

/// What a batch needs room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It adds data: refused while there is still some space for the others.
    Growth,
    /// It changes data: refused while there is still some space for removals.
    Change,
    /// It removes data.
    Removal,
}

/// An ordered key-value store with one writer.
pub trait Engine: Send {
    /// The value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError>;

    /// The pairs with `from <= key < to`, in key order.
    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a>;

    /// Keeps the present state, to be read in pages while commits go on. One at a time: another one takes its place.
    fn hold_view(&mut self) -> Result<(), EngineError>;

    /// The pairs of the state that is kept, from `from` on; `None` if none is (any more).
    fn view<'a>(&'a self, from: &[u8]) -> Option<Scan<'a>>;

    /// Keeps it no longer.
    fn drop_view(&mut self);

    /// Applies `batch` atomically. When it returns, the batch is visible and survives a killed process; a power
    /// cut it survives only after a sync that covers the returned number. Commits become durable in order: if
    /// one is lost, so are all after it. After [`EngineError::Full`] and [`EngineError::Conflict`] nothing has
    /// changed, and the engine goes on.
    fn commit(&mut self, batch: &Batch) -> Result<CommitSeq, EngineError>;

    /// The number of the last commit.
    fn committed(&self) -> CommitSeq;

    /// Whether there is room for such a batch. On a full disk the namespace refuses to grow, while removals still
    /// find the space they need.
    fn has_room(&mut self, room: Room) -> bool;

    /// A handle that makes commits durable, for use on another thread.
    fn syncer(&self) -> Box<dyn Syncer>;
}

/// Makes commits durable without stopping the metadata thread.
pub trait Syncer: Send {
    /// Makes everything durable that was committed before the call, and returns the last number covered.
    /// After an error the engine is poisoned.
    fn sync(&self) -> Result<CommitSeq, EngineError>;
}
