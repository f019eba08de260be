//! Sizes of a server thread's RDMA, and what Weft keeps for each of its ports.

use std::cell::Cell;

use weft_rdma::PortOptions;
use weft_wire::limits::{HANDSHAKE_TIMEOUT_MS, STALL_TIMEOUT_MS};

use super::counts::Transfers;
use super::envelope::MESSAGE_BYTES;
use super::sizes::FAST_BYTES;

/// Sizes of a server thread's RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbsServerOptions {
    /// Of the ports below.
    pub port: PortOptions,
    /// Fast RDMA buffers of a connection, 72 KiB each.
    pub fast_buffers: u16,
    /// Bytes of these in all connections of an adapter; with none left, connections get none.
    pub fast_bytes_max: u64,
    /// Clients may move data themselves, into and out of units that are lent to them, where the adapter has
    /// memory windows.
    pub lends: bool,
}

impl Default for VerbsServerOptions {
    fn default() -> Self {
        let port = PortOptions {
            message_bytes: MESSAGE_BYTES,
            accept_ms: HANDSHAKE_TIMEOUT_MS,
            stall_ms: STALL_TIMEOUT_MS,
            ..PortOptions::default()
        };
        VerbsServerOptions { port, fast_buffers: 4, fast_bytes_max: 32 << 20, lends: true }
    }
}

/// What Weft keeps for a port.
#[derive(Debug, Default)]
pub(super) struct PortState {
    pub transfers: Transfers,
    /// Bytes of the connections' Fast buffers.
    pub fast_bytes: Cell<u64>,
}

impl PortState {
    /// Fast buffers for a connection: as many as there are within the budget, down to none.
    pub(super) fn take_fast(&self, options: &VerbsServerOptions) -> u16 {
        let left = options.fast_bytes_max.saturating_sub(self.fast_bytes.get()) / FAST_BYTES as u64;
        let count = u64::from(options.fast_buffers).min(left) as u16;
        self.fast_bytes.set(self.fast_bytes.get() + u64::from(count) * FAST_BYTES as u64);
        count
    }

    /// So many are gone.
    pub(super) fn give_fast(&self, count: usize) {
        self.fast_bytes.set(self.fast_bytes.get() - (count * FAST_BYTES) as u64);
    }
}
