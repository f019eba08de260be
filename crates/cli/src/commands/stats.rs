//! `weft stats`

use crate::load::{Load, Look, ServerLoad};
use anyhow::{Result, bail};
use std::io::Write;
use std::time::Duration;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::place::WeftPath;
use weft_cli_common::{output, size};

/// Lines before the heading is repeated.
const LINES_PER_HEADING: u64 = 20;

/// Prints a line of the load of a file system every second: operations, bytes, errors, processors.
///
/// All servers together; with --servers one line for each. `weft top` shows servers and clients live, and
/// docs/metrics.md says what servers and mounts tell Prometheus.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Seconds between two lines.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    interval: f64,
    /// How many times; without it until Ctrl-C.
    #[arg(short, long, value_name = "COUNT")]
    count: Option<u64>,
    /// A line for each server.
    #[arg(long)]
    servers: bool,
    /// Print each time as a line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be from 0.1 to 3600 seconds".into()),
    }
}

/// Prints the load again and again.
pub fn run(args: Args) -> Result<()> {
    let place = WeftPath::from_argument(&args.url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let mut before = Look::at(&client);
    if !before.has_any() {
        bail!("no server of {} says how it is", place.url);
    }
    let mut out = output::stdout();
    for number in 0..args.count.unwrap_or(u64::MAX) {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        let now = Look::at(&client);
        let load = Load::between(&before, &now);
        before = now;
        if args.json {
            serde_json::to_writer(&mut out, &load)?;
            writeln!(out)?;
        } else {
            if number % LINES_PER_HEADING == 0 {
                writeln!(out, "{}", heading())?;
            }
            match args.servers {
                true => load.servers.iter().try_for_each(|server| writeln!(out, "{}", line(server)))?,
                false => writeln!(out, "{}", line(&load.total()))?,
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn heading() -> String {
    format!(
        "{:10} {:>9} {:>8} {:>12} {:>12} {:>7} {:>6} {:>7}",
        "server", "ops/s", "errors/s", "read/s", "written/s", "active", "cpus", "clients"
    )
}

fn line(server: &ServerLoad) -> String {
    if !server.up {
        return format!("{:10} does not answer", server.server);
    }
    format!(
        "{:10} {:>9.0} {:>8.0} {:>12} {:>12} {:>7} {:>6.2} {:>7}",
        server.server,
        server.operations_per_s,
        server.errors_per_s,
        size::format_bytes(server.read_bytes_per_s as u64),
        size::format_bytes(server.written_bytes_per_s as u64),
        server.active_requests,
        server.processors,
        server.clients
    )
}
