//! What a server allows, and how long it waits for a peer.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use weft_reactor::{Semaphore, timeout};

/// What a server allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. For one more, the one that has been idle longest is closed; if none is idle, the
    /// new one.
    pub connections: usize,
    /// Calls under way on one connection, with those whose replies have not left; what comes beyond is not
    /// read.
    pub calls_per_connection: usize,
    /// Bytes of all calls and their replies together. At least three times a record.
    pub memory_bytes: usize,
    /// Bytes of a record. A peer that begins a longer one is cut off.
    pub record_bytes: usize,
    /// Bytes of replies that one client over RDMA may have to read, where replies are exposed.
    pub exposed_bytes: usize,
    /// Time in which a peer that has begun a record, or for which there are replies, must send or take
    /// [`PROGRESS_BYTES`] or all of it; and in which one must read a reply that is exposed.
    pub stall: Duration,
    /// The same while other calls wait for memory.
    pub stall_when_scarce: Duration,
}

/// Bytes that count as progress.
pub const PROGRESS_BYTES: usize = 64 << 10;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            calls_per_connection: 64,
            memory_bytes: 256 << 20,
            record_bytes: (1 << 20) + (64 << 10),
            exposed_bytes: 8 << 20,
            stall: Duration::from_secs(60),
            stall_when_scarce: Duration::from_secs(2),
        }
    }
}

/// Waits for a peer, as long as there is progress.
pub(crate) struct Patience<'a> {
    limits: &'a Limits,
    memory: &'a Semaphore,
    since: Instant,
    moved_bytes: usize,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(limits: &'a Limits, memory: &'a Semaphore) -> Patience<'a> {
        Patience { limits, memory, since: Instant::now(), moved_bytes: 0 }
    }

    /// From now on the peer is waited for.
    pub(crate) fn begin(&mut self) {
        self.since = Instant::now();
        self.moved_bytes = 0;
    }

    fn is_over(&self) -> bool {
        let waited = self.since.elapsed();
        waited >= self.limits.stall || (self.memory.waiting() > 0 && waited >= self.limits.stall_when_scarce)
    }

    /// Waits for `moving`, which moves some bytes.
    ///
    /// # Errors
    /// Its own, or [`io::ErrorKind::TimedOut`].
    pub(crate) async fn wait(
        &mut self,
        moving: impl Future<Output = io::Result<usize>>,
    ) -> io::Result<usize> {
        let look = self.limits.stall.min(self.limits.stall_when_scarce) / 2;
        let mut moving = pin!(moving);
        let moved = loop {
            match timeout(look, moving.as_mut()).await {
                Ok(moved) => break moved?,
                Err(_) if self.is_over() => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        };
        self.moved_bytes += moved;
        if self.moved_bytes >= PROGRESS_BYTES {
            self.begin();
        } else if self.is_over() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(moved)
    }
}
