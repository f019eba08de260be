//! `weft help`

use crate::help::{SUBJECTS, find, grouped};
use anyhow::{Result, bail};
use clap::Command;
use std::io::Write;
use weft_cli_common::output;

/// Shows a manual page, or the help of a command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A subject or a command [default: list both].
    subject: Vec<String>,
}

/// Prints the page. `weft` is the whole command line.
pub fn run(args: Args, weft: Command) -> Result<()> {
    let mut weft = grouped(weft);
    let mut out = output::stdout();
    if args.subject.is_empty() {
        writeln!(out, "{}", weft.render_long_help())?;
        writeln!(out, "Subjects:")?;
        for subject in SUBJECTS {
            writeln!(out, "  {:14} {}", subject.name, subject.title)?;
        }
        return Ok(out.flush()?);
    }
    let name = args.subject.join(" ");
    if let Some(subject) = find(&name) {
        writeln!(out, "{}", subject.text.trim_end())?;
        return Ok(out.flush()?);
    }
    weft.build();
    let mut command = weft;
    for word in &args.subject {
        match command.find_subcommand(word) {
            Some(found) => command = found.clone(),
            None => bail!("there is no subject or command `{name}`; `weft help` lists all"),
        }
    }
    writeln!(out, "{}", command.render_long_help())?;
    Ok(out.flush()?)
}
