//! Random accesses of some processes.

use weft_collective::Options;
use weft_layout::{Extent, Layout, Level, Order, Region, Regions};
use weft_test_random::Random;

/// The request of one process.
#[derive(Debug, Clone)]
pub struct Part {
    /// The bytes in the file.
    pub file: Regions,
    /// As many bytes in memory.
    pub memory: Regions,
    /// Size of the memory.
    pub memory_bytes: usize,
}

/// What all processes do together.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The node of each process.
    pub nodes: Vec<u32>,
    pub layout: Layout,
    pub options: Options,
    pub parts: Vec<Part>,
}

/// Where files may reach to, about.
const FILE_BYTES: u64 = 150_000;

/// A scene of 1 to 8 processes.
pub fn scene(random: &mut Random) -> Scene {
    let processes = 1 + random.below(8);
    let node_count = 1 + random.below(3);
    let slots = 1 + random.below(5) as u16;
    let layout = Layout::new(4096 * (1 + random.below(4) as u32), 0, slots, slots).expect("a good layout");
    let options = Options {
        buffer_bytes: *random.choose(&[0, 4096, 10_000, 30_000, 100_000, 4 << 20]),
        aggregators_max: 1 + random.below(6) as usize,
        read_gap_bytes_max: *random.choose(&[0, 1, 50, 5000]),
    };
    let kind = random.below(3);
    let parts = (0..processes).map(|rank| {
        let file = match kind {
            0 => in_turn(random.clone(), rank, processes),
            _ => file(random, kind == 1),
        };
        random.next();
        let (memory, memory_bytes) = memory(random, file.total_bytes());
        Part { file, memory, memory_bytes }
    });
    let parts = parts.collect();
    Scene {
        nodes: (0..processes).map(|_| 5 + random.below(node_count) as u32).collect(),
        layout,
        options,
        parts,
    }
}

/// Pieces of all processes in turn, without gaps: the same random numbers in all processes.
fn in_turn(mut random: Random, rank: u64, processes: u64) -> Regions {
    let bytes = 1 + random.clone().below(*random.choose(&[30, 30, 3000]));
    let count = (FILE_BYTES / processes / bytes).min(1 + random.below(4000));
    let offset = random.below(9000) + rank * bytes;
    Regions::strided(offset, bytes, [Level { count, stride_bytes: (processes * bytes) as i64 }])
}

/// Regions of a few parts, ascending or any.
fn file(random: &mut Random, ascends: bool) -> Regions {
    if random.one_in(8) {
        return Regions::default();
    }
    let mut parts = Vec::new();
    let mut end = 0;
    for _ in 0..1 + random.below(3) {
        let start = end + random.below(FILE_BYTES / 4);
        let part = part(random, start, ascends);
        let regions = Regions::from(part);
        end = regions.span().map_or(start, |span| span.end());
        parts.extend(regions.parts);
    }
    if !ascends && random.one_in(2) {
        parts.reverse();
    }
    Regions { parts }
}

fn part(random: &mut Random, offset: u64, ascends: bool) -> Region {
    let gap = |random: &mut Random| random.below(*random.clone().choose(&[1, 20, 20, 9000]));
    match random.below(6) {
        0 => Region::Contiguous(Extent::new(offset, random.below(40_000))),
        1 => {
            let block_bytes = 1 + random.below(40);
            let mut levels = Vec::new();
            let mut span = block_bytes;
            for _ in 0..random.below(4) {
                let stride_bytes = if ascends { span + gap(random) } else { gap(random) };
                let count = 1 + random.below(if stride_bytes > 3000 { 4 } else { 30 });
                levels.insert(0, Level { count, stride_bytes: stride_bytes as i64 });
                span += stride_bytes * (count - 1);
                if span > FILE_BYTES / 3 {
                    break;
                }
            }
            Region::Strided { offset, block_bytes, levels }
        }
        2 => {
            let dims: Vec<u64> = (0..1 + random.below(4)).map(|_| 1 + random.below(9)).collect();
            let starts: Vec<u64> = dims.iter().map(|dim| random.below(*dim)).collect();
            let counts = dims.iter().zip(&starts).map(|(dim, start)| random.below(dim - start + 1)).collect();
            let order = if random.one_in(2) || ascends { Order::C } else { Order::Fortran };
            Region::Subarray { offset, dims, starts, counts, element_bytes: 1 + random.below(60), order }
        }
        3 => {
            let body = Regions::list([Extent::new(0, 1 + random.below(9)), Extent::new(12, 7)]);
            let stride_bytes = if ascends { 19 + gap(random) } else { gap(random) } as i64;
            let count = random.below(if stride_bytes > 3000 { 9 } else { 300 });
            Region::Repeat { offset, count, stride_bytes, body }
        }
        // Lists, also longer ones than are announced.
        kind => {
            let count = if kind == 4 { random.below(40) } else { random.below(3500) };
            let mut end = offset;
            let place = |_| {
                let (gap, bytes) = (random.below(if count > 100 { 12 } else { 3000 }), random.below(30));
                let start = if ascends || !random.one_in(9) { end + gap } else { offset + gap };
                end = start + bytes;
                Extent::new(start, bytes)
            };
            let list: Vec<Extent> = (0..count).map(place).collect();
            Region::List(list.into_iter().filter(|extent| extent.bytes > 0).collect())
        }
    }
}

/// Memory regions of `bytes` bytes that do not overlap, and the size of the memory.
fn memory(random: &mut Random, bytes: u64) -> (Regions, usize) {
    let block = 1 + random.below(*random.clone().choose(&[4, 30, 500]));
    let (count, rest) = (bytes / block, bytes % block);
    match random.below(4) {
        0 => {
            let stride = block + random.below(20);
            let level = Level { count, stride_bytes: stride as i64 };
            let end = count * stride;
            let regions = Regions::strided(3, block, [level]).then(Regions::contiguous(3 + end, rest));
            (regions, (3 + end + rest) as usize)
        }
        1 => {
            // Backwards.
            let level = Level { count, stride_bytes: -(block as i64) };
            let first = count.saturating_sub(1) * block;
            let regions =
                Regions::strided(first, block, [level]).then(Regions::contiguous(count * block, rest));
            (regions, bytes as usize)
        }
        2 => {
            let mut end = 0;
            let mut left = bytes;
            let mut list = Vec::new();
            while left > 0 {
                let here = (1 + random.below(2000)).min(left);
                list.push(Extent::new(end + random.below(50), here));
                end = list[list.len() - 1].end();
                left -= here;
            }
            (Regions::list(list), end as usize)
        }
        _ => (Regions::contiguous(7, bytes), 7 + bytes as usize),
    }
}
