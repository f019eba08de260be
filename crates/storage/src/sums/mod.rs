//! Checksums of a data file, kept beside it: what tells rot from data.
//!
//! ```text
//!   DIR/data/9e/37/000000000000012a        a data file
//!   DIR/sums/9e/37/000000000000012a        its sidecar: module `format`
//!
//!   write    marks its blocks, makes their sums void on disk if they have any    state.rs, guard [`Change`]
//!   settle   some seconds later: reads, sums, syncs, puts in force               settle.rs, on a thread of its own
//!   read     compares blocks with their sums, once in a run and whenever they come from the disk     verify.rs
//!   scrub    reads everything from the disk and compares; sums what has none     scrub.rs
//! ```
//!
//! A sum is in force only while the block on disk is the one that it is of, whenever the power goes: it is made void, durably, before
//! the block changes, and put in force after the block was synced. So a block that does not fit its sum is damaged, always.

mod change;
pub mod format;
mod region;
mod scrub;
mod settle;
mod state;
pub(crate) mod table;
pub(crate) mod under_way;
mod verify;

pub use scrub::Scrubbed;
pub use settle::{SettleWhen, Settled};
pub use table::{Damage, DamageKind, SumsCounts};
pub use under_way::Change;
