//! Sieves: reads what spans some pieces into a buffer, and copies the pieces out of it.
//!
//! ```text
//!   file      .aa...bb....cc.       pieces that rise and lie within one buffer
//!   buffer     aa...bb....cc        one contiguous read
//!   memory     aabbcc
//! ```

use std::sync::Arc;

use weft_layout::{Extent, Extents, Regions};
use weft_wire::limits::MEMORY_RUNS_MAX;
use weft_wire::messages::MemoryRun;

use super::deal::deal_all;
use super::memory::{Memory, MemoryWalk};
use super::pack::PackBuffer;
use super::runs;
use super::share::{Common, Share, packed};

/// Pieces that one sieved window has at most.
const SIEVED_PIECES_MAX: usize = 1 << 16;

/// Reads spans of pieces.
pub(super) struct Sieve<'a> {
    file: Extents<'a>,
    memory: MemoryWalk<'a>,
    rest: Extent,
    sieve_bytes: u64,
}

/// A span that is read into a buffer.
pub(crate) struct Sieved {
    buffer: Arc<PackBuffer>,
    /// Where each piece is in the buffer, in the order of the request.
    pub(super) pieces: Vec<Extent>,
    /// The memory of the pieces.
    runs: Vec<MemoryRun>,
}

impl<'a> Sieve<'a> {
    pub(super) fn new(file: &'a Regions, memory: Memory<'a>, sieve_bytes: u64) -> Sieve<'a> {
        Sieve { file: file.extents(), memory: memory.walk(), rest: Extent::new(0, 0), sieve_bytes }
    }

    /// The next pieces that rise and lie within one buffer.
    fn take_pieces(&mut self, base: u64) -> (Vec<Extent>, Vec<MemoryRun>) {
        let (mut pieces, mut runs) = (Vec::<Extent>::new(), Vec::new());
        while pieces.len() < SIEVED_PIECES_MAX && runs.len() < MEMORY_RUNS_MAX {
            if self.rest.bytes == 0 {
                let Some(extent) = self.file.next() else { break };
                self.rest = extent;
            }
            let (first, end) = match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => (first.offset, last.end()),
                _ => (self.rest.offset, self.rest.offset),
            };
            let room = first.saturating_add(self.sieve_bytes).saturating_sub(self.rest.offset);
            if self.rest.offset < end || room == 0 {
                break;
            }
            let mut left = self.rest.bytes.min(room);
            let offset = self.rest.offset;
            while left > 0
                && runs.len() < MEMORY_RUNS_MAX
                && let Some(piece) = self.memory.next_at_most(left)
            {
                runs::push(&mut runs, base.wrapping_add(piece.offset), piece.bytes);
                left -= piece.bytes;
                self.rest = Extent::new(self.rest.offset + piece.bytes, self.rest.bytes - piece.bytes);
            }
            pieces.push(Extent::new(offset, self.rest.offset - offset));
        }
        (pieces, runs)
    }

    /// The shares of the next span, and what to copy when they were read.
    pub(super) fn next(&mut self, common: &Arc<Common>, base: u64) -> Option<(Vec<Share>, Option<Sieved>)> {
        let (mut pieces, runs) = self.take_pieces(base);
        let (first, last) = (pieces.first()?.offset, pieces.last()?.end());
        let span = Regions::contiguous(first, last - first);
        if let [_] = pieces.as_slice() {
            // One piece needs no sieve: it is read to where it belongs.
            let mut memory = Vec::new();
            runs::walk(&runs, 0, u64::MAX, |address, bytes| memory.push(Extent::new(address, bytes as u64)));
            let memory = Regions::list(memory);
            let shares = deal_all(common, &span, &memory, 0);
            return Some((packed(common, shares), None));
        }
        let buffer = Arc::new(common.take_buffer((last - first) as usize));
        let memory = Regions::contiguous(0, last - first);
        let shares = deal_all(common, &span, &memory, buffer.base().as_ptr() as u64);
        pieces.iter_mut().for_each(|piece| piece.offset -= first);
        Some((shares, Some(Sieved { buffer, pieces, runs })))
    }
}

impl Sieved {
    /// Copies the pieces to where they belong.
    ///
    /// # Safety
    /// The memory that the source was made with is still lent, and the span was read.
    pub(crate) unsafe fn copy_out(&self) {
        let mut memory = runs::Cursor::over(&self.runs);
        for piece in &self.pieces {
            let mut at = self.buffer.base().as_ptr().wrapping_add(piece.offset as usize).cast_const();
            let end = at.wrapping_add(piece.bytes as usize);
            while at < end
                && let Some((address, bytes)) = memory.next_at_most(end as u64 - at as u64)
            {
                // SAFETY: as the caller promises; pieces lie within the buffer.
                unsafe { std::ptr::copy_nonoverlapping(at, address as usize as *mut u8, bytes as usize) };
                at = at.wrapping_add(bytes as usize);
            }
        }
    }
}
