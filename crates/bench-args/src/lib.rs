//! The command line of `weft-bench`, which is also that of `weft bench`: the help, completions and man pages of `weft` are made from it.

mod cluster;
mod kinds;
mod noncontiguous;
mod registration;

pub use cluster::{CallsArgs, DemoArgs, LatencyArgs, LimitsArgs, MetaArgs, SharedFileArgs};
pub use kinds::{How, Memory, Side, Transport, Way};
pub use noncontiguous::{
    AccessArgs, BlockColumnArgs, BlocksArgs, BtioArgs, Class, RandomArgs, TileArgs, TransferArgs,
};
pub use registration::{
    BulkArgs, FigureArgs, GroupRegistrationArgs, RegistrationCostsArgs, RepeatedArgs, SmallArgs, SubarrayArgs,
};

use std::path::PathBuf;

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// What this machine can do: memory, loopback TCP, process_vm, local files, ping-pong.
    Limits(LimitsArgs),
    /// All clients write, then read, disjoint parts of one file (section 4.1 of the PVFS paper).
    SharedFile(SharedFileArgs),
    /// 4 KiB reads of a cached file, one after the other, next to raw ping-pongs.
    Latency(LatencyArgs),
    /// Files created, examined and removed per second.
    Meta(MetaArgs),
    /// Tiles of a frame: mpi-tile-io's pattern, by every method side by side (NC 6.6, IB 6.7, Q 4.2).
    Tile(TileArgs),
    /// Columns of a square array of integers, by every method side by side (NC 6.5).
    BlockColumn(BlockColumnArgs),
    /// Ways of moving noncontiguous memory side by side (NC 6.3 and 6.4).
    Transfer(TransferArgs),
    /// Accesses of 1 MiB to disjoint blocks of one file, 4 to 64 at a time (Q 4.1).
    Blocks(BlocksArgs),
    /// Solutions of the BT benchmark appended to a file and read back, by every method side by side (NC 6.7).
    Btio(BtioArgs),
    /// Small pieces from anywhere in a large file, by every method side by side: what a data loader does.
    Random(RandomArgs),
    /// What registering memory and single operations take on this host's RDMA adapter, and pinning pages on any machine (NC 4.3).
    RegistrationCosts(RegistrationCostsArgs),
    /// Registering the rows of an array: done already, one by one, as a group, with holes (NC table 4).
    GroupRegistration(GroupRegistrationArgs),
    /// Transfers of 128 B to 64 KiB by mechanism (IB figure 11).
    Small(SmallArgs),
    /// A large transfer by the size of its units (IB figure 12).
    Bulk(BulkArgs),
    /// A part of an array by scheme (NC figure 3), and hints about allocations (IB figure 14).
    Subarray(SubarrayArgs),
    /// Copies through a mount and with weft cp, and a shared file, in one table; what `make run` shows.
    Demo(DemoArgs),
    /// System calls on a mount, each timed, in phases.
    Calls(CallsArgs),
    /// One of the processes that the others measure with.
    #[command(hide = true)]
    Worker,
}

/// Options of every measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// Repetitions; the median is told.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Where to make the scratch directory [default: /dev/shm where there is room, else the directory for temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the results as JSON to FILE too.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}
