//! The space of the file system, as the servers have said a moment ago.

use std::cell::Cell;
use std::time::{Duration, Instant};

use weft_client::StatFs;

/// How long it counts after they were asked.
const VALID: Duration = Duration::from_secs(1);

/// What was said last.
#[derive(Default)]
pub(crate) struct SpaceCache(Cell<Option<(Instant, StatFs)>>);

impl SpaceCache {
    /// It, if it still counts.
    pub(crate) fn get(&self) -> Option<StatFs> {
        self.0.get().filter(|(at, _)| at.elapsed() < VALID).map(|(_, space)| space)
    }

    /// The servers were asked.
    pub(crate) fn set(&self, space: StatFs) {
        self.0.set(Some((Instant::now(), space)));
    }
}
