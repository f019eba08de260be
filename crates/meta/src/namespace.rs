//! The namespace and the operation: how reads find what was just staged, and how a commit takes effect.
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
use crate::codec::{Reader, Writer};
use crate::engine::{Batch, CommitSeq, Engine, Room, Syncer};
use crate::fsck::Audit;
use crate::inode::{Attr, Caller, Entry, Inode, Kind, LayoutRequest, ROOT_INO, SessionId, Timestamp};
use crate::opens::{Effect, Handles, Holding, OpenFile, Opens};
use crate::ops::append::stored_tails;
use crate::replies::PendingReply;
use crate::{EngineError, MetaError, keys};
use std::collections::BTreeMap;

const FORMAT_VERSION: u8 = 1;
const NUMBER_VERSION: u8 = 1;
/// How many numbers one write of the superblock makes available.
const LEASE: u64 = 4096;
/// How far a restart jumps beyond the lease.
const RESTART_GAP: u64 = 1 << 20;
/// Cookies below are left to clients, for `.` and `..`.
const FIRST_COOKIE: u64 = 16;
const FIRST_INO: u64 = ROOT_INO + 1;

/// What the namespace takes from the cluster's configuration.
#[derive(Debug, Clone)]
pub struct NamespaceOptions {
    /// I/O servers in the cluster, at least 1.
    pub ring_servers: u16,
    /// Strip size of files where neither the request nor the directory says one.
    pub strip_bytes: u32,
    /// Servers of a file where neither the request nor the directory says so; 0 means all.
    pub server_count: u16,
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
}

/// All names and attributes of one file system.
pub struct Namespace<E: Engine> {
    pub(crate) engine: E,
    pub(crate) options: NamespaceOptions,
    pub(crate) opens: Opens,
    pub(crate) incarnation: u32,
    /// Whether the store says that locks may be held.
    pub(crate) locks_noted: bool,
    /// After a restart until `reap_orphans`: sessions may still come back for their files.
    pub(crate) grace: bool,
    pub(crate) next_ino: u64,
    pub(crate) next_cookie: u64,
    ino_lease: u64,
    cookie_lease: u64,
    inodes_in_use: u64,
    cluster_uuid: [u8; 16],
    failure: Option<String>,
    pub(crate) audit: Option<Audit>,
    inode_cache: FastClock<u64, Inode>,
    entry_cache: Clock<Vec<u8>, Option<Entry>>,
    staged: Staged,
    /// Memory of the last batch, for the next one.
    batch: Batch,
    /// The same for the key of a name that is looked for.
    name_key: Vec<u8>,
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
        batch.put(keys::SUPER_FILES, encode_number(1));
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
        let incarnation = read_number(&engine, keys::SUPER_INCARNATION)? + 1;
        let mut batch = Batch::default();
        batch.put(keys::SUPER_INCARNATION, encode_number(incarnation));
        run_again(|| engine.commit(&batch))?;
        let restarted = incarnation > 1;
        let gap = if restarted { RESTART_GAP } else { 0 };
        let ino_lease = read_number(&engine, keys::SUPER_INO_LEASE)?;
        let cookie_lease = read_number(&engine, keys::SUPER_COOKIE_LEASE)?;
        let locks_noted = engine.get(keys::SUPER_LOCKS)?.is_some();
        Ok(Namespace {
            opens: Opens::with_tails(stored_tails(&engine)?),
            locks_noted,
            incarnation: incarnation as u32,
            grace: restarted,
            next_ino: ino_lease + gap,
            next_cookie: cookie_lease + gap,
            ino_lease,
            cookie_lease,
            inodes_in_use: read_number(&engine, keys::SUPER_FILES)?,
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

    /// Whether locks may be held by sessions, as last noted.
    pub fn locks_noted(&self) -> bool {
        self.locks_noted
    }

    /// Notes in the store whether locks may be held, so that the next run of the server knows if somebody may come back for
    /// some.
    pub fn note_locks(&mut self, held: bool) -> Result<(), MetaError> {
        self.change::<_, MetaError>(|op| {
            match held {
                true => op.put(keys::SUPER_LOCKS, encode_number(1)),
                false => op.delete(keys::SUPER_LOCKS),
            }
            Ok(())
        })?;
        self.locks_noted = held;
        Ok(())
    }

    /// Counts for statfs and status.
    pub fn statfs(&self) -> Statfs {
        let (open_files, sessions) = self.opens.counts();
        Statfs {
            inodes: self.inodes_in_use,
            open_files: open_files as u64,
            lately_removed: self.opens.lately_removed.len() as u64,
            sessions: sessions as u64,
        }
    }

    /// All inode numbers from here on have not been given out. A scan for orphaned data files reads this first and
    /// leaves files of such numbers alone.
    pub fn next_ino(&self) -> u64 {
        self.next_ino
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
        let (cached_inodes, cached_entries) = (self.options.cached_inodes, self.options.cached_entries);
        self.options =
            NamespaceOptions { ring_servers, strip_bytes, server_count, cached_inodes, cached_entries };
    }

    /// Bounds of inode numbers and cookies on disk, and the count of inodes.
    pub(crate) fn leases(&self) -> (u64, u64, u64) {
        (self.ino_lease, self.cookie_lease, self.inodes_in_use)
    }

    pub(crate) fn load_inode(&mut self, ino: u64) -> Result<Option<&Inode>, EngineError> {
        if self.inode_cache.get(&ino).is_none() {
            let key = keys::inode(ino);
            let Some(value) = self.engine.get(&key)? else { return Ok(None) };
            self.inode_cache.insert(ino, Inode::decode(&key, &value)?);
        }
        Ok(self.inode_cache.get(&ino))
    }

    /// Others have written: what was read before counts no more.
    fn forget_cached(&mut self) {
        self.inode_cache = FastClock::new(self.options.cached_inodes);
        self.entry_cache = Clock::new(self.options.cached_entries);
    }

    fn load_entry(&mut self, key: &[u8]) -> Result<Option<Entry>, EngineError> {
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

/// How often an operation is run before it fails with the conflict.
const RUNS_MAX: usize = 100;

/// An error that may be a conflict.
pub trait MayConflict {
    /// Whether the operation is to be run again.
    fn is_conflict(&self) -> bool;
}

impl MayConflict for EngineError {
    fn is_conflict(&self) -> bool {
        matches!(self, EngineError::Conflict)
    }
}

impl MayConflict for MetaError {
    fn is_conflict(&self) -> bool {
        matches!(self, MetaError::Engine(EngineError::Conflict))
    }
}

/// Runs something until it ends otherwise than with a conflict, at most [`RUNS_MAX`] times.
pub fn run_again<T, F: MayConflict>(mut run: impl FnMut() -> Result<T, F>) -> Result<T, F> {
    for _ in 1..RUNS_MAX {
        match run() {
            Err(error) if error.is_conflict() => {}
            ended => return ended,
        }
    }
    run()
}

/// One operation: call one of its operation methods, then commit, or drop it and nothing happened.
///
/// A method that fails leaves nothing staged. Reading operations need no commit. Nothing but the commit has an effect
/// outside of the operation, so that it can be run again; only inode numbers and cookies that it was given are not
/// given to another.
pub struct Op<'n, E: Engine> {
    pub(crate) ns: &'n mut Namespace<E>,
    pub(crate) once: Option<PendingReply>,
}

/// What an operation is going to change. It lies with the namespace, so that its memory serves one operation after the other.
#[derive(Default)]
struct Staged {
    inodes: Vec<(u64, Option<Inode>)>,
    entries: Vec<(Vec<u8>, Option<Entry>)>,
    /// By key.
    records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    effects: Vec<Effect>,
    inodes_made: i64,
    grows: bool,
}

impl Staged {
    fn clear(&mut self) {
        self.inodes.clear();
        self.entries.clear();
        self.records.clear();
        self.effects.clear();
        self.inodes_made = 0;
        self.grows = false;
    }

    fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.entries.is_empty() && self.records.is_empty()
    }

    /// What the disk must have room for. What moves a name neither adds nor removes.
    fn room(&self) -> Room {
        let gone = self.entries.iter().filter(|(_, entry)| entry.is_none()).count();
        let only_removes = |removed: usize, all: usize| removed > 0 && 2 * removed > all;
        if self.grows {
            Room::Growth
        } else if only_removes(gone, self.entries.len())
            || self.inodes.iter().any(|(_, inode)| inode.is_none())
            || self.entries.is_empty() && self.records.iter().any(|(_, value)| value.is_none())
        {
            Room::Removal
        } else {
            Room::Change
        }
    }

    /// Where a record is, or belongs.
    fn place_of(&self, key: &[u8]) -> Result<usize, usize> {
        self.records.binary_search_by(|(staged, _)| staged.as_slice().cmp(key))
    }

    fn put_record(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match self.place_of(&key) {
            Ok(at) => self.records[at].1 = value,
            Err(at) => self.records.insert(at, (key, value)),
        }
    }
}

impl<E: Engine> Op<'_, E> {
    /// Makes the operation happen. The number returned is what a durable reply waits for.
    pub fn commit(self) -> Result<CommitSeq, MetaError> {
        self.finish(None)
    }

    /// Makes the operation happen and, with it, keeps `reply` for a repetition of the request that
    /// [`Namespace::begin_once`] was given. Without such a request the reply is not kept.
    pub fn commit_with_reply(self, reply: &[u8]) -> Result<CommitSeq, MetaError> {
        self.finish(Some(reply))
    }

    fn finish(mut self, reply: Option<&[u8]>) -> Result<CommitSeq, MetaError> {
        let kept = self.once.take().zip(reply);
        if let Some((pending, reply)) = &kept {
            pending.check(reply)?;
        }
        let changes = !self.ns.staged.is_empty();
        if changes && !self.ns.engine.has_room(self.ns.staged.room()) {
            return Err(MetaError::NoSpace);
        }
        let seq = if changes { self.commit_batch(kept.as_ref())? } else { self.ns.engine.committed() };
        if let Some((pending, reply)) = kept {
            pending.keep(reply, self.ns.opens.sessions.entry(pending.session).or_default());
        }
        let Namespace { staged, opens, .. } = &mut *self.ns;
        staged.effects.drain(..).for_each(|effect| opens.apply(effect));
        Ok(seq)
    }

    fn commit_batch(&mut self, kept: Option<&(PendingReply, &[u8])>) -> Result<CommitSeq, MetaError> {
        let ns = &mut *self.ns;
        let (staged, batch) = (&mut ns.staged, &mut ns.batch);
        batch.clear();
        let ino_lease = lease_after(ns.next_ino, ns.ino_lease);
        let cookie_lease = lease_after(ns.next_cookie, ns.cookie_lease);
        let in_use = ns.inodes_in_use.saturating_add_signed(staged.inodes_made);
        if ino_lease != ns.ino_lease {
            batch.put(keys::SUPER_INO_LEASE, encode_number(ino_lease));
        }
        if cookie_lease != ns.cookie_lease {
            batch.put(keys::SUPER_COOKIE_LEASE, encode_number(cookie_lease));
        }
        if staged.inodes_made != 0 {
            batch.put(keys::SUPER_FILES, encode_number(in_use));
        }
        for (ino, inode) in &staged.inodes {
            let key = keys::inode(*ino);
            match inode {
                Some(inode) => batch.put_encoded(key, inode),
                None => batch.delete(key),
            }
        }
        for (key, entry) in &staged.entries {
            match entry {
                Some(entry) => batch.put_encoded(key, entry),
                None => batch.delete(key),
            }
        }
        for (key, value) in staged.records.drain(..) {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        if let Some((pending, reply)) = kept {
            pending.store(reply, batch);
        }
        let before = ns.audit.as_ref().map(|audit| audit.before(&ns.engine, batch)).transpose()?;
        let seq = match ns.engine.commit(batch) {
            Ok(seq) => seq,
            Err(EngineError::Full) => return Err(MetaError::NoSpace),
            Err(EngineError::Conflict) => {
                ns.forget_cached();
                return Err(EngineError::Conflict.into());
            }
            Err(error) => {
                ns.failure.get_or_insert(error.to_string());
                return Err(error.into());
            }
        };
        if let Some((audit, before)) = ns.audit.as_mut().zip(before) {
            audit.follow(batch, before);
        }
        ns.ino_lease = ino_lease;
        ns.cookie_lease = cookie_lease;
        ns.inodes_in_use = in_use;
        for (ino, inode) in staged.inodes.drain(..) {
            match inode {
                Some(inode) => ns.inode_cache.insert(ino, inode),
                None => ns.inode_cache.remove(&ino),
            }
        }
        for (key, entry) in staged.entries.drain(..) {
            ns.entry_cache.insert(key, entry);
        }
        Ok(seq)
    }

    /// Runs an operation's function; if it fails, nothing of it stays staged.
    pub(crate) fn attempt<T>(
        &mut self,
        operation: impl FnOnce(&mut Self) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        let result = operation(self);
        if result.is_err() {
            self.ns.staged.clear();
        }
        result
    }

    pub(crate) fn inode(&mut self, ino: u64) -> Result<Option<Inode>, MetaError> {
        match self.ns.staged.inodes.iter().find(|(staged, _)| *staged == ino) {
            Some((_, inode)) => Ok(inode.clone()),
            None => Ok(self.ns.load_inode(ino)?.cloned()),
        }
    }

    /// The inode, or `Stale` if the number leads nowhere.
    pub(crate) fn need(&mut self, ino: u64) -> Result<Inode, MetaError> {
        self.inode(ino)?.ok_or(MetaError::Stale)
    }

    /// The inode of an existing directory.
    pub(crate) fn need_dir(&mut self, ino: u64) -> Result<Inode, MetaError> {
        let inode = self.need(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(MetaError::NotDirectory) }
    }

    pub(crate) fn put_inode(&mut self, inode: Inode) {
        self.stage_inode(inode.ino, Some(inode));
    }

    pub(crate) fn stage_inode(&mut self, ino: u64, inode: Option<Inode>) {
        match self.ns.staged.inodes.iter_mut().find(|(staged, _)| *staged == ino) {
            Some((_, staged)) => *staged = inode,
            None => self.ns.staged.inodes.push((ino, inode)),
        }
    }

    /// Shows each staged inode that there was before: as it was, and as it will be if it stays.
    pub(crate) fn each_changed_inode(
        &mut self,
        mut look: impl FnMut(&Inode, Option<&Inode>),
    ) -> Result<(), EngineError> {
        let staged = std::mem::take(&mut self.ns.staged.inodes);
        let shown = staged.iter().try_for_each(|(ino, now)| {
            if let Some(before) = self.ns.load_inode(*ino)? {
                look(before, now.as_ref());
            }
            Ok(())
        });
        self.ns.staged.inodes = staged;
        shown
    }

    /// Keys of the names that change.
    pub(crate) fn staged_entries(&self) -> impl Iterator<Item = &[u8]> {
        self.ns.staged.entries.iter().map(|(key, _)| key.as_slice())
    }

    pub(crate) fn staged_effects(&self) -> &[Effect] {
        &self.ns.staged.effects
    }

    /// Whether `session` alone writes to the file `ino`, and has vouched for all of it: then its size is what it reported.
    pub fn knows_size(&self, session: SessionId, ino: u64) -> bool {
        self.open_file(ino).is_some_and(|file| {
            let own = file.held_by(session).writers;
            own > 0 && own == file.total.writers && file.total.truncations == 0 && !file.unclean
        })
    }

    /// Stages an inode that did not exist before.
    pub(crate) fn add_inode(&mut self, inode: Inode) {
        self.ns.staged.inodes_made += 1;
        self.ns.staged.grows = true;
        self.put_inode(inode);
    }

    /// Marks the operation as one that adds data, so that it fails when the disk is nearly full.
    pub(crate) fn needs_room(&mut self) {
        self.ns.staged.grows = true;
    }

    /// Stages a correction of the count of inodes.
    pub(crate) fn correct_count(&mut self, inodes: i64) {
        self.ns.staged.inodes_made += inodes;
    }

    pub(crate) fn delete_inode(&mut self, ino: u64) {
        self.ns.staged.inodes_made -= 1;
        self.stage_inode(ino, None);
    }

    pub(crate) fn entry(&mut self, dir: u64, name: &[u8]) -> Result<Option<Entry>, MetaError> {
        let mut key = std::mem::take(&mut self.ns.name_key);
        keys::name_into(&mut key, dir, name);
        let entry = match self.ns.staged.entries.iter().find(|(staged, _)| *staged == key) {
            Some((_, entry)) => Ok(*entry),
            None => self.ns.load_entry(&key),
        };
        self.ns.name_key = key;
        Ok(entry?)
    }

    /// Stages `name` in `dir`, in both orders. An entry of another cookie under the name must be removed before.
    pub(crate) fn put_entry(&mut self, dir: u64, name: &[u8], entry: Entry) {
        self.put(keys::order(dir, entry.cookie), entry.encode_order(name));
        self.stage_entry(keys::name(dir, name), Some(entry));
    }

    pub(crate) fn delete_entry(&mut self, dir: u64, name: &[u8], entry: &Entry) {
        self.delete(keys::order(dir, entry.cookie));
        self.stage_entry(keys::name(dir, name), None);
    }

    pub(crate) fn stage_entry(&mut self, key: Vec<u8>, entry: Option<Entry>) {
        match self.ns.staged.entries.iter_mut().find(|(staged, _)| *staged == key) {
            Some((_, staged)) => *staged = entry,
            None => self.ns.staged.entries.push((key, entry)),
        }
    }

    /// Any other record.
    pub(crate) fn record(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, MetaError> {
        match self.ns.staged.place_of(key) {
            Ok(at) => Ok(self.ns.staged.records[at].1.clone()),
            Err(_) => Ok(self.ns.engine.get(key)?),
        }
    }

    pub(crate) fn put(&mut self, key: impl Into<Vec<u8>>, value: Vec<u8>) {
        self.ns.staged.put_record(key.into(), Some(value));
    }

    pub(crate) fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.ns.staged.put_record(key.into(), None);
    }

    /// Up to `max` records whose keys begin with `prefix` and come after `after`, staged ones included.
    pub(crate) fn records_after(
        &self,
        prefix: &[u8],
        after: &[u8],
        max: usize,
    ) -> Result<Vec<crate::engine::Pair>, MetaError> {
        let mut from = after.to_vec();
        from.push(0);
        let (from, to) = (from.max(prefix.to_vec()), keys::after_prefix(prefix));
        let mut found = BTreeMap::new();
        for pair in self.ns.engine.scan(&from, &to) {
            let (key, value) = pair?;
            if self.ns.staged.place_of(&key).is_ok() {
                continue;
            }
            found.insert(key, value);
            if found.len() == max {
                break;
            }
        }
        let first = self.ns.staged.place_of(&from).unwrap_or_else(|at| at);
        for (key, value) in self.ns.staged.records[first..].iter().take_while(|(key, _)| *key < to) {
            if let Some(value) = value {
                found.insert(key.clone(), value.clone());
            }
        }
        Ok(found.into_iter().take(max).collect())
    }

    pub(crate) fn effect(&mut self, effect: Effect) {
        self.ns.staged.effects.push(effect);
    }

    pub(crate) fn open_file(&self, ino: u64) -> Option<&OpenFile> {
        self.ns.opens.file(ino)
    }

    /// What of a file is held after what is staged.
    pub(crate) fn holding(&self, ino: u64, session: SessionId) -> Option<Holding> {
        self.ns.opens.holding(ino, session, &self.ns.staged.effects)
    }

    pub(crate) fn take_ino(&mut self) -> u64 {
        self.ns.next_ino += 1;
        self.ns.next_ino - 1
    }

    pub(crate) fn take_cookie(&mut self) -> u64 {
        self.ns.next_cookie += 1;
        self.ns.next_cookie - 1
    }

    pub(crate) fn attr_of(&self, inode: &Inode) -> Attr {
        inode.attr(self.ns.incarnation)
    }

    pub(crate) fn cluster_default(&self) -> LayoutRequest {
        let options = &self.ns.options;
        LayoutRequest {
            strip_bytes: Some(options.strip_bytes),
            server_count: Some(options.server_count),
            first_server: None,
        }
    }
}

/// The lease to have on disk once `next` is the next number to be handed out.
fn lease_after(next: u64, lease: u64) -> u64 {
    if next > lease { next + LEASE } else { lease }
}
