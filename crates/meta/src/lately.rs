//! Inodes that have lost their last name a moment ago, while somebody may be about to use them.
//!
//! A kernel walks a path and then uses the inode that it found, by number: two requests. What comes in between must not show, as it does
//! not on a local file system:
//!
//! ```text
//!   who opens       finds f: inode 7 . . . . . . . . . . . . . . opens inode 7: as if before the rename
//!   who replaces                        renames g to f
//!   here                                7 is young ──turn──► old ──let go──► purged, unless it is open then
//! ```
//!
//! So they are held here, as by an `open`, for one to two turns. In memory only: what a restart leaves is an orphan like others. How
//! long a turn is, and whether anybody may be about to use an inode, is for the caller to say.

use std::collections::HashSet;

/// Inodes in one turn after which it should end.
const TURN_INODES_MAX: usize = 2048;
/// Bytes of their files after which it should end: their space is not free until then. A larger file is not kept, for such are not
/// replaced so fast that who looks for the second time misses it again.
const TURN_BYTES_MAX: u64 = 32 << 20;

/// The inodes of two turns.
#[derive(Debug, Default)]
pub(crate) struct LatelyRemoved {
    young: HashSet<u64>,
    young_bytes: u64,
    old: HashSet<u64>,
}

impl LatelyRemoved {
    /// Whether a file of so many bytes may be kept.
    pub fn takes(bytes: u64) -> bool {
        bytes <= TURN_BYTES_MAX
    }

    pub fn add(&mut self, ino: u64, bytes: u64) {
        self.young.insert(ino);
        self.young_bytes = self.young_bytes.saturating_add(bytes);
    }

    pub fn contains(&self, ino: u64) -> bool {
        self.young.contains(&ino) || self.old.contains(&ino)
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether the turn should end before its time.
    pub fn is_full(&self) -> bool {
        self.young.len() >= TURN_INODES_MAX || self.young_bytes > TURN_BYTES_MAX
    }

    /// Ends the turn: what is young is old then, beside what is still to be let go.
    pub fn turn(&mut self) {
        self.young_bytes = 0;
        self.old.extend(self.young.drain());
    }

    /// Some that are old.
    pub fn old(&self, max: usize) -> Vec<u64> {
        self.old.iter().copied().take(max).collect()
    }

    pub fn let_go(&mut self, ino: u64) {
        self.old.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_kept_for_a_turn_and_let_go_after_the_next() {
        let mut lately = LatelyRemoved::default();
        lately.add(7, 10);
        assert_eq!((lately.old(9), lately.contains(7)), (vec![], true));
        lately.turn();
        assert_eq!((lately.old(9), lately.contains(7), lately.len()), (vec![7], true, 1));
        lately.add(8, 10);
        lately.let_go(7);
        assert_eq!((lately.old(9), lately.contains(7), lately.contains(8)), (vec![], false, true));
    }

    #[test]
    fn a_turn_is_full_of_inodes_or_of_bytes() {
        let mut lately = LatelyRemoved::default();
        (0..TURN_INODES_MAX as u64 - 1).for_each(|ino| lately.add(ino, 0));
        assert!(!lately.is_full());
        lately.add(u64::MAX, 0);
        assert!(lately.is_full());
        lately.turn();
        lately.add(1, TURN_BYTES_MAX);
        assert!(!lately.is_full() && LatelyRemoved::takes(TURN_BYTES_MAX));
        lately.add(2, 1);
        assert!(lately.is_full() && !LatelyRemoved::takes(TURN_BYTES_MAX + 1));
    }
}
