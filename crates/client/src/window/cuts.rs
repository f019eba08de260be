//! Cuts patterns: a window of a pattern is a pattern, and is encoded once for all servers.
//!
//! ```text
//!   file     ##..##..##..##..##..##..      a vector of 6 blocks
//!   windows  ##..##..##.. ##..##..##..     vectors of 3 blocks; one that turns out to be too large is halved
//! ```

use std::sync::Arc;

use weft_layout::{Cutter, Regions, memory_runs, share_bytes};
use weft_wire::limits::{BODY_BYTES_MAX, LIST_EXTENTS_MAX, MEMORY_RUNS_MAX, REGION_PARTS_MAX};
use weft_wire::{Wire, Writer};

use super::runs;
use super::share::{Common, PACK_WINDOW_BYTES, Share, slots_of};
use crate::access::Movement;

/// About how many pieces of the file one window of a pattern has at most: both sides walk over them, and
/// neither should do so for long.
pub(super) const PIECES_MAX: u64 = 1 << 20;
/// Room in a body for everything but the regions.
const BODY_REST_BYTES: usize = 256;

/// Cuts patterns.
pub(super) struct Cuts<'a> {
    file: Cutter<'a>,
    memory: Cutter<'a>,
    bytes_max: u64,
    /// Parts of windows that turned out to be too large, last first.
    halves: Vec<(Regions, Regions)>,
}

impl<'a> Cuts<'a> {
    pub(super) fn new(common: &Common, file: &'a Regions, memory: &'a Regions) -> Cuts<'a> {
        let (bytes, pieces) = (file.total_bytes(), file.piece_count().max(1));
        let mut bytes_max =
            common.reach.share_bytes_max.min((bytes / pieces).max(1).saturating_mul(PIECES_MAX));
        if common.movement == Movement::Pack
            || common.packs_pieces(bytes, pieces.saturating_add(memory.piece_count()))
        {
            bytes_max = bytes_max.min(packed_window_bytes(bytes));
        }
        Cuts { file: file.cutter(), memory: memory.cutter(), bytes_max, halves: Vec::new() }
    }

    pub(super) fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<Vec<Share>> {
        loop {
            let (file, memory) = match self.halves.pop() {
                Some(half) => half,
                None if self.file.is_at_end() => return None,
                None => {
                    let bytes = self
                        .file
                        .fit(self.bytes_max, LIST_EXTENTS_MAX)
                        .min(self.memory.fit(self.bytes_max, 8 * LIST_EXTENTS_MAX));
                    (self.file.take(bytes), self.memory.take(bytes))
                }
            };
            if let Some(shares) = shares_of_pattern(common, base, &file, &memory) {
                return Some(shares);
            }
            let bytes = file.total_bytes();
            let middle = bytes / 2;
            assert!(middle > 0, "one byte always fits a request");
            let half = |start, bytes| (file.window(start, bytes), memory.window(start, bytes));
            self.halves.push(half(middle, bytes - middle));
            self.halves.push(half(0, middle));
        }
    }
}

/// Bytes of each window of a pattern of `bytes` that is packed: all about as large, so that no request is for
/// a small rest.
fn packed_window_bytes(bytes: u64) -> u64 {
    let windows = (bytes.saturating_add(PACK_WINDOW_BYTES / 2) / PACK_WINDOW_BYTES).max(1);
    bytes.div_ceil(windows)
}

/// The shares of a pattern, or `None` where it says more than one request may.
fn shares_of_pattern(
    common: &Arc<Common>,
    base: u64,
    file: &Regions,
    memory: &Regions,
) -> Option<Vec<Share>> {
    if file.part_count() > REGION_PARTS_MAX {
        return None;
    }
    let mut out = Writer::new();
    file.put(&mut out);
    let encoded = Arc::new(out.into_bytes());
    if encoded.len() + BODY_REST_BYTES > BODY_BYTES_MAX {
        return None;
    }
    let mut shares = Vec::with_capacity(usize::from(common.layout.server_count()));
    for slot in slots_of(&common.layout, file) {
        let bytes = share_bytes(&common.layout, slot, file);
        if bytes > 0 {
            let pieces = memory_runs(&common.layout, slot, file, memory).ok()?;
            let runs = runs::memory_runs(base, pieces, MEMORY_RUNS_MAX).ok()?;
            shares.push(common.share(slot, bytes, encoded.clone(), runs));
        }
    }
    Some(shares)
}
