//! Runs all tests and says what came of each: `cargo run -p xtask -- test`.
//!
//! ```text
//!   cargo builds ─► programs: slow ones first ─► as many at once as there are processors ─► outcomes ─► what failed, what was skipped, sums
//!                             └ guests: beside the others from the beginning; before them where there are few processors
//! ```
//!
//! A test that fails has failed: nothing is run again. A test that lacks what it needs says so in the file `$WEFT_TEST_SKIPS`
//! (`weft_test_needs`), and counts as skipped instead of passed.

mod outcome;
mod programs;

use anyhow::{Context, Result, bail};
use outcome::Outcome;
use programs::Program;
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
    /// Programs at once.
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
    let (guests, others) =
        programs::build(root)?.into_iter().filter(wanted).partition::<Vec<_>, _>(Program::is_of_guests);
    if guests.is_empty() && others.is_empty() {
        bail!("no test program has {} in its name", options.names.join(" or "));
    }
    let together = match options.jobs < JOBS_BESIDE_GUESTS {
        true => vec![(guests, Vec::new()), (Vec::new(), others)],
        false => vec![(guests, others)],
    };
    let mut sums = Outcome::default();
    for round in 1..=options.repeat {
        if options.repeat > 1 {
            println!("== round {round} of {}", options.repeat);
        }
        for (guests, others) in &together {
            sums.add(run_all(guests.clone(), others.clone(), options.jobs, directory.path())?);
        }
        if options.names.is_empty() {
            sums.add(run_one(&Program::examples(root), directory.path())?);
        }
    }
    print!("{}", sums.report());
    Ok(sums.failed.is_empty())
}

/// Runs `others`, so many at once, and `guests` one after the other beside them.
fn run_all(guests: Vec<Program>, others: Vec<Program>, jobs: usize, directory: &Path) -> Result<Outcome> {
    let queues = [Mutex::new(VecDeque::from(guests)), Mutex::new(VecDeque::from(others))];
    let sums = Mutex::new(Outcome::default());
    let work = |queue: &Mutex<VecDeque<Program>>| -> Result<()> {
        loop {
            let Some(program) = queue.lock().expect("no thread panics").pop_front() else { return Ok(()) };
            let outcome = run_one(&program, directory)?;
            sums.lock().expect("no thread panics").add(outcome);
        }
    };
    std::thread::scope(|scope| {
        let of_guests = std::iter::once(&queues[0]);
        let workers: Vec<_> = of_guests
            .chain(std::iter::repeat_n(&queues[1], jobs))
            .map(|queue| scope.spawn(move || work(queue)))
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
    let status = wait(&mut child)?;
    let mut text = String::from_utf8_lossy(&std::fs::read(said.path())?).into_owned();
    if status.is_none() {
        text += &format!("not over after {} minutes\n", TIME_MAX.as_secs() / 60);
    }
    let skips = std::fs::read_to_string(skips.path())?;
    let outcome = Outcome::of(&program.name, &text, &skips, status);
    print!("{}", shown(program, &text, &outcome, begun.elapsed()));
    Ok(outcome)
}

/// Waits for a program; ends it, and returns `None`, where it takes longer than any may.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    let end = Instant::now() + TIME_MAX;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

fn command(program: &Program, output: File) -> Result<Command> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).current_dir(&program.directory);
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    command.stderr(output.try_clone()?).stdout(output);
    Ok(command)
}

/// All that a program said where a test failed, otherwise a line for each of its tests.
fn shown(program: &Program, text: &str, outcome: &Outcome, took: Duration) -> String {
    let head = format!("== {} ({:.1} s)\n", program.name, took.as_secs_f64());
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
        let program = Program::examples(Path::new("/"));
        let text = "running 1 test\ntest one ... ok\n\nlater\n";
        let passed = shown(&program, text, &Outcome::default(), Duration::from_millis(1500));
        assert_eq!(passed, "== examples in the documentation (1.5 s)\ntest one ... ok\n");
        let outcome = Outcome { failed: vec!["one".into()], ..Outcome::default() };
        assert!(shown(&program, text, &outcome, Duration::ZERO).ends_with("later\n"));
    }
}
