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

use super::batch::Batch;
use crate::EngineError;

/// The number of a commit since the engine was opened, from 1; 0 says "nothing yet".
pub type CommitSeq = u64;

/// A key with its value, as a scan yields them.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What a scan yields: pairs in key order.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<Pair, EngineError>> + 'a>;

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
