//! Results of noncontiguous access: medians, ratios, the servers' work, and whether the choice was right.

use super::super::adapters::{self, Asked};
use super::super::amounts::{Amounts, Took};
use super::super::chart::{Chart, Marks, Panel, Series};
use super::super::numbers::{median, number};
use super::super::report::Head;
use super::method::{Counters, is_plan, server_method};
use anyhow::Result;
use serde::Serialize;
use weft_bench_args::{How, Transport, Way};
use weft_cli_common::output;
use weft_cli_common::size::{format_bytes, mib_per_s};

/// A choice is right if its speed is at least this fraction of the fastest plan's.
const RIGHT: f64 = 0.9;
/// The choice must reach this fraction of the speed of one access per piece.
const NO_SLOWER: f64 = 0.95;
const GIB: f64 = (1u64 << 30) as f64;

/// One repetition.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Bytes that the program moved.
    pub bytes: u64,
    /// Pieces moved.
    pub pieces: u64,
    /// From the first start to the last end.
    pub seconds: f64,
    /// Processor time of all clients.
    pub client_cpu_s: f64,
    /// Processor time of all servers.
    pub server_cpu_s: f64,
    /// What the accesses cost.
    pub counters: Counters,
    /// Operations of RDMA adapters.
    pub asked: Asked,
}

/// A case over one transport, for one kind of access.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Name of the case.
    pub case: String,
    /// The transport.
    pub transport: Transport,
    /// The kind of access.
    pub way: Way,
    /// The same by as many processes directly on a file in memory.
    pub local: Vec<Sample>,
    /// The methods.
    pub methods: Vec<(How, Vec<Sample>)>,
}

/// The results of a method in a contest.
#[derive(Debug, Clone, Serialize)]
struct MethodFigures {
    method: How,
    mib_s: f64,
    pieces_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    of_multiple: Option<f64>,
    of_local: f64,
    bytes: u64,
    client_cpu_s_per_gib: f64,
    server_cpu_s_per_gib: f64,
    counters: Counters,
    #[serde(skip_serializing_if = "Amounts::is_empty")]
    adapters: Amounts,
    samples_mib_s: Vec<f64>,
}

/// Compares the choice with the plans.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The plan that was fastest when forced.
    pub fastest: How,
    /// The choice's speed as a fraction of that.
    pub of_fastest: f64,
    /// The choice's speed as a fraction of one access per piece, if that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_each: Option<f64>,
}

#[derive(Debug, Serialize)]
struct ContestFigures {
    case: String,
    transport: Transport,
    way: Way,
    local_mib_s: f64,
    methods: Vec<MethodFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
}

/// All verdicts together.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Summary {
    cases: usize,
    within_10_percent: usize,
    cases_against_each: usize,
    no_slower_than_each: usize,
}

/// All results of a measurement.
#[derive(Debug, Serialize)]
pub struct Figures {
    #[serde(flatten)]
    head: Head,
    contests: Vec<ContestFigures>,
    summary: Summary,
}

fn speeds(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| mib_per_s(sample.bytes, sample.seconds)).collect()
}

impl Contest {
    fn mib_s(&self, how: How) -> Option<f64> {
        let (_, samples) = self.methods.iter().find(|(other, _)| *other == how)?;
        (!samples.is_empty()).then(|| median(&speeds(samples)))
    }

    fn local_mib_s(&self) -> f64 {
        median(&speeds(&self.local))
    }

    /// Compares the choice with the fastest plan. Plans that the servers could not follow do not count.
    fn verdict(&self) -> Option<Verdict> {
        let followed = |how: How, samples: &[Sample]| {
            let done = samples.iter().fold(0, |done, sample| done | sample.counters.methods);
            server_method(how).is_none_or(|method| done & method != 0)
        };
        let plans = self.methods.iter().filter(|(how, samples)| is_plan(*how) && followed(*how, samples));
        let speeds = plans.filter_map(|(how, _)| Some((*how, self.mib_s(*how)?)));
        let (fastest, most) = speeds.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let chosen = self.mib_s(How::List)?;
        let of_each = self.mib_s(How::Each).map(|each| chosen / each);
        Some(Verdict { fastest, of_fastest: chosen / most, of_each })
    }

    fn figures(&self) -> ContestFigures {
        let multiple = self.mib_s(How::Multiple);
        let local_mib_s = self.local_mib_s();
        let method = |(how, samples): &(How, Vec<Sample>)| {
            let mib_s = median(&speeds(samples));
            let pieces: Vec<_> =
                samples.iter().map(|sample| sample.pieces as f64 / sample.seconds.max(1e-9)).collect();
            let gib = samples.iter().map(|sample| sample.bytes as f64 / GIB).sum::<f64>();
            let sum = |pick: fn(&Sample) -> f64| samples.iter().map(pick).sum::<f64>() / gib;
            let last = samples.last().cloned().unwrap_or_default();
            MethodFigures {
                method: *how,
                mib_s,
                pieces_s: median(&pieces),
                of_multiple: multiple.map(|multiple| mib_s / multiple),
                of_local: mib_s / local_mib_s,
                bytes: last.bytes,
                client_cpu_s_per_gib: sum(|sample| sample.client_cpu_s),
                server_cpu_s_per_gib: sum(|sample| sample.server_cpu_s),
                counters: last.counters,
                adapters: last.asked.amounts(),
                samples_mib_s: speeds(samples),
            }
        };
        ContestFigures {
            case: self.case.clone(),
            transport: self.transport,
            way: self.way,
            local_mib_s,
            methods: self.methods.iter().map(method).collect(),
            verdict: self.verdict(),
        }
    }

    /// Its name in tables.
    fn name(&self) -> [String; 3] {
        [self.case.clone(), self.transport.name().to_string(), self.way.name().to_string()]
    }
}

impl Summary {
    fn of(contests: &[Contest]) -> Summary {
        let mut summary = Summary::default();
        for verdict in contests.iter().filter_map(Contest::verdict) {
            summary.cases += 1;
            summary.within_10_percent += usize::from(verdict.of_fastest >= RIGHT);
            if let Some(of_each) = verdict.of_each {
                summary.cases_against_each += 1;
                summary.no_slower_than_each += usize::from(of_each >= NO_SLOWER);
            }
        }
        summary
    }
}

/// As JSON.
pub fn figures(head: Head, contests: &[Contest]) -> Figures {
    let all = contests.iter().map(Contest::figures).collect();
    Figures { head, contests: all, summary: Summary::of(contests) }
}

/// Prints tables: speeds, costs if requested, and whether the choices were right.
pub fn print(contests: &[Contest], methods: &[How], counters: bool) -> Result<()> {
    output::print_line("MiB/s; all processes together, medians")?;
    output::print_table(&speed_table(contests, methods))?;
    if counters {
        output::print_line("\nCosts, all processes and servers together")?;
        output::print_table(&counter_table(contests))?;
        let asked = asked(contests);
        if !asked.is_empty() {
            output::print_line("\nOperations of RDMA adapters, in the last repetition")?;
            output::print_table(&adapters::table(&asked))?;
        }
    }
    let summary = Summary::of(contests);
    if summary.cases == 0 {
        return Ok(());
    }
    output::print_line("\nThe choice against the plans")?;
    output::print_table(&verdict_table(contests))?;
    output::print_line(format_args!(
        "\nThe choice was within 10 % of the fastest plan in {} of {} cases.",
        summary.within_10_percent, summary.cases
    ))?;
    if summary.cases_against_each > 0 {
        output::print_line(format_args!(
            "It was no more than 5 % slower than one access for each piece in {} of {} cases.",
            summary.no_slower_than_each, summary.cases_against_each
        ))?;
    }
    Ok(())
}

fn speed_table(contests: &[Contest], methods: &[How]) -> comfy_table::Table {
    let mut headings = vec!["case", "", ""];
    headings.extend(methods.iter().map(|how| how.name()));
    headings.extend(["directly on tmpfs", "list of multiple", "list of tmpfs"]);
    let right: Vec<_> = (3..headings.len()).collect();
    let mut table = output::table(&headings, &right);
    for contest in contests {
        let mut cells = contest.name().to_vec();
        cells.extend(methods.iter().map(|how| contest.mib_s(*how).map_or(String::new(), number)));
        let (list, local) = (contest.mib_s(How::List), contest.local_mib_s());
        let of_multiple =
            list.zip(contest.mib_s(How::Multiple)).map(|(list, other)| format!("{:.1} x", list / other));
        cells.push(number(local));
        cells.push(of_multiple.unwrap_or_default());
        cells.push(list.map_or(String::new(), |list| format!("{:.0} %", 100.0 * list / local)));
        table.add_row(cells);
    }
    table
}

fn counter_table(contests: &[Contest]) -> comfy_table::Table {
    let headings = [
        "case",
        "",
        "",
        "",
        "requests",
        "request bytes",
        "server reads",
        "server writes",
        "wanted",
        "accessed",
        "moved",
        "pieces/s",
        "client CPU s/GiB",
        "server CPU s/GiB",
    ];
    let mut table = output::table(&headings, &(4..headings.len()).collect::<Vec<_>>());
    for contest in contests {
        for figures in contest.figures().methods {
            let counters = figures.counters;
            let mut cells = contest.name().to_vec();
            cells.push(figures.method.name().to_string());
            cells.extend(
                [counters.requests, counters.request_bytes, counters.server_reads, counters.server_writes]
                    .map(|count| count.to_string()),
            );
            cells.extend([figures.bytes, counters.accessed_bytes, counters.moved_bytes].map(format_bytes));
            cells.push(number(figures.pieces_s));
            cells.push(format!("{:.3}", figures.client_cpu_s_per_gib));
            cells.push(format!("{:.3}", figures.server_cpu_s_per_gib));
            table.add_row(cells);
        }
    }
    table
}

fn asked(contests: &[Contest]) -> Vec<Took> {
    let methods = contests.iter().flat_map(|contest| {
        contest.figures().methods.into_iter().map(move |figures| (contest.name().join(", "), figures))
    });
    let took = methods.map(|(name, figures)| Took {
        what: format!("{name}, {}", figures.method.name()),
        amounts: figures.adapters,
    });
    took.filter(|took| !took.amounts.is_empty()).collect()
}

fn verdict_table(contests: &[Contest]) -> comfy_table::Table {
    let headings = ["case", "", "", "fastest plan", "choice of fastest", "choice of each", ""];
    let mut table = output::table(&headings, &[4, 5]);
    for contest in contests {
        let Some(verdict) = contest.verdict() else { continue };
        let wrong = verdict.of_fastest < RIGHT || verdict.of_each.is_some_and(|part| part < NO_SLOWER);
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        let mut cells = contest.name().to_vec();
        cells.push(verdict.fastest.name().to_string());
        cells.push(percent(verdict.of_fastest));
        cells.push(verdict.of_each.map_or(String::new(), percent));
        cells.push(if wrong { "!".to_string() } else { String::new() });
        table.add_row(cells);
    }
    table
}

/// A chart with a panel for each transport and kind of access, and a category for each case.
pub fn chart(title: &str, subtitle: String, marks: Marks, contests: &[Contest], methods: &[How]) -> Chart {
    let mut keys: Vec<(Way, Transport)> = Vec::new();
    for contest in contests {
        if !keys.contains(&(contest.way, contest.transport)) {
            keys.push((contest.way, contest.transport));
        }
    }
    keys.sort_by_key(|(way, transport)| (*way, *transport as u8));
    let panels = keys.into_iter().map(|(way, transport)| {
        let shown: Vec<_> =
            contests.iter().filter(|contest| (contest.way, contest.transport) == (way, transport)).collect();
        let of_method = |how: &How| Series {
            name: how.name().to_string(),
            values: shown.iter().map(|contest| contest.mib_s(*how)).collect(),
            is_reference: false,
        };
        let mut series: Vec<_> = methods.iter().map(of_method).collect();
        series.push(Series {
            name: "as many processes directly on tmpfs".to_string(),
            values: shown.iter().map(|contest| Some(contest.local_mib_s())).collect(),
            is_reference: true,
        });
        let categories = shown.iter().map(|contest| contest.case.clone()).collect();
        Panel { title: format!("{} over {}", way.name(), transport.name()), categories, series }
    });
    Chart { title: title.to_string(), subtitle, unit: "MiB/s".to_string(), marks, panels: panels.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::messages::io_flags::{ACCESS_EACH, ACCESS_SIEVE};

    fn contest(speeds: &[(How, f64, u32)]) -> Contest {
        let samples = |mib_s: f64, methods: u32| {
            let counters = Counters { methods, ..Counters::default() };
            [0.5, 1.0, 2.0]
                .map(|off| Sample {
                    bytes: 1 << 20,
                    pieces: 10,
                    seconds: off / mib_s,
                    counters,
                    ..Sample::default()
                })
                .to_vec()
        };
        Contest {
            case: "case".into(),
            transport: Transport::Tcp,
            way: Way::Read,
            local: samples(400.0, 0),
            methods: speeds.iter().map(|(how, mib_s, methods)| (*how, samples(*mib_s, *methods))).collect(),
        }
    }

    #[test]
    fn a_choice_is_judged_by_the_plans_that_were_followed() {
        let speeds = [
            (How::Multiple, 10.0, ACCESS_EACH),
            (How::Each, 100.0, ACCESS_EACH),
            (How::Sieve, 200.0, ACCESS_SIEVE),
            // Nothing was cached: the server used another method.
            (How::Mapped, 300.0, ACCESS_SIEVE),
            (How::List, 190.0, ACCESS_SIEVE),
        ];
        let one = contest(&speeds);
        let verdict = one.verdict().unwrap();
        assert_eq!(verdict.fastest, How::Sieve);
        assert!((verdict.of_fastest - 0.95).abs() < 1e-9 && (verdict.of_each.unwrap() - 1.9).abs() < 1e-9);
        let slow = contest(&[
            (How::Each, 100.0, ACCESS_EACH),
            (How::Sieve, 99.0, ACCESS_SIEVE),
            (How::List, 80.0, ACCESS_SIEVE),
        ]);
        let summary = Summary::of(&[one.clone(), slow, contest(&[(How::List, 1.0, 1)])]);
        let expected =
            Summary { cases: 2, within_10_percent: 1, cases_against_each: 2, no_slower_than_each: 1 };
        assert_eq!(summary, expected);
        let figures = one.figures();
        assert!((figures.methods[4].of_multiple.unwrap() - 19.0).abs() < 1e-9);
        assert!((figures.methods[4].of_local - 0.475).abs() < 1e-9);
    }

    #[test]
    fn a_chart_has_a_panel_for_each_way() {
        let mut contests = vec![contest(&[(How::List, 5.0, 1)]); 3];
        contests[1].way = Way::Write;
        contests[2].case = "other".into();
        let chart = chart("t", String::new(), Marks::Bars, &contests, &[How::List, How::Sieve]);
        assert_eq!(chart.panels.len(), 2);
        assert_eq!(chart.panels[0].title, "write over tcp");
        assert_eq!(chart.panels[1].categories, ["case", "other"]);
        assert_eq!(chart.panels[1].series[1].values, [None, None]);
    }
}
