//! The access patterns of the papers' measurements. Pure.
//!
//! ```text
//!   tile, 2 × 2    block-column, 4 ranks   quadrants    multipartition, q = 2 (slabs z = 0 and z = 1)
//!   0 0 0 1 1 1    0 1 2 3                 0 0 1 1      0 1     3 2    rank 0: cells (0,0,0), (1,1,1)
//!   0 0 0 1 1 1    0 1 2 3                 0 0 1 1      2 3     1 0
//!   2 2 2 3 3 3    0 1 2 3                 2 2 3 3
//!   2 2 2 3 3 3    0 1 2 3                 2 2 3 3
//! ```
//!
//! Each rank has one buffer. An access maps parts of it to parts of the file. If a pattern covers its file,
//! the pieces of all ranks are every byte of it exactly once, so the data that all ranks read is all data
//! that was written.

use serde::{Deserialize, Serialize};
use weft_bench_args::Side;
use weft_layout::{Extent, Extents, Level, Order, Regions};

/// Bytes of a point of the BT benchmark: five doubles.
const POINT_BYTES: u64 = 40;
/// Ghost points around each cell, which its neighbours own; the BT benchmark keeps them in memory.
const GHOSTS: u64 = 2;

/// A pattern with a name.
#[derive(Debug, Clone)]
pub struct Case {
    /// A short name, for the chart's axis.
    pub name: String,
    /// The access pattern.
    pub pattern: Pattern,
}

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Tiles of a frame whose rows are stored one after the other (mpi-tile-io; NC 6.6, IB 6.7 and 6.8). With
    /// noncontiguous memory each rank has memory for the whole frame and uses its tile of it.
    Tile { grid: [u64; 2], rows: u64, columns: u64, element_bytes: u64, memory: Side },
    /// A square array of 4-byte integers; each rank has the same number of columns (NC 6.5, figure 5).
    BlockColumn { ranks: u64, size: u64 },
    /// Pieces of memory, every second one, to one place in the file; repeated for consecutive places (NC
    /// 6.3).
    Pieces { ranks: u64, pieces: u64, piece_bytes: u64, steps: u64 },
    /// Each of four ranks has a square array of 4-byte integers in memory and uses a quarter of it: to one
    /// place in the file (NC 6.4), or to its quarter of such an array in the file.
    Quadrants { size: u64, file: Side },
    /// One rank's first quarter of a square array of 4-byte integers in memory, to one place in the file (NC
    /// 4.1).
    Quarter { size: u64 },
    /// Calls of one rank, consecutive in memory and in the file.
    Sequence { calls: u64, call_bytes: u64 },
    /// Blocks of one size, assigned to the ranks in turn (Q 4.1).
    Blocks { ranks: u64, blocks: u64, block_bytes: u64 },
    /// Consecutive solutions of the BT benchmark: `cells`² ranks with `cells` cells each, of a cube of
    /// `points`³ points (NC 6.7; NPB's BTIO).
    Multipartition { cells: u64, points: u64, solutions: u64 },
    /// Pieces at random places of a file, none twice.
    Random { ranks: u64, pieces: u64, piece_bytes: u64, file_bytes: u64, seed: u64 },
}

/// One call: equal parts of the rank's buffer and of the file, in the same order.
#[derive(Debug, Clone)]
pub struct Access {
    /// Offsets in the buffer.
    pub memory: Regions,
    /// Offsets in the file.
    pub file: Regions,
}

/// The calls of a rank.
#[derive(Debug, Clone)]
pub struct Program {
    /// Size of its buffer.
    pub memory_bytes: u64,
    /// Its calls, in order.
    pub accesses: Vec<Access>,
}

impl Pattern {
    /// Number of processes.
    pub fn ranks(&self) -> usize {
        let ranks = match *self {
            Pattern::Tile { grid, .. } => grid[0] * grid[1],
            Pattern::Quadrants { .. } => 4,
            Pattern::Quarter { .. } | Pattern::Sequence { .. } => 1,
            Pattern::Multipartition { cells, .. } => cells * cells,
            Pattern::BlockColumn { ranks, .. }
            | Pattern::Pieces { ranks, .. }
            | Pattern::Blocks { ranks, .. }
            | Pattern::Random { ranks, .. } => ranks,
        };
        ranks as usize
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        match *self {
            Pattern::Random { file_bytes, .. } => file_bytes,
            _ => self.bytes(),
        }
    }

    /// Bytes that all ranks together move.
    pub fn bytes(&self) -> u64 {
        match *self {
            Pattern::Tile { grid, rows, columns, element_bytes, .. } => {
                grid[0] * grid[1] * rows * columns * element_bytes
            }
            Pattern::BlockColumn { size, .. } | Pattern::Quadrants { size, .. } => 4 * size * size,
            Pattern::Quarter { size } => size * size,
            Pattern::Sequence { calls, call_bytes } => calls * call_bytes,
            Pattern::Pieces { ranks, pieces, piece_bytes, steps } => ranks * pieces * piece_bytes * steps,
            Pattern::Blocks { ranks, blocks, block_bytes } => ranks * blocks * block_bytes,
            Pattern::Multipartition { points, solutions, .. } => points.pow(3) * POINT_BYTES * solutions,
            Pattern::Random { ranks, pieces, piece_bytes, .. } => ranks * pieces * piece_bytes,
        }
    }

    /// Pieces of all ranks: contiguous both in memory and in the file.
    pub fn pieces(&self) -> u64 {
        match *self {
            Pattern::Tile { grid, rows, .. } => grid[0] * grid[1] * rows,
            Pattern::BlockColumn { ranks, size } => ranks * size,
            Pattern::Pieces { ranks, pieces, steps, .. } => ranks * pieces * steps,
            Pattern::Quadrants { size, .. } => 4 * (size / 2),
            Pattern::Quarter { size } => size / 2,
            Pattern::Sequence { calls, .. } => calls,
            Pattern::Blocks { ranks, blocks, .. } => ranks * blocks,
            Pattern::Multipartition { cells, points, solutions } => cells * points * points * solutions,
            Pattern::Random { ranks, pieces, .. } => ranks * pieces,
        }
    }

    /// Whether the pieces of all ranks are all of the file.
    pub fn covers_file(&self) -> bool {
        self.file_bytes() == self.bytes()
    }

    /// The same with about this many pieces per rank at most, if a part of the pattern can be measured.
    pub fn at_most(&self, pieces_max: u64) -> Pattern {
        match self.clone() {
            Pattern::Random { ranks, pieces, piece_bytes, file_bytes, seed } => {
                Pattern::Random { ranks, pieces: pieces.min(pieces_max), piece_bytes, file_bytes, seed }
            }
            Pattern::Pieces { ranks, pieces, piece_bytes, steps } => {
                let steps = steps.min(pieces_max / pieces.max(1)).max(1);
                Pattern::Pieces { ranks, pieces, piece_bytes, steps }
            }
            other => other,
        }
    }

    /// The calls of a rank.
    pub fn program(&self, rank: usize) -> Program {
        let rank = rank as u64;
        match *self {
            Pattern::Tile { grid, rows, columns, element_bytes, memory } => {
                let frame = Square {
                    dims: [grid[0] * rows, grid[1] * columns],
                    starts: [rank / grid[1] * rows, rank % grid[1] * columns],
                    counts: [rows, columns],
                    element_bytes,
                };
                frame.program(memory, Side::Noncontiguous, 0)
            }
            Pattern::BlockColumn { ranks, size } => {
                let columns = Square {
                    dims: [size, size],
                    starts: [0, rank * (size / ranks)],
                    counts: [size, size / ranks],
                    element_bytes: 4,
                };
                columns.program(Side::Contiguous, Side::Noncontiguous, 0)
            }
            Pattern::Quadrants { size, file } => {
                let half = size / 2;
                let quadrant = Square {
                    dims: [size, size],
                    starts: [rank / 2 * half, rank % 2 * half],
                    counts: [half, half],
                    element_bytes: 4,
                };
                quadrant.program(Side::Noncontiguous, file, rank * half * half * 4)
            }
            Pattern::Quarter { size } => Pattern::Quadrants { size, file: Side::Contiguous }.program(0),
            Pattern::Sequence { calls, call_bytes } => {
                let part = |call: u64| Regions::contiguous(call * call_bytes, call_bytes);
                let access = |call| Access { memory: part(call), file: part(call) };
                Program { memory_bytes: calls * call_bytes, accesses: (0..calls).map(access).collect() }
            }
            Pattern::Pieces { ranks, pieces, piece_bytes, steps } => {
                pieces_program(ranks, rank, pieces, piece_bytes, steps)
            }
            Pattern::Blocks { ranks, blocks, block_bytes } => {
                let level = Level { count: blocks, stride_bytes: (ranks * block_bytes) as i64 };
                let bytes = blocks * block_bytes;
                let file = Regions::strided(rank * block_bytes, block_bytes, [level]);
                Program::single(bytes, Regions::contiguous(0, bytes), file)
            }
            Pattern::Multipartition { cells, points, solutions } => {
                multipartition(cells, points, solutions, rank)
            }
            Pattern::Random { pieces, piece_bytes, file_bytes, seed, .. } => {
                let places = Shuffle { count: file_bytes / piece_bytes, seed };
                let piece = |index| Extent::new(places.at(index) * piece_bytes, piece_bytes);
                let bytes = pieces * piece_bytes;
                let extents: Vec<_> = (rank * pieces..(rank + 1) * pieces).map(piece).collect();
                Program::single(bytes, Regions::contiguous(0, bytes), Regions::list(extents))
            }
        }
    }
}

/// A rank's part of an array of two dimensions.
struct Square {
    dims: [u64; 2],
    starts: [u64; 2],
    counts: [u64; 2],
    element_bytes: u64,
}

impl Square {
    /// The program of a part. `place` is the file offset of a part that is in one piece in the file.
    fn program(&self, memory: Side, file: Side, place: u64) -> Program {
        let bytes = self.counts[0] * self.counts[1] * self.element_bytes;
        let all_bytes = self.dims[0] * self.dims[1] * self.element_bytes;
        let part = || Regions::subarray(0, self.dims, self.starts, self.counts, self.element_bytes, Order::C);
        let (memory_bytes, memory) = match memory {
            Side::Contiguous => (bytes, Regions::contiguous(0, bytes)),
            Side::Noncontiguous => (all_bytes, part()),
        };
        let file = match file {
            Side::Contiguous => Regions::contiguous(place, bytes),
            Side::Noncontiguous => part(),
        };
        Program::single(memory_bytes, memory, file)
    }
}

impl Program {
    fn single(memory_bytes: u64, memory: Regions, file: Regions) -> Program {
        Program { memory_bytes, accesses: vec![Access { memory, file }] }
    }
}

fn pieces_program(ranks: u64, rank: u64, pieces: u64, piece_bytes: u64, steps: u64) -> Program {
    let (bytes, stride_bytes) = (pieces * piece_bytes, 2 * piece_bytes);
    let access = |step: u64| Access {
        memory: Regions::strided(
            step * pieces * stride_bytes,
            piece_bytes,
            [Level { count: pieces, stride_bytes: stride_bytes as i64 }],
        ),
        file: Regions::contiguous((step * ranks + rank) * bytes, bytes),
    };
    Program { memory_bytes: steps * pieces * stride_bytes, accesses: (0..steps).map(access).collect() }
}

/// Cells of the multipartition scheme, as NPB's `make_set` assigns them: from slab to slab of z one further
/// in x and one back in y.
fn multipartition(cells: u64, points: u64, solutions: u64, rank: u64) -> Program {
    let size = |index: u64| points / cells + u64::from(index < points % cells);
    let start = |index: u64| index * (points / cells) + index.min(points % cells);
    let mut accesses = Vec::new();
    let mut memory_bytes = 0;
    for solution in 0..solutions {
        let mut access = Access { memory: Regions::default(), file: Regions::default() };
        for z in 0..cells {
            let (x, y) = ((rank % cells + z) % cells, (rank / cells + cells - z) % cells);
            let cell = [z, y, x];
            let counts = cell.map(size).to_vec();
            let dims: Vec<_> = counts.iter().map(|count| count + 2 * GHOSTS).collect();
            let cell_bytes = dims.iter().product::<u64>() * POINT_BYTES;
            let starts = [GHOSTS; 3].to_vec();
            let memory = Regions::subarray(memory_bytes, dims, starts, counts.clone(), POINT_BYTES, Order::C);
            let file = Regions::subarray(
                solution * points.pow(3) * POINT_BYTES,
                [points; 3],
                cell.map(start),
                counts,
                POINT_BYTES,
                Order::C,
            );
            access = Access { memory: access.memory.then(memory), file: access.file.then(file) };
            memory_bytes += cell_bytes;
        }
        accesses.push(access);
    }
    Program { memory_bytes, accesses }
}

/// A permutation of the numbers below `count`: four rounds of a Feistel network over the next power of four,
/// repeated until the result is below `count`.
pub struct Shuffle {
    /// How many numbers.
    pub count: u64,
    /// Another permutation for each.
    pub seed: u64,
}

impl Shuffle {
    /// Where `index`, which is below `count`, goes.
    pub fn at(&self, index: u64) -> u64 {
        let half_bits = (64 - (self.count.max(2) - 1).leading_zeros()).div_ceil(2);
        let mask = (1 << half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> half_bits, value & mask);
            for round in 0..4 {
                let mixed = mix(mix(self.seed << 8 | round) ^ right);
                (left, right) = (right, left ^ (mixed & mask));
            }
            value = left << half_bits | right;
            if value < self.count {
                return value;
            }
        }
    }
}

/// Mixes a value: every bit of the result depends on every bit of the value.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 29).wrapping_mul(0xd1b5_4a32_d192_ed03);
    value ^ value >> 32
}

/// A part of an access that is contiguous on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Both {
    /// Its offset in memory.
    pub memory_offset: u64,
    /// Its offset in the file.
    pub file_offset: u64,
    /// Its size.
    pub bytes: u64,
}

/// The parts of an access that are contiguous on both sides, in order.
pub struct BothSides<'a> {
    memory: Extents<'a>,
    file: Extents<'a>,
    here: [Extent; 2],
}

impl Access {
    /// The parts that are contiguous on both sides.
    pub fn both_sides(&self) -> BothSides<'_> {
        BothSides {
            memory: self.memory.extents(),
            file: self.file.extents(),
            here: [Extent::default(), Extent::default()],
        }
    }
}

impl Iterator for BothSides<'_> {
    type Item = Both;

    fn next(&mut self) -> Option<Both> {
        let [memory, file] = &mut self.here;
        if memory.bytes == 0 {
            *memory = self.memory.next()?;
        }
        if file.bytes == 0 {
            *file = self.file.next()?;
        }
        let bytes = memory.bytes.min(file.bytes);
        let both = Both { memory_offset: memory.offset, file_offset: file.offset, bytes };
        for side in &mut self.here {
            *side = Extent::new(side.offset + bytes, side.bytes - bytes);
        }
        Some(both)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_pieces(pattern: &Pattern, rank: usize) -> Vec<(u64, u64)> {
        let program = pattern.program(rank);
        let extents = program.accesses.iter().flat_map(|access| access.file.extents().collect::<Vec<_>>());
        extents.map(|extent| (extent.offset, extent.bytes)).collect()
    }

    fn all() -> Vec<Pattern> {
        let tile = |memory| Pattern::Tile { grid: [2, 2], rows: 3, columns: 5, element_bytes: 3, memory };
        let quadrants = |file| Pattern::Quadrants { size: 8, file };
        vec![
            tile(Side::Contiguous),
            tile(Side::Noncontiguous),
            Pattern::BlockColumn { ranks: 4, size: 16 },
            Pattern::Pieces { ranks: 4, pieces: 7, piece_bytes: 5, steps: 3 },
            quadrants(Side::Contiguous),
            quadrants(Side::Noncontiguous),
            Pattern::Quarter { size: 8 },
            Pattern::Sequence { calls: 3, call_bytes: 100 },
            Pattern::Blocks { ranks: 3, blocks: 4, block_bytes: 100 },
            Pattern::Multipartition { cells: 2, points: 5, solutions: 2 },
            Pattern::Multipartition { cells: 3, points: 8, solutions: 1 },
            Pattern::Random { ranks: 2, pieces: 500, piece_bytes: 3, file_bytes: 3000, seed: 7 },
            Pattern::Random { ranks: 2, pieces: 40, piece_bytes: 3, file_bytes: 3000, seed: 7 },
        ]
    }

    #[test]
    fn all_ranks_together_have_every_byte_once() {
        for pattern in all() {
            let mut times = vec![0; pattern.file_bytes() as usize];
            let mut pieces = 0;
            for rank in 0..pattern.ranks() {
                let program = pattern.program(rank);
                let mut used = vec![0; program.memory_bytes as usize];
                for both in program.accesses.iter().flat_map(Access::both_sides) {
                    pieces += 1;
                    for byte in 0..both.bytes {
                        times[(both.file_offset + byte) as usize] += 1;
                        used[(both.memory_offset + byte) as usize] += 1;
                    }
                }
                assert!(used.iter().all(|times| *times <= 1), "{pattern:?}: memory twice");
                for access in &program.accesses {
                    assert_eq!(access.memory.total_bytes(), access.file.total_bytes(), "{pattern:?}");
                    access.memory.validate(256, 16).unwrap();
                    access.file.validate(256, 16).unwrap();
                }
            }
            assert_eq!(times.iter().sum::<u64>(), pattern.bytes(), "{pattern:?}");
            assert!(times.iter().all(|times| *times <= 1), "{pattern:?}: a byte twice");
            assert_eq!(pattern.covers_file(), times.iter().all(|times| *times == 1), "{pattern:?}");
            // Adjacent parts may touch.
            assert!(pieces <= pattern.pieces(), "{pattern:?}: {pieces} of {}", pattern.pieces());
        }
    }

    #[test]
    fn a_part_of_a_pattern_has_few_pieces() {
        for pattern in all() {
            let part = pattern.at_most(20);
            assert!(part.pieces() <= pattern.pieces() && part.ranks() == pattern.ranks());
            if matches!(part, Pattern::Random { .. } | Pattern::Pieces { .. }) {
                assert!(part.pieces() <= 20 * part.ranks() as u64, "{part:?}");
            } else {
                assert_eq!(part, pattern);
            }
        }
    }

    #[test]
    fn small_examples_are_as_drawn() {
        let tile =
            Pattern::Tile { grid: [2, 2], rows: 2, columns: 3, element_bytes: 3, memory: Side::Contiguous };
        assert_eq!(file_pieces(&tile, 0), [(0, 9), (18, 9)]);
        assert_eq!(file_pieces(&tile, 3), [(2 * 18 + 9, 9), (3 * 18 + 9, 9)]);
        let columns = Pattern::BlockColumn { ranks: 4, size: 8 };
        assert_eq!(file_pieces(&columns, 1)[..2], [(8, 8), (40, 8)]);
        let blocks = Pattern::Blocks { ranks: 4, blocks: 2, block_bytes: 100 };
        assert_eq!(file_pieces(&blocks, 2), [(200, 100), (600, 100)]);
        let pieces = Pattern::Pieces { ranks: 2, pieces: 3, piece_bytes: 4, steps: 2 };
        let program = pieces.program(1);
        let both: Vec<_> =
            program.accesses[1].both_sides().map(|both| (both.memory_offset, both.file_offset)).collect();
        assert_eq!(both, [(24, 36), (32, 40), (40, 44)]);
    }

    #[test]
    fn cells_are_dealt_out_as_in_npb() {
        // One point per cell, so that a rank's pieces are its cells: (x, y, z) is at 40 (x + 2 y + 4 z).
        let pattern = Pattern::Multipartition { cells: 2, points: 2, solutions: 1 };
        assert_eq!(file_pieces(&pattern, 0), [(0, 40), (40 * (1 + 2 + 4), 40)]);
        assert_eq!(file_pieces(&pattern, 1), [(40, 40), (40 * (2 + 4), 40)]);
        assert_eq!(file_pieces(&pattern, 2), [(80, 40), (40 * (1 + 4), 40)]);
        // 5 points to a 5 x 5 x 5 cell with its ghosts: the first row of the inner points begins at (2, 2,
        // 2).
        let program = Pattern::Multipartition { cells: 1, points: 1, solutions: 2 }.program(0);
        let both: Vec<_> = program.accesses.iter().flat_map(Access::both_sides).collect();
        assert_eq!(both[0], Both { memory_offset: 40 * (2 + 5 * (2 + 5 * 2)), file_offset: 0, bytes: 40 });
        assert_eq!((both[1].memory_offset, both[1].file_offset), (40 * (125 + 62), 40));
    }

    #[test]
    fn a_shuffle_has_no_order_and_no_number_twice() {
        for count in [1, 2, 3, 100, 1000, 4096] {
            let shuffle = Shuffle { count, seed: 3 };
            let mut numbers: Vec<_> = (0..count).map(|index| shuffle.at(index)).collect();
            let rising = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count();
            assert!(
                count < 100 || (rising * 3 > numbers.len() && rising * 3 < 2 * numbers.len()),
                "{count}: {rising}"
            );
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
        }
    }
}
