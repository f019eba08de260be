//! Reads and writes that go on while the program does something else.
//!
//! There is no thread behind them: they move when the program calls [`Pending::test`] or waits. Over shared memory the
//! server does its part all the same; over TCP as much as the sockets' buffers hold.

use crate::batch::sleep_on;
use crate::error::Error;
use crate::transfer::Transfer;

/// An operation, or why it did not begin.
type Begun = Result<Transfer<'static>, Error>;

fn test(begun: &mut Begun) -> bool {
    begun.as_mut().map_or(true, Transfer::test)
}

/// A read or write under way that owns its buffer. Dropping it waits for its end.
#[must_use = "dropping it waits"]
pub struct Pending {
    // The transfer comes first, for it must be over when the buffer is freed.
    begun: Begun,
    buffer: Vec<u8>,
}

impl Pending {
    pub(crate) fn new(begun: Begun, buffer: Vec<u8>) -> Pending {
        Pending { begun, buffer }
    }

    /// Moves it forward without waiting; whether it is over.
    pub fn test(&mut self) -> bool {
        test(&mut self.begun)
    }

    /// Waits for its end: the bytes moved, and the buffer.
    ///
    /// # Errors
    /// Those of [`crate::File::read_at`] and [`crate::File::write_at`].
    pub fn wait(self) -> Result<(usize, Vec<u8>), Error> {
        let bytes = self.begun?.wait()?;
        Ok((bytes as usize, self.buffer))
    }
}

/// A read or write under way on memory of the caller's. Dropping it waits for its end.
#[must_use = "dropping it waits"]
pub struct PendingRaw {
    begun: Begun,
}

impl PendingRaw {
    pub(crate) fn new(begun: Begun) -> PendingRaw {
        PendingRaw { begun }
    }

    /// Moves it forward without waiting; whether it is over.
    pub fn test(&mut self) -> bool {
        test(&mut self.begun)
    }

    /// Waits for its end; the bytes moved.
    ///
    /// # Errors
    /// Those of [`crate::File::read_raw`] and [`crate::File::write_raw`].
    pub fn wait(self) -> Result<u64, Error> {
        self.begun?.wait()
    }
}

/// Waits for all, moving all of them forward together; their results in the same order.
pub fn wait_all(mut pending: Vec<Pending>) -> Vec<Result<(usize, Vec<u8>), Error>> {
    loop {
        let mut all_over = true;
        for one in &mut pending {
            all_over &= one.test();
        }
        if all_over {
            return pending.into_iter().map(Pending::wait).collect();
        }
        let under_way: Vec<&Transfer<'_>> =
            pending.iter().filter_map(|one| one.begun.as_ref().ok()).filter(|one| !one.is_over()).collect();
        if let Some(first) = under_way.first() {
            let batches: Vec<_> = under_way.iter().map(|transfer| transfer.batch()).collect();
            sleep_on(first.inner(), &batches);
        }
    }
}
