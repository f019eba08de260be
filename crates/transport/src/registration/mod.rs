//! Memory that adapters know: registered as seldom as possible, and never used when it is no longer what the program has there.
//!
//! ```text
//!   pin(pieces, allocations, write)
//!     │  each piece: in an arena? in the cache?                     index ── checked against what was unmapped (watch)
//!     │  in many, where few would do? all anew                      fewer
//!     ▼  the rest
//!   pages sorted and grouped by T = a·pages + b                     group, cost
//!     │  each group: registered optimistically
//!     │     refused? ask the system what is really mapped,          holes
//!     ▼     register exactly that
//!   Pinned { regions with keys }  ── dropped ──► cached ones stay, others are deregistered
//! ```
//!
//! The requests to all servers that one read or write consists of pin their memory together (`pin_bulk`, [`crate::Together`]).
//!
//! Three kinds of memory:
//!
//! | memory | registered | kept until | because |
//! | --- | --- | --- | --- |
//! | an arena ([`RegistrationCache::add_arena`]) | when it is added | it is removed | the program promises not to unmap it before |
//! | private and of no file (`malloc`, the stack) | at its first use | it is unmapped, or other memory was used since | the kernel tells when it is unmapped (`watch`) |
//! | anything else (files, shared memory) | for each request | its end | files can be cut from elsewhere, and nobody tells |
//!
//! Where the kernel does not tell (no `userfaultfd`), everything but arenas is as the last kind. An adapter that pages on demand
//! follows the program's memory by itself: there everything is cached.
//!
//! Caches that miss an unmapping are the classical way to corrupt data with RDMA: the adapter goes on writing into pages that the
//! program no longer has. `tests/registration.rs` shows it with one, and shows that this one does not.
//!
//! A forked child has nothing here: what it drops touches nothing of its parent's, and it cannot pin ([`PinError::Forked`]); it
//! opens adapters and makes caches of its own. The parent's pages stay its own over a fork (kernels since 5.12 copy pinned pages
//! for the child at once).

mod cache;
mod cost;
mod coverage;
mod fewer;
mod frames;
mod group;
mod holes;
mod home;
mod index;
mod ranges;
mod shared;
mod threads;
mod watch;

pub use cache::RegistrationCache;
pub use cost::{CallCost, RegistrationCost};
pub use group::{Group, PageRange, Scheme, SchemeCost, cost_ns, cut, merge, paper_rows, plan, scheme_cost};

use std::sync::{Arc, OnceLock};

use weft_verbs::{Device, VerbsError};

use cache::Entry;
use index::Span as _;

/// Bytes of a page of this system.
pub fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    // SAFETY: no memory is passed.
    *BYTES.get_or_init(|| u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

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
    /// Compare, at every use of a cached registration, the pages that are there now with those that were registered. With the
    /// rights to see frame numbers (`CAP_SYS_ADMIN`) this finds every page that was exchanged, without them only pages that are
    /// not there at all. Slow.
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

/// Why memory was not registered.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// A piece lies beyond the end of the address space.
    #[error("a piece of memory wraps around the address space")]
    Overflow,
    /// A piece is named by a segment; addresses are needed.
    #[error("a piece of memory is given as an offset in segment {0}, not by its address")]
    Segment(u16),
    /// The program has no such memory.
    #[error(
        "the memory at {address:#x} ({bytes} bytes from there) is not {needed}; the buffer of the request is wrong"
    )]
    NotMapped {
        /// Where it is missing.
        address: u64,
        /// What is left of the piece from there on.
        bytes: u64,
        /// "mapped", or "writable".
        needed: &'static str,
    },
    /// The adapter or the system has no room for more.
    #[error(
        "no more memory can be registered, and none that is cached is unused: {0}; raise the limit (ulimit -l)"
    )]
    Limit(#[source] VerbsError),
    /// An arena begins at this address already.
    #[error("the memory at {0:#x} is registered already")]
    ArenaExists(u64),
    /// The cache is that of the parent process.
    #[error("this process was forked from the one that opened the adapter; open it anew")]
    Forked,
    /// Another error of the adapter's.
    #[error(transparent)]
    Device(#[from] VerbsError),
}

impl PinError {
    /// As an error number of the system.
    pub fn errno(&self) -> i32 {
        match self {
            PinError::Overflow | PinError::Segment(_) => libc::EINVAL,
            PinError::NotMapped { .. } => libc::EFAULT,
            PinError::Limit(_) => libc::ENOMEM,
            PinError::ArenaExists(_) => libc::EEXIST,
            PinError::Device(VerbsError::Register { source, .. }) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            PinError::Forked | PinError::Device(_) => libc::EIO,
        }
    }
}

/// Registered memory, by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedRegion {
    /// Where.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// For this side's work.
    pub local_key: u32,
    /// For the peer's; 0 where windows are used.
    pub remote_key: u32,
}

/// Everything that the pieces of a request need. While it, or a clone, lives the keys are valid; dropping the last lets go.
pub struct Pinned<D: Device> {
    regions: Arc<[PinnedRegion]>,
    /// Held for their keys.
    entries: Arc<[Arc<Entry<D::Registration>>]>,
}

impl<D: Device> Clone for Pinned<D> {
    fn clone(&self) -> Pinned<D> {
        Pinned { regions: self.regions.clone(), entries: self.entries.clone() }
    }
}

impl<D: Device> std::fmt::Debug for Pinned<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("regions", &self.regions).finish()
    }
}

impl<D: Device> Pinned<D> {
    fn new(mut entries: Vec<Arc<Entry<D::Registration>>>) -> Pinned<D> {
        entries.sort_by_key(|entry| (entry.start(), Arc::as_ptr(entry)));
        entries.dedup_by(|next, last| Arc::ptr_eq(next, last));
        Pinned { regions: entries.iter().map(|entry| entry.region()).collect(), entries: entries.into() }
    }

    /// The regions, by address. They may overlap.
    pub fn regions(&self) -> &[PinnedRegion] {
        &self.regions
    }

    /// The region that holds all of a piece. Every piece of the request is in one, unless it is larger than the adapter
    /// registers at once ([`weft_verbs::DeviceLimits::registration_bytes_max`]): such a piece is in several that touch.
    pub fn find(&self, address: u64, bytes: u64) -> Option<&PinnedRegion> {
        let end = address.checked_add(bytes)?;
        let begun = self.regions.partition_point(|region| region.address <= address);
        self.regions[..begun].iter().rev().find(|region| end <= region.address + region.bytes)
    }
}
