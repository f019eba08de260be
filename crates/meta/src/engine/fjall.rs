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

use super::journal::{Known, Settled};
use super::record::{Log, Record};
use super::space::{self, Allocated, Free};
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weft_host::LockError;

/// The one keyspace; the kinds of records differ by the first byte of the key.
const KEYSPACE: &str = "meta";

/// How often the free space is looked at, unless it is low: then before each batch that adds data.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often it is tried to go on as usual after the disk was full.
const RESUME_EVERY: Duration = Duration::from_secs(1);

/// How long a full disk is taken for the reason of a worker's end.
const FULL_REMEMBERED: Duration = Duration::from_secs(60);

/// What the journal gets beyond what it is to have ahead, so that not every commit allocates.
const ALLOCATE_BYTES: u64 = 1024 * 1024;

/// A journal shorter than this is not worth being emptied.
const EMPTIED_BYTES_MIN: u64 = 64 * 1024;

/// Tables that are compacted at once while everybody waits.
const COMPACTED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// fjall stops a commit, for good if its workers have ended, at so many tables in memory that wait to be written out, and at
/// so many runs of small tables on disk.
const SEALED_MAX: usize = 4;
const RUNS_MAX: usize = 20;

/// After so much in commits it is looked whether there is a new journal: less than a memory table, since fjall syncs the
/// journal when it writes one out.
const BYTES_PER_LOOK: usize = 64 * 1024;

/// Locked (flock) for as long as the store is open; holds the process number of the server.
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
    /// Which run of the kernel this is: in another one than before, a power cut may have torn what was not synced.
    pub boot_id: [u8; 16],
}

impl Default for FjallOptions {
    fn default() -> Self {
        FjallOptions {
            cache_bytes: 16 * 1024 * 1024,
            memtable_bytes: 16 * 1024 * 1024,
            boot_id: weft_host::boot_id(),
        }
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

    fn sync(&self, log: &Log) -> io::Result<()> {
        // Read before the journal is looked for: what is written to a later one does not count for this one.
        let begin = log.sync_begin();
        let newest = self.follow()?;
        if !newest.entry_is_durable {
            creation::sync_directory(&self.directory)?;
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
    _lock: File,
}

fn make_private_failed(error: io::Error) -> EngineError {
    store_error("make its files readable by their owner only", error)
}

fn store_error(action: &'static str, error: impl std::fmt::Display) -> EngineError {
    EngineError::Store { action, reason: error.to_string() }
}

impl FjallEngine {
    /// The file in a store's directory that is locked (flock) while the store is open.
    pub fn lock_file(directory: &Path) -> PathBuf {
        directory.join(LOCK_FILE)
    }

    /// Opens the store in `directory`, creating it if there is none, and replays its journal. Fails if another
    /// process has it open.
    pub fn open(directory: &Path, options: &FjallOptions) -> Result<FjallEngine, EngineError> {
        let lock = lock(directory).map_err(|error| store_error("lock the store", error))?;
        creation::make_private(directory).map_err(make_private_failed)?;
        creation::make_if_missing(directory, |at| open_database(at, options, WORKERS).map(drop))?;
        tables::check(directory)?;
        let record = Record::read(directory)
            .map_err(|error| store_error("read what was noted of its journal", error))?;
        let free = Free::look(directory);
        let ahead_bytes = free.map_or(0, |free| free.ahead_bytes());
        let known = Known::new(record.as_ref(), &options.boot_id);
        let settled = journal::settle(directory, &known, ahead_bytes)?;
        let log = Log::begin(directory, record_of(&settled, options))
            .map_err(|error| store_error("note the state of its journal", error))?;
        let mode = match free {
            Some(free) if free.is_nearly_full() => Mode::JournalOnly,
            _ => Mode::Working,
        };
        let open = open_database(directory, options, mode.workers())?;
        creation::sync_directories(directory)
            .map_err(|error| store_error("make its directories durable", error))?;
        let tail = Tail::open(directory).map_err(|error| store_error("open the journal", error))?;
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

    fn look(&mut self) {
        self.free = Free::look(&self.directory);
        self.looked = Instant::now();
        let is_small = self.free.is_some_and(|free| free.is_small());
        self.tables_bytes = match &self.open {
            Some(open) if is_small => open.keyspace.disk_space(),
            _ => 0,
        };
        if !self.is_roomy() {
            self.was_full = Some(self.looked);
        }
    }

    /// Whether there was more than the reserve when it was looked last, and on a small disk enough to write all tables anew: only
    /// that gives back what removals have freed, where it cannot be done in parts.
    fn is_roomy(&self) -> bool {
        self.free.is_none_or(|free| free.has_room() && free.can_compact(self.tables_bytes))
    }

    fn is_low(&self) -> bool {
        self.free.is_some_and(|free| free.is_low())
    }

    fn ahead_bytes(&self) -> u64 {
        self.free.map_or(0, |free| free.ahead_bytes())
    }

    /// Goes on to the journal that is the newest now, and counts what it has.
    fn follow(&mut self) -> io::Result<()> {
        let numbers = journal::numbers(&self.directory)?;
        let (Some(oldest), Some(newest)) = (numbers.first(), numbers.last()) else { return Ok(()) };
        if self.log.position().0 != *newest {
            let whole = journal::whole_batches(&journal::path_of(&self.directory, *newest))?;
            self.log.rotated(*newest, whole, *oldest);
        }
        Ok(())
    }

    /// How many bytes the newest journal can take without a new block.
    fn bytes_ahead(&self) -> u64 {
        let (number, at) = self.log.position();
        match &self.ahead {
            Some(ahead) if ahead.number == number => ahead.end.saturating_sub(at),
            _ => 0,
        }
    }

    /// Gives the newest journal blocks for so many bytes, and says whether it has them. True where that cannot be known.
    fn allocate_ahead(&mut self, bytes: u64) -> bool {
        if !self.allocates || self.bytes_ahead() >= bytes {
            return true;
        }
        let (number, at) = self.log.position();
        if self.ahead.as_ref().is_none_or(|ahead| ahead.number != number) {
            let path = journal::path_of(&self.directory, number);
            // One that is gone was sealed meanwhile; the next look finds its successor.
            let Ok(file) = OpenOptions::new().write(true).open(path) else { return true };
            self.ahead = Some(Ahead { number, file, end: at });
        }
        let Some(ahead) = &mut self.ahead else { return true };
        // Only what is new: tmpfs looks at every page of a range, also at those that it has.
        let from = ahead.end.max(at);
        for end in [at + bytes + ALLOCATE_BYTES, at + bytes] {
            match space::allocate(&ahead.file, from, end - from) {
                Allocated::Yes => {
                    ahead.end = end;
                    return true;
                }
                Allocated::NoRoom => {}
                Allocated::Unknown => {
                    self.allocates = false;
                    return true;
                }
            }
        }
        false
    }

    /// Closes fjall, cuts from the journal what was not acknowledged, and opens it again.
    fn reopen(&mut self, mode: Mode) -> Result<(), EngineError> {
        let reopened = self.close_and_settle().and_then(|_| {
            open_database(&self.directory, &self.options, mode.workers()).map(|open| {
                self.open = Some(open);
                self.mode = mode;
            })
        });
        if reopened.is_err() {
            self.poison();
        }
        self.allocate_ahead(self.ahead_bytes());
        reopened
    }

    fn close_and_settle(&mut self) -> Result<(), EngineError> {
        let followed = self.follow();
        self.view = None;
        self.open = None;
        followed.map_err(|error| store_error("find its newest journal", error))?;
        let (number, written) = self.log.position();
        let path = journal::path_of(&self.directory, number);
        // What is left of a commit that failed, fjall may have written when it was closed.
        let cut = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            if file.metadata()?.len() != written { file.set_len(written) } else { Ok(()) }
        };
        cut().map_err(|error| store_error("cut a failed commit from the journal", error))?;
        self.ahead = None;
        let known = Known::Killed { number, bytes: written };
        let settled = journal::settle(&self.directory, &known, self.ahead_bytes())?;
        self.log
            .set(|record| *record = record_of(&settled, &self.options))
            .map_err(|error| store_error("note the state of its journal", error))
    }

    /// Writes out all that the journals have, and empties them. Says whether that was possible; if not, nothing has changed.
    fn empty_journals(&mut self) -> Result<bool, EngineError> {
        let mode = self.mode;
        self.reopen(Mode::JournalOnly)?;
        let written_out = self.write_out();
        if written_out.is_ok() {
            self.view = None;
            self.open = None;
            self.ahead = None;
            if let Err(error) = self.drop_journals() {
                self.poison();
                return Err(store_error("empty its journals", error));
            }
        }
        // What a failed attempt has left of a table is removed by opening.
        self.reopen(mode)?;
        match written_out {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => {
                self.poison();
                Err(store_error("write a table out", error))
            }
        }
    }

    /// Without workers, so that nothing else writes, and an error is told here.
    fn write_out(&self) -> Result<(), fjall::Error> {
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let tree = &keyspace.tree;
        tree.rotate_memtable();
        {
            let lock = tree.get_flush_lock();
            tree.flush(&lock, database.visible_seqno())?;
        }
        if keyspace.disk_space() > COMPACTED_BYTES_MAX {
            return Ok(());
        }
        match keyspace.major_compact() {
            Err(error) if !is_full(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// What they have is in tables, which are synced.
    fn drop_journals(&self) -> io::Result<()> {
        let numbers = journal::numbers(&self.directory)?;
        let Some((newest, sealed)) = numbers.split_last() else { return Ok(()) };
        let newest = *newest;
        self.log.set(|record| {
            *record = Record {
                number: newest,
                written: 0,
                synced_number: newest,
                synced: 0,
                oldest: newest,
                ..*record
            };
        })?;
        for number in sealed {
            std::fs::remove_file(journal::path_of(&self.directory, *number))?;
        }
        let file = OpenOptions::new().write(true).open(journal::path_of(&self.directory, newest))?;
        file.set_len(0)?;
        file.sync_all()?;
        creation::sync_directory(&self.directory)
    }

    /// Whether another try to make room is due; if so, it begins now.
    fn may_try(&mut self) -> bool {
        let due = self.tried.is_none_or(|tried| tried.elapsed() >= RESUME_EVERY);
        if due {
            self.tried = Some(Instant::now());
        }
        due
    }

    /// Tries to have room for data again: by what others have freed, and on a small disk by emptying the journals.
    fn make_room(&mut self) -> Result<(), EngineError> {
        if (self.is_roomy() && self.mode == Mode::Working) || !self.may_try() {
            return Ok(());
        }
        let is_small = self.free.is_some_and(|free| free.is_small());
        // What was removed since the last try gives its space back only by this, however little of the journal it takes.
        let free_bytes = self.free.map_or(0, |free| free.free_bytes);
        let is_hopeful = self
            .tried_at
            .is_none_or(|(position, free_then)| position != self.log.position() || free_bytes > free_then);
        if !self.is_roomy() && is_small && is_hopeful {
            self.empty_journals()?;
            self.look();
            self.tried_at = Some((self.log.position(), self.free.map_or(0, |free| free.free_bytes)));
        }
        if self.is_roomy() && self.mode == Mode::JournalOnly {
            self.reopen(Mode::Working)?;
        }
        Ok(())
    }

    /// Empties the journals where fjall would do so too late, or not at all.
    fn keep_journal_short(&mut self) -> Result<(), EngineError> {
        let Some(free) = self.free else { return Ok(()) };
        let is_long = self.log.position().1 > free.journal_bytes_max();
        if is_long && (free.is_small() || self.mode == Mode::JournalOnly) && self.may_try() {
            self.empty_journals()?;
        }
        Ok(())
    }

    /// Blocks for a batch, from where they can be had.
    fn need_ahead(&mut self, bytes: u64) -> Result<(), EngineError> {
        if self.is_roomy() {
            self.allocate_ahead(self.ahead_bytes().max(bytes));
        }
        if self.allocate_ahead(bytes) {
            return Ok(());
        }
        if self.log.position().1 >= EMPTIED_BYTES_MIN && self.may_try() {
            self.empty_journals()?;
        }
        if self.allocate_ahead(bytes) { Ok(()) } else { Err(EngineError::Full) }
    }

    /// Waits where fjall would, but ends when its workers have: it would wait for them for ever.
    fn wait_for_workers(&self) -> Result<(), fjall::Error> {
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let is_behind = || {
            keyspace.tree.sealed_memtable_count() + 2 >= SEALED_MAX
                || keyspace.tree.l0_run_count() >= RUNS_MAX
        };
        while self.mode == Mode::Working && is_behind() {
            // Says whether the workers have failed, and else does nothing.
            database.persist(PersistMode::Buffer)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_stuck =
            keyspace.tree.sealed_memtable_count() >= SEALED_MAX || keyspace.tree.l0_run_count() >= RUNS_MAX;
        match self.mode == Mode::JournalOnly && is_stuck {
            true => Err(fjall::Error::Io(io::ErrorKind::StorageFull.into())),
            false => Ok(()),
        }
    }

    fn write(&self, batch: &Batch) -> Result<(), fjall::Error> {
        if self.is_low() || self.mode == Mode::JournalOnly {
            self.wait_for_workers()?;
        }
        let Ok(Open { database, keyspace }) = self.opened() else { return Err(fjall::Error::Poisoned) };
        let mut writes = OwnedWriteBatch::with_capacity(database.clone(), batch.len())
            .durability(Some(PersistMode::Buffer));
        for (key, value) in batch.writes() {
            match value {
                Some(value) => writes.insert(keyspace, key, value),
                None => writes.remove(keyspace, key),
            }
        }
        writes.commit()
    }

    /// Whether a commit failed since the disk is full. A worker that found it so only leaves fjall poisoned, and there may be room
    /// again by now.
    fn found_full(&mut self, error: &fjall::Error) -> bool {
        self.look();
        let was_full = self.was_full.is_some_and(|at| at.elapsed() < FULL_REMEMBERED);
        is_full(error) || matches!(error, fjall::Error::Poisoned) && was_full
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

fn is_full(error: &fjall::Error) -> bool {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => space::is_full(error),
        _ => false,
    }
}

fn open_database(directory: &Path, options: &FjallOptions, workers: usize) -> Result<Open, EngineError> {
    let database = Database::builder(directory)
        .cache_size(options.cache_bytes)
        .max_journaling_size(JOURNAL_BYTES_MAX)
        // The length of a batch in the journal is counted, see `journal::batch_bytes`.
        .journal_compression(CompressionType::None)
        .worker_threads_unchecked(workers)
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
    Ok(Open { database, keyspace })
}

fn lock(directory: &Path) -> io::Result<File> {
    std::fs::create_dir_all(directory)?;
    weft_host::lock(&FjallEngine::lock_file(directory)).map_err(|error| match error {
        LockError::System(error) => error,
        LockError::Held(holder) => io::Error::other(format!("process {holder} has it open")),
    })
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        let value = self.opened()?.keyspace.get(key).map_err(|error| store_error("read a key", error))?;
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
            let (key, value) = guard.into_inner().map_err(|error| store_error("scan keys", error))?;
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
            let (key, value) = guard.into_inner().map_err(|error| store_error("scan keys", error))?;
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
        if let Err(error) = &written
            && self.found_full(error)
        {
            self.reopen(Mode::JournalOnly)?;
            self.tried = Some(Instant::now());
            self.need_ahead(bytes)?;
            written = self.write(batch);
            if written.as_ref().is_err_and(is_full) {
                // Without blocks ahead it may have been written in part.
                self.reopen(Mode::JournalOnly)?;
                return Err(EngineError::Full);
            }
        }
        if let Err(error) = written {
            self.poison();
            return Err(store_error("commit to the journal", error));
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

struct FjallSyncer {
    tail: Tail,
    log: Arc<Log>,
    progress: Arc<Progress>,
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<CommitSeq, EngineError> {
        if self.progress.poisoned.load(Ordering::Acquire) {
            return Err(EngineError::Poisoned);
        }
        let covered = self.progress.committed.load(Ordering::Acquire);
        if let Err(error) = self.tail.sync(&self.log) {
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
