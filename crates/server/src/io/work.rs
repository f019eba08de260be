//! What was done to a data file for one request, for its reply (NC, table 6).

use super::units::Unit;
use crate::answer::Refusal;
use std::time::Instant;
use weft_wire::Status;
use weft_wire::messages::{IoWork, io_flags};

/// Counts while a request is served.
pub(super) struct Work {
    counts: IoWork,
    begun: Instant,
}

impl Work {
    pub fn begin() -> Work {
        let counts = IoWork { methods: 0, reads: 0, writes: 0, accessed_bytes: 0, busy_ns: 0 };
        Work { counts, begun: Instant::now() }
    }

    /// The pieces of a unit are read one by one.
    pub fn read(&mut self, unit: &Unit) {
        self.pieces(unit);
        self.counts.reads += unit.pieces.len() as u64;
    }

    /// The pieces of a unit are written one by one.
    pub fn write(&mut self, unit: &Unit) {
        self.pieces(unit);
        self.counts.writes += unit.pieces.len() as u64;
    }

    fn pieces(&mut self, unit: &Unit) {
        self.counts.accessed_bytes += unit.bytes;
        if unit.pieces.len() > 1 {
            self.counts.methods |= io_flags::ACCESS_EACH;
        }
    }

    /// All of it.
    pub fn done(mut self) -> IoWork {
        self.counts.busy_ns = self.begun.elapsed().as_nanos() as u64;
        self.counts
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
