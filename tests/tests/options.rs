//! Options of commands that no other test needs for its own subject; `flags.rs` finds those that are used nowhere.

use serde_json::Value;
use std::fs;
use std::path::Path;
use weft_tests::{Cluster, preload_library, sh_in};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn json(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// How the servers acknowledge writes, as all of them say.
fn sync_mode(cluster: &Cluster) -> String {
    let status = json(&cluster.weft(&["status", "--json", cluster.url()]));
    let modes = status["servers"].as_array().expect("a list").iter().map(|server| server["sync"].to_string());
    let mut modes: Vec<_> = modes.collect();
    modes.dedup();
    modes.join(" ")
}

#[test]
fn up_remembers_how_writes_are_acknowledged_and_changes_it_when_asked() {
    let mut cluster = Cluster::start_with(1, &["--sync"]);
    assert_eq!(sync_mode(&cluster), "\"sync\"");
    for (arguments, mode) in [(&[][..], "\"sync\""), (&["--nosync"], "\"nosync\""), (&[], "\"nosync\"")] {
        cluster.down();
        cluster.up(1, arguments);
        assert_eq!(sync_mode(&cluster), mode, "{arguments:?}");
    }
}

#[test]
fn run_shows_the_file_system_where_it_is_asked_to() {
    let cluster = Cluster::start(1);
    preload_library();
    let run = |script: &str| {
        let at = ["run", "--url", cluster.url(), "--at", "/data/of mine", "--", "bash", "-euc", script];
        cluster.weft(&at)
    };
    run(
        "mkdir '/data/of mine/d'; echo there > '/data/of mine/d/f'; if ls /weft 2> /dev/null; then exit 1; fi",
    );
    assert_eq!(run("cd '/data/of mine/d'; cat f; pwd"), "there\n/data/of mine/d\n");
}

#[test]
fn cp_copies_with_as_many_jobs_as_it_is_asked_to() {
    let cluster = Cluster::start(2);
    let dir = cluster.scratch("jobs");
    sh_in(&dir, "mkdir tree; cd tree; for n in $(seq 50); do seq $n 2000 > f$n; done");
    let url = format!("{}tree", cluster.url());
    for jobs in ["1", "7"] {
        let back = dir.join(jobs);
        cluster.weft(&[
            "cp",
            "-q",
            "--recursive",
            "--jobs",
            jobs,
            text(&dir.join("tree")),
            &format!("{url}{jobs}"),
        ]);
        cluster.weft(&["cp", "-q", "--recursive", "--jobs", jobs, &format!("{url}{jobs}"), text(&back)]);
        sh_in(&dir, &format!("diff -r tree {jobs}"));
    }
    let none = cluster.command(&["cp", "--jobs", "0", "a", "b"]).output().expect("weft can be run");
    assert!(!none.status.success());
}

#[test]
fn scrub_takes_a_directory_of_weft_up_and_a_key() {
    let cluster = Cluster::start(1);
    let storage = cluster.storage();
    let of_dir = json(&cluster.weft(&["scrub", "--dir", text(&storage), "--json"]));
    let key = cluster.key_file();
    let words = ["scrub", cluster.url(), "--key", text(&key), "--transport", "tcp", "--json"];
    for said in [of_dir, json(&cluster.weft(&words))] {
        assert_eq!(said["servers"].as_array().map(Vec::len), Some(1), "{said}");
    }
}

#[test]
fn measurements_are_printed_as_json_and_saved() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    let dir = cluster.scratch("measured");
    let saved = dir.join("saved.json");
    let common = ["--runs", "1", "--dir", text(&dir), "--json", "--save", text(&saved)];
    let bench = |arguments: &[&str]| {
        let said = json(&cluster.weft(&[&["bench"], arguments, &common].concat()));
        assert_eq!(json(&fs::read_to_string(&saved).expect("it was saved")), said);
        fs::remove_file(&saved).expect("it was saved");
        said
    };
    let limits = bench(&["limits", "--clients", "2", "--bytes", "1M"]);
    assert!(limits["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{limits}");
    sh_in(mount.path(), "mkdir listed; touch listed/1 listed/2 listed/3");
    let key = cluster.key_file();
    let list = bench(&["list", "--path", "listed", "--url", cluster.url(), "--key", text(&key)]);
    assert_eq!(list["parameters"]["entries"], 3, "{list}");
    let few = ["requests", "--size", "4K", "--depth", "2", "--requests", "2", "--file-bytes", "64K"];
    let requests = bench(&[&few[..], &["--url", cluster.url(), "--key", text(&key)]].concat());
    assert_eq!(requests["rows"].as_array().map(Vec::len), Some(4), "{requests}");
    sh_in(&dir, "mkdir source out; seq 1000 > source/f");
    let (source, out, pid) = (dir.join("source"), dir.join("out"), mount.pid().to_string());
    let demo = [
        ["demo", "--url", cluster.url()],
        ["--mount", text(mount.path()), "--mount-pid"],
        [&pid, "--source", text(&source)],
        ["--out", text(&out), "--bytes"],
        ["1M", "--key", text(&key)],
    ];
    let demo = bench(&demo.concat());
    assert!(demo["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{demo}");
}
