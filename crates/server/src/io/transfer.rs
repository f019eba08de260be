//! What a read and a write have in common: they go from unit to unit, and reach some clients' memory themselves.

use super::access::Access;
use super::memory::Memory;
use super::plan::{Plan, Planner};
use super::units::{Unit, Units};
use super::work::Work;
use crate::answer::Refusal;
use std::time::Instant;
use weft_layout::Extent;
use weft_storage::Disk;
use weft_transport::ServerBulk;
use weft_wire::limits::UNIT_BYTES_MAX;

/// Where the bytes go.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    /// From the data file to the client.
    Read,
    /// From the client to the data file.
    Write,
}

/// A data file, and the plans for accessing it in one request.
pub(super) struct Planned<'a, D: Disk> {
    pub access: Access<'a, D>,
    pub planner: Planner<'a>,
    /// Size of the data file when the request came. A write may have made it larger since.
    pub local_bytes: u64,
}

impl<D: Disk> Planned<'_, D> {
    /// Moves bytes between pieces of the data file and memory of the same size as the plan says that costs least.
    pub async fn access(
        &self,
        direction: Direction,
        pieces: &[Extent],
        memory: &Memory,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        let plan = self.planner.plan(self.access.file, pieces, self.local_bytes);
        self.follow(&plan, direction, pieces, memory, work).await
    }

    /// The same, and the planner learns how long it took. Not for accesses that wait for something else meanwhile.
    pub async fn timed_access(
        &self,
        direction: Direction,
        pieces: &[Extent],
        memory: &Memory,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        let plan = self.planner.plan(self.access.file, pieces, self.local_bytes);
        let begun = Instant::now();
        self.follow(&plan, direction, pieces, memory, work).await?;
        if let Some(outcome) = self.planner.observe(&plan, begun.elapsed()) {
            work.came_out(&outcome);
        }
        Ok(())
    }

    async fn follow(
        &self,
        plan: &Plan,
        direction: Direction,
        pieces: &[Extent],
        memory: &Memory,
        work: &mut Work,
    ) -> Result<(), Refusal> {
        match direction {
            Direction::Read => self.access.fill(plan, pieces, memory, work).await,
            Direction::Write => self.access.store(plan, pieces, memory, work).await,
        }
    }
}

/// One read or write under way.
pub(super) struct Transfer<'a, D: Disk, B: ServerBulk> {
    pub file: Planned<'a, D>,
    pub bulk: &'a mut B,
    pub work: &'a mut Work,
}

impl<D: Disk, B: ServerBulk> Transfer<'_, D, B> {
    /// The next unit of the share.
    pub async fn next(&self, units: &mut Units<'_>) -> Result<Option<Unit>, Refusal> {
        units.next_at_most(UNIT_BYTES_MAX as u64, &|| self.bulk.is_gone()).await
    }

    /// Moves a unit between the data file and the client's memory without a buffer between. False: this process does not
    /// reach that memory.
    pub async fn in_place(&mut self, direction: Direction, unit: &Unit) -> Result<bool, Refusal> {
        let Some(memory) = self.bulk.local(unit.share_offset, unit.bytes) else { return Ok(false) };
        let moved = self.file.timed_access(direction, &unit.pieces, memory.pieces(), self.work).await;
        if self.file.access.memory_is_gone() {
            memory.mark_gone();
        }
        moved.map(|()| true)
    }
}
