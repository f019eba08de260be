//! Measures the walk over one slot's share of usual requests, in nanoseconds per piece, the least of several
//! runs: `cargo run --release -p weft-layout --example walk`.

use std::hint::black_box;
use std::time::Instant;

use weft_layout::{Extent, Layout, Level, Order, Regions, local_runs, memory_runs, share_bytes};

const REPETITIONS: usize = 30;

fn main() {
    let layout = Layout::new(64 << 10, 0, 4, 4).expect("a good layout");
    println!(
        "{:<36}{:>9}{:>9}{:>14}{:>14}{:>14}",
        "request", "pieces", "on slot", "local ns/each", "memory ns/each", "share_bytes ns"
    );
    for (name, file) in patterns() {
        let memory = Regions::contiguous(0, file.total_bytes());
        let runs = local_runs(&layout, 1, &file).count();
        let local_ns = least_ns(|| local_runs(&layout, 1, &file).map(|run| run.local_offset).sum());
        let memory_ns = least_ns(|| {
            let runs = memory_runs(&layout, 1, &file, &memory).expect("sides of one size");
            runs.map(|run| run.offset).sum()
        });
        let share_ns = least_ns(|| share_bytes(&layout, 1, &file));
        let each = |ns: u64| ns as f64 / runs.max(1) as f64;
        println!(
            "{name:<36}{:>9}{runs:>9}{:>14.1}{:>14.1}{share_ns:>14}",
            file.piece_count(),
            each(local_ns),
            each(memory_ns)
        );
    }
}

fn patterns() -> Vec<(&'static str, Regions)> {
    let block_column =
        |side: u64| Regions::subarray(0, [side, side], [0, side / 4], [side, side / 4], 4, Order::C);
    let tile =
        |element_bytes| Regions::subarray(0, [1536, 2048], [768, 1024], [768, 1024], element_bytes, Order::C);
    let mut random = 1u64;
    let mut next_random = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        random >> 33
    };
    let scattered: Vec<Extent> =
        (0..4096).map(|_| Extent::new(next_random() % (1 << 20) * 1024, 512)).collect();
    let mut sorted = scattered.clone();
    sorted.sort_by_key(|extent| extent.offset);
    let few_bytes = Regions::strided(0, 64, [Level { count: 1 << 16, stride_bytes: 256 }]);
    vec![
        ("contiguous, 4 KiB at the slot", Regions::contiguous(64 << 10, 4096)),
        ("contiguous, 1 MiB", Regions::contiguous(0, 1 << 20)),
        ("contiguous, 64 MiB", Regions::contiguous(0, 64 << 20)),
        ("block-column, N = 512", block_column(512)),
        ("block-column, N = 2048", block_column(2048)),
        ("block-column, N = 8192", block_column(8192)),
        ("tile, 24-byte elements", tile(24)),
        ("tile, 3-byte elements", tile(3)),
        ("64 B of every 256", few_bytes),
        ("list, 4096 random extents", Regions::list(scattered)),
        ("list, 4096 sorted extents", Regions::list(sorted)),
    ]
}

/// The least time of one call of `work`.
fn least_ns(work: impl Fn() -> u64) -> u64 {
    let calls = 32;
    let run = || {
        let start = Instant::now();
        for _ in 0..calls {
            black_box(work());
        }
        start.elapsed().as_nanos() as u64 / calls
    };
    (0..REPETITIONS).map(|_| run()).min().unwrap_or(0)
}
