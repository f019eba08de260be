//! Small reads, one after the other, or with pauses in which the machine is idle.
//!
//! The time depends mostly on how processes wait: one that sleeps must be woken first. So each result is
//! beside a raw ping-pong of the same size whose ends wait as Weft's do: the caller polls as long before it
//! sleeps as the client library does, and the answering end sleeps at once, as a server does by default.

use super::fleet::Fleet;
use super::limits::{PING_BYTES, exchange_raw};
use super::report::{Report, Row};
use super::scratch::{Testbed, scratch};
use super::worker::Task;
use super::worker::ping::{Exchange, Socket};
use anyhow::Result;
use weft_bench_args::LatencyArgs;
use weft_cli_common::connections::at;
use weft_client::ConnectOptions;
use weft_server::SyncMode;

/// Times over one transport.
#[derive(Default)]
struct Times {
    weft_p50: Vec<f64>,
    weft_p99: Vec<f64>,
    raw_p50: Vec<f64>,
    raw_p99: Vec<f64>,
    sleeping_p50: Vec<f64>,
    sleeping_p99: Vec<f64>,
}

/// Runs the measurement.
pub fn run(args: LatencyArgs) -> Result<()> {
    let rounds = args.rounds as usize;
    let scratch = scratch(&args.testbed.common, 64 << 20)?;
    let testbed =
        Testbed::new(args.testbed.url.as_deref(), &args.testbed.connect, &scratch, 1, SyncMode::Nosync)?;
    let path = testbed.dir.join("small-file");
    let options = weft_client::OpenOptions::new().write(true).create_new(true).mode(0o644);
    let file = testbed.client.open(at(&path), &options)?;
    file.write_at(&[7; PING_BYTES], 0)?;
    file.close()?;
    let spin_us = u64::from(ConnectOptions::default().spin_us);
    let pause_us = args.pause_us;
    let ping = |spin_us| Exchange { pause_us, ..Exchange::ping_pong(PING_BYTES, [spin_us, 0]) };
    let ways = [("tcp", Socket::Tcp), ("shm", Socket::Unix)];
    let mut raw = Fleet::start(2)?;
    let mut fleets = ways.iter().map(|_| Fleet::start(1)).collect::<Result<Vec<_>>>()?;
    let mut times = [Times::default(), Times::default()];
    for _ in 0..args.testbed.common.runs {
        for (((transport, socket), fleet), times) in ways.iter().zip(&mut fleets).zip(&mut times) {
            let same = exchange_raw(&mut raw, *socket, scratch.path(), ping(spin_us), rounds)?;
            times.raw_p50.push(same.done[0].p50_us());
            times.raw_p99.push(same.done[0].p99_us());
            let sleeping = exchange_raw(&mut raw, *socket, scratch.path(), ping(0), rounds)?;
            times.sleeping_p50.push(sleeping.done[0].p50_us());
            times.sleeping_p99.push(sleeping.done[0].p99_us());
            let (url, path, bytes) = (testbed.url(transport), path.clone(), PING_BYTES);
            let phase = fleet.run(&[Task::ReadAgain { url, path, bytes, rounds, pause_us }])?;
            times.weft_p50.push(phase.done[0].p50_us());
            times.weft_p99.push(phase.done[0].p99_us());
        }
    }
    testbed.client.unlink(at(&path))?;
    let parameters = serde_json::json!({
        "bytes": PING_BYTES, "rounds": rounds, "pause_us": pause_us, "client_spin_us": spin_us,
    });
    let mut report = Report::new("latency", parameters);
    for ((transport, socket), times) in ways.iter().zip(times) {
        let ping = format!("{} ping-pong, same waiting", socket.name());
        report.rows.push(
            Row::new(format!("{transport}, 4 KiB read, p50"), "µs", times.weft_p50)
                .against(&ping, &times.raw_p50),
        );
        report.rows.push(
            Row::new(format!("{transport}, 4 KiB read, p99"), "µs", times.weft_p99)
                .against(&ping, &times.raw_p99),
        );
        for (percentile, times_us) in [("p50", times.sleeping_p50), ("p99", times.sleeping_p99)] {
            let title = format!("{} ping-pong, both ends sleep, {percentile}", socket.name());
            report.rows.push(Row::new(title, "µs", times_us));
        }
    }
    report.print(&args.testbed.common)
}
