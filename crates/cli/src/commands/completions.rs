//! `weft completions`

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;
use std::io::Write;

/// Prints completions for a shell.
///
/// For bash: `weft completions bash > /etc/bash_completion.d/weft`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints completions of `weft`, the whole command line.
pub fn run(args: Args, weft: Command) -> Result<()> {
    Ok(std::io::stdout().write_all(&generate(args.shell, weft))?)
}

fn generate(shell: Shell, mut weft: Command) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut weft, "weft", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn every_shell_learns_every_command() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(generate(*shell, crate::args::Cli::command())).unwrap();
            assert!(text.contains("stripe") && text.contains("completions"), "{shell}");
        }
    }
}
