//! Compares methods of noncontiguous access in one run.
//!
//! ```text
//!   for each case                      a pattern: who accesses what
//!     for each repetition
//!       directly on tmpfs              the same processes, a system call per piece: an upper limit
//!       for each transport, method     write a new file, read, check, overwrite, check all of it, remove it
//!   medians; ratios; the servers' work; was the choice right?
//! ```
//!
//! A case of little data is applied to several files, one after the other, because a millisecond cannot be
//! measured. Methods alternate, because a machine's speed changes from minute to minute. Every write has
//! contents of its own. So a process that reads checks that it got the last write, and a check of the whole
//! file shows that nothing else was changed. Memory is warmed up before each write of a new file. With
//! `--uncached` every access has its own file, which is dropped from the servers' page caches before it is
//! read or overwritten.

pub mod content;
pub mod method;
pub mod pattern;
pub mod results;
mod setup;
pub mod task;

pub use pattern::Case;

use super::chart::Marks;
use super::report::{self, Head};
use anyhow::{Context, Result, bail};
use setup::Setup;
use weft_bench_args::{AccessArgs, How, Way};
use weft_cli_common::output;
use weft_cli_common::size::format_bytes;

/// Describes a measurement.
pub struct Bench {
    /// Its name.
    pub name: &'static str,
    /// Title of its chart.
    pub title: &'static str,
    /// The style of its chart.
    pub marks: Marks,
    /// Parameters, recorded with the results.
    pub parameters: serde_json::Value,
    /// The methods that it compares.
    pub methods: &'static [How],
    /// The kinds of access.
    pub ways: &'static [Way],
    /// Its cases.
    pub cases: Vec<Case>,
}

/// The methods of access.
pub const ACCESS_METHODS: &[How] =
    &[How::Multiple, How::ClientSieve, How::Each, How::Sieve, How::Mapped, How::List];

/// Measures, prints, saves and draws.
pub fn run(bench: Bench, args: &AccessArgs) -> Result<()> {
    let methods = chosen(bench.methods, &args.method, "--method")?;
    let ways = chosen(bench.ways, &args.way, "--way")?;
    let mut setup = Setup::new(&bench.cases, args, ways)?;
    let mut contests = Vec::new();
    for case in &bench.cases {
        contests.extend(setup.measure(case, &methods)?);
    }
    let mut parameters = bench.parameters;
    parameters["io_servers"] = setup.testbed.client.map().io_servers().count().into();
    parameters["runs"] = args.testbed.common.runs.into();
    parameters["cached"] = (!args.uncached).into();
    parameters["sync"] = args.sync.into();
    if args.uncached {
        parameters["kept_in_page_cache_bytes"] = setup.kept_bytes.into();
        if setup.kept_bytes > 0 {
            eprintln!("weft: up to {} stayed in the page cache", format_bytes(setup.kept_bytes));
        }
    }
    drop(setup);
    if let Some(path) = &args.svg {
        let chart = results::chart(bench.title, subtitle(args), bench.marks, &contests, &methods);
        std::fs::write(path, chart.svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let figures = results::figures(Head::new(bench.name, parameters), &contests);
    report::save(&figures, &args.testbed.common)?;
    if args.testbed.common.json {
        return output::print_json(&figures);
    }
    results::print(&contests, &methods, args.counters)
}

/// Selects the wanted ones of `all`; all if none is given.
fn chosen<T: Copy + PartialEq>(all: &[T], wanted: &[T], option: &str) -> Result<Vec<T>> {
    let found: Vec<T> = all.iter().copied().filter(|one| wanted.is_empty() || wanted.contains(one)).collect();
    if found.is_empty() {
        bail!("{option} selects nothing that this measurement has");
    }
    Ok(found)
}

/// One line about the conditions of the measurement.
fn subtitle(args: &AccessArgs) -> String {
    let cached = if args.uncached { "data not cached on the servers" } else { "data cached on the servers" };
    let sync = if args.sync { "writes made durable" } else { "writes not made durable" };
    format!("Medians of {} runs; {cached}; {sync}; all processes together.", args.testbed.common.runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_measured() {
        assert_eq!(chosen(&[1, 2, 3], &[], "--x").unwrap(), [1, 2, 3]);
        assert_eq!(chosen(&[1, 2, 3], &[3, 1, 7], "--x").unwrap(), [1, 3]);
        assert!(chosen(&[1, 2, 3], &[7], "--x").is_err());
    }
}
