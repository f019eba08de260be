//! The embedded engine: fjall, a log-structured merge tree whose commits append to a journal.
//!
//! A commit writes the journal to the operating system (`PersistMode::Buffer`), so it survives a killed process.
//! Durability is ours: fjall's own `persist` holds the journal's lock while it waits for the disk, which would stop
//! every commit for the length of an fsync. The syncer therefore opens the newest journal file itself and calls
//! fdatasync on it. That is enough, because fjall syncs a journal whole before it starts the next one, and deletes
//! it only after its contents are in synced tables:
//!
//! ```text
//!   DIR/0.jnl  sealed: synced by fjall at the change to 1.jnl
//!   DIR/1.jnl  newest: all commits since then; our fdatasync makes them durable
//! ```
//!
//! Recovery is ours in one point too: fjall stops (or panics) at a journal that a power cut has torn in the middle
//! of a batch, so `journal` cuts it back to its last whole batch before fjall opens it. A lock of our own keeps a
//! second process from doing that to a store in use.

use super::journal::{self, cut_torn_tail};
use super::{Batch, CommitSeq, Engine, Scan, Syncer};
use crate::EngineError;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The one keyspace; the kinds of records differ by the first byte of the key.
const KEYSPACE: &str = "meta";

/// Free space below which nothing is added any more (on a small disk, a sixteenth of it): room for removals, and for
/// compaction, which writes before it deletes.
const RESERVED_BYTES: u64 = 128 * 1024 * 1024;

/// How often the free space is looked at; so many commits are far smaller than what is reserved.
const COMMITS_PER_LOOK: u64 = 256;

/// Held for as long as the store is open.
const LOCK_FILE: &str = "weft.lock";

/// One thread that writes full memory tables out at once, and one that compacts; with a single thread a long
/// compaction would let the memory table grow without bound.
const WORKERS: usize = 2;

/// Journals on disk before the oldest memory table is forced out; the least fjall takes.
const JOURNAL_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// How much memory the embedded engine may use.
#[derive(Debug, Clone)]
pub struct FjallOptions {
    /// Block cache for tables on disk.
    pub cache_bytes: u64,
    /// Size at which a table in memory is written out; up to four of them wait at once.
    pub memtable_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> Self {
        FjallOptions { cache_bytes: 16 * 1024 * 1024, memtable_bytes: 16 * 1024 * 1024 }
    }
}

#[derive(Debug, Default)]
struct Progress {
    committed: AtomicU64,
    poisoned: AtomicBool,
}

/// The embedded engine over one directory.
pub struct FjallEngine {
    database: Database,
    keyspace: Keyspace,
    directory: PathBuf,
    progress: Arc<Progress>,
    torn_bytes: u64,
    has_room: bool,
    _lock: File,
}

fn store_error(action: &'static str, error: impl std::fmt::Display) -> EngineError {
    EngineError::Store { action, reason: error.to_string() }
}

impl FjallEngine {
    /// Opens the store in `directory`, creating it if there is none, and replays its journal. Fails if another
    /// process has it open.
    pub fn open(directory: &Path, options: &FjallOptions) -> Result<FjallEngine, EngineError> {
        let lock = lock(directory).map_err(|error| store_error("lock the store (is it in use?)", error))?;
        let torn_bytes = cut_torn_tail(directory).map_err(|error| store_error("read the journal", error))?;
        let database = Database::builder(directory)
            .cache_size(options.cache_bytes)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .worker_threads(WORKERS)
            .open()
            .map_err(|error| store_error("open the store", error))?;
        let keyspace = database
            .keyspace(KEYSPACE, || KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes))
            .map_err(|error| store_error("open the keyspace", error))?;
        let progress = Arc::new(Progress::default());
        Ok(FjallEngine {
            database,
            keyspace,
            directory: directory.to_owned(),
            progress,
            torn_bytes,
            has_room: has_room(directory),
            _lock: lock,
        })
    }

    /// How many bytes of the journal were cut off at opening because a power cut had torn them: commits that were
    /// never synced. 0 after an orderly end and after a killed process.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }
}

/// Whether more than the reserve is free; if the file system does not tell, writing will.
fn has_room(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return true };
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string and `stat` a buffer of the size the call fills; both live through it.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return true;
    }
    // SAFETY: the call has succeeded, so it has filled the buffer.
    let stat = unsafe { stat.assume_init() };
    let reserved = RESERVED_BYTES.min(stat.f_blocks.saturating_mul(stat.f_frsize) / 16);
    stat.f_bavail.saturating_mul(stat.f_frsize) > reserved
}

fn lock(directory: &Path) -> io::Result<File> {
    std::fs::create_dir_all(directory)?;
    let file = File::create(directory.join(LOCK_FILE))?;
    file.try_lock()?;
    Ok(file)
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let value = self.keyspace.get(key).map_err(|error| store_error("read a key", error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a> {
        if from >= to {
            return Box::new(std::iter::empty());
        }
        Box::new(self.keyspace.range(from..to).map(|guard| {
            let (key, value) = guard.into_inner().map_err(|error| store_error("scan keys", error))?;
            Ok((key.to_vec(), value.to_vec()))
        }))
    }

    fn commit(&mut self, batch: Batch) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in batch.writes {
            match value {
                Some(value) => writes.insert(&self.keyspace, key, value),
                None => writes.remove(&self.keyspace, key),
            }
        }
        if let Err(error) = writes.commit() {
            self.progress.poisoned.store(true, Ordering::Release);
            return Err(store_error("commit to the journal", error));
        }
        let seq = self.progress.committed.fetch_add(1, Ordering::AcqRel) + 1;
        if seq.is_multiple_of(COMMITS_PER_LOOK) {
            self.has_room = has_room(&self.directory);
        }
        Ok(seq)
    }

    fn committed(&self) -> CommitSeq {
        self.progress.committed.load(Ordering::Acquire)
    }

    /// Looks again when there was no room: something may have been deleted.
    fn has_room(&self) -> bool {
        self.has_room || has_room(&self.directory)
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(FjallSyncer { directory: self.directory.clone(), progress: Arc::clone(&self.progress) })
    }
}

impl Drop for FjallEngine {
    fn drop(&mut self) {
        // A failure here loses nothing that was acknowledged as durable, and nobody is left to be told.
        let _ = self.database.persist(PersistMode::SyncAll);
    }
}

struct FjallSyncer {
    directory: PathBuf,
    progress: Arc<Progress>,
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let covered = self.progress.committed.load(Ordering::Acquire);
        if let Err(error) = sync_newest_journal(&self.directory) {
            self.progress.poisoned.store(true, Ordering::Release);
            return Err(store_error("sync the journal", error));
        }
        Ok(covered)
    }
}

/// One that vanishes between listing and opening was sealed meanwhile, written out to synced tables and deleted, so
/// the search starts again.
fn sync_newest_journal(directory: &Path) -> io::Result<()> {
    loop {
        let newest = journal::newest(directory)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no journal file"))?;
        match File::open(newest) {
            Ok(journal) => return journal.sync_data(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
    }
}
