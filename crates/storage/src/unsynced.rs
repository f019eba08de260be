//! Which data files have changes that no sync has made durable, so that all of them can be synced.
//!
//! ```text
//!   change ends     noted: inode 7, note 41      (a look at a number, where it is noted already)
//!   sync begins     takes note 41 ── fsync ──► succeeded: 7 is forgotten, unless it was noted again meanwhile
//!                                              failed: it stays
//! ```
//!
//! What an earlier run of the server has left unsynced is not known here. So the first time all is synced as a whole, and where there
//! are very many.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// More data files than this are not noted one by one.
const NOTED_MAX: usize = 1 << 20;
/// More data files than this are synced as a whole.
const ONE_BY_ONE_MAX: usize = 256;

/// The data files with unsynced changes.
#[derive(Debug)]
pub(crate) struct Unsynced {
    /// Marks of earlier rounds are void. Each sync of the whole begins one.
    round: AtomicU64,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    /// With the number of the last note.
    inos: HashMap<u64, u64>,
    notes: u64,
    /// There may be others than these.
    has_more: bool,
}

/// Beside an open data file: the round in which it was noted.
#[derive(Debug, Default)]
pub(crate) struct Mark(AtomicU64);

/// What is to be synced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToSync {
    Whole,
    Files(Vec<u64>),
}

impl Default for Unsynced {
    fn default() -> Unsynced {
        let noted = Noted { inos: HashMap::new(), notes: 0, has_more: true };
        Unsynced { round: AtomicU64::new(1), noted: Mutex::new(noted) }
    }
}

impl Unsynced {
    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of this data file has ended.
    pub(crate) fn note(&self, ino: u64, mark: &Mark) {
        if mark.0.load(Ordering::SeqCst) == self.round.load(Ordering::SeqCst) {
            return;
        }
        let mut noted = self.noted();
        mark.0.store(self.round.load(Ordering::SeqCst), Ordering::SeqCst);
        noted.notes += 1;
        let note = noted.notes;
        if noted.inos.len() < NOTED_MAX || noted.inos.contains_key(&ino) {
            noted.inos.insert(ino, note);
        } else {
            noted.has_more = true;
        }
    }

    /// A sync of this data file begins; what is returned is for [`Unsynced::synced`].
    pub(crate) fn begin_sync(&self, ino: u64, mark: &Mark) -> Option<u64> {
        let noted = self.noted();
        mark.0.store(0, Ordering::SeqCst);
        noted.inos.get(&ino).copied()
    }

    /// The sync that began at this note has succeeded.
    pub(crate) fn synced(&self, ino: u64, note: Option<u64>) {
        let mut noted = self.noted();
        if note.is_some() && noted.inos.get(&ino).copied() == note {
            noted.inos.remove(&ino);
        }
    }

    /// The data file is not there any more.
    pub(crate) fn forget(&self, ino: u64) {
        self.noted().inos.remove(&ino);
    }

    /// What must be synced now.
    pub(crate) fn to_sync(&self) -> ToSync {
        let noted = self.noted();
        if noted.has_more || noted.inos.len() > ONE_BY_ONE_MAX {
            return ToSync::Whole;
        }
        ToSync::Files(noted.inos.keys().copied().collect())
    }

    /// A sync of the whole begins. Returns the inodes that were noted, in order.
    pub(crate) fn begin_whole(&self) -> Vec<u64> {
        let mut noted = self.noted();
        self.round.fetch_add(1, Ordering::SeqCst);
        noted.has_more = false;
        let mut inos: Vec<u64> = std::mem::take(&mut noted.inos).into_keys().collect();
        drop(noted);
        inos.sort_unstable();
        inos
    }

    /// The sync of the whole has failed.
    pub(crate) fn whole_failed(&self) {
        self.noted().has_more = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_a_whole_sync() -> Unsynced {
        let unsynced = Unsynced::default();
        assert_eq!(unsynced.to_sync(), ToSync::Whole, "an earlier run may have left something");
        unsynced.begin_whole();
        unsynced
    }

    #[test]
    fn what_is_changed_beside_a_sync_stays_noted() {
        let (unsynced, mark) = (after_a_whole_sync(), Mark::default());
        unsynced.note(7, &mark);
        let note = unsynced.begin_sync(7, &mark);
        assert_eq!(
            unsynced.to_sync(),
            ToSync::Files(vec![7]),
            "it is not durable before the sync has succeeded"
        );
        unsynced.note(7, &mark);
        unsynced.synced(7, note);
        assert_eq!(unsynced.to_sync(), ToSync::Files(vec![7]));
        unsynced.synced(7, unsynced.begin_sync(7, &mark));
        assert_eq!(unsynced.to_sync(), ToSync::Files(vec![]));
        unsynced.note(7, &mark);
        assert_eq!(unsynced.to_sync(), ToSync::Files(vec![7]));
        unsynced.forget(7);
        assert_eq!(unsynced.to_sync(), ToSync::Files(vec![]));
    }

    #[test]
    fn many_are_synced_as_a_whole_and_what_is_changed_meanwhile_is_noted() {
        let unsynced = after_a_whole_sync();
        let marks: Vec<Mark> = (0..=ONE_BY_ONE_MAX).map(|_| Mark::default()).collect();
        (1..).zip(&marks).for_each(|(ino, mark)| unsynced.note(ino, mark));
        assert_eq!(unsynced.to_sync(), ToSync::Whole);
        unsynced.begin_whole();
        unsynced.note(1, &marks[0]);
        assert_eq!(unsynced.to_sync(), ToSync::Files(vec![1]));
        unsynced.whole_failed();
        assert_eq!(unsynced.to_sync(), ToSync::Whole);
    }
}
