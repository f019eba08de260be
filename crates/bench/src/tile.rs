//! Tiles of a frame (mpi-tile-io): 2 × 2 displays, one process each (NC 6.6, IB 6.7 and 6.8, Q 4.2).

use super::access::pattern::Pattern;
use super::access::{self, ACCESS_METHODS, Bench, Case};
use super::chart::Marks;
use anyhow::Result;
use weft_bench_args::{Side, TileArgs, Way};

/// Runs the measurement.
pub fn run(args: TileArgs) -> Result<()> {
    let [columns, rows] = args.tile;
    let case = |element_bytes: u64, memory: Side| Case {
        name: match memory {
            Side::Contiguous => format!("{element_bytes} B"),
            Side::Noncontiguous => format!("{element_bytes} B, memory too"),
        },
        pattern: Pattern::Tile { grid: [2, 2], rows, columns, element_bytes, memory },
    };
    let elements = if args.element.is_empty() { vec![3, 24, 32, 64] } else { args.element.clone() };
    let mut cases = Vec::new();
    if args.memory != Some(Side::Noncontiguous) {
        cases.extend(elements.iter().map(|element| case(*element, Side::Contiguous)));
    }
    if args.memory != Some(Side::Contiguous) {
        let is_meant =
            |element: &&u64| !args.element.is_empty() || args.memory.is_some() || [24, 64].contains(*element);
        cases.extend(elements.iter().filter(is_meant).map(|element| case(*element, Side::Noncontiguous)));
    }
    let bench = Bench {
        name: "tile",
        title: "Tiles of a frame, 2 x 2 processes, by bytes of an element",
        marks: Marks::Bars,
        parameters: serde_json::json!({ "clients": 4, "tile_columns": columns, "tile_rows": rows }),
        methods: ACCESS_METHODS,
        ways: &[Way::Write, Way::Read, Way::Rewrite],
        cases,
    };
    access::run(bench, &args.access)
}
