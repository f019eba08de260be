//! An operation on the names: it reads what was just staged, then the caches, then the store, and stages what it changes.
//! A commit makes one batch of that.
//!
//! ```text
//!   begin ─► create, rename, … ─► commit ─┬─ committed: caches, opens and counts follow
//!                │                        └─ conflict: forgotten, run again
//!                └─ fails: nothing is staged
//! ```

use crate::caller::SessionId;
use crate::engine::{CommitSeq, Engine, Pair, Room};
use crate::inode::{Attr, Entry, Inode, LayoutRequest};
use crate::ledger::LedgerChange;
use crate::namespace::{Namespace, encode_number};
use crate::opens::{Effect, Holding, OpenFile};
use crate::quota::{put_used, used_key};
use crate::replies::PendingReply;
use crate::shard::last_number;
use crate::usage::Charged;
use crate::{EngineError, MetaError, keys};

/// How many numbers one write of the superblock makes available.
const LEASE: u64 = 4096;
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

/// Runs something until it ends otherwise than with a conflict, at most `RUNS_MAX` times.
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
pub(crate) struct Staged {
    inodes: Vec<(u64, Option<Inode>)>,
    entries: Vec<(Vec<u8>, Option<Entry>)>,
    /// By key.
    records: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    effects: Vec<Effect>,
    /// Files whose bytes others have changed, as their writers say now.
    written: Vec<u64>,
    /// Inodes more, those that go not counted.
    inodes_made: i64,
    /// Which, where usage is counted.
    made: Vec<u64>,
    /// The count of inodes is to be written.
    counts: bool,
    grows: bool,
    /// It is refused where a quota would be exceeded.
    limited: bool,
}

impl Staged {
    /// What follows once it is committed.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }

    pub fn clear(&mut self) {
        self.inodes.clear();
        self.entries.clear();
        self.records.clear();
        self.effects.clear();
        self.written.clear();
        self.inodes_made = 0;
        self.made.clear();
        self.counts = false;
        self.grows = false;
        self.limited = false;
    }

    fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.entries.is_empty() && self.records.is_empty() && !self.counts
    }

    fn parts(&self) -> Charged<'_> {
        let Staged { inodes, made, effects, records, .. } = self;
        Charged { inodes, made, effects, records }
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
        let charged = self.charge()?;
        let changes = !self.ns.staged.is_empty();
        if changes && !self.ns.engine.has_room(self.ns.staged.room()) {
            return Err(MetaError::NoSpace);
        }
        let reviewed = self.ns.grants_to_review(&charged);
        let seq =
            if changes { self.commit_batch(kept.as_ref(), &charged)? } else { self.ns.engine.committed() };
        self.ns.ledger.apply(charged);
        if let Some((pending, reply)) = kept {
            let session = self.ns.opens.sessions.entry(pending.session).or_default();
            pending.keep(reply, session.replies.entry(pending.slot).or_default());
        }
        let Namespace { staged, opens, ledger, .. } = &mut *self.ns;
        for effect in staged.effects.drain(..) {
            match effect {
                Effect::Quota(effect) => ledger.take_effect(effect),
                effect => opens.apply(effect),
            }
        }
        self.ns.end_grants(&reviewed)?;
        Ok(seq)
    }

    fn commit_batch(
        &mut self,
        kept: Option<&(PendingReply, &[u8])>,
        charged: &LedgerChange,
    ) -> Result<CommitSeq, MetaError> {
        let ns = &mut *self.ns;
        let last_ino = last_number(ns.shard());
        let (staged, batch) = (&mut ns.staged, &mut ns.batch);
        batch.clear();
        let ino_lease = lease_after(ns.next_ino, ns.ino_lease, last_ino);
        let cookie_lease = lease_after(ns.next_cookie, ns.cookie_lease, u64::MAX);
        if ino_lease != ns.ino_lease {
            batch.put(keys::SUPER_INO_LEASE, encode_number(ino_lease));
        }
        if cookie_lease != ns.cookie_lease {
            batch.put(keys::SUPER_COOKIE_LEASE, encode_number(cookie_lease));
        }
        let gone = staged.inodes.iter().filter(|(_, inode)| inode.is_none()).map(|(ino, _)| *ino);
        let writes_count = staged.counts || ino_lease != ns.ino_lease;
        let counted = ns.count.stage(staged.inodes_made, gone, ns.next_ino, writes_count, batch);
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
        for (owner, used) in ns.ledger.changed(charged) {
            match used {
                Some(used) => batch.put_with(used_key(&owner), |out| put_used(out, &used)),
                None => batch.delete(used_key(&owner)),
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
        ns.count.apply(counted);
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

    /// What it does to the ledger of quotas.
    fn charge(&mut self) -> Result<LedgerChange, MetaError> {
        if self.ns.ledger.is_off() {
            return Ok(LedgerChange::default());
        }
        let staged = std::mem::take(&mut self.ns.staged);
        let charged = self.ns.charge(&staged.parts(), staged.limited);
        self.ns.staged = staged;
        charged
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

    pub(crate) fn staged_written(&self) -> &[u64] {
        &self.ns.staged.written
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
        if !self.ns.ledger.is_off() {
            self.ns.staged.made.push(inode.ino);
        }
        self.ns.staged.counts |= self.ns.count.has_written(inode.ino);
        self.ns.staged.grows = true;
        self.put_inode(inode);
    }

    /// Marks the operation as one that is refused where it would exceed a quota.
    pub fn limited(&mut self) {
        self.ns.staged.limited = true;
    }

    /// Marks the operation as one that adds data, so that it fails when the disk is nearly full.
    pub(crate) fn needs_room(&mut self) {
        self.ns.staged.grows = true;
    }

    /// Stages a correction of the count of inodes.
    pub(crate) fn correct_count(&mut self, inodes: i64) {
        self.ns.staged.inodes_made += inodes;
        self.ns.staged.counts = true;
    }

    pub(crate) fn delete_inode(&mut self, ino: u64) {
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
    ) -> Result<Vec<Pair>, MetaError> {
        let mut from = after.to_vec();
        from.push(0);
        self.records_between(&from.max(prefix.to_vec()), &keys::after_prefix(prefix), max)
    }

    /// Up to `max` records with `from <= key < to`, staged ones included.
    pub(crate) fn records_between(&self, from: &[u8], to: &[u8], max: usize) -> Result<Vec<Pair>, MetaError> {
        let staged = &self.ns.staged;
        let first = staged.place_of(from).unwrap_or_else(|at| at);
        let staged = staged.records[first..].iter().take_while(|(key, _)| key.as_slice() < to);
        Ok(merged(self.ns.engine.scan(from, to), staged, max)?)
    }

    /// A writer says that it has written to a file.
    pub(crate) fn note_written(&mut self, ino: u64) {
        self.ns.staged.written.push(ino);
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

    pub(crate) fn take_ino(&mut self) -> Result<u64, MetaError> {
        let (ino, shard) = (self.ns.next_ino, self.ns.shard());
        if ino == last_number(shard) {
            return Err(MetaError::NoNumbers { shard });
        }
        self.ns.next_ino = ino + 1;
        Ok(ino)
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

/// The first `max` records of a store with what is staged: both in the order of their keys, and what is staged counts.
fn merged<'s>(
    stored: impl Iterator<Item = Result<Pair, EngineError>>,
    staged: impl Iterator<Item = &'s (Vec<u8>, Option<Vec<u8>>)>,
    max: usize,
) -> Result<Vec<Pair>, EngineError> {
    let mut staged = staged.peekable();
    let mut found: Vec<Pair> = Vec::new();
    for pair in stored {
        let (key, value) = pair?;
        let mut is_staged = false;
        while let Some((earlier, value)) = staged.next_if(|(staged, _)| *staged <= key) {
            is_staged = *earlier == key;
            found.extend(value.clone().map(|value| (earlier.clone(), value)));
        }
        if !is_staged {
            found.push((key, value));
        }
        if found.len() >= max {
            break;
        }
    }
    let later = staged.filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
    found.extend(later.take(max.saturating_sub(found.len())));
    found.truncate(max);
    Ok(found)
}

/// The lease to have on disk once `next` is the next number to be handed out.
fn lease_after(next: u64, lease: u64, last: u64) -> u64 {
    if next > lease { next.saturating_add(LEASE).min(last) } else { lease }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn what_is_staged_counts_in_place_of_what_is_stored(
            stored in proptest::collection::btree_map(0..20u8, any::<u8>(), 0..12),
            staged in proptest::collection::btree_map(0..20u8, proptest::option::of(any::<u8>()), 0..12),
            max in 0..25usize,
        ) {
            let mut expected: BTreeMap<u8, u8> = stored.clone();
            for (key, value) in &staged {
                match value {
                    Some(value) => expected.insert(*key, *value),
                    None => expected.remove(key),
                };
            }
            let expected: Vec<Pair> =
                expected.into_iter().map(|(key, value)| (vec![key], vec![value])).take(max).collect();
            let stored = stored.into_iter().map(|(key, value)| Ok((vec![key], vec![value])));
            let staged: Vec<_> =
                staged.into_iter().map(|(key, value)| (vec![key], value.map(|value| vec![value]))).collect();
            prop_assert_eq!(merged(stored, staged.iter(), max).unwrap(), expected);
        }
    }
}
