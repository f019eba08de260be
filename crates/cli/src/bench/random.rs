//! Small pieces from anywhere in a large file: what a data loader does.

use super::access::method::Way;
use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, AccessArgs, Bench, Case};
use super::chart::Marks;
use crate::size::{format_bytes, parse_bytes};
use anyhow::{Result, bail};

/// Reads, and writes over, pieces of 64 bytes to 64 KiB in one call, in no order: 1,000,000 of them, or as many as are a quarter of
/// the file. Multiple I/O and client sieving are measured with 20,000.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Bytes of a piece [default: 64, 256, 1K, 4K, 16K, 64K].
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_bytes)]
    piece: Vec<u64>,
    /// Pieces of each process, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pieces: u64,
    /// Size of the file.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    file_bytes: u64,
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    /// Other numbers mean other pieces.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// Measures.
pub fn run(args: Args) -> Result<()> {
    let sizes = if args.piece.is_empty() {
        vec![64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10]
    } else {
        args.piece.clone()
    };
    let cases = sizes.into_iter().map(|bytes| case(&args, bytes)).collect::<Result<Vec<_>>>()?;
    let bench = Bench {
        name: "random",
        title: "Random pieces of a large file, by bytes of a piece",
        marks: Marks::Lines,
        parameters: serde_json::json!({
            "clients": args.clients, "pieces_max": args.pieces, "file_bytes": args.file_bytes, "seed": args.seed,
        }),
        methods: ACCESS_METHODS,
        ways: &[Way::Read, Way::Rewrite],
        cases,
    };
    access::run(bench, &args.access)
}

fn case(args: &Args, piece_bytes: u64) -> Result<Case> {
    let (ranks, file_bytes) = (args.clients, args.file_bytes);
    let room = file_bytes / 4 / piece_bytes.max(1) / ranks;
    if piece_bytes == 0 || room == 0 {
        bail!("a quarter of {} has no room for a piece of {piece_bytes} bytes", format_bytes(file_bytes));
    }
    let pieces = args.pieces.min(room);
    Ok(Case {
        name: format!("{}, {pieces} pieces", format_bytes(piece_bytes)),
        pattern: Pattern::Random { ranks, pieces, piece_bytes, file_bytes, seed: args.seed },
    })
}
