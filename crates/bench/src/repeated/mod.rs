//! Repeats transfers of the same bytes in several ways: small pieces, bulk, subarrays.
//!
//! ```text
//!   for each place (a size), alternating
//!     for each repetition
//!       for each contender           its own processes, since a process shares its registrations
//!         write, several rounds      median of the rounds; operations of the adapters meanwhile
//!         read, several rounds       and check the data
//! ```
//!
//! A contender is a transport, a way of moving memory, and memory that is registered in advance or is not.

pub mod task;

use super::access::pattern::Pattern;
use super::adapters::Asked;
use super::amounts::{Amounts, Took};
use super::figure::{Figure, Line, Panel};
use super::fleet::Fleet;
use super::scratch::{Testbed, scratch};
use super::worker::Task;
use anyhow::{Context, Result, bail};
use task::{Moving, Repeated};
use weft_bench_args::{How, Memory, RepeatedArgs, Transport, Way};
use weft_cli_common::connections::at;
use weft_cli_common::size::mib_per_s;
use weft_server::SyncMode;

/// Describes a measurement.
pub struct Plan {
    /// Its name.
    pub name: &'static str,
    /// Title of its chart.
    pub title: &'static str,
    /// What is reported.
    pub measure: Measure,
    /// What the places stand for.
    pub of: &'static str,
    /// The places.
    pub places: Vec<Place>,
    /// The contenders.
    pub contenders: Vec<Contender>,
    /// I/O servers of the cluster that is started.
    pub io_servers: u16,
    /// What the paper says.
    pub paper: &'static [&'static str],
    /// Parameters, recorded with the results.
    pub parameters: serde_json::Value,
}

/// What is reported of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// The time, in µs.
    Time,
    /// The speed, in MiB/s.
    Speed,
}

/// A transfer.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// The access pattern.
    pub pattern: Pattern,
    /// Transfers per repetition.
    pub rounds: u32,
}

/// A way of transferring the data.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Its name.
    pub name: &'static str,
    /// The transport.
    pub transport: Transport,
    /// Options of the URL.
    pub options: &'static str,
    /// How calls are made.
    pub moving: Moving,
    /// The kind of memory. Memory from weft_mem_alloc is registered for every transport.
    pub memory: Memory,
    /// Whether the memory is in one piece instead.
    pub in_one_piece: bool,
}

impl Contender {
    /// List I/O from any memory, without options.
    pub fn new(name: &'static str, transport: Transport) -> Contender {
        Contender {
            name,
            transport,
            options: "",
            moving: Moving::by(How::List),
            memory: Memory::Any,
            in_one_piece: false,
        }
    }

    /// Adds options of the URL.
    pub fn options(self, options: &'static str) -> Contender {
        Contender { options, ..self }
    }

    /// Uses memory from weft_mem_alloc.
    pub fn known_memory(self) -> Contender {
        Contender { memory: Memory::Alloc, ..self }
    }

    /// Makes calls in this way.
    pub fn moving(self, moving: Moving) -> Contender {
        Contender { moving, ..self }
    }

    /// Uses memory in one piece.
    pub fn in_one_piece(self) -> Contender {
        Contender { in_one_piece: true, ..self }
    }

    fn pattern(&self, pattern: &Pattern) -> Pattern {
        let ranks = pattern.ranks() as u64;
        match self.in_one_piece {
            true => Pattern::Blocks { ranks, blocks: 1, block_bytes: pattern.bytes() / ranks },
            false => pattern.clone(),
        }
    }

    /// The URL for its processes.
    fn url(&self, testbed: &Testbed) -> String {
        let url = testbed.url(self.transport.name());
        if self.options.is_empty() { url } else { format!("{url}&{}", self.options) }
    }
}

/// The results of a contender at a place.
#[derive(Debug, Clone, Default)]
struct Outcome {
    samples: Vec<f64>,
    asked: Asked,
}

/// Measures, prints, saves and draws.
pub fn run(plan: Plan, args: &RepeatedArgs) -> Result<()> {
    let common = &args.figure.common;
    let most = plan.places.iter().map(|place| place.pattern.file_bytes()).max().unwrap_or(0);
    let scratch = scratch(common, 4 * most + (64 << 20))?;
    let wanted: Vec<Transport> = if args.transport.is_empty() {
        vec![Transport::Rdma, Transport::Shm, Transport::Tcp]
    } else {
        args.transport.clone()
    };
    let (testbed, reasons) = Testbed::for_transports(
        args.url.as_deref(),
        &args.connect,
        &scratch,
        plan.io_servers,
        SyncMode::Nosync,
        &wanted,
    )?;
    let is_usable = |transport: &Transport| reasons.iter().all(|(without, _)| without != transport);
    let contenders: Vec<&Contender> = plan
        .contenders
        .iter()
        .filter(|one| wanted.contains(&one.transport) && is_usable(&one.transport))
        .collect();
    let notes = reasons.iter().map(|(without, reason)| {
        format!("Not measured over {}: {}.", without.name(), reason.trim_end_matches('.'))
    });
    let mut figure = Figure::new(
        plan.name,
        plan.title,
        if plan.measure == Measure::Time { "µs" } else { "MiB/s" },
        plan.parameters.clone(),
        plan.paper,
    );
    figure.notes.extend(notes);
    if contenders.is_empty() {
        bail!("there is nothing to measure. {}", figure.notes.join(" "));
    }
    let ways: Vec<Way> = [Way::Write, Way::Read]
        .into_iter()
        .filter(|way| args.way.is_empty() || args.way.contains(way))
        .collect();
    let bench = Bench { plan: &plan, args, testbed: &testbed, contenders: &contenders, ways: &ways };
    let results = bench.measure()?;
    bench.draw(&results, &mut figure);
    figure.finish(&args.figure)
}

struct Bench<'a> {
    plan: &'a Plan,
    args: &'a RepeatedArgs,
    testbed: &'a Testbed,
    contenders: &'a [&'a Contender],
    ways: &'a [Way],
}

/// Results by kind of access, contender and place.
type Results = Vec<Vec<Vec<Outcome>>>;

impl Bench<'_> {
    fn measure(&self) -> Result<Results> {
        let ranks = self.plan.places.iter().map(|place| place.pattern.ranks()).max().unwrap_or(1);
        let start = |_| Fleet::start(ranks);
        let mut fleets = self.contenders.iter().map(start).collect::<Result<Vec<_>>>()?;
        let empty = vec![Outcome::default(); self.plan.places.len()];
        let mut results = vec![vec![empty; self.contenders.len()]; self.ways.len()];
        for (place, at_place) in self.plan.places.iter().zip(0..) {
            for run in 0..self.args.figure.common.runs {
                for turn in 0..self.contenders.len() {
                    // Each repetition starts with another one, so that the order favours none.
                    let index = (turn + usize::from(run)) % self.contenders.len();
                    let (contender, fleet) = (self.contenders[index], &mut fleets[index]);
                    let done = self.turn(contender, place, fleet);
                    let done = done.with_context(|| format!("{}, {}", contender.name, place.name))?;
                    for (way, (sample, asked)) in done.into_iter().enumerate() {
                        results[way][index][at_place].samples.push(sample);
                        results[way][index][at_place].asked = asked;
                    }
                }
            }
        }
        Ok(results)
    }

    /// Writes and reads by one contender. A read needs the data of the write.
    fn turn(&self, contender: &Contender, place: &Place, fleet: &mut Fleet) -> Result<Vec<(f64, Asked)>> {
        let path = self.testbed.dir.join("repeated");
        let options = weft_client::OpenOptions::new().write(true).create_new(true).mode(0o644);
        self.testbed.client.open(at(&path), &options)?.close()?;
        let pattern = contender.pattern(&place.pattern);
        let rounds = self.args.rounds.unwrap_or(place.rounds);
        let mut done = Vec::new();
        for way in [Way::Write, Way::Read] {
            let is_wanted = self.ways.contains(&way);
            if !is_wanted && way == Way::Read {
                continue;
            }
            let task = |rank: usize| {
                Task::Repeated(Repeated {
                    url: contender.url(self.testbed),
                    path: path.clone(),
                    pattern: pattern.clone(),
                    rank,
                    moving: contender.moving,
                    memory: contender.memory,
                    way,
                    rounds: if is_wanted { rounds } else { 1 },
                })
            };
            let tasks: Vec<Task> = (0..pattern.ranks()).map(task).collect();
            fleet.prepare_all(&tasks)?;
            let before = self.testbed.server_load_over(contender.transport);
            let phase = fleet.go(0..tasks.len())?;
            let after = self.testbed.server_load_over(contender.transport);
            if is_wanted {
                let slowest = phase.done.iter().map(|done| done.p50_ns).max().unwrap_or(0) as f64 / 1e3;
                let value = match self.plan.measure {
                    Measure::Time => slowest,
                    Measure::Speed => mib_per_s(pattern.bytes(), slowest / 1e6),
                };
                let asked = Asked::between(phase.adapters(), &before.adapters, &after.adapters);
                done.push((value, asked.divided(f64::from(rounds))));
            }
        }
        self.testbed.client.unlink(at(&path))?;
        Ok(done)
    }

    fn draw(&self, results: &Results, figure: &mut Figure) {
        let places: Vec<String> = self.plan.places.iter().map(|place| place.name.clone()).collect();
        for (way, by_contender) in self.ways.iter().zip(results) {
            let line = |(contender, by_place): (&&Contender, &Vec<Outcome>)| {
                Line::measured(contender.name, by_place.iter().map(|one| one.samples.clone()).collect())
            };
            let lines: Vec<Line> = self.contenders.iter().zip(by_contender).map(line).collect();
            let of = self.plan.of.to_string();
            figure.panels.push(Panel { title: way.name().into(), of, places: places.clone(), lines });
            for (contender, by_place) in self.contenders.iter().zip(by_contender) {
                for (place, one) in places.iter().zip(by_place) {
                    let amounts: Amounts = one.asked.amounts();
                    if !amounts.is_empty() {
                        let what = format!("{}, {}, {place}", way.name(), contender.name);
                        figure.asked.push(Took { what, amounts });
                    }
                }
            }
        }
        figure.prints_asked = self.args.counters;
    }
}
