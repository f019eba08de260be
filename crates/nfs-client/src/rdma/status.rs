//! What was counted, over all links of a client.

use std::cell::Cell;
use std::rc::Rc;

use weft_transport::registration::RegistrationStats;
use weft_verbs::Counts;

use super::memory::{RdmaDesign, RdmaMemory};

/// What calls over RDMA needed. Counted over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RdmaTotals {
    /// Connections made.
    pub connections: u64,
    /// Calls sent.
    pub calls: u64,
    /// Calls that were too long for a message.
    pub long_calls: u64,
    /// Replies that the server wrote into a reply chunk, or exposed as wholes.
    pub long_replies: u64,
    /// Bytes that the server read out of a chunk of the caller's data.
    pub read_chunk_bytes: u64,
    /// Bytes that the server wrote into a chunk for the caller's data.
    pub write_chunk_bytes: u64,
    /// Replies that this side has read out of the server's memory.
    pub replies_read: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Bytes of data that this side has copied.
    pub copied_bytes: u64,
    /// Windows bound.
    pub windows_bound: u64,
    /// Keys that the server ended with its replies.
    pub ended_by_server: u64,
    /// Calls that the server grants at a time, as of its last reply.
    pub credits: u64,
}

/// The counters that all links of a client share.
#[derive(Debug, Clone, Default)]
pub(super) struct RdmaCounts(Rc<Cell<RdmaTotals>>);

impl RdmaCounts {
    pub(super) fn update(&self, change: impl FnOnce(&mut RdmaTotals)) {
        let mut totals = self.0.get();
        change(&mut totals);
        self.0.set(totals);
    }

    pub(super) fn totals(&self) -> RdmaTotals {
        self.0.get()
    }
}

/// RDMA of a client, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaStatus {
    /// The adapter.
    pub device: String,
    /// Who moves data of replies.
    pub design: RdmaDesign,
    /// How the caller's memory becomes known to it.
    pub memory: RdmaMemory,
    /// What calls needed.
    pub totals: RdmaTotals,
    /// The registrations of the caller's memory.
    pub registrations: RegistrationStats,
    /// What was asked of the adapter by this process.
    pub counts: Counts,
}
