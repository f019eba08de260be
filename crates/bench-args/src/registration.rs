//! Options of measurements of RDMA: registrations, and repeated transfers.

use crate::common::CommonArgs;
use crate::kinds::{Transport, Way};
use crate::noncontiguous::parse_tile;
use std::path::PathBuf;
use weft_cli_common::connections::KeyArgs;
use weft_cli_common::size::parse_bytes;

/// Options of a measurement with a chart.
#[derive(Debug, Clone, clap::Args)]
pub struct FigureArgs {
    /// Draw a chart of the results to FILE.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Measures the cost of registering and deregistering memory, and of single operations.
///
/// Memory is 1 to 4096 pages, and 1 to 100 buffers at once. It is registered with this host's first RDMA
/// adapter and, as a proxy on every machine, as fixed buffers of io_uring. The result has a and b of T = a x
/// pages + b. If there is an adapter: Sends, RDMA Writes and RDMA Reads of 4 bytes to 1 MiB.
#[derive(Debug, clap::Args)]
pub struct RegistrationCostsArgs {
    /// Registrations of each size in a repetition.
    #[arg(long, value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Upper limit of pages per registration.
    #[arg(long, value_name = "COUNT", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub pages: u32,
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
}

/// Measures ways to register the rows of an array.
///
/// They are the 1024 rows of 4 KiB that one of four processes has of a 2048 x 2048 array of integers. They
/// are registered with this host's first RDMA adapter and, as a proxy on every machine, as fixed buffers of
/// io_uring. The result has registrations, pages and time, beside the costs that the model predicts.
#[derive(Debug, clap::Args)]
pub struct GroupRegistrationArgs {
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
}

/// Options of measurements of repeated transfers.
#[derive(Debug, Clone, clap::Args)]
pub struct RepeatedArgs {
    /// Only these transports.
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// Only these kinds of access.
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub way: Vec<Way>,
    /// Transfers in each repetition; their median is one sample [default: enough to be measured].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Also print the operations of RDMA adapters per transfer. JSON always has them.
    #[arg(long)]
    pub counters: bool,
    /// Measure this cluster instead of starting one.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Options of every figure.
    #[command(flatten)]
    pub figure: FigureArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}

/// One client reads and writes 128 B to 64 KiB, one request after the other.
///
/// Over RDMA it uses each mechanism, with registered and with unregistered memory; over shared memory and
/// TCP, the defaults.
#[derive(Debug, clap::Args)]
pub struct SmallArgs {
    /// Sizes [default: 128, 256, ... 64K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub size: Vec<u64>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}

/// One client moves 32 MiB to and from one I/O server, in requests of 64 KiB to 32 MiB, one or two at a time.
#[derive(Debug, clap::Args)]
pub struct BulkArgs {
    /// Bytes in total.
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Bytes of a request [default: 64K, 128K, ... all].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub unit: Vec<u64>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}

/// One client moves a quarter of a square array of integers to and from one I/O server, by scheme.
///
/// With --tile: tiles of a frame with 64-byte elements in noncontiguous memory, of four clients and four
/// servers, with and without hints about the allocation that the rows are part of.
#[derive(Debug, clap::Args)]
pub struct SubarrayArgs {
    /// Rows and columns of an array, even [default: 512, 1024, 2048, 4096].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(2..=32768))]
    pub array: Vec<u64>,
    /// Measure tiles of this size instead, with and without hints about allocations [default size: 1024x768].
    #[arg(long, value_name = "COLUMNSxROWS", conflicts_with = "array", num_args = 0..=1, default_missing_value = "1024x768",
          value_parser = parse_tile)]
    pub tile: Option<[u64; 2]>,
    /// Options of every repeated transfer.
    #[command(flatten)]
    pub repeated: RepeatedArgs,
}
