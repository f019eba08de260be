//! Kinds of traffic (IB 3.4): each has connections of its own where the network is told to treat them
//! differently.
//!
//! ```text
//!   to a metadata server ─────────────────────────────► metadata
//!   to an I/O server, of a client in the background ──► background
//!                     of a small request  ────────────► small (as bulk, where both have one type of service)
//!                     of any other  ──────────────────► bulk
//! ```

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// Names, attributes, sizes.
    Metadata,
    /// Reads and writes of little data, which somebody waits for.
    Small,
    /// Reads and writes.
    Bulk,
    /// Reads and writes that nobody waits for.
    Background,
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Traffic::Metadata => "metadata",
            Traffic::Small => "small",
            Traffic::Bulk => "bulk",
            Traffic::Background => "background",
        })
    }
}
