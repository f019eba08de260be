//! Runs cases, each in a process and a directory of its own, and reports.

use crate::table::{Case, Table};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

/// A case that takes longer hangs.
const CASE_SECONDS_MAX: u32 = 120;

/// Runs all cases whose names contain `filter`. Fails where a case fails that is no exception, or one passes that is.
pub fn run(
    table: &Table,
    dir: &Path,
    filter: &str,
    exceptions: &[(String, String)],
    verbose: bool,
) -> ExitCode {
    let (mut passed, mut failed, mut excepted) = (0, 0, 0);
    for (number, case) in table.cases.iter().enumerate().filter(|(_, case)| case.name.contains(filter)) {
        let name = &case.name;
        let exception = exceptions.iter().find(|(excepted, _)| excepted == name);
        match (run_case(case, &dir.join(format!("case-{number}"))), exception) {
            (Ok(()), None) => {
                passed += 1;
                if verbose {
                    println!("ok {name}");
                }
            }
            (Err(text), None) => {
                failed += 1;
                println!("not ok {name}: {}", text.trim().replace('\n', " "));
            }
            (Err(_), Some((_, reason))) => {
                excepted += 1;
                println!("except {name}: {reason}");
            }
            (Ok(()), Some(_)) => {
                failed += 1;
                println!("not ok {name}: passes, but is listed as an exception");
            }
        }
    }
    println!("{passed} passed, {failed} failed, {excepted} exceptions");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_case(case: &Case, dir: &Path) -> Result<(), String> {
    let told = |what: &str, error: std::io::Error| format!("{what} {}: {error}", dir.display());
    std::fs::create_dir(dir).map_err(|error| told("cannot make", error))?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777))
        .map_err(|error| told("cannot open up", error))?;
    let outcome = in_child(case, dir);
    std::fs::remove_dir_all(dir).map_err(|error| told("cannot remove", error))?;
    outcome
}

/// The text of the panic, if the child ends otherwise than with 0.
fn in_child(case: &Case, dir: &Path) -> Result<(), String> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which then belong to the files made of them. This process has one thread,
    // so its child may do anything.
    let (mut reader, writer, child) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe");
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]), libc::fork())
    };
    if child == 0 {
        drop(reader);
        be_child(case, dir, writer);
    }
    assert!(child > 0, "a child process: {}", std::io::Error::last_os_error());
    drop(writer);
    let mut text = Vec::new();
    let _ = reader.read_to_end(&mut text);
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, _) => Err(String::from_utf8_lossy(&text).into_owned()),
        (false, _) => Err(format!("ended by signal {}", libc::WTERMSIG(status))),
    }
}

fn be_child(case: &Case, dir: &Path, writer: File) -> ! {
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
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::env::set_current_dir(dir).expect("the case's directory");
        (case.run)();
    }));
    // SAFETY: ends the process at once; nothing of the parent's is flushed twice.
    unsafe { libc::_exit(i32::from(outcome.is_err())) }
}
