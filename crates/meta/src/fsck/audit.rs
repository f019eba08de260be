//! A check under way: first the counting pass, then the judging one, a page at a time.

use super::counts::{Audit, after};
use super::damage::Damage;
use super::judge::Judge;
use crate::engine::Engine;
use crate::namespace::Namespace;
use crate::{MetaError, keys};

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
