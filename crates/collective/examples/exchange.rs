//! Measures two-phase exchange of usual patterns by threads, in nanoseconds of a processor per piece and per
//! KiB, the mean of several calls: `cargo run --release -p weft-collective --example exchange`.
//!
//! Arguments: a part of the name of a pattern, KiB of a buffer.
//!
//! The file is one that takes no time: accesses move nothing. What is left is walking, copying, marking what
//! is wanted, and barriers.

use std::convert::Infallible;

use weft_collective::threads::World;
use weft_collective::{Collective, Direction, ErrorCode, Options, Peers, Request, Store, Summary};
use weft_layout::{Layout, Level, Order, Regions};

const REPETITIONS: usize = 5;

/// A file that takes what it gets at once.
struct Nowhere(Layout);

#[derive(Debug)]
struct Never(Infallible);

impl ErrorCode for Never {
    fn code(&self) -> u32 {
        match self.0 {}
    }
}

impl Store for Nowhere {
    type Error = Never;
    type Pending = u64;

    fn layout(&self) -> Layout {
        self.0
    }

    unsafe fn start_write(&mut self, _: *const u8, memory: Regions, _: Regions) -> Result<u64, Never> {
        Ok(memory.total_bytes())
    }

    unsafe fn start_read(&mut self, _: *mut u8, memory: Regions, _: Regions) -> Result<u64, Never> {
        Ok(memory.total_bytes())
    }

    fn wait(&mut self, pending: u64) -> Result<u64, Never> {
        Ok(pending)
    }
}

/// File and memory of a process.
type Sides = (Regions, Regions);

fn contiguous_memory(file: Regions) -> Sides {
    let memory = Regions::contiguous(0, file.total_bytes());
    (file, memory)
}

/// A name, and what the process with a rank has.
type Pattern = (&'static str, fn(u64) -> Sides);

fn patterns() -> Vec<Pattern> {
    vec![
        ("3-byte elements in turn", |rank| {
            let level = Level { count: 2 << 20, stride_bytes: 12 };
            contiguous_memory(Regions::strided(3 * rank, 3, [level]))
        }),
        ("24-byte elements in turn", |rank| {
            let level = Level { count: 1 << 20, stride_bytes: 96 };
            contiguous_memory(Regions::strided(24 * rank, 24, [level]))
        }),
        ("24-byte elements, every second", |rank| {
            let level = Level { count: 1 << 19, stride_bytes: 192 };
            contiguous_memory(Regions::strided(48 * rank, 24, [level]))
        }),
        ("24-byte fields of records", |rank| {
            let bytes = 24 << 20;
            let memory = Regions::strided(8, 24, [Level { count: 1 << 20, stride_bytes: 40 }]);
            (Regions::contiguous(rank * bytes, bytes), memory)
        }),
        ("tile of 24-byte elements", |rank| {
            let starts = [rank / 2 * 768, rank % 2 * 1024];
            contiguous_memory(Regions::subarray(0, [1536, 2048], starts, [768, 1024], 24, Order::C))
        }),
        ("block column, N = 512", |rank| block_column(512, rank)),
        ("block column, N = 4096", |rank| block_column(4096, rank)),
        ("4-d subarray, z in four parts", |rank| {
            let (dims, counts) = ([16, 96, 96, 5 * 96], [16, 96, 96, 5 * 24]);
            let file = Regions::subarray(0, dims, [0, 0, 0, rank * 120], counts, 8, Order::C);
            let memory = Regions::subarray(0, [16, 98, 98, 5 * 26], [0, 1, 1, 5], counts, 8, Order::C);
            (file, memory)
        }),
        ("40-byte cells (BTIO)", |rank| {
            let (first, second) = (rank / 2 * 51, rank % 2 * 51);
            let file = Regions::subarray(0, [102, 102, 102], [0, first, second], [102, 51, 51], 40, Order::C);
            let memory = Regions::subarray(0, [106, 55, 55], [2, 2, 2], [102, 51, 51], 40, Order::C);
            (file, memory)
        }),
        ("list of 16-byte pieces", |rank| {
            let place = |at: u64| weft_layout::Extent::new(at * 64 + rank * 16 + at % 3, 13);
            contiguous_memory(Regions::list((0..1u64 << 18).map(place).collect::<Vec<_>>()))
        }),
        ("contiguous", |rank| contiguous_memory(Regions::contiguous(rank * (32 << 20), 32 << 20))),
    ]
}

fn block_column(side: u64, rank: u64) -> Sides {
    contiguous_memory(Regions::subarray(0, [side, side], [0, rank * side / 4], [side, side / 4], 4, Order::C))
}

fn main() {
    let only = std::env::args().nth(1);
    println!(
        "{:<34}{:>6}{:>10}{:>9}{:>12}{:>10}",
        "pattern", "way", "pieces", "MiB", "ns / piece", "ns / KiB"
    );
    for (name, sides) in patterns() {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        for direction in [Direction::Write, Direction::Read] {
            for nodes in [[0, 0, 0, 0], [0, 0, 1, 1]] {
                let (ns, pieces, bytes) = measure(sides, direction, &nodes);
                let way = match (direction, nodes[3]) {
                    (Direction::Write, 0) => "write",
                    (Direction::Read, 0) => "read",
                    (Direction::Write, _) => "w 2n",
                    (Direction::Read, _) => "r 2n",
                };
                let mib = bytes as f64 / (1 << 20) as f64;
                let each = ns as f64 / pieces as f64;
                println!(
                    "{name:<34}{way:>6}{pieces:>10}{mib:>9.1}{each:>12.2}{:>10.1}",
                    ns as f64 / mib / 1024.0
                );
            }
        }
    }
}

/// The nanoseconds of a call over all processes, pieces and bytes of all processes.
fn measure(sides: fn(u64) -> Sides, direction: Direction, nodes: &[u32]) -> (u64, u64, u64) {
    let layout = Layout::new(64 << 10, 0, 4, 4).expect("a good layout");
    let world = World::new(nodes);
    let results = world.run(|mut peers| {
        let (file, memory) = sides(peers.rank().into());
        let mut data = vec![1u8; memory.span().map_or(0, |span| span.end() as usize)];
        let mut collective = Collective::new(options());
        let mut totals = Default::default();
        let mut begin_ns = 0;
        for repetition in 0..=REPETITIONS {
            if repetition == 1 {
                begin_ns = processor_ns();
            }
            totals = Summary::new(&memory, &file, 0, peers.size()).reduce(&mut peers).expect("threads");
            let request = Request { base: data.as_mut_ptr(), memory: &memory, file: &file };
            let store = &mut Nowhere(layout);
            // SAFETY: the memory is this thread's, and large enough.
            unsafe { collective.two_phase(&mut peers, store, direction, Ok(request), &totals, None) }
                .expect("nothing fails");
        }
        (processor_ns() - begin_ns, totals.pieces.max(totals.memory_pieces), totals.bytes)
    });
    let ns: u64 = results.iter().map(|(ns, ..)| ns).sum();
    (ns / REPETITIONS as u64, results[0].1, results[0].2)
}

/// Buffers of as many KiB as the second argument says.
fn options() -> Options {
    let kib = std::env::args().nth(2).map(|kib| kib.parse::<u64>().expect("KiB of a buffer"));
    let defaults = Options::default();
    Options { buffer_bytes: kib.map_or(defaults.buffer_bytes, |kib| kib << 10), ..defaults }
}

/// The time that this thread had a processor.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel keeps times");
    let first = text.split(' ').next().and_then(|number| number.parse().ok());
    first.expect("the first number is the time on processors")
}
