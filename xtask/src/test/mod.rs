//! Runs all tests and says what came of each: `cargo run -p xtask -- test`.
//!
//! ```text
//!   cargo builds ─► programs that compute  ─► as many at once as there are processors ─┐
//!                   programs that wait     ─► as many again, beside them               ├─► outcomes ─► what failed, what was skipped,
//!                   guests                 ─► one, beside both; before them where ─────┘               what took longest, sums
//!                                             there are few processors
//! ```
//!
//! A test that fails has failed: nothing is run again. A test that lacks what it needs says so in the file `$WEFT_TEST_SKIPS`
//! (`weft_test_needs`), and counts as skipped instead of passed.

mod measured;
mod outcome;
mod programs;

pub use measured::run as run_measured;

use anyhow::{Context, Result, bail};
use measured::Took;
use outcome::Outcome;
use programs::{Load, Program};
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where tests say that they were skipped; each line is `TEST: REASON`.
const SKIPS: &str = "WEFT_TEST_SKIPS";

/// Processors from which on guests run beside the other programs. Emulation takes two, and what waits in a guest waits by its clock.
const JOBS_BESIDE_GUESTS: usize = 4;

/// A program that takes longer hangs. The longest takes ten minutes on two processors that have other work as well.
const TIME_MAX: Duration = Duration::from_secs(40 * 60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// Programs at once that compute; from 2 on, as many that wait run beside them.
    jobs: usize,
    /// How often all of them run.
    repeat: usize,
    /// Only programs whose names have one of these in them; none: all, and the examples in the documentation.
    names: Vec<String>,
}

/// How `test` is used.
pub const USAGE: &str = "cargo run -p xtask -- test [--jobs COUNT] [--repeat COUNT] [NAME...]";

impl Options {
    /// # Errors
    /// What cannot be understood.
    pub fn parse(arguments: &[String]) -> Result<Options> {
        let jobs = std::thread::available_parallelism().map_or(2, usize::from);
        let mut options = Options { jobs, repeat: 1, names: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let count = match argument.as_str() {
                "--jobs" => &mut options.jobs,
                "--repeat" => &mut options.repeat,
                unknown if unknown.starts_with('-') => bail!("{unknown}: not known; usage: {USAGE}"),
                name => {
                    options.names.push(name.to_owned());
                    continue;
                }
            };
            let value = arguments.next().with_context(|| format!("{argument} needs a number"))?;
            *count = value
                .parse()
                .ok()
                .filter(|count| *count > 0)
                .with_context(|| format!("{argument} {value}: not a number from 1 on"))?;
        }
        Ok(options)
    }
}

/// Runs what `options` ask for; whether all of it passed.
///
/// # Errors
/// If the tests cannot be built or started.
pub fn run(root: &Path, options: &Options) -> Result<bool> {
    let directory = tempfile::tempdir()?;
    let wanted = |program: &Program| {
        options.names.is_empty() || options.names.iter().any(|name| program.name.contains(name))
    };
    let programs: Vec<_> = programs::build(root)?.into_iter().filter(wanted).collect();
    if programs.is_empty() {
        bail!("no test program has {} in its name", options.names.join(" or "));
    }
    let of = |load: Load| programs.iter().filter(|program| program.load() == load).cloned().collect();
    let guests = Queue { programs: of(Load::Guests), at_once: 1 };
    let others =
        [Load::Computes, Load::Waits].map(|load| Queue { programs: of(load), at_once: options.jobs });
    let together = match options.jobs {
        1 => vec![vec![Queue { programs: programs.clone(), at_once: 1 }]],
        jobs if jobs < JOBS_BESIDE_GUESTS => vec![vec![guests], others.to_vec()],
        _ => vec![[&[guests], &others[..]].concat()],
    };
    let mut sums = Outcome::default();
    for round in 1..=options.repeat {
        if options.repeat > 1 {
            println!("== round {round} of {}", options.repeat);
        }
        for queues in &together {
            sums.add(run_all(queues, directory.path())?);
        }
        if options.names.is_empty() {
            sums.add(run_one(&Program::examples(root), directory.path())?);
        }
    }
    print!("{}{}", measured::table(&sums.took), sums.report());
    Ok(sums.failed.is_empty())
}

/// Programs that run beside those of other queues.
#[derive(Debug, Clone)]
struct Queue {
    programs: Vec<Program>,
    at_once: usize,
}

/// Runs all programs of all queues.
fn run_all(queues: &[Queue], directory: &Path) -> Result<Outcome> {
    let sums = Mutex::new(Outcome::default());
    let work = |programs: &Mutex<VecDeque<&Program>>| -> Result<()> {
        loop {
            let Some(program) = programs.lock().expect("no thread panics").pop_front() else { return Ok(()) };
            let outcome = run_one(program, directory)?;
            sums.lock().expect("no thread panics").add(outcome);
        }
    };
    let left: Vec<_> = queues.iter().map(|queue| Mutex::new(queue.programs.iter().collect())).collect();
    std::thread::scope(|scope| {
        let of_each = queues.iter().zip(&left);
        let workers: Vec<_> = of_each
            .flat_map(|(queue, left)| std::iter::repeat_n(left, queue.at_once))
            .map(|left| scope.spawn(|| work(left)))
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
    })?;
    Ok(sums.into_inner().expect("no thread panics"))
}

/// Runs one program, and prints what it says once it has ended.
fn run_one(program: &Program, directory: &Path) -> Result<Outcome> {
    let said = tempfile::NamedTempFile::new_in(directory)?;
    let skips = tempfile::NamedTempFile::new_in(directory)?;
    let begun = Instant::now();
    let mut child = command(program, said.reopen()?)?
        .env(SKIPS, skips.path())
        .spawn()
        .with_context(|| format!("{} cannot be started", program.path.display()))?;
    let (status, busy) = wait(&mut child)?;
    let took = Took { program: program.name.clone(), wall: begun.elapsed(), busy };
    let mut text = String::from_utf8_lossy(&std::fs::read(said.path())?).into_owned();
    if status.is_none() {
        text += &format!("not over after {} minutes\n", TIME_MAX.as_secs() / 60);
    }
    let skips = std::fs::read_to_string(skips.path())?;
    let mut outcome = Outcome::of(&program.name, &text, &skips, status);
    print!("{}", shown(&took, &text, &outcome));
    outcome.took.push(took);
    Ok(outcome)
}

/// Waits for a program: how it ended and its time of processors. Ends it, and returns `None`, where it takes longer than any may.
fn wait(child: &mut Child) -> Result<(Option<ExitStatus>, Duration)> {
    let end = Instant::now() + TIME_MAX;
    while Instant::now() < end {
        if let Some((status, busy)) = measured::ended(child)? {
            return Ok((Some(status), busy));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok((None, Duration::ZERO))
}

fn command(program: &Program, output: File) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").arg(&program.path).args(&program.arguments).current_dir(&program.directory);
    command.env("CARGO_MANIFEST_DIR", &program.directory).env(programs::BUILT, "1");
    command.stderr(output.try_clone()?).stdout(output);
    Ok(command)
}

/// All that a program said where a test failed, otherwise a line for each of its tests.
fn shown(took: &Took, text: &str, outcome: &Outcome) -> String {
    let (wall, busy) = (took.wall.as_secs_f64(), took.busy.as_secs_f64());
    let head = format!("== {} ({wall:.1} s, {busy:.1} s of processors)\n", took.program);
    let is_worth_it = |line: &&str| !outcome.failed.is_empty() || line.starts_with("test ");
    text.lines().filter(is_worth_it).fold(head, |shown, line| shown + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Options> {
        Options::parse(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_understood_or_refused() {
        let options = parsed(&["--jobs", "3", "map", "--repeat", "10"]).unwrap();
        assert_eq!(options, Options { jobs: 3, repeat: 10, names: vec!["map".into()] });
        for wrong in [&["--jobs"][..], &["--jobs", "0"], &["--repeat", "often"], &["--again"]] {
            parsed(wrong).unwrap_err();
        }
    }

    #[test]
    fn what_passes_is_a_line_and_what_fails_is_told_whole() {
        let (wall, busy) = (Duration::from_millis(1500), Duration::from_millis(200));
        let took = Took { program: "weft-tests map".into(), wall, busy };
        let text = "running 1 test\ntest one ... ok\n\nlater\n";
        let passed = shown(&took, text, &Outcome::default());
        assert_eq!(passed, "== weft-tests map (1.5 s, 0.2 s of processors)\ntest one ... ok\n");
        let outcome = Outcome { failed: vec!["one".into()], ..Outcome::default() };
        assert!(shown(&took, text, &outcome).ends_with("later\n"));
    }
}
