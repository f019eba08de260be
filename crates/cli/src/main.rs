//! The program `weft`: servers, mount and tools.
//!
//! ```text
//!   args        the command line: all commands, from which help, completions and man pages are generated
//!   commands/   one file per subcommand, each with one `run`
//!   mount_words mount options (`-o`), and the command line of mount(8)
//!   adapters    the RDMA adapters that this process uses
//!   change      changes of attributes, also of everything below a directory
//!   modes       modes as chmod takes them
//!   moments     points in time as touch takes them
//!   suggest     what was perhaps meant by a command that does not exist
//!   part        ranges and subarrays of files: their description, reading and writing
//!   copy/       copying files into, out of and between file systems
//!   dashboard/  the page of `weft dashboard`, and its history
//!   gateway_state  what a running NFS gateway tells
//!   hosts/      clusters on several hosts, started over ssh
//!   help/       the manual pages of `weft help SUBJECT`
//!   embedded    libraries that are sections of this program
//!   exit        how a command ends when it fails
//! ```
//!
//! `weft-cli-common` has what this program shares with `weft-bench`.
//!
//! Results go to standard output. Everything else goes to standard error, as `weft: what, where, what to do`.
//!
//! Exit codes: 0 success, 1 failure or partial success, 2 invalid command line. `weft fsck`, `weft scrub` and
//! `weft serve` have further ones. As `mount.weft` the program uses those of mount(8).

mod adapters;
mod args;
mod busy_files;
mod change;
mod commands;
mod copy;
mod dashboard;
mod doctor;
mod embedded;
mod exit;
mod gateway_state;
mod help;
mod hosts;
mod load;
mod local_dir;
mod modes;
mod moments;
mod mount_words;
mod new_files;
mod numbers;
mod part;
mod progress;
mod suggest;
mod terminal;
mod time_text;

use args::Cli;
use clap::CommandFactory;
use exit::Code;
use std::process::ExitCode;
use weft_cli_common::{Reported, is_broken_pipe, output};

/// A metadata server allocates and frees many small objects for each operation. Only the program sets an
/// allocator; a library uses its program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of mount(8) for a mount that failed. 1 is for an invalid command line.
const MOUNT_FAILED: u8 = 32;

fn main() -> ExitCode {
    let given: Vec<_> = std::env::args_os().collect();
    let is_helper = mount_words::is_helper(given.first());
    let arguments = match mount_words::command_line(given, Cli::command) {
        Ok(Some(line)) => suggest::parse_or_exit::<Cli>(&line, &help::grouped(Cli::command())),
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            return ExitCode::from(if is_helper { 1 } else { 2 });
        }
    };
    let ended = arguments.command.run();
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
