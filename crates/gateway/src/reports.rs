//! Which attributes, and which names of a directory, may be older than what this gateway has reported or changed itself.
//!
//! ```text
//!   one      write 64 KiB ──► flush: Report ─────────► server          the record: inode 7 at t₂
//!   another      lookup at t₁ ──► Stat ──► server: 0 bytes    reply ─► t₁ < t₂: what the reply says of inode 7 is asked for again
//! ```
//!
//! The metadata server replies with the size that it knows to a client that alone writes a file, for that client
//! reports before it asks. A lookup cannot, as it does not know yet which inode it asks for; nor does a page of a
//! listing that was read a moment ago. And who asks while somebody else's report is under way has nothing to report,
//! and must wait for it.
//!
//! A listing may have names as well that were removed since; an inode stands for the names of a directory too.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use weft_client::File;
use weft_wire::messages::Attr;

/// Inodes that share a lock only wait for each other's reports now and then.
const LOCKS: usize = 1024;
/// Changes remembered.
const CHANGES_MAX: usize = 1024;

/// Changes that this gateway has made, each with a key: an inode, or what stands for something else.
pub struct Changes {
    done: Mutex<Done>,
}

struct Done {
    /// Keys with the time at which the change had been made, in order.
    changes: VecDeque<(u64, Instant)>,
    /// All later ones are remembered.
    complete_since: Instant,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes { done: Mutex::new(Done { changes: VecDeque::new(), complete_since: Instant::now() }) }
    }
}

impl Changes {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was changed, or may have been.
    pub fn changed(&self, key: u64) {
        let mut done = self.done();
        if done.changes.len() == CHANGES_MAX
            && let Some((_, at)) = done.changes.pop_front()
        {
            done.complete_since = at;
        }
        done.changes.push_back((key, Instant::now()));
    }

    /// Whether a reply that was asked for at `asked_at` may lack a change of it. One that is under way does not
    /// count.
    pub fn changed_since(&self, key: u64, asked_at: Instant) -> bool {
        let done = self.done();
        let mut since = done.changes.iter().rev().take_while(|(_, at)| *at >= asked_at);
        asked_at <= done.complete_since || since.any(|&(changed, _)| changed == key)
    }

    /// Whether a reply that was asked for at `asked_at` may lack a change of anything.
    pub fn any_since(&self, asked_at: Instant) -> bool {
        self.done().changes.back().is_some_and(|(_, at)| *at >= asked_at)
    }
}

/// Changes of attributes by this gateway, and reports of what it wrote.
pub struct Reports {
    under_way: Box<[Mutex<()>]>,
    done: Changes,
}

impl Default for Reports {
    fn default() -> Reports {
        Reports { under_way: (0..LOCKS).map(|_| Mutex::default()).collect(), done: Changes::default() }
    }
}

impl Reports {
    /// Waits until no report of this inode is under way; there will be none until the guard is dropped.
    pub fn alone(&self, ino: u64) -> MutexGuard<'_, ()> {
        self.under_way[ino as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what was written through an open file of this inode, by [`File::flush`] or the like; returns the attributes
    /// after it, if anything was reported.
    ///
    /// # Errors
    /// Those of `report`.
    pub fn report(
        &self,
        ino: u64,
        file: &File,
        report: fn(&File) -> weft_client::Result<Option<Attr>>,
    ) -> weft_client::Result<Option<Attr>> {
        let _alone = self.alone(ino);
        let reported = report(file);
        if !matches!(reported, Ok(None)) {
            self.changed(ino);
        }
        reported
    }

    /// Attributes of an inode, or names of a directory, were changed, or may have been.
    pub fn changed(&self, ino: u64) {
        self.done.changed(ino);
    }

    /// Whether attributes of `ino`, or its names, that were asked for at `asked_at` may lack a change of this gateway's.
    /// One that is under way does not count.
    pub fn changed_since(&self, ino: u64, asked_at: Instant) -> bool {
        self.done.changed_since(ino, asked_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn only_what_was_asked_for_before_a_change_of_the_same_inode_is_old() {
        let reports = Reports::default();
        let before = Instant::now();
        assert!(!reports.changed_since(7, before));
        reports.changed(7);
        assert!(reports.changed_since(7, before));
        assert!(!reports.changed_since(8, before));
        assert!(!reports.changed_since(7, Instant::now()));
    }

    #[test]
    fn what_was_asked_for_before_any_change_may_lack_one() {
        let changes = Changes::default();
        let before = Instant::now();
        assert!(!changes.any_since(before));
        changes.changed(7);
        assert!(changes.any_since(before));
        assert!(!changes.any_since(Instant::now()));
    }

    #[test]
    fn what_is_remembered_no_more_may_have_been_any_inode() {
        let reports = Reports::default();
        let before = Instant::now();
        (0..=CHANGES_MAX as u64).for_each(|ino| reports.changed(ino));
        assert!(reports.changed_since(1 << 40, before));
        assert!(!reports.changed_since(1 << 40, Instant::now()));
    }

    #[test]
    fn who_comes_while_a_report_is_under_way_sees_that_it_is_done() {
        let reports = Reports::default();
        let (begun, begins) = channel();
        std::thread::scope(|scope| {
            let reports = &reports;
            scope.spawn(move || {
                let _alone = reports.alone(7);
                begun.send(()).unwrap();
                std::thread::yield_now();
                reports.changed(7);
            });
            begins.recv().unwrap();
            let _alone = reports.alone(7);
            assert_eq!(reports.done.done().changes.len(), 1);
        });
    }
}
