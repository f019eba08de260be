//! The space of the file system, or of a directory tree in it, as the servers have said a moment ago.

use std::cell::Cell;
use std::time::{Duration, Instant};

use weft_client::StatFs;

/// How long it counts after they were asked.
const VALID: Duration = Duration::from_secs(1);

/// What was said last, and of which inode: in a directory tree with a quota it may be the tree's.
#[derive(Default)]
pub(crate) struct SpaceCache(Cell<Option<(Instant, u64, StatFs)>>);

impl SpaceCache {
    /// It, if it still counts.
    pub(crate) fn get(&self, ino: u64) -> Option<StatFs> {
        let counts = |(at, of, _): &(Instant, u64, StatFs)| *of == ino && at.elapsed() < VALID;
        self.0.get().filter(counts).map(|(.., space)| space)
    }

    /// The servers were asked.
    pub(crate) fn set(&self, ino: u64, space: StatFs) {
        self.0.set(Some((Instant::now(), ino, space)));
    }
}
