//! Accesses of 1 MiB to disjoint blocks of one file, several at a time (Q 4.1).

use super::access::method::{How, Way};
use super::access::pattern::Pattern;
use super::access::{self, AccessArgs, Bench, Case};
use super::chart::Marks;
use crate::size::parse_bytes;
use anyhow::Result;

/// Each of 4 processes writes and reads 4 to 64 blocks of 1 MiB, dealt out in turn: one after the other, all started at once, and as
/// one list.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Blocks of each process [default: 4, 8, 16, 32, 64].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4096))]
    blocks: Vec<u64>,
    /// Bytes of a block.
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_bytes)]
    block_bytes: u64,
    /// Client processes.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    clients: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// Measures.
pub fn run(args: Args) -> Result<()> {
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
