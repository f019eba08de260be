//! Tiles of a frame (mpi-tile-io): 2 × 2 displays, each by a process of its own (NC 6.6, IB 6.7 and 6.8, Q 4.2).

use super::access::method::Way;
use super::access::pattern::{Pattern, Side};
use super::access::{self, ACCESS_METHODS, AccessArgs, Bench, Case};
use super::chart::Marks;
use anyhow::Result;

/// Each of 4 processes writes and reads its tile of a frame, a piece for each of its rows, with elements of 3, 24, 32 and 64 bytes;
/// those of 24 and 64 bytes also from memory that holds the whole frame, and so in pieces there too.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Bytes of an element [default: 3, 24, 32, 64].
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4096))]
    element: Vec<u64>,
    /// Columns and rows of a tile.
    #[arg(long, value_name = "COLUMNSxROWS", default_value = "1024x768", value_parser = parse_tile)]
    tile: [u64; 2],
    /// Memory of this kind only.
    #[arg(long, value_enum)]
    memory: Option<Side>,
    #[command(flatten)]
    access: AccessArgs,
}

/// Measures.
pub fn run(args: Args) -> Result<()> {
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

/// Reads `COLUMNSxROWS`.
pub fn parse_tile(text: &str) -> Result<[u64; 2], String> {
    let numbers =
        text.split_once('x').and_then(|(columns, rows)| Some([columns.parse().ok()?, rows.parse().ok()?]));
    match numbers {
        Some([columns @ 1..=65536, rows @ 1..=65536]) => Ok([columns, rows]),
        _ => Err(format!("`{text}` is not the size of a tile; write for example 1024x768")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_have_two_sizes() {
        assert_eq!(parse_tile("1024x768"), Ok([1024, 768]));
        assert!(["", "1024", "0x5", "axb", "1x2x3"].iter().all(|text| parse_tile(text).is_err()));
    }
}
