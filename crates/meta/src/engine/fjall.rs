//! The embedded engine: fjall, a log-structured merge tree whose commits append to a journal.
//!
//! A commit writes the journal to the operating system (`PersistMode::Buffer`), so it survives a killed process.
//! Durability is ours: fjall's own `persist` holds the journal's lock while it waits for the disk, which would stop
//! every commit for the length of an fsync. The syncer therefore opens the newest journal file itself and calls
//! fdatasync on it. That is enough, because fjall syncs a journal whole before it starts the next one, and deletes
//! it only after its contents are in synced tables:
//!
//! ```text
//!   DIR/0.jnl           sealed: synced by fjall at the change to 1.jnl
//!   DIR/1.jnl           newest: all commits since then; our fdatasync makes them durable
//!   DIR/journal.state   how far the newest is written and synced (record.rs)
//! ```
//!
//! Opening is ours in two points too: the journals and the tables' directories are checked before fjall sees them, since
//! it cuts off or removes what it cannot read (`journal.rs`, `tables.rs`). A lock of our own keeps a second process from
//! doing that to a store in use.
//!
//! On a full disk fjall accepts nothing more until it is opened anew. So the engine opens it anew in place, without
//! fjall's workers: then only the journal is written to, into blocks that it has ahead (`space.rs`), and nothing is
//! written out or compacted. With workers it goes on when there is room.
//!
//! ```text
//!   Working ── a worker or a commit found the disk full ──► JournalOnly
//!      ▲                                                        │
//!      └──────────────── there is room again ───────────────────┘
//! ```

mod room;

use self::room::{BYTES_PER_LOOK, LOOK_EVERY, is_full};
use super::journal::{Known, Settled};
use super::record::{Log, Record};
use super::space::{self, Allocated, Free};
use super::syncer::{FjallSyncer, Progress, Tail};
use super::{Batch, CommitSeq, Engine, Room, Scan, Syncer, creation, journal, tables};
use crate::EngineError;
use fjall::config::PinningPolicy;
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, LsmError, OwnedWriteBatch,
    PersistMode, Readable, Snapshot,
};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_host::{FileLock, LockError};

/// The one keyspace; the kinds of records differ by the first byte of the key.
const KEYSPACE: &str = "meta";

/// Locked (flock) for as long as the store is open; holds the process number of the server.
const LOCK_FILE: &str = "weft.lock";

/// One thread that writes full memory tables out at once, and two that compact. With a single thread a long compaction would let
/// the memory table grow without bound. With a single one that compacts, fjall's first thread hands a second request to compact, which
/// follows each table that is written out, to itself until the other is done: it takes a processor for as long as the compaction lasts.
const WORKERS: usize = 3;

/// Journals on disk before the oldest memory table is forced out; the least fjall takes.
const JOURNAL_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// How much memory the embedded engine may use.
#[derive(Debug, Clone)]
pub struct FjallOptions {
    /// Block cache for tables on disk.
    pub cache_bytes: u64,
    /// Size at which a table in memory is written out; up to four of them wait at once.
    pub memtable_bytes: u64,
    /// Tables on disk that are kept open.
    pub tables_open: usize,
    /// Which run of the kernel this is: in another one than before, a power cut may have torn what was not synced.
    pub boot_id: [u8; 16],
}

impl Default for FjallOptions {
    fn default() -> Self {
        FjallOptions {
            cache_bytes: 16 * 1024 * 1024,
            memtable_bytes: 16 * 1024 * 1024,
            tables_open: 512,
            boot_id: weft_host::boot_id(),
        }
    }
}

/// What is open of fjall.
struct Open {
    database: Database,
    keyspace: Keyspace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// With workers, which write tables out and compact them.
    Working,
    /// The disk is full: only the journal is written to.
    JournalOnly,
}

/// Blocks of the newest journal.
struct Ahead {
    number: u64,
    file: File,
    /// Up to here the journal has blocks.
    end: u64,
}

/// The embedded engine over one directory.
pub struct FjallEngine {
    /// A state that is read in pages. It goes when fjall is closed, which it would keep open.
    view: Option<Snapshot>,
    /// `None` after it could not be opened anew.
    open: Option<Open>,
    mode: Mode,
    directory: PathBuf,
    options: FjallOptions,
    tail: Tail,
    log: Arc<Log>,
    ahead: Option<Ahead>,
    /// The file system gives no blocks ahead.
    allocates: bool,
    free: Option<Free>,
    /// What the tables took at the last look, on a small disk.
    tables_bytes: u64,
    looked: Instant,
    /// When a look last found less than the reserve.
    was_full: Option<Instant>,
    /// When the last try to make room began.
    tried: Option<Instant>,
    /// Where the journal ended after the last one, and what was free then: without a commit and with no more room, another one
    /// would free no more.
    tried_at: Option<((u64, u64), u64)>,
    bytes_since_look: usize,
    progress: Arc<Progress>,
    torn_bytes: u64,
    _lock: FileLock,
}

fn make_private_failed(error: io::Error) -> EngineError {
    EngineError::store("make its files readable by their owner only", error)
}

impl FjallEngine {
    /// The file in a store's directory that is locked (flock) while the store is open.
    pub fn lock_file(directory: &Path) -> PathBuf {
        directory.join(LOCK_FILE)
    }

    /// Opens the store in `directory`, creating it if there is none, and replays its journal. Fails if another
    /// process has it open.
    pub fn open(directory: &Path, options: &FjallOptions) -> Result<FjallEngine, EngineError> {
        let lock = lock(directory).map_err(|error| EngineError::store("lock the store", error))?;
        creation::make_private(directory).map_err(make_private_failed)?;
        creation::make_if_missing(directory, |at| open_database(at, options, WORKERS).map(drop))?;
        tables::check(directory)?;
        let record = Record::read(directory)
            .map_err(|error| EngineError::store("read what was noted of its journal", error))?;
        let free = Free::look(directory);
        let ahead_bytes = free.map_or(0, |free| free.ahead_bytes());
        let known = Known::new(record.as_ref(), &options.boot_id);
        let settled = journal::settle(directory, &known, ahead_bytes)?;
        let log = Log::begin(directory, record_of(&settled, options))
            .map_err(|error| EngineError::store("note the state of its journal", error))?;
        let mode = match free {
            Some(free) if free.is_nearly_full() => Mode::JournalOnly,
            _ => Mode::Working,
        };
        let open = open_database(directory, options, mode.workers())?;
        creation::sync_directories(directory)
            .map_err(|error| EngineError::store("make its directories durable", error))?;
        let tail = Tail::open(directory).map_err(|error| EngineError::store("open the journal", error))?;
        let mut engine = FjallEngine {
            view: None,
            open: Some(open),
            mode,
            directory: directory.to_owned(),
            options: options.clone(),
            tail,
            log: Arc::new(log),
            ahead: None,
            allocates: true,
            free,
            tables_bytes: 0,
            looked: Instant::now(),
            was_full: None,
            tried: None,
            tried_at: None,
            bytes_since_look: 0,
            progress: Arc::default(),
            torn_bytes: settled.torn_bytes,
            _lock: lock,
        };
        engine.allocate_ahead(ahead_bytes);
        creation::make_private(directory).map_err(make_private_failed)?;
        Ok(engine)
    }

    /// Whether there is a store in `directory`, whole or damaged.
    pub fn is_store(directory: &Path) -> bool {
        creation::is_store(directory)
    }

    /// How many bytes of torn commits were cut from the journal when the store was opened.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    fn opened(&self) -> Result<&Open, EngineError> {
        self.open.as_ref().ok_or(EngineError::Poisoned)
    }

    fn poison(&self) {
        self.progress.poisoned.store(true, Ordering::Release);
    }
}

impl Mode {
    fn workers(self) -> usize {
        match self {
            Mode::Working => WORKERS,
            Mode::JournalOnly => 0,
        }
    }
}

fn record_of(settled: &Settled, options: &FjallOptions) -> Record {
    Record {
        boot: options.boot_id,
        closed: false,
        number: settled.number,
        written: settled.bytes,
        synced_number: settled.number,
        synced: settled.bytes,
        oldest: settled.oldest,
        ..Record::default()
    }
}

fn open_database(directory: &Path, options: &FjallOptions, workers: usize) -> Result<Open, EngineError> {
    let database = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .max_cached_files(Some(options.tables_open))
        .max_journaling_size(JOURNAL_BYTES_MAX)
        // The length of a batch in the journal is counted, see `journal::batch_bytes`.
        .journal_compression(CompressionType::None)
        .worker_threads_unchecked(workers)
        .open()
        .map_err(|error| EngineError::store("open the store", error))?;
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
        .map_err(|error| EngineError::store("open the keyspace", error))?;
    Ok(Open { database, keyspace })
}

fn lock(directory: &Path) -> io::Result<FileLock> {
    std::fs::create_dir_all(directory)?;
    weft_host::lock(&FjallEngine::lock_file(directory)).map_err(|error| match error {
        LockError::System(error) => error,
        LockError::Held(holder) => io::Error::other(format!("process {holder} has it open")),
    })
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let value =
            self.opened()?.keyspace.get(key).map_err(|error| EngineError::store("read a key", error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan<'a>(&'a self, from: &[u8], to: &[u8]) -> Scan<'a> {
        if from >= to {
            return Box::new(std::iter::empty());
        }
        let open = match self.opened() {
            Ok(open) => open,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        Box::new(open.keyspace.range(from..to).map(|guard| {
            let (key, value) = guard.into_inner().map_err(|error| EngineError::store("scan keys", error))?;
            Ok((key.to_vec(), value.to_vec()))
        }))
    }

    fn hold_view(&mut self) -> Result<(), EngineError> {
        let snapshot = self.opened()?.database.snapshot();
        self.view = Some(snapshot);
        Ok(())
    }

    fn view<'a>(&'a self, from: &[u8]) -> Option<Scan<'a>> {
        let (view, open) = (self.view.as_ref()?, self.open.as_ref()?);
        Some(Box::new(view.range(&open.keyspace, from.to_vec()..).map(|guard| {
            let (key, value) = guard.into_inner().map_err(|error| EngineError::store("scan keys", error))?;
            Ok((key.to_vec(), value.to_vec()))
        })))
    }

    fn drop_view(&mut self) {
        self.view = None;
    }

    fn commit(&mut self, batch: &Batch) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let bytes = journal::batch_bytes(batch);
        self.bytes_since_look += bytes as usize;
        if self.bytes_since_look >= BYTES_PER_LOOK {
            self.bytes_since_look = 0;
            // The syncer will look again, and tell why it cannot.
            let _ = self.follow().and_then(|()| self.tail.follow().map(drop));
            self.look();
            self.keep_journal_short()?;
        }
        self.need_ahead(bytes)?;
        let mut written = self.write(batch);
        for mode in [Mode::Working, Mode::JournalOnly] {
            if let Err(error) = &written
                && self.found_full(error)
                && (mode == Mode::JournalOnly || !is_full(error) && self.is_roomy())
            {
                written = self.write_anew(batch, bytes, mode)?;
            }
        }
        if written.as_ref().is_err_and(is_full) {
            // Without blocks ahead it may have been written in part.
            self.reopen(Mode::JournalOnly)?;
            return Err(EngineError::Full);
        }
        if let Err(error) = written {
            self.poison();
            return Err(EngineError::store("commit to the journal", error));
        }
        self.log.advance(bytes);
        Ok(self.progress.committed.fetch_add(1, Ordering::AcqRel) + 1)
    }

    fn committed(&self) -> CommitSeq {
        self.progress.committed.load(Ordering::Acquire)
    }

    fn has_room(&mut self, room: Room) -> bool {
        match room {
            Room::Removal => true,
            Room::Change => {
                let wanted = self.ahead_bytes() / 2;
                self.allocate_ahead(wanted) || self.make_room().is_ok() && self.allocate_ahead(wanted)
            }
            Room::Growth => {
                if self.is_low() || self.mode == Mode::JournalOnly || self.looked.elapsed() >= LOOK_EVERY {
                    self.look();
                }
                if self.make_room().is_err() {
                    return false;
                }
                self.mode == Mode::Working && self.is_roomy() && self.allocate_ahead(self.ahead_bytes())
            }
        }
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(FjallSyncer {
            tail: self.tail.clone(),
            log: Arc::clone(&self.log),
            progress: Arc::clone(&self.progress),
        })
    }
}

impl Drop for FjallEngine {
    /// Makes all durable and notes that nothing is missing. A failure here loses nothing that was acknowledged as durable, and
    /// nobody is left to be told.
    fn drop(&mut self) {
        self.view = None;
        let persisted =
            self.open.take().is_some_and(|open| open.database.persist(PersistMode::SyncAll).is_ok());
        if !persisted || self.progress.poisoned.load(Ordering::Acquire) || self.follow().is_err() {
            return;
        }
        let (number, written) = self.log.position();
        let Ok(numbers) = journal::numbers(&self.directory) else { return };
        let whole = journal::whole_batches(&journal::path_of(&self.directory, number));
        if let (Some(oldest), Ok(whole)) = (numbers.first(), whole)
            && whole == written
            && creation::sync_directory(&self.directory).is_ok()
        {
            let _ = self.log.set(|record| {
                *record = Record {
                    closed: true,
                    synced_number: number,
                    synced: written,
                    oldest: *oldest,
                    ..*record
                };
            });
        }
    }
}
