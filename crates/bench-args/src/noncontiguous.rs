//! Options of measurements of noncontiguous access.

use crate::common::TestbedArgs;
use crate::kinds::{How, Side, Transport, Way};
use std::path::PathBuf;
use weft_cli_common::size::parse_bytes;

/// Options of every measurement of noncontiguous access.
#[derive(Debug, Clone, clap::Args)]
pub struct AccessArgs {
    /// Only these transports [default: tcp,shm]. With rdma the cluster is started on this host's first RDMA
    /// adapter.
    #[arg(long, alias = "over", value_enum, value_name = "TRANSPORT", value_delimiter = ',')]
    pub transport: Vec<Transport>,
    /// Only these methods.
    #[arg(long, value_enum, value_name = "METHOD", value_delimiter = ',')]
    pub method: Vec<How>,
    /// Only these kinds of access.
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    pub way: Vec<Way>,
    /// Drop the data from the servers' page caches before each read and overwrite; needs --dir on a disk.
    #[arg(long, conflicts_with = "url")]
    pub uncached: bool,
    /// Count the time until written data is durable.
    #[arg(long)]
    pub sync: bool,
    /// I/O servers of the cluster that is started [default: 4].
    #[arg(long, value_name = "COUNT", conflicts_with = "url", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub io: Option<u16>,
    /// Apply a case with less data to several files, up to 32, so that it takes long enough to measure.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_bytes)]
    pub least_bytes: u64,
    /// Also print the costs of each method: requests, accesses by the servers, bytes wanted, accessed and
    /// moved, processor time (NC table 6), and operations of RDMA adapters. JSON always has them.
    #[arg(long)]
    pub counters: bool,
    /// Draw a chart of the results to FILE.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The cluster, and options of every measurement.
    #[command(flatten)]
    pub testbed: TestbedArgs,
}

/// Each of 4 processes writes and reads its tile of a frame.
///
/// A row of the tile is a piece. Elements have 3, 24, 32 and 64 bytes. Those of 24 and 64 bytes are also
/// measured with memory that holds the whole frame, where the tile is in pieces too.
#[derive(Debug, clap::Args)]
pub struct TileArgs {
    /// Bytes of an element [default: 3, 24, 32, 64].
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub element: Vec<u64>,
    /// Columns and rows of a tile.
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "1024x768", value_parser = parse_tile)]
    pub tile: [u64; 2],
    /// Only this kind of memory.
    #[arg(long, value_enum)]
    pub memory: Option<Side>,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Each of 4 processes writes and reads a quarter of the columns of an array of N × N 4-byte integers.
#[derive(Debug, clap::Args)]
pub struct BlockColumnArgs {
    /// N, a multiple of 4 [default: 512, 1024, 2048, 4096, 8192].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_size)]
    pub size: Vec<u64>,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Each of 4 processes moves 128 pieces of memory to and from one place in the file (NC 6.3).
///
/// Also: quarters of square arrays of integers in memory, to one place in the file (NC 6.4) and to a quarter
/// of such an array in the file.
#[derive(Debug, clap::Args)]
pub struct TransferArgs {
    /// Bytes of a piece [default: 128, 256, ... 8K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub piece: Vec<u64>,
    /// Pieces per call.
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub pieces: u64,
    /// Rows and columns of an array, even [default: 256, 512, ... 4096].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(2..=32768))]
    pub array: Vec<u64>,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Each of 4 processes writes and reads 4 to 64 blocks of 1 MiB, which are assigned to the processes in turn.
///
/// The blocks are accessed one after the other, all started at once, and as one list.
#[derive(Debug, clap::Args)]
pub struct BlocksArgs {
    /// Blocks of each process [default: 4, 8, 16, 32, 64].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub blocks: Vec<u64>,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_bytes)]
    pub block_bytes: u64,
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub clients: u64,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// q² processes append 40 solutions of the BT benchmark to a file and read them back.
///
/// A solution is a cube of points of 5 doubles. Each process has q cells of the cube. They are noncontiguous
/// in the file, and also in memory because of the ghost points around them. Only the access is measured, not
/// the computation.
#[derive(Debug, clap::Args)]
pub struct BtioArgs {
    /// Size of the cube [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub class: Vec<Class>,
    /// Processes: a square.
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = parse_square)]
    pub clients: u64,
    /// Number of solutions: NPB appends one after every fifth of 200 steps.
    #[arg(long, value_name = "COUNT", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub solutions: u64,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// A size of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Class {
    /// 12³ points.
    S,
    /// 24³ points.
    W,
    /// 64³ points.
    A,
}

impl Class {
    /// Points along each side of the cube.
    pub fn points(self) -> u64 {
        match self {
            Class::S => 12,
            Class::W => 24,
            Class::A => 64,
        }
    }
}

/// Reads and overwrites pieces of 64 bytes to 64 KiB at random places, in one call.
///
/// There are 1,000,000 pieces, or as many as make a quarter of the file. Multiple I/O and client sieving are
/// measured with 20,000.
#[derive(Debug, clap::Args)]
pub struct RandomArgs {
    /// Bytes of a piece [default: 64, 256, 1K, 4K, 16K, 64K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    pub piece: Vec<u64>,
    /// Upper limit of pieces per process.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub pieces: u64,
    /// Size of the file.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    pub file_bytes: u64,
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub clients: u64,
    /// Seed of the random places.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Options of every pattern.
    #[command(flatten)]
    pub access: AccessArgs,
}

/// Parses `COLUMNSxROWS`.
pub(crate) fn parse_tile(text: &str) -> Result<[u64; 2], String> {
    let numbers =
        text.split_once('x').and_then(|(columns, rows)| Some([columns.parse().ok()?, rows.parse().ok()?]));
    match numbers {
        Some([columns @ 1..=65536, rows @ 1..=65536]) => Ok([columns, rows]),
        _ => Err(format!("`{text}` is not the size of a tile; write for example 1024x768")),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(size @ 4..=65536) if size % 4 == 0 => Ok(size),
        _ => Err(format!("`{text}` is not a multiple of 4 from 4 to 65536")),
    }
}

fn parse_square(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(count @ 1..=144) if count.isqrt().pow(2) == count => Ok(count),
        _ => Err(format!("`{text}` is not a square from 1 to 144")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_two_sizes() {
        assert_eq!(parse_tile("1024x768"), Ok([1024, 768]));
        assert!(["", "1024", "0x5", "axb", "1x2x3"].iter().all(|text| parse_tile(text).is_err()));
    }

    #[test]
    fn processes_are_a_square() {
        assert_eq!(parse_square("9"), Ok(9));
        assert!(["0", "5", "x", "169"].iter().all(|text| parse_square(text).is_err()));
    }
}
