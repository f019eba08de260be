//! The test programs of the workspace, as cargo builds them.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that take more than half a minute, the longest first: they begin before the others, so that none of them is alone
/// at the end.
const SLOW: [&str; 14] = [
    "weft-tests dead_server",
    "weft-tests mount",
    "weft-tests map",
    "weft-client powercut",
    "weft-server (lib) weft_server",
    "weft-tests coherence",
    "weft-tests preload",
    "weft-tests posix",
    "weft-client access",
    "weft-transport conformance",
    "weft-tests backup",
    "weft-tests one_mount",
    "weft-capi model",
    "weft-tests fsck",
];
/// Its tests run in emulated guests.
const GUESTS: &str = "weft-tests rdma";

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

    pub fn is_of_guests(&self) -> bool {
        self.name == GUESTS
    }
}

/// Builds all test programs, and everything that they start.
///
/// # Errors
/// If something does not compile.
pub(super) fn build(root: &Path) -> Result<Vec<Program>> {
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !built.status.success() {
        bail!("the tests cannot be built");
    }
    // The tests would build it themselves, while others wait for processors.
    cargo(
        root,
        &["build", "--locked", "--quiet", "--package=weft-cli", "--bin=weft-next", "--features=next"],
    )?;
    let mut programs: Vec<_> = String::from_utf8_lossy(&built.stdout).lines().filter_map(program).collect();
    programs.sort_by_key(|program| {
        let slow = SLOW.iter().position(|name| *name == program.name);
        (slow.unwrap_or(SLOW.len()), program.name.clone())
    });
    Ok(programs)
}

fn cargo(root: &Path, words: &[&str]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ended =
        Command::new(cargo).args(words).current_dir(root).status().context("cargo cannot be started")?;
    if !ended.success() {
        bail!("cargo {} failed", words.join(" "));
    }
    Ok(())
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
