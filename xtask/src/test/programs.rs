//! The test programs of the workspace, as cargo builds them.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that take long, the longest first: they begin before the others, so that none of them is alone
/// at the end.
const SLOW: [&str; 15] = [
    "weft-tests mpi",
    "weft-tests posix",
    "weft-tests mount",
    "weft-tests dead_server",
    "weft-client powercut",
    "weft-meta powercut",
    "weft-tests preload",
    "weft-server (lib) weft_server",
    "weft-tests cli",
    "weft-transport conformance",
    "weft-tests nfs_locks",
    "weft-capi model",
    "weft-tests backup",
    "weft-client access",
    "weft-tests fsck",
];
/// Programs that take more than five seconds and less than a third of a processor: they wait for deadlines, leases, disks, and pauses
/// of retries. They run beside the programs that compute. The table at the end of `xtask test` tells what each took.
const WAITING: [&str; 29] = [
    "weft-client faults",
    "weft-client follow",
    "weft-client powercut",
    "weft-client powercut_local",
    "weft-client rdma",
    "weft-meta (lib) weft_meta",
    "weft-meta engines",
    "weft-meta powercut",
    "weft-meta rot",
    "weft-nfs powercut",
    "weft-onc-server idle",
    "weft-storage (lib) weft_storage",
    "weft-storage model",
    "weft-tests append",
    "weft-tests backup",
    "weft-tests dead_server",
    "weft-tests fsck",
    "weft-tests fstab",
    "weft-tests locks",
    "weft-tests mistakes",
    "weft-tests names",
    "weft-tests nfs_locks",
    "weft-tests opens",
    "weft-tests powercut",
    "weft-tests preload",
    "weft-tests restart",
    "weft-tests rot",
    "weft-tests shared_open",
    "weft-tests storage",
];
/// Its tests run in emulated guests.
const GUESTS: &str = "weft-tests rdma";

/// Tells tests that the programs and libraries of Weft which they start are built, and need not be by them.
pub(super) const BUILT: &str = "WEFT_TEST_BUILT";

/// What a test program asks of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    Computes,
    Waits,
    /// Two processors, by emulation.
    Guests,
}

/// A program that runs tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Package and target: `weft-tests map`.
    pub name: String,
    pub path: PathBuf,
    pub arguments: Vec<String>,
    /// Where cargo would start it: the directory of its package.
    pub directory: PathBuf,
}

impl Program {
    /// The examples in the documentation, which cargo builds and runs in one.
    pub fn examples(root: &Path) -> Program {
        Program {
            name: "examples in the documentation".into(),
            path: std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from),
            arguments: ["test", "--doc", "--workspace", "--locked"].map(Into::into).to_vec(),
            directory: root.to_owned(),
        }
    }

    pub fn load(&self) -> Load {
        match &self.name[..] {
            GUESTS => Load::Guests,
            name if WAITING.contains(&name) => Load::Waits,
            _ => Load::Computes,
        }
    }
}

/// Builds all test programs, and everything that they start ([`BUILT`]).
///
/// # Errors
/// If something does not compile.
pub(super) fn build(root: &Path) -> Result<Vec<Program>> {
    // All at once. Where cargo builds some packages only, crates of others lack features that the rest asks for: it compiles these
    // crates, and all of Weft above them, once more.
    let everything = ["--workspace", "--all-targets"];
    let said = cargo(root, &[&everything[..], &["--message-format=json-render-diagnostics"]].concat())?;
    // With an example, for only then have crates the features that tests ask for.
    let next = ["--workspace", "--quiet", "--bin=weft-next", "--example=walk", "--features=weft-cli/next"];
    cargo(root, &next)?;
    let mut programs: Vec<_> = said.lines().filter_map(program).collect();
    programs.sort_by_key(|program| {
        let slow = SLOW.iter().position(|name| *name == program.name);
        (slow.unwrap_or(SLOW.len()), program.name.clone())
    });
    Ok(programs)
}

/// What `cargo build` says on its standard output.
fn cargo(root: &Path, words: &[&str]) -> Result<String> {
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked"])
        .args(words)
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !built.status.success() {
        bail!("cargo build {} failed", words.join(" "));
    }
    Ok(String::from_utf8_lossy(&built.stdout).into_owned())
}

/// The test program that a message of cargo's tells of, if it does.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?;
    let package = package(message["package_id"].as_str()?)?;
    let target = &message["target"];
    let kind = match target["kind"][0].as_str()? {
        "test" => "",
        "bin" => "(bin) ",
        _ => "(lib) ",
    };
    Some(Program {
        name: format!("{package} {kind}{}", target["name"].as_str()?),
        path: message["executable"].as_str()?.into(),
        arguments: Vec::new(),
        directory: directory.to_owned(),
    })
}

/// Name of a package, of its id: `path+file:///weft/crates/wire#weft-wire@0.1.0`, or `…/xtask#0.1.0` where it is the directory's.
fn package(id: &str) -> Option<&str> {
    let (place, fragment) = id.rsplit_once('#')?;
    Some(match fragment.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit_once('/')?.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///weft/tests#weft-tests@0.1.0",
                "manifest_path":"/weft/tests/Cargo.toml","target":{{"kind":["{kind}"],"name":"map"}},
                "profile":{{"test":{test}}},"executable":"/weft/target/debug/deps/map-1"}}"#
            )
        };
        let found = program(&message("test", true)).unwrap();
        assert_eq!((&found.name[..], found.directory.to_str()), ("weft-tests map", Some("/weft/tests")));
        assert_eq!(program(&message("bin", true)).unwrap().name, "weft-tests (bin) map");
        assert_eq!(program(&message("bin", false)), None);
        assert_eq!(program("warning: no message"), None);
    }

    #[test]
    fn packages_are_named_with_and_without_a_name_of_their_own() {
        assert_eq!(package("path+file:///weft/crates/wire#weft-wire@0.1.0"), Some("weft-wire"));
        assert_eq!(package("path+file:///weft/xtask#0.1.0"), Some("xtask"));
    }
}
