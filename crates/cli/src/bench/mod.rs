//! Measurements, each next to the machine's own limit from the same run.
//!
//! ```text
//!   this process              workers: processes of their own, as programs on a cluster are
//!   prepare(task) ──────────► connect, open, fill memory ──► ready
//!   go ─────────────────────► all at once; each notes begin, end and processor time
//!   first begin … last end ◄─ done
//! ```
//!
//! A measurement is repeated, limits and Weft by turns, and the median is told. Without `--url` a cluster of its own is started
//! in a scratch directory and removed again, also when interrupted.

mod demo;
mod fleet;
mod latency;
mod limits;
mod meta;
mod report;
mod scratch;
mod shared_file;
mod worker;

use anyhow::Result;
use std::path::PathBuf;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// What this machine can do: memory, loopback TCP, process_vm, local files, ping-pong.
    Limits(limits::Args),
    /// All clients write, then read, disjoint parts of one file (section 4.1 of the PVFS paper).
    SharedFile(shared_file::Args),
    /// 4 KiB reads of a cached file, one after the other, next to raw ping-pongs.
    Latency(latency::Args),
    /// Files created, examined and removed per second.
    Meta(meta::Args),
    /// Copies through a mount and with weft cp, and a shared file, in one table; what `make run` shows.
    Demo(demo::Args),
    /// One of the processes that the others measure with.
    #[command(hide = true)]
    Worker,
}

/// Options of every measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// Repetitions; the median is told.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Where to make the scratch directory [default: /dev/shm where there is room, else the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    /// Write the results as JSON to FILE too.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// Measures.
pub fn run(command: Command) -> Result<()> {
    if let Command::Worker = command {
        return worker::run();
    }
    scratch::clean_up_when_interrupted()?;
    match command {
        Command::Limits(args) => limits::run(args),
        Command::SharedFile(args) => shared_file::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Meta(args) => meta::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Worker => worker::run(),
    }
}
