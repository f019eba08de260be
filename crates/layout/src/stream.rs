//! The I/O stream: what one server must do for one request.
//!
//! The bytes of a request that live on one server, in request order, are its *share*: PVFS's I/O stream, the
//! intersection of stripe and partition (Carns et al. 2000, section 3.2 and Figure 2). Client and server
//! compute it independently, from the layout and the regions alone, and so agree on it without a word more on
//! the wire.
//!
//! ```text
//!   two slots, strips of 8; one extent of 24 bytes at 4
//!
//!   logical file     0       8       16      24      32
//!   strips           | slot0 | slot1 | slot0 | slot1 |
//!   request              ########################
//!   request stream       0   4       12      20  24
//!
//!   pieces of slot 0     ####        ########               stream 0 and 12, share 0 and 4, local 4 and 8
//!   its local runs       ############                       one: share 0, local 4, 12 bytes: one pread
//!   its stream runs      ####        ########               two: where the share lies in the request stream
//! ```
//!
//! Four views of one share, all lazy and without allocation per item:
//!
//! - [`pieces`]: strip by strip, with all three positions;
//! - [`local_runs`]: joined where adjacent in the data file: what the server reads or writes;
//! - [`stream_runs`]: joined where adjacent in the request stream;
//! - [`memory_runs`]: where the share lies in the client's memory: what the transport gathers or scatters.
//!
//! The `*_from` forms begin in the middle of a share. A contiguous extent costs O(1) for local runs and O(own
//! strips) for the others, whatever is between its own strips.
//!
//! ```
//! use weft_layout::{Extent, Layout, LocalRun, Regions, local_runs, memory_runs, share_bytes};
//!
//! let layout = Layout::new(4096, 0, 2, 2)?;
//! let file = Regions::contiguous(2048, 3 * 4096);
//! let memory = Regions::contiguous(0, 3 * 4096);
//!
//! assert_eq!(share_bytes(&layout, 0, &file), 2048 + 4096);
//! let runs: Vec<LocalRun> = local_runs(&layout, 0, &file).collect();
//! assert_eq!(runs, [LocalRun { share_offset: 0, local_offset: 2048, bytes: 2048 + 4096 }]);
//! let pieces: Vec<Extent> = memory_runs(&layout, 0, &file, &memory)?.collect();
//! assert_eq!(pieces, [Extent::new(0, 2048), Extent::new(2048 + 4096, 4096)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Regions must have passed [`Regions::validate`]. A slot outside the layout owns nothing.

use thiserror::Error;

use crate::extents::Cursor;
use crate::joined::{Joined, Run};
use crate::region::{Extent, Regions};
use crate::striping::Layout;

/// Adjacent bytes of a request within one strip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Position in the whole request.
    pub stream_offset: u64,
    /// Position in this slot's share.
    pub share_offset: u64,
    /// Position in this slot's data file.
    pub local_offset: u64,
    /// Length.
    pub bytes: u64,
}

/// Bytes of a share that are adjacent in the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalRun {
    /// Position in this slot's share.
    pub share_offset: u64,
    /// Position in this slot's data file.
    pub local_offset: u64,
    /// Length.
    pub bytes: u64,
}

/// Bytes of a share that are adjacent in the request stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRun {
    /// Position in this slot's share.
    pub share_offset: u64,
    /// Position in the whole request.
    pub stream_offset: u64,
    /// Length.
    pub bytes: u64,
}

/// Why file and memory regions do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StreamError {
    /// One side has more bytes than the other.
    #[error(
        "file regions of {file_bytes} bytes with memory regions of {memory_bytes}: both must be the same size"
    )]
    SizeMismatch {
        /// Bytes in the file regions.
        file_bytes: u64,
        /// Bytes in the memory regions.
        memory_bytes: u64,
    },
}

/// The share of `slot`, strip by strip, in request order.
pub fn pieces<'a>(layout: &Layout, slot: u16, regions: &'a Regions) -> Pieces<'a> {
    pieces_from(layout, slot, regions, 0)
}

/// [`pieces`] from position `share_offset` of the share on.
pub fn pieces_from<'a>(layout: &Layout, slot: u16, regions: &'a Regions, share_offset: u64) -> Pieces<'a> {
    Pieces {
        layout: *layout,
        slot,
        blocks: OwnBlocks::from(layout, slot, regions, share_offset),
        current: None,
    }
}

/// The share of `slot` in the longest runs that are adjacent in its data file.
pub fn local_runs<'a>(layout: &Layout, slot: u16, regions: &'a Regions) -> LocalRuns<'a> {
    local_runs_from(layout, slot, regions, 0)
}

/// [`local_runs`] from position `share_offset` of the share on.
pub fn local_runs_from<'a>(
    layout: &Layout,
    slot: u16,
    regions: &'a Regions,
    share_offset: u64,
) -> LocalRuns<'a> {
    LocalRuns(Joined::new(OwnBlocks::from(layout, slot, regions, share_offset)))
}

/// The share of `slot` in the longest runs that are adjacent in the request stream.
pub fn stream_runs<'a>(layout: &Layout, slot: u16, regions: &'a Regions) -> StreamRuns<'a> {
    stream_runs_from(layout, slot, regions, 0)
}

/// [`stream_runs`] from position `share_offset` of the share on.
pub fn stream_runs_from<'a>(
    layout: &Layout,
    slot: u16,
    regions: &'a Regions,
    share_offset: u64,
) -> StreamRuns<'a> {
    if layout.server_count() > 1 || slot > 0 {
        return StreamRuns(Joined::new(pieces_from(layout, slot, regions, share_offset)));
    }
    let nothing_more = Pieces {
        layout: *layout,
        slot,
        blocks: OwnBlocks::over(layout, slot, Cursor::empty()),
        current: None,
    };
    StreamRuns(match regions.total_bytes().saturating_sub(share_offset) {
        0 => Joined::new(nothing_more),
        bytes => {
            let whole_request = StreamRun { share_offset, stream_offset: share_offset, bytes };
            Joined::starting_with(whole_request, nothing_more)
        }
    })
}

/// Where the share of `slot` lies in the memory that `memory` describes, in share order and in the longest
/// runs. Offsets are memory's. Byte `n` of the request stream is byte `n` of both `file` and `memory`.
pub fn memory_runs<'a>(
    layout: &Layout,
    slot: u16,
    file: &'a Regions,
    memory: &'a Regions,
) -> Result<MemoryRuns<'a>, StreamError> {
    memory_runs_from(layout, slot, file, memory, 0)
}

/// [`memory_runs`] from position `share_offset` of the share on.
pub fn memory_runs_from<'a>(
    layout: &Layout,
    slot: u16,
    file: &'a Regions,
    memory: &'a Regions,
    share_offset: u64,
) -> Result<MemoryRuns<'a>, StreamError> {
    let (file_bytes, memory_bytes) = (file.total_bytes(), memory.total_bytes());
    if file_bytes != memory_bytes {
        return Err(StreamError::SizeMismatch { file_bytes, memory_bytes });
    }
    let share = stream_runs_from(layout, slot, file, share_offset);
    Ok(MemoryRuns(Joined::new(MemoryBlocks { share, run: None, memory: Cursor::new(memory) })))
}

/// How many bytes of the request live on `slot`. O(1) for a contiguous extent.
pub fn share_bytes(layout: &Layout, slot: u16, regions: &Regions) -> u64 {
    if layout.server_count() == 1 && slot == 0 {
        return regions.total_bytes();
    }
    OwnBlocks::from(layout, slot, regions, 0).map(|block| block.bytes).sum()
}

/// Whether any byte of the request lives on `slot`.
pub fn share_has(layout: &Layout, slot: u16, regions: &Regions) -> bool {
    OwnBlocks::from(layout, slot, regions, 0).next().is_some()
}

/// The part of one block of the request that is on one slot. Its bytes are adjacent in the data file, since
/// what is between them in the file is on other slots.
#[derive(Debug, Clone, Copy)]
struct OwnBlock {
    share_offset: u64,
    local_offset: u64,
    bytes: u64,
    /// Adding this to a logical offset within the block gives its position in the stream (modulo 2^64).
    stream_minus_logical: u64,
}

/// The blocks of a request that have bytes on one slot.
#[derive(Debug, Clone)]
struct OwnBlocks<'a> {
    layout: Layout,
    slot: u16,
    cursor: Cursor<'a>,
    share_offset: u64,
    /// A first block that was cut to begin in the middle of the share.
    first: Option<OwnBlock>,
    strip: OwnStrip,
}

/// The strip of the slot that the last block ended in: most small blocks begin in it too, which saves the
/// divisions.
#[derive(Debug, Clone, Copy)]
struct OwnStrip {
    logical: u64,
    end: u64,
    local: u64,
}

impl<'a> OwnBlocks<'a> {
    fn over(layout: &Layout, slot: u16, cursor: Cursor<'a>) -> OwnBlocks<'a> {
        let strip = OwnStrip { logical: 0, end: 0, local: 0 };
        OwnBlocks { layout: *layout, slot, cursor, share_offset: 0, first: None, strip }
    }

    fn from(layout: &Layout, slot: u16, regions: &'a Regions, share_offset: u64) -> OwnBlocks<'a> {
        if slot >= layout.server_count() {
            return OwnBlocks::over(layout, slot, Cursor::empty());
        }
        let mut blocks = OwnBlocks::over(layout, slot, Cursor::new(regions));
        if share_offset > 0 {
            blocks.first = blocks.by_ref().find(|block| block.share_offset + block.bytes > share_offset);
        }
        if let Some(first) = &mut blocks.first {
            let skipped = share_offset - first.share_offset;
            first.share_offset += skipped;
            first.local_offset += skipped;
            first.bytes -= skipped;
        }
        blocks
    }

    /// Local offset and number of the slot's bytes in `block`.
    fn own(&mut self, block: Extent) -> (u64, u64) {
        if block.offset >= self.strip.logical && block.end() <= self.strip.end {
            return (self.strip.local + (block.offset - self.strip.logical), block.bytes);
        }
        let local = self.layout.local_size(self.slot, block.offset);
        let bytes = self.layout.local_size(self.slot, block.end()) - local;
        if let Some(last) = (local + bytes).checked_sub(1) {
            let strip_bytes = u64::from(self.layout.strip_bytes());
            let strip_local = last - last % strip_bytes;
            let logical = self.layout.logical_offset(self.slot, strip_local);
            self.strip = OwnStrip { logical, end: logical + strip_bytes, local: strip_local };
        }
        (local, bytes)
    }
}

impl Iterator for OwnBlocks<'_> {
    type Item = OwnBlock;

    fn next(&mut self) -> Option<OwnBlock> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            let block = self.cursor.block()?;
            let stream_minus_logical = self.cursor.stream_offset().wrapping_sub(block.offset);
            let (local_offset, bytes) = self.own(block);
            if bytes == 0 {
                let next_strip = self.layout.logical_offset(self.slot, local_offset);
                let others_bytes = self.layout.stripe_bytes() - u64::from(self.layout.strip_bytes());
                self.cursor.skip_in(next_strip.saturating_sub(others_bytes)..next_strip);
                continue;
            }
            let share_offset = self.share_offset;
            self.share_offset += bytes;
            self.cursor.advance();
            return Some(OwnBlock { share_offset, local_offset, bytes, stream_minus_logical });
        }
    }
}

/// Iterator of [`pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    layout: Layout,
    slot: u16,
    blocks: OwnBlocks<'a>,
    /// What is left of the current block.
    current: Option<OwnBlock>,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let block = match self.current.take() {
            Some(block) => block,
            None => self.blocks.next()?,
        };
        let strip_bytes = u64::from(self.layout.strip_bytes());
        let logical_offset = self.layout.logical_offset(self.slot, block.local_offset);
        let bytes = block.bytes.min(strip_bytes - block.local_offset % strip_bytes);
        if bytes < block.bytes {
            self.current = Some(OwnBlock {
                share_offset: block.share_offset + bytes,
                local_offset: block.local_offset + bytes,
                bytes: block.bytes - bytes,
                ..block
            });
        }
        Some(Piece {
            stream_offset: logical_offset.wrapping_add(block.stream_minus_logical),
            share_offset: block.share_offset,
            local_offset: block.local_offset,
            bytes,
        })
    }
}

/// Iterator of [`local_runs`].
#[derive(Debug, Clone)]
pub struct LocalRuns<'a>(Joined<OwnBlocks<'a>, LocalRun>);

impl LocalRuns<'_> {
    /// The next run, or its first `max_bytes` bytes if it is longer; the rest comes next. This is how a share
    /// is cut into units. `None` at the end, and for a `max_bytes` of 0.
    pub fn next_at_most(&mut self, max_bytes: u64) -> Option<LocalRun> {
        self.0.next_at_most(max_bytes)
    }
}

impl Iterator for LocalRuns<'_> {
    type Item = LocalRun;

    fn next(&mut self) -> Option<LocalRun> {
        self.0.next_run()
    }
}

impl From<OwnBlock> for LocalRun {
    fn from(block: OwnBlock) -> LocalRun {
        LocalRun { share_offset: block.share_offset, local_offset: block.local_offset, bytes: block.bytes }
    }
}

impl Run for LocalRun {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn join(&mut self, next: &LocalRun) -> bool {
        let touches = self.local_offset + self.bytes == next.local_offset;
        if touches {
            self.bytes += next.bytes;
        }
        touches
    }

    fn split_front(&mut self, bytes: u64) -> LocalRun {
        let front = LocalRun { bytes, ..*self };
        self.share_offset += bytes;
        self.local_offset += bytes;
        self.bytes -= bytes;
        front
    }
}

/// Iterator of [`stream_runs`].
#[derive(Debug, Clone)]
pub struct StreamRuns<'a>(Joined<Pieces<'a>, StreamRun>);

impl StreamRuns<'_> {
    /// The next run, or its first `max_bytes` bytes if it is longer; the rest comes next. `None` at the end,
    /// and for a `max_bytes` of 0.
    pub fn next_at_most(&mut self, max_bytes: u64) -> Option<StreamRun> {
        self.0.next_at_most(max_bytes)
    }
}

impl Iterator for StreamRuns<'_> {
    type Item = StreamRun;

    fn next(&mut self) -> Option<StreamRun> {
        self.0.next_run()
    }
}

impl From<Piece> for StreamRun {
    fn from(piece: Piece) -> StreamRun {
        StreamRun { share_offset: piece.share_offset, stream_offset: piece.stream_offset, bytes: piece.bytes }
    }
}

impl Run for StreamRun {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn join(&mut self, next: &StreamRun) -> bool {
        let touches = self.stream_offset + self.bytes == next.stream_offset;
        if touches {
            self.bytes += next.bytes;
        }
        touches
    }

    fn split_front(&mut self, bytes: u64) -> StreamRun {
        let front = StreamRun { bytes, ..*self };
        self.share_offset += bytes;
        self.stream_offset += bytes;
        self.bytes -= bytes;
        front
    }
}

/// Iterator of [`memory_runs`].
#[derive(Debug, Clone)]
pub struct MemoryRuns<'a>(Joined<MemoryBlocks<'a>, Extent>);

impl MemoryRuns<'_> {
    /// The next run, or its first `max_bytes` bytes if it is longer; the rest comes next. `None` at the end,
    /// and for a `max_bytes` of 0.
    pub fn next_at_most(&mut self, max_bytes: u64) -> Option<Extent> {
        self.0.next_at_most(max_bytes)
    }
}

impl Iterator for MemoryRuns<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        self.0.next_run()
    }
}

/// The memory of a share, block by block.
#[derive(Debug, Clone)]
struct MemoryBlocks<'a> {
    share: StreamRuns<'a>,
    /// What is left of the current run of the share.
    run: Option<StreamRun>,
    memory: Cursor<'a>,
}

impl Iterator for MemoryBlocks<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let mut run = match self.run.take() {
            Some(run) => run,
            None => self.share.next()?,
        };
        self.memory.advance_bytes(run.stream_offset - self.memory.stream_offset());
        let block = self.memory.block()?;
        let bytes = block.bytes.min(run.bytes);
        run.split_front(bytes);
        if run.bytes > 0 {
            self.run = Some(run);
        }
        Some(Extent { offset: block.offset, bytes })
    }
}
