//! Requests of 4 KiB to 1 MiB at random places of a cached file, one or many under way.
//!
//! ```text
//!   depth 1      read ─ wait ─ read ─ wait ─ …            round trips
//!   depth 32     start ×32 ─ wait for some ─ start as many …   what a request costs both processors
//! ```
//!
//! Beside it: a raw exchange over the socket of the transport, with as many under way, whose ends wait as Weft's
//! do. One end sends the bytes of a request and gets those of its reply.

use super::fleet::Fleet;
use super::report::{Report, Row};
use super::scratch::{TRANSPORTS_DEFAULT, Testbed, scratch, usable};
use super::worker::Task;
use super::worker::measure::{Done, Ready, measure, measure_each};
use super::worker::ping::{Exchange, Socket};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weft_bench_args::{Memory, RequestsArgs, Transport, Way};
use weft_cli_common::connections::at;
use weft_cli_common::size::format_bytes;
use weft_client::{Arena, Client, ConnectOptions, File, OpenOptions, finish_some};
use weft_layout::Regions;
use weft_server::SyncMode;

/// A repetition moves this much at least, and this many requests at most.
const BYTES_MIN: u64 = 64 << 20;
const REQUESTS_MAX: u64 = 20_000;
/// Bytes of a request or reply without data, in the raw exchange.
const MESSAGE_BYTES: u64 = 128;

/// Random requests of one size.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Requests {
    pub url: String,
    pub path: PathBuf,
    pub way: Way,
    pub memory: Memory,
    pub request_bytes: u64,
    pub file_bytes: u64,
    /// Under way at once.
    pub depth: usize,
    /// How many in all.
    pub requests: usize,
}

/// Numbers of blocks of the file, at random.
struct Places {
    blocks: u64,
    at: u64,
}

impl Iterator for Places {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.at = self.at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Some((self.at >> 33) % self.blocks)
    }
}

impl Requests {
    /// Does the task with the worker's connection, some before the measured part.
    pub fn perform(self, client: &Client, ready: Ready<'_>) -> Result<Done> {
        let file = client.open(at(&self.path), &OpenOptions::new().read(true).write(true))?;
        let bytes = self.request_bytes as usize;
        let mut owned = Vec::new();
        let mut arena: Option<Arena> = None;
        let memory: &mut [u8] = match self.memory {
            Memory::Any => {
                owned.resize(self.depth * bytes, 7);
                &mut owned
            }
            Memory::Alloc => &mut arena.insert(client.alloc(self.depth * bytes)?)[..self.depth * bytes],
        };
        let blocks = self.file_bytes / self.request_bytes;
        let mut offsets = Places { blocks, at: 1 }.map(|block| block * self.request_bytes);
        let mut next = || offsets.next().expect("there are always more");
        let done = if self.depth == 1 {
            self.one(&file, memory, next())?;
            ready(String::new())?;
            measure_each(self.requests, || self.one(&file, memory, next()))?
        } else {
            self.many(&file, memory, self.depth, &mut next)?;
            ready(String::new())?;
            measure(|| self.many(&file, memory, self.requests, &mut next))?
        };
        file.close()?;
        Ok(done)
    }

    fn one(&self, file: &File, memory: &mut [u8], offset: u64) -> Result<()> {
        let moved = match self.way {
            Way::Read => file.read_at(memory, offset)?,
            _ => file.write_at(memory, offset)?,
        };
        self.check(moved as u64)
    }

    /// Has `depth` under way until `requests` have ended.
    fn many(
        &self,
        file: &File,
        memory: &mut [u8],
        requests: usize,
        next: &mut dyn FnMut() -> u64,
    ) -> Result<()> {
        let whole = Regions::contiguous(0, self.request_bytes);
        let mut start = |piece: *mut u8| {
            let place = Regions::contiguous(next(), self.request_bytes);
            // SAFETY: the piece is of `memory`, which is borrowed until all have ended; nothing else under way has it.
            unsafe {
                match self.way {
                    Way::Read => file.start_read_raw(piece, &whole, &place),
                    _ => file.start_write_raw(piece, &whole, &place),
                }
            }
        };
        let pieces = memory.chunks_exact_mut(self.request_bytes as usize).take(requests);
        let pieces: Vec<_> = pieces.map(<[u8]>::as_mut_ptr).collect();
        let mut under_way: Vec<_> = pieces.into_iter().map(|piece| (piece, start(piece))).collect();
        let mut left = requests - under_way.len();
        while !under_way.is_empty() {
            let over = finish_some(under_way.iter_mut().map(|(_, one)| one));
            for at in over.into_iter().rev() {
                let (piece, ended) = under_way.swap_remove(at);
                self.check(ended.wait()?)?;
                if left > 0 {
                    left -= 1;
                    under_way.push((piece, start(piece)));
                }
            }
        }
        Ok(())
    }

    fn check(&self, moved_bytes: u64) -> Result<()> {
        ensure!(
            moved_bytes == self.request_bytes,
            "{moved_bytes} of {} bytes were moved",
            self.request_bytes
        );
        Ok(())
    }
}

/// Runs the measurement.
pub fn run(args: RequestsArgs) -> Result<()> {
    let common = &args.testbed.common;
    let transports = if args.transport.is_empty() { TRANSPORTS_DEFAULT } else { &args.transport };
    let io_servers = args.io.unwrap_or(4);
    let scratch = scratch(common, 3 * args.file_bytes)?;
    let (url, key) = (args.testbed.url.as_deref(), &args.testbed.connect);
    let (testbed, without) =
        Testbed::for_transports(url, key, &scratch, io_servers, SyncMode::Nosync, transports)?;
    let transports = usable(transports.to_vec(), |transport| *transport, &without)?;
    let path = testbed.dir.join("requests");
    fill(&testbed.client, &path, args.file_bytes)?;
    let mut fleets = transports.iter().map(|_| Fleet::start(1)).collect::<Result<Vec<_>>>()?;
    let mut raw = Fleet::start(2)?;
    let memory = args.memory.unwrap_or(Memory::Any);
    let mut rows = Vec::new();
    for request_bytes in args.sizes() {
        ensure!(request_bytes <= args.file_bytes, "--file-bytes is less than one request");
        for depth in args.depths() {
            let requests = (BYTES_MIN / request_bytes).clamp(1, REQUESTS_MAX).max(depth as u64);
            let requests = args.requests.map_or(requests as usize, |requests| (requests as usize).max(depth));
            for (transport, fleet) in transports.iter().zip(&mut fleets) {
                for way in [Way::Read, Way::Write] {
                    let task = Requests {
                        url: testbed.url(transport.name()),
                        path: path.clone(),
                        way,
                        memory,
                        request_bytes,
                        file_bytes: args.file_bytes,
                        depth,
                        requests,
                    };
                    let title = format!(
                        "{}, {} {}, depth {depth}",
                        transport.name(),
                        format_bytes(request_bytes),
                        way.name()
                    );
                    rows.extend(measured(&title, &task, common.runs, fleet, &mut raw, *transport, &testbed)?);
                }
            }
        }
    }
    testbed.client.unlink(at(&path))?;
    let parameters = serde_json::json!({
        "file_bytes": args.file_bytes, "io_servers": io_servers, "memory": memory,
    });
    let mut report = Report::new("requests", parameters);
    report.rows = rows;
    report.print(common)
}

/// The rows of one kind of request: requests per second, and the time of one where one is under way.
fn measured(
    title: &str,
    task: &Requests,
    runs: u16,
    fleet: &mut Fleet,
    raw: &mut Fleet,
    transport: Transport,
    testbed: &Testbed,
) -> Result<Vec<Row>> {
    let (mut per_s, mut raw_per_s, mut p50_us, mut p99_us) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut client_s, mut server_s) = (0.0, 0.0);
    let requests = task.requests as f64;
    let socket = match transport {
        Transport::Shm => Socket::Unix,
        _ => Socket::Tcp,
    };
    let (to_server, from_server) = match task.way {
        Way::Read => (MESSAGE_BYTES, task.request_bytes),
        _ => (task.request_bytes, MESSAGE_BYTES),
    };
    let exchange = Exchange {
        request_bytes: to_server as usize,
        reply_bytes: from_server as usize,
        depth: task.depth,
        spin_us: ConnectOptions::default().spin_us.into(),
    };
    for _ in 0..runs {
        let to = raw.prepare(1, &Task::Answer { socket, dir: std::env::temp_dir(), exchange })?;
        raw.prepare(0, &Task::Exchange { socket, to, exchange, rounds: task.requests / task.depth })?;
        raw_per_s.push((task.requests / task.depth * task.depth) as f64 / raw.go(0..2)?.seconds);
        let before = testbed.server_load().cpu_s;
        let phase = fleet.run(&[Task::Requests(task.clone())])?;
        server_s += testbed.server_load().cpu_s - before;
        client_s += phase.cpu_s;
        per_s.push(requests / phase.seconds);
        p50_us.push(phase.done[0].p50_ns as f64 / 1e3);
        p99_us.push(phase.done[0].p99_ns as f64 / 1e3);
    }
    let moved = requests * f64::from(runs) * task.request_bytes as f64;
    let limit = format!("{} exchange, same depth", socket.name());
    let mut rows =
        vec![Row::new(title, "per s", per_s).against(limit, &raw_per_s).with_cpu(client_s, server_s, moved)];
    if task.depth == 1 {
        rows.push(Row::new(format!("{title}, p50"), "µs", p50_us));
        rows.push(Row::new(format!("{title}, p99"), "µs", p99_us));
    }
    Ok(rows)
}

/// Makes the file, with data everywhere.
fn fill(client: &Client, path: &Path, file_bytes: u64) -> Result<()> {
    const PART_BYTES: u64 = 4 << 20;
    let file = client.open(at(path), &OpenOptions::new().write(true).create_new(true).mode(0o644))?;
    for offset in (0..file_bytes).step_by(PART_BYTES as usize) {
        file.write_at(&vec![7; PART_BYTES.min(file_bytes - offset) as usize], offset)?;
    }
    Ok(file.close()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_over_the_file() {
        let places: Vec<_> = Places { blocks: 1000, at: 1 }.take(5000).collect();
        assert!(places.iter().all(|place| *place < 1000));
        let different: std::collections::HashSet<_> = places.iter().collect();
        assert!(different.len() > 950, "{}", different.len());
    }
}
