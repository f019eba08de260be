//! `weft explain --run`: executes a request in every way.

use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::io::IoSliceMut;
use std::time::Instant;
use weft_cli_common::{output, size};
use weft_client::{AccessOptions, File, IoStats, ServerPlan, Sieving};
use weft_layout::Regions;
use weft_wire::messages::io_flags;

/// Upper limit of the bytes that --run reads.
const RUN_BYTES_MAX: u64 = 1 << 30;

/// One execution of the request.
pub struct Run {
    way: &'static str,
    /// The sum of what the servers expected just before.
    expected_ns: u64,
    elapsed_ns: u64,
    stats: IoStats,
}

/// Reads as planned and then in each way. Asks for the expected cost before each read.
pub fn run_all(file: &File, regions: &Regions) -> Result<Vec<Run>> {
    let bytes = regions.total_bytes();
    if bytes > RUN_BYTES_MAX {
        bail!("--run reads at most {RUN_BYTES_MAX} bytes into memory, but the request has {bytes}");
    }
    let mut memory = vec![0; bytes as usize];
    let ways = [
        ("planned", Sieving::Auto, 0),
        ("each", Sieving::Each, io_flags::ACCESS_EACH),
        ("sieve", Sieving::Sieve, io_flags::ACCESS_SIEVE),
        ("mapped", Sieving::Mapped, io_flags::ACCESS_MAPPED),
    ];
    let mut runs = Vec::new();
    for (way, sieving, method) in ways {
        let plans = file.explain(regions, false)?;
        file.set_access(AccessOptions { sieving, ..file.access() });
        let (before, begun) = (file.io_stats(), Instant::now());
        file.read_list(&mut [IoSliceMut::new(&mut memory)], regions)?;
        let elapsed_ns = begun.elapsed().as_nanos() as u64;
        let stats = difference(&file.io_stats(), &before);
        let expected_ns = plans.iter().map(|one| expected(one, method)).sum();
        runs.push(Run { way, expected_ns, elapsed_ns, stats });
    }
    Ok(runs)
}

/// The cost that a server expects of one way, or of its own choice if `method` is 0.
fn expected(one: &ServerPlan, method: u32) -> u64 {
    let way = one.plan.plans.iter().find(|way| way.method == method);
    way.map_or(one.plan.chosen_cost_ns, |way| way.cost_ns)
}

fn difference(after: &IoStats, before: &IoStats) -> IoStats {
    IoStats {
        requests: after.requests - before.requests,
        request_bytes: after.request_bytes - before.request_bytes,
        moved_bytes: after.moved_bytes - before.moved_bytes,
        server_reads: after.server_reads - before.server_reads,
        server_writes: after.server_writes - before.server_writes,
        accessed_bytes: after.accessed_bytes - before.accessed_bytes,
        busy_ns: after.busy_ns - before.busy_ns,
        methods: after.methods,
    }
}

impl Run {
    /// The same as JSON.
    pub fn as_json(&self) -> Value {
        json!({
            "way": self.way,
            "expected_ns": self.expected_ns,
            "elapsed_ns": self.elapsed_ns,
            "busy_ns": self.stats.busy_ns,
            "requests": self.stats.requests,
            "request_bytes": self.stats.request_bytes,
            "moved_bytes": self.stats.moved_bytes,
            "accesses": self.stats.server_reads,
            "accessed_bytes": self.stats.accessed_bytes,
        })
    }
}

/// Prints the executions as a table.
pub fn print(runs: &[Run]) -> Result<()> {
    output::print_line("\nread, with the time that was expected for the servers' disks just before:")?;
    let headings =
        ["way", "requests", "request bytes", "accesses", "accessed", "expected", "servers busy", "elapsed"];
    let mut table = output::table(&headings, &[1, 2, 3, 4, 5, 6, 7]);
    for run in runs {
        table.add_row([
            run.way.to_string(),
            run.stats.requests.to_string(),
            run.stats.request_bytes.to_string(),
            run.stats.server_reads.to_string(),
            size::format_bytes(run.stats.accessed_bytes),
            size::format_ns(run.expected_ns),
            size::format_ns(run.stats.busy_ns),
            size::format_ns(run.elapsed_ns),
        ]);
    }
    output::print_table(&table)
}
