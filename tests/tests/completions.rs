//! Completions of shells.

use std::process::Command;
use weft_test_needs::Need;
use weft_tests::{Cluster, expect_success, weft_bin};

/// In the shells themselves.
#[test]
fn shells_complete_paths_in_file_systems_and_subjects_of_help() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    for directory in ["/data", "/data/deep", "/with space", "/.hidden"] {
        client.mkdir(directory, 0o755).expect("it is new");
    }
    for file in ["/dates", "/data/file"] {
        let create = weft_client::OpenOptions::new().write(true).create(true);
        client.open(file, &create).expect("it is new").close().expect("it is empty");
    }
    client.symlink("/data-link", b"data").expect("it is new");
    let asked = |word: &str| cluster.weft(&["complete", "path", word]);
    let url = cluster.url();
    assert_eq!(asked(&format!("{url}da")), format!("{url}data-link/\n{url}data/\n{url}dates\n"));
    assert_eq!(asked(&format!("{url}data/")), format!("{url}data/deep/\n{url}data/file\n"));
    assert_eq!(asked(&format!("{url}.h")), format!("{url}.hidden/\n"));
    assert_eq!(asked("weft://127.0.0.1:1/x"), "", "nobody is there, and nothing is said");
    assert!(cluster.weft(&["complete", "subject", "ho"]).contains("hosts"));

    let path = format!("{}:/usr/bin:/bin", weft_bin().parent().expect("a directory").display());
    let shell = |shell: &str, script: &str| {
        let mut command = Command::new(shell);
        command.args(
            if shell == "bash" { ["--norc", "-c"] } else { ["-f", "-c"] }
                [if shell == "fish" { 1 } else { 0 }..]
                .iter(),
        );
        command.arg(script).env("PATH", &path).env("WEFT_URL", url).env("WEFT_KEY_FILE", cluster.key_file());
        expect_success(shell, &command.output().unwrap_or_else(|error| panic!("{shell}: {error}")))
    };
    let bash = |line: &str| {
        shell(
            "bash",
            &format!(
                "source <(weft completions bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=($COMP_LINE); \
                 COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _weft_asking weft \"${{COMP_WORDS[-1]}}\" weft; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            ),
        )
    };
    assert_eq!(bash("weft ls weft:/da"), "/data-link/\n/data/\n/dates\n", "behind the colon");
    assert_eq!(bash("weft ls weft:/w"), "/with\\ space/\n");
    assert!(bash("weft help ho").lines().any(|line| line == "hosts"));
    assert!(bash("weft stri").lines().any(|line| line == "stripe"));
    if Need::OtherShells.is_met() {
        let fish = |line: &str| {
            shell("fish", &format!("source (weft completions fish | psub); complete -C '{line}'"))
        };
        assert_eq!(
            fish("weft ls weft:/dat"),
            "weft:/data/\nweft:/data-link/\nweft:/dates\n",
            "as fish sorts"
        );
        assert!(fish("weft help ho").contains("hosts"));
        let zsh = |prefix: &str, words: &str| {
            let set =
                "compdef() { :; }; compadd() { shift; print -l -- $@; }; _arguments() { print generated; }";
            let call = format!(
                "source <(weft completions zsh); PREFIX='{prefix}'; words=({words}); CURRENT=$#words; _weft"
            );
            shell("zsh", &format!("{set}; {call}"))
        };
        assert!(zsh("weft:/dat", "weft ls weft:/dat").contains("weft:/data/\nweft:/dates\n"));
        let subjects = zsh("ho", "weft help ho");
        assert!(subjects.contains("hosts\n") && subjects.contains("generated"), "{subjects}");
    }
}
