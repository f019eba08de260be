//! Small pieces at random places of a large file, as a data loader reads them.

use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, Bench, Case};
use super::chart::Marks;
use anyhow::{Result, bail};
use weft_bench_args::{RandomArgs, Way};
use weft_cli_common::size::format_bytes;

/// Runs the measurement.
pub fn run(args: RandomArgs) -> Result<()> {
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

fn case(args: &RandomArgs, piece_bytes: u64) -> Result<Case> {
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
