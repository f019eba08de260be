//! Memory that adapters know: registered as seldom as possible, and never used when it is no longer what the
//! program has there.
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
//! The requests to all servers that one read or write consists of pin their memory together (`pin_bulk`,
//! [`crate::Together`]).
//!
//! Three kinds of memory:
//!
//! | memory | registered | kept until | because |
//! | --- | --- | --- | --- |
//! | an arena ([`RegistrationCache::add_arena`]) | when it is added | it is removed | the program promises not to unmap it before |
//! | private and of no file (`malloc`, the stack) | at its first use | it is unmapped, or other memory was used since | the kernel tells when it is unmapped (`watch`) |
//! | anything else (files, shared memory) | for each request | its end | files can be cut from elsewhere, and nobody tells |
//!
//! Where the kernel does not tell (no `userfaultfd`), everything but arenas is as the last kind. An adapter
//! that pages on demand follows the program's memory by itself: there everything is cached.
//!
//! Caches that miss an unmapping are the classical way to corrupt data with RDMA: the adapter goes on writing
//! into pages that the program no longer has. `tests/registration.rs` shows it with one, and shows that this
//! one does not.
//!
//! A forked child has nothing here: what it drops touches nothing of its parent's, and it cannot pin
//! ([`PinError::Forked`]); it opens adapters and makes caches of its own. The parent's pages stay its own
//! over a fork (kernels since 5.12 copy pinned pages for the child at once).

mod cache;
mod choose;
mod cost;
mod coverage;
mod entry;
pub(crate) mod error;
mod fewer;
mod frames;
mod group;
mod holes;
mod home;
mod index;
mod lookup;
mod make;
mod options;
mod page;
mod pinned;
mod ranges;
mod shared;
mod state;
mod threads;
mod wanted;
mod watch;

pub use cache::RegistrationCache;
pub use cost::{CallCost, RegistrationCost};
pub use entry::PinnedRegion;
pub use error::PinError;
pub use group::{Group, PageRange, Scheme, SchemeCost, cost_ns, cut, merge, paper_rows, plan, scheme_cost};
pub use options::{ForeignMemory, RegistrationOptions, RegistrationStats};
pub use page::page_bytes;
pub use pinned::Pinned;
