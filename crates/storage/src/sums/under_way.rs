//! A change of a data file that is under way.

use std::sync::Arc;

use super::table::FileSums;
use crate::unsynced::{Mark, Unsynced};

/// A change of a data file that is under way, of the blocks that it was begun for. It ends when this is dropped, after the last
/// byte was written.
#[must_use]
pub struct Change<'a> {
    pub(super) ino: u64,
    /// Its sums, where the disk keeps any, and the number of the change there.
    pub(super) of: Option<(Arc<FileSums>, u64)>,
    pub(super) unsynced: (&'a Unsynced, &'a Mark),
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let (unsynced, mark) = self.unsynced;
        unsynced.note(self.ino, mark);
        if let Some((sums, number)) = self.of.take() {
            sums.state().end_change(number);
        }
    }
}
