//! Results as lines over the same places (sizes, counts), beside the paper's values: as tables, as JSON and
//! as a chart.
//!
//! ```text
//!   panel: write           inline   fast   remote   paper          what it took      sends  writes  reads
//!   128 B                     …       …       …       …            fast, 4 KiB           1       0      0
//!   4 KiB                     …       …       …       …            …
//! ```

use super::adapters;
use super::amounts::{self, Took};
use super::chart::{self, Chart, Marks};
use super::numbers::{median, number};
use super::report::{self, Head};
use anyhow::{Context, Result};
use serde::Serialize;
use weft_bench_args::FigureArgs;
use weft_cli_common::output;

/// The origin of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Measured in this run.
    Measured,
    /// Computed from costs.
    Predicted,
    /// Given in the paper.
    Paper,
}

/// A value, or none, for each place.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// What was measured.
    pub name: String,
    /// The origin of the values.
    pub origin: Origin,
    /// Medians.
    pub values: Vec<Option<f64>>,
    /// Every repetition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Vec<f64>>,
}

/// Lines over the same places.
#[derive(Debug, Clone, Serialize)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// What the places stand for.
    pub of: String,
    /// The places.
    pub places: Vec<String>,
    /// The lines.
    pub lines: Vec<Line>,
}

/// All results of a measurement.
#[derive(Debug, Serialize)]
pub struct Figure {
    #[serde(flatten)]
    head: Head,
    /// Title of its chart.
    pub title: String,
    /// The unit of all values.
    pub unit: &'static str,
    /// The panels.
    pub panels: Vec<Panel>,
    /// What the amounts in `took` describe.
    pub took_of: String,
    /// The costs.
    pub took: Vec<Took>,
    /// Operations of RDMA adapters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Took>,
    /// Whether these are printed too.
    #[serde(skip)]
    pub prints_asked: bool,
    /// What the paper says.
    pub paper: Vec<String>,
    /// What was not measured and why, and how to read the results.
    pub notes: Vec<String>,
}

impl Line {
    /// A line of the medians of the samples at each place, without a value where there are none.
    pub fn measured(name: impl Into<String>, samples: Vec<Vec<f64>>) -> Line {
        let values = samples.iter().map(|samples| (!samples.is_empty()).then(|| median(samples))).collect();
        Line { name: name.into(), origin: Origin::Measured, values, samples }
    }

    /// A line of values that were not measured here.
    pub fn known(name: impl Into<String>, origin: Origin, values: Vec<Option<f64>>) -> Line {
        Line { name: name.into(), origin, values, samples: Vec::new() }
    }
}

impl Figure {
    /// A figure without results.
    pub fn new(
        bench: &'static str,
        title: &str,
        unit: &'static str,
        parameters: serde_json::Value,
        paper: &[&str],
    ) -> Figure {
        Figure {
            head: Head::new(bench, parameters),
            title: title.to_string(),
            unit,
            panels: Vec::new(),
            took_of: String::new(),
            took: Vec::new(),
            asked: Vec::new(),
            prints_asked: false,
            paper: paper.iter().map(|text| text.to_string()).collect(),
            notes: Vec::new(),
        }
    }

    /// Prints, saves and draws the figure.
    pub fn finish(&self, args: &FigureArgs) -> Result<()> {
        if let Some(path) = &args.svg {
            let svg = self.chart(args.common.runs).svg()?;
            std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        }
        report::save(self, &args.common)?;
        if args.common.json {
            return output::print_json(self);
        }
        for panel in &self.panels {
            output::print_line(format_args!("{}, {}", panel.title, self.unit))?;
            output::print_table(&panel.table())?;
            output::print_line("")?;
        }
        if self.prints_asked && !self.asked.is_empty() {
            output::print_line("Operations of RDMA adapters, per transfer, of all processes")?;
            output::print_table(&adapters::table(&self.asked))?;
            output::print_line("")?;
        }
        if !self.took.is_empty() {
            output::print_line(&self.took_of)?;
            output::print_table(&amounts::table(&self.took))?;
            output::print_line("")?;
        }
        let paper = self.paper.iter().map(|text| format!("Paper: {text}"));
        paper.chain(self.notes.iter().cloned()).try_for_each(output::print_line)
    }

    fn chart(&self, runs: u16) -> Chart {
        let series = |line: &Line| chart::Series {
            name: line.name.clone(),
            values: line.values.clone(),
            is_reference: line.origin == Origin::Paper,
        };
        let panel = |panel: &Panel| chart::Panel {
            title: panel.title.clone(),
            categories: panel.places.clone(),
            series: panel.lines.iter().map(series).collect(),
        };
        let is_row = self.panels.iter().all(|panel| panel.places.len() > 2);
        Chart {
            title: self.title.clone(),
            subtitle: format!(
                "Medians of {runs} runs. {}",
                self.notes.first().map_or("", |note| head_of(note))
            ),
            unit: self.unit.to_string(),
            marks: if is_row { Marks::Lines } else { Marks::Bars },
            panels: self.panels.iter().map(panel).collect(),
        }
    }
}

impl Panel {
    fn table(&self) -> comfy_table::Table {
        let names = self.lines.iter().map(|line| line.name.as_str());
        let headings: Vec<&str> = std::iter::once(self.of.as_str()).chain(names).collect();
        let mut table = output::table(&headings, &(1..headings.len()).collect::<Vec<_>>());
        for (at, place) in self.places.iter().enumerate() {
            let value = |line: &Line| line.values.get(at).copied().flatten().map_or(String::new(), number);
            table.add_row(std::iter::once(place.clone()).chain(self.lines.iter().map(value)));
        }
        table
    }
}

/// The beginning of a note, without the reason.
fn head_of(note: &str) -> &str {
    note.split(": ").next().unwrap_or(note)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut figure = Figure::new("x", "Title", "µs", serde_json::json!({}), &["as here"]);
        figure.panels.push(Panel {
            title: "write".into(),
            of: "bytes".into(),
            places: vec!["1".into(), "2".into(), "4".into()],
            lines: vec![
                Line::measured("mine", vec![vec![3.0, 1.0, 2.0], Vec::new(), vec![4.0]]),
                Line::known("paper", Origin::Paper, vec![Some(5.0), None, Some(7.0)]),
            ],
        });
        figure
    }

    #[test]
    fn values_are_medians_and_gaps_stay_gaps() {
        let table = figure().panels[0].table().to_string();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1..], [vec!["1", "2.00", "5.00"], vec!["2"], vec!["4", "4.00", "7.00"]]);
    }

    #[test]
    fn the_paper_is_a_line_of_its_own() {
        let chart = figure().chart(5);
        assert_eq!(chart.marks, Marks::Lines);
        let series = &chart.panels[0].series;
        assert_eq!(series.iter().map(|one| one.is_reference).collect::<Vec<_>>(), [false, true]);
        let svg = chart.svg().unwrap();
        assert!(svg.contains("mine") && svg.contains("paper"));
    }
}
