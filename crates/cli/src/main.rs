//! `weft`, the one program: servers, mount and tools.
//!
//! ```text
//!   args        the command line, from which help, completions and man pages are made
//!   commands/   one file per subcommand, each with one `run`
//!   mount_words `-o` words, and the command line of mount(8)
//!   launch/     a whole cluster on this machine
//!   place       what an argument means: a local path, or a path in a weft file system
//!   session     connections and keys
//!   adapters    RDMA of this process
//!   part        what a range or subarray of a file is, and moving it
//!   tree        directories, walked and removed
//!   bench/      measurements, each with the machine's own limit from the same run
//!   help/       the texts of `weft help SUBJECT`
//! ```
//!
//! Results go to standard output; everything else goes to standard error as `weft: what, where, what to do`.
//! Exit codes: 0 done, 1 failed or done in part, 2 the command line makes no sense; `weft fsck` and `weft serve` have more. Called as
//! `mount.weft`: those of mount(8).

mod adapters;
mod args;
mod bench;
mod commands;
mod copy;
mod help;
mod launch;
mod mount_words;
mod numbers;
mod output;
mod part;
mod place;
mod session;
mod size;
mod time_text;
mod tree;

use clap::Parser;
use std::process::ExitCode;

/// A metadata server makes and frees many small pieces for each operation. Of the program only: the libraries use the allocator of
/// the program that they are in.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The command has told what went wrong; only the exit code is left to set.
#[derive(Debug, thiserror::Error)]
#[error("some of it failed")]
struct Reported;

/// The command has told how it ended, and its exit code says it to scripts.
#[derive(Debug, thiserror::Error)]
#[error("ended with {0}")]
struct Code(u8);

/// Exit code of `weft serve` where a new start would end the same way: EX_CONFIG of sysexits.h.
const PERMANENT: u8 = 78;

/// Exit code of mount(8) for a mount that failed; 1 is for a command line that makes no sense.
const MOUNT_FAILED: u8 = 32;

fn main() -> ExitCode {
    let given: Vec<_> = std::env::args_os().collect();
    let is_helper = mount_words::is_helper(given.first());
    let arguments = match mount_words::command_line(given) {
        Ok(Some(line)) => args::Cli::parse_from(line),
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            return ExitCode::from(if is_helper { 1 } else { 2 });
        }
    };
    let ended = commands::run(arguments.command);
    if let Some(Code(code)) = ended.as_ref().err().and_then(|error| error.downcast_ref()) {
        return ExitCode::from(*code);
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_helper => {
            eprintln!("mount.weft: {}", output::error_text(&error));
            ExitCode::from(MOUNT_FAILED)
        }
        Err(error) if error.is::<Reported>() => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whoever read the output has had enough (`weft ls | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
