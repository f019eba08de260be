//! What a test program takes: seconds, and seconds of processors, its servers and mounts included.
//!
//! ```text
//!   xtask test ─► xtask run PROGRAM … ─► PROGRAM ─► children ─► servers and mounts whose parents have ended
//!                   ▲    waits for the program, and for whoever is left by its parent         │
//!                   └─────────────────── PR_SET_CHILD_SUBREAPER ──────────────────────────────┘
//!   the kernel adds up the times of all whose ends were waited for (getrusage(2)); what outlives its program is not counted
//! ```

use anyhow::{Context, Result, bail};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

/// Runs a program, given with its arguments, and ends as it does.
///
/// # Errors
/// If it cannot be started.
pub fn run(words: &[String]) -> Result<ExitCode> {
    let Some((program, arguments)) = words.split_first() else { bail!("run what?") };
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: plain numbers; what a process is to its children and its parent harms no memory. Between fork and exec only system
    // calls are made.
    let reaps = unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
    };
    if reaps != 0 {
        bail!("cannot wait for processes that are left: {}", io::Error::last_os_error());
    }
    let child = command.spawn().with_context(|| format!("{program} cannot be started"))?;
    let status = loop {
        let (pid, status) = next_end()?;
        if pid == child.id() {
            break status;
        }
    };
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (None, signal) => {
            // SAFETY: this process is to end like its child.
            unsafe { libc::raise(signal.unwrap_or(libc::SIGKILL)) };
            ExitCode::FAILURE
        }
    })
}

/// Waits for the end of any child.
fn next_end() -> Result<(u32, ExitStatus)> {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    match u32::try_from(pid) {
        Ok(pid) => Ok((pid, ExitStatus::from_raw(status))),
        Err(_) => Err(io::Error::last_os_error()).context("cannot wait for a program"),
    }
}

/// Whether the child has ended: how, and the time of processors that it and those it waited for took.
///
/// # Errors
/// Of `wait4`.
pub(super) fn ended(child: &Child) -> io::Result<Option<(ExitStatus, Duration)>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both live through the call, and zeros are a `rusage`.
    let (pid, usage) = unsafe {
        let pid = libc::wait4(child.id() as libc::pid_t, &raw mut status, libc::WNOHANG, usage.as_mut_ptr());
        (pid, usage.assume_init())
    };
    match pid {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Some((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)))),
    }
}

fn time(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}

/// What a program took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Took {
    pub program: String,
    pub wall: Duration,
    /// Time of processors.
    pub busy: Duration,
}

/// The programs that took longest, and the sum of all.
pub(super) fn table(took: &[Took]) -> String {
    const ROWS: usize = 10;
    let row = |name: &str, wall: Duration, busy: Duration| {
        format!("{name:40} {:9.1} {:9.1}\n", wall.as_secs_f64(), busy.as_secs_f64())
    };
    let mut slowest: Vec<&Took> = took.iter().collect();
    slowest.sort_by_key(|took| std::cmp::Reverse(took.wall));
    let head = format!("{:40} {:>9} {:>9}\n", "slowest programs", "seconds", "busy");
    let rows = slowest.iter().take(ROWS).map(|took| row(&took.program, took.wall, took.busy));
    let sum = row(
        &format!("all {} programs", took.len()),
        took.iter().map(|took| took.wall).sum(),
        took.iter().map(|took| took.busy).sum(),
    );
    head + &rows.collect::<String>() + &sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const PART: &str = "XTASK_TEST_PART";

    /// Runs this test again, in the part of `xtask run`, with a line of shell as the program.
    #[expect(clippy::zombie_processes, reason = "`ended` waits for it")]
    fn taken_by(line: &str) -> (ExitStatus, Duration) {
        let name =
            "test::measured::tests::processes_that_their_parents_left_are_counted_and_ends_are_passed_on";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.args([name, "--exact", "--nocapture"]).env(PART, line).spawn().unwrap();
        let begun = Instant::now();
        loop {
            if let Some(end) = ended(&child).unwrap() {
                return end;
            }
            if begun.elapsed() > Duration::from_secs(60) {
                child.kill().and_then(|()| child.wait()).unwrap();
                panic!("{line}: hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn processes_that_their_parents_left_are_counted_and_ends_are_passed_on() {
        if let Ok(line) = std::env::var(PART) {
            let code = run(&["sh", "-c", &line].map(String::from)).unwrap();
            std::process::exit(if code == ExitCode::SUCCESS { 0 } else { 3 });
        }
        // A process whose parent ends at once counts to a million, and leaves its number.
        let directory = tempfile::tempdir().unwrap();
        let number = directory.path().join("number").display().to_string();
        let counts = r#"i=0; while [ $i -lt 1000000 ]; do i=$((i + 1)); done; echo $$ > "$0""#;
        let is_there = format!("kill -0 $(cat {number}) 2> /dev/null");
        let line = format!(
            "(sh -c '{counts}' {number} &); until [ -s {number} ]; do sleep 0.05; done; while {is_there}; do sleep 0.05; done"
        );
        let (status, busy) = taken_by(&line);
        assert!(status.success() && busy >= Duration::from_millis(100), "{status}, {busy:?}");
        assert_eq!(taken_by("exit 7").0.code(), Some(3));
        assert_eq!(taken_by("kill -9 $$").0.signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn the_longest_come_first_and_all_are_in_the_sum() {
        let took = |at: u64| Took {
            program: format!("p{at}"),
            wall: Duration::from_secs(at),
            busy: Duration::from_millis(at * 100),
        };
        let table = table(&(1..=12).map(took).collect::<Vec<_>>());
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words.len(), 12);
        assert_eq!((&words[1][..], &words[10][..]), (&["p12", "12.0", "1.2"][..], &["p3", "3.0", "0.3"][..]));
        assert_eq!(words[11], ["all", "12", "programs", "78.0", "7.8"]);
    }
}
