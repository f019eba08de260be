//! The transactional seam under the namespace: ordered byte keys, atomic batches, durability on demand.
//!
//! Serialisability comes from structure, not from the engine: every operation of the file system is one function
//! that runs to its end on the one metadata thread, reads what it needs, and produces one atomic batch. Operations
//! therefore never interleave, there are no locks, no aborts and no retries. Several metadata servers will later
//! partition the inodes among them, each with such a thread and engine of its own.
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

pub use self::fjall::{FjallEngine, FjallOptions};
pub use mem::MemEngine;

use crate::EngineError;

/// The number of a commit since the engine was opened, from 1; 0 says "nothing yet".
pub type CommitSeq = u64;

/// A key with its value, as a scan yields them.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What a scan yields: pairs in key order.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<Pair, EngineError>> + 'a>;

/// The writes of one operation; all become visible and durable together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Each key with its new value, or with `None` to delete it. A later write of the same key wins.
    pub writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.writes.push((key.into(), Some(value.into())));
    }

    /// Deletes `key`; no error if it does not exist.
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.writes.push((key.into(), None));
    }
}

/// An ordered key-value store with one writer.
pub trait Engine: Send {
    /// The value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError>;

    /// The pairs with `from <= key < to`, in key order.
    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a>;

    /// Applies `batch` atomically. When it returns, the batch is visible and survives a killed process; a power
    /// cut it survives only after a sync that covers the returned number. Commits become durable in order: if
    /// one is lost, so are all after it.
    fn commit(&mut self, batch: Batch) -> Result<CommitSeq, EngineError>;

    /// The number of the last commit.
    fn committed(&self) -> CommitSeq;

    /// Whether there is room for batches that add data. Without it the namespace refuses to grow, while removals
    /// still find the space they need.
    fn has_room(&self) -> bool;

    /// A handle that makes commits durable, for use on another thread.
    fn syncer(&self) -> Box<dyn Syncer>;
}

/// Makes commits durable without stopping the metadata thread.
pub trait Syncer: Send {
    /// Makes everything durable that was committed before the call, and returns the last number covered.
    /// After an error the engine is poisoned.
    fn sync(&self) -> Result<CommitSeq, EngineError>;
}
