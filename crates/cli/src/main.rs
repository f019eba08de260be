//! `weft`: servers, mount and tools.
//!
//! ```text
//!   args        the command line, from which help, completions and man pages are made
//!   commands/   one file per subcommand, each with one `run`
//!   mount_words `-o` words, and the command line of mount(8)
//!   adapters    RDMA of this process
//!   part        what a range or subarray of a file is, and moving it
//!   copy/       copying files into, out of and between file systems
//!   help/       the texts of `weft help SUBJECT`
//! ```
//!
//! What it shares with `weft-bench`, which measures, is in `weft-cli-common`.
//!
//! Results go to standard output; everything else goes to standard error as `weft: what, where, what to do`.
//! Exit codes: 0 done, 1 failed or done in part, 2 the command line makes no sense; `weft fsck` and `weft serve` have more. Called as
//! `mount.weft`: those of mount(8).

mod adapters;
mod args;
mod commands;
mod copy;
mod help;
mod mount_words;
mod numbers;
mod part;
mod time_text;

use clap::Parser;
use std::process::ExitCode;
use weft_cli_common::{Reported, is_broken_pipe, output};

/// A metadata server makes and frees many small pieces for each operation. Of the program only: the libraries use the allocator of
/// the program that they are in.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The command has told how it ended, and its exit code says it to scripts.
#[derive(Debug, thiserror::Error)]
#[error("ended with {0}")]
struct Code(u8);

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
