//! The I/O stream: the part of a request that one server does.
//!
//! The bytes of a request on one server, in request order, are its *share*: PVFS's I/O stream, the
//! intersection of stripe and partition (PVFS 3.2, figure 2). Client and server compute it independently,
//! from the layout and the regions alone. So they agree on it without any further exchange.
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
//!   its stream runs      ####        ########               two: the share's places in the request stream
//! ```
//!
//! There are four iterators over a share. They are lazy and allocate nothing per item:
//!
//! - [`pieces`]: strip by strip, with all three positions;
//! - [`local_runs`]: joined where adjacent in the data file, for the server's reads and writes;
//! - [`stream_runs`]: joined where adjacent in the request stream;
//! - [`memory_runs`]: the share's places in the client's memory, for the transport to gather or scatter.
//!
//! The `*_from` forms start in the middle of a share. For a contiguous extent, local runs cost O(1) and the
//! others O(own strips), whatever is between the own strips.
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
//! Regions must be valid ([`Regions::validate`]). A slot outside the layout owns nothing.

use thiserror::Error;

use crate::extents::Cursor;
use crate::joined::{Joined, Run};
use crate::own_blocks::{OutOfSteps, OwnBlock, OwnBlocks};
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

/// Why file and memory regions do not match.
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

/// The memory of the share of `slot`, in share order and in the longest runs. Offsets are those of `memory`.
/// Byte `n` of the request stream is byte `n` of both `file` and `memory`.
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

/// Iterator of [`pieces`].
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    layout: Layout,
    slot: u16,
    blocks: OwnBlocks<'a>,
    /// The rest of the current block.
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

/// An iterator of runs of a share that are adjacent on one number line, which `$offset` counts.
macro_rules! joined_runs {
    ($runs:ident: $run:ident of $block:ident, $offset:ident) => {
        impl Iterator for $runs<'_> {
            type Item = $run;

            fn next(&mut self) -> Option<$run> {
                self.0.next_run()
            }
        }

        impl From<$block> for $run {
            fn from(block: $block) -> $run {
                $run { share_offset: block.share_offset, $offset: block.$offset, bytes: block.bytes }
            }
        }

        impl Run for $run {
            fn bytes(&self) -> u64 {
                self.bytes
            }

            fn join(&mut self, next: &$run) -> bool {
                let touches = self.$offset + self.bytes == next.$offset;
                if touches {
                    self.bytes += next.bytes;
                }
                touches
            }

            fn split_front(&mut self, bytes: u64) -> $run {
                let front = $run { bytes, ..*self };
                self.share_offset += bytes;
                self.$offset += bytes;
                self.bytes -= bytes;
                front
            }
        }
    };
}

/// Iterator of [`local_runs`].
#[derive(Debug, Clone)]
pub struct LocalRuns<'a>(Joined<OwnBlocks<'a>, LocalRun>);

impl LocalRuns<'_> {
    /// The next run, or its first `max_bytes` bytes if it is longer; the rest comes next. A share is cut into
    /// units in this way. `None` at the end, and for a `max_bytes` of 0.
    pub fn next_at_most(&mut self, max_bytes: u64) -> Option<LocalRun> {
        self.0.next_at_most(max_bytes)
    }

    /// As [`LocalRuns::next_at_most`], but examines at most `steps` blocks of the request, and counts them
    /// down: a request may have very many blocks between two of this slot.
    ///
    /// # Errors
    /// `steps` is 0 before the run is found. The next call continues the search.
    pub fn next_within(&mut self, max_bytes: u64, steps: &mut u32) -> Result<Option<LocalRun>, OutOfSteps> {
        self.0.next_with(max_bytes, |blocks| blocks.next_within(steps))
    }
}

joined_runs!(LocalRuns: LocalRun of OwnBlock, local_offset);

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

joined_runs!(StreamRuns: StreamRun of Piece, stream_offset);

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
    /// The rest of the current run of the share.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_search_in_steps_finds_the_same_runs() {
        let layout = Layout::new(4096, 0, 3, 3).unwrap();
        let levels = vec![Level { count: 40, stride_bytes: 1 << 16 }, Level { count: 70, stride_bytes: 100 }];
        let list: Vec<Extent> = (0..90).map(|at| Extent::new(at * 1777 % 50_000, at % 13)).collect();
        let all = [Regions::contiguous(5, 100_000), Regions::strided(300, 100, levels), Regions::list(list)];
        for (regions, slot) in all.iter().flat_map(|regions| (0..4).map(move |slot| (regions, slot))) {
            for bytes_max in [50, 3000, u64::MAX] {
                let (mut at_once, mut in_steps) =
                    (local_runs(&layout, slot, regions), local_runs(&layout, slot, regions));
                loop {
                    let mut turns = 0..100_000;
                    let found = turns.find_map(|turn| in_steps.next_within(bytes_max, &mut (turn % 3)).ok());
                    let expected = at_once.next_at_most(bytes_max);
                    assert_eq!(found, Some(expected));
                    if expected.is_none() {
                        break;
                    }
                }
            }
        }
    }
}
