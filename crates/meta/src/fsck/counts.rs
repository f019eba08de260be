//! What a check counts over all entries, page by page, and keeps true through every commit.

use crate::engine::{Batch, Engine};
use crate::inode::{Entry, Kind};
use crate::{EngineError, keys};
use std::collections::HashMap;

/// What the entries say of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Entries that lead to it.
    pub links: u32,
    /// Entries in it.
    pub names: u32,
    /// Of these, directories.
    pub subdirs: u32,
}

/// A check under way.
#[derive(Debug)]
pub(crate) struct Audit {
    /// Tells it from one that took its place.
    pub number: u64,
    counts: HashMap<u64, Counts>,
    inodes: u64,
    /// All inodes and names below are counted.
    counted: Vec<u8>,
    /// All records below are judged; `None` while counting.
    pub judged: Option<Vec<u8>>,
}

impl Audit {
    pub fn new(number: u64) -> Audit {
        let counted = vec![keys::INODE];
        Audit { number, counts: HashMap::new(), inodes: 0, counted, judged: None }
    }

    pub fn counts(&self, ino: u64) -> Counts {
        self.counts.get(&ino).copied().unwrap_or_default()
    }

    pub fn inodes(&self) -> u64 {
        self.inodes
    }

    fn count(&mut self, key: &[u8], value: &[u8], add: bool) {
        let step = |count: &mut u32| {
            *count = if add { count.saturating_add(1) } else { count.saturating_sub(1) };
        };
        match key.first() {
            Some(&keys::INODE) => {
                self.inodes = if add { self.inodes + 1 } else { self.inodes.saturating_sub(1) }
            }
            Some(&keys::NAME) => {
                // What cannot be read is a finding of its own, and counts for nothing.
                let (Some(dir), Ok(entry)) = (keys::number_of(key), Entry::decode(key, value)) else {
                    return;
                };
                step(&mut self.counts.entry(entry.ino).or_default().links);
                let dir = self.counts.entry(dir).or_default();
                step(&mut dir.names);
                if entry.kind == Kind::Directory {
                    step(&mut dir.subdirs);
                }
            }
            _ => {}
        }
    }

    /// The writes of a batch to records that are counted.
    fn counted<'b>(&self, batch: &'b Batch) -> impl Iterator<Item = (&'b [u8], Option<&'b [u8]>)> {
        batch.writes().filter(|(key, _)| {
            matches!(key.first(), Some(&keys::INODE | &keys::NAME)) && *key < self.counted.as_slice()
        })
    }

    /// What the store has now of the counted records that a batch is about to change, for [`Audit::follow`].
    pub fn before<E: Engine>(&self, engine: &E, batch: &Batch) -> Result<Vec<Option<Vec<u8>>>, EngineError> {
        self.counted(batch).map(|(key, _)| engine.get(key)).collect()
    }

    /// Counts in what a batch has changed.
    pub fn follow(&mut self, batch: &Batch, before: Vec<Option<Vec<u8>>>) {
        let changed: Vec<_> = self.counted(batch).zip(before).collect();
        for ((key, new), old) in changed {
            if let Some(old) = old {
                self.count(key, &old, false);
            }
            if let Some(new) = new {
                self.count(key, new, true);
            }
        }
    }

    /// Counts a page; says how many records it had. After the last one judging begins.
    pub fn count_page<E: Engine>(&mut self, engine: &E, records_max: usize) -> Result<u64, EngineError> {
        let end = [keys::NAME + 1];
        let page: Result<Vec<_>, _> = engine.scan(&self.counted, &end).take(records_max).collect();
        let page = page?;
        for (key, value) in &page {
            self.count(key, value, true);
        }
        match page.last() {
            Some((last, _)) if page.len() == records_max => self.counted = after(last),
            _ => {
                self.counted = end.to_vec();
                self.judged = Some(vec![0]);
            }
        }
        Ok(page.len() as u64)
    }
}

/// The first key behind `key`.
pub(super) fn after(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}
