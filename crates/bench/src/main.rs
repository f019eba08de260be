//! `weft-bench`: measurements, each beside the machine's own limits in the same run.
//!
//! ```text
//!   this process              workers: separate processes, like the programs on a cluster
//!   prepare(task) ──────────► connect, open, fill memory ──► ready
//!   go ─────────────────────► all at once; each records start, end and processor time
//!   first start … last end ◄─ done
//! ```
//!
//! Repetitions of limits and Weft alternate, and the median is reported. Without `--url` it starts its own
//! cluster in a scratch directory, and removes it at the end and when interrupted.

mod access;
mod adapters;
mod amounts;
mod block_column;
mod blocks;
mod btio;
mod bulk;
mod calls;
mod chart;
mod demo;
mod figure;
mod fleet;
mod latency;
mod limits;
mod list;
mod meta;
mod numbers;
mod page_cache;
mod progress;
mod random;
mod rdma;
mod repeated;
mod report;
mod requests;
mod scratch;
mod shared_file;
mod small;
mod subarray;
mod tile;
mod transfer;
mod worker;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use weft_bench_args::Command;
use weft_cli_common::{is_broken_pipe, output};

/// The same allocator as in `weft`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Weft's performance beside the limits of this machine. `weft bench` starts it.
#[derive(Debug, Parser)]
#[command(name = "weft-bench", version, disable_help_subcommand = true, max_term_width = 90)]
struct Cli {
    /// The measurement.
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    if let Command::Worker = command {
        return worker::run();
    }
    scratch::clean_up_when_interrupted()?;
    match command {
        Command::Limits(args) => limits::run(args),
        Command::SharedFile(args) => shared_file::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Meta(args) => meta::run(args),
        Command::Requests(args) => requests::run(args),
        Command::List(args) => list::run(args),
        Command::Tile(args) => tile::run(args),
        Command::BlockColumn(args) => block_column::run(args),
        Command::Transfer(args) => transfer::run(args),
        Command::Blocks(args) => blocks::run(args),
        Command::Btio(args) => btio::run(args),
        Command::Random(args) => random::run(args),
        Command::RegistrationCosts(args) => rdma::registration_costs::run(args),
        Command::GroupRegistration(args) => rdma::group_registration::run(args),
        Command::Small(args) => small::run(args),
        Command::Bulk(args) => bulk::run(args),
        Command::Subarray(args) => subarray::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Calls(args) => calls::run(args),
        Command::Worker => worker::run(),
    }
}
