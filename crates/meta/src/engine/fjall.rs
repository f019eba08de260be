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

use super::{Batch, CommitSeq, Engine, Scan, Syncer, creation, journal};
use crate::EngineError;
use fjall::config::PinningPolicy;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The one keyspace; the kinds of records differ by the first byte of the key.
const KEYSPACE: &str = "meta";

/// Free space below which nothing is added any more (on a small disk, a sixteenth of it): room for removals, and for
/// compaction, which writes before it deletes.
const RESERVED_BYTES: u64 = 128 * 1024 * 1024;

/// How often the free space is looked at; so many commits are far smaller than what is reserved.
const COMMITS_PER_LOOK: u64 = 256;

/// After so much in commits it is looked whether there is a new journal: less than a memory table, since fjall syncs the
/// journal when it writes one out.
const BYTES_PER_LOOK: usize = 64 * 1024;

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

/// The newest journal, open since soon after it was made. Clones are the same.
#[derive(Debug, Clone)]
struct Tail {
    directory: PathBuf,
    newest: Arc<Mutex<Newest>>,
}

#[derive(Debug, Clone)]
struct Newest {
    path: PathBuf,
    file: Arc<File>,
    /// Its name in the directory is durable.
    entry_is_durable: bool,
}

impl Tail {
    fn open(directory: &Path) -> io::Result<Tail> {
        let (path, file) = open_newest(directory)?;
        let newest = Newest { path, file: Arc::new(file), entry_is_durable: false };
        Ok(Tail { directory: directory.to_owned(), newest: Arc::new(Mutex::new(newest)) })
    }

    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to the journal that is the newest now.
    fn follow(&self) -> io::Result<Newest> {
        let mut newest = self.lock();
        if journal::newest(&self.directory)?.as_ref() != Some(&newest.path) {
            let (path, file) = open_newest(&self.directory)?;
            *newest = Newest { path, file: Arc::new(file), entry_is_durable: false };
        }
        Ok(newest.clone())
    }

    fn sync(&self) -> io::Result<()> {
        let newest = self.follow()?;
        if !newest.entry_is_durable {
            creation::sync_directory(&self.directory)?;
        }
        newest.file.sync_data()?;
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

/// The embedded engine over one directory.
pub struct FjallEngine {
    database: Database,
    keyspace: Keyspace,
    directory: PathBuf,
    tail: Tail,
    bytes_since_look: usize,
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
        creation::make_if_missing(directory, |at| open_database(at, options).map(drop))?;
        let torn_bytes = journal::settle(directory)
            .map_err(|error| store_error("read its journal and write that again", error))?;
        let (database, keyspace) = open_database(directory, options)?;
        creation::sync_directories(directory)
            .map_err(|error| store_error("make its directories durable", error))?;
        let tail = Tail::open(directory).map_err(|error| store_error("open the journal", error))?;
        Ok(FjallEngine {
            database,
            keyspace,
            directory: directory.to_owned(),
            tail,
            bytes_since_look: 0,
            progress: Arc::default(),
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

fn open_database(directory: &Path, options: &FjallOptions) -> Result<(Database, Keyspace), EngineError> {
    let database = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .max_journaling_size(JOURNAL_BYTES_MAX)
        .worker_threads(WORKERS)
        .open()
        .map_err(|error| store_error("open the store", error))?;
    // A filter of a large table is one block of up to a megabyte: in the block cache they would drive each other out, and every
    // look at a key would read and check whole filters. Kept in memory they take about a byte for each key.
    let keyspace_options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(options.memtable_bytes)
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(true))
    };
    let keyspace = database
        .keyspace(KEYSPACE, keyspace_options)
        .map_err(|error| store_error("open the keyspace", error))?;
    Ok((database, keyspace))
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

    fn commit(&mut self, batch: &Batch) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let mut writes = OwnedWriteBatch::with_capacity(self.database.clone(), batch.len())
            .durability(Some(PersistMode::Buffer));
        for (key, value) in batch.writes() {
            self.bytes_since_look += key.len() + value.map_or(0, <[u8]>::len);
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
        if self.bytes_since_look >= BYTES_PER_LOOK {
            self.bytes_since_look = 0;
            // The syncer will look again, and tell why it cannot.
            let _ = self.tail.follow();
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
        Box::new(FjallSyncer { tail: self.tail.clone(), progress: Arc::clone(&self.progress) })
    }
}

impl Drop for FjallEngine {
    fn drop(&mut self) {
        // A failure here loses nothing that was acknowledged as durable, and nobody is left to be told.
        let _ = self.database.persist(PersistMode::SyncAll);
    }
}

struct FjallSyncer {
    tail: Tail,
    progress: Arc<Progress>,
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let covered = self.progress.committed.load(Ordering::Acquire);
        if let Err(error) = self.tail.sync() {
            self.progress.poisoned.store(true, Ordering::Release);
            return Err(store_error("sync the journal", error));
        }
        // Another syncer may have been told of an error that this one was not.
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        Ok(covered)
    }
}
