//! Columns of a square array that is stored by rows (NC 6.5, figure 5): one unit in four of each row.

use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, Bench, Case};
use super::chart::Marks;
use anyhow::Result;
use weft_bench_args::{BlockColumnArgs, Way};

/// Runs the measurement.
pub fn run(args: BlockColumnArgs) -> Result<()> {
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
