//! Programs that jobs of guests run. What is built here is built when it is needed, by one command.
//!
//! ```text
//!   jobs ──► wanted: Tests(weft-verbs, real), Built(weft-cli, weft) ──► cargo build --profile emulated ──► a path for each
//! ```

use crate::cargo;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// All packages that programs for guests are of. Cargo is always told all of them: it chooses features of dependencies by the packages
/// of a command, and would build dependencies anew for each.
const PACKAGES: [&str; 7] =
    ["weft-bench", "weft-capi", "weft-cli", "weft-posix", "weft-tests", "weft-transport", "weft-verbs"];

/// What a job runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// A program of this host.
    At(PathBuf),
    /// A test of a package of this workspace.
    Tests(&'static str, &'static str),
    /// A program of a package of this workspace.
    Built(&'static str, &'static str),
}

impl From<&str> for Program {
    fn from(path: &str) -> Program {
        Program::At(path.into())
    }
}

impl Program {
    /// Kind, package and name of what cargo builds.
    fn target(&self) -> Option<(&'static str, &'static str, &'static str)> {
        match *self {
            Program::At(_) => None,
            Program::Tests(package, name) => Some(("test", package, name)),
            Program::Built(package, name) => Some(("bin", package, name)),
        }
    }
}

/// Where programs are, by program.
pub(super) type Places = BTreeMap<Program, PathBuf>;

/// Builds what is to be built: optimised in any case. Emulated, a program that is not takes several times as long.
pub(super) fn places<'a>(wanted: impl Iterator<Item = &'a Program>) -> Places {
    let wanted: BTreeSet<_> = wanted.collect();
    let targets: Vec<_> = wanted.iter().filter_map(|program| program.target()).collect();
    let built = if targets.is_empty() { Vec::new() } else { build(&targets) };
    let place = |program: &Program| match program {
        Program::At(path) => path.clone(),
        program => executable(&built, program).unwrap_or_else(|| panic!("cargo did not build {program:?}")),
    };
    wanted.into_iter().map(|program| (program.clone(), place(program))).collect()
}

/// The messages of cargo about it.
fn build(targets: &[(&str, &str, &str)]) -> Vec<serde_json::Value> {
    let mut build = cargo("build", if crate::profile() == "release" { "release" } else { "emulated" });
    build.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    for (kind, _, name) in targets {
        build.arg(format!("--{kind}={name}"));
    }
    messages(build)
}

fn executable(messages: &[serde_json::Value], program: &Program) -> Option<PathBuf> {
    let (kind, package, name) = program.target()?;
    let is_it = |message: &&serde_json::Value| {
        let of = message["package_id"].as_str().unwrap_or_default();
        message["target"]["name"] == name
            && message["target"]["kind"][0] == kind
            && of.contains(&format!("#{package}@"))
    };
    messages.iter().find(is_it)?["executable"].as_str().map(PathBuf::from)
}

/// The tests of a package's library, built as the running program is.
pub fn library_tests(package: &str) -> PathBuf {
    let mut build = cargo("test", crate::profile());
    build.args(["--no-run", "--package", package, "--lib"]);
    let built = messages(build);
    let place =
        built.iter().filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    place.unwrap_or_else(|| panic!("{package} has no tests"))
}

/// What a cargo command says of each thing that it has built. Panics where it fails.
fn messages(mut command: Command) -> Vec<serde_json::Value> {
    let output =
        command.arg("--message-format=json").stderr(Stdio::inherit()).output().expect("cargo can be run");
    assert!(output.status.success(), "{command:?} fails");
    let said = String::from_utf8(output.stdout).expect("cargo says text");
    said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}
