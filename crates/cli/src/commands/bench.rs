//! `weft bench`

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;
use weft_cli_common::programs;

/// The command line of `weft-bench`.
pub type Args = weft_bench_args::Command;

/// Replaces this process by `weft-bench`, with the arguments after `bench`. They have been parsed and are
/// valid.
pub fn run(_: Args) -> Result<()> {
    let program = programs::find("weft-bench", "weft-bench")?;
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(2)).env(programs::STARTED_BY, own);
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
