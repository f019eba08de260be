//! What was done to a data file for one request, for its reply and the server's counters (NC, table 6).

use super::IoPart;
use super::plan::{Outcome, flag_of};
use crate::answer::Refusal;
use crate::counters::Counters;
use crate::spent;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use weft_layout::Extent;
use weft_storage::Disk;
use weft_storage::cost::{Group, Method};
use weft_wire::Status;
use weft_wire::messages::{IoWork, io_flags};

/// Names of the counters of each method, in the order of [`Method::ALL`]: requests, reads, writes, bytes wanted and accessed; the time
/// that units were expected to take for which the cost model chose it, and that they took.
#[rustfmt::skip]
const NAMES: [[&str; 7]; 3] = [
    ["each_requests", "each_reads", "each_writes", "each_wanted_bytes", "each_accessed_bytes", "each_expected_ns", "each_took_ns"],
    ["sieve_requests", "sieve_reads", "sieve_writes", "sieve_wanted_bytes", "sieve_accessed_bytes", "sieve_expected_ns",
     "sieve_took_ns"],
    ["mapped_requests", "mapped_reads", "mapped_writes", "mapped_wanted_bytes", "mapped_accessed_bytes", "mapped_expected_ns",
     "mapped_took_ns"],
];

/// What a server has done by each method, as gauges of its status.
pub(crate) struct MethodCounters(Box<[[Arc<AtomicU64>; 7]; 3]>);

impl MethodCounters {
    /// Among the gauges of a server.
    pub fn among(counters: &Counters) -> MethodCounters {
        MethodCounters(Box::new(NAMES.map(|names| names.map(|name| counters.gauge(name)))))
    }
}

#[derive(Clone, Copy, Default)]
struct Count {
    reads: u64,
    writes: u64,
    wanted_bytes: u64,
    accessed_bytes: u64,
    expected_ns: u64,
    took_ns: u64,
}

/// Counts while a request is served.
pub(super) struct Work {
    counts: [Count; 3],
    methods: u32,
    begun: Instant,
}

impl Work {
    pub fn begin() -> Work {
        Work { counts: [Count::default(); 3], methods: 0, begun: Instant::now() }
    }

    fn add(&mut self, method: Method, count: Count) {
        let sum = &mut self.counts[method as usize];
        sum.reads += count.reads;
        sum.writes += count.writes;
        sum.wanted_bytes += count.wanted_bytes;
        sum.accessed_bytes += count.accessed_bytes;
    }

    /// Pieces that were accessed for their own bytes and no others, by so many accesses.
    fn add_pieces(&mut self, method: Method, pieces: &[Extent], reads: usize, writes: usize) {
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let (reads, writes) = (reads as u64, writes as u64);
        self.add(
            method,
            Count { reads, writes, wanted_bytes: bytes, accessed_bytes: bytes, ..Count::default() },
        );
    }

    /// Pieces were read one by one.
    pub fn read_each(&mut self, pieces: &[Extent]) {
        self.note_each(pieces);
        self.add_pieces(Method::Each, pieces, pieces.len(), 0);
    }

    /// Pieces were written one by one.
    pub fn wrote_each(&mut self, pieces: &[Extent]) {
        self.note_each(pieces);
        self.add_pieces(Method::Each, pieces, 0, pieces.len());
    }

    /// One contiguous extent is accessed in no particular way.
    fn note_each(&mut self, pieces: &[Extent]) {
        if pieces.len() > 1 {
            self.methods |= flag_of(Method::Each);
        }
    }

    /// Groups of pieces were read.
    pub fn read_sieved(&mut self, groups: &[Group]) {
        self.methods |= flag_of(Method::Sieve);
        for group in groups {
            let (wanted_bytes, accessed_bytes) = (group.wanted_bytes, group.extent.bytes);
            self.add(Method::Sieve, Count { reads: 1, wanted_bytes, accessed_bytes, ..Count::default() });
        }
    }

    /// Groups of pieces were written, those with gaps after they were read.
    pub fn wrote_sieved(&mut self, groups: &[Group]) {
        self.methods |= flag_of(Method::Sieve);
        for group in groups {
            let reads = u64::from(group.has_gaps());
            let accessed_bytes = (1 + reads) * group.extent.bytes;
            let wanted_bytes = group.wanted_bytes;
            self.add(
                Method::Sieve,
                Count { reads, writes: 1, wanted_bytes, accessed_bytes, ..Count::default() },
            );
        }
    }

    /// Pieces were copied from or to mapped pages: no accesses.
    pub fn mapped(&mut self, pieces: &[Extent]) {
        self.methods |= flag_of(Method::Mapped);
        self.add_pieces(Method::Mapped, pieces, 0, 0);
    }

    /// A unit was accessed as the cost model had chosen.
    pub fn came_out(&mut self, outcome: &Outcome) {
        let sum = &mut self.counts[outcome.method as usize];
        sum.expected_ns += outcome.expected_ns;
        sum.took_ns += outcome.took_ns;
    }

    /// All of it; also added to the server's counters.
    pub fn done<D: Disk>(self, part: &IoPart<D>) -> IoWork {
        for (count, counters) in self.counts.iter().zip(part.methods.0.iter()) {
            if count.wanted_bytes > 0 {
                let Count { reads, writes, wanted_bytes, accessed_bytes, expected_ns, took_ns } = *count;
                let added = [1, reads, writes, wanted_bytes, accessed_bytes, expected_ns, took_ns];
                for (counter, added) in counters.iter().zip(added) {
                    counter.fetch_add(added, Ordering::Relaxed);
                }
            }
        }
        let work = IoWork {
            methods: self.methods,
            reads: self.counts.iter().map(|count| count.reads).sum(),
            writes: self.counts.iter().map(|count| count.writes).sum(),
            accessed_bytes: self.counts.iter().map(|count| count.accessed_bytes).sum(),
            busy_ns: self.begun.elapsed().as_nanos() as u64,
        };
        tracing::debug!(
            ino = spent::ino(),
            reads = work.reads,
            writes = work.writes,
            bytes = work.accessed_bytes,
            us = work.busy_ns / 1000,
            trace = spent::trace(),
            "accessed the data file"
        );
        work
    }
}

/// Refuses flags that nobody knows, and two ways of access at once.
pub(super) fn check_flags(flags: u32) -> Result<(), Refusal> {
    if flags & !io_flags::KNOWN != 0 {
        return Err(Refusal::new(Status::Invalid, "unknown flags of a read or write"));
    }
    if (flags & io_flags::ACCESS).count_ones() > 1 {
        return Err(Refusal::new(Status::Invalid, "more than one way of access in a read or write"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_of_access_may_be_asked_for() {
        assert!(check_flags(0).is_ok());
        assert!(check_flags(io_flags::SYNC | io_flags::ACCESS_SIEVE).is_ok());
        assert_eq!(check_flags(1 << 9).unwrap_err().status, Status::Invalid);
        let two = io_flags::ACCESS_EACH | io_flags::ACCESS_MAPPED;
        assert_eq!(check_flags(two).unwrap_err().status, Status::Invalid);
    }
}
