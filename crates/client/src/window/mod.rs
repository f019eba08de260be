//! Windows: a request of any length cut into requests that obey the limits, and each of these into the
//! servers' shares.
//!
//! ```text
//!   request   [───────────────────────────────────────────────]     any number of bytes and pieces
//!   windows   [──────── 0 ────────][──────── 1 ────────][─ 2 ─]     two under way at a time
//!   shares     io0 io1 io2 io3      io0 io1 io2 io3      io0 …      one request each, all at once
//! ```
//!
//! The path of a request:
//!
//! ```text
//!   file: Regions ────┐           ┌─ cuts.rs   patterns, as patterns ─┐
//!   memory.rs ────────┴─► Source ─┼─ deal.rs   lists, like cards ─────┼─► share.rs ──► batch.rs
//!     regions, or an iovec array  └─ sieve.rs  spans of pieces ───────┘     ├ runs.rs: its memory
//!                                                                           └ pack.rs: a buffer, if packed
//! ```

mod cuts;
mod deal;
mod memory;
pub(crate) mod pack;
pub(crate) mod runs;
mod share;
mod sieve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use weft_layout::{Region, Regions};
use weft_transport::{Lasting, Together};

use crate::access::{AccessOptions, Method, Movement};
use crate::error::Error;
use cuts::Cuts;
use deal::Dealer;
use share::packed;
use sieve::Sieve;

pub(crate) use memory::{Memory, bytes_of, extent_of, pieces_of, pieces_to_fill};
pub use share::Direction;
pub(crate) use share::{Common, Share, slots_of};
pub(crate) use sieve::Sieved;

/// Windows of one request under way at a time, over each rail.
const WINDOWS_UNDER_WAY: usize = 2;
/// The same where each is one message of many.
const MESSAGES_UNDER_WAY: usize = 16;

/// A part of a request that is small enough, in file and in memory.
pub(crate) struct Window {
    pub shares: Vec<Share>,
    /// What is to be copied when it was read.
    pub sieved: Option<Sieved>,
}

/// The windows of an operation, made one by one.
pub(crate) struct Source<'a> {
    common: Arc<Common>,
    base: u64,
    way: Way<'a>,
    total_bytes: u64,
    lasting: Arc<Lasting>,
    pub windows_under_way: usize,
}

enum Way<'a> {
    Deal(Dealer<'a>),
    Cut(Cuts<'a>),
    Sieve(Sieve<'a>),
}

/// Checks that a request makes sense.
pub(crate) fn check(file: &Regions, memory: Memory<'_>) -> Result<(), Error> {
    memory::check_side("file", file)?;
    let (file_bytes, memory_bytes) = (file.total_bytes(), memory.check()?);
    if file_bytes != memory_bytes {
        let text = format!(
            "{file_bytes} bytes of the file with {memory_bytes} bytes of memory; both must be the same"
        );
        return Err(memory::invalid(text));
    }
    Ok(())
}

/// Whether regions are extents one by one.
fn is_list(regions: &Regions) -> bool {
    regions.parts.iter().all(|part| matches!(part, Region::Contiguous(_) | Region::List(_)))
}

impl<'a> Source<'a> {
    /// Of regions that passed [`check`]; offsets of `memory` count from `base`.
    ///
    /// # Safety
    /// The memory is valid until this and all its shares are over: readable and unchanging for a write,
    /// writable and nobody else's for a read.
    pub(crate) unsafe fn new(
        common: Common,
        access: &AccessOptions,
        base: u64,
        memory: Memory<'a>,
        file: &'a Regions,
    ) -> Source<'a> {
        let sieves = access.method == Method::Sieve && common.direction == Direction::Read;
        let file_pieces = if access.method == Method::List { usize::MAX } else { 1 };
        let memory_pieces = if common.movement == Movement::Multiple { 1 } else { usize::MAX };
        let one_by_one = file_pieces == 1 || memory_pieces == 1;
        let windows_under_way = match access.method {
            _ if sieves => 1,
            Method::Multiple | Method::Sieve => 1,
            Method::List if memory_pieces == 1 => MESSAGES_UNDER_WAY,
            Method::List => WINDOWS_UNDER_WAY * common.reach.rails,
        };
        let way = match memory {
            _ if sieves => Way::Sieve(Sieve::new(file, memory, access.sieve_bytes)),
            Memory::Regions(memory) if !one_by_one && !is_list(file) => {
                Way::Cut(Cuts::new(&common, file, memory))
            }
            _ => Way::Deal(Dealer::new(&common.layout, file, memory, (file_pieces, memory_pieces))),
        };
        let total_bytes = file.total_bytes();
        Source {
            common: Arc::new(common),
            base,
            way,
            total_bytes,
            lasting: Arc::default(),
            windows_under_way,
        }
    }

    /// The next window; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<Window> {
        let Source { common, base, way, .. } = self;
        let (mut shares, sieved) = match way {
            Way::Deal(dealer) => (packed(common, dealer.next(common, *base)?), None),
            Way::Cut(cuts) => (packed(common, cuts.next(common, *base)?), None),
            Way::Sieve(sieve) => sieve.next(common, *base)?,
        };
        self.register_together(&mut shares);
        Some(Window { shares, sieved })
    }

    /// Has the shares that are not packed register their memory together. Over several rails, with adapters
    /// of their own, each adapter would have to know what only one of them needs.
    fn register_together(&self, shares: &mut [Share]) {
        let reach = &self.common.reach;
        let direct = || shares.iter().filter(|share| !share.is_packed());
        let count = direct().count();
        if !reach.traits.registers
            || reach.rails > 1
            || count + usize::from(!self.common.allocations.is_empty()) < 2
        {
            return;
        }
        let bytes: u64 = direct().map(|share| share.bytes).sum();
        let runs = direct().flat_map(|share| share.runs.iter().cloned()).collect();
        let windows = self.total_bytes.div_ceil(bytes.max(1));
        let together = Arc::new(Together::new(runs, windows, &self.lasting));
        for share in shares.iter_mut().filter(|share| !share.is_packed()) {
            share.together = Some(together.clone());
        }
    }

    /// All shares are over.
    pub(crate) fn end(&mut self) {
        self.lasting = Arc::default();
    }
}
