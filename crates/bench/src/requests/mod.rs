//! Requests of 4 KiB to 1 MiB at random places of a cached file, one or many under way.
//!
//! ```text
//!   depth 1      read ─ wait ─ read ─ wait ─ …            round trips
//!   depth 32     start ×32 ─ wait for some ─ start as many …   what a request costs both processors
//! ```
//!
//! Beside it: a raw exchange over the socket of the transport, with as many under way, whose ends wait as Weft's
//! do. One end sends the bytes of a request and gets those of its reply.

pub mod task;

use self::task::Requests;
use super::fleet::Fleet;
use super::limits::exchange_raw;
use super::report::{Report, Row};
use super::scratch::{TRANSPORTS_DEFAULT, Testbed, scratch, usable};
use super::worker::Task;
use super::worker::ping::{Exchange, Socket};
use anyhow::{Result, ensure};
use std::path::Path;
use weft_bench_args::{Memory, RequestsArgs, Transport, Way};
use weft_cli_common::connections::at;
use weft_cli_common::size::format_bytes;
use weft_client::{Client, ConnectOptions, OpenOptions};
use weft_server::SyncMode;

/// A repetition moves this much, in this many requests at most.
const REPETITION_BYTES: u64 = 64 << 20;
const REQUESTS_MAX: u64 = 20_000;
/// Bytes of a request or reply without data, in the raw exchange.
const MESSAGE_BYTES: u64 = 128;

/// Runs the measurement.
pub fn run(args: RequestsArgs) -> Result<()> {
    let common = &args.testbed.common;
    for size in args.sizes() {
        ensure!(size > 0, "--size 0: a request has at least one byte");
        let (size_text, file_text) = (format_bytes(size), format_bytes(args.file_bytes));
        ensure!(
            size <= args.file_bytes,
            "a request of {size_text} is more than the file: --file-bytes {file_text}"
        );
    }
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
        for depth in args.depths() {
            let requests = (REPETITION_BYTES / request_bytes).clamp(1, REQUESTS_MAX).max(depth as u64);
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
                    let fleets = [&mut *fleet, &mut raw];
                    let beside = (*transport, scratch.path());
                    rows.extend(measured(&title, &task, common.runs, fleets, beside, &testbed)?);
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
    [fleet, raw]: [&mut Fleet; 2],
    (transport, dir): (Transport, &Path),
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
        pause_us: 0,
        spin_us: [ConnectOptions::default().spin_us.into(), 0],
    };
    for _ in 0..runs {
        let rounds = task.requests / task.depth;
        let phase = exchange_raw(raw, socket, dir, exchange, rounds)?;
        raw_per_s.push((rounds * task.depth) as f64 / phase.seconds);
        let before = testbed.server_load().cpu_s;
        let phase = fleet.run(&[Task::Requests(task.clone())])?;
        server_s += testbed.server_load().cpu_s - before;
        client_s += phase.cpu_s;
        per_s.push(requests / phase.seconds);
        p50_us.push(phase.done[0].p50_us());
        p99_us.push(phase.done[0].p99_us());
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
