//! How data moved.

use std::sync::atomic::{AtomicU64, Ordering};

use super::choose::Mechanism;

/// Requests that moved data, by mechanism, and what was copied for it on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerbsTransfers {
    /// Requests with their data in messages.
    pub inline: u64,
    /// Requests through Fast RDMA buffers.
    pub fast: u64,
    /// Requests of which the server reads or writes the client's registered memory.
    pub remote: u64,
    /// Requests for which the server lends its units.
    pub lent: u64,
    /// Bytes of data that a processor copied between the users' memory (or a server's units) and buffers of
    /// the transport.
    pub copied_bytes: u64,
}

impl VerbsTransfers {
    /// All of them, by name.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("inline_requests", self.inline),
            ("fast_requests", self.fast),
            ("remote_requests", self.remote),
            ("lent_requests", self.lent),
            ("copied_bytes", self.copied_bytes),
        ]
    }
}

/// The same while it grows.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    inline: AtomicU64,
    fast: AtomicU64,
    remote: AtomicU64,
    lent: AtomicU64,
    copied_bytes: AtomicU64,
}

impl Transfers {
    pub(super) fn add(&self, mechanism: Mechanism) {
        let counter = match mechanism {
            Mechanism::Inline => &self.inline,
            Mechanism::Fast => &self.fast,
            Mechanism::Remote => &self.remote,
            Mechanism::Lend => &self.lent,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn copied(&self, bytes: usize) {
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> VerbsTransfers {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        VerbsTransfers {
            inline: of(&self.inline),
            fast: of(&self.fast),
            remote: of(&self.remote),
            lent: of(&self.lent),
            copied_bytes: of(&self.copied_bytes),
        }
    }
}
