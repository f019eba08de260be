//! The file tools against real data over every transport: wildcards, striping, answers for scripts, exit codes and errors, and that
//! none of it needs root.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use weft_test_needs::Need;
use weft_tests::{
    Cluster, Served, ServedOptions, expect_success, free_ports, processes_naming, sh_in, signal,
    temporary_dir, usual_transport, wait_until, weft_bin,
};

const MAKE_TREE: &str = r#"
    mkdir -p tree/deep/er/still tree/empty tree/many
    for size in 0 1 4095 4096 65535 65536 65537 300000 9000000; do head -c $size /dev/urandom > tree/file-$size; done
    for number in $(seq 200); do echo $number > tree/many/$number; done
    echo text > 'tree/deep/a name with spaces and ü'
    echo deep > tree/deep/er/still/here
    ln -s ../file-1 tree/deep/link; ln -s nowhere tree/dangling
    chmod 751 tree/deep; chmod 600 tree/file-1; chmod 755 tree/file-4096
    touch -d '2001-02-03 04:05:06.789' tree/file-4095
"#;

/// Runs `weft` and returns exit code, standard output and standard error.
fn outcome(cluster: &Cluster, arguments: &[&str]) -> (i32, String, String) {
    let output = cluster.command(arguments).output().expect("weft can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// The URL of a path.
fn at(cluster: &Cluster, path: &str) -> String {
    format!("{}{path}", cluster.url())
}

fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let said = cluster.weft(arguments);
    serde_json::from_str(&said)
        .unwrap_or_else(|error| panic!("weft {}: {error}: {said}", arguments.join(" ")))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn trees_are_copied_in_and_out() {
    let cluster = Cluster::start(3);
    let here = cluster.scratch("here");
    sh_in(&here, MAKE_TREE);
    cluster.weft(&["cp", "-r", "-p", "-q", text(&here.join("tree")), &at(&cluster, "tree")]);
    for transport in ["tcp", "shm"] {
        let back = here.join(transport);
        let from = format!("{}?transport={transport}", at(&cluster, "tree"));
        cluster.weft(&["cp", "-r", "-p", "-q", &from, text(&back)]);
        sh_in(&here, &format!("diff -r --no-dereference tree {transport}"));
        let list =
            "find . ! -type d -printf '%p %y %m %s %l %T@\\n' | grep -v link | grep -v dangling | sort";
        assert_eq!(sh_in(&here.join("tree"), list), sh_in(&back, list));
    }
    // Within one file system, into a directory that is there, and one file at a time.
    cluster.weft(&["mkdir", &at(&cluster, "into")]);
    cluster.weft(&[
        "cp",
        "-r",
        "-q",
        &at(&cluster, "tree/deep"),
        &at(&cluster, "tree/file-9000000"),
        &at(&cluster, "into"),
    ]);
    cluster.weft(&["cp", "-r", "-q", &at(&cluster, "into"), text(&here.join("into"))]);
    sh_in(&here, "diff -r --no-dereference tree/deep into/deep; cmp tree/file-9000000 into/file-9000000");
    // The shorter form of a URL, and the file system by $WEFT_URL.
    let plain = cluster.url().trim_start_matches("weft://").trim_end_matches('/').to_string();
    let single = here.join("single");
    cluster.weft(&["cp", "-q", &format!("{plain}:/tree/file-65537"), text(&single)]);
    assert_eq!(fs::read(&single).expect("copied"), fs::read(here.join("tree/file-65537")).expect("there"));
    let output =
        cluster.command(&["ls", "weft:/tree/deep"]).env("WEFT_URL", cluster.url()).output().expect("run");
    assert!(expect_success("weft ls", &output).contains("a name with spaces and ü"));
}

#[test]
fn every_file_tool_does_what_it_says() {
    let cluster = Cluster::start(2);
    let here = cluster.scratch("here");
    sh_in(&here, MAKE_TREE);
    let root = |path: &str| at(&cluster, path);
    cluster.weft(&["cp", "-r", "-q", text(&here.join("tree")), &root("tree")]);

    assert_eq!(cluster.weft(&["ls", &root("tree/deep")]), "a name with spaces and ü\ner\nlink\n");
    let long = cluster.weft(&["ls", "-l", &root("tree/deep")]);
    assert!(long.contains("link -> ../file-1") && long.contains("drwx"), "{long}");
    assert_eq!(cluster.weft(&["cat", &root("tree/deep/er/still/here"), &root("tree/many/7")]), "deep\n7\n");
    let cat = cluster.command(&["cat", &root("tree/file-9000000")]).output().expect("weft can be run");
    assert!(cat.stdout == fs::read(here.join("tree/file-9000000")).expect("there"));

    cluster.weft(&["mkdir", &root("one")]);
    cluster.weft(&["mkdir", "-p", &root("one/two/three"), &root("one/two")]);
    assert_eq!(outcome(&cluster, &["mkdir", &root("one")]).0, 1);
    assert_eq!(outcome(&cluster, &["mkdir", &root("no/parent")]).0, 1);

    cluster.weft(&["mv", &root("tree/file-1"), &root("one/renamed")]);
    cluster.weft(&["mv", &root("tree/file-4096"), &root("tree/file-4095"), &root("one")]);
    assert_eq!(cluster.weft(&["ls", &root("one")]), "file-4095\nfile-4096\nrenamed\ntwo\n");
    let (code, _, said) = outcome(&cluster, &["mv", "-n", &root("one/renamed"), &root("one/file-4095")]);
    assert!(code == 1 && said.contains("exists"), "{said}");

    let tree = cluster.weft(&["tree", &root("tree/deep")]);
    assert!(tree.contains("└── link -> ../file-1") && tree.contains("still"), "{tree}");
    let stat = cluster.weft(&["stat", &root("tree/file-300000")]);
    assert!(
        stat.contains("300000 bytes") && stat.contains("io0") && stat.contains(usual_transport()),
        "{stat}"
    );
    let stat = cluster.weft(&["stat", &format!("{}?transport=tcp", root("tree/file-300000"))]);
    assert!(stat.contains("tcp") && !stat.contains("shm"), "{stat}");
    let local = sh_in(
        &here,
        "find tree/many tree/deep -type f -printf '%s\\n' | awk '{ sum += $1 } END { print sum }'",
    );
    // The link counts with its own size.
    let du = cluster.weft(&["du", "-s", "-b", &root("tree/many"), &root("tree/deep")]);
    let sum: u64 = du
        .lines()
        .map(|line| line.split_whitespace().next().expect("a size").parse::<u64>().expect("bytes"))
        .sum();
    let link_bytes = "../file-1".len() as u64;
    assert_eq!(sum, local.trim().parse::<u64>().expect("a number") + link_bytes, "{du}");
    let df = cluster.weft(&["df", cluster.url()]);
    assert!(df.contains("io0") && df.contains("io1"), "{df}");
    let status = cluster.weft(&["status", cluster.url()]);
    assert!(["meta0", "io0", "io1", usual_transport()].iter().all(|word| status.contains(word)), "{status}");

    let (code, _, said) = outcome(&cluster, &["rm", &root("tree")]);
    assert!(code == 1 && said.contains("-r"), "{said}");
    cluster.weft(&["rm", &root("tree/dangling")]);
    cluster.weft(&["rm", "-r", &root("tree"), &root("one")]);
    assert_eq!(cluster.weft(&["ls", cluster.url()]), "");
    assert_eq!(outcome(&cluster, &["rm", &root("tree")]).0, 1);
    cluster.weft(&["rm", "-f", &root("tree"), &root("no*thing")]);
}

#[test]
fn wildcards_are_expanded_by_every_tool() {
    let cluster = Cluster::start(2);
    let here = cluster.scratch("here");
    sh_in(&here, MAKE_TREE);
    let root = |path: &str| at(&cluster, path);
    cluster.weft(&["cp", "-r", "-q", text(&here.join("tree")), &root("tree")]);
    assert_eq!(cluster.weft(&["cat", &root("tree/many/1[12]"), &root("t*/many/20?")]), "11\n12\n200\n");
    let names = cluster.weft(&["ls", &root("tree/file-6*")]);
    assert_eq!(names.lines().count(), 3, "{names}");
    fs::create_dir(here.join("some")).expect("new");
    cluster.weft(&["cp", "-q", &root("tree/many/1?"), text(&here.join("some"))]);
    assert_eq!(fs::read_dir(here.join("some")).expect("there").count(), 10);
    cluster.weft(&["rm", &root("tree/many/*")]);
    assert_eq!(cluster.weft(&["ls", &root("tree/many")]), "");
    let (code, _, said) = outcome(&cluster, &["ls", &root("tree/nothing*")]);
    assert!(code == 1 && said.contains("no file matches"), "{said}");
}

#[test]
fn answers_for_scripts_are_json() {
    let cluster = Cluster::start(2);
    let here = cluster.scratch("here");
    sh_in(&here, "mkdir tree; echo 12345 > tree/file; ln -s file tree/link");
    let root = |path: &str| at(&cluster, path);
    cluster.weft(&["cp", "-r", "-q", text(&here.join("tree")), &root("tree")]);
    let list = json(&cluster, &["ls", "--json", &root("tree")]);
    let names: Vec<_> = list
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| entry["path"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["file", "link"]);
    let stat = json(&cluster, &["stat", "--json", &root("tree/file")]);
    assert_eq!((&stat[0]["bytes"], &stat[0]["kind"]), (&Value::from(6), &Value::from("file")));
    assert_eq!(stat[0]["layout"]["servers"], 2);
    assert_eq!(json(&cluster, &["du", "-s", "--json", &root("tree")])[0]["files"], 2);
    let df = json(&cluster, &["df", "--json", cluster.url()]);
    assert!(
        df.as_array()
            .expect("a list")
            .iter()
            .all(|row| row["space_bytes"].as_u64().is_some_and(|bytes| bytes > 0))
    );
    let status = json(&cluster, &["status", "--json", cluster.url()]);
    let servers = status["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 3);
    for server in servers {
        assert_eq!(server["answers"], true, "{server}");
        assert!(server["pid"].as_u64().is_some_and(|pid| pid > 1), "{server}");
        let clients = server["client_list"].as_array().expect("a list");
        assert!(clients.iter().any(|client| client["program"] == "weft"), "{server}");
    }
    assert_eq!(json(&cluster, &["stripe", "get", "--json", &root("tree/file")])[0]["kind"], "file");
}

#[test]
fn without_rdma_libraries_all_works_and_status_says_why_it_is_not_used() {
    // As good as absent: these are what the loader finds first, and cannot use.
    let libraries = temporary_dir();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::write(libraries.path().join(name), "").unwrap();
    }
    let without = format!("LD_LIBRARY_PATH={}", libraries.path().display());
    let names = ["meta0", "io0", "io1"];
    let through = names.map(|name| (name.to_string(), vec!["env".into(), without.clone()]));
    let cluster = Served::start_with(ServedOptions { through: through.into(), ..ServedOptions::default() });
    let weft = |arguments: &[&str]| {
        let mut command = cluster.command(arguments);
        command.env("LD_LIBRARY_PATH", libraries.path());
        expect_success(&format!("{command:?}"), &command.output().expect("weft can be run"))
    };
    sh_in(cluster.scratch(), "head -c 3000000 /dev/urandom > data");
    weft(&["cp", "-q", text(&cluster.scratch().join("data")), &cluster.at("data")]);
    for transport in ["tcp", "shm", "auto"] {
        let back = cluster.scratch().join(transport);
        weft(&["cp", "-q", &cluster.at(&format!("data?transport={transport}")), text(&back)]);
        sh_in(cluster.scratch(), &format!("cmp data {transport}"));
    }
    let status: Value = serde_json::from_str(&weft(&["status", "--json", &cluster.url()])).expect("JSON");
    for server in status["servers"].as_array().expect("a list") {
        let (rdma, log) = (&server["rdma"], cluster.log(server["name"].as_str().expect("a name")));
        assert_eq!((&rdma["used"], &rdma["addresses"]), (&false.into(), &serde_json::json!([])));
        let reason = rdma["reason"].as_str().expect("a text");
        assert!(reason.contains("libibverbs.so.1") && log.contains(reason), "{reason}\n{log}");
    }
    let told = weft(&["status", "-v", &cluster.url()]);
    assert!(told.contains("RDMA is not used by meta0, io0, io1: libibverbs.so.1"), "{told}");
}

/// Of all servers together, from what `weft status` says.
fn bytes_moved_by(operation: &str, status: &Value) -> u64 {
    match status {
        Value::Array(all) => all.iter().map(|one| bytes_moved_by(operation, one)).sum(),
        Value::Object(fields) if fields.get("operation").is_some_and(|name| name == operation) => {
            fields["bytes"].as_u64().unwrap_or(0)
        }
        Value::Object(fields) => fields.values().map(|one| bytes_moved_by(operation, one)).sum(),
        _ => 0,
    }
}

#[test]
fn copies_within_a_cluster_are_made_by_its_servers() {
    let cluster = Cluster::start(3);
    let root = |name: &str| format!("{}{name}", cluster.url());
    let local = cluster.scratch("local").join("data");
    let mut data = vec![0; 40 << 20];
    data[..3 << 20].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
    *data.last_mut().expect("bytes") = 9;
    std::fs::write(&local, &data).expect("a local file");
    cluster.weft(&["cp", "-q", local.to_str().expect("a path"), &root("first")]);
    let bytes_by =
        |operation| bytes_moved_by(operation, &json(&cluster, &["status", "--json", cluster.url()]));
    let moved = (bytes_by("Read"), bytes_by("Write"), bytes_by("CopyRange"));
    for copy in ["second", "third", "fourth"] {
        cluster.weft(&["cp", "-q", &root("first"), &root(copy)]);
    }
    assert_eq!((bytes_by("Read"), bytes_by("Write")), (moved.0, moved.1), "bytes went through the client");
    assert!(bytes_by("CopyRange") >= moved.2 + 3 * (3 << 20));
    let back = cluster.scratch("local").join("back");
    cluster.weft(&["cp", "-q", &root("fourth"), back.to_str().expect("a path")]);
    assert!(std::fs::read(&back).expect("a copy") == data);
    let space = json(&cluster, &["stat", "--json", &root("third")])[0]["allocated_bytes"].as_u64();
    assert!(space.is_some_and(|bytes| (3 << 20..5 << 20).contains(&bytes)), "holes are kept: {space:?}");
    // Where a wish for striping separates them, the client copies.
    cluster.weft(&["cp", "-q", "--strip-bytes", "128K", &root("first"), &root("wider")]);
    assert!(bytes_by("Write") > moved.1);
    cluster.weft(&["cp", "-q", &root("wider"), back.to_str().expect("a path")]);
    assert!(std::fs::read(&back).expect("a copy") == data);
}

#[test]
fn striping_is_set_for_files_and_directories() {
    let cluster = Cluster::start(4);
    let here = cluster.scratch("here");
    sh_in(&here, "head -c 1000000 /dev/urandom > data");
    let root = |path: &str| at(&cluster, path);
    let layout = |path: &str| json(&cluster, &["stripe", "get", "--json", &root(path)])[0]["layout"].clone();

    cluster.weft(&["stripe", "set", &root("file"), "--strip-bytes", "8K", "--servers", "2", "--first", "3"]);
    let set = layout("file");
    assert_eq!((&set["strip_bytes"], &set["servers"], &set["first"]), (&8192.into(), &2.into(), &3.into()));
    assert_eq!(set["server_ids"], serde_json::json!([3, 0]), "the ring goes round");

    cluster.weft(&["mkdir", &root("dir")]);
    cluster.weft(&["stripe", "set", &root("dir"), "--strip-bytes", "1M", "--servers", "1"]);
    cluster.weft(&["cp", "-q", text(&here.join("data")), &root("dir/data")]);
    let inherited = layout("dir/data");
    assert_eq!((&inherited["strip_bytes"], &inherited["servers"]), (&(1 << 20).into(), &1.into()));
    cluster.weft(&["mkdir", &root("dir/below")]);
    cluster.weft(&["cp", "-q", text(&here.join("data")), &root("dir/below/data")]);
    assert_eq!(layout("dir/below/data")["servers"], 1, "directories below inherit");
    cluster.weft(&["stripe", "set", &root("dir"), "--reset"]);
    cluster.weft(&["cp", "-q", text(&here.join("data")), &root("dir/second")]);
    assert_eq!(layout("dir/second")["servers"], 4);

    cluster.weft(&[
        "cp",
        "-q",
        "--servers",
        "3",
        "--strip-bytes",
        "64K",
        text(&here.join("data")),
        &root("chosen"),
    ]);
    assert_eq!(layout("chosen")["servers"], 3);
    for path in ["dir/data", "dir/second", "chosen"] {
        let cat = cluster.command(&["cat", &root(path)]).output().expect("weft can be run");
        assert!(cat.stdout == fs::read(here.join("data")).expect("there"), "{path}");
    }
    let (code, _, said) = outcome(&cluster, &["stripe", "set", &root("chosen"), "--servers", "1"]);
    assert_eq!(code, 1, "a file with data keeps its striping: {said}");
    for wrong in [["--servers", "9"], ["--strip-bytes", "1000"], ["--first", "4"]] {
        let (code, _, said) = outcome(&cluster, &["stripe", "set", &root("new"), wrong[0], wrong[1]]);
        assert!(code == 1 && !said.is_empty(), "{wrong:?}: {code} {said}");
    }
    // What the servers hold is what was asked for: one of one server, no data elsewhere.
    let files =
        sh_in(&cluster.storage(), "for io in io?; do find $io -type f -size +900k | grep -c . || true; done");
    assert_eq!(
        files.split_whitespace().map(|count| count.parse::<u32>().expect("a number")).sum::<u32>(),
        2,
        "{files}"
    );
}

#[test]
fn errors_say_what_where_and_what_to_do() {
    let cluster = Cluster::start(1);
    let root = |path: &str| at(&cluster, path);
    for (arguments, code, words) in [
        (vec!["cat", &root("missing")], 1, vec!["missing", "no such file"]),
        (vec!["ls", &root("missing/below")], 1, vec!["missing"]),
        (vec!["cp", "-q", &root("missing"), "/dev/shm/never"], 1, vec!["missing"]),
        (vec!["cp", "-q", "/nonexistent", &root("x")], 1, vec!["/nonexistent"]),
        (vec!["ls", "/a/local/path"], 1, vec!["local path", "weft://"]),
        (vec!["ls", "weft:/x"], 1, vec!["WEFT_URL"]),
        (vec!["ls", "weft://127.0.0.1:1/"], 1, vec!["127.0.0.1:1"]),
        (vec!["ls", "weft://127.0.0.1/?transport=pigeon"], 1, vec!["pigeon"]),
        (vec!["rm", cluster.url()], 1, vec!["root"]),
        (vec!["ls", "--no-such-option"], 2, vec!["--no-such-option"]),
        (vec!["frobnicate"], 2, vec!["frobnicate"]),
        (vec!["up"], 2, vec!["--dir"]),
        (vec!["down", "--dir", "/nonexistent"], 1, vec!["/nonexistent", "weft up"]),
        (vec!["serve", "--config", "/nonexistent.toml", "--name", "x"], 78, vec!["/nonexistent.toml"]),
        (vec!["umount", "/"], 1, vec!["/"]),
    ] {
        let mut command = cluster.command(&arguments);
        let output = command.env_remove("WEFT_URL").output().expect("weft can be run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "weft {}: {said}", arguments.join(" "));
        for word in words {
            assert!(
                said.to_lowercase().contains(&word.to_lowercase()),
                "weft {}: {said}",
                arguments.join(" ")
            );
        }
        assert!(!said.contains("panicked"), "{said}");
        assert!(output.stdout.is_empty(), "errors belong on standard error");
    }
    let other_key = cluster.scratch("keys").join("key");
    fs::write(&other_key, "ab".repeat(32)).expect("room");
    fs::set_permissions(&other_key, fs::Permissions::from_mode(0o600)).expect("own file");
    let (code, _, said) = outcome(&cluster, &["ls", "--key", text(&other_key), cluster.url()]);
    assert!(code == 1 && said.contains("key"), "{said}");
    for subject in
        ["start", "urls", "striping", "transports", "keys", "semantics", "cluster", "cp", "stripe set"]
    {
        let words: Vec<_> = std::iter::once("help").chain(subject.split(' ')).collect();
        assert!(cluster.weft(&words).len() > 100, "weft help {subject}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(cluster.weft(&["completions", shell]).contains("stripe"));
    }
    let pages = cluster.scratch("man");
    cluster.weft(&["man", text(&pages)]);
    assert!(fs::read_dir(&pages).expect("made").count() > 10);
}

#[test]
fn a_second_up_finds_its_data_and_down_leaves_nothing() {
    let mut cluster = Cluster::start(2);
    let here = cluster.scratch("here");
    sh_in(&here, "head -c 3000000 /dev/urandom > data");
    cluster.weft(&["cp", "-q", text(&here.join("data")), &at(&cluster, "data")]);
    let (code, _, said) = outcome(&cluster, &["up", "--detach", "--dir", text(&cluster.storage())]);
    assert!(code == 1 && said.contains("already running"), "{said}");
    for round in 0..2 {
        cluster.down();
        let name = cluster.storage().display().to_string();
        wait_until("no server is left", Duration::from_secs(5), || processes_naming(&name).is_empty());
        cluster.down();
        cluster.up(2, &[]);
        let cat = cluster.command(&["cat", &at(&cluster, "data")]).output().expect("weft can be run");
        assert!(cat.stdout == fs::read(here.join("data")).expect("there"), "round {round}");
    }
    cluster.down();
    let (code, _, said) =
        outcome(&cluster, &["up", "--detach", "--io", "3", "--dir", text(&cluster.storage())]);
    assert!(code == 1 && said.contains("2 I/O servers"), "{said}");
    cluster.up(2, &["--sync"]);
    let status = json(&cluster, &["status", "--json", cluster.url()]);
    assert!(
        status["servers"].as_array().expect("a list").iter().all(|server| server["sync"] == "sync"),
        "{status}"
    );
}

/// A cluster in the foreground: its process, its directory's name in command lines, and its URL.
fn up_in_foreground(dir: &Path, program: &mut Command) -> (std::process::Child, String) {
    let port = free_ports(4).to_string();
    program.args(["up", "--io", "2", "--port", &port, "--json", "--dir"]).arg(dir);
    program.env("HOME", dir.parent().expect("a directory above")).env_remove("XDG_CONFIG_HOME");
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft can be run");
    let stdout = child.stdout.as_mut().expect("piped");
    let answer = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>().next();
    match answer {
        Some(Ok(answer)) => (child, answer["url"].as_str().expect("a URL").to_string()),
        other => {
            let _ = child.kill();
            panic!("{other:?}: {:?}", child.wait_with_output());
        }
    }
}

#[test]
fn nothing_needs_root() {
    if !Need::Root.is_met() {
        return;
    }
    let dir = temporary_dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("an own directory");
    let program: PathBuf = dir.path().join("weft");
    // By another process: a child that a test forks here meanwhile would keep the program open for writing (ETXTBSY).
    assert!(Command::new("cp").arg(weft_bin()).arg(&program).status().expect("cp can be run").success());
    let home = dir.path().join("home");
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
            .arg(&program)
            .args(words);
        command.env("HOME", &home).env_remove("XDG_CONFIG_HOME").current_dir(dir.path());
        command
    };
    fs::create_dir(&home).expect("new");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("root may");
    let storage = home.join("storage");
    let (mut child, url) = up_in_foreground(&storage, &mut as_nobody(&[]));
    let run = |words: &[&str]| -> Output { as_nobody(words).output().expect("setpriv can be run") };
    fs::write(dir.path().join("data"), vec![7; 3_000_000]).expect("room");
    expect_success("cp in", &run(&["cp", "-q", "data", &format!("{url}data")]));
    expect_success("cp out", &run(&["cp", "-q", &format!("{url}data"), text(&home.join("back"))]));
    assert_eq!(fs::read(home.join("back")).expect("copied"), vec![7; 3_000_000]);
    let stat: Value =
        serde_json::from_str(&expect_success("stat", &run(&["stat", "--json", &format!("{url}data")])))
            .expect("JSON");
    assert_eq!(stat[0]["uid"], 65534, "{stat}");
    let status = expect_success("status", &run(&["status", &url]));
    assert!(status.contains("shm"), "{status}");
    signal(child.id(), libc::SIGTERM);
    assert!(child.wait().expect("a child can be waited for").success());
}

/// Benchmarks over RDMA measure what is there, say why not the rest, and draw it: here against a cluster that has none.
#[test]
fn measurements_say_what_they_left_out() {
    let cluster = Cluster::start(1);
    let dir = temporary_dir();
    let (dir_text, svg) = (text(dir.path()).to_string(), dir.path().join("figure.svg"));
    let url = cluster.url().to_string();
    let run = |arguments: &[&str]| {
        let common = ["--runs", "1", "--dir", &dir_text, "--svg", text(&svg), "--json"];
        let said = json(&cluster, &[&["bench"], arguments, &common].concat());
        assert!(fs::read_to_string(&svg).expect("a picture").starts_with("<svg"));
        said
    };
    let few = ["--rounds", "2", "--url", &url];
    for bench in [
        &["small", "--size", "4K"][..],
        &["bulk", "--bytes", "1M", "--unit", "256K"],
        &["subarray", "--array", "64"],
    ] {
        let said = run(&[bench, &few].concat());
        let panels = said["panels"].as_array().expect("panels");
        assert_eq!(panels.len(), 2, "writes and reads");
        let names: Vec<_> = panels[0]["lines"]
            .as_array()
            .expect("lines")
            .iter()
            .map(|line| line["name"].to_string())
            .collect();
        for transport in ["tcp", "shm"] {
            assert!(names.iter().any(|name| name.contains(transport)), "{bench:?}: {names:?}");
        }
        assert!(
            said["notes"][0].as_str().expect("a note").starts_with("Not measured over rdma: "),
            "{}",
            said["notes"]
        );
    }
    let said = run(&["group-registration"]);
    let registrations = |at: usize| said["took"][at]["amounts"]["registrations"].as_f64();
    assert_eq!((0..4).map(registrations).collect::<Vec<_>>(), [0.0, 1024.0, 1.0, 11.0].map(Some));
}
