//! `weft explain`

mod mpi;
mod rdma;
mod runs;

use crate::part::{Part, Subarray};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Read;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::place::WeftPath;
use weft_cli_common::told::Told;
use weft_cli_common::{output, size};
use weft_client::{File, OpenOptions, RdmaPlan, ServerPlan, TransportInUse};
use weft_layout::{Extent, Layout, Level, Regions};
use weft_wire::limits::REGION_LEVELS_MAX;
use weft_wire::messages::io_flags;

/// Size of a piece in the simplest description: an offset and a length.
const FLAT_PIECE_BYTES: u64 = 16;
/// The assumed address of the request's memory.
const MEMORY_BASE: u64 = 1 << 32;

/// Explains how servers would read or write many pieces of a file.
///
/// It shows which servers have how many of the pieces, how large the requests are, and how each server would
/// access its data file, with the expected cost of each way:
///
///   each    one access per piece
///   sieve   few large accesses, gaps included, and copies (for a write: read, modify, write)
///   mapped  copies from or to pages of the data file that are in memory
///
/// Servers choose by a cost model that they measured (`weft calibrate`) and by what is in their page caches
/// now. Nothing is read or written unless you give --run.
///
/// With --mpi it shows instead how the processes of an MPI program would read and write such pieces in a
/// collective call: what each method is expected to cost, and which one is used. See `weft help mpi`.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("pieces").required(true).args([
        "bytes", "subarray", "stride", "list", "array", "interleaved",
    ])),
    after_help = "\
Examples:
  weft explain weft:/a --subarray 4096,4096:0,0:4096,1024:4   the first quarter of each row
  weft explain weft:/a --stride 0:64:256:100000 --write       64 of each 256 bytes, written
  weft explain weft:/a --list pieces.txt --run                also show the real cost
  weft explain weft:/a --subarray 1000,1000:0,500:10,10:f64 --in-place
                                                              rows of an array, over RDMA
  weft explain weft:/a --mpi --array 4096,4096:f64 --grid 1,4 block columns of 4 MPI processes
  weft explain --servers 4 --mpi --processes 64 --per-node 16 --interleaved 4K:1000
                                                              pieces in turn, of no file yet
  weft explain weft:/a --mpi --processes 8 --stride 0:64:512:1000 --shift 64"
)]
pub struct Args {
    /// The file.
    #[arg(value_name = "URL", required_unless_present = "servers")]
    place: Option<String>,
    /// The offset of the range, array or pattern in the file.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes, default_value = "0")]
    offset: u64,
    /// The length of a range.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    bytes: Option<u64>,
    /// A block of an array, as `DIMS:STARTS:COUNTS:ELEMENT[:ORDER]`; see `weft dump --help`.
    #[arg(long, value_name = "SPEC", value_parser = Subarray::parse)]
    subarray: Option<Subarray>,
    /// COUNT blocks of BLOCK bytes that begin STRIDE bytes apart, as OFFSET:BLOCK:STRIDE:COUNT.
    #[arg(long, value_name = "SPEC", value_parser = Stride::parse)]
    stride: Option<Stride>,
    /// A file that lists the pieces, an offset and a length on each line (- for standard input; # begins a
    /// comment).
    #[arg(long, value_name = "FILE")]
    list: Option<String>,
    /// Explain a write instead of a read.
    #[arg(long)]
    write: bool,
    /// Explain a write that is acknowledged only when it is durable.
    #[arg(long, requires = "write")]
    sync: bool,
    /// Also explain RDMA on the client's side. This is the default if a server is reached by RDMA.
    #[arg(long)]
    rdma: bool,
    /// For RDMA and --mpi: assume that memory has the same pieces as the file, as when a program holds the whole array,
    /// instead of one piece.
    #[arg(long)]
    in_place: bool,
    /// Also read the pieces, as planned and in each of the three ways, and show what that cost.
    #[arg(long, conflicts_with = "write")]
    run: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    // Last, for its heading is that of all options after it.
    #[command(flatten)]
    mpi: mpi::MpiArgs,
}

/// Blocks of equal size at equal distances.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stride {
    offset: u64,
    block_bytes: u64,
    level: Level,
}

impl Stride {
    fn parse(text: &str) -> Result<Stride, String> {
        let fields: Vec<&str> = text.split(':').collect();
        let [offset, block, stride, count] = fields[..] else {
            return Err(format!("has {} fields; write OFFSET:BLOCK:STRIDE:COUNT", fields.len()));
        };
        let stride_bytes = i64::try_from(size::parse_bytes(stride)?)
            .map_err(|_| format!("a stride of {stride} is beyond 2^63"))?;
        let count = count.parse().map_err(|_| format!("`{count}` is not a number of blocks"))?;
        Ok(Stride {
            offset: size::parse_bytes(offset)?,
            block_bytes: size::parse_bytes(block)?,
            level: Level { count, stride_bytes },
        })
    }
}

/// Explains a request and, with --run, executes it.
pub fn run(args: Args) -> Result<()> {
    let regions = regions(&args)?;
    if let Some(layout) = args.mpi.layout()? {
        return explain_mpi(&args, None, &layout, &regions);
    }
    let place = WeftPath::from_argument(args.place.as_deref().context("which file?")?)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let options = OpenOptions::new().read(!args.write).write(args.write).sync(args.sync);
    let file = client.open(at(&place.path), &options).told("open", &place)?;
    if args.mpi.mpi {
        return explain_mpi(&args, Some(place.display()), &file.layout(), &regions);
    }
    let over_rdma =
        |used: &TransportInUse| used.transport.as_ref().is_some_and(|text| text.starts_with("verbs"));
    let rdma = if args.rdma || args.in_place || client.transports().iter().any(over_rdma) {
        let one_piece = Regions::contiguous(0, regions.total_bytes());
        let memory = if args.in_place { &regions } else { &one_piece };
        Some(file.explain_rdma(MEMORY_BASE, memory, &[], &regions, args.write)?)
    } else {
        None
    };
    let explained = Explained {
        name: place.display(),
        write: args.write,
        bytes: regions.total_bytes(),
        pieces: regions.piece_count(),
        plans: file.explain(&regions, args.write)?,
        rdma,
    };
    let runs = if args.run { runs::run_all(&file, &regions)? } else { Vec::new() };
    if args.json {
        return output::print_json(&explained.as_json(&file, &runs));
    }
    explained.print(&file)?;
    if let Some(plan) = &explained.rdma {
        rdma::print(plan)?;
    }
    if !runs.is_empty() {
        runs::print(&runs)?;
    }
    Ok(())
}

fn explain_mpi(args: &Args, name: Option<String>, layout: &Layout, regions: &Regions) -> Result<()> {
    let explained = mpi::explain(&args.mpi, name, layout, (args.offset, regions), args.in_place)?;
    match args.json {
        true => output::print_json(&explained.as_json()),
        false => explained.print(),
    }
}

fn regions(args: &Args) -> Result<Regions> {
    let regions = match (&args.subarray, &args.stride, &args.list) {
        (Some(subarray), ..) => Part::array(args.offset, subarray)?.regions(),
        (_, Some(stride), _) => {
            let offset = args.offset.saturating_add(stride.offset);
            Regions::strided(offset, stride.block_bytes, vec![stride.level])
        }
        (.., Some(list)) => {
            let text = match list.as_str() {
                "-" => {
                    let mut text = String::new();
                    std::io::stdin().read_to_string(&mut text).context("standard input")?;
                    text
                }
                path => std::fs::read_to_string(path).with_context(|| path.to_string())?,
            };
            Regions::list(pieces(&text, args.offset).with_context(|| list.clone())?)
        }
        _ => Regions::contiguous(args.offset, args.bytes.unwrap_or(0)),
    };
    regions.validate(usize::MAX, REGION_LEVELS_MAX).context("the pieces are not valid")?;
    Ok(regions)
}

fn pieces(text: &str, base: u64) -> Result<Vec<Extent>> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").replace(',', " ");
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (offset, bytes) = match fields[..] {
            [] => continue,
            [offset, bytes] => (size::parse_bytes(offset), size::parse_bytes(bytes)),
            _ => bail!("line {}: expected an offset and a length", number + 1),
        };
        let (Ok(offset), Ok(bytes)) = (offset, bytes) else {
            bail!("line {}: `{}` is not an offset and a length", number + 1, line.trim());
        };
        let Some(offset) = base.checked_add(offset) else {
            bail!("line {}: the offset is beyond 2^64", number + 1)
        };
        all.push(Extent::new(offset, bytes));
    }
    Ok(all)
}

/// The plans of the servers for one request.
struct Explained {
    name: String,
    write: bool,
    bytes: u64,
    pieces: u64,
    plans: Vec<ServerPlan>,
    rdma: Option<RdmaPlan>,
}

fn method_name(method: u32) -> &'static str {
    match method {
        io_flags::ACCESS_EACH => "each",
        io_flags::ACCESS_SIEVE => "sieve",
        io_flags::ACCESS_MAPPED => "mapped",
        _ => "several",
    }
}

impl Explained {
    fn request_bytes(&self) -> u64 {
        self.plans.iter().map(|plan| plan.request_bytes).sum()
    }

    fn print(&self, file: &File) -> Result<()> {
        let layout = file.layout();
        let (what, strip) =
            (if self.write { "write" } else { "read" }, size::format_bytes(layout.strip_bytes().into()));
        output::print_line(format!(
            "{what} of {} bytes in {} pieces of {}, in strips of {strip} over {} servers",
            self.bytes,
            self.pieces,
            self.name,
            layout.server_count()
        ))?;
        let requests: u64 = self.plans.iter().map(|plan| plan.requests).sum();
        output::print_line(format!(
            "on the wire: {requests} requests of {} bytes together (a flat list of the pieces takes {}), {} bytes of data\n",
            self.request_bytes(),
            self.pieces.saturating_mul(FLAT_PIECE_BYTES),
            self.bytes
        ))?;
        let headings = [
            "server", "requests", "bytes", "pieces", "data", "cached", "windows", "way", "chosen",
            "accesses", "accessed", "expected",
        ];
        let mut table = output::table(&headings, &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11]);
        for one in &self.plans {
            let plan = &one.plan;
            let mut front = [
                one.server.clone(),
                one.requests.to_string(),
                one.request_bytes.to_string(),
                plan.pieces.to_string(),
                size::format_bytes(plan.bytes),
                percent(plan.cached_bytes, plan.bytes),
                plan.windows.to_string(),
            ];
            for way in &plan.plans {
                let possible = way.possible_windows > 0;
                let shown = |text: String| if possible { text } else { "-".to_string() };
                // A cost that covers only some windows is not the cost of the whole.
                let whole = way.possible_windows == plan.windows;
                let mut row = front.to_vec();
                row.extend([
                    method_name(way.method).to_string(),
                    shown(way.chosen_windows.to_string()),
                    shown(way.accesses.to_string()),
                    shown(size::format_bytes(way.accessed_bytes)),
                    shown(format!("{}{}", if whole { "" } else { "partly " }, size::format_ns(way.cost_ns))),
                ]);
                table.add_row(row);
                front = Default::default();
            }
        }
        output::print_table(&table)
    }

    fn as_json(&self, file: &File, runs: &[runs::Run]) -> Value {
        let servers = self.plans.iter().map(|one| {
            let plan = &one.plan;
            let ways = plan.plans.iter().map(|way| {
                json!({
                    "way": method_name(way.method),
                    "chosen_windows": way.chosen_windows,
                    "possible_windows": way.possible_windows,
                    "expected_ns": way.cost_ns,
                    "accesses": way.accesses,
                    "accessed_bytes": way.accessed_bytes,
                })
            });
            json!({
                "server": one.server,
                "slot": one.slot,
                "requests": one.requests,
                "request_bytes": one.request_bytes,
                "pieces": plan.pieces,
                "bytes": plan.bytes,
                "windows": plan.windows,
                "single_windows": plan.single_windows,
                "groups": plan.groups,
                "cached_bytes": plan.cached_bytes,
                "local_bytes": plan.local_bytes,
                "expected_ns": plan.chosen_cost_ns,
                "ways": ways.collect::<Vec<_>>(),
            })
        });
        json!({
            "file": self.name,
            "write": self.write,
            "layout": output::layout_json(&file.layout()),
            "bytes": self.bytes,
            "pieces": self.pieces,
            "request_bytes": self.request_bytes(),
            "flat_list_bytes": self.pieces.saturating_mul(FLAT_PIECE_BYTES),
            "servers": servers.collect::<Vec<_>>(),
            "rdma": self.rdma.as_ref().map(rdma::as_json),
            "runs": runs.iter().map(runs::Run::as_json).collect::<Vec<_>>(),
        })
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.0} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_read() {
        let stride = Stride::parse("1K:64:4K:100").unwrap();
        assert_eq!((stride.offset, stride.block_bytes), (1024, 64));
        assert_eq!(stride.level, Level { count: 100, stride_bytes: 4096 });
        for (text, what) in [("1:2:3", "3 fields"), ("0:1:2:x", "`x` is not a number"), ("0:q:1:1", "q")] {
            assert!(Stride::parse(text).unwrap_err().contains(what), "{text}");
        }
    }

    #[test]
    fn lists_are_read() {
        let read = pieces("# two pieces\n0 16\n4K, 8 # the second\n\n", 100).unwrap();
        assert_eq!(read, [Extent::new(100, 16), Extent::new(4196, 8)]);
        let error = |text| format!("{:#}", pieces(text, 0).unwrap_err());
        assert_eq!(error("0 1\n5"), "line 2: expected an offset and a length");
        assert!(error("0 x").contains("`0 x` is not an offset"));
    }
}
