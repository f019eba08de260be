//! Reads and writes that go on while the program does something else.
//!
//! ```text
//!   start ──► sends what servers and connections take at once; while one is under way, small ones in groups
//!   test      receives, and sends what comes next
//!   wait      the same until it is over; finish_all: of many operations, with one sleep on all their lanes
//! ```
//!
//! There is no thread behind them. Between these calls servers go on by themselves over shared memory and
//! RDMA; over TCP as far as the sockets' buffers go.

use std::time::Instant;

use crate::batch::Batch;
use crate::error::Error;
use crate::progress::{Progress, finish_all};
use crate::rpc::Rpc;
use crate::transfer::Transfer;

/// A read or write under way that owns its buffer. Dropping it waits for its end.
#[must_use = "dropping it waits"]
pub struct Pending<B = Vec<u8>> {
    // The transfer comes first, for it must be over when the buffer is freed.
    raw: PendingRaw,
    buffer: B,
}

impl<B> Pending<B> {
    /// Moves it forward without waiting; whether it is over.
    pub fn test(&mut self) -> bool {
        self.raw.test()
    }

    /// Waits for its end: the bytes moved, and the buffer.
    ///
    /// # Errors
    /// Those of [`crate::File::read_at`] and [`crate::File::write_at`].
    pub fn wait(self) -> Result<(usize, B), Error> {
        let bytes = self.raw.wait()?;
        Ok((bytes as usize, self.buffer))
    }
}

/// A read or write under way on memory of the caller's. Dropping it waits for its end.
#[must_use = "dropping it waits"]
pub struct PendingRaw {
    /// The operation, or why it did not begin.
    begun: Result<Transfer<'static>, Error>,
}

impl PendingRaw {
    /// Keeps `buffer`, which owns the memory, until the operation is over.
    pub fn keeping<B>(self, buffer: B) -> Pending<B> {
        Pending { raw: self, buffer }
    }

    /// Sends what can be sent without waiting. Small requests may wait for a few more.
    pub(crate) fn new(mut begun: Result<Transfer<'static>, Error>) -> PendingRaw {
        if let Ok(transfer) = &mut begun {
            transfer.advance();
        }
        PendingRaw { begun }
    }

    /// Moves it forward without waiting; whether it is over.
    pub fn test(&mut self) -> bool {
        self.begun.as_mut().map_or(true, Transfer::test)
    }

    /// Waits for its end; the bytes moved.
    ///
    /// # Errors
    /// Those of [`crate::File::read_raw`] and [`crate::File::write_raw`].
    pub fn wait(self) -> Result<u64, Error> {
        self.begun?.wait()
    }
}

impl Progress for PendingRaw {
    fn test(&mut self) -> bool {
        PendingRaw::test(self)
    }

    fn advance(&mut self) -> bool {
        self.begun.as_mut().map_or(true, Transfer::advance)
    }

    fn requests(&mut self) -> Option<(&Rpc, &mut Batch)> {
        self.begun.as_mut().ok().map(Transfer::requests)
    }

    fn begin_wait(&mut self, now: Instant) {
        if let Ok(transfer) = &mut self.begun {
            transfer.begin_wait(now);
        }
    }

    fn pause_wait(&mut self, now: Instant) {
        if let Ok(transfer) = &mut self.begun {
            transfer.pause_wait(now);
        }
    }
}

impl<B> Progress for Pending<B> {
    fn test(&mut self) -> bool {
        self.raw.test()
    }

    fn advance(&mut self) -> bool {
        self.raw.advance()
    }

    fn requests(&mut self) -> Option<(&Rpc, &mut Batch)> {
        self.raw.requests()
    }

    fn begin_wait(&mut self, now: Instant) {
        self.raw.begin_wait(now);
    }

    fn pause_wait(&mut self, now: Instant) {
        self.raw.pause_wait(now);
    }
}

/// Waits for all, moving all of them forward together; their results in the same order.
pub fn wait_all(mut pending: Vec<Pending>) -> Vec<Result<(usize, Vec<u8>), Error>> {
    finish_all(pending.iter_mut().map(|one| &mut one.raw));
    pending.into_iter().map(Pending::wait).collect()
}
