//! Adding up what things would have cost.

use crate::options::Costs;

/// What was charged to an adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charged {
    /// For registrations.
    pub registration_ns: u64,
    /// For ending them.
    pub deregistration_ns: u64,
    /// For posting work and receives.
    pub posting_ns: u64,
    /// For moving bytes, of the side that posted the work.
    pub moving_ns: u64,
    /// For completions, polling and waking.
    pub completion_ns: u64,
}

impl Charged {
    /// All of it.
    pub fn total_ns(&self) -> u64 {
        self.registration_ns + self.deregistration_ns + self.posting_ns + self.moving_ns + self.completion_ns
    }

    /// What was added since.
    pub fn since(&self, before: &Charged) -> Charged {
        Charged {
            registration_ns: self.registration_ns - before.registration_ns,
            deregistration_ns: self.deregistration_ns - before.deregistration_ns,
            posting_ns: self.posting_ns - before.posting_ns,
            moving_ns: self.moving_ns - before.moving_ns,
            completion_ns: self.completion_ns - before.completion_ns,
        }
    }

    pub(crate) fn registration(&mut self, costs: &Costs, pages: u64) {
        self.registration_ns += costs.registration_ns + pages * costs.registration_page_ns;
    }

    pub(crate) fn deregistration(&mut self, costs: &Costs, pages: u64) {
        self.deregistration_ns += costs.deregistration_ns + pages * costs.deregistration_page_ns;
    }

    /// A chain of so much work with so many pieces of memory.
    pub(crate) fn posting(&mut self, costs: &Costs, works: u64, pieces: u64) {
        self.posting_ns += costs.doorbell_ns + works * costs.work_ns + pieces * costs.piece_ns;
    }

    pub(crate) fn moving(&mut self, costs: &Costs, bytes: u64) {
        self.moving_ns += bytes * costs.kilobyte_ns / 1024;
    }
}
