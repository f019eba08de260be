//! Collective access: the processes of a parallel program read or write one file together.
//!
//! Each process has bytes in memory and bytes in the file, both described by
//! [`Regions`](weft_layout::Regions). This crate decides how they are moved ([`choose`]), and does the
//! two-phase way: processes exchange bytes first, so that few large accesses to the file are left
//! ([`Collective`]). It knows neither MPI nor the network: processes are behind [`Peers`], the file is behind
//! [`Store`]. [`threads`] implements both in memory.
//!
//! ```text
//!   process 0   process 1   process 2      regions of memory and file
//!        └──────┬────┴───────────┘         Summary: one reduction
//!            choose                        same inputs, same choice everywhere
//!      ┌────────┴──────────┐
//!   list, sieve,       two-phase           Announcement: each process describes its bytes once
//!   multiple               │               then, round by round:
//!   (each for itself)   exchange           areas in shared memory of a node; messages between nodes
//!                          │
//!                     aggregator           one per server's share: one list access for each slot and round
//! ```
//!
//! # What is where
//!
//! - `rounds`: how the file is cut into rounds, `plan`: who serves what;
//! - `walk`: which bytes of a request are in an area, computed by both sides;
//! - `own`: the part of a process, `aggregator`: that of an aggregator, `two_phase`: the rounds of both;
//! - `memory` and `copy`: moving runs of pieces; `cover`: which bytes of an area are wanted;
//! - `codec`: what processes tell each other.
//!
//! # What always holds
//!
//! - A process that fails takes part to the end: the number of rounds and barriers is agreed at the start,
//!   and a status is reduced at the end. Then all processes get an error.
//! - No two aggregators access the same server's share. An aggregator has at most one access per slot and
//!   round. A write writes what is wanted and nothing else, so it reads nothing.
//! - Memory is bounded by the buffers, and by messages of one round.
//! - Offsets are sent only by processes whose lists are too long to describe at once.

mod aggregator;
mod choose;
mod codec;
mod copy;
mod cover;
mod engine;
mod error;
mod learn;
mod memory;
mod own;
mod peers;
mod plan;
mod rounds;
mod store;
mod summary;
pub mod threads;
mod two_phase;
mod walk;

pub use choose::{Choice, Conditions, Costs, Method, Prediction, Reason, choose, is_coarse};
pub use codec::DecodeError;
pub use engine::{Collective, Options, Outcome, Request};
pub use error::{CollectiveError, INVALID_REQUEST};
pub use learn::Learned;
pub use memory::Direction;
pub use peers::Peers;
pub use store::{ErrorCode, Store};
pub use summary::{Summary, Totals};
