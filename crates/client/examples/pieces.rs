//! What moving memory in pieces costs, by each movement: how the thresholds of `Movement::Auto` were found.
//!
//! ```text
//! weft up --dir /dev/shm/weft --detach
//! cargo run --release -p weft-client --example pieces -- "weft://127.0.0.1:7400/?transport=shm" random 1000000 64
//! cargo run --release -p weft-client --example pieces -- "weft://127.0.0.1:7400/?transport=tcp" thresholds
//! ```
//!
//! `random COUNT BYTES`: pieces at random places of file and memory, a list of all in one call. `thresholds`: a contiguous part of
//! the file and memory in pieces of 64 bytes to 16 KiB; 64 KiB, 512 KiB and 4 MiB in all. Movements take turns; medians are told.

use std::time::Instant;

use weft_client::{AccessOptions, Client, ConnectOptions, File, Movement, OpenOptions, Url};
use weft_layout::{Extent, Level, Regions};

const ROUNDS: usize = 7;
const MOVEMENTS: [Movement; 3] = [Movement::Direct, Movement::Pack, Movement::Auto];

/// Processor time of this thread, in seconds.
fn thread_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure that the kernel fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Wall and processor time of one read or write.
fn once(file: &File, buffer: &mut [u8], memory: &Regions, regions: &Regions, write: bool) -> (f64, f64) {
    let (wall, cpu) = (Instant::now(), thread_s());
    // SAFETY: the regions lie within the buffer.
    let moved = unsafe {
        match write {
            true => file.write_raw(buffer.as_ptr(), memory, regions),
            false => file.read_raw(buffer.as_mut_ptr(), memory, regions),
        }
    };
    assert_eq!(moved.expect("moved"), regions.total_bytes());
    (wall.elapsed().as_secs_f64(), thread_s() - cpu)
}

/// Medians of wall and processor time of each movement.
fn by_turns(
    file: &File,
    buffer: &mut [u8],
    memory: &Regions,
    regions: &Regions,
    write: bool,
) -> Vec<(f64, f64)> {
    let mut times = vec![(Vec::new(), Vec::new()); MOVEMENTS.len()];
    for _ in 0..ROUNDS {
        for (movement, (walls, cpus)) in MOVEMENTS.into_iter().zip(&mut times) {
            file.set_access(AccessOptions { movement, ..AccessOptions::default() });
            let repeats = (2_000_000 / regions.total_bytes()).clamp(1, 16);
            let mut sum = (0.0, 0.0);
            for _ in 0..repeats {
                let (wall, cpu) = once(file, buffer, memory, regions, write);
                sum = (sum.0 + wall, sum.1 + cpu);
            }
            walls.push(sum.0 / repeats as f64);
            cpus.push(sum.1 / repeats as f64);
        }
    }
    times.into_iter().map(|(walls, cpus)| (median(walls), median(cpus))).collect()
}

/// `count` numbers in an order that looks random.
fn shuffled(count: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut all: Vec<u64> = (0..count).collect();
    let mut state = seed;
    for at in (1..all.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        all.swap(at, (state >> 33) as usize % (at + 1));
    }
    all.into_iter()
}

fn random(file: &File, count: u64, bytes: u64) {
    let list = |seed, gap| {
        let pieces = shuffled(count, seed).map(|place| Extent::new(place * (bytes + gap), bytes));
        Regions::list(pieces.collect::<Vec<_>>())
    };
    let (regions, memory) = (list(1, bytes), list(2, 16));
    let mut buffer = vec![1u8; (count * (bytes + 16)) as usize];
    let mut at = 0;
    while at < count * 2 * bytes {
        let part = buffer.len().min((count * 2 * bytes - at) as usize);
        at += file.write_at(&buffer[..part], at).expect("written") as u64;
    }
    let before_kib = peak_kib();
    let contiguous = Regions::contiguous(0, count * bytes);
    for (sides, memory) in [("file and memory", &memory), ("file", &contiguous)] {
        for write in [false, true] {
            let verb = if write { "write" } else { "read" };
            let before = file.io_stats();
            let times = by_turns(file, &mut buffer, memory, &regions, write);
            let after = file.io_stats();
            let requests = (after.requests - before.requests) / (ROUNDS * MOVEMENTS.len()) as u64;
            for (movement, (wall, cpu)) in MOVEMENTS.into_iter().zip(times) {
                println!(
                    "{verb:5}  pieces in {sides:15}  {movement:6}  {:6.2} million pieces/s  client {:4.0} ns/piece  {requests} requests",
                    count as f64 / wall / 1e6,
                    cpu / count as f64 * 1e9,
                );
            }
        }
    }
    println!("memory grew by {} KiB", peak_kib() - before_kib);
}

fn thresholds(file: &File) {
    let mut buffer = vec![1u8; 16 << 20];
    file.write_at(&buffer, 0).expect("written");
    println!("MB/s: {}", MOVEMENTS.map(|movement| movement.to_string()).join(", "));
    for total in [64 << 10, 512 << 10, 4 << 20] {
        for piece in [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384] {
            let count = total / piece;
            // Distances change, so that pieces are runs of their own.
            let mut offset = 0;
            let pieces = (0..count).map(|at| {
                let extent = Extent::new(offset, piece);
                offset += piece + 64 + at % 3 * 64;
                extent
            });
            let memory = Regions::list(pieces.collect::<Vec<_>>());
            let regular = Regions::strided(0, piece, [Level { count, stride_bytes: piece as i64 + 64 }]);
            let regions = Regions::contiguous(0, total);
            for write in [false, true] {
                let verb = if write { "write" } else { "read" };
                print!("{verb:5} {:5} KiB in pieces of {piece:5}:", total >> 10);
                for (shape, memory) in [("irregular", &memory), ("regular", &regular)] {
                    print!("  {shape}");
                    for (wall, cpu) in by_turns(file, &mut buffer, memory, &regions, write) {
                        print!(" {:5.0} ({:3.0} us)", total as f64 / wall / 1e6, cpu * 1e6);
                    }
                }
                println!();
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "pieces URL random COUNT BYTES | thresholds";
    let url = Url::parse(arguments.first().expect(usage)).expect("a URL");
    let client = Client::connect(&url, ConnectOptions::default()).expect("connected");
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true);
    let file = client.open("/pieces", &options).expect("opened");
    match &arguments[1..] {
        [what, count, bytes] if what == "random" => {
            random(&file, count.parse().expect(usage), bytes.parse().expect(usage));
        }
        [what] if what == "thresholds" => thresholds(&file),
        _ => panic!("{usage}"),
    }
    client.unlink("/pieces").expect("removed");
}
