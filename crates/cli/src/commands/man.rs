//! `weft man`

use crate::help::{SUBJECTS, Subject};
use anyhow::{Context, Result};
use clap::Command;
use std::io::Write;
use std::path::PathBuf;
use weft_cli_common::output;

/// Writes the man pages to a directory: weft.1, one for each command, and one for each subject of `weft
/// help`.
///
/// Without a directory, prints weft.1.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory; created if missing.
    dir: Option<PathBuf>,
}

/// Writes the man pages of `weft`, the whole command line.
pub fn run(args: Args, weft: Command) -> Result<()> {
    let Some(dir) = args.dir else {
        let mut out = output::stdout();
        clap_mangen::Man::new(weft).render(&mut out)?;
        return Ok(out.flush()?);
    };
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("cannot create the directory {}", dir.display()))?;
    clap_mangen::generate_to(weft, &dir).with_context(|| format!("cannot write to {}", dir.display()))?;
    for subject in SUBJECTS {
        let path = dir.join(format!("weft-{}.7", subject.name));
        std::fs::write(&path, subject_page(subject))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A subject as a page of section 7. The text keeps its line breaks. A dot or quote at the start of a line is
/// escaped, since it would begin a command.
fn subject_page(subject: &Subject) -> String {
    let heading = subject.name.to_uppercase();
    let mut page = format!(".TH WEFT-{heading} 7\n.SH NAME\nweft-{} \\- {}\n", subject.name, subject.title);
    page.push_str(".SH DESCRIPTION\n.nf\n");
    for line in subject.text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        let escape = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        page.push_str(&format!("{escape}{line}\n"));
    }
    page.push_str(".fi\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_and_subject_gets_its_page() {
        let dir = tempfile::tempdir().unwrap();
        run(Args { dir: Some(dir.path().to_owned()) }, crate::args::Cli::command()).unwrap();
        for page in ["weft.1", "weft-cp.1", "weft-stripe-set.1", "weft-bench-limits.1", "weft-striping.7"] {
            let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
    }
}
