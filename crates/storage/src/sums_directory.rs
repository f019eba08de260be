//! The sidecars of data files: a tree beside that of the data files.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::held::Held;
use crate::tree::{create_in, fan_out, file_name, if_there, list_in, open_at, remove_in};

/// The sidecars of a storage directory's data files, below a directory that is made with the first of them.
#[derive(Debug)]
pub struct SumsDirectory {
    path: PathBuf,
    opened: OnceLock<File>,
    /// Sidecars that were removed, while that is not durable: a power cut may bring them back.
    removed: Mutex<HashSet<u64>>,
    held: Held,
}

/// From so many removed sidecars on each removal is made durable at once.
const REMOVED_MAX: usize = 1 << 20;

impl SumsDirectory {
    pub(crate) fn new(path: PathBuf, held: Held) -> SumsDirectory {
        SumsDirectory { path, opened: OnceLock::new(), removed: Mutex::default(), held }
    }

    /// Which data files there must be.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Whether an absent data file must be there: it is marked, or has checksums.
    pub(crate) fn expects(&self, ino: u64) -> io::Result<bool> {
        if self.held.has(ino)? {
            return Ok(true);
        }
        if self.held.is_known_empty(ino) {
            return Ok(false);
        }
        let has_sums = match self.open_file(ino)? {
            Some(sidecar) => sidecar.metadata()?.len() > 0,
            None => false,
        };
        if !has_sums {
            self.held.note_empty(ino);
        }
        Ok(has_sums)
    }

    fn opened(&self) -> io::Result<Option<&File>> {
        if self.opened.get().is_none()
            && let Some(file) = if_there(File::open(&self.path))?
        {
            let _ = self.opened.set(file);
        }
        Ok(self.opened.get())
    }

    pub(crate) fn open_file(&self, ino: u64) -> io::Result<Option<File>> {
        match self.opened()? {
            Some(directory) => if_there(open_at(directory, &file_name(ino), libc::O_RDWR)),
            None => Ok(None),
        }
    }

    pub(crate) fn create_file(&self, ino: u64) -> io::Result<File> {
        if self.opened()?.is_none() {
            match fs::DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        create_in(self.opened()?.ok_or(io::ErrorKind::NotFound)?, ino)
    }

    /// Removes a sidecar if there is one, before its data file is removed. The data file is not expected any more.
    pub(crate) fn remove_file(&self, ino: u64) -> io::Result<()> {
        for sync in self.held.clear(&[ino])? {
            self.held.end_sync(&sync, sync.file.sync_data())?;
        }
        let Some(directory) = self.opened()? else { return Ok(()) };
        if remove_in(directory, ino)? {
            self.removed().insert(ino);
            if self.removed().len() > REMOVED_MAX {
                self.settle_removal(ino)?;
            }
        }
        Ok(())
    }

    /// Makes sure that no power cut brings the sidecar of an older data file of this number back: before one is made.
    pub(crate) fn settle_removal(&self, ino: u64) -> io::Result<()> {
        if !self.removed().contains(&ino) {
            return Ok(());
        }
        if let Some(directory) = self.opened()?
            && let Some(inner) =
                if_there(open_at(directory, &file_name(ino)[..5], libc::O_RDONLY | libc::O_DIRECTORY))?
        {
            inner.sync_all()?;
        }
        self.removed().remove(&ino);
        Ok(())
    }

    /// The same for all that were removed until now, or some of them.
    pub(crate) fn settle_removals(&self) -> io::Result<()> {
        const AT_ONCE: usize = 64;
        let mut places: Vec<(u16, u64)> =
            self.removed().iter().take(4096).map(|ino| (fan_out(*ino), *ino)).collect();
        places.sort_unstable();
        for same in places.chunk_by(|one, other| one.0 == other.0).take(AT_ONCE) {
            self.settle_removal(same[0].1)?;
            let mut removed = self.removed();
            for (_, ino) in same {
                removed.remove(ino);
            }
        }
        Ok(())
    }

    fn removed(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At most `max` sidecars after `after`, in the order of data files.
    pub(crate) fn list(&self, after: Option<u64>, max: usize) -> io::Result<Vec<u64>> {
        list_in(&self.path, after, max, |ino| Ok(Some(ino)))
    }
}
