//! The commands of docs/guide, as they are written, on hosts that are network namespaces with an SSH server each.
//!
//! A block that is marked `sh` is run, on the host that an operator works from; all blocks of a chapter in one shell, which ends at the
//! first command that fails.

use std::path::Path;
use weft_tests::{SshHosts, expect_success};

/// The commands of a chapter, one step after the other.
fn script(chapter: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide").join(chapter);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut script, mut is_inside) = (format!("echo '=== {chapter}'\n"), false);
    for (number, line) in text.lines().enumerate() {
        match line.trim() {
            "```sh" => {
                is_inside = true;
                script += &format!("echo '--- line {}'\n", number + 1);
            }
            "```" => is_inside = false,
            _ if is_inside => script += &format!("{line}\n"),
            _ => {}
        }
    }
    assert!(!is_inside && script.lines().count() > 10, "{chapter} has commands");
    script
}

fn names(count: usize) -> Vec<String> {
    let nodes = (1..=count).map(|number| format!("node{number:02}"));
    std::iter::once("login".to_string()).chain(nodes).collect()
}

/// Runs chapters on a new set of hosts, none of which but the first has Weft. Returns what they print.
fn run(chapters: &[&str], nodes: usize) -> Option<(SshHosts, String)> {
    let names = names(nodes);
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    // One host shows that nothing need be installed: copies for all would take gigabytes, as programs of tests are large.
    let hosts = SshHosts::start(&names, &names[names.len() - 1..])?;
    let script: String = chapters.iter().map(|chapter| script(chapter)).collect();
    let output = hosts.output("login", &format!("set -euo pipefail\ncd\n{script}"));
    let said = expect_success("the guide", &output);
    Some((hosts, said))
}

#[test]
fn ten_hosts_and_their_maintenance() {
    let Some((hosts, said)) = run(&["ten-hosts.md", "maintenance.md"], 11) else { return };
    assert!(said.contains("hello from node03\n"), "{said}");
    assert!(said.contains("the files above have lost data\n"), "{said}");
    hosts.sh("login", "weft job stop --dir /srv/weft");
    for name in names(11) {
        assert_eq!(hosts.processes(&name), [""; 0], "{name}");
        assert!(!hosts.dir(&name).join("srv/weft").exists(), "{name}");
    }
}

#[test]
fn a_file_system_for_a_job() {
    let Some((hosts, said)) = run(&["jobs.md"], 4) else { return };
    assert!(said.ends_with("42\n"), "{said}");
    for name in names(4) {
        assert_eq!(hosts.processes(&name), [""; 0], "{name}");
    }
}
