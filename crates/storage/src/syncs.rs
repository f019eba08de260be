//! Syncs of data files, and what is lost when they fail.
//!
//! After a failed fsync Linux takes the pages that it could not write for clean. It reports the error once to each
//! descriptor, and the next fsync succeeds though the bytes are not on the disk. All clients share one descriptor
//! of a data file here, so the kernel reports the error to one of them for all. Therefore every failed sync counts
//! as a loss of the file's unsynced writes, and the count stays for as long as the server runs:
//!
//! ```text
//!   client A   write (losses 0)               sync ── EIO             losses: 1
//!   client B          write (losses 0)                     sync ── done, losses 1: B wrote at 0, so it is lost
//!   client C                                        write (losses 1)  sync ── done, losses 1: durable
//! ```
//!
//! Syncs of one file run one after the other. Else one could return success before another one, which took the
//! kernel's error for the same pages, has counted it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_layout::Extent;

use crate::ranges::{Ranges, Turn};

/// The syncs of one opening of a data file: one at a time, and one serves all who asked before it began.
#[derive(Default)]
pub(crate) struct Syncs {
    turns: Ranges,
    begun: AtomicU64,
    /// The last one that succeeded.
    succeeded: AtomicU64,
}

/// A sync that was begun. It ends when this is dropped.
pub(crate) struct SyncTurn<'a> {
    syncs: &'a Syncs,
    number: u64,
    _turn: Turn<'a>,
}

impl Syncs {
    /// The number of the sync that began last.
    pub fn last_begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Begins a sync when the one before has ended. `None` if one that began after number `asked_at` has succeeded
    /// meanwhile.
    pub async fn begin(&self, asked_at: u64) -> Option<SyncTurn<'_>> {
        let turn = self.turns.turn(Extent::new(0, u64::MAX), true).await;
        if self.succeeded.load(Ordering::SeqCst) > asked_at {
            return None;
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        Some(SyncTurn { syncs: self, number, _turn: turn })
    }
}

impl SyncTurn<'_> {
    /// What was written before it began is durable.
    pub fn succeeded(&self) {
        self.syncs.succeeded.store(self.number, Ordering::SeqCst);
    }
}

/// How many syncs have failed.
#[derive(Default)]
pub(crate) struct Losses(Mutex<LossCounts>);

#[derive(Default)]
struct LossCounts {
    /// Of a data file, where any has.
    of: HashMap<u64, u64>,
    /// Of all data files as a whole.
    of_whole: u64,
    all: u64,
}

impl Losses {
    fn counts(&self) -> MutexGuard<'_, LossCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of one data file, alone or with all others.
    pub fn of(&self, ino: u64) -> u64 {
        let counts = self.counts();
        counts.of.get(&ino).copied().unwrap_or(0) + counts.of_whole
    }

    /// Of any data file.
    pub fn all(&self) -> u64 {
        self.counts().all
    }

    /// A sync of one data file has failed.
    pub fn note(&self, ino: u64) {
        let mut counts = self.counts();
        counts.all += 1;
        *counts.of.entry(ino).or_default() += 1;
    }

    /// A sync of all data files as a whole has failed.
    pub fn note_whole(&self) {
        let mut counts = self.counts();
        counts.all += 1;
        counts.of_whole += 1;
    }
}
