//! What `WEFT_MPI_STATS=1` shows of a file when it is closed: its accesses, summed over all processes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weft_client::{Direction, IoStats};

/// Sums of one process.
#[derive(Debug, Default)]
pub struct Stats {
    calls: [AtomicU64; 2],
    bytes: [AtomicU64; 2],
    alone_ns: AtomicU64,
    lists: AtomicU64,
    exchanges: AtomicU64,
    collective_ns: AtomicU64,
    agreements: AtomicU64,
}

/// Numbers that are summed over processes.
pub const COUNT: usize = 14;

impl Stats {
    /// Whether the user asked for them.
    pub fn are_wanted() -> bool {
        std::env::var_os("WEFT_MPI_STATS").is_some_and(|value| !value.is_empty() && value != "0")
    }

    /// Notes an access.
    pub fn note(&self, direction: Direction, bytes: u64) {
        let index = usize::from(direction == Direction::Write);
        self.calls[index].fetch_add(1, Relaxed);
        self.bytes[index].fetch_add(bytes, Relaxed);
    }

    /// Notes the time of an access of this process alone.
    pub fn note_alone(&self, ns: u64) {
        self.alone_ns.fetch_add(ns, Relaxed);
    }

    /// Notes a collective access whose way was chosen.
    pub fn note_collective(&self, is_exchange: bool, ns: u64) {
        if is_exchange { &self.exchanges } else { &self.lists }.fetch_add(1, Relaxed);
        self.collective_ns.fetch_add(ns, Relaxed);
    }

    /// Notes that processes told each other what they access.
    pub fn note_agreement(&self) {
        self.agreements.fetch_add(1, Relaxed);
    }

    /// The numbers of this process.
    pub fn numbers(&self, io: &IoStats) -> [u64; COUNT] {
        let of = |number: &AtomicU64| number.load(Relaxed);
        [
            of(&self.calls[0]),
            of(&self.bytes[0]),
            of(&self.calls[1]),
            of(&self.bytes[1]),
            of(&self.alone_ns),
            of(&self.lists),
            of(&self.exchanges),
            of(&self.collective_ns),
            of(&self.agreements),
            io.requests,
            io.request_bytes,
            io.moved_bytes,
            io.server_reads,
            io.server_writes,
        ]
    }

    /// The sums of all processes, as lines.
    pub fn lines(path: &str, processes: usize, sums: &[u64; COUNT]) -> String {
        let [reads, read, writes, written, alone_ns, lists, exchanges, collective_ns, ..] = *sums;
        let [.., agreements, requests, request_bytes, moved, server_reads, server_writes] = *sums;
        let seconds = |ns: u64| ns as f64 / 1e9;
        format!(
            "weft-mpi: {path}: closed by {processes} processes; sums over them:\n\
             weft-mpi:   reads {reads} of {read} bytes, writes {writes} of {written} bytes\n\
             weft-mpi:   independent {:.3} s; collective {:.3} s: {lists} by list, {exchanges} by exchange; \
             {agreements} agreements\n\
             weft-mpi:   requests to I/O servers {requests}, of {request_bytes} bytes without data; data {moved} \
             bytes\n\
             weft-mpi:   accesses of servers: {server_reads} reads, {server_writes} writes\n",
            seconds(alone_ns),
            seconds(collective_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_told_in_words() {
        let stats = Stats::default();
        stats.note(Direction::Write, 100);
        stats.note_collective(true, 5_000_000);
        stats.note_agreement();
        let io = IoStats { requests: 4, ..IoStats::default() };
        let lines = Stats::lines("/a", 2, &stats.numbers(&io));
        assert!(
            lines.contains("writes 1 of 100 bytes") && lines.contains("1 by exchange; 1 agreements"),
            "{lines}"
        );
        assert!(lines.contains("requests to I/O servers 4"), "{lines}");
    }
}
