//! How many inodes there are: exact at any time and after any crash, although no operation writes the number.
//!
//! ```text
//!   sfiles      900 inodes, of numbers below 5000       written with each lease of inode numbers, or as below
//!   i5000 …     inodes made since                       counted when the store is opened
//!   d<block>    removed since, of 64 numbers below 5000 written by the removal: how many
//!
//!   inodes = 900 + records from i5000 on − sum of the d records
//! ```
//!
//! When `sfiles` is written, the `d` records go. It is also written when there are [`BLOCKS_MAX`] of them.

use crate::codec::{Reader, Writer};
use crate::engine::{Batch, Engine};
use crate::{EngineError, keys};
use rustc_hash::FxHashMap;

/// The version of stores in which every operation wrote the number.
const COUNT_VERSION_BEFORE: u8 = 1;
const COUNT_VERSION: u8 = 2;
const REMOVED_VERSION: u8 = 1;
/// Numbers of a block.
const BLOCK: u64 = 64;
/// Blocks with removals before the number is written anew, which deletes their records.
const BLOCKS_MAX: usize = 1024;

/// The count, and what of it is in the store.
#[derive(Debug, Default)]
pub(crate) struct InodeCount {
    now: u64,
    /// Smaller numbers are in `sfiles`.
    below: u64,
    /// By block: removed since, of numbers below.
    removed: FxHashMap<u64, u8>,
}

/// What a commit does to the count.
#[derive(Debug, Default)]
pub(crate) struct CountChange {
    now: u64,
    /// Set where `sfiles` is written.
    below: Option<u64>,
    removed: Vec<(u64, u8)>,
}

/// Writes a count of all inodes, whose numbers are below.
pub(crate) fn put_count(batch: &mut Batch, inodes: u64, below: u64) {
    batch.put_with(keys::SUPER_FILES, |out| {
        out.u8(COUNT_VERSION);
        out.u64(inodes);
        out.u64(below);
    });
}

// Fuzzed by records: fsck/tests.rs
/// A removal record: how many.
pub(crate) fn decode_removed(key: &[u8], value: &[u8]) -> Result<u8, EngineError> {
    let mut from = Reader::with_version(key, value, REMOVED_VERSION)?;
    let removed = from.u8("removed")?;
    from.end()?;
    Ok(removed)
}

/// The number in `sfiles`, and below which it counts.
fn read_count<E: Engine>(engine: &E) -> Result<(u64, u64), EngineError> {
    let key = keys::SUPER_FILES;
    let missing = || EngineError::Format(format!("superblock field {} is missing", keys::readable(key)));
    let value = engine.get(key)?.ok_or_else(missing)?;
    let is_old = value.first() == Some(&COUNT_VERSION_BEFORE);
    let version = if is_old { COUNT_VERSION_BEFORE } else { COUNT_VERSION };
    let mut from = Reader::with_version(key, &value, version)?;
    let count = (from.u64("inodes")?, if is_old { u64::MAX } else { from.u64("below")? });
    from.end()?;
    Ok(count)
}

impl InodeCount {
    /// Of a store that is opened.
    pub fn load<E: Engine>(engine: &E) -> Result<InodeCount, EngineError> {
        let (mut now, below) = read_count(engine)?;
        for pair in engine.scan(&keys::inode(below), &[keys::INODE + 1]) {
            pair?;
            now += 1;
        }
        let mut removed = FxHashMap::default();
        for pair in engine.scan(&[keys::REMOVED], &[keys::REMOVED + 1]) {
            let (key, value) = pair?;
            let inodes = decode_removed(&key, &value)?;
            now = now.saturating_sub(inodes.into());
            removed.insert(keys::number_of(&key).unwrap_or(0), inodes);
        }
        Ok(InodeCount { now, below, removed })
    }

    /// Inodes now.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether an inode of this number is in what was written, so that making it needs a new one.
    pub fn has_written(&self, ino: u64) -> bool {
        ino < self.below
    }

    /// Adds to `batch` what keeps the count right. `made`: inodes more; `removed`: those that go; `next_ino`: greater than
    /// all; `write`: `sfiles` is to be written.
    pub fn stage(
        &self,
        made: i64,
        removed: impl Iterator<Item = u64>,
        next_ino: u64,
        write: bool,
        batch: &mut Batch,
    ) -> CountChange {
        let mut change = CountChange { now: self.now.saturating_add_signed(made), ..CountChange::default() };
        for ino in removed {
            change.now = change.now.saturating_sub(1);
            if ino < self.below {
                let block = ino / BLOCK;
                match change.removed.iter_mut().find(|(known, _)| *known == block) {
                    Some((_, inodes)) => *inodes = inodes.saturating_add(1),
                    None => change
                        .removed
                        .push((block, self.removed.get(&block).map_or(1, |inodes| inodes.saturating_add(1)))),
                }
            }
        }
        if write || !change.removed.is_empty() && self.removed.len() >= BLOCKS_MAX {
            put_count(batch, change.now, next_ino);
            self.removed.keys().for_each(|block| batch.delete(keys::removed(*block)));
            change.below = Some(next_ino);
            change.removed.clear();
        }
        for (block, inodes) in &change.removed {
            batch.put_with(keys::removed(*block), |out: &mut Writer| {
                out.u8(REMOVED_VERSION);
                out.u8(*inodes);
            });
        }
        change
    }

    /// The batch is committed.
    pub fn apply(&mut self, change: CountChange) {
        self.now = change.now;
        if let Some(below) = change.below {
            self.below = below;
            self.removed.clear();
        }
        self.removed.extend(change.removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;
    use crate::inode::{Kind, ROOT_INO, Timestamp};
    use crate::namespace::{Namespace, NamespaceOptions, encode_number};
    use crate::op::run_again;
    use crate::{At, MemEngine};

    const NOW: Timestamp = Timestamp { seconds: 9, nanos: 0 };

    fn open(engine: MemEngine) -> Namespace<MemEngine> {
        Namespace::open(engine, NamespaceOptions::default()).unwrap()
    }

    fn formatted() -> MemEngine {
        let mut engine = MemEngine::new();
        Namespace::format(&mut engine, [1; 16], &Caller::root(), NOW).unwrap();
        engine
    }

    fn make(ns: &mut Namespace<MemEngine>, name: &str) {
        let at = At::new(ROOT_INO, name);
        ns.change(|op| op.mknod(&Caller::root(), NOW, at, Kind::File, 0o600, 0)).unwrap();
    }

    fn remove(ns: &mut Namespace<MemEngine>, name: &str) {
        ns.change(|op| op.unlink(&Caller::root(), NOW, At::new(ROOT_INO, name))).unwrap();
    }

    /// As after a kill: the count is that of before.
    fn is_found_again(ns: &Namespace<MemEngine>) {
        let mut again = open(ns.engine.fork());
        // Nobody comes back for files.
        again.grace = false;
        assert_eq!(again.statfs().inodes, ns.statfs().inodes);
        assert_eq!(again.check().unwrap(), vec![]);
    }

    /// More than one lease of numbers, and more blocks than are kept.
    #[test]
    fn after_many_creates_and_removals_the_count_is_found_again() {
        let files = BLOCKS_MAX as u64 * BLOCK / 8;
        let mut ns = open(formatted());
        for file in 0..files {
            make(&mut ns, &format!("{file}"));
            if file % 1501 == 0 {
                is_found_again(&ns);
            }
        }
        let mut ns = open(ns.engine.fork());
        ns.reap_orphans(0).unwrap();
        let (mut expected, mut records_max) = (files + 1, 0);
        // Far apart first, so that each is of another block.
        for step in [67, 1] {
            for file in (0..files).step_by(step) {
                if step == 1 && file % 67 == 0 {
                    make(&mut ns, &format!("{file}"));
                    continue;
                }
                remove(&mut ns, &format!("{file}"));
                expected -= 1;
                records_max = records_max.max(ns.count.removed.len());
                if file % 997 == 0 {
                    assert_eq!(ns.statfs().inodes, expected + if step == 1 { file / 67 + 1 } else { 0 });
                    is_found_again(&ns);
                }
            }
        }
        assert!((100..=BLOCKS_MAX).contains(&records_max), "{records_max} records at most");
        is_found_again(&ns);
    }

    #[test]
    fn more_blocks_than_are_kept_write_the_count() {
        let removed = (0..BLOCKS_MAX as u64).map(|block| (block, 1)).collect();
        let count = InodeCount { now: 99_999, below: u64::MAX, removed };
        let mut batch = Batch::default();
        let change = count.stage(0, [BLOCKS_MAX as u64 * BLOCK].into_iter(), 77, false, &mut batch);
        assert_eq!((change.now, change.below, change.removed.len()), (99_998, Some(77), 0));
        assert_eq!(batch.len(), 1 + BLOCKS_MAX, "the number, and the records that go");
    }

    #[test]
    fn a_store_of_before_has_the_number_itself() {
        let mut engine = formatted();
        let mut ns = open(engine.fork());
        (0..5).for_each(|file| make(&mut ns, &format!("{file}")));
        engine = ns.engine.fork();
        let mut batch = Batch::default();
        batch.put(keys::SUPER_FILES, encode_number(6));
        run_again(|| engine.commit(&batch)).unwrap();
        let mut ns = open(engine);
        ns.grace = false;
        assert_eq!((ns.statfs().inodes, ns.check().unwrap()), (6, vec![]));
        let written = ns.engine.get(keys::SUPER_FILES).unwrap().unwrap();
        assert_eq!(written[0], COUNT_VERSION, "it is raised when it is opened");
        remove(&mut ns, "3");
        assert_eq!(ns.statfs().inodes, 5);
        is_found_again(&ns);
    }
}
