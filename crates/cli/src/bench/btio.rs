//! Output of the BT benchmark (NC 6.7; NPB's BTIO): solutions of a multipartitioned cube, appended to one file and read back.

use super::access::method::Way;
use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, AccessArgs, Bench, Case};
use super::chart::Marks;
use anyhow::Result;

/// q² processes append 40 solutions of a cube of points of 5 doubles to a file and read them back; each process has q cells of the cube,
/// which are noncontiguous in the file, and in memory for the points around them. Only the access is measured, not the computation
/// between.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Size of the cube [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    class: Vec<Class>,
    /// Processes: a square.
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = parse_square)]
    clients: u64,
    /// Solutions that are appended: NPB does so after every fifth of 200 steps.
    #[arg(long, value_name = "COUNT", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    solutions: u64,
    #[command(flatten)]
    access: AccessArgs,
}

/// A size of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Class {
    /// 12³ points.
    S,
    /// 24³ points.
    W,
    /// 64³ points.
    A,
}

/// Measures.
pub fn run(args: Args) -> Result<()> {
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

impl Class {
    /// Along each side of the cube.
    fn points(self) -> u64 {
        match self {
            Class::S => 12,
            Class::W => 24,
            Class::A => 64,
        }
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
    fn processes_are_a_square() {
        assert_eq!(parse_square("9"), Ok(9));
        assert!(["0", "5", "x", "169"].iter().all(|text| parse_square(text).is_err()));
    }
}
