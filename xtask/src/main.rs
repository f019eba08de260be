//! Work on the repository: `cargo run -p xtask -- check` checks that it keeps its own rules, `cargo run -p xtask -- test` runs all
//! tests ([`mod@test`]).
//!
//! | rule | module |
//! | --- | --- |
//! | crates depend on each other only as ARCHITECTURE.md says | [`edges`] |
//! | no circle of more than three files within a crate | [`circles`] |
//! | every `unsafe` tells why it is sound; every crate has a header; files stay short and finished | [`sources`] |
//! | what decodes bytes or texts from outside is fuzzed | [`decoders`] |
//! | every claim of docs/semantics.md names a test that is run; no link of a document leads nowhere | [`documents`] |
//! | the licences of what is installed are listed | [`licences`] |
//!
//! Each rule is a pure function from text to complaints, with tests of its own.

mod circles;
mod decoders;
mod documents;
mod edges;
mod licences;
mod sources;
mod test;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What a rule has against a file.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    /// File, relative to the repository, with a line where there is one.
    place: String,
    /// What is wrong and what would be right.
    text: String,
}

impl Complaint {
    fn new(place: impl Into<String>, text: impl Into<String>) -> Complaint {
        Complaint { place: place.into(), text: text.into() }
    }
}

/// A file of the repository.
struct SourceFile {
    /// Relative to the repository.
    path: PathBuf,
    text: String,
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let is_well = match arguments.split_first().map(|(command, rest)| (command.as_str(), rest)) {
        Some(("check", [])) => check(&repository()).map(keeps_rules),
        Some(("licences", [])) => licences::write(&repository()).map(|()| true),
        // What `test` starts for each program.
        Some(("run", words)) => {
            return test::run_measured(words).unwrap_or_else(|error| {
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            });
        }
        Some(("test", rest)) => {
            test::Options::parse(rest).and_then(|options| test::run(&repository(), &options))
        }
        _ => {
            eprintln!("usage: cargo run -p xtask -- check | licences\n       {}", test::USAGE);
            return ExitCode::from(2);
        }
    };
    match is_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says how many complaints there are; whether there are none.
fn keeps_rules(complaints: usize) -> bool {
    match complaints {
        0 => println!("all rules are kept"),
        count => eprintln!("{count} complaints"),
    }
    complaints == 0
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the repository").to_owned()
}

/// Prints every complaint; returns how many there are.
fn check(root: &Path) -> Result<usize> {
    let files = tracked_files(root)?;
    let mut complaints = edges::check(&files)?;
    complaints.extend(circles::check(&files));
    for file in &files {
        complaints.extend(sources::check(file));
    }
    complaints.extend(decoders::check(&files));
    complaints.extend(documents::check(&files, &|path| root.join(path).exists()));
    complaints.extend(licences::check(root)?);
    for complaint in &complaints {
        eprintln!("{}: {}", complaint.place, complaint.text);
    }
    Ok(complaints.len())
}

/// The text files that git knows or would add.
fn tracked_files(root: &Path) -> Result<Vec<SourceFile>> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git").arg("-C").arg(root).args(list).output().context("cannot run git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout).context("a file name that is not UTF-8")?;
    let mut files = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let path = PathBuf::from(name);
        // Files that are not text, or are deleted but not yet committed, have no rules.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.push(SourceFile { path, text });
        }
    }
    Ok(files)
}
