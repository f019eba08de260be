//! Ways of moving noncontiguous memory: one message per piece, packed, or directly from and to the pieces.

use super::access::pattern::Pattern;
use super::access::{self, Bench, Case};
use super::chart::Marks;
use anyhow::Result;
use weft_bench_args::{How, Side, TransferArgs, Way};
use weft_cli_common::size::format_bytes;

/// Client processes.
const RANKS: u64 = 4;
/// Upper limit of calls of a process to one file.
const STEPS_MAX: u64 = 256;

/// Runs the measurement.
pub fn run(args: TransferArgs) -> Result<()> {
    let none = args.piece.is_empty() && args.array.is_empty();
    let pieces = if none { vec![128, 256, 512, 1024, 2048, 4096, 8192] } else { args.piece.clone() };
    let arrays = if none { vec![256, 512, 1024, 2048, 4096] } else { args.array.clone() };
    let mut cases: Vec<Case> =
        pieces.into_iter().map(|bytes| pieces_case(args.pieces, bytes, args.access.least_bytes)).collect();
    for (file, what) in [(Side::Contiguous, ""), (Side::Noncontiguous, ", file too")] {
        cases.extend(arrays.iter().map(|size| Case {
            name: format!("{size}²{what}"),
            pattern: Pattern::Quadrants { size: size / 2 * 2, file },
        }));
    }
    let bench = Bench {
        name: "transfer",
        title: "Moving noncontiguous memory, 4 processes: pieces of one size, and quarters of arrays",
        marks: Marks::Bars,
        parameters: serde_json::json!({ "clients": RANKS, "pieces": args.pieces }),
        methods: &[How::Messages, How::Pack, How::Direct, How::List],
        ways: &[Way::Write, Way::Read, Way::Rewrite],
        cases,
    };
    access::run(bench, &args.access)
}

/// A case with as many calls, one after the other, as move `least_bytes`.
fn pieces_case(pieces: u64, piece_bytes: u64, least_bytes: u64) -> Case {
    let piece_bytes = piece_bytes.max(1);
    let steps = (least_bytes / (RANKS * pieces * piece_bytes)).clamp(1, STEPS_MAX);
    Case {
        name: format!("{pieces} x, {}", format_bytes(piece_bytes)),
        pattern: Pattern::Pieces { ranks: RANKS, pieces, piece_bytes, steps },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_calls_are_repeated() {
        let steps = |bytes| match pieces_case(128, bytes, 64 << 20).pattern {
            Pattern::Pieces { steps, .. } => steps,
            _ => 0,
        };
        assert_eq!((steps(128), steps(8192), steps(1 << 20)), (256, 16, 1));
    }
}
