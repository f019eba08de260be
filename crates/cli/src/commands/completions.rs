//! `weft completions`

use crate::args::Cli;
use anyhow::Result;
use clap::CommandFactory;
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

/// Prints completions.
pub fn run(args: Args) -> Result<()> {
    Ok(std::io::stdout().write_all(&generate(args.shell))?)
}

fn generate(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weft", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_learns_every_command() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(generate(*shell)).unwrap();
            assert!(text.contains("stripe") && text.contains("completions"), "{shell}");
        }
    }
}
