//! The commands of docs/guide, unchanged.
//!
//! Hosts are network namespaces with an SSH server each, on which nothing of Weft is installed. Every block of a chapter that is marked
//! `sh` is run on the host that an operator works from, all blocks of a chapter in one shell, which ends at the first command that
//! fails. Chapters are run by an ordinary user, except the one that says that it needs root.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_test_needs::Need;
use weft_tests::{SshHosts, USER, expect_success, package, weft_bin};

/// The chapters with commands. Those in one row are run one after the other, on the same hosts.
const RUN: [&[&str]; 3] = [&["ten-hosts.md", "maintenance.md"], &["jobs.md"], &["permanent.md"]];
/// Files' contents; not commands.
const NOT_COMMANDS: &str = "ini";

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide")
}

fn text(chapter: &str) -> String {
    let path = guide().join(chapter);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn chapters() -> BTreeSet<String> {
    let entries = std::fs::read_dir(guide()).expect("it is there").flatten();
    entries.map(|entry| entry.file_name().into_string().expect("a plain name")).collect()
}

/// A block of a chapter: its first line's number, what it is marked with, its lines.
struct Block {
    line: usize,
    mark: String,
    lines: Vec<String>,
}

fn blocks(chapter: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (index, line) in text(chapter).lines().enumerate() {
        match (line.trim().strip_prefix("```"), &mut open) {
            (Some(mark), None) => {
                open = Some(Block { line: index + 2, mark: mark.to_string(), lines: Vec::new() })
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line.to_string()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{chapter}: a block does not end");
    blocks
}

/// The commands of a chapter, one step after the other.
fn script(chapter: &str) -> String {
    let mut script = format!("echo '=== {chapter}'\n");
    for block in blocks(chapter).into_iter().filter(|block| block.mark == "sh") {
        script += &format!("echo \"--- line {}, second $SECONDS\"\n{}\n", block.line, block.lines.join("\n"));
    }
    assert!(script.lines().count() > 10, "{chapter} has commands");
    script
}

fn names(count: usize) -> Vec<String> {
    let nodes = (1..=count).map(|number| format!("node{number:02}"));
    std::iter::once("login".to_string()).chain(nodes).collect()
}

/// New hosts: one to work from, which alone has Weft if so wanted, and nodes.
fn hosts(nodes: usize, has_weft: bool) -> Option<SshHosts> {
    let names = names(nodes);
    SshHosts::start_own(&names.iter().map(String::as_str).collect::<Vec<_>>(), has_weft)
}

/// Runs chapters by a user. Returns what they print.
fn run(hosts: &SshHosts, user: &str, chapters: &[&str]) -> String {
    let script: String = chapters.iter().map(|chapter| script(chapter)).collect();
    let output = hosts.output_as(user, "login", &format!("set -euo pipefail\ncd\n{script}"));
    let said = expect_success("the guide", &output);
    println!("{said}");
    said
}

#[test]
fn ten_hosts_and_their_maintenance() {
    let Some(hosts) = hosts(11, true) else { return };
    let said = run(&hosts, USER, RUN[0]);
    assert!(said.contains("hello from node03\n"), "{said}");
    assert!(said.contains("the files above have lost data\n"), "{said}");
    let stop = "weft job stop --dir /var/tmp/weft";
    expect_success(stop, &hosts.output_as(USER, "login", stop));
    for name in names(11) {
        assert_eq!(hosts.processes(&name), [""; 0], "{name}");
        assert_eq!(hosts.sh(&name, "ls -A /var/tmp"), "", "{name}");
    }
}

#[test]
fn a_file_system_for_a_job() {
    let Some(hosts) = hosts(4, true) else { return };
    let said = run(&hosts, USER, RUN[1]);
    assert!(said.ends_with("42\n"), "{said}");
    for name in names(4) {
        assert_eq!(hosts.processes(&name), [""; 0], "{name}");
        assert_eq!(hosts.sh(&name, "ls -A /var/tmp"), "", "{name}");
    }
}

/// Stands in for systemd, which is not in a namespace's reach: starts what the unit says, as its user.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
[ "$1 $2" = "enable --now" ] || { echo "systemctl: this stand-in does not know: $*" >&2; exit 2; }
shift 2
for unit; do
    file=/usr/lib/systemd/system/weft@.service
    command=$(sed -n 's/^ExecStart=//p' $file | sed "s/%i/${unit#weft@}/")
    setsid runuser -u "$(sed -n 's/^User=//p' $file)" -- $command < /dev/null > /var/log/$unit.log 2>&1 &
done
"#;

#[test]
fn a_permanent_installation() {
    if !Need::Debian.is_met() {
        return;
    }
    let Some(hosts) = hosts(3, false) else { return };
    package("deb", &hosts.dir("login").join("root"));
    for name in names(3) {
        let path = hosts.dir(&name).join("root/systemctl");
        std::fs::write(&path, SYSTEMCTL).expect("room");
        hosts.sh(&name, "install -m 755 /root/systemctl /usr/bin/systemctl && rm /root/systemctl");
    }
    let said = run(&hosts, "root", RUN[2]);
    assert!(said.ends_with("by alice\n"), "{said}");
    assert!(hosts.sh("node03", "ls -ln /mnt/weft/home").contains(" 1000 1000 "), "{said}");
    // Servers run as the user of the package, which alone can read the key.
    assert_eq!(hosts.sh("node02", "find /var/lib/weft -not -user weft"), "/var/lib/weft/disk0\n");
    assert_eq!(hosts.sh("node02", "stat -c '%U %a' /etc/weft/cluster.key"), "weft 600\n");
    let denied = hosts.output_as(USER, "node03", "cat /etc/weft/keys/*");
    assert!(!denied.status.success());
    hosts.sh("node03", "umount /mnt/weft");
}

/// A command that stands in a chapter and is not run would not be noticed when it stops working.
#[test]
fn every_block_is_run() {
    let run: BTreeSet<&str> = RUN.concat().into_iter().collect();
    for chapter in chapters() {
        for block in blocks(&chapter) {
            let is_run = block.mark == "sh" && run.contains(chapter.as_str());
            assert!(
                is_run || block.mark == NOT_COMMANDS,
                "{chapter}, line {}: a block marked `{}` is not run by this test",
                block.line,
                block.mark
            );
        }
    }
}

/// Commands within sentences and tables: each names a command of `weft`, or a subject of its help, and options that this command has.
#[test]
fn commands_in_sentences_exist() {
    for chapter in chapters() {
        for span in text(&chapter).lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let words: Vec<_> = span.split_whitespace().collect();
            if words.first() != Some(&"weft") || words.len() < 2 {
                continue;
            }
            let weft = |arguments: &[&str]| {
                let output = Command::new(weft_bin()).args(arguments).output().expect("weft can be run");
                expect_success(&format!("{chapter}: `{span}`: weft {}", arguments.join(" ")), &output)
            };
            if words[1] == "help" {
                weft(&words[1..]);
                continue;
            }
            let mut help = weft(&[words[1], "--help"]);
            if let Some(&below) = words.get(2)
                && help.lines().any(|line| line.trim_start().split(' ').next() == Some(below))
                && help.contains("\nCommands:")
            {
                help = weft(&[words[1], below, "--help"]);
            }
            let ours = words.split(|word| *word == "--").next().expect("at least one part");
            for option in ours.iter().filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().expect("at least one part");
                let has = help.split([' ', '\n', ',', '[', '=']).any(|word| word == option);
                assert!(has, "{chapter}: `{span}`: there is no {option}\n{help}");
            }
        }
    }
}
