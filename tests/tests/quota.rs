//! Quotas as operators and users meet them: `weft quota`, mounts, `df`, checks and backups.

use std::path::Path;
use std::process::{Command, Output};
use weft_test_needs::Need;
use weft_tests::{Cluster, Served, ServedOptions, expect_success};

fn ok(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.weft(&[arguments, &[cluster.url()]].concat())
}

fn rows(cluster: &Cluster, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(cluster, &[arguments, &["--json"]].concat())).expect("it is JSON")
}

/// The row of a user, as JSON.
fn user(cluster: &Cluster, uid: u64) -> serde_json::Value {
    let all = rows(cluster, &["quota", "ls", "--users"]);
    let all = all["quotas"].as_array().expect("a list").clone();
    all.into_iter().find(|row| row["id"] == uid).unwrap_or_else(|| panic!("no row of {uid}"))
}

fn as_user(uid: u32, dir: &Path, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups"]);
    command
        .args(["bash", "-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .output()
        .expect("setpriv can be run")
}

#[track_caller]
fn exceeds(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Disk quota exceeded"), "{said}");
}

/// A mount that other users may use.
fn open_to_all(cluster: &Cluster) -> weft_tests::Mount {
    use std::os::unix::fs::PermissionsExt;
    let mount = cluster.mount();
    for path in mount.path().ancestors().take(2) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    mount.sh("chmod 1777 .");
    mount
}

#[test]
fn a_user_on_a_mount_is_stopped_at_the_limit_and_told_why() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let mount = open_to_all(&cluster);
    assert!(ok(&cluster, &["quota", "ls"]).contains("no limits were ever set"));
    ok(&cluster, &["quota", "set", "--user", "1000", "--bytes", "10M", "--files", "5"]);
    let run = |script: &str| as_user(1000, mount.path(), script);
    expect_success("dd", &run("dd if=/dev/zero of=big bs=1M count=9 status=none"));
    exceeds(&run("dd if=/dev/zero of=more bs=1M count=2 status=none"));
    exceeds(&run("cp big other"));
    exceeds(&run("truncate -s 11M big"));
    exceeds(&run("fallocate -l 11M big"));
    expect_success("rm", &run("rm -f more other; for i in 1 2 3 4; do echo $i > small$i; done"));
    exceeds(&run("echo 5 > small5"));
    exceeds(&run("mkdir directory"));
    exceeds(&run("ln -s target link"));
    // Root and others are not concerned.
    mount.sh("dd if=/dev/zero of=root bs=1M count=12 status=none");
    expect_success("dd", &as_user(1001, mount.path(), "dd if=/dev/zero of=bob bs=1M count=12 status=none"));
    let row = user(&cluster, 1000);
    assert_eq!((row["used_bytes"].as_u64(), row["used_files"].as_u64()), (Some((9 << 20) + 8), Some(5)));
    // What is overwritten is no more than before, and what is removed can be used again.
    expect_success("dd", &run("dd if=/dev/zero of=big bs=1M count=9 conv=notrunc status=none"));
    expect_success("rm", &run("rm big && dd if=/dev/zero of=again bs=1M count=9 status=none"));
    let shown = ok(&cluster, &["quota", "get", "--user", "1000"]);
    assert!(
        shown.contains("9.0 MiB") && shown.contains("10 MiB") && shown.contains("files: full"),
        "{shown}"
    );
    // Without limits.
    ok(&cluster, &["quota", "rm", "--user", "1000"]);
    expect_success("dd", &run("dd if=/dev/zero of=free bs=1M count=20 status=none; echo 6 > small6"));
    assert!(user(&cluster, 1000)["limits"].is_null());
}

#[test]
fn a_tree_is_as_large_as_its_limit() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh(
        "mkdir -p p1/sub; for i in $(seq 300); do echo $i > p1/sub/$i; done; head -c 1M /dev/zero > p1/old",
    );
    let tree = format!("{}p1", cluster.url());
    cluster.weft(&["quota", "set", "--tree", &tree, "--bytes", "3M", "--df"]);
    let size = |path: &str| {
        mount
            .sh(&format!("df --output=size,iused -k {path} | tail -n 1"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .trim()
            .to_owned()
    };
    assert_eq!(size("p1/sub"), "3072 303");
    assert_ne!(size("."), "3072 303");
    // A mount of the tree, and of a directory in it: the kernel calls either root node 1, as it does the root of the cluster.
    for root in [tree.clone(), format!("{tree}/sub")] {
        let own = cluster.mount_with(&root, &[]);
        let df = own.sh("df --output=size,iused -k . | tail -n 1");
        assert_eq!(df.split_whitespace().collect::<Vec<_>>(), ["3072", "303"], "{root}");
    }
    // The same for programs without a mount, in C, and for clients of NFS.
    let preloaded = |path: &str| {
        let script = format!("stat -f -c '%b %S' /weft/{path}; cd /weft && stat -f -c '%b %S' {path}");
        cluster.weft(&["run", "--url", cluster.url(), "--", "sh", "-c", &script])
    };
    assert_eq!(preloaded("p1/sub"), "768 4096\n768 4096\n");
    assert_ne!(preloaded("."), "768 4096\n768 4096\n");
    let mut df = cluster.command(&["df", "--json", &tree]);
    let df = expect_success("weft df", &df.output().expect("it runs"));
    let df: serde_json::Value = serde_json::from_str(&df).expect("it is JSON");
    assert_eq!((df[0]["space_bytes"].as_u64(), df[0]["files"].as_u64()), (Some(3 << 20), Some(303)));
    // Root is not held to it; a move is a copy by mv.
    mount.sh("mv p1/sub moved && test -e moved/300 && ! test -e p1/sub");
    let shown = cluster.weft(&["quota", "get", "--tree", &tree]);
    assert!(shown.contains("tree /p1") && shown.contains("3.0 MiB"), "{shown}");
    cluster.weft(&["quota", "set", "--tree", &tree, "--files", "9", "--grace", "1d"]);
    let row = &rows(&cluster, &["quota", "ls", "--trees"])["quotas"][0];
    assert_eq!((row["used_files"].as_u64(), row["path"].as_str()), (Some(2), Some("/p1")));
    let limits = &row["limits"];
    assert_eq!(
        (&limits["hard_bytes"], &limits["hard_files"], &limits["in_df"]),
        (&(3 << 20).into(), &9.into(), &true.into())
    );
    let error =
        cluster.command(&["quota", "set", "--tree", &format!("{tree}/..")]).output().expect("it runs");
    assert!(!error.status.success());
    cluster.weft(&["quota", "rm", "--tree", &tree]);
    assert_eq!(rows(&cluster, &["quota", "ls", "--trees"])["quotas"], serde_json::json!([]));
    mount.sh("mv p1 p2");
}

#[test]
fn usage_survives_what_servers_go_through_and_a_check_finds_nothing() {
    let mut cluster = Served::start_with(ServedOptions { io_servers: 2, ..ServedOptions::default() });
    let url = cluster.url();
    let weft = |cluster: &Served, arguments: &[&str]| {
        expect_success(&arguments.join(" "), &cluster.command(arguments).output().expect("it runs"))
    };
    let client = cluster.client(weft_client::Transport::Auto);
    let create = weft_client::OpenOptions::new().write(true).create(true);
    for number in 0..200u64 {
        let file = client.open(&*format!("/{number}"), &create).expect("it can be made");
        file.write_at(&vec![1; number as usize * 300], 0).expect("it can be written");
        file.close().expect("it can be closed");
    }
    weft(&cluster, &["quota", "set", "--user", "0", "--bytes", "1G", &url]);
    weft(&cluster, &["quota", "set", "--each-group", "--soft-files", "100", "--grace", "2h", &url]);
    let shown = |cluster: &Served| weft(cluster, &["quota", "ls", "--json", &url]);
    let bytes = format!("\"used_bytes\": {}", (0..200).map(|number| number * 300).sum::<u64>());
    weft_tests::wait_until("the group is over its soft limit", std::time::Duration::from_secs(20), || {
        !shown(&cluster).contains("\"files_over_since\": null,\n      \"id\": 0,\n      \"kind\": \"group\"")
    });
    let before = shown(&cluster);
    assert!(before.contains(&bytes), "{before}");
    cluster.kill("meta0");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    client.stat("/7", true).expect("it is there");
    assert_eq!(shown(&cluster), before);
    weft(&cluster, &["quota", "count", &url]);
    assert_eq!(shown(&cluster), before);
    weft(&cluster, &["quota", "count", "--no-wait", &url]);
    weft(&cluster, &["fsck", &url]);
    weft(&cluster, &["quota", "set", "--each-user", "--files", "7", "--no-wait", &url]);
    assert!(weft(&cluster, &["quota", "get", "--each-user", &url]).contains("each user"));
    weft(&cluster, &["quota", "rm", "--each-user", &url]);
    assert!(!shown(&cluster).contains("\"hard_files\": 7"));
    assert!(weft(&cluster, &["quota", "get", "--each-group", &url]).contains("each group"));
    weft(&cluster, &["quota", "rm", "--each-group", &url]);
    weft(&cluster, &["quota", "rm", "--group", "0", &url]);
}

#[test]
fn what_makes_no_sense_or_is_not_allowed_is_refused() {
    let cluster = Cluster::start(1);
    let fails = |arguments: &[&str], why: &str| {
        let output = cluster.command(arguments).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
    };
    let url = cluster.url();
    fails(&["quota", "set", "--bytes", "1G", url], "--user");
    fails(&["quota", "set", "--user", "1000", url], "nothing to set");
    fails(&["quota", "set", "--user", "1000", "--bytes", "1", "--df", url], "--df is for trees");
    fails(&["quota", "set", "--user", "nobody-of-this-name", "--bytes", "1", url], "no user");
    fails(&["quota", "set", "--group", "nobody-of-this-name", "--bytes", "1", url], "no group");
    fails(
        &["quota", "set", "--user", "1000", "--bytes", "1K", "--soft-bytes", "2K", url],
        "above the hard one",
    );
    fails(&["quota", "set", "--tree", url, "--bytes", "1K"], "root directory");
    fails(&["quota", "set", "--tree", &format!("{url}missing"), "--bytes", "1K"], "no such file");
    let mut without = cluster.command(&["quota", "ls"]);
    let output = without.env_remove("WEFT_URL").output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("WEFT_URL"));
    // The key of a user: it sees itself, and sets nothing.
    let key = cluster.scratch("keys").join("alice.key");
    let config = cluster.storage().join("weft.toml");
    cluster.weft(&[
        "key",
        "issue",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--out",
        &key.display().to_string(),
        "--config",
        &config.display().to_string(),
    ]);
    ok(&cluster, &["quota", "set", "--user", "1000", "--bytes", "1M"]);
    let key = key.display().to_string();
    let tcp = ["--transport", "tcp", "--key", &key, url];
    fails(
        &[&["quota", "set", "--user", "1000", "--bytes", "1T"][..], &tcp].concat(),
        "only administrators may set quotas",
    );
    fails(&[&["quota", "count"][..], &tcp].concat(), "only administrators");
    let seen = cluster.weft(&[&["quota", "ls", "--json"][..], &tcp].concat());
    let seen: serde_json::Value = serde_json::from_str(&seen).expect("it is JSON");
    let ids: Vec<_> =
        seen["quotas"].as_array().expect("a list").iter().map(|row| row["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1000)]);
}
