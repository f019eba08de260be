//! `weft bench`

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;
use weft_cli_common::programs;

/// Becomes `weft-bench`, a program of its own, with the arguments behind `bench`, which make sense.
pub fn run() -> Result<()> {
    let program = programs::find("weft-bench", "weft-bench")?;
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(2)).env(programs::STARTED_BY, own);
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
