//! `weft explain --mpi`: how processes of MPI would access pieces together. The library for MPI-IO decides by
//! the same function.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use weft_cli_common::{output, size};
use weft_client::AccessOptions;
use weft_collective::{
    Choice, Conditions, Costs, Direction, Learned, Method, Options, Prediction, Summary, Totals, choose,
    is_coarse,
};
use weft_layout::{Layout, Level, Regions};
use weft_wire::limits::REGION_LEVELS_MAX;

use crate::part::{Part, Subarray};

/// Strip size of a file that does not exist, as `weft help striping` says.
const STRIP_BYTES: u64 = 256 << 10;
/// Processes at most: what each of them accesses is looked at by itself.
const PROCESSES_MAX: u64 = 65_536;

/// The processes, and what each of them accesses.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Collective calls of MPI-IO")]
#[command(group(clap::ArgGroup::new("job").args(["processes", "grid"])))]
pub struct MpiArgs {
    /// Explain a collective read and write of all processes of an MPI program: what each method is expected
    /// to cost, and which one is used.
    #[arg(long, requires = "job", conflicts_with_all = ["write", "sync", "rdma", "run"])]
    pub mpi: bool,
    /// Processes of the program.
    #[arg(long, value_name = "N", requires = "mpi", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    processes: Option<u32>,
    /// Processes on a node. Default: all of them.
    #[arg(long, value_name = "N", requires = "mpi", value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// Processors of a node, which servers on it share. Default: those of this machine.
    #[arg(long, value_name = "N", requires = "mpi", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    processors: Option<u32>,
    /// An array that --grid divides among processes, as `DIMS:ELEMENT[:ORDER]`.
    #[arg(long, value_name = "SPEC", requires = "grid", conflicts_with = "processes", value_parser = Subarray::parse_whole)]
    pub array: Option<Subarray>,
    /// Into how many blocks each dimension of the array is divided, one for each process: 1,4 are four block
    /// columns, 2,2 are tiles.
    #[arg(long, value_name = "N,N", requires_all = ["mpi", "array"], value_delimiter = ',')]
    grid: Option<Vec<u32>>,
    /// COUNT pieces of each process in turn: those of process 0, 1, 2 and so on, and again, as PIECE:COUNT.
    #[arg(long, value_name = "SPEC", requires_all = ["mpi", "processes"], value_parser = Interleaved::parse)]
    interleaved: Option<Interleaved>,
    /// With --bytes, --subarray, --stride or --list, which are the pieces of process 0: how far behind them
    /// those of process 1 are, and so on. 0: all processes access the same.
    #[arg(long, value_name = "SIZE", requires = "mpi", value_parser = size::parse_bytes)]
    shift: Option<u64>,
    /// Servers of a file that need not exist, instead of a URL.
    #[arg(long, value_name = "N", requires = "mpi", conflicts_with = "place", value_parser = clap::value_parser!(u16).range(1..))]
    pub servers: Option<u16>,
    /// Its strip size.
    #[arg(long, value_name = "SIZE", requires = "servers", value_parser = size::parse_bytes)]
    strip_bytes: Option<u64>,
}

/// Pieces of all processes in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interleaved {
    piece_bytes: u64,
    count: u64,
}

impl Interleaved {
    fn parse(text: &str) -> Result<Interleaved, String> {
        let (piece, count) =
            text.split_once(':').ok_or("has one field; write PIECE:COUNT, such as 4K:1000")?;
        let count = count.parse().map_err(|_| format!("`{count}` is not a number of pieces"))?;
        let piece_bytes = size::parse_bytes(piece)?;
        if piece_bytes == 0 || count == 0 {
            return Err("there are no bytes".into());
        }
        Ok(Interleaved { piece_bytes, count })
    }
}

impl MpiArgs {
    /// The layout of the file that need not exist.
    pub fn layout(&self) -> Result<Option<Layout>> {
        let Some(servers) = self.servers else { return Ok(None) };
        let strip_bytes = self.strip_bytes.unwrap_or(STRIP_BYTES);
        let strip_bytes = u32::try_from(strip_bytes).context("--strip-bytes is beyond 4 GiB")?;
        Ok(Some(Layout::new(strip_bytes, 0, servers, servers)?))
    }

    fn processes(&self) -> Result<u32> {
        let of_grid = |grid: &Vec<u32>| {
            let product = grid.iter().try_fold(1u64, |product, part| product.checked_mul(u64::from(*part)));
            product.filter(|product| (1..=PROCESSES_MAX).contains(product)).map(|product| product as u32)
        };
        match &self.grid {
            Some(grid) => of_grid(grid).with_context(|| format!("--grid: 1 to {PROCESSES_MAX} blocks")),
            None => self.processes.context("--mpi needs --processes or --grid"),
        }
    }

    /// What a process accesses; `common` is what the options without `--mpi` describe.
    fn regions(&self, offset: u64, common: &Regions, rank: u32, processes: u32) -> Result<Regions> {
        let rank = u64::from(rank);
        let regions = match (&self.array, &self.grid, self.interleaved) {
            (Some(array), Some(grid), _) => {
                let block = array.block(grid, rank).map_err(anyhow::Error::msg)?;
                Part::array(offset, &block)?.regions()
            }
            (.., Some(Interleaved { piece_bytes, count })) => {
                let stride_bytes = piece_bytes.saturating_mul(processes.into());
                let stride_bytes = i64::try_from(stride_bytes).unwrap_or(i64::MAX);
                let first = offset.saturating_add(piece_bytes.saturating_mul(rank));
                Regions::strided(first, piece_bytes, vec![Level { count, stride_bytes }])
            }
            _ => {
                let shift = self.shift.context(
                    "say by --shift how far apart the pieces of processes are; \
                     or use --interleaved, or --array with --grid",
                )?;
                let bytes = shift.checked_mul(rank).context("--shift is too large")?;
                common.shifted(bytes).context("--shift is too large")?
            }
        };
        regions.validate(usize::MAX, REGION_LEVELS_MAX).context("the pieces are not valid")?;
        Ok(regions)
    }
}

/// Explains the access of all processes. `common`: the pieces of process 0, where they are described so.
pub fn explain(
    args: &MpiArgs,
    name: Option<String>,
    layout: &Layout,
    common: (u64, &Regions),
    in_place: bool,
) -> Result<Explained> {
    let processes = args.processes()?;
    let mut all: Option<Summary> = None;
    let mut allowed = Method::AUTOMATIC;
    allowed[Method::TwoPhase as usize] = false;
    for rank in 0..processes {
        let file = args.regions(common.0, common.1, rank, processes)?;
        // As the library agrees in MPI_File_set_view.
        allowed[Method::TwoPhase as usize] |= !is_coarse(file.piece_count(), file.total_bytes());
        let one_piece = Regions::contiguous(0, file.total_bytes());
        let memory = if in_place { &file } else { &one_piece };
        let own = Summary::new(memory, &file, 0, processes);
        all = Some(all.map_or(own, |all| all.and(own)));
    }
    let totals = all.context("there are no processes")?.as_totals();
    if totals.active == 0 {
        bail!("there are no bytes to access");
    }
    let here = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let nodes = processes.div_ceil(args.per_node.unwrap_or(processes));
    let conditions = Conditions {
        processes,
        nodes,
        processors: args.processors.unwrap_or(here).saturating_mul(nodes),
        servers: layout.server_count().into(),
        strip_bytes: layout.strip_bytes(),
        direction: Direction::Read,
        sieve_bytes: AccessOptions::default().sieve_bytes,
        setup_ns: 0,
        options: Options::default(),
        allowed,
    };
    let ways = [Direction::Read, Direction::Write]
        .map(|direction| Way::new(&totals, Conditions { direction, ..conditions }));
    Ok(Explained { name, layout: *layout, conditions, totals, ways })
}

/// What is expected of one direction.
struct Way {
    direction: Direction,
    /// Of the first exchange of a file.
    setup_ns: u64,
    /// Of the first call.
    first: Choice,
    /// Once the first exchange is paid for.
    later: Choice,
}

impl Way {
    fn new(totals: &Totals, conditions: Conditions) -> Way {
        let costs = Costs::default();
        let setup_ns = costs.setup_ns as u64;
        let of = |setup_ns| choose(totals, &Conditions { setup_ns, ..conditions }, &costs, &Learned::new());
        Way { direction: conditions.direction, setup_ns, first: of(setup_ns), later: of(0) }
    }

    fn name(&self) -> &'static str {
        match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }

    /// After how many calls the first exchange would have paid for itself.
    fn changes_after(&self) -> Option<u64> {
        let of = |method| self.later.prediction(method).map(|prediction| prediction.ns);
        let saved_ns = of(self.first.method)? - of(self.later.method)?;
        let changes = self.first.method != self.later.method && saved_ns > 0.0;
        changes.then(|| (self.setup_ns as f64 / saved_ns).ceil() as u64)
    }

    /// Why the method of the first call is used.
    fn reason(&self) -> String {
        let chosen = self.first.method;
        let other = if chosen == Method::List { Method::TwoPhase } else { Method::List };
        let (Some(ours), Some(theirs)) = (self.first.prediction(chosen), self.first.prediction(other)) else {
            return format!(
                "{} cannot be used: it needs several processes, each with its bytes in ascending order",
                other.name()
            );
        };
        if !self.first.allowed[other as usize] {
            return "the bytes of each process are in one piece, or in pieces of 64 KiB or more, so none waits \
                    for another"
                .into();
        }
        let setup_ns = if other == Method::TwoPhase { self.setup_ns as f64 } else { 0.0 };
        let most = match &theirs {
            it if setup_ns >= it.ns / 2.0 => "the first exchange of a file, which makes shared memory",
            it if it.waits_ns >= it.ns / 2.0 => "waits of processes for each other in its rounds",
            it if it.longest_ns > it.work_ns => "the process that has most",
            _ => "the work on pieces and bytes",
        };
        format!("{} takes {:.1} times as long, most of it for {most}", other.name(), theirs.ns / ours.ns)
    }

    fn print(&self) -> Result<()> {
        output::print_line(format!("\n{}:", self.name()))?;
        let headings = ["method", "requests", "work", "longest", "waits", "expected", ""];
        let mut table = output::table(&headings, &[1, 2, 3, 4, 5]);
        for method in Method::ALL {
            let mut row = vec![method.name().to_string()];
            match self.first.prediction(method) {
                Some(Prediction { ns, requests, work_ns, longest_ns, waits_ns, .. }) => {
                    row.push(requests.to_string());
                    row.extend([work_ns, longest_ns, waits_ns, ns].map(|ns| size::format_ns(ns as u64)));
                }
                None => row.extend(["-"; 5].map(String::from)),
            }
            row.push(self.note(method).into());
            table.add_row(row);
        }
        output::print_table(&table)?;
        output::print_line(format!("{}: {}.", self.first.method.name(), self.reason()))?;
        match self.changes_after() {
            Some(calls) => output::print_line(format!(
                "After about {calls} such calls of a file: {}, whose first exchange takes {} once.",
                self.later.method.name(),
                size::format_ns(self.setup_ns)
            )),
            None => Ok(()),
        }
    }

    fn note(&self, method: Method) -> &'static str {
        match self.first.prediction(method) {
            _ if method == self.first.method => "chosen",
            None => "cannot be used",
            _ if !self.first.allowed[method as usize] => "by hint only",
            _ => "",
        }
    }

    fn as_json(&self) -> Value {
        let methods = Method::ALL.map(|method| {
            let prediction = self.first.prediction(method);
            let ns = |of: fn(&Prediction) -> f64| prediction.as_ref().map(|it| of(it) as u64);
            json!({
                "method": method.name(),
                "automatic": self.first.allowed[method as usize],
                "requests": prediction.map(|it| it.requests),
                "expected_ns": ns(|it| it.ns),
                "work_ns": ns(|it| it.work_ns),
                "longest_ns": ns(|it| it.longest_ns),
                "waits_ns": ns(|it| it.waits_ns),
            })
        });
        json!({
            "chosen": self.first.method.name(),
            "reason": self.reason(),
            "first_exchange_ns": self.setup_ns,
            "later": self.later.method.name(),
            "later_after_calls": self.changes_after(),
            "methods": methods,
        })
    }
}

/// Reads and writes, explained.
pub struct Explained {
    name: Option<String>,
    layout: Layout,
    conditions: Conditions,
    totals: Totals,
    ways: [Way; 2],
}

impl Explained {
    /// Prints a table for each direction.
    pub fn print(&self) -> Result<()> {
        let Explained { conditions, totals, layout, .. } = self;
        output::print_line(format!(
            "a collective call; processes: {}, nodes: {}, processors: {}",
            conditions.processes, conditions.nodes, conditions.processors
        ))?;
        let span_bytes = totals.span.map_or(0, |span| span.bytes);
        output::print_line(format!(
            "bytes: {}, pieces: {}, within {} of {} in strips of {} over {} servers",
            totals.bytes,
            totals.pieces,
            size::format_bytes(span_bytes),
            self.name.as_deref().unwrap_or("a file"),
            size::format_bytes(layout.strip_bytes().into()),
            layout.server_count()
        ))?;
        output::print_line(
            "expected: the longer one of work (of all processes and servers, over all processors) and\n\
             longest (of the process that has most), and waits (of processes for each other)",
        )?;
        self.ways.iter().try_for_each(Way::print)
    }

    /// The same as JSON.
    pub fn as_json(&self) -> Value {
        let Explained { conditions, totals, .. } = self;
        let [read, write] = &self.ways;
        json!({
            "file": self.name,
            "layout": output::layout_json(&self.layout),
            "processes": conditions.processes,
            "nodes": conditions.nodes,
            "processors": conditions.processors,
            "bytes": totals.bytes,
            "pieces": totals.pieces,
            "memory_pieces": totals.memory_pieces,
            "span_bytes": totals.span.map_or(0, |span| span.bytes),
            read.name(): read.as_json(),
            write.name(): write.as_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_turn_are_read() {
        assert_eq!(Interleaved::parse("4K:10"), Ok(Interleaved { piece_bytes: 4096, count: 10 }));
        for (text, what) in [("4K", "one field"), ("4K:x", "`x`"), ("0:5", "no bytes"), ("q:1", "q")] {
            assert!(Interleaved::parse(text).unwrap_err().contains(what), "{text}");
        }
    }
}
