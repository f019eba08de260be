//! Usage as part of the namespace: what a store has of it, what an operation does to it, and how it is counted.

use crate::engine::{Batch, Engine};
use crate::inode::Inode;
use crate::keys;
use crate::ledger::{Counting, Ledger, LedgerChange, Move, Wish};
use crate::namespace::Namespace;
use crate::opens::{Effect, Hold};
use crate::quota::{
    LimitRecord, Owner, QuotaEffect, Stored, Sum, decode_limit, decode_state, decode_used, encode_limit,
    encode_state, limit_key, put_used, used_key,
};
use crate::{EngineError, MetaError};

/// Bytes of extended attributes that [`Namespace::count_usage`] reads in one step, at least one inode's.
const XATTRS_READ_IN_A_TURN: u64 = 4 << 20;

/// What an operation has staged, as far as it counts.
#[derive(Clone, Copy)]
pub(crate) struct Charged<'a> {
    pub inodes: &'a [(u64, Option<Inode>)],
    /// Those that did not exist before.
    pub made: &'a [u64],
    pub effects: &'a [Effect],
    /// Other records, sorted by key.
    pub records: &'a [(Vec<u8>, Option<Vec<u8>>)],
}

impl<'a> Charged<'a> {
    fn xattrs_of(&self, ino: u64) -> impl Iterator<Item = &'a (Vec<u8>, Option<Vec<u8>>)> {
        let prefix = keys::numbered(keys::XATTR, ino);
        let first = self.records.partition_point(|(key, _)| key.as_slice() < prefix.as_slice());
        self.records[first..].iter().take_while(move |(key, _)| key.starts_with(&prefix))
    }
}

/// What an inode adds to usage, but for the bytes of its extended attributes.
#[derive(Clone, Copy)]
struct Share {
    charge: (Owner, u64),
    has_xattrs: bool,
}

impl Share {
    fn of(inode: &Inode) -> Share {
        Share { charge: inode.charge(), has_xattrs: inode.xattrs > 0 }
    }
}

/// Bytes of the name and the value of an extended attribute, by its record.
fn xattr_bytes(key: &[u8], value: &[u8]) -> u64 {
    let name = key.len().saturating_sub(keys::numbered(keys::XATTR, 0).len());
    (name + value.len().saturating_sub(1)) as u64
}

fn stored_xattr_bytes<E: Engine>(engine: &E, ino: u64) -> Result<u64, EngineError> {
    let prefix = keys::numbered(keys::XATTR, ino);
    let mut bytes = 0;
    for pair in engine.scan(&prefix, &keys::after_prefix(&prefix)) {
        let (key, value) = pair?;
        bytes += xattr_bytes(&key, &value);
    }
    Ok(bytes)
}

/// Usage and limits of a store that is opened in this run of the server. `batch` is committed before anything else.
///
/// Usage that the run before did not keep, or that cannot be read, is counted anew.
pub(crate) fn load_ledger<E: Engine>(engine: &E, run: u32, batch: &mut Batch) -> Result<Ledger, EngineError> {
    let mut ledger = Ledger::default();
    for pair in engine.scan(&[keys::LIMIT], &[keys::LIMIT + 1]) {
        let (key, value) = pair?;
        // One that is damaged is a finding of a check, and limits nobody.
        if let Ok((subject, record)) = decode_limit(&key, &value) {
            ledger.set_limit(subject, record);
        }
    }
    let Some(state) = engine.get(keys::SUPER_QUOTA)? else { return Ok(ledger) };
    let is_kept = decode_state(&state)? == Stored::Counted { run: run - 1 };
    if is_kept && load_used(engine, &mut ledger)? {
        ledger.counting = Counting::Done;
        batch.put(keys::SUPER_QUOTA, encode_state(Stored::Counted { run }));
    } else {
        ledger.begin_count();
    }
    Ok(ledger)
}

/// Whether all records could be read.
fn load_used<E: Engine>(engine: &E, ledger: &mut Ledger) -> Result<bool, EngineError> {
    for pair in engine.scan(&[keys::USED], &[keys::USED + 1]) {
        let (key, value) = pair?;
        match decode_used(&key, &value) {
            Ok((owner, used)) => ledger.add_used(owner, used),
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

impl Ledger {
    /// An effect of an operation that is committed.
    pub(crate) fn take_effect(&mut self, effect: QuotaEffect) {
        match effect {
            // Part of the change of its operation.
            QuotaEffect::Grant { .. } | QuotaEffect::Cut { .. } => {}
            QuotaEffect::Limit { subject, record } => self.set_limit(subject, record),
            QuotaEffect::Count => self.begin_count(),
        }
    }
}

impl<E: Engine> Namespace<E> {
    /// What staged inodes and grants do to the ledger.
    pub(crate) fn charge(&mut self, staged: &Charged<'_>, limited: bool) -> Result<LedgerChange, MetaError> {
        let Charged { inodes, made, effects, .. } = *staged;
        let mut moves = Vec::with_capacity(inodes.len());
        for (ino, after) in inodes {
            let before = match made.contains(ino) {
                true => None,
                false => self.load_inode(*ino)?.map(Share::of),
            };
            let after = after.as_ref().map(Share::of);
            let xattr_bytes = self.xattr_bytes(*ino, before, after, staged)?;
            let (before, after) = (before.map(|share| share.charge), after.map(|share| share.charge));
            if before != after || xattr_bytes.0 != xattr_bytes.1 || self.ledger.has_grant(*ino) {
                moves.push(Move { ino: *ino, before, after, xattr_bytes });
            }
        }
        let grants = effects.iter().filter_map(|effect| match effect {
            Effect::Quota(QuotaEffect::Grant { ino, end }) => {
                Some(Wish { ino: *ino, end: *end, cuts: false })
            }
            Effect::Quota(QuotaEffect::Cut { ino, end }) if self.ledger.has_grant(*ino) => {
                Some(Wish { ino: *ino, end: *end, cuts: true })
            }
            _ => None,
        });
        let grants: Vec<_> = grants.collect();
        for Wish { ino, .. } in grants.iter().copied() {
            if moves.iter().all(|known| known.ino != ino) {
                let staged = inodes.iter().find(|(staged, _)| *staged == ino);
                let same = match staged {
                    Some((_, inode)) => inode.as_ref().map(Inode::charge),
                    None => self.load_inode(ino)?.map(Inode::charge),
                };
                moves.push(Move { ino, before: same, after: same, xattr_bytes: (0, 0) });
            }
        }
        if moves.is_empty() {
            return Ok(LedgerChange::default());
        }
        Ok(self.ledger.stage(&moves, &grants, limited)?)
    }

    /// Bytes of extended attributes of an inode, before and after the operation. Reads only
    /// those that changed if the inode keeps its owner.
    fn xattr_bytes(
        &self,
        ino: u64,
        before: Option<Share>,
        after: Option<Share>,
        staged: &Charged<'_>,
    ) -> Result<(u64, u64), EngineError> {
        let had = before.is_some_and(|share| share.has_xattrs);
        let has = after.is_some_and(|share| share.has_xattrs);
        if !had && !has {
            return Ok((0, 0));
        }
        let stays = had && has && before.map(|share| share.charge.0) == after.map(|share| share.charge.0);
        let kept = if stays { 0 } else { stored_xattr_bytes(&self.engine, ino)? };
        let (mut was, mut is) = (kept, kept);
        for (key, value) in staged.xattrs_of(ino) {
            let old = self.engine.get(key)?.map_or(0, |value| xattr_bytes(key, &value));
            let new = value.as_ref().map_or(0, |value| xattr_bytes(key, value));
            if stays {
                was += old;
            } else {
                is -= old;
            }
            is += new;
        }
        Ok((if had { was } else { 0 }, if has { is } else { 0 }))
    }

    /// Files whose grants may have ended with the staged operation.
    pub(crate) fn grants_to_review(&self, charged: &LedgerChange) -> Vec<u64> {
        if self.ledger.is_off() {
            return Vec::new();
        }
        let mut files: Vec<u64> = charged.granted().collect();
        for effect in self.staged.effects() {
            match effect {
                Effect::Release { ino, hold: Hold::Write | Hold::Truncate, .. }
                    if self.ledger.has_grant(*ino) =>
                {
                    files.push(*ino)
                }
                Effect::SessionGone { .. } => return self.ledger.granted(),
                _ => {}
            }
        }
        files
    }

    /// Ends the grants of those of these files that nobody extends any more, and whose size is known.
    pub(crate) fn end_grants(&mut self, files: &[u64]) -> Result<(), MetaError> {
        for ino in files {
            let writing =
                self.opens.file(*ino).is_some_and(|file| file.total.writers + file.total.truncations > 0);
            if !writing && !self.load_inode(*ino)?.is_some_and(|inode| inode.dirty_size) {
                self.ledger.end_grant(*ino);
            }
        }
        Ok(())
    }

    /// Whether usage is being counted, so that [`Namespace::count_usage`] has something to do.
    pub fn is_counting_usage(&self) -> bool {
        matches!(self.ledger.counting, Counting::Below(_))
    }

    /// Counts the usage of up to `inodes_max` more inodes; whether some are left.
    ///
    /// # Errors
    /// Those of the store.
    pub fn count_usage(&mut self, inodes_max: usize) -> Result<bool, MetaError> {
        let Counting::Below(below) = self.ledger.counting else { return Ok(false) };
        let end = [keys::INODE + 1];
        let page: Result<Vec<_>, _> = self.engine.scan(&keys::inode(below), &end).take(inodes_max).collect();
        let page = page?;
        let mut next = below;
        let (mut read_bytes, mut counted) = (0, 0);
        for (key, value) in &page {
            next = keys::number_of(key).unwrap_or(next).saturating_add(1);
            // What cannot be read is a finding of a check, and counts for nobody.
            if let Ok(inode) = Inode::decode(key, value) {
                let (owner, bytes) = inode.charge();
                let xattrs = if inode.xattrs > 0 { stored_xattr_bytes(&self.engine, inode.ino)? } else { 0 };
                self.ledger.add_used(owner, Sum { bytes: u128::from(bytes) + u128::from(xattrs), files: 1 });
                read_bytes += xattrs;
            }
            counted += 1;
            if read_bytes >= XATTRS_READ_IN_A_TURN {
                break;
            }
        }
        if page.len() == inodes_max || counted < page.len() {
            self.ledger.counting = Counting::Below(next);
            return Ok(true);
        }
        self.store_count()?;
        self.ledger.counting = Counting::Done;
        Ok(false)
    }

    /// Stores what was counted, in place of what is stored.
    fn store_count(&mut self) -> Result<(), MetaError> {
        let run = self.incarnation;
        let used: Vec<_> = self.ledger.owners().map(|(owner, used)| (used_key(owner), *used)).collect();
        self.change::<_, MetaError>(|op| {
            for (key, _) in op.records_after(&[keys::USED], &[keys::USED], usize::MAX)? {
                op.delete(key);
            }
            for (key, used) in &used {
                let mut out = crate::codec::Writer::default();
                put_used(&mut out, used);
                op.put(*key, out.bytes);
            }
            op.put(keys::SUPER_QUOTA, encode_state(Stored::Counted { run }));
            Ok(())
        })?;
        Ok(())
    }

    /// Looks at the clock for limits that may be exceeded for some time only.
    ///
    /// # Errors
    /// Those of the store.
    pub fn tick_quotas(&mut self, now_s: u64) -> Result<(), MetaError> {
        let changed = self.ledger.tick(now_s);
        if changed.is_empty() {
            return Ok(());
        }
        self.change::<_, MetaError>(|op| {
            for (subject, record) in &changed {
                match *record == LimitRecord::default() {
                    true => op.delete(limit_key(*subject)),
                    false => op.put(limit_key(*subject), encode_limit(record)),
                }
            }
            Ok(())
        })?;
        Ok(())
    }
}
