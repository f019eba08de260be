//! Columns of a square array that is stored row by row (NC 6.5, figure 5): one unit in four of each row.

use super::access::method::Way;
use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, AccessArgs, Bench, Case};
use super::chart::Marks;
use anyhow::Result;

/// Each of 4 processes writes and reads a quarter of the columns of an array of N × N 4-byte integers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// N, a multiple of 4 [default: 512, 1024, 2048, 4096, 8192].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = parse_size)]
    size: Vec<u64>,
    #[command(flatten)]
    access: AccessArgs,
}

/// Measures.
pub fn run(args: Args) -> Result<()> {
    let sizes = if args.size.is_empty() { vec![512, 1024, 2048, 4096, 8192] } else { args.size.clone() };
    let case =
        |size: u64| Case { name: format!("N = {size}"), pattern: Pattern::BlockColumn { ranks: 4, size } };
    let bench = Bench {
        name: "block-column",
        title: "Columns of an array of N x N integers, 4 processes",
        marks: Marks::Lines,
        parameters: serde_json::json!({ "clients": 4, "element_bytes": 4 }),
        methods: ACCESS_METHODS,
        ways: &[Way::Write, Way::Read, Way::Rewrite],
        cases: sizes.into_iter().map(case).collect(),
    };
    access::run(bench, &args.access)
}

fn parse_size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(size @ 4..=65536) if size % 4 == 0 => Ok(size),
        _ => Err(format!("`{text}` is not a multiple of 4 from 4 to 65536")),
    }
}
