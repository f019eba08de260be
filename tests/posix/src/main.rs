//! The rules of POSIX for file systems (and Linux's where POSIX leaves them open), as a table of cases that runs in any
//! directory: `weft-posix DIR`.
//!
//! ```text
//!   calls/mkdir.rs      table.case("a directory is made with the mode less the umask", || { … })
//!        │
//!   table ──► runner    for each case: DIR/case-17, mode 0777 ── fork ──► chdir there, umask 0, run ──► 0 or a panic's text
//!        │                                                                 (own process: users, umask, cwd, open files)
//!        └──► report    "ok mkdir: …" / "not ok mkdir: …: text", a summary, exit code
//! ```
//!
//! Four processes share the cases. Each case is told when it has ended.
//!
//! Cases say what must hold in terms of system calls and errno, and know nothing of the file system below. They run as root and
//! become other users where a rule is about them. What a file system cannot do is named on the command line with its
//! reason (`--except NAME=REASON`): such a case must fail, so that the list does not outlive its reasons. What a kernel may lack
//! as a whole is left out (`--without GROUP=REASON`).

mod calls;
mod check;
mod names;
mod runner;
mod sys;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use table::Table;

const USAGE: &str = "usage: weft-posix [--list] [--verbose] [--filter TEXT] [--except NAME=REASON]... [--without GROUP=REASON]...
                  [--fewer TIMES] DIR
  --list      names of all cases
  --verbose   also says which cases passed, and how long each took
  --filter    only cases whose names contain TEXT
  --except    the case must fail, for the reason given; where it passes, that is a failure
  --without   leaves out a whole group of cases, for the reason given
  --fewer     cases of many names or rounds have TIMES fewer of them: for machines that are emulated";

#[derive(Default)]
struct Arguments {
    dir: Option<PathBuf>,
    list: bool,
    verbose: bool,
    filter: String,
    exceptions: Vec<(String, String)>,
    without: Vec<(String, String)>,
    fewer: usize,
}

fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut words = words;
    let mut parsed = Arguments::default();
    while let Some(word) = words.next() {
        let mut value = |what: &str| words.next().ok_or(format!("{what} needs a value"));
        match word.as_str() {
            "--list" => parsed.list = true,
            "--verbose" => parsed.verbose = true,
            "--filter" => parsed.filter = value("--filter")?,
            "--except" => parsed.exceptions.push(with_reason(value("--except")?)?),
            "--without" => parsed.without.push(with_reason(value("--without")?)?),
            "--fewer" => {
                let times = value("--fewer")?;
                parsed.fewer = times.parse().map_err(|_| format!("--fewer {times}: not a number"))?;
            }
            _ if word.starts_with('-') || parsed.dir.is_some() => {
                return Err(format!("unknown argument {word}"));
            }
            _ => parsed.dir = Some(word.into()),
        }
    }
    Ok(parsed)
}

fn with_reason(given: String) -> Result<(String, String), String> {
    let (name, reason) =
        given.rsplit_once('=').ok_or("NAME=REASON is needed: nothing is left out without a reason")?;
    Ok((name.to_string(), reason.to_string()))
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => return usage(&text),
    };
    check::set_fewer(arguments.fewer);
    let mut table = Table::all();
    if arguments.list {
        table.cases.iter().for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    for (group, reason) in &arguments.without {
        let before = table.cases.len();
        table.cases.retain(|case| !case.name.starts_with(&format!("{group}: ")));
        if table.cases.len() == before {
            return usage(&format!("there is no group `{group}`"));
        }
        println!("without {group}: {reason}");
    }
    let Some(dir) = &arguments.dir else { return usage("which directory?") };
    for (name, _) in &arguments.exceptions {
        if !table.cases.iter().any(|case| case.name == *name) {
            return usage(&format!("there is no case `{name}`"));
        }
    }
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        return usage("the cases become other users: run it as root");
    }
    runner::run(&table, dir, &arguments.filter, &arguments.exceptions, arguments.verbose)
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("weft-posix: {problem}\n{USAGE}");
    ExitCode::from(2)
}
