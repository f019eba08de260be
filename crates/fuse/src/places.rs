//! Where the kernel has each directory that it knows.
//!
//! The kernel has a directory at one place only. Where a lookup finds it at another one, the kernel moves it there; but in a
//! rename(2) between two directories, which holds the lock that this takes, it fails with ESTALE instead. So before such a lookup
//! is answered, the kernel is made to drop the directory from the place where it was (`coherence.rs`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A directory's number, and a name in it.
pub(crate) type Place = (u64, Box<[u8]>);

/// See the module.
#[derive(Default)]
pub(crate) struct Places {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    places: HashMap<u64, Place>,
    directories: HashMap<Place, u64>,
}

impl Places {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the kernel has a directory, if that is not `place`.
    pub(crate) fn elsewhere(&self, ino: u64, place: &Place) -> Option<Place> {
        self.known().places.get(&ino).filter(|known| *known != place).cloned()
    }

    /// The kernel has a directory at this place.
    pub(crate) fn put(&self, ino: u64, place: Place) {
        self.known().put(ino, place);
    }

    /// The kernel knows a directory no more.
    pub(crate) fn forget(&self, ino: u64) {
        let mut known = self.known();
        if let Some(place) = known.places.remove(&ino) {
            known.vacate(&place, ino);
        }
    }

    /// This mount has moved what is at a place, if that is a directory.
    pub(crate) fn moved(&self, from: Place, to: Place) {
        let mut known = self.known();
        if let Some(ino) = known.directories.remove(&from) {
            known.put(ino, to);
        }
    }

    /// This mount has exchanged what is at two places.
    pub(crate) fn exchanged(&self, one: Place, other: Place) {
        let mut known = self.known();
        let [first, second] = [&one, &other].map(|place| known.directories.get(place).copied());
        for (ino, place) in [(first, other), (second, one)] {
            if let Some(ino) = ino {
                known.put(ino, place);
            }
        }
    }
}

impl Known {
    fn put(&mut self, ino: u64, place: Place) {
        if let Some(before) = self.places.insert(ino, place.clone()) {
            self.vacate(&before, ino);
        }
        self.directories.insert(place, ino);
    }

    fn vacate(&mut self, place: &Place, ino: u64) {
        if self.directories.get(place) == Some(&ino) {
            self.directories.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: u64, name: &str) -> Place {
        (dir, name.as_bytes().into())
    }

    #[test]
    fn a_directory_is_where_the_kernel_was_told_last() {
        let places = Places::default();
        assert_eq!(places.elsewhere(7, &at(1, "a")), None);
        places.put(7, at(1, "a"));
        assert_eq!(places.elsewhere(7, &at(1, "a")), None);
        assert_eq!(places.elsewhere(7, &at(2, "a")), Some(at(1, "a")));
        places.put(7, at(2, "a"));
        assert_eq!(places.elsewhere(7, &at(1, "a")), Some(at(2, "a")));
        places.forget(7);
        assert_eq!(places.elsewhere(7, &at(1, "a")), None);
        assert!(places.known().directories.is_empty());
    }

    #[test]
    fn what_this_mount_moves_the_kernel_moves_itself() {
        let places = Places::default();
        places.put(7, at(1, "a"));
        places.moved(at(1, "a"), at(2, "b"));
        assert_eq!(places.elsewhere(7, &at(2, "b")), None);
        places.moved(at(1, "a"), at(3, "a file, or nothing"));
        places.put(8, at(1, "c"));
        places.exchanged(at(2, "b"), at(1, "c"));
        assert_eq!(places.elsewhere(7, &at(1, "c")), None);
        assert_eq!(places.elsewhere(8, &at(2, "b")), None);
        places.exchanged(at(2, "b"), at(1, "a file"));
        assert_eq!(places.elsewhere(8, &at(1, "a file")), None);
        assert_eq!(places.known().directories.len(), 2);
    }

    #[test]
    fn a_place_that_another_has_taken_is_not_lost_with_the_one_before() {
        let places = Places::default();
        places.put(7, at(1, "a"));
        places.put(8, at(1, "a"));
        places.forget(7);
        places.moved(at(1, "a"), at(1, "b"));
        assert_eq!(places.elsewhere(8, &at(1, "a")), Some(at(1, "b")));
    }
}
