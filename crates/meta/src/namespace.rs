//! The namespace: what is in memory of it, and what all operations share.
//!
//! ```text
//!   Op            staged inodes, entries, records      read first
//!   Namespace     caches (clock, by count), opens      read next; changed only after a commit has succeeded
//!   Engine        the store                            read last
//! ```
//!
//! Inode numbers and cookies are handed out from leases: the superblock holds a number that none handed out so far
//! has reached, and is written once in `LEASE` numbers. A restart continues `RESTART_GAP` beyond the lease, so that
//! even creates lost in a power cut (their numbers may name data files already) are not given out twice.

use crate::cache::{Clock, FastClock};
use crate::caller::{Caller, SessionId};
use crate::codec::{Reader, Writer};
use crate::count::{InodeCount, put_count};
use crate::counters::stored_counters;
use crate::engine::{Batch, CommitSeq, Engine, Syncer};
use crate::fsck::Audit;
use crate::inode::{Entry, Inode, Kind, ROOT_INO, Timestamp};
use crate::ledger::Ledger;
use crate::op::{MayConflict, Op, Staged, run_again};
use crate::opens::{Handles, Opens, ToRemove};
use crate::shard::last_number;
use crate::tails::stored_tails;
use crate::usage::load_ledger;
use crate::{EngineError, MetaError, keys};
use weft_layout::shard_of;

const FORMAT_VERSION: u8 = 1;
const NUMBER_VERSION: u8 = 1;
/// How far a restart jumps beyond the lease.
const RESTART_GAP: u64 = 1 << 20;
/// No cookie is as great: nobody has counted so far.
pub(crate) const COOKIES_END: u64 = 1 << 63;
/// A store that was put back from a copy skips at most this part of the numbers that are left.
const FORKS: u64 = 256;
/// Inodes are scanned for, where so many of them have no greater gaps than this between their numbers.
const SCAN_MIN: usize = 8;
const SCAN_GAP_MAX: u64 = 3;
/// Cookies below are left to clients, for `.` and `..`.
const FIRST_COOKIE: u64 = 16;
const FIRST_INO: u64 = ROOT_INO + 1;

/// What the namespace takes from the cluster's configuration.
#[derive(Debug, Clone, Copy)]
pub struct NamespaceOptions {
    /// I/O servers in the cluster, at least 1.
    pub ring_servers: u16,
    /// Strip size of files where neither the request nor the directory says one.
    pub strip_bytes: u32,
    /// Servers of a file where neither the request nor the directory says so; 0 means all.
    pub server_count: u16,
    /// Up to this size a file's bytes lie with its inode, at most [`SMALL_FILE_BYTES_MAX`](crate::SMALL_FILE_BYTES_MAX)
    /// and a strip; 0: all files are striped.
    pub small_file_bytes: u32,
    /// Inodes kept decoded in memory, about 300 bytes each.
    pub cached_inodes: usize,
    /// Entries kept decoded in memory, about 150 bytes each.
    pub cached_entries: usize,
}

impl Default for NamespaceOptions {
    fn default() -> Self {
        NamespaceOptions {
            ring_servers: 1,
            strip_bytes: 256 * 1024,
            server_count: 0,
            small_file_bytes: 16 * 1024,
            cached_inodes: 64 * 1024,
            cached_entries: 64 * 1024,
        }
    }
}

/// Counts for statfs and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// Inodes in use, the root included.
    pub inodes: u64,
    /// Inodes open now.
    pub open_files: u64,
    /// Inodes without a name that are kept for a moment.
    pub lately_removed: u64,
    /// Sessions that hold files or replies.
    pub sessions: u64,
    /// Counters of open files.
    pub counters: u64,
}

/// All names and attributes of one file system.
pub struct Namespace<E: Engine> {
    pub(crate) engine: E,
    pub(crate) options: NamespaceOptions,
    pub(crate) opens: Opens,
    pub(crate) incarnation: u32,
    /// After a restart until `reap_orphans`: sessions may still come back for their files.
    pub(crate) grace: bool,
    shard: u16,
    pub(crate) next_ino: u64,
    pub(crate) next_cookie: u64,
    pub(crate) ino_lease: u64,
    pub(crate) cookie_lease: u64,
    pub(crate) count: InodeCount,
    /// Usage and limits.
    pub(crate) ledger: Ledger,
    cluster_uuid: [u8; 16],
    pub(crate) failure: Option<String>,
    pub(crate) audit: Option<Audit>,
    pub(crate) inode_cache: FastClock<u64, Inode>,
    pub(crate) entry_cache: Clock<Vec<u8>, Option<Entry>>,
    pub(crate) staged: Staged,
    /// Memory of the last batch, for the next one.
    pub(crate) batch: Batch,
    /// The same for the key of a name that is looked for.
    pub(crate) name_key: Vec<u8>,
}

pub(crate) fn encode_number(number: u64) -> Vec<u8> {
    let mut out = Writer::with_version(NUMBER_VERSION, 9);
    out.u64(number);
    out.bytes
}

fn read_number<E: Engine>(engine: &E, key: &[u8]) -> Result<u64, EngineError> {
    let value = engine
        .get(key)?
        .ok_or_else(|| EngineError::Format(format!("superblock field {} is missing", keys::readable(key))))?;
    let mut from = Reader::with_version(key, &value, NUMBER_VERSION)?;
    let number = from.u64("number")?;
    from.end()?;
    Ok(number)
}

/// As [`read_number`], of a number that counts up by at most [`RESTART_GAP`] from one start to the next: one that is about to
/// leave its range was not counted so.
fn read_counted<E: Engine>(engine: &E, key: &[u8], max: u64) -> Result<u64, EngineError> {
    let number = read_number(engine, key)?;
    if number > max - RESTART_GAP {
        let key = keys::readable(key);
        return Err(EngineError::Format(format!("superblock field {key} is damaged: {number} is too large")));
    }
    Ok(number)
}

impl<E: Engine> Namespace<E> {
    /// Writes an empty file system: a root directory owned by `owner` with mode 0755. Fails if the store holds one.
    pub fn format(
        engine: &mut E,
        cluster_uuid: [u8; 16],
        owner: &Caller,
        now: Timestamp,
    ) -> Result<(), EngineError> {
        if engine.get(keys::SUPER_FORMAT)?.is_some() {
            return Err(EngineError::Format("the store holds a file system already".into()));
        }
        let mut root = Inode::new(ROOT_INO, 0, Kind::Directory, 0o755, owner.uid, owner.gid, now);
        root.parent = ROOT_INO;
        let mut format = Writer::with_version(FORMAT_VERSION, 17);
        format.bytes.extend_from_slice(&cluster_uuid);
        let mut batch = Batch::default();
        batch.put(keys::SUPER_FORMAT, format.bytes);
        batch.put(keys::SUPER_INO_LEASE, encode_number(FIRST_INO));
        batch.put(keys::SUPER_COOKIE_LEASE, encode_number(FIRST_COOKIE));
        put_count(&mut batch, 1, FIRST_INO);
        batch.put(keys::SUPER_INCARNATION, encode_number(0));
        batch.put_encoded(keys::inode(ROOT_INO), &root);
        run_again(|| engine.commit(&batch))?;
        engine.syncer().sync()?;
        Ok(())
    }

    /// Whether the store holds a file system.
    pub fn is_formatted(engine: &E) -> Result<bool, EngineError> {
        Ok(engine.get(keys::SUPER_FORMAT)?.is_some())
    }

    /// Opens the file system in the store. If it was open before, a time of grace begins that
    /// [`reap_orphans`](Namespace::reap_orphans) ends: sessions come back for their files, no size is settled and
    /// no unlinked file vanishes.
    pub fn open(mut engine: E, options: NamespaceOptions) -> Result<Namespace<E>, EngineError> {
        let format = engine
            .get(keys::SUPER_FORMAT)?
            .ok_or_else(|| EngineError::Format("no file system in this store; format it first".into()))?;
        let mut from = Reader::with_version(keys::SUPER_FORMAT, &format, FORMAT_VERSION)?;
        let uuid = from.take(16, "uuid")?.try_into().map_err(|_| from.damaged("uuid"))?;
        let incarnation = read_counted(&engine, keys::SUPER_INCARNATION, u32::MAX.into())? + 1;
        let restarted = incarnation > 1;
        let gap = if restarted { RESTART_GAP } else { 0 };
        let ino_lease = read_number(&engine, keys::SUPER_INO_LEASE)?;
        let next_ino = ino_lease.saturating_add(gap).min(last_number(shard_of(ino_lease)));
        let mut batch = Batch::default();
        batch.put(keys::SUPER_INCARNATION, encode_number(incarnation));
        let mut count = InodeCount::load(&engine)?;
        let change = count.stage(0, std::iter::empty(), next_ino, true, &mut batch);
        let ledger = load_ledger(&engine, incarnation as u32, &mut batch)?;
        run_again(|| engine.commit(&batch))?;
        count.apply(change);
        let cookie_lease = read_counted(&engine, keys::SUPER_COOKIE_LEASE, COOKIES_END)?;
        Ok(Namespace {
            opens: Opens::with_stored(stored_tails(&engine)?, stored_counters(&engine)?),
            incarnation: incarnation as u32,
            grace: restarted,
            shard: shard_of(ino_lease),
            next_ino,
            next_cookie: cookie_lease + gap,
            ino_lease,
            cookie_lease,
            count,
            ledger,
            cluster_uuid: uuid,
            failure: None,
            audit: None,
            inode_cache: FastClock::new(options.cached_inodes),
            entry_cache: Clock::new(options.cached_entries),
            staged: Staged::default(),
            batch: Batch::default(),
            name_key: Vec::new(),
            options,
            engine,
        })
    }

    /// The cluster this file system belongs to.
    pub fn cluster_uuid(&self) -> [u8; 16] {
        self.cluster_uuid
    }

    /// The shard that new inodes belong to.
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// The engine below.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// A handle that makes commits durable, for the sync thread.
    pub fn syncer(&self) -> Box<dyn Syncer> {
        self.engine.syncer()
    }

    /// The number of the last commit: what a reply given now must wait for if it has to be durable.
    pub fn committed(&self) -> CommitSeq {
        self.engine.committed()
    }

    /// Why the store accepts nothing any more, if a commit has failed. What is on the disk then is only known after a
    /// restart, so whoever serves from here should end.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether sessions of before the restart may still claim their files.
    pub fn in_grace(&self) -> bool {
        self.grace
    }

    /// Whether this session has the file open in any way.
    pub fn is_open_by(&self, ino: u64, session: SessionId) -> bool {
        self.opens.file(ino).is_some_and(|file| file.held_by(session) != Handles::default())
    }

    /// Whether this session has the file open for writing.
    pub fn is_written_by(&self, ino: u64, session: SessionId) -> bool {
        self.opens.file(ino).is_some_and(|file| file.held_by(session).writers > 0)
    }

    /// Counts for statfs and status.
    pub fn statfs(&self) -> Statfs {
        let (open_files, sessions) = self.opens.counts();
        Statfs {
            inodes: self.count.now(),
            open_files: open_files as u64,
            lately_removed: self.opens.lately_removed.len() as u64,
            sessions: sessions as u64,
            counters: self.opens.counters.len() as u64,
        }
    }

    /// All inode numbers from here on have not been given out. A scan for orphaned data files reads this first and
    /// leaves files of such numbers alone.
    pub fn next_ino(&self) -> u64 {
        self.next_ino
    }

    /// A number for a store that was put back from a copy to go on from, for [`Op::forgets_below`]: not below `ino`, and as far
    /// away as `random` says. Two stores that go on from the same copy then give out different numbers, so data that one of
    /// them has written is never taken for a file of the other.
    pub fn number_apart(&self, ino: u64, random: u64) -> u64 {
        let own = if shard_of(ino) == self.shard { ino } else { 0 };
        let from = self.next_ino.max(own);
        from + random % ((last_number(self.shard) - from) / FORKS).max(1)
    }

    /// Gives out no inode number up to `ino`, where that is one of the shard; says whether it is.
    pub(crate) fn go_on_behind(&mut self, ino: u64) -> bool {
        let is_own = shard_of(ino) == self.shard && ino != last_number(self.shard);
        if is_own {
            self.next_ino = self.next_ino.max(ino + 1);
        }
        is_own
    }

    /// What operations have left to the remover of data files since this was asked before.
    pub fn take_to_remove(&mut self) -> ToRemove {
        std::mem::take(&mut self.opens.to_remove)
    }

    /// Begins an operation.
    pub fn begin(&mut self) -> Op<'_, E> {
        self.staged.clear();
        Op { ns: self, once: None }
    }

    /// Runs an operation and commits it; again where the engine asks for it. What it is to have an effect on besides
    /// the namespace, the caller does afterwards.
    pub fn change<T, F: From<MetaError> + MayConflict>(
        &mut self,
        run: impl Fn(&mut Op<'_, E>) -> Result<T, F>,
    ) -> Result<(T, CommitSeq), F> {
        run_again(|| {
            let mut op = self.begin();
            let result = run(&mut op)?;
            Ok((result, op.commit()?))
        })
    }

    /// Changes what new files get, after I/O servers were added; sizes of the caches stay.
    pub fn set_defaults(&mut self, ring_servers: u16, strip_bytes: u32, server_count: u16) {
        self.options = NamespaceOptions { ring_servers, strip_bytes, server_count, ..self.options };
    }

    /// Bounds of inode numbers and cookies on disk.
    pub(crate) fn leases(&self) -> (u64, u64) {
        (self.ino_lease, self.cookie_lease)
    }

    pub(crate) fn load_inode(&mut self, ino: u64) -> Result<Option<&Inode>, EngineError> {
        if self.inode_cache.get(&ino).is_none() {
            let key = keys::inode(ino);
            let Some(value) = self.engine.get(&key)? else { return Ok(None) };
            self.inode_cache.insert(ino, Inode::decode(&key, &value)?);
        }
        Ok(self.inode_cache.get(&ino))
    }

    /// Reads inodes ahead of their use, where many numbers lie close together, as in a directory that was filled at once: a scan costs a
    /// third of as many look-ups, or less where they are in tables on disk. The others are left to be looked up.
    pub(crate) fn read_inodes_ahead(&mut self, mut numbers: Vec<u64>) -> Result<(), EngineError> {
        let Namespace { engine, inode_cache, .. } = self;
        numbers.retain(|ino| inode_cache.get(ino).is_none());
        numbers.sort_unstable();
        numbers.dedup();
        let runs = numbers.chunk_by(|ino, next| next - ino <= SCAN_GAP_MAX);
        for run in runs.filter(|run| run.len() >= SCAN_MIN) {
            let (first, last) = (run[0], run[run.len() - 1]);
            for pair in engine.scan(&keys::inode(first), &keys::inode(last.saturating_add(1))) {
                let (key, value) = pair?;
                if let Some(ino) = keys::number_of(&key)
                    && run.binary_search(&ino).is_ok()
                {
                    inode_cache.insert(ino, Inode::decode(&key, &value)?);
                }
            }
        }
        Ok(())
    }

    /// Keeps an entry that was read from the order of its directory for a look at it by its name.
    pub(crate) fn keep_entry(&mut self, dir: u64, name: &[u8], entry: Entry) {
        keys::name_into(&mut self.name_key, dir, name);
        if self.entry_cache.get(self.name_key.as_slice()).is_none() {
            self.entry_cache.insert(self.name_key.clone(), Some(entry));
        }
    }

    /// Sessions, or their processes, that have a record of this kind in a shard: `of` reads its key.
    pub(crate) fn noted<T>(
        &self,
        kind: u8,
        shard: u16,
        of: impl Fn(&[u8]) -> Option<(T, u16)>,
    ) -> Result<Vec<T>, MetaError> {
        let mut noted = Vec::new();
        for pair in self.engine.scan(&[kind], &[kind + 1]) {
            let (key, _) = pair?;
            let damaged = || EngineError::Format(format!("no session in {}", keys::readable(&key)));
            let (who, its_shard) = of(&key).ok_or_else(damaged)?;
            noted.extend((its_shard == shard).then_some(who));
        }
        Ok(noted)
    }

    /// Others have written: what was read before counts no more.
    pub(crate) fn forget_cached(&mut self) {
        self.inode_cache = FastClock::new(self.options.cached_inodes);
        self.entry_cache = Clock::new(self.options.cached_entries);
    }

    pub(crate) fn load_entry(&mut self, key: &[u8]) -> Result<Option<Entry>, EngineError> {
        if let Some(entry) = self.entry_cache.get(key) {
            return Ok(*entry);
        }
        let entry = match self.engine.get(key)? {
            Some(value) => Some(Entry::decode(key, &value)?),
            None => None,
        };
        self.entry_cache.insert(key.into(), entry);
        Ok(entry)
    }
}
