//! The two passes over the store: counting, kept true by every commit, and judging.

use super::damage::Damage;
use super::judge::Judge;
use crate::engine::{Batch, Engine};
use crate::inode::{Entry, Kind, ROOT_INO};
use crate::namespace::Namespace;
use crate::{EngineError, MetaError, keys};
use std::collections::HashMap;

/// What is wrong, and the record at which it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub(super) key: Vec<u8>,
    /// The rule that is broken.
    pub damage: Damage,
}

/// How far an audit has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Records looked at in this step.
    pub records: u64,
    /// What was found in it.
    pub findings: Vec<Finding>,
    /// All records are judged.
    pub finished: bool,
}

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
    judged: Option<Vec<u8>>,
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
    fn count_page<E: Engine>(&mut self, engine: &E, records_max: usize) -> Result<u64, EngineError> {
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

fn after(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

impl<E: Engine> Namespace<E> {
    /// Checks the whole store at once and returns every rule it breaks: for tests, and where nobody waits.
    pub fn check(&self) -> Result<Vec<Damage>, MetaError> {
        let mut audit = Audit::new(0);
        let mut damage = Vec::new();
        loop {
            let step = self.step(&mut audit, usize::MAX)?;
            damage.extend(step.findings.into_iter().map(|finding| finding.damage));
            if step.finished {
                return Ok(damage);
            }
        }
    }

    /// Begins a check that goes on beside other operations, under a number of the caller's; one that was
    /// under way is dropped.
    pub fn begin_audit(&mut self, number: u64) {
        self.audit = Some(Audit::new(number));
    }

    /// Goes on with the check by at most `records_max` records. Both passes take about as many steps as
    /// the store has records, divided by that number. `Stale` if it is not under way (any more).
    pub fn step_audit(&mut self, number: u64, records_max: usize) -> Result<Progress, MetaError> {
        let mut audit = self.audit.take_if(|audit| audit.number == number).ok_or(MetaError::Stale)?;
        let step = self.step(&mut audit, records_max.max(1));
        self.audit = Some(audit);
        step
    }

    /// Ends the check; nothing is counted any more.
    pub fn end_audit(&mut self, number: u64) {
        self.audit.take_if(|audit| audit.number == number);
    }

    fn step(&self, audit: &mut Audit, records_max: usize) -> Result<Progress, MetaError> {
        let Some(from) = audit.judged.clone() else {
            let records = audit.count_page(&self.engine, records_max)?;
            return Ok(Progress { records, findings: Vec::new(), finished: false });
        };
        let page: Result<Vec<_>, _> = self.engine.scan(&from, &[u8::MAX]).take(records_max).collect();
        let page = page?;
        let mut judge = Judge::new(self, audit);
        let mut findings = Vec::new();
        for (key, value) in &page {
            let damage = judge.record(key, value)?;
            findings.extend(damage.into_iter().map(|damage| Finding { key: key.clone(), damage }));
        }
        let finished = page.len() < records_max;
        if finished {
            let whole = judge.whole()?;
            let key = keys::SUPER_FILES.to_vec();
            findings.extend(whole.into_iter().map(|damage| Finding { key: key.clone(), damage }));
        }
        audit.judged = Some(page.last().map_or(from, |(last, _)| after(last)));
        Ok(Progress { records: page.len() as u64, findings, finished })
    }
}

impl<E: Engine> Judge<'_, E> {
    /// What is wrong with the store as a whole.
    pub fn whole(&self) -> Result<Vec<Damage>, MetaError> {
        let mut damage = Vec::new();
        if self.engine().get(&keys::inode(ROOT_INO))?.is_none() {
            damage.push(Damage::NoRoot);
        }
        let (recorded, found) = (self.inodes_recorded(), self.audit().inodes());
        if recorded != found {
            damage.push(Damage::InodeCount { recorded, found });
        }
        Ok(damage)
    }
}
