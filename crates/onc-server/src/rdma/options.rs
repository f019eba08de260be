//! The choices of a server of calls over RDMA: Noronha, Chai, Talpey and Panda, *Better NFS through RDMA and
//! Efficient Memory Registration* (2007), sections 4, 5 and 8.

use weft_rdma::ZoneRegistration;

/// How long replies get to clients that give no room for them in their calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RdmaDesign {
    /// They do not: only the server reads and writes, and none of its memory is exposed (RFC 8166).
    #[default]
    ReadWrite,
    /// The server exposes them, and the client reads them and says when it has (RFC 5666, RDMA_DONE). Clients that
    /// give room are served as in the other design. For comparisons: see the module's documentation.
    ReadRead,
}

/// How memory of payloads becomes known to the adapters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RdmaMemory {
    /// One pool stays registered from the start, by zones of 2 MiB. With exposed replies a zone's key is good for
    /// all of the zone, as long as there is the zone.
    #[default]
    Pool,
    /// Each payload is registered for its transfer alone.
    Each,
    /// A buffer is registered when it is first used, and stays so while the pool has its memory. With exposed
    /// replies its key is good for what is in it later, too.
    Cached,
    /// As the pool, and each exposed reply has a memory window, whose key ends with it. For exposed replies only.
    Windows,
}

impl RdmaMemory {
    pub(super) fn zone_registration(self) -> ZoneRegistration {
        match self {
            RdmaMemory::Pool | RdmaMemory::Windows => ZoneRegistration::Whole,
            RdmaMemory::Cached => ZoneRegistration::Blocks,
            RdmaMemory::Each => ZoneRegistration::Each,
        }
    }
}

/// What is to be chosen. Windows without exposed replies are the same as the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RdmaOptions {
    /// How long replies get to clients.
    pub design: RdmaDesign,
    /// How memory becomes known.
    pub memory: RdmaMemory,
}
