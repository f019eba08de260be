//! Memory that the requests of one read or write have in common, so that it is registered once and not once for each server.
//!
//! ```text
//!   read of 768 rows ─► window ─► io0: rows 0, 4, 8 … ┐
//!                              ─► io1: rows 1, 5, 9 … ├─ Together: all of the rows, registered by the first request
//!                              ─► io2: …              ┘            that needs it, let go with the last
//!                    ─► window ─► …
//!                                     Lasting: allocations that were registered as wholes, let go with the read
//! ```

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runs::MemoryRuns;

/// Pieces of memory of several requests, which are under way at the same time. It is dropped with the last of them.
#[derive(Debug, Default)]
pub struct Together {
    runs: MemoryRuns,
    windows: u64,
    held: Held,
    lasting: Arc<Lasting>,
    is_refused: AtomicBool,
}

/// What lasts as long as a read or write, however many windows it is cut into.
#[derive(Debug, Default)]
pub struct Lasting {
    held: Held,
}

impl Together {
    /// Of all pieces of these requests, where the whole read or write takes about `windows` times as much.
    pub fn new(runs: MemoryRuns, windows: u64, lasting: &Arc<Lasting>) -> Together {
        let is_refused = AtomicBool::new(false);
        Together { runs, windows, held: Held::default(), lasting: lasting.clone(), is_refused }
    }

    pub(crate) fn runs(&self) -> &[weft_wire::messages::MemoryRun] {
        &self.runs
    }

    pub(crate) fn windows(&self) -> u64 {
        self.windows
    }

    /// What is registered of it with a cache.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// What is registered with it for all windows.
    pub(crate) fn lasting(&self) -> &Held {
        &self.lasting.held
    }

    /// It cannot be registered as one: each request is left to itself.
    pub(crate) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }
}

impl PartialEq for Together {
    fn eq(&self, other: &Together) -> bool {
        self.runs == other.runs
    }
}

impl Eq for Together {}

/// Registrations, by the number of the cache that they are of.
#[derive(Default)]
pub(crate) struct Held(Mutex<Vec<(u64, Arc<dyn Any + Send + Sync>)>>);

impl Held {
    pub(crate) fn get<T: Any + Send + Sync>(&self, cache: u64) -> Option<Arc<T>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, held) = all.iter().find(|(known, _)| *known == cache)?;
        held.clone().downcast().ok()
    }

    pub(crate) fn put<T: Any + Send + Sync>(&self, cache: u64, held: Arc<T>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(known, _)| *known != cache);
        all.push((cache, held));
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}
