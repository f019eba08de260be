//! Accesses of 1 MiB to disjoint blocks of one file, several at a time (Q 4.1).

use super::access::pattern::Pattern;
use super::access::{self, Bench, Case};
use super::chart::Marks;
use anyhow::Result;
use weft_bench_args::{BlocksArgs, How, Way};

/// Runs the measurement.
pub fn run(args: BlocksArgs) -> Result<()> {
    let counts = if args.blocks.is_empty() { vec![4, 8, 16, 32, 64] } else { args.blocks.clone() };
    let (ranks, block_bytes) = (args.clients, args.block_bytes.max(1));
    let case = |blocks: u64| Case {
        name: format!("{blocks} blocks"),
        pattern: Pattern::Blocks { ranks, blocks, block_bytes },
    };
    let bench = Bench {
        name: "blocks",
        title: "Disjoint blocks of one file, by blocks of each process",
        marks: Marks::Bars,
        parameters: serde_json::json!({ "clients": ranks, "block_bytes": block_bytes }),
        methods: &[
            How::Multiple,
            How::AtOnce,
            How::ClientSieve,
            How::Each,
            How::Sieve,
            How::Mapped,
            How::List,
        ],
        ways: &[Way::Write, Way::Read, Way::Rewrite],
        cases: counts.into_iter().map(case).collect(),
    };
    access::run(bench, &args.access)
}
