//! How a cache behaves, and what it counts.

use super::cost::RegistrationCost;
use super::page::page_bytes;

/// What to do with memory that the program did not register itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForeignMemory {
    /// Cached where the kernel tells when it is unmapped.
    #[default]
    Watched,
    /// Registered for each request.
    NotCached,
}

/// How a cache behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationOptions {
    /// Bytes that stay registered without being used, arenas not counted.
    pub bytes_max: u64,
    /// Registrations that stay without being used, arenas not counted.
    pub entries_max: usize,
    /// What to do with memory that the program did not register itself.
    pub foreign: ForeignMemory,
    /// Compare, at every use of a cached registration, the pages that are there now with those that were
    /// registered. With the rights to see frame numbers (`CAP_SYS_ADMIN`) this finds every page that was
    /// exchanged, without them only pages that are not there at all. Slow.
    pub verify: bool,
    /// The adapter's costs; measured when not given.
    pub cost: Option<RegistrationCost>,
    /// Peers get at memory through windows only: registrations allow binding them instead of remote access.
    pub windows: bool,
}

impl Default for RegistrationOptions {
    fn default() -> RegistrationOptions {
        // SAFETY: no memory is passed.
        let pages = u64::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).unwrap_or(0);
        RegistrationOptions {
            bytes_max: (pages / 4 * page_bytes()).max(64 << 20),
            entries_max: 4096,
            foreign: ForeignMemory::Watched,
            verify: false,
            cost: None,
            windows: false,
        }
    }
}

/// What a cache has done, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RegistrationStats {
    /// Requests for which everything was registered.
    pub hits: u64,
    /// Requests for which something had to be.
    pub misses: u64,
    /// Registrations made.
    pub registrations: u64,
    /// Pages of them.
    pub registered_pages: u64,
    /// Registrations that the system refused.
    pub refused: u64,
    /// Of those made: not cached, because the memory cannot be watched or was unmapped meanwhile.
    pub transient: u64,
    /// Cached registrations that ended because memory was unmapped, moved or given back.
    pub invalidated: u64,
    /// Cached registrations that ended to make room.
    pub evicted: u64,
    /// Uses of a cached registration that `verify` found wrong (and that were then done anew).
    pub wrong: u64,
    /// Cached now.
    pub entries: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Arenas.
    pub arenas: u64,
    /// Bytes of these.
    pub arena_bytes: u64,
    /// How memory that is no arena is treated, for status: "watched", "on demand", "not cached: …".
    pub foreign: String,
}
