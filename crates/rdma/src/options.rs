//! Sizes and times of a thread's ports.

use crate::zones::ZoneRegistration;

/// Completions are awaited for no longer than this before a thread sleeps.
pub(crate) const SPIN_US_MAX: u32 = 1000;

/// Sizes and times of a thread's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortOptions {
    /// Receives per adapter, shared by all connections.
    pub receives: u32,
    /// Messages on their way per adapter.
    pub sends: u32,
    /// Size of a receive and of a send slot: the largest message.
    pub message_bytes: usize,
    /// Buffers per adapter for data that lies in no zone, [`BOUNCE_BYTES`](crate::BOUNCE_BYTES) each.
    pub bounces: u32,
    /// Connections per adapter.
    pub connections_max: u32,
    /// Work that may wait per connection.
    pub send_depth: u32,
    /// Bytes under way to one peer.
    pub destination_bytes_max: u64,
    /// Bytes under way to all peers.
    pub total_bytes_max: u64,
    /// Memory windows may be bound to zones and bounce buffers, where the adapter has them.
    pub windows: bool,
    /// When zones are registered.
    pub zone_registration: ZoneRegistration,
    /// Peers that have a zone's key may read it.
    pub remote_read: bool,
    /// Milliseconds in which an accepted connection has to stand.
    pub accept_ms: u64,
    /// Milliseconds that a peer, or the adapter, may take to make progress.
    pub stall_ms: u64,
    /// Milliseconds of silence after which a peer is asked whether it lives, without its noticing.
    pub keep_alive_ms: u32,
    /// Microseconds to keep looking for work before going to sleep, at most 1000.
    pub spin_us: u32,
}

impl Default for PortOptions {
    fn default() -> Self {
        PortOptions {
            receives: 1024,
            sends: 256,
            message_bytes: 8 << 10,
            bounces: 8,
            connections_max: 256,
            send_depth: 128,
            destination_bytes_max: 4 << 20,
            total_bytes_max: 32 << 20,
            windows: true,
            zone_registration: ZoneRegistration::Whole,
            remote_read: false,
            accept_ms: 10_000,
            stall_ms: 30_000,
            keep_alive_ms: 30_000,
            spin_us: 50,
        }
    }
}
