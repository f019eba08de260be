//! `weft nfs bench`

use super::place::ConnectArgs;
use super::rates::{Scattered, keep_under_way, median, per_second};
use anyhow::Result;
use serde_json::{Value, json};
use weft_cli_common::{output, size};
use weft_nfs_client::{
    CreateHow, Error, FileHandle, NfsClient, NfsUrl, PendingCall, RdmaStatus, SetAttr, Stable,
};

/// What random accesses read and write.
const SMALL_BYTES: usize = 4096;
const MIB: f64 = 1_048_576.0;

/// Options of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory to measure in.
    #[arg(value_name = "URL")]
    place: String,
    /// Size of the file that is read and written.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_file_bytes)]
    bytes: u64,
    /// Bytes of a sequential READ or WRITE.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_block_bytes)]
    block: u64,
    /// Sequential READs and WRITEs, and calls on names, under way at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Random READs and WRITEs under way at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    small_depth: u16,
    /// Random READs and WRITEs of a run.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    small_count: u32,
    /// Files that are created, looked up and removed in a run.
    #[arg(long, value_name = "COUNT", default_value_t = 5_000)]
    files: u32,
    /// How often everything is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn parse_file_bytes(text: &str) -> Result<u64, String> {
    let bytes = size::parse_bytes(text)?;
    if bytes >= SMALL_BYTES as u64 { Ok(bytes) } else { Err(format!("must be at least {SMALL_BYTES}")) }
}

fn parse_block_bytes(text: &str) -> Result<u64, String> {
    match size::parse_bytes(text)? {
        bytes @ 1..=0x40_0000 => Ok(bytes),
        _ => Err("must be from 1 to 4M".into()),
    }
}

/// The figures in the order of the output: name, unit.
const FIGURES: [(&str, &str); 8] = [
    ("sequential write", "MiB/s"),
    ("sequential read", "MiB/s"),
    ("random write of 4 KiB", "1/s"),
    ("random read of 4 KiB", "1/s"),
    ("create", "1/s"),
    ("lookup", "1/s"),
    ("getattr", "1/s"),
    ("remove", "1/s"),
];

/// Measures.
pub fn run(args: &Args) -> Result<()> {
    let (client, url) = args.connect.connect(&args.place)?;
    let dir = Directory::make(&client, &url)?;
    let bench = Bench { args, client: &client, dir: &dir.handle };
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); FIGURES.len()];
    for run in 0..args.runs {
        let figures = bench.run(u64::from(run) + 1)?;
        samples.iter_mut().zip(figures).for_each(|(samples, figure)| samples.push(figure));
    }
    dir.remove()?;
    report(args, &client, &samples)
}

fn report(args: &Args, client: &NfsClient, samples: &[Vec<f64>]) -> Result<()> {
    if args.json {
        let figures = FIGURES.iter().zip(samples).map(|((name, unit), samples)| {
            json!({ "figure": name, "unit": unit, "median": median(samples), "samples": samples })
        });
        return output::print_json(&json!({
            "server": client.server(),
            "file_bytes": args.bytes,
            "block_bytes": args.block,
            "depth": args.depth,
            "small_depth": args.small_depth,
            "figures": figures.collect::<Vec<_>>(),
            "rdma": client.rdma_status().map(|status| rdma_json(&status)),
        }));
    }
    let mut table = output::table(&["MEASURED", "MEDIAN", "", "LEAST", "MOST"], &[1, 3, 4]);
    for ((name, unit), samples) in FIGURES.iter().zip(samples) {
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = samples.iter().copied().fold(0.0, f64::max);
        let [median, least, most] = [median(samples), least, most].map(|value| format!("{value:.0}"));
        table.add_row([(*name).to_string(), median, (*unit).to_string(), least, most]);
    }
    output::print_table(&table)?;
    if let Some(status) = client.rdma_status() {
        output::print_line(rdma_text(&status))?;
    }
    Ok(())
}

fn rdma_json(status: &RdmaStatus) -> Value {
    let RdmaStatus { device, design, memory, totals, registrations, counts } = status;
    let adapter: serde_json::Map<_, _> =
        counts.named().into_iter().map(|(name, count)| (name.to_string(), count.into())).collect();
    json!({
        "device": device,
        "design": design.name(),
        "memory": memory.name(),
        "connections": totals.connections,
        "calls": totals.calls,
        "long_calls": totals.long_calls,
        "long_replies": totals.long_replies,
        "read_chunk_bytes": totals.read_chunk_bytes,
        "write_chunk_bytes": totals.write_chunk_bytes,
        "replies_read": totals.replies_read,
        "read_bytes": totals.read_bytes,
        "copied_bytes": totals.copied_bytes,
        "credits": totals.credits,
        "registrations": registrations.registrations,
        "registered_pages": registrations.registered_pages,
        "registration_hits": registrations.hits,
        "windows_bound": totals.windows_bound,
        "ended_by_server": totals.ended_by_server,
        "adapter": adapter,
    })
}

fn rdma_text(status: &RdmaStatus) -> String {
    let RdmaStatus { device, design, memory, totals, registrations, counts } = status;
    let mib = |bytes: u64| bytes as f64 / MIB;
    format!(
        "\nRDMA, {device}, design {}, memory {}: {} calls, {} at a time\n  \
         the server read {:.0} MiB and wrote {:.0} MiB, the client read {:.0} MiB in {} replies; {:.0} MiB were copied\n  \
         {} registrations of {} pages, {} calls found theirs; {} windows bound, {} ended by the server\n  \
         the adapter: {} registrations ended, {} RDMA Reads, {} messages sent, {} doorbells, {} completions",
        design.name(),
        memory.name(),
        totals.calls,
        totals.credits,
        mib(totals.read_chunk_bytes),
        mib(totals.write_chunk_bytes),
        mib(totals.read_bytes),
        totals.replies_read,
        mib(totals.copied_bytes),
        registrations.registrations,
        registrations.registered_pages,
        registrations.hits,
        totals.windows_bound,
        totals.ended_by_server,
        counts.deregistrations,
        counts.reads,
        counts.sends,
        counts.doorbells,
        counts.completions,
    )
}

/// A directory for the measurement.
struct Directory<'a> {
    client: &'a NfsClient,
    parent: FileHandle,
    name: Vec<u8>,
    handle: FileHandle,
    is_removed: bool,
}

impl<'a> Directory<'a> {
    fn make(client: &'a NfsClient, url: &NfsUrl) -> Result<Directory<'a>> {
        let parent = client.resolve(&url.path)?.handle;
        let name = format!(".weft-nfs-bench-{}", std::process::id()).into_bytes();
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        let created = client.mkdir(&parent, &name, &set)?;
        let handle =
            created.handle.map_or_else(|| Ok(client.lookup(&parent, &name)?.handle), Ok::<_, Error>)?;
        Ok(Directory { client, parent, name, handle, is_removed: false })
    }

    fn empty(&self) -> Result<(), Error> {
        for (name, _) in self.client.list(&self.handle)? {
            self.client.remove(&self.handle, &name)?;
        }
        self.client.rmdir(&self.parent, &self.name)?;
        Ok(())
    }

    fn remove(mut self) -> Result<(), Error> {
        self.is_removed = true;
        self.empty()
    }
}

impl Drop for Directory<'_> {
    fn drop(&mut self) {
        if !self.is_removed {
            // The failure that led here is reported.
            let _ = self.empty();
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    client: &'a NfsClient,
    dir: &'a FileHandle,
}

impl Bench<'_> {
    /// All figures once.
    fn run(&self, seed: u64) -> Result<[f64; FIGURES.len()], Error> {
        let file = self.create(b"data")?;
        let write = self.sequential_write(&file)?;
        let read = self.sequential_read(&file)?;
        let small_write = self.random_write(&file, seed)?;
        let small_read = self.random_read(&file, seed)?;
        self.client.remove(self.dir, b"data")?;
        let create = self.names(|name| self.client.start_create(self.dir, name, &new_file()))?;
        let lookup = self.names(|name| self.client.start_lookup(self.dir, name))?;
        let getattr = self.getattr()?;
        let remove = self.names(|name| self.client.start_remove(self.dir, name))?;
        Ok([write, read, small_write, small_read, create, lookup, getattr, remove])
    }

    fn create(&self, name: &[u8]) -> Result<FileHandle, Error> {
        let created = self.client.create(self.dir, name, &new_file())?;
        created.handle.map_or_else(|| Ok(self.client.lookup(self.dir, name)?.handle), Ok)
    }

    fn sequential_write(&self, file: &FileHandle) -> Result<f64, Error> {
        let mut block = vec![0u8; self.args.block as usize];
        let mut scattered = Scattered(0x9e37_79b9_7f4a_7c15);
        block.iter_mut().for_each(|byte| *byte = scattered.below(256) as u8);
        let depth = self.args.depth.into();
        per_second(self.args.bytes as f64 / MIB, || {
            let start = |number: usize| {
                let (at, bytes) = self.part(number)?;
                // SAFETY: the block is not changed, and lives until all calls have ended.
                Some(unsafe {
                    self.client.start_write_raw(file, at, block.as_ptr(), bytes, Stable::Unstable)
                })
            };
            keep_under_way(depth, start, |number, written| {
                let (at, bytes) = self.part(number).unwrap_or((0, 0));
                let rest = &block[written.bytes..bytes];
                self.client.write_unstable(file, at + written.bytes as u64, rest, 1).map(drop)
            })?;
            self.client.commit(file, 0, 0).map(drop)
        })
    }

    /// Offset and length of a block of the file, if there is one of this number.
    fn part(&self, number: usize) -> Option<(u64, usize)> {
        let at = number as u64 * self.args.block;
        let left = self.args.bytes.checked_sub(at).filter(|left| *left > 0)?;
        Some((at, left.min(self.args.block) as usize))
    }

    fn sequential_read(&self, file: &FileHandle) -> Result<f64, Error> {
        let depth: usize = self.args.depth.into();
        let block_bytes = self.args.block as usize;
        let mut memory = vec![0u8; depth * block_bytes];
        let start_of_memory = memory.as_mut_ptr();
        per_second(self.args.bytes as f64 / MIB, || {
            let start = |number: usize| {
                let (at, bytes) = self.part(number)?;
                // SAFETY: the place is within the memory, and was another call's, which has ended.
                let place = unsafe { start_of_memory.add(number % depth * block_bytes) };
                // SAFETY: the memory lives until all calls have ended, and is not looked at before.
                Some(unsafe { self.client.start_read_raw(file, at, place, bytes) })
            };
            keep_under_way(depth, start, |number, read| {
                let (at, bytes) = self.part(number).unwrap_or((0, 0));
                let mut rest = vec![0; bytes - read.bytes];
                self.client.read_all(file, at + read.bytes as u64, &mut rest, 1).map(drop)
            })
        })
    }

    /// A random place of the file for each small access.
    fn places(&self, seed: u64) -> impl FnMut(usize) -> Option<u64> {
        let (count, places) = (self.args.small_count as usize, self.args.bytes / SMALL_BYTES as u64);
        let mut scattered = Scattered(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        move |number| (number < count).then(|| scattered.below(places) * SMALL_BYTES as u64)
    }

    fn random_write(&self, file: &FileHandle, seed: u64) -> Result<f64, Error> {
        let (data, mut places) = ([0x5a_u8; SMALL_BYTES], self.places(seed));
        per_second(self.args.small_count.into(), || {
            let start = |number| {
                let at = places(number)?;
                // SAFETY: the data are not changed, and live until all calls have ended.
                Some(unsafe {
                    self.client.start_write_raw(file, at, data.as_ptr(), SMALL_BYTES, Stable::Unstable)
                })
            };
            keep_under_way(self.args.small_depth.into(), start, |_, _| Ok(()))?;
            self.client.commit(file, 0, 0).map(drop)
        })
    }

    fn random_read(&self, file: &FileHandle, seed: u64) -> Result<f64, Error> {
        let depth: usize = self.args.small_depth.into();
        let (mut memory, mut places) = (vec![0u8; depth * SMALL_BYTES], self.places(seed ^ 7));
        let start_of_memory = memory.as_mut_ptr();
        per_second(self.args.small_count.into(), || {
            let start = |number: usize| {
                let at = places(number)?;
                // SAFETY: the place is within the memory, and was another call's, which has ended.
                let place = unsafe { start_of_memory.add(number % depth * SMALL_BYTES) };
                // SAFETY: the memory lives until all calls have ended, and is not looked at before.
                Some(unsafe { self.client.start_read_raw(file, at, place, SMALL_BYTES) })
            };
            keep_under_way(depth, start, |_, _| Ok(()))
        })
    }

    /// Calls on names a second.
    fn names<T>(&self, start: impl Fn(&[u8]) -> PendingCall<T>) -> Result<f64, Error> {
        let files = self.args.files as usize;
        per_second(files as f64, || {
            let start = |number| (number < files).then(|| start(format!("file-{number:08}").as_bytes()));
            keep_under_way(self.args.depth.into(), start, |_, _| Ok(()))
        })
    }

    fn getattr(&self) -> Result<f64, Error> {
        let files = self.args.files as usize;
        let found = self.client.list(self.dir)?;
        per_second(files as f64, || {
            let handle = |number: usize| {
                found.get(number % found.len().max(1)).map_or(self.dir, |(_, file)| &file.handle)
            };
            let start = |number| (number < files).then(|| self.client.start_getattr(handle(number)));
            keep_under_way(self.args.depth.into(), start, |_, _| Ok(()))
        })
    }
}

fn new_file() -> CreateHow {
    CreateHow::Unchecked(SetAttr { mode: Some(0o644), ..SetAttr::default() })
}
