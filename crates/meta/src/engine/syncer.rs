//! Making commits durable on another thread: fdatasync of the newest journal, which stays open for it.

use super::record::Log;
use super::{CommitSeq, Syncer, creation, journal};
use crate::EngineError;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a sync waits for a descriptor, and how often it looks.
const DESCRIPTORS_WAIT: Duration = Duration::from_secs(60);
const DESCRIPTORS_LOOK: Duration = Duration::from_millis(20);

/// What has become of the commits, for the engine and its syncers.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub committed: AtomicU64,
    pub poisoned: AtomicBool,
}

/// The newest journal, open since soon after it was made. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    directory: PathBuf,
    newest: Arc<Mutex<Newest>>,
}

#[derive(Debug, Clone)]
pub(super) struct Newest {
    pub path: PathBuf,
    pub file: Arc<File>,
    /// Its name in the directory is durable.
    entry_is_durable: bool,
}

impl Tail {
    pub fn open(directory: &Path) -> io::Result<Tail> {
        let (path, file) = open_newest(directory)?;
        let newest = Newest { path, file: Arc::new(file), entry_is_durable: false };
        Ok(Tail { directory: directory.to_owned(), newest: Arc::new(Mutex::new(newest)) })
    }

    pub fn lock(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to the journal that is the newest now.
    pub fn follow(&self) -> io::Result<Newest> {
        let mut newest = self.lock();
        if journal::newest(&self.directory)?.as_ref() != Some(&newest.path) {
            let (path, file) = open_newest(&self.directory)?;
            *newest = Newest { path, file: Arc::new(file), entry_is_durable: false };
        }
        Ok(newest.clone())
    }

    fn sync(&self, log: &Log) -> io::Result<()> {
        // Read before the journal is looked for: what is written to a later one does not count for this one.
        let begin = log.sync_begin();
        let newest = with_descriptors(|| self.follow())?;
        if !newest.entry_is_durable {
            with_descriptors(|| creation::sync_directory(&self.directory))?;
        }
        newest.file.sync_data()?;
        if journal::number_of(&newest.path) == Some(begin.number) {
            log.synced(begin);
        }
        let mut now = self.lock();
        now.entry_is_durable |= now.path == newest.path;
        Ok(())
    }
}

/// One that vanishes between listing and opening was sealed meanwhile, written out to synced tables and deleted, so
/// the search starts again.
fn open_newest(directory: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let newest = journal::newest(directory)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no journal file"))?;
        match File::open(&newest) {
            Ok(file) => return Ok((newest, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
    }
}

/// Opens something to sync it. Waits while the process has no descriptor for that: nothing is lost yet, and
/// connections that end give some back.
fn with_descriptors<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match open() {
            Err(error) if lacks_descriptors(&error) && begin.elapsed() < DESCRIPTORS_WAIT => {
                std::thread::sleep(DESCRIPTORS_LOOK);
            }
            opened => return opened,
        }
    }
}

/// Whether the process, or the host, has no descriptor left.
fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Makes durable what the engine has written to the newest journal.
pub(super) struct FjallSyncer {
    pub tail: Tail,
    pub log: Arc<Log>,
    pub progress: Arc<Progress>,
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let covered = self.progress.committed.load(Ordering::Acquire);
        if let Err(error) = self.tail.sync(&self.log) {
            self.progress.poisoned.store(true, Ordering::Release);
            return Err(EngineError::store("sync the journal", error));
        }
        // Another syncer may have been told of an error that this one was not.
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        Ok(covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_sync_waits_for_a_descriptor_and_for_nothing_else() {
        let tries = Cell::new(0);
        let open = |errno: i32, failures: u32| {
            tries.set(0);
            with_descriptors(|| {
                tries.set(tries.get() + 1);
                if tries.get() > failures { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
            })
        };
        for errno in [libc::EMFILE, libc::ENFILE] {
            open(errno, 2).unwrap();
            assert_eq!(tries.get(), 3);
        }
        assert_eq!(open(libc::EIO, 2).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(tries.get(), 1);
    }
}
