//! Moves runs of an area from and to the memory of a process, or a message.

use weft_layout::{Regions, StridedRun, StridedRuns};

use crate::copy::copy_pieces;
use crate::walk::AreaRun;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file to memory.
    Read,
    /// From memory to the file.
    Write,
}

/// The other side of an area: where the bytes of a request are, in the order of its stream.
#[derive(Debug, Clone)]
pub(crate) enum Memory<'a> {
    /// Regions of a process's memory.
    User {
        /// What their offsets count from.
        base: *mut u8,
        /// The position.
        runs: StridedRuns<'a>,
    },
    /// A message, which has the bytes one after the other.
    Packed {
        /// The next byte.
        next: *mut u8,
    },
}

impl<'a> Memory<'a> {
    /// `memory`, whose offsets count from `base`.
    pub fn user(base: *mut u8, memory: &'a Regions) -> Memory<'a> {
        Memory::User { base, runs: memory.strided_runs() }
    }

    /// Moves a run between `area` and this memory, `direction` being that of the access to the file.
    ///
    /// # Safety
    /// `area` has room for the run, this memory for its bytes, and both are valid for what `direction` says
    /// and used by nobody else meanwhile. The runs come in the order of the stream.
    #[inline]
    pub unsafe fn transfer(&mut self, direction: Direction, area: *mut u8, run: &AreaRun) {
        // SAFETY: the caller's promise.
        let first = unsafe { area.add(run.area_offset as usize) };
        match self {
            Memory::Packed { next } => {
                let bytes = run.bytes as usize;
                let sides = Pieces { area: first, area_stride: run.stride_bytes, memory: *next };
                // SAFETY: the caller's promise.
                unsafe {
                    sides.copy(direction, bytes as i64, bytes, run.count as usize);
                    *next = next.add(bytes * run.count as usize);
                }
            }
            // SAFETY: the caller's promise.
            Memory::User { base, runs } => unsafe { transfer_user(direction, first, run, *base, runs) },
        }
    }
}

/// Places on both sides from which equal pieces begin.
struct Pieces {
    area: *mut u8,
    area_stride: u64,
    memory: *mut u8,
}

impl Pieces {
    /// # Safety
    /// As for [`copy_pieces`].
    #[inline]
    unsafe fn copy(&self, direction: Direction, memory_stride: i64, bytes: usize, count: usize) {
        let (area_stride, memory_stride) = (self.area_stride as isize, memory_stride as isize);
        // SAFETY: the caller's promise.
        unsafe {
            match direction {
                Direction::Write => {
                    copy_pieces(self.area, area_stride, self.memory, memory_stride, bytes, count)
                }
                Direction::Read => {
                    copy_pieces(self.memory, memory_stride, self.area, area_stride, bytes, count)
                }
            }
        }
    }
}

/// # Safety
/// As for [`Memory::transfer`]; the first piece is at `area`.
unsafe fn transfer_user(
    direction: Direction,
    area: *mut u8,
    run: &AreaRun,
    base: *mut u8,
    memory: &mut StridedRuns<'_>,
) {
    memory.advance_bytes(run.stream_offset - memory.stream_offset());
    let (mut left, mut within) = (run.count, 0);
    while left > 0 {
        let Some(blocks) = memory.peek() else { return };
        let here = base.wrapping_add(blocks.offset as usize);
        let piece = area.wrapping_add(((run.count - left) * run.stride_bytes + within) as usize);
        if within == 0 && blocks.bytes >= run.bytes {
            let sides = Pieces { area: piece, area_stride: run.stride_bytes, memory: here };
            // SAFETY: the caller's promise: as many pieces are left on both sides.
            left -= unsafe { whole_pieces(direction, &sides, run.bytes, left, &blocks, memory) };
            continue;
        }
        let sides = Pieces { area: piece, area_stride: blocks.bytes, memory: here };
        // SAFETY: as above; so many bytes of the piece are left.
        within += unsafe { within_piece(direction, &sides, run.bytes - within, &blocks, memory) };
        if within == run.bytes {
            (left, within) = (left - 1, 0);
        }
    }
}

/// Moves whole pieces, each from or to one block of memory, `left` at most. Returns their number.
///
/// # Safety
/// As for [`copy_pieces`].
#[inline]
unsafe fn whole_pieces(
    direction: Direction,
    sides: &Pieces,
    bytes: u64,
    left: u64,
    blocks: &StridedRun,
    memory: &mut StridedRuns<'_>,
) -> u64 {
    if blocks.bytes == bytes {
        let count = left.min(blocks.count);
        // SAFETY: the caller's promise.
        unsafe { sides.copy(direction, blocks.stride_bytes, bytes as usize, count as usize) };
        memory.advance_blocks(count);
        return count;
    }
    let count = left.min(blocks.bytes / bytes);
    // SAFETY: the caller's promise.
    unsafe { sides.copy(direction, bytes as i64, bytes as usize, count as usize) };
    memory.advance_bytes(count * bytes);
    count
}

/// Moves blocks of memory, or a part of one, from or to adjacent bytes of a piece that has room for `room`.
/// Returns the number of bytes.
///
/// # Safety
/// As for [`copy_pieces`].
#[inline]
unsafe fn within_piece(
    direction: Direction,
    sides: &Pieces,
    room: u64,
    blocks: &StridedRun,
    memory: &mut StridedRuns<'_>,
) -> u64 {
    if blocks.bytes > room {
        // SAFETY: the caller's promise.
        unsafe { sides.copy(direction, 0, room as usize, 1) };
        memory.advance_bytes(room);
        return room;
    }
    let count = blocks.count.min(room / blocks.bytes);
    // SAFETY: the caller's promise.
    unsafe { sides.copy(direction, blocks.stride_bytes, blocks.bytes as usize, count as usize) };
    memory.advance_blocks(count);
    count * blocks.bytes
}
