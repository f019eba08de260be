//! Which ranges of files this process has locked (fcntl, lockf), so that it is known when none is left.
//!
//! ```text
//!   lock 0..100, unlock 0..50, unlock 50..100    none is left: the file can be mapped
//! ```

use crate::memory::SpinLock;
use crate::mounts;

/// The owner of locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The process, which is of this generation, on a file. Children do not inherit them.
    Process { generation: u32, ino: u64 },
    /// An open file, by its address.
    Open(usize),
}

impl Owner {
    pub(crate) fn process(ino: u64) -> Owner {
        Owner::Process { generation: mounts::generation(), ino }
    }

    pub(crate) fn open<T>(open: &'static T) -> Owner {
        Owner::Open(std::ptr::from_ref(open) as usize)
    }
}

/// First and last byte of each locked range. Held over a fork.
pub(crate) static LOCKED: SpinLock<Vec<(Owner, Ranges)>> = SpinLock::new(Vec::new());

/// Records that a range is now locked or unlocked.
pub(crate) fn note(owner: Owner, (first, last): (u64, u64), is_locked: bool) {
    LOCKED.with(|locked| {
        let at = match locked.iter().position(|(other, _)| *other == owner) {
            Some(at) => at,
            None if !is_locked => return,
            None => {
                locked.push((owner, Ranges::default()));
                locked.len() - 1
            }
        };
        let ranges = &mut locked[at].1;
        ranges.remove(first, last);
        if is_locked {
            ranges.0.push((first, last));
        } else if ranges.0.is_empty() {
            locked.swap_remove(at);
        }
    });
}

/// Records that nothing is locked any more.
pub(crate) fn forget(owner: Owner) {
    LOCKED.with(|locked| locked.retain(|(other, _)| *other != owner));
}

/// Whether one of these has locked any range.
pub(crate) fn any(owners: [Owner; 2]) -> bool {
    LOCKED.with(|locked| locked.iter().any(|(owner, _)| owners.contains(owner)))
}

/// Disjoint ranges: first and last byte of each.
#[derive(Default)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    fn remove(&mut self, first: u64, last: u64) {
        let mut rests = Vec::new();
        for (start, end) in self.0.drain(..) {
            if end < first || last < start {
                rests.push((start, end));
                continue;
            }
            if start < first {
                rests.push((start, first - 1));
            }
            if last < end {
                rests.push((last + 1, end));
            }
        }
        self.0 = rests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_left_until_each_of_their_bytes_is_unlocked() {
        let owner = Owner::Open(1);
        let left = || {
            LOCKED.with(|locked| {
                locked.iter().find(|(other, _)| *other == owner).map(|(_, ranges)| ranges.0.clone())
            })
        };
        note(owner, (0, 99), false);
        assert_eq!(left(), None);
        note(owner, (0, 99), true);
        note(owner, (50, 149), true);
        note(owner, (10, 19), false);
        assert_eq!(left(), Some(vec![(0, 9), (20, 49), (50, 149)]));
        note(owner, (0, 59), false);
        note(owner, (60, u64::MAX), false);
        assert_eq!(left(), None);
        note(owner, (5, 5), true);
        forget(owner);
        assert_eq!(left(), None);
    }
}
