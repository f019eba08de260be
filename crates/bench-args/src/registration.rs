//! What RDMA takes: registrations, and transfers that repeat.

use crate::noncontiguous::parse_tile;
use crate::{CommonArgs, Transport, Way};
use std::path::PathBuf;
use weft_cli_common::session::KeyArgs;
use weft_cli_common::size::parse_bytes;

/// Options of a measurement that makes figures.
#[derive(Debug, Clone, clap::Args)]
pub struct FigureArgs {
    /// Draw the results to FILE.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Registration and deregistration of 1 to 4096 pages, and of 1 to 100 buffers at once, with this host's first RDMA adapter and, as
/// their proxy on every machine, as fixed buffers of io_uring; a and b of T = a x pages + b; and sends, RDMA Writes and RDMA Reads
/// of 4 bytes to 1 MiB where there is an adapter.
#[derive(Debug, clap::Args)]
pub struct RegistrationCostsArgs {
    /// Registrations of each size in a repetition.
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Most pages of a registration.
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub pages: u32,
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
}

/// The 1024 rows of 4 KiB that one of four processes has of a 2048 x 2048 array of integers, registered with this host's first RDMA
/// adapter and, as its proxy on every machine, as fixed buffers of io_uring: registrations, pages and time, next to what the cost
/// model says.
#[derive(Debug, clap::Args)]
pub struct GroupRegistrationArgs {
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
}

/// Options of measurements that repeat.
#[derive(Debug, Clone, clap::Args)]
pub struct RepeatedArgs {
    /// These transports only.
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// These ways of access only.
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub way: Vec<Way>,
    /// Transfers in each repetition; their median is one sample [default: what takes long enough].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Print what RDMA adapters were asked too, for each transfer. JSON has it always.
    #[arg(long)]
    pub counters: bool,
    /// Measure this cluster instead of one of its own.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// Reads and writes of 128 B to 64 KiB, one after the other, by one client: over RDMA by each mechanism, with memory that is registered
/// and with memory that is not; over shared memory and TCP as they are.
#[derive(Debug, clap::Args)]
pub struct SmallArgs {
    /// Sizes [default: 128, 256, ... 64K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub size: Vec<u64>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}

/// 32 MiB between one client and one I/O server, in requests of 64 KiB to 32 MiB, one and two under way.
#[derive(Debug, clap::Args)]
pub struct BulkArgs {
    /// Bytes of all.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Bytes of a unit [default: 64K, 128K, ... all].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub unit: Vec<u64>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}

/// The quarter of a square array of integers between one client and one I/O server, by scheme; or, with --tile, tiles of a frame with 64-byte
/// elements in noncontiguous memory, of four clients and four servers, with and without telling what the rows are part of.
#[derive(Debug, clap::Args)]
pub struct SubarrayArgs {
    /// Rows and columns of an array, even [default: 512, 1024, 2048, 4096].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(2..=32768))]
    pub array: Vec<u64>,
    /// Tiles of this size instead, with and without hints about allocations [default of the size: 1024x768].
    #[arg(long, value_name = "COLUMNSxROWS", conflicts_with = "array", num_args = 0..=1, default_missing_value = "1024x768",
          value_parser = parse_tile)]
    pub tile: Option<[u64; 2]>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}
