//! What users are told: nothing twice, no internal names, what to do about a dead mount; and the commands with which they look.

use std::process::Command;

use weft_tests::{Cluster, Served, expect_success};
use weft_wire::Op;

/// What a message must not have.
fn check(arguments: &[&str], said: &str) {
    assert!(!said.contains("server server"), "{arguments:?}: {said}");
    for line in said.lines() {
        let parts: Vec<&str> = line.split(": ").collect();
        for pair in parts.windows(2) {
            assert_ne!(pair[0].trim(), pair[1].trim(), "said twice by {arguments:?}: {line}");
        }
        // Names that are words with capitals inside, or would begin a message.
        for op in Op::ALL {
            let is_internal = op.name().chars().filter(char::is_ascii_uppercase).count() > 1;
            let begins = format!(": {} ", op.name());
            let is_told = is_internal && line.contains(op.name()) || line.contains(&begins);
            assert!(!is_told, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn messages_say_it_once_and_in_words_of_users() {
    let cluster = Cluster::start(2);
    let url = cluster.url().to_owned();
    let local = cluster.scratch("local");
    std::fs::write(local.join("f"), "x").expect("there is room");
    let (at, file) = (|path: &str| format!("{url}{path}"), local.join("f").display().to_string());
    let missing_dir = local.join("no/such").display().to_string();
    cluster.weft(&["mkdir", &at("d"), &at("d/full")]);
    cluster.weft(&["cp", &file, &at("f")]);
    let of_places = [
        vec!["ls", "missing"],
        vec!["ls", "f/below"],
        vec!["cat", "missing"],
        vec!["cat", "d"],
        vec!["stat", "missing"],
        vec!["rm", "missing"],
        vec!["rm", "d"],
        vec!["mkdir", "d"],
        vec!["mkdir", "missing/deep"],
        vec!["du", "missing"],
        vec!["tree", "missing"],
        vec!["dump", "missing"],
        vec!["explain", "--bytes", "1", "missing"],
        vec!["stripe", "get", "missing"],
        vec!["stripe", "set", "--servers", "1", "f"],
    ];
    let of_places = of_places.into_iter().map(|words| {
        let (place, first) = words.split_last().expect("a place");
        first.iter().map(ToString::to_string).chain([at(place)]).collect()
    });
    let others: [Vec<String>; 13] = [
        vec!["mv".into(), at("missing"), at("other")],
        vec!["mv".into(), at("d"), at("d/full/inside")],
        vec!["mv".into(), at("f"), at("d/full/no/such")],
        vec!["cp".into(), at("missing"), file.clone()],
        vec!["cp".into(), at("f"), missing_dir.clone()],
        vec!["cp".into(), missing_dir.clone(), at("x")],
        vec!["sync".into(), missing_dir, at("x")],
        vec!["sync".into(), at("missing"), local.display().to_string()],
        vec!["mount".into(), at("missing"), local.display().to_string()],
        vec!["mount".into(), at("f"), local.display().to_string()],
        vec!["ls".into(), "weft://127.0.0.1:1/".into()],
        vec!["ls".into(), "weft://no-such-host.invalid/".into()],
        vec!["quota".into(), "set".into(), "--tree".into(), at("f"), "--bytes".into(), "1".into()],
    ];
    let wrong: Vec<Vec<String>> = of_places.chain(others).collect();
    for words in &wrong {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = cluster.command(&words).output().expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.starts_with("weft"), "{words:?}: {said}");
        check(&words, &said);
    }
}

/// Commands that fail, each with the path that its message must name, once.
fn failing(local: &str) -> Vec<(Vec<String>, String)> {
    let one = [
        "ls weft:/missing",
        "ls weft:/f/below",
        "cat weft:/missing",
        "cat weft:/d",
        "stat weft:/missing",
        "rm weft:/missing",
        "rm weft:/d",
        "mkdir weft:/d",
        "mkdir weft:/missing/deep",
        "mkdir -p weft:/f/deep",
        "du weft:/missing",
        "tree weft:/missing",
        "df weft:/missing",
        "dump weft:/missing",
        "explain --bytes 1 weft:/missing",
        "stripe get weft:/missing",
        "stripe set --servers 1 weft:/f",
        "chmod 755 weft:/missing",
        "chown 0 weft:/missing",
        "touch weft:/missing/deep",
        "touch weft:/f/",
        "ln -s a weft:/missing/deep",
        "ln -s a weft:/f",
        "quota set --bytes 1 --tree weft:/missing",
    ];
    let last = |line: &&str| {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        let path = words.last().expect("a path").clone();
        (words, path)
    };
    let two = [
        ("mv", "weft:/missing", "weft:/other", 0),
        ("mv", "weft:/d", "weft:/d/full/inside", 1),
        ("mv", "weft:/f", "weft:/d/full/no/such", 1),
        ("ln", "weft:/missing", "weft:/other", 0),
        ("ln", "weft:/f", "weft:/missing/other", 1),
        ("cp", "weft:/missing", "LOCAL/back", 0),
        ("cp", "weft:/f", "LOCAL/no/such", 1),
        ("cp", "LOCAL/no", "weft:/x", 0),
        ("cp", "LOCAL/f", "weft:/missing/x", 1),
        ("cp", "LOCAL/big", "weft:/missing/x", 1),
        ("cp", "-", "weft:/missing/x", 1),
        ("cp", "weft:/missing", "-", 0),
        ("sync", "LOCAL/no", "weft:/x", 0),
        ("sync", "weft:/missing", "LOCAL", 0),
        ("sync", "LOCAL/big", "weft:/missing/x", 1),
    ];
    let named = |(command, from, to, which): &(&str, &str, &str, usize)| {
        let places = [from, to].map(|place| place.replace("LOCAL", local));
        let path = places[*which].clone();
        (std::iter::once((*command).to_owned()).chain(places).collect(), path)
    };
    one.iter().map(last).chain(two.iter().map(named)).collect()
}

#[test]
fn failures_name_once_the_path_that_was_typed_and_nothing_internal() {
    let cluster = Cluster::start(2);
    let local = cluster.scratch("local");
    std::fs::write(local.join("f"), "x").expect("there is room");
    std::fs::write(local.join("big"), vec![1; 3 << 20]).expect("there is room");
    let at = |path: &str| format!("{}{path}", cluster.url());
    cluster.weft(&["mkdir", &at("d"), &at("d/full")]);
    cluster.weft(&["cp", &local.join("big").display().to_string(), &at("f")]);
    let mut wrong = Vec::new();
    for (words, path) in failing(&local.display().to_string()) {
        let line: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = cluster.command(&line);
        let output = command.env("WEFT_URL", cluster.url()).stdin(std::process::Stdio::null()).output();
        let output = output.expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_summary = |line: &str| line.contains("could not be copied") || line.starts_with("0 ");
        let errors: Vec<&str> = said.lines().filter(|line| !is_summary(line)).collect();
        let internal = ["inode ", ".weft-", "look up /", "server meta0", "127.0.0.1"];
        let is_told = matches!(errors[..], [error] if error.matches(path.as_str()).count() == 1);
        if output.status.success() || !is_told || internal.iter().any(|word| said.contains(word)) {
            wrong.push(format!("{}\n{said}", line.join(" ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_mistyped_server_is_not_taken_for_a_missing_key() {
    let cluster = Cluster::start(1);
    let said = |url: &str| {
        let mut command = cluster.command(&["ls", url]);
        command.env("HOME", "/nonexistent").env_remove("WEFT_KEY").env_remove("WEFT_KEY_FILE");
        String::from_utf8_lossy(&command.output().expect("weft can be run").stderr).into_owned()
    };
    let refused = said("weft://127.0.0.1:1/");
    assert!(refused.contains("refused") && !refused.contains("key"), "{refused}");
    let unknown = said("weft://no-such-host.invalid/");
    assert!(unknown.contains("cannot look up no-such-host.invalid") && !unknown.contains("key"), "{unknown}");
    let address = cluster.url().split('?').next().expect("a URL");
    assert!(said(address).contains("there is no key for 127.0.0.1:"), "{}", said(address));
}

#[test]
fn a_lost_server_is_told_once() {
    let mut cluster = Served::start(1);
    cluster.kill("io0");
    let url = cluster.url();
    let once = ["top", "--once", "--interval", "0.2", &url];
    for arguments in [&["status", &url][..], &["df", &url], &["scrub", &url], &once] {
        let output = cluster.command(arguments).output().expect("weft can be run");
        check(arguments, &String::from_utf8_lossy(&output.stderr));
        check(arguments, &String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_dead_mount_is_told_as_such() {
    let cluster = Cluster::start(1);
    let dir = cluster.dead_mount();
    let shown = dir.display().to_string();
    let (below, there) = (dir.join("f").display().to_string(), format!("{}x", cluster.url()));
    let mount = ["mount", cluster.url(), &shown];
    for arguments in [&["cp", &below, cluster.url()][..], &["sync", &below, &there], &mount] {
        let output = cluster.command(arguments).output().expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_told = said.contains("process died") && said.contains("weft umount");
        assert!(!output.status.success() && is_told, "{arguments:?}: {said}");
    }
    cluster.weft(&["umount", &shown]);
    assert!(!weft_tests::is_mounted(&dir));
}

#[test]
fn the_url_of_the_environment_is_enough_and_listings_have_what_is_expected() {
    let cluster = Cluster::start(2);
    let run = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        let output = command.env("WEFT_URL", cluster.url()).output().expect("weft can be run");
        expect_success(&format!("weft {arguments:?}"), &output)
    };
    run(&["mkdir", "-p", "weft:/a/b"]);
    let local = cluster.scratch("local");
    std::fs::write(local.join("big"), vec![1; 3 << 20]).expect("there is room");
    run(&["cp", &local.join("big").display().to_string(), "weft:/a/b/big"]);
    assert_eq!(run(&["ls"]).trim(), "a");
    assert!(run(&["tree"]).contains("big") && run(&["du", "-s"]).contains("3.0 MiB"));
    assert!(run(&["df"]).contains("weft://"));
    let listed = run(&["ls", "-lhR"]);
    assert!(listed.contains("/a/b:") && listed.contains("3.0 MiB") && listed.contains("big"), "{listed}");
    assert_eq!(run(&["ls", "--human-readable", "--recursive", "-l"]), listed);
    assert!(run(&["ls", "--help"]).contains("--human-readable"));
    let version = run(&["version"]);
    assert!(version.contains("protocol versions") && version.contains("io1: "), "{version}");
    let version = run(&["version", "--json", "--transport", "tcp", cluster.url()]);
    let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
    assert_eq!(version["servers"].as_array().expect("a list").len(), 3);
    assert_eq!(version["version"], version["servers"][0]["version"]);
    let key = cluster.key_file().display().to_string();
    run(&["version", "--key", &key, cluster.url()]);
    // Without a server it says its own; a URL that was given has to answer.
    let alone = |arguments: &[&str]| {
        let mut command = Command::new(weft_tests::weft_bin());
        command
            .arg("version")
            .args(arguments)
            .env("WEFT_URL", "weft://127.0.0.1:1/")
            .output()
            .expect("weft can be run")
    };
    assert!(expect_success("weft version", &alone(&[])).starts_with("weft "));
    assert!(!alone(&["weft://127.0.0.1:1/"]).status.success());
    for command in ["ls", "df", "du", "tree"] {
        let output = cluster.command(&[command]).env_remove("WEFT_URL").output().expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("set WEFT_URL"), "{command}: {said}");
    }
}

#[test]
fn status_fits_a_terminal_and_shows_a_shared_disk_once() {
    let cluster = Cluster::start(4);
    let shown = cluster.weft(&["status", cluster.url()]);
    for line in shown.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    assert!(!shown.contains("RDMA"), "nobody asked: {shown}");
    assert_eq!(shown.matches("on meta0's").count(), 4, "{shown}");
    let verbose = cluster.weft(&["status", "--verbose", cluster.url()]);
    assert!(verbose.contains("memory") && verbose.contains("sync"), "{verbose}");
    let df = cluster.weft(&["df", cluster.url()]);
    assert_eq!(df.matches("on meta0's disk").count(), 4, "{df}");
    // All servers have one disk, so that everything of it can be written.
    let rows = cluster.weft(&["df", "--json", cluster.url()]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&rows).expect("JSON");
    let free = |row: usize| rows[row]["free_bytes"].as_u64().expect("a number");
    let (whole, of_first) = (free(0), free(1));
    assert!(whole.abs_diff(of_first) < of_first / 10, "the same disk: {rows:?}");
    let human = cluster.weft(&["df", "-h", cluster.url()]);
    assert!(human.contains("iB") && !human.contains("Usage"), "{human}");
    assert!(!cluster.weft(&["df", "--bytes", cluster.url()]).contains("iB"));
    assert!(cluster.weft(&["du", "-h", cluster.url()]).contains(" B"));
}
