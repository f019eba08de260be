//! The byte ranges that one owner has locked in one file, with the rules of POSIX: a new lock replaces what
//! it overlaps, a lock that is cut keeps its ends, and adjacent locks of one kind are one lock.
//!
//! ```text
//!   held          [ S 0 … 99 ]                          shared, bytes 0 to 99
//!   lock X 40–59  [ S 0–39 ][ X 40–59 ][ S 60–99 ]
//!   unlock 0–9             [ S 10–39 ][ X 40–59 ][ S 60–99 ]
//!   lock S 40–59           [ S 10 … 99 ]
//! ```

/// One locked range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock {
    /// First byte.
    pub first: u64,
    /// Last byte, at least `first`.
    pub last: u64,
    /// Exclusive, or shared.
    pub exclusive: bool,
}

/// All ranges of an owner: sorted, without overlaps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldLocks {
    locks: Vec<HeldLock>,
}

impl HeldLocks {
    /// Locks the bytes from `first` to `last` (inclusive, at least `first`): exclusively, shared, or (`None`)
    /// not at all.
    pub fn set(&mut self, first: u64, last: u64, exclusive: Option<bool>) {
        let begin = self.locks.partition_point(|lock| lock.last < first);
        let end = self.locks.partition_point(|lock| lock.first <= last).max(begin);
        let cut = &self.locks[begin..end];
        let head = cut.first().filter(|lock| lock.first < first);
        let head = head.map(|lock| HeldLock { last: first - 1, ..*lock });
        let tail = cut.last().filter(|lock| lock.last > last);
        let tail = tail.map(|lock| HeldLock { first: last + 1, ..*lock });
        let new = exclusive.map(|exclusive| HeldLock { first, last, exclusive });
        self.locks.splice(begin..end, [head, new, tail].into_iter().flatten());
        self.join(begin.saturating_sub(1), begin + 3);
    }

    /// Joins adjacent locks of one kind, from index `begin` to `end`.
    fn join(&mut self, begin: usize, end: usize) {
        for at in (begin..end).rev() {
            let (Some(one), Some(next)) = (self.locks.get(at), self.locks.get(at + 1)) else { continue };
            if one.exclusive == next.exclusive && one.last.checked_add(1) == Some(next.first) {
                self.locks[at].last = next.last;
                self.locks.remove(at + 1);
            }
        }
    }

    /// The locks that overlap the bytes from `first` to `last`.
    pub fn overlapping(&self, first: u64, last: u64) -> impl Iterator<Item = &HeldLock> {
        let begin = self.locks.partition_point(|lock| lock.last < first);
        self.locks[begin..].iter().take_while(move |lock| lock.first <= last)
    }

    /// Whether all bytes from `first` to `last` are locked in this way.
    pub fn covers(&self, first: u64, last: u64, exclusive: bool) -> bool {
        let one = |lock: &HeldLock| lock.exclusive == exclusive && lock.first <= first && lock.last >= last;
        self.overlapping(first, last).any(one)
    }

    /// The locks in order.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock> {
        self.locks.iter()
    }

    /// The number of locks.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 24;

    fn bytes_of(locks: &HeldLocks) -> Vec<Option<bool>> {
        (0..BYTES)
            .map(|byte| {
                let mut at = locks.overlapping(byte, byte);
                let found = at.next().map(|lock| lock.exclusive);
                assert!(at.next().is_none(), "two locks have byte {byte}");
                found
            })
            .collect()
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn every_byte_is_locked_as_a_model_of_bytes_has_it(
            steps in proptest::collection::vec((0..BYTES, 0..BYTES, any::<Option<bool>>()), 0..40),
        ) {
            let mut locks = HeldLocks::default();
            let mut model = vec![None; BYTES as usize];
            for (one, other, exclusive) in steps {
                let (first, last) = (one.min(other), one.max(other));
                locks.set(first, last, exclusive);
                model[first as usize..=last as usize].fill(exclusive);
                prop_assert_eq!(bytes_of(&locks), &model[..]);
                let joined = locks.locks.windows(2).all(|pair| {
                    pair[0].last < pair[1].first
                        && (pair[0].last + 1 < pair[1].first || pair[0].exclusive != pair[1].exclusive)
                });
                prop_assert!(joined, "{locks:?}");
            }
        }
    }

    #[test]
    fn the_last_byte_of_all_can_be_locked() {
        let mut locks = HeldLocks::default();
        locks.set(0, u64::MAX, Some(true));
        locks.set(5, u64::MAX, None);
        assert!(locks.covers(0, 4, true) && !locks.covers(0, 5, true) && locks.len() == 1);
        locks.set(5, u64::MAX, Some(true));
        assert!(locks.covers(0, u64::MAX, true) && locks.len() == 1);
    }
}
