//! `weft completions`

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;
use std::io::Write;

/// Prints completions for a shell.
///
/// For bash: `source <(weft completions bash)` in ~/.bashrc. In bash, zsh and fish they know the paths of file systems
/// (weft:/da and Tab) and the subjects of `weft help`.
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
    match (shell, String::from_utf8(text)) {
        (Shell::Bash, Ok(text)) => (text + include_str!("completions/ask.bash")).into_bytes(),
        (Shell::Fish, Ok(text)) => (text + include_str!("completions/ask.fish")).into_bytes(),
        (Shell::Zsh, Ok(text)) => asking_in_zsh(&text).into_bytes(),
        (_, Ok(text)) => text.into_bytes(),
        (_, Err(error)) => error.into_bytes(),
    }
}

/// The function of the file's name asks, and calls the generated one for the rest.
fn asking_in_zsh(text: &str) -> String {
    let (front, end) = text.rsplit_once("\nif [ \"$funcstack[1]\"").unwrap_or((text, ""));
    let front = front.replacen("\n_weft() {", "\n_weft_generated() {", 1);
    format!("{front}\n{}\nif [ \"$funcstack[1]\"{end}", include_str!("completions/ask.zsh"))
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
            let asks = ["bash", "zsh", "fish"].contains(&shell.to_string().as_str());
            assert_eq!(text.contains("weft complete path"), asks, "{shell}");
        }
    }
}
