//! A table that only grows: entries are added by one thread while others read, without a lock and without
//! moving.
//!
//! ```text
//!   index    0 … 15    16 … 47    48 … 111    …     each part is twice as long as the one before,
//!   parts   [ 16 ]    [  32  ]   [   64   ]         and made when it is needed
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::wait::lock;

/// Length of the first part; a power of two.
const FIRST_LEN: usize = 16;
/// Enough for every 16-bit number.
const PARTS: usize = 13;
const _: () = assert!((FIRST_LEN << PARTS) - FIRST_LEN > u16::MAX as usize);

/// The part that an entry is in, and its place there.
fn place(index: usize) -> (usize, usize) {
    let shifted = index + FIRST_LEN;
    let part = (shifted.ilog2() - FIRST_LEN.ilog2()) as usize;
    (part, shifted - (FIRST_LEN << part))
}

/// See the module.
pub struct Table<T> {
    parts: [OnceLock<Box<[OnceLock<T>]>>; PARTS],
    len: AtomicUsize,
    adding: Mutex<()>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { parts: Default::default(), len: AtomicUsize::new(0), adding: Mutex::default() }
    }
}

impl<T> Table<T> {
    /// Adds an entry; its index, `None` where the table is full.
    pub fn push(&self, entry: T) -> Option<usize> {
        let _guard = lock(&self.adding);
        let index = self.len.load(Ordering::Relaxed);
        let (part, at) = place(index);
        let empty = || (0..FIRST_LEN << part).map(|_| OnceLock::new()).collect();
        let is_set = self.parts.get(part)?.get_or_init(empty)[at].set(entry).is_ok();
        debug_assert!(is_set, "an entry is added once");
        self.len.store(index + 1, Ordering::Release);
        Some(index)
    }

    /// The entry with this index. Where the table is shorter it grows by as many as that takes.
    ///
    /// # Panics
    /// If the index is no 16-bit number.
    pub fn get_or_grow(&self, index: usize) -> &T
    where
        T: Default,
    {
        while self.len() <= index {
            self.push(T::default());
        }
        self.get(index).expect("a 16-bit index")
    }

    /// The entry with this index.
    pub fn get(&self, index: usize) -> Option<&T> {
        let (part, at) = place(index);
        self.parts.get(part)?.get()?.get(at)?.get()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// What is there now, with the indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> + Clone {
        (0..self.len()).filter_map(|index| Some((index, self.get(index)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_where_they_are_while_others_are_added() {
        let table = Table::default();
        assert_eq!(table.push(0usize), Some(0));
        let first = table.get(0).unwrap() as *const usize;
        for entry in 1..5000 {
            assert_eq!((table.get(entry), table.push(entry)), (None, Some(entry)));
        }
        assert!(table.iter().all(|(index, entry)| index == *entry));
        assert_eq!((table.iter().count(), table.len()), (5000, 5000));
        assert_eq!(table.get(0).unwrap() as *const usize, first);
        assert_eq!((table.get(5000), table.get(usize::MAX >> 1)), (None, None));
    }

    #[test]
    fn every_16_bit_number_has_a_place_of_its_own() {
        let mut before = None;
        for index in 0..=usize::from(u16::MAX) {
            let (part, at) = place(index);
            assert!(part < PARTS && at < FIRST_LEN << part);
            assert!(before < Some((part, at)));
            before = Some((part, at));
        }
    }

    #[test]
    fn readers_see_whole_entries_while_the_table_grows() {
        let table: Table<Vec<usize>> = Table::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while table.len() < 2000 {
                        for (index, entry) in table.iter() {
                            assert_eq!(entry, &[index; 3]);
                        }
                    }
                });
            }
            (0..2000).for_each(|index| assert_eq!(table.push(vec![index; 3]), Some(index)));
        });
    }
}
