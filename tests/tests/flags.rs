//! Every flag of every command is used by a test, a script or an example.
//!
//! The commands and their flags are those that `--help` tells of, so a new flag is found without a change here. A flag counts as used
//! where a file has it, or its letter, and the name of its command.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_tests::{expect_success, weft_bin};

/// Where flags are used: files of these directories and below, but only those of tests and examples in `crates`.
const PLACES: [&str; 6] = ["tests", "scripts", "bench", "examples", "crates", "packaging"];

/// A flag, and its letter if it has one: `--recursive`, `-r`.
type Flag = (String, Option<String>);

fn help(command: &[String]) -> String {
    let mut weft = Command::new(weft_bin());
    let output = weft.args(command).arg("--help").output().expect("weft can be run");
    expect_success(&command.join(" "), &output)
}

/// `  -r, --recursive  Also what is below` and `      --json`.
fn flag(line: &str) -> Option<Flag> {
    let mut words = line.trim_start().split([' ', ',', '=']).filter(|word| !word.is_empty());
    let first = words.next()?;
    let (letter, long) = match first.strip_prefix("--") {
        Some(_) => (None, first),
        None if first.len() == 2 && first.starts_with('-') => (Some(first.to_string()), words.next()?),
        None => return None,
    };
    let is_flag = long.len() > 2 && line.starts_with("  ") && !["--help", "--version"].contains(&long);
    (is_flag && long.starts_with("--")).then(|| (long.to_string(), letter))
}

/// Adds a command's flags to `all`, and those of the commands below it.
fn collect(command: &[String], all: &mut BTreeMap<String, Vec<Flag>>) {
    let text = help(command);
    all.insert(command.join(" "), text.lines().filter_map(flag).collect());
    let lines: Vec<&str> = match command.is_empty() {
        // The program lists its commands in groups.
        true => {
            let groups = text.lines().skip_while(|line| !line.starts_with("Usage:")).skip(1);
            groups.take_while(|line| *line != "Options:").collect()
        }
        false => {
            let commands = text.lines().skip_while(|line| *line != "Commands:").skip(1);
            commands.take_while(|line| !line.is_empty()).collect()
        }
    };
    let names = lines.into_iter();
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        collect(&[command, &[name.to_string()]].concat(), all);
    }
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory of the repository") {
        let path = entry.expect("it can be listed").path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// The texts of all files that use the program.
fn texts() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the repository");
    let mut found = vec![root.join("Makefile")];
    PLACES.iter().for_each(|place| files(&root.join(place), &mut found));
    let is_use = |path: &PathBuf| {
        let path = path.strip_prefix(root).expect("it is below");
        let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
        let of_crate = parts[0] == "crates";
        !path.ends_with(file!())
            && (!of_crate || parts.iter().any(|part| *part == "tests" || *part == "examples"))
    };
    found.into_iter().filter(is_use).filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}

/// The words of a text, with the dashes of flags: `--jobs` and `3` of `--jobs=3`, `weft` and `cp` of `weft cp`.
fn words(text: &str) -> HashSet<&str> {
    text.split(|character: char| !(character.is_alphanumeric() || character == '-' || character == '_'))
        .collect()
}

#[test]
fn flags_are_read_from_the_help() {
    assert_eq!(flag("  -L, --dereference       Follow"), Some(("--dereference".into(), Some("-L".into()))));
    assert_eq!(flag("      --json              Print"), Some(("--json".into(), None)));
    assert_eq!(flag("  -h, --help              Print"), None);
    assert_eq!(flag("  bench     Measure with --json"), None);
    assert!(words("run(\"--at\", x)").contains("--at") && words("cp -r").contains("-r"));
    assert!(!words("--at-all").contains("--at"));
}

#[test]
fn every_flag_is_used() {
    let mut all = BTreeMap::new();
    collect(&[], &mut all);
    let flags: usize = all.values().map(Vec::len).sum();
    assert!(all.len() > 50 && flags > 400, "{} commands with {flags} flags", all.len());
    let texts = texts();
    let texts: Vec<_> = texts.iter().map(|text| words(text)).collect();
    let mut unused = Vec::new();
    for (command, flags) in &all {
        let name = command.rsplit(' ').next().expect("a split has a part");
        let of_command: Vec<_> = texts.iter().filter(|text| name.is_empty() || text.contains(name)).collect();
        let is_used = |(long, letter): &&Flag| {
            let mut either = std::iter::once(long).chain(letter);
            either.any(|word| of_command.iter().any(|text| text.contains(word.as_str())))
        };
        let missing = flags.iter().filter(|flag| !is_used(flag));
        unused.extend(missing.map(|(long, _)| format!("weft {command} {long}")));
    }
    assert!(unused.is_empty(), "no test, script or example uses\n{}", unused.join("\n"));
}
