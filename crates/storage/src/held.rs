//! Which data files there must be: a mark for each one that was synced or has checksums, kept apart from both.
//!
//! ```text
//!   DIR/held/9e/37/0000000000000001      256 bytes, one for each of the inodes 256 to 511: 0xa5 where there is a data file that
//!                                        has checksums, or had; 0x5a if there is one that was only synced
//!
//!   set       data file and its name are durable ─► mark written ─► synced within seconds
//!   cleared   mark cleared ─► synced ─► data file removed
//! ```
//!
//! So a mark that is on the disk has its data file there, whatever a crash leaves. A mark that was set survives a kill. A power cut
//! takes at most those of the last seconds, until the next sync or scrub of their files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::handles::RecentlyUsed;
use crate::tree::{create_in, fan_out, file_name, if_there, list_in, open_at};

const GROUP: usize = 256;
/// Groups kept in memory, and inodes known to have no sidecar.
const KNOWN_MAX: usize = 4096;
/// Files of groups that are kept open.
const OPEN_MAX: usize = 64;

type Marks = [u8; GROUP];

/// How much is known of a data file that there must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It was synced.
    Synced = 0x5a,
    /// Checksums of it were in force, too.
    Summed = 0xa5,
}

impl Mark {
    fn of(byte: u8) -> Option<Mark> {
        [Mark::Synced, Mark::Summed].into_iter().find(|mark| *mark as u8 == byte)
    }
}

/// What of a group is not synced.
#[derive(Debug, Clone, Default)]
struct Unsynced {
    /// The number of the last change.
    change: u64,
    /// Inodes whose marks were cleared.
    cleared: BTreeSet<u64>,
}

/// A sync of a group that was begun.
#[derive(Debug)]
pub(crate) struct GroupSync {
    group: u64,
    pub file: Arc<File>,
    begun: Unsynced,
}

struct Known {
    groups: HashMap<u64, Marks>,
    open: RecentlyUsed<u64, File>,
    changes: u64,
    unsynced: BTreeMap<u64, Unsynced>,
    /// Groups that were synced in this run. Others may have changes of an earlier one that are not.
    synced: HashSet<u64>,
    /// Groups whose names were made durable in this run, and directories that were.
    named: HashSet<u64>,
    named_places: HashSet<u16>,
    /// Inodes without a data file and without a sidecar.
    empty: HashSet<u64>,
}

/// The marks of one set of data files.
pub(crate) struct Held {
    path: PathBuf,
    opened: OnceLock<File>,
    known: Mutex<Known>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The group that has the mark of an inode.
pub(crate) fn group_of(ino: u64) -> u64 {
    ino / GROUP as u64
}

fn place_in(ino: u64) -> usize {
    ino as usize % GROUP
}

impl Held {
    pub fn new(path: PathBuf) -> Held {
        let known = Known {
            groups: HashMap::new(),
            open: RecentlyUsed::new(OPEN_MAX),
            changes: 0,
            unsynced: BTreeMap::new(),
            synced: HashSet::new(),
            named: HashSet::new(),
            named_places: HashSet::new(),
            empty: HashSet::new(),
        };
        Held { path, opened: OnceLock::new(), known: Mutex::new(known) }
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

    fn marks(&self, known: &mut Known, group: u64) -> io::Result<Marks> {
        if let Some(marks) = known.groups.get(&group) {
            return Ok(*marks);
        }
        let marks = self.read(group)?;
        if known.groups.len() >= KNOWN_MAX {
            known.groups.clear();
        }
        known.groups.insert(group, marks);
        Ok(marks)
    }

    /// The file of a group, made if there is none.
    fn file(&self, known: &mut Known, group: u64) -> io::Result<Arc<File>> {
        if let Some(file) = known.open.get(group) {
            return Ok(file);
        }
        if self.opened()?.is_none() {
            match fs::DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let file = Arc::new(create_in(self.opened()?.ok_or(io::ErrorKind::NotFound)?, group)?);
        known.open.make_room();
        known.open.insert(group, file.clone());
        Ok(file)
    }

    /// The mark of an inode of which there must be a data file.
    pub fn mark(&self, ino: u64) -> io::Result<Option<Mark>> {
        Ok(Mark::of(self.marks(&mut self.known(), group_of(ino))?[place_in(ino)]))
    }

    /// Whether there must be a data file of this inode.
    pub fn has(&self, ino: u64) -> io::Result<bool> {
        Ok(self.mark(ino)?.is_some())
    }

    /// Notes that there must be data files of these inodes: they and their names are durable.
    pub fn set(&self, inos: &[u64], mark: Mark) -> io::Result<()> {
        self.change(inos, Some(mark))
    }

    /// Notes that the data files of these inodes are about to be removed. They may be once the returned syncs have ended.
    pub fn clear(&self, inos: &[u64]) -> io::Result<Vec<GroupSync>> {
        self.change(inos, None)?;
        let mut known = self.known();
        let mut groups = BTreeSet::new();
        for ino in inos {
            let group = group_of(*ino);
            let is_unsynced = known.unsynced.get(&group).is_some_and(|group| group.cleared.contains(ino));
            if is_unsynced || !known.synced.contains(&group) && self.is_there(&mut known, group)? {
                groups.insert(group);
            }
        }
        groups.into_iter().map(|group| self.begin_sync(&mut known, group)).collect()
    }

    /// Whether a group has a file. One that has none has nothing to sync.
    fn is_there(&self, known: &mut Known, group: u64) -> io::Result<bool> {
        let there = match self.opened()? {
            Some(directory) => if_there(open_at(directory, &file_name(group), libc::O_RDWR))?.is_some(),
            None => false,
        };
        if !there {
            known.synced.insert(group);
        }
        Ok(there)
    }

    fn change(&self, inos: &[u64], mark: Option<Mark>) -> io::Result<()> {
        let mut known = self.known();
        for same in inos.chunk_by(|one, other| group_of(*one) == group_of(*other)) {
            let group = group_of(same[0]);
            let mut marks = self.marks(&mut known, group)?;
            let is_changed = |ino: &u64| match Mark::of(marks[place_in(*ino)]) {
                Some(Mark::Summed) => mark.is_none(),
                before => before != mark,
            };
            let changed: Vec<u64> = same.iter().copied().filter(is_changed).collect();
            for ino in same {
                known.empty.remove(ino);
            }
            let places = changed.iter().map(|ino| place_in(*ino));
            let (Some(first), Some(last)) = (places.clone().min(), places.max()) else { continue };
            changed.iter().for_each(|ino| marks[place_in(*ino)] = mark.map_or(0, |mark| mark as u8));
            // Each byte is written as a whole, whatever tears the write.
            self.file(&mut known, group)?.write_all_at(&marks[first..=last], first as u64)?;
            known.groups.insert(group, marks);
            known.changes += 1;
            let change = known.changes;
            let unsynced = known.unsynced.entry(group).or_default();
            unsynced.change = change;
            for ino in changed {
                match mark {
                    Some(_) => unsynced.cleared.remove(&ino),
                    None => unsynced.cleared.insert(ino),
                };
            }
        }
        Ok(())
    }

    fn begin_sync(&self, known: &mut Known, group: u64) -> io::Result<GroupSync> {
        let file = self.file(known, group)?;
        Ok(GroupSync { group, file, begun: known.unsynced.get(&group).cloned().unwrap_or_default() })
    }

    /// Begins a sync of each group that was changed.
    pub fn begin_syncs(&self) -> io::Result<Vec<GroupSync>> {
        let mut known = self.known();
        let groups: Vec<u64> = known.unsynced.keys().copied().collect();
        groups.into_iter().map(|group| self.begin_sync(&mut known, group)).collect()
    }

    /// The bytes of a group are durable, or could not be made so.
    pub fn end_sync(&self, sync: &GroupSync, synced: io::Result<()>) -> io::Result<()> {
        let mut known = self.known();
        if synced.is_err() {
            // The kernel takes the bytes for clean now. Written again, the next sync is one of them.
            let marks = self.marks(&mut known, sync.group)?;
            sync.file.write_all_at(&marks, 0)?;
            return synced;
        }
        let is_named = known.named.contains(&sync.group);
        known.synced.insert(sync.group);
        if let Some(unsynced) = known.unsynced.get_mut(&sync.group) {
            unsynced.cleared.retain(|ino| !sync.begun.cleared.contains(ino));
            if unsynced.change == sync.begun.change && is_named {
                known.unsynced.remove(&sync.group);
            }
        }
        Ok(())
    }

    /// Makes the name of a group's file durable, unless this run has done so: before the end of its sync. Waits.
    pub fn sync_name(&self, sync: &GroupSync) -> io::Result<()> {
        let place = fan_out(sync.group);
        let (is_named, is_placed) = {
            let known = self.known();
            (known.named.contains(&sync.group), known.named_places.contains(&place))
        };
        let Some(directory) = self.opened()?.filter(|_| !is_named) else { return Ok(()) };
        let name = file_name(sync.group);
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        open_at(directory, &name[..5], flags)?.sync_all()?;
        if !is_placed {
            open_at(directory, &name[..2], flags)?.sync_all()?;
            directory.sync_all()?;
            open_at(directory, "..", flags)?.sync_all()?;
        }
        let mut known = self.known();
        known.named.insert(sync.group);
        known.named_places.insert(place);
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
            let marked = marks.iter().enumerate().filter(|(_, mark)| Mark::of(**mark).is_some());
            inos.extend(marked.map(|(at, _)| group * GROUP as u64 + at as u64));
        }
        Ok((inos, groups.last().copied().filter(|_| groups.len() == max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(held: &Held, groups: Vec<GroupSync>) {
        for group in groups {
            let synced = group.file.sync_data();
            held.sync_name(&group).unwrap();
            held.end_sync(&group, synced).unwrap();
        }
    }

    #[test]
    fn marks_are_found_again_and_cleared_ones_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let at = || Held::new(directory.path().join("held"));
        let held = at();
        let inos = [2, 255, 256, 70_000];
        assert!(inos.iter().all(|ino| !held.has(*ino).unwrap()));
        held.set(&inos, Mark::Synced).unwrap();
        assert!(inos.iter().all(|ino| held.has(*ino).unwrap() && at().has(*ino).unwrap()));
        let groups = held.begin_syncs().unwrap();
        assert_eq!(groups.len(), 3);
        sync(&held, groups);
        assert!(held.begin_syncs().unwrap().is_empty());
        held.set(&inos, Mark::Synced).unwrap();
        assert!(held.begin_syncs().unwrap().is_empty(), "nothing has changed");
        held.set(&[2], Mark::Summed).unwrap();
        held.set(&[2], Mark::Synced).unwrap();
        assert_eq!([2, 256].map(|ino| at().mark(ino).unwrap()), [Some(Mark::Summed), Some(Mark::Synced)]);
        sync(&held, held.begin_syncs().unwrap());
        assert!(held.clear(&[3, 257]).unwrap().is_empty(), "nothing has changed");
        let cleared = held.clear(&[3, 255]).unwrap();
        assert_eq!(cleared.len(), 1);
        assert!(!held.has(255).unwrap() && !at().has(255).unwrap());
        let found = [2, 3, 255, 256, 70_000].map(|ino| at().has(ino).unwrap());
        assert_eq!(found, [true, false, false, true, true]);
        let mut inos = at().list(None, 100).unwrap().0;
        inos.sort_unstable();
        assert_eq!(inos, [2, 256, 70_000]);
    }

    #[test]
    fn a_cleared_mark_is_synced_until_that_has_succeeded() {
        let directory = tempfile::tempdir().unwrap();
        let held = Held::new(directory.path().join("held"));
        held.set(&[5, 6], Mark::Synced).unwrap();
        let first = held.clear(&[5]).unwrap();
        assert_eq!(first.len(), 1);
        held.end_sync(&first[0], Err(io::ErrorKind::Other.into())).unwrap_err();
        let second = held.clear(&[5]).unwrap();
        assert_eq!(second.len(), 1, "it is not durable");
        // Another change of the group comes in between.
        held.set(&[7], Mark::Synced).unwrap();
        sync(&held, second);
        assert!(held.clear(&[5]).unwrap().is_empty());
        assert_eq!(held.clear(&[6]).unwrap().len(), 1);
        assert_eq!(held.begin_syncs().unwrap().len(), 1, "the mark of 7 is not synced");
    }

    #[test]
    fn damaged_marks_are_no_marks() {
        let directory = tempfile::tempdir().unwrap();
        let held = Held::new(directory.path().join("held"));
        held.set(&[5], Mark::Summed).unwrap();
        let file = create_in(held.opened().unwrap().unwrap(), 0).unwrap();
        for byte in (0..=255u8).filter(|byte| Mark::of(*byte).is_none()) {
            file.write_all_at(&[byte; GROUP], 0).unwrap();
            let fresh = Held::new(directory.path().join("held"));
            assert!((0..256).all(|ino| !fresh.has(ino).unwrap()));
        }
    }
}
