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

mod access;
mod adapters;
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
mod meta;
mod page_cache;
mod random;
mod rdma;
mod repeated;
mod report;
mod scratch;
mod shared_file;
mod small;
mod subarray;
mod tile;
mod transfer;
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
    /// Tiles of a frame: mpi-tile-io's pattern, by every method side by side (NC 6.6, IB 6.7, Q 4.2).
    Tile(tile::Args),
    /// Columns of a square array of integers, by every method side by side (NC 6.5).
    BlockColumn(block_column::Args),
    /// Ways of moving noncontiguous memory side by side (NC 6.3 and 6.4).
    Transfer(transfer::Args),
    /// Accesses of 1 MiB to disjoint blocks of one file, 4 to 64 at a time (Q 4.1).
    Blocks(blocks::Args),
    /// Solutions of the BT benchmark appended to a file and read back, by every method side by side (NC 6.7).
    Btio(btio::Args),
    /// Small pieces from anywhere in a large file, by every method side by side: what a data loader does.
    Random(random::Args),
    /// What registering memory and single operations take on this host's RDMA adapter, and pinning pages on any machine (NC 4.3).
    RegistrationCosts(rdma::registration_costs::Args),
    /// Registering the rows of an array: done already, one by one, as a group, with holes (NC table 4).
    GroupRegistration(rdma::group_registration::Args),
    /// Transfers of 128 B to 64 KiB by mechanism (IB figure 11).
    Small(small::Args),
    /// A large transfer by the size of its units (IB figure 12).
    Bulk(bulk::Args),
    /// A part of an array by scheme (NC figure 3), and hints about allocations (IB figure 14).
    Subarray(subarray::Args),
    /// Copies through a mount and with weft cp, and a shared file, in one table; what `make run` shows.
    Demo(demo::Args),
    /// System calls on a mount, each timed, in phases.
    Calls(calls::Args),
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
