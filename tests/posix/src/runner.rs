//! Runs cases, each in a process and a directory of its own, and reports.

use crate::table::{Case, Table};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// A case that takes longer hangs.
const CASE_SECONDS_MAX: u32 = 120;

/// Processes that run cases side by side: most of the time of a case is waiting, for disks, servers or the clock.
const WORKERS: usize = 4;

/// What came of one case.
enum Outcome {
    Passed,
    Failed(String),
    Excepted(String),
}

/// Runs all cases whose names contain `filter`. Fails where a case fails that is no exception, or one passes that is.
pub fn run(
    table: &Table,
    dir: &Path,
    filter: &str,
    exceptions: &[(String, String)],
    verbose: bool,
) -> ExitCode {
    let work = |worker: usize, mut writer: File| {
        let share = table.cases.iter().enumerate().skip(worker).step_by(WORKERS);
        for (number, case) in share.filter(|(_, case)| case.name.contains(filter)) {
            let start = Instant::now();
            let mut text = match judge(case, &dir.join(format!("case-{number}")), exceptions) {
                Outcome::Passed => format!("ok {}", case.name),
                Outcome::Failed(text) => format!("not ok {}: {}", case.name, text.trim().replace('\n', " ")),
                Outcome::Excepted(reason) => format!("except {}: {reason}", case.name),
            };
            if verbose {
                let _ = write!(text, " ({:.1} s)", start.elapsed().as_secs_f64());
            }
            writeln!(writer, "{text}").expect("the parent reads");
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|worker| in_child(|writer| work(worker, writer))).collect();
    // Threads only from here on: whoever forks has one.
    let tallies = std::thread::scope(|scope| {
        let readers: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(|| tell(worker, verbose))).collect();
        readers.into_iter().map(|reader| reader.join().expect("it does not panic")).collect::<Vec<_>>()
    });
    let sum = |count: fn(&Tally) -> usize| tallies.iter().map(count).sum::<usize>();
    let (passed, failed, excepted) = (sum(|t| t.passed), sum(|t| t.failed), sum(|t| t.excepted));
    println!("{passed} passed, {failed} failed, {excepted} exceptions");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many cases ended how.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    excepted: usize,
}

/// Tells what a worker says while it says it.
fn tell(worker: Part, verbose: bool) -> Tally {
    let mut tally = Tally::default();
    let end = worker.each_line(|line| {
        match line.split(' ').next() {
            Some("ok") => tally.passed += 1,
            Some("except") => tally.excepted += 1,
            _ => tally.failed += 1,
        }
        if verbose || !line.starts_with("ok ") {
            println!("{line}");
        }
    });
    if let Err(end) = end {
        tally.failed += 1;
        println!("not ok: a worker {end}");
    }
    tally
}

fn judge(case: &Case, dir: &Path, exceptions: &[(String, String)]) -> Outcome {
    let exception = exceptions.iter().find(|(excepted, _)| *excepted == case.name);
    match (run_case(case, dir), exception) {
        (Ok(()), None) => Outcome::Passed,
        (Err(text), None) => Outcome::Failed(text),
        (Err(_), Some((_, reason))) => Outcome::Excepted(reason.clone()),
        (Ok(()), Some(_)) => Outcome::Failed("passes, but is listed as an exception".into()),
    }
}

fn run_case(case: &Case, dir: &Path) -> Result<(), String> {
    let told = |what: &str, error: std::io::Error| format!("{what} {}: {error}", dir.display());
    std::fs::create_dir(dir).map_err(|error| told("cannot make", error))?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777))
        .map_err(|error| told("cannot open up", error))?;
    let mut text = String::new();
    let end = in_child(|writer| run_here(case, dir, writer)).each_line(|line| text.extend([line, "\n"]));
    let outcome = end.map_err(|end| if text.is_empty() { end } else { text });
    std::fs::remove_dir_all(dir).map_err(|error| told("cannot remove", error))?;
    outcome
}

/// A process that runs a part of this program, and what it says.
struct Part {
    pid: i32,
    reader: File,
}

impl Part {
    /// Gives `told` each line that it says, and returns how it ended if not well.
    fn each_line(self, mut told: impl FnMut(&str)) -> Result<(), String> {
        BufReader::new(self.reader)
            .split(b'\n')
            .map_while(Result::ok)
            .for_each(|line| told(&String::from_utf8_lossy(&line)));
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
            (true, 0) => Ok(()),
            (true, code) => Err(format!("ended with {code}")),
            (false, _) => Err(format!("ended by signal {}", libc::WTERMSIG(status))),
        }
    }
}

/// Runs `action` in a process of its own, with the end of a pipe that [`Part::each_line`] reads.
fn in_child(action: impl FnOnce(File)) -> Part {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which then belong to the files made of them. This process has one thread,
    // so its child may do anything.
    let (reader, writer, pid) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe");
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]), libc::fork())
    };
    if pid == 0 {
        drop(reader);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| action(writer)));
        // SAFETY: ends the process at once; nothing of the parent's is flushed twice.
        unsafe { libc::_exit(i32::from(outcome.is_err())) }
    }
    assert!(pid > 0, "a child process: {}", std::io::Error::last_os_error());
    Part { pid, reader }
}

/// Runs a case in this process, which has no other use; panics where the rule does not hold, and says why.
fn run_here(case: &Case, dir: &Path, writer: File) {
    // SAFETY: neither call has preconditions.
    unsafe {
        libc::alarm(CASE_SECONDS_MAX);
        libc::umask(0);
    }
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let line = panic.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let _ = writeln!(&writer, "{text}{line}");
    }));
    std::env::set_current_dir(dir).expect("the case's directory");
    (case.run)();
}
