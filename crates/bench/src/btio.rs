//! Output of the BT benchmark (NC 6.7; NPB's BTIO): solutions of a multipartitioned cube, appended to one
//! file and read back.

use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, Bench, Case};
use super::chart::Marks;
use anyhow::Result;
use weft_bench_args::{BtioArgs, Class, Way};

/// Runs the measurement.
pub fn run(args: BtioArgs) -> Result<()> {
    let classes = if args.class.is_empty() { vec![Class::S, Class::W, Class::A] } else { args.class.clone() };
    let (cells, solutions) = (args.clients.isqrt(), args.solutions);
    let case = |class: Class| Case {
        name: format!("class {class:?}"),
        pattern: Pattern::Multipartition { cells, points: class.points(), solutions },
    };
    let bench = Bench {
        name: "btio",
        title: "Solutions of the BT benchmark, appended and read back",
        marks: Marks::Bars,
        parameters: serde_json::json!({ "clients": args.clients, "solutions": solutions }),
        methods: ACCESS_METHODS,
        ways: &[Way::Write, Way::Read],
        cases: classes.into_iter().map(case).collect(),
    };
    access::run(bench, &args.access)
}
