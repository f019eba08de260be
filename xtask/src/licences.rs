//! The licences of what programs and libraries contain: packaging/licences-of-dependencies.txt.
//!
//! `cargo run -p xtask -- licences` writes the file, from the sources that cargo has. `check` compares its list with Cargo.lock as cargo
//! resolves it for what is installed.

use crate::Complaint;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The file.
pub const FILE: &str = "packaging/licences-of-dependencies.txt";
/// The packages of what `make install` installs, and of the wheel.
const INSTALLED: [&str; 6] =
    ["weft-cli", "weft-bench", "weft-capi", "weft-preload", "weft-mpi", "weft-python"];
const BETWEEN: &str = "------------------------------------------------------------------------------";

/// A package of others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    name: String,
    version: String,
    /// The expression of its licences.
    licence: String,
    /// The directory of its sources.
    directory: String,
}

impl Dependency {
    fn line(&self) -> String {
        format!("{} {}: {}", self.name, self.version, self.licence)
    }
}

fn metadata(root: &Path) -> Result<Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]);
    let output = cargo.current_dir(root).output().context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// What the installed packages contain: not what only builds or tests them.
fn dependencies(metadata: &Value) -> Vec<Dependency> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package, "id").to_owned(), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node, "id").to_owned(), node))
        .collect();
    let is_installed = |package: &Value| INSTALLED.contains(&text(package, "name"));
    let mut waiting: Vec<String> =
        packages.iter().filter(|(_, package)| is_installed(package)).map(|(id, _)| id.clone()).collect();
    let mut seen: BTreeSet<String> = waiting.iter().cloned().collect();
    while let Some(id) = waiting.pop() {
        for dependency in nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default() {
            let is_in_it = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let id = text(&dependency, "pkg").to_owned();
            let is_macro = packages.get(&id).is_some_and(|package| {
                list(&package["targets"])
                    .iter()
                    .any(|target| list(&target["kind"]).contains(&"proc-macro".into()))
            });
            if is_in_it && !is_macro && seen.insert(id.clone()) {
                waiting.push(id);
            }
        }
    }
    let others = seen.iter().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null());
    let mut all: Vec<_> = others
        .map(|package| Dependency {
            name: text(package, "name").to_owned(),
            version: text(package, "version").to_owned(),
            licence: text(package, "license").to_owned(),
            directory: Path::new(text(package, "manifest_path"))
                .parent()
                .map(|dir| dir.display().to_string())
                .unwrap_or_default(),
        })
        .collect();
    all.sort();
    all
}

/// The texts of a package's licences.
fn texts(dependency: &Dependency) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(&dependency.directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let is_licence =
            ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|word| name.starts_with(word));
        if is_licence && path.is_file() {
            let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
            let lines: Vec<_> = text.lines().map(str::trim_end).collect();
            found.insert(lines.join("\n").trim().to_owned());
        }
    }
    Ok(found)
}

/// Writes the file.
pub fn write(root: &Path) -> Result<()> {
    let all = dependencies(&metadata(root)?);
    let mut out = String::from(
        "Weft's programs and libraries contain these packages. Their licences are below; one text stands for\n\
         all packages that have it word for word.\n\n",
    );
    let mut by_text: BTreeMap<String, Vec<&Dependency>> = BTreeMap::new();
    for dependency in &all {
        writeln!(out, "{}", dependency.line())?;
        for text in texts(dependency)? {
            by_text.entry(text).or_default().push(dependency);
        }
    }
    let mut groups: Vec<_> = by_text.into_iter().collect();
    groups.sort_by_key(|(_, packages)| packages[0].name.clone());
    for (text, packages) in groups {
        let names: Vec<_> = packages.iter().map(|one| one.name.as_str()).collect();
        writeln!(out, "\n{BETWEEN}\n{}\n\n{text}", names.join(", "))?;
    }
    std::fs::write(root.join(FILE), out).with_context(|| format!("cannot write {FILE}"))
}

/// The file lists what is contained.
pub fn check(root: &Path) -> Result<Vec<Complaint>> {
    let wanted: BTreeSet<_> = dependencies(&metadata(root)?).iter().map(Dependency::line).collect();
    let file = std::fs::read_to_string(root.join(FILE)).unwrap_or_default();
    Ok(compare(&wanted, &file))
}

fn compare(wanted: &BTreeSet<String>, file: &str) -> Vec<Complaint> {
    let list = file.split(BETWEEN).next().unwrap_or_default();
    let there: BTreeSet<_> = list.lines().filter(|line| line.contains(": ")).map(str::to_owned).collect();
    match there == *wanted {
        true => Vec::new(),
        false => {
            let first = there.symmetric_difference(wanted).next().cloned().unwrap_or_default();
            let text = format!(
                "it does not list what Cargo.lock has ({first}); run: cargo run -p xtask -- licences"
            );
            vec![Complaint::new(FILE, text)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_only_builds_or_tests_is_left_out() {
        let package = |name: &str, kind: &str, source: Value| {
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                    "manifest_path": format!("/r/{name}/Cargo.toml"), "targets": [{ "kind": [kind] }] })
        };
        let dep = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package("weft-cli", "bin", Value::Null),
                package("a", "lib", json!("registry")),
                package("b", "lib", json!("registry")),
                package("derive", "proc-macro", json!("registry")),
                package("cc", "lib", json!("registry")),
                package("other", "lib", json!("registry")),
            ],
            "resolve": { "nodes": [
                { "id": "weft-cli", "deps": [dep("a", Value::Null), dep("cc", json!("build")), dep("derive", Value::Null)] },
                { "id": "a", "deps": [dep("b", Value::Null), dep("other", json!("dev"))] },
            ] },
        });
        let names: Vec<_> = dependencies(&metadata).into_iter().map(|one| one.line()).collect();
        assert_eq!(names, ["a 1.0.0: MIT", "b 1.0.0: MIT"]);
    }

    #[test]
    fn a_list_that_is_out_of_date_is_found() {
        let wanted = BTreeSet::from(["a 1.0.0: MIT".to_owned()]);
        assert_eq!(compare(&wanted, &format!("Head\n\na 1.0.0: MIT\n\n{BETWEEN}\nx: y")), []);
        assert_eq!(compare(&wanted, "a 1.0.1: MIT\n").len(), 1);
        assert_eq!(compare(&wanted, "").len(), 1);
    }
}
