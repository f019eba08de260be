//! The command line of `weft-bench`, which is also that of `weft bench`. The help, completions and man pages
//! of `weft` are generated from it.

mod cluster;
mod common;
mod kinds;
mod noncontiguous;
mod registration;

pub use cluster::{
    CallsArgs, DemoArgs, LatencyArgs, LimitsArgs, ListArgs, MetaArgs, RequestsArgs, SharedFileArgs,
};
pub use common::{CommonArgs, TestbedArgs};
pub use kinds::{How, Memory, Side, Transport, Way};
pub use noncontiguous::{
    AccessArgs, BlockColumnArgs, BlocksArgs, BtioArgs, Class, RandomArgs, TileArgs, TransferArgs,
};
pub use registration::{
    BulkArgs, FigureArgs, GroupRegistrationArgs, RegistrationCostsArgs, RepeatedArgs, SmallArgs, SubarrayArgs,
};

/// The measurements.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Limits of this machine: memory, loopback TCP, process_vm, local files, ping-pong.
    Limits(LimitsArgs),
    /// Clients write, then read, disjoint parts of one file (PVFS 4.1).
    SharedFile(SharedFileArgs),
    /// 4 KiB reads of a cached file, one after the other, beside raw ping-pongs.
    Latency(LatencyArgs),
    /// Requests of 4 KiB to 1 MiB at random places of a cached file, 1 to 32 under way.
    Requests(RequestsArgs),
    /// Files created, queried and removed per second.
    Meta(MetaArgs),
    /// Entries of a directory listed per second, without and with attributes.
    List(ListArgs),
    /// Tiles of a frame, the pattern of mpi-tile-io, by every method (NC 6.6, IB 6.7, Q 4.2).
    Tile(TileArgs),
    /// Columns of a square array of integers, by every method (NC 6.5).
    BlockColumn(BlockColumnArgs),
    /// Ways of moving noncontiguous memory (NC 6.3 and 6.4).
    Transfer(TransferArgs),
    /// Accesses of 1 MiB to disjoint blocks of one file, 4 to 64 at a time (Q 4.1).
    Blocks(BlocksArgs),
    /// Solutions of the BT benchmark, appended to a file and read back, by every method (NC 6.7).
    Btio(BtioArgs),
    /// Small pieces at random places of a large file, as a data loader reads them, by every method.
    Random(RandomArgs),
    /// Costs of registering memory and of single operations on this host's RDMA adapter, and of pinning pages
    /// on any machine (NC 4.3).
    RegistrationCosts(RegistrationCostsArgs),
    /// Registering the rows of an array: already registered, one by one, as a group, with holes (NC table 4).
    GroupRegistration(GroupRegistrationArgs),
    /// Transfers of 128 B to 64 KiB by mechanism (IB figure 11).
    Small(SmallArgs),
    /// A large transfer, by the size of its requests (IB figure 12).
    Bulk(BulkArgs),
    /// A part of an array, by scheme (NC figure 3), and hints about allocations (IB figure 14).
    Subarray(SubarrayArgs),
    /// Copies through a mount and with weft cp, and a shared file, in one table; `make run` shows it.
    Demo(DemoArgs),
    /// System calls on a mount, each timed, in phases.
    Calls(CallsArgs),
    /// A client process of another measurement.
    #[command(hide = true)]
    Worker,
}
