//! Rows of results, as a table and as JSON.

use super::adapters;
use super::amounts::Took;
use super::numbers::{median, number};
use anyhow::{Context, Result};
use serde::Serialize;
use weft_bench_args::CommonArgs;
use weft_cli_common::output;

const GIB: f64 = (1u64 << 30) as f64;

/// A limit of the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Limit {
    /// What has this limit.
    pub what: String,
    /// The limit, in the unit of the row.
    pub value: f64,
}

/// Processor seconds for each GiB moved.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cpu {
    /// All clients together.
    pub client_s_per_gib: f64,
    /// All servers together.
    pub server_s_per_gib: f64,
}

/// A result.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Median of the samples.
    pub value: f64,
    /// The unit of the value.
    pub unit: &'static str,
    /// The machine's limit in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// The value as a fraction of the limit; for times, as a multiple of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Every repetition.
    pub samples: Vec<f64>,
}

impl Row {
    /// A row with the median of `samples`.
    pub fn new(what: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Row {
        Row { what: what.into(), value: median(&samples), unit, limit: None, share: None, cpu: None, samples }
    }

    /// Adds a limit: the median of its `samples`.
    pub fn against(mut self, what: impl Into<String>, samples: &[f64]) -> Row {
        let limit = Limit { what: what.into(), value: median(samples) };
        self.share = Some(self.value / limit.value);
        self.limit = Some(limit);
        self
    }

    /// Adds the processor time used while `bytes` were moved.
    pub fn with_cpu(mut self, client_s: f64, server_s: f64, bytes: f64) -> Row {
        let gib = bytes / GIB;
        self.cpu = Some(Cpu { client_s_per_gib: client_s / gib, server_s_per_gib: server_s / gib });
        self
    }
}

/// What was measured, and where.
#[derive(Debug, Serialize)]
pub struct Head {
    /// The name of the measurement.
    pub bench: &'static str,
    /// Its parameters.
    pub parameters: serde_json::Value,
    /// Processors of this machine.
    pub processors: usize,
    /// Release of the kernel.
    pub kernel: String,
}

/// All results of a measurement.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    head: Head,
    /// The results.
    pub rows: Vec<Row>,
    /// Operations of RDMA adapters, if there were any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub took: Vec<Took>,
}

impl Head {
    /// Describes a measurement on this machine.
    pub fn new(bench: &'static str, parameters: serde_json::Value) -> Head {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        Head { bench, parameters, processors, kernel: kernel.trim().to_string() }
    }
}

impl Report {
    /// A report without results.
    pub fn new(bench: &'static str, parameters: serde_json::Value) -> Report {
        Report { head: Head::new(bench, parameters), rows: Vec::new(), took: Vec::new() }
    }

    /// Prints the report as a table, or as JSON if requested, and saves it if requested.
    pub fn print(&self, common: &CommonArgs) -> Result<()> {
        save(self, common)?;
        if common.json {
            return output::print_json(self);
        }
        let with_limit = self.rows.iter().any(|row| row.limit.is_some());
        let with_cpu = self.rows.iter().any(|row| row.cpu.is_some());
        let mut headings = vec!["what", "result", ""];
        if with_limit {
            headings.extend(["of limit", "limit", ""]);
        }
        if with_cpu {
            headings.extend(["client CPU s/GiB", "server CPU s/GiB"]);
        }
        let mut table = output::table(&headings, &if with_limit { [1, 3, 4, 6, 7] } else { [1, 3, 4, 3, 4] });
        for row in &self.rows {
            table.add_row(cells(row, with_limit, with_cpu));
        }
        output::print_table(&table)?;
        if self.took.is_empty() {
            return Ok(());
        }
        output::print_line("\nOperations of RDMA adapters, in the last repetition")?;
        output::print_table(&adapters::table(&self.took))
    }
}

impl Report {
    /// Writes it to the file of `--save`.
    pub fn save(&self, common: &CommonArgs) -> Result<()> {
        save(self, common)
    }
}

/// Writes results to the file of `--save`.
pub fn save(results: &impl Serialize, common: &CommonArgs) -> Result<()> {
    let Some(path) = &common.save else { return Ok(()) };
    let text = serde_json::to_string_pretty(results)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn cells(row: &Row, with_limit: bool, with_cpu: bool) -> Vec<String> {
    let mut cells = vec![row.what.clone(), number(row.value), row.unit.to_string()];
    if with_limit {
        match (&row.limit, row.share) {
            (Some(limit), Some(share)) if row.unit == "µs" => {
                cells.extend([format!("{share:.2} x"), number(limit.value), limit.what.clone()]);
            }
            (Some(limit), Some(share)) => {
                cells.extend([format!("{:.0} %", share * 100.0), number(limit.value), limit.what.clone()]);
            }
            _ => cells.extend([String::new(), String::new(), String::new()]),
        }
    }
    if with_cpu {
        let cpu = row
            .cpu
            .map(|cpu| [cpu.client_s_per_gib, cpu.server_s_per_gib].map(|value| format!("{value:.3}")));
        cells.extend(cpu.unwrap_or_default());
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_stands_next_to_its_limit() {
        let row = Row::new("read", "MiB/s", vec![50.0, 100.0, 75.0]).against("wire", &[150.0]);
        assert_eq!(row.share, Some(0.5));
        let row = row.with_cpu(2.0, 4.0, 2.0 * GIB);
        assert_eq!(
            cells(&row, true, true),
            ["read", "75.0", "MiB/s", "50 %", "150", "wire", "1.000", "2.000"]
        );
    }
}
