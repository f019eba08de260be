//! `weft doctor` names faults that are planted: on this host, in a cluster's files, at its ports, and in a file system.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weft_test_needs::Need;
use weft_tests::{Cluster, Served, free_ports, weft_bin};

/// Level and name of what is not ok, and the text of all of it.
fn findings(said: &[u8]) -> (Vec<(String, String)>, String) {
    let text = String::from_utf8_lossy(said).into_owned();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let groups = value["groups"].as_array().expect("groups").iter();
    let all = groups.flat_map(|group| group["findings"].as_array().expect("findings").clone());
    let word = |finding: &Value, name: &str| finding[name].as_str().expect("a word").to_owned();
    let bad = all.filter(|finding| finding["level"] != "ok");
    (bad.map(|finding| (word(&finding, "level"), word(&finding, "name"))).collect(), text)
}

/// Runs it, and requires that it names the fault.
#[track_caller]
fn names(mut command: Command, level: &str, name: &str) -> String {
    let output = command.output().expect("it can be run");
    let (found, text) = findings(&output.stdout);
    assert!(found.contains(&(level.into(), name.into())), "{level} {name}: {found:?}\n{text}");
    let has_problem = found.iter().any(|(level, _)| level == "problem");
    assert_eq!(output.status.code(), Some(i32::from(has_problem)), "{text}");
    text
}

fn doctor(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut command = cluster.command(&[&["doctor", "--json"], arguments].concat());
    command.env_remove("WEFT_URL");
    command
}

/// Runs it, and requires that it names no problem; mounts that other tests have killed are none of this one.
#[track_caller]
fn calm(mut command: Command) -> (Vec<(String, String)>, String) {
    let output = command.output().expect("it can be run");
    let (found, text) = findings(&output.stdout);
    assert!(found.iter().all(|(level, name)| level != "problem" || name == "dead-mount"), "{text}");
    (found, text)
}

fn edited(cluster: &Cluster, name: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(cluster.storage().join("weft.toml")).expect("it is there");
    let changed = text.replacen(from, to, 1);
    assert_ne!(changed, text, "{from}");
    let path = cluster.storage().join(name);
    fs::write(&path, changed).expect("there is room");
    path.display().to_string()
}

#[test]
fn a_healthy_cluster_has_no_problem() {
    let cluster = Cluster::start(2);
    let storage = cluster.storage().display().to_string();
    let mount = cluster.mount();
    let dir = mount.path().display().to_string();
    for arguments in [&["--dir", &storage, cluster.url()][..], &[cluster.url()], &[&dir]] {
        calm(doctor(&cluster, arguments));
    }
    let (found, _) = calm(doctor(&cluster, &["--dir", &storage, cluster.url()]));
    for name in ["disk-shared", "durability", "restarts"] {
        assert!(found.contains(&("note".into(), name.into())), "{name}: {found:?}");
    }
    assert!(!cluster.weft(&["ls", "-a", cluster.url()]).contains("doctor"), "nothing is left");
    // In words, and as a report without secrets.
    let report = cluster.scratch("report").join("r.txt").display().to_string();
    let words = |arguments: &[&str]| {
        let output = cluster.command(&[&["doctor"], arguments].concat()).output().expect("it can be run");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = words(&["--dir", &storage, "--report", &report, cluster.url()]);
    assert!(said.contains(" problems, ") && said.contains("  ok") && said.contains(&report), "{said}");
    let quiet = words(&["-q", cluster.url()]);
    assert!(!quiet.lines().any(|line| line.starts_with("  ok")), "{quiet}");
    let report = fs::read_to_string(&report).expect("it is there");
    assert!(
        report.contains("== limits") && report.contains("[[server]]") && report.contains("io0.log"),
        "{report}"
    );
    for key in ["cluster.key", "client.key"] {
        let text = fs::read_to_string(cluster.storage().join(key)).expect("it is there");
        let words =
            text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| word.len() >= 32);
        assert!(words.clone().count() > 0, "{key}");
        words.for_each(|word| assert!(!report.contains(word), "{key}"));
    }
    let key = cluster.key_file().display().to_string();
    assert!(words(&["--key", &key, "--transport", "tcp", "--quiet", cluster.url()]).contains("durability"));
}

#[test]
fn faults_of_a_cluster_s_files_are_named() {
    let cluster = Cluster::start(2);
    let storage = cluster.storage();
    let config = storage.join("weft.toml").display().to_string();
    let look = |config: &str| doctor(&cluster, &["--config", config]);
    names(look("/nowhere/weft.toml"), "problem", "cluster-file");
    names(look(&edited(&cluster, "wrong.toml", "strip_bytes", "strip_byte")), "problem", "cluster-file");
    names(doctor(&cluster, &["--config", &config, "--name", "io7"]), "problem", "cluster-file");
    let address = fs::read_to_string(&config).expect("it is there");
    let address = address.lines().find_map(|line| line.strip_prefix("addresses = [\"")).expect("one");
    let address = address.trim_end_matches("\"]").to_owned();
    let unknown = edited(&cluster, "unknown.toml", &address, "no-such-host.invalid:7400");
    names(doctor(&cluster, &["--config", &unknown, "--name", "meta0"]), "problem", "names");
    let key = storage.join("cluster.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    names(look(&config), "problem", "cluster-key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::rename(&key, storage.join("away")).expect("it is ours");
    names(look(&config), "problem", "cluster-key");
    fs::rename(storage.join("away"), &key).expect("it is ours");
    // A server that does not run, one whose storage is gone, and something else at its port.
    let dir = storage.display().to_string();
    names(look(&config), "note", "disk-shared");
    calm(look(&config));
    cluster.weft(&["down", "--dir", &dir, "--only", "io1"]);
    names(look(&config), "problem", "port");
    let one = ["--config", &config, "--name", "io1"];
    fs::rename(storage.join("io1"), storage.join("unplugged")).expect("it is ours");
    names(doctor(&cluster, &one), "problem", "storage");
    fs::create_dir(storage.join("io1")).expect("it is gone");
    names(doctor(&cluster, &one), "problem", "storage");
    fs::remove_dir(storage.join("io1")).expect("it is empty");
    fs::rename(storage.join("unplugged"), storage.join("io1")).expect("it is ours");
    let (_, port) = address.rsplit_once(':').expect("a port");
    let port = port.parse::<u16>().expect("a number") + 2;
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("io1 is down");
    let greeting = std::thread::spawn(move || {
        for peer in listener.incoming().take(2) {
            let _ = peer.expect("a peer").write_all(b"220 welcome\r\n");
        }
    });
    let text = names(doctor(&cluster, &one), "problem", "port");
    assert!(text.contains("is not Weft"), "{text}");
    let elsewhere = format!("weft://127.0.0.1:{port}/");
    let key = cluster.key_file().display().to_string();
    names(doctor(&cluster, &[&elsewhere, "--transport", "tcp", "--key", &key]), "problem", "connection");
    let _ = std::net::TcpStream::connect(("127.0.0.1", port));
    let _ = greeting.join();
    cluster.weft(&["up", "--dir", &dir, "--only", "io1", "--detach"]);
}

#[test]
fn faults_between_here_and_a_file_system_are_named() {
    let cluster = Cluster::start(1);
    let free = free_ports(1);
    let unused = format!("weft://127.0.0.1:{free}/");
    let key = cluster.key_file().display().to_string();
    names(doctor(&cluster, &[&unused, "--transport", "tcp", "--key", &key]), "problem", "connection");
    let mut without = doctor(&cluster, &[cluster.url(), "--transport", "tcp"]);
    without.env("HOME", cluster.scratch("empty"));
    names(without, "problem", "key");
    let other = Cluster::start(1);
    let key = other.key_file().display().to_string();
    names(doctor(&cluster, &[cluster.url(), "--transport", "tcp", "--key", &key]), "problem", "key");
    let config = cluster.storage().join("weft.toml").display().to_string();
    let key = cluster.scratch("keys").join("gone.key").display().to_string();
    cluster.weft(&["key", "issue", "--host", "h", "--out", &key, "--config", &config]);
    cluster.weft(&["key", "revoke", &key, "--config", &config]);
    names(doctor(&cluster, &[cluster.url(), "--transport", "tcp", "--key", &key]), "problem", "key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    names(doctor(&cluster, &[cluster.url(), "--transport", "tcp", "--key", &key]), "problem", "key");
    let nothing = cluster.scratch("nothing").display().to_string();
    let output = doctor(&cluster, &[&nothing]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no mount of Weft"));
}

#[test]
fn a_server_that_is_gone_is_named() {
    let mut cluster = Served::start(2);
    cluster.kill("io1");
    let url = cluster.url();
    let command = cluster.command(&["doctor", "--json", &url]);
    let text = names(command, "problem", "servers");
    assert!(text.contains("io1"), "{text}");
}

/// Runs it with files of /proc and /sys replaced, in a namespace of its own.
fn with_files(cluster: &Cluster, files: &[(&str, &str)], more: &str) -> Option<Command> {
    let scratch = cluster.scratch("planted");
    let mut script = String::from("set -e\n");
    for (number, (path, text)) in files.iter().enumerate() {
        if !Path::new(path).exists() {
            eprintln!("{path} is not there on this kernel");
            return None;
        }
        let file: PathBuf = scratch.join(number.to_string());
        fs::write(&file, text).expect("there is room");
        script.push_str(&format!("mount --bind {} {path}\n", file.display()));
    }
    script.push_str(&format!("{more}\nexec {} doctor --json\n", weft_bin().display()));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", &script]).env_remove("WEFT_URL");
    Some(command)
}

#[test]
fn faults_of_a_host_are_named() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(1);
    for (path, text, level, name) in [
        ("/proc/sys/kernel/osrelease", "4.19.0-27-amd64\n", "warning", "kernel"),
        ("/proc/sys/kernel/io_uring_disabled", "2\n", "note", "io-uring"),
        ("/proc/sys/kernel/yama/ptrace_scope", "3\n", "note", "ptrace"),
        ("/sys/module/fuse/parameters/enable_uring", "N\n", "note", "fuse-ring"),
    ] {
        if let Some(command) = with_files(&cluster, &[(path, text)], "") {
            names(command, level, name);
        }
    }
    let with = |more: &str| with_files(&cluster, &[], more).expect("no file is replaced");
    names(with("ulimit -n 256"), "warning", "open-files");
    names(with("mount -t tmpfs -o size=1M tmpfs /dev/shm"), "warning", "shared-memory");
    names(with("mount -t tmpfs -o size=1M tmpfs /dev && mknod /dev/null c 1 3"), "warning", "fuse-device");
    // Infiniband devices, and no libraries: the directories of libraries are left, but for these two.
    let devices = "mount -t tmpfs tmpfs /sys/class && mkdir -p /sys/class/infiniband/mlx5_0";
    let output = with(devices).output().expect("it runs");
    let (found, text) = findings(&output.stdout);
    let has_libraries = Command::new("sh")
        .args(["-c", "ldconfig -p | grep -q libibverbs.so.1"])
        .status()
        .expect("sh")
        .success();
    assert_eq!(found.contains(&("warning".into(), "rdma-libraries".into())), !has_libraries, "{text}");
    names(with(&format!("{devices}; ulimit -l 64")), "warning", "locked-memory");
    // As another user, who cannot mount by himself, and does not own the storage.
    let storage = cluster.storage().display().to_string();
    let mut other = Command::new("/usr/bin/setpriv");
    other.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(weft_bin());
    other.args(["doctor", "--json", "--dir", &storage]).env("PATH", "/nonexistent").env_remove("WEFT_URL");
    fs::set_permissions(cluster.storage().parent().expect("it is in one"), fs::Permissions::from_mode(0o755))
        .expect("it is ours");
    if Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "test", "-x"])
        .arg(weft_bin())
        .status()
        .expect("setpriv")
        .success()
    {
        names(other, "warning", "fusermount");
    }
    // A disk that is nearly full, in place of a server's.
    let full = format!(
        "mount -t tmpfs -o size=8M tmpfs {storage}/io0 && head -c 7700K /dev/zero > {storage}/io0/x && exec {} doctor --json --config {storage}/weft.toml --name io0",
        weft_bin().display()
    );
    names(with(&full), "warning", "disk-space");
    names(with(&full), "note", "storage-volatile");
}

#[test]
fn a_dead_mount_is_named() {
    let cluster = Cluster::start(1);
    let dir = cluster.dead_mount();
    let shown = dir.display().to_string();
    let text = names(doctor(&cluster, &[]), "problem", "dead-mount");
    assert!(text.contains(&shown), "{text}");
    cluster.weft(&["umount", &shown]);
}
