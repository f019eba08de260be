//! Which data files there must be: a mark for each one that has had checksums, kept apart from both.
//!
//! ```text
//!   DIR/held/9e/37/0000000000000001      256 bytes, one for each of the inodes 256 to 511: 0xa5 where there is a data file
//! ```
//!
//! A mark is set when checksums of the data file come into force, so when the data file and its name are durable, and cleared
//! when the data file is removed. Both reach the disk with the next settling, and are not synced. A crash can therefore lose a
//! mark, or leave one of a data file that was removed. The first hides a later loss until the next scrub; the second is harmless,
//! since inode numbers are never used again, and no client reads a removed file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::tree::{create_in, file_name, if_there, list_in, open_at};

const GROUP: usize = 256;
const MARK: u8 = 0xa5;
/// Groups kept in memory, and inodes known to have no sidecar.
const KNOWN_MAX: usize = 4096;
/// Changes that wait to be written. More are written at once.
const CHANGED_MAX: usize = 1 << 16;

type Marks = [u8; GROUP];

#[derive(Debug, Default)]
struct Known {
    groups: HashMap<u64, Marks>,
    /// Marks that are not on the disk yet.
    changed: BTreeMap<u64, bool>,
    /// Inodes without a data file and without a sidecar.
    empty: HashSet<u64>,
}

/// The marks of one set of data files.
#[derive(Debug)]
pub(crate) struct Held {
    path: PathBuf,
    opened: OnceLock<File>,
    known: Mutex<Known>,
    /// Held while marks are written.
    writing: Mutex<()>,
}

impl Held {
    pub fn new(path: PathBuf) -> Held {
        Held { path, opened: OnceLock::new(), known: Mutex::default(), writing: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> io::Result<Option<&File>> {
        if self.opened.get().is_none()
            && let Some(file) = if_there(File::open(&self.path))?
        {
            let _ = self.opened.set(file);
        }
        Ok(self.opened.get())
    }

    fn read(&self, group: u64) -> io::Result<Marks> {
        let mut marks = [0; GROUP];
        let Some(directory) = self.opened()? else { return Ok(marks) };
        if let Some(file) = if_there(open_at(directory, &file_name(group), libc::O_RDONLY))? {
            let mut done = 0;
            while done < GROUP {
                match file.read_at(&mut marks[done..], done as u64)? {
                    0 => break,
                    count => done += count,
                }
            }
        }
        Ok(marks)
    }

    fn write(&self, group: u64, marks: &Marks) -> io::Result<()> {
        if self.opened()?.is_none() {
            match fs::DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        create_in(self.opened()?.ok_or(io::ErrorKind::NotFound)?, group)?.write_all_at(marks, 0)
    }

    /// Whether there must be a data file of this inode.
    pub fn has(&self, ino: u64) -> io::Result<bool> {
        let mut known = self.known();
        if let Some(mark) = known.changed.get(&ino) {
            return Ok(*mark);
        }
        let (group, at) = (ino / GROUP as u64, ino as usize % GROUP);
        if let Some(marks) = known.groups.get(&group) {
            return Ok(marks[at] == MARK);
        }
        let marks = self.read(group)?;
        if known.groups.len() >= KNOWN_MAX {
            known.groups.clear();
        }
        known.groups.insert(group, marks);
        Ok(marks[at] == MARK)
    }

    /// Notes that there must be a data file of this inode, or that there is none any more.
    pub fn set(&self, ino: u64, mark: bool) -> io::Result<()> {
        let is_full = {
            let mut known = self.known();
            known.empty.remove(&ino);
            known.changed.insert(ino, mark);
            known.changed.len() > CHANGED_MAX
        };
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Writes what has changed.
    pub fn flush(&self) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let changed: Vec<(u64, bool)> =
            self.known().changed.iter().map(|(ino, mark)| (*ino, *mark)).collect();
        for same in changed.chunk_by(|one, other| one.0 / GROUP as u64 == other.0 / GROUP as u64) {
            let group = same[0].0 / GROUP as u64;
            let before = self.read(group)?;
            let mut marks = before;
            for (ino, mark) in same {
                marks[*ino as usize % GROUP] = if *mark { MARK } else { 0 };
            }
            if marks != before {
                self.write(group, &marks)?;
            }
            let mut known = self.known();
            known.groups.remove(&group);
            for (ino, mark) in same {
                if known.changed.get(ino) == Some(mark) {
                    known.changed.remove(ino);
                }
            }
        }
        Ok(())
    }

    /// Whether this inode is known to have neither a data file nor a sidecar.
    pub fn is_known_empty(&self, ino: u64) -> bool {
        self.known().empty.contains(&ino)
    }

    pub fn note_empty(&self, ino: u64) {
        let mut known = self.known();
        if known.empty.len() >= KNOWN_MAX {
            known.empty.clear();
        }
        known.empty.insert(ino);
    }

    /// The marked inodes of at most `max` groups after group `after`, and the last of these groups.
    pub fn list(&self, after: Option<u64>, max: usize) -> io::Result<(Vec<u64>, Option<u64>)> {
        let groups = list_in(&self.path, after, max, |group| Ok(Some(group)))?;
        let mut inos = Vec::new();
        for group in &groups {
            let marks = self.read(*group)?;
            let marked = marks.iter().enumerate().filter(|(_, mark)| **mark == MARK);
            inos.extend(marked.map(|(at, _)| group * GROUP as u64 + at as u64));
        }
        Ok((inos, groups.last().copied().filter(|_| groups.len() == max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_again_and_cleared_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = || Held::new(directory.path().join("held"));
        let held = at();
        for ino in [2, 255, 256, 70_000] {
            assert!(!held.has(ino).unwrap());
            held.set(ino, true).unwrap();
            assert!(held.has(ino).unwrap());
        }
        held.flush().unwrap();
        held.set(255, false).unwrap();
        assert!(!held.has(255).unwrap() && at().has(255).unwrap());
        held.flush().unwrap();
        let again = at();
        let found = [2, 3, 255, 256, 70_000].map(|ino| again.has(ino).unwrap());
        assert_eq!(found, [true, false, false, true, true]);
        let mut inos = again.list(None, 100).unwrap().0;
        inos.sort_unstable();
        assert_eq!(inos, [2, 256, 70_000]);
    }

    #[test]
    fn damaged_marks_are_no_marks() {
        let directory = tempfile::tempdir().unwrap();
        let held = Held::new(directory.path().join("held"));
        held.set(5, true).unwrap();
        held.flush().unwrap();
        let file = create_in(held.opened().unwrap().unwrap(), 0).unwrap();
        for byte in (0..=255u8).filter(|byte| *byte != MARK) {
            file.write_all_at(&[byte; GROUP], 0).unwrap();
            let fresh = Held::new(directory.path().join("held"));
            assert!((0..256).all(|ino| !fresh.has(ino).unwrap()));
        }
    }
}
