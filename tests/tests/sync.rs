//! `weft sync` and what `weft cp` has of it, compared with rsync, and killed on the way.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use weft_test_random::{Random, seed};
use weft_tests::{Cluster, asked, expect_success, sh_in, wait_until};
use weft_wire::Op;

fn weft(cluster: &Cluster, arguments: &[&str]) -> Output {
    cluster.command(arguments).output().expect("weft can be run")
}

#[track_caller]
fn sync(cluster: &Cluster, arguments: &[&str]) -> serde_json::Value {
    let output = weft(cluster, &[&["sync", "--json"][..], arguments].concat());
    let said = expect_success(&format!("weft sync {arguments:?}"), &output);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Copied, the same, removed.
fn counts(done: &serde_json::Value) -> (u64, u64, u64) {
    let number = |name: &str| done[name].as_u64().unwrap_or_else(|| panic!("{done}"));
    (number("copied"), number("same"), number("removed"))
}

/// All below a directory: kind and mode, size, time, contents or target.
fn listing(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).expect("it can be listed") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("it is there");
            let what = match () {
                () if meta.is_dir() => {
                    waiting.push(path.clone());
                    "directory".to_owned()
                }
                () if meta.is_symlink() => format!("{:?}", fs::read_link(&path).expect("a link")),
                () => format!("{:?}", digest(&fs::read(&path).expect("it can be read"))),
            };
            let mode = if meta.is_symlink() { 0 } else { meta.mode() };
            let name = path
                .strip_prefix(top)
                .expect("it is below")
                .as_os_str()
                .as_bytes()
                .escape_ascii()
                .to_string();
            found.push(format!(
                "{name} {mode:o} {} {}.{} {what}",
                if meta.is_dir() { 0 } else { meta.size() },
                meta.mtime(),
                meta.mtime_nsec()
            ));
        }
    }
    found.sort();
    found
}

/// The same without the times, which not every rsync keeps of links.
fn without_times(top: &Path) -> Vec<String> {
    let without = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        [&words[..3], &words[4..]].concat().join(" ")
    };
    listing(top).into_iter().map(without).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    fnv(bytes.iter().copied())
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The name of an incomplete copy with so many units of 256 MiB.
fn apart_name(source: &Path, units: u64) -> String {
    let meta = fs::metadata(source).expect("it is there");
    let numbers = [meta.size(), meta.mtime() as u64, meta.mtime_nsec() as u64];
    let version = fnv(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let name = source.file_name().expect("a name").to_string_lossy().into_owned();
    format!(".{name}.weft-{version:016x}-{units}")
}

/// Changes a tree at random.
fn change(random: &mut Random, top: &Path, steps: usize) {
    let name = |random: &mut Random| -> PathBuf {
        let depth = random.below(3);
        let parts = (0..=depth).map(|_| match random.below(12) {
            0 => std::ffi::OsStr::from_bytes(b"n\xffame").to_owned(),
            number => format!("e{number}").into(),
        });
        parts.collect()
    };
    for _ in 0..steps {
        let path = top.join(name(random));
        let exists = fs::symlink_metadata(&path);
        let parent = path.parent().expect("it is below the top");
        if parent.components().count() > top.components().count() && !parent.is_dir() {
            let _ = fs::remove_file(parent);
            if fs::create_dir_all(parent).is_err() {
                continue;
            }
        }
        match (random.below(8), exists) {
            (0 | 1, Ok(meta)) if meta.is_dir() => drop(fs::remove_dir_all(&path)),
            (0 | 1, Ok(_)) => drop(fs::remove_file(&path)),
            (2, Err(_)) => drop(fs::create_dir(&path)),
            (3, Err(_)) => drop(std::os::unix::fs::symlink(format!("../e{}", random.below(9)), &path)),
            (4, Ok(meta)) if !meta.is_symlink() => {
                let mode = [0o644, 0o755, 0o600, 0o444][random.below(4) as usize];
                let mode = if meta.is_dir() { mode | 0o700 } else { mode };
                drop(fs::set_permissions(&path, fs::Permissions::from_mode(mode)));
            }
            (_, Ok(meta)) if meta.is_dir() || meta.is_symlink() => {}
            _ => {
                let bytes = [0, 5, 4000, 20_000, 300_000][random.below(5) as usize];
                let _ = fs::remove_file(&path);
                drop(fs::write(&path, (0..bytes).map(|_| random.below(256) as u8).collect::<Vec<_>>()));
            }
        }
    }
}

#[test]
fn a_synced_tree_is_what_rsync_makes_of_it_there_and_back() {
    let cluster = Cluster::start(2);
    let (source, expected, back) =
        (cluster.scratch("source"), cluster.scratch("expected"), cluster.scratch("back"));
    let there = format!("{}tree", cluster.url());
    let mut random = Random(seed());
    for round in 0..6 {
        change(&mut random, &source, if round == 0 { 120 } else { 25 });
        let rsync = ["-rlptc", "--delete"];
        let command =
            Command::new("rsync").args(rsync).arg(format!("{}/", source.display())).arg(&expected).output();
        expect_success("rsync", &command.expect("rsync can be run"));
        sync(&cluster, &["--delete", &source.display().to_string(), &there]);
        sync(&cluster, &["--delete", &there, &back.display().to_string()]);
        assert_eq!(listing(&back), listing(&source), "round {round}");
        assert_eq!(without_times(&back), without_times(&expected), "round {round}");
        // Once more changes nothing.
        let (copied, same, removed) =
            counts(&sync(&cluster, &["--delete", &source.display().to_string(), &there]));
        assert_eq!((copied, removed), (0, 0), "round {round}");
        assert!(same > 0);
        assert_eq!(counts(&sync(&cluster, &["--delete", &there, &back.display().to_string()])), (0, same, 0));
    }
    // From Weft to Weft.
    let copy = format!("{}copy", cluster.url());
    sync(&cluster, &[&there, &copy]);
    let third = cluster.scratch("third");
    sync(&cluster, &[&copy, &third.display().to_string()]);
    assert_eq!(listing(&third), listing(&source));
}

/// A small file is there with what it keeps by three messages: made, written with its times, closed.
#[test]
fn a_new_small_file_takes_no_more_messages_than_without_its_times() {
    const FILES: u64 = 200;
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        &format!(
            "for i in $(seq {FILES}); do echo $i > f$i; chmod 640 f$i; touch -d @$i f$i; done; chmod 600 f7"
        ),
    );
    let client = cluster.client();
    let set = || asked(&client, Op::SetAttr);
    let before = set();
    let target = format!("{}target", cluster.url());
    assert_eq!(counts(&sync(&cluster, &[&source.display().to_string(), &target])), (FILES, 0, 0));
    // The directory has its own.
    assert!(set() - before <= 2, "{} times were set", set() - before);
    for (name, seconds, mode) in [("f1", 1, 0o640), ("f7", 7, 0o600), ("f200", 200, 0o640)] {
        let attr = client.stat(&*format!("/target/{name}"), true).expect("it is there");
        assert_eq!((attr.mtime.seconds, attr.mode & 0o7777), (seconds, mode), "{name}");
    }
    assert_eq!(counts(&sync(&cluster, &[&source.display().to_string(), &target])), (0, FILES, 0));
}

/// I/O servers are asked once for each directory, not for each file, and no file is read, not even one with holes.
#[test]
fn what_has_not_changed_takes_few_messages() {
    const SERVERS: u64 = 2;
    const DIRECTORIES: u64 = 3;
    let cluster = Cluster::start(SERVERS as u16);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        "for d in a b c; do mkdir $d; for i in $(seq 60); do head -c 150000 /dev/urandom > $d/f$i; done; done
         truncate -s 1M a/holes",
    );
    let (from, there) = (source.display().to_string(), format!("{}t", cluster.url()));
    let layout = ["--strip-bytes", "64K", "--servers", "2"];
    sync(&cluster, &[&layout[..], &[&from, &there]].concat());
    let client = cluster.client();
    let ops = [Op::StatObjects, Op::Size, Op::Open, Op::Read];
    let count = || ops.map(|op| asked(&client, op));
    let before = count();
    assert_eq!(counts(&sync(&cluster, &[&from, &there])), (0, 181, 0));
    let after = count();
    let taken: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(taken, [SERVERS * DIRECTORIES, 0, 0, 0], "of {ops:?}");
}

#[test]
fn a_copy_of_many_files_looks_up_their_directory_once() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(&source, "for i in $(seq 60); do echo $i > f$i; done");
    cluster.weft(&["mkdir", &format!("{}d", cluster.url())]);
    let client = cluster.client();
    let before = asked(&client, Op::Lookup);
    let names: Vec<String> = (1..=60).map(|at| source.join(format!("f{at}")).display().to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.weft(&[&["cp"], &names[..], &[&format!("{}d", cluster.url())]].concat());
    let lookups = asked(&client, Op::Lookup) - before;
    assert!(lookups <= 5, "{lookups} for 60 files");
}

#[test]
fn what_is_left_out_stays_and_a_dry_run_changes_nothing() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        "mkdir -p build src/deep; echo 1 > build/a.o; echo 2 > src/a.c; echo 3 > src/a.o; echo 4 > src/keep.o; echo 5 > src/deep/x",
    );
    let (from, there) = (source.display().to_string(), format!("{}t", cluster.url()));
    let output = weft(&cluster, &["sync", "--dry-run", &from, &there]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("copy") && said.contains("src/deep/x"), "{said}");
    assert!(!weft(&cluster, &["stat", &there]).status.success(), "nothing was made");
    let patterns = ["--include", "keep.o", "--exclude", "*.o", "--exclude", "/build"];
    let done = sync(&cluster, &[&patterns[..], &[&from, &there]].concat());
    assert_eq!(counts(&done), (3, 0, 0));
    let names = cluster.weft(&["tree", &there]);
    assert!(names.contains("keep.o") && !names.contains("a.o") && !names.contains("build"), "{names}");
    // What is left out is not removed either; what the source does not have is.
    cluster.weft(&["mkdir", &format!("{there}/build"), &format!("{there}/gone")]);
    let delete = ["--delete", "--exclude", "build", "-n"];
    assert_eq!(counts(&sync(&cluster, &[&delete[..], &[&from, &there]].concat())).2, 1);
    let done = sync(&cluster, &[&delete[..3], &["-v", &from, &there][..]].concat());
    assert_eq!(counts(&done), (1, 3, 1), "src/a.o is new");
    let names = cluster.weft(&["tree", &there]);
    assert!(names.contains("build") && !names.contains("gone"), "{names}");
}

#[test]
fn contents_are_compared_on_demand() {
    let cluster = Cluster::start(2);
    let source = cluster.scratch("source");
    sh_in(&source, "seq 1000000 > big; echo same > small; touch -d 2020-01-01 big small");
    let (from, there) = (source.display().to_string(), format!("{}t", cluster.url()));
    assert_eq!(counts(&sync(&cluster, &[&from, &there])), (2, 0, 0));
    // Other contents of the same size and time; another time of the same contents.
    sh_in(
        &source,
        "printf X | dd of=big bs=1 seek=500000 conv=notrunc status=none; touch -d 2020-01-01 big; touch -d 2021-01-01 small",
    );
    assert_eq!(counts(&sync(&cluster, &["--checksum", "--dry-run", &from, &there])), (1, 1, 0));
    assert_eq!(counts(&sync(&cluster, &["--checksum", &from, &there])), (1, 1, 0));
    assert_eq!(counts(&sync(&cluster, &["--checksum", &from, &there])), (0, 2, 0));
    let back = cluster.scratch("back");
    sync(&cluster, &[&there, &back.display().to_string()]);
    assert_eq!(listing(&back), listing(&source));
}

#[test]
fn a_killed_sync_goes_on_and_no_file_is_ever_wrong_under_its_name() {
    let cluster = Cluster::start(2);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        "for i in $(seq 400); do head -c $((i * 100)) /dev/urandom > f$i; done; head -c 300M /dev/zero | tr '\\0' x > big",
    );
    let (from, there) = (source.display().to_string(), format!("{}t", cluster.url()));
    let mount = cluster.mount();
    let mut random = Random(seed());
    for _ in 0..8 {
        let mut child = cluster.command(&["sync", "-q", &from, &there]).spawn().expect("weft can be run");
        std::thread::sleep(Duration::from_millis(50 + random.below(400)));
        let _ = child.kill();
        let _ = child.wait();
        let seen = mount.path().join("t");
        for entry in fs::read_dir(&seen).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let meta = fs::metadata(&path).expect("it is there");
            if name.starts_with('.') {
                continue;
            }
            let right = fs::metadata(source.join(&name)).expect("it is in the source");
            if (meta.size(), meta.mtime(), meta.mtime_nsec())
                == (right.size(), right.mtime(), right.mtime_nsec())
            {
                assert!(fs::read(&path).expect("it") == fs::read(source.join(&name)).expect("it"), "{name}");
            }
        }
    }
    sync(&cluster, &[&from, &there]);
    assert_eq!(listing(&mount.path().join("t")), listing(&source), "and nothing is left of the killed ones");
}

/// A large file of which a part was there under its temporary name.
#[test]
fn a_large_file_goes_on_behind_what_is_there() {
    let cluster = Cluster::start(2);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        "truncate -s 330M big; for at in 0 100 260 320; do echo data$at | dd of=big bs=1M seek=$at conv=notrunc status=none; done",
    );
    for (command, target) in [("sync", ""), ("cp", "/big")] {
        let mount = cluster.mount();
        let seen = mount.path().join(format!("by-{command}"));
        let from = if command == "sync" { source.clone() } else { source.join("big") };
        let there = format!("{}by-{command}{target}", cluster.url());
        fs::create_dir(&seen).expect("it is new");
        // What a killed copy leaves: one unit of 256 MiB, and something behind it.
        let name = apart_name(&source.join("big"), 1);
        let half = seen.join(name);
        sh_in(
            &source,
            &format!(
                "head -c 300M big > '{}'; printf wrong | dd of='{}' bs=1M seek=280 conv=notrunc status=none",
                half.display(),
                half.display()
            ),
        );
        // That it is gone on with shows in a byte of the first unit, which is not looked at.
        sh_in(
            &source,
            &format!("printf mark | dd of='{}' bs=1M seek=50 conv=notrunc status=none", half.display()),
        );
        expect_success(command, &weft(&cluster, &[command, "-q", &from.display().to_string(), &there]));
        let got = fs::read(seen.join("big")).expect("it is there");
        let mut right = fs::read(source.join("big")).expect("it is there");
        right[50 << 20..(50 << 20) + 4].copy_from_slice(b"mark");
        assert!(got == right, "{command}");
        assert_eq!(fs::read_dir(&seen).expect("it is there").count(), 1);
    }
}

#[test]
fn copies_can_leave_alone_what_is_there() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(&source, "echo new > old; echo new > newer; echo new > missing; touch -d 2020-01-01 newer");
    let there = format!("{}d", cluster.url());
    let mount = cluster.mount();
    mount.sh("mkdir d; echo before > d/old; echo before > d/newer; touch -d 2019-01-01 d/old");
    let from = |name: &str| source.join(name).display().to_string();
    let files = [from("old"), from("newer"), from("missing")];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    cluster.weft(&[&["cp", "-n"][..], &files[..2], &[&there]].concat());
    assert_eq!(mount.sh("cat d/old d/newer"), "before\nbefore\n");
    cluster.weft(&[&["cp", "-u"][..], &files, &[&there]].concat());
    assert_eq!(mount.sh("cat d/old d/newer d/missing"), "new\nbefore\nnew\n");
    cluster.weft(&[&["cp"][..], &files, &[&there]].concat());
    assert_eq!(mount.sh("cat d/newer"), "new\n");
    // A file that is there keeps its other names.
    mount.sh("ln d/old d/link");
    cluster.weft(&["cp", &from("missing"), &format!("{there}/old")]);
    assert_eq!(mount.sh("cat d/link; stat -c %h d/old"), "new\n2\n");
}

#[test]
fn streams_are_copied_and_a_broken_one_leaves_nothing() {
    let cluster = Cluster::start(2);
    let dir = cluster.scratch("dir");
    sh_in(&dir, "seq 3000000 > numbers");
    let there = format!("{}stream", cluster.url());
    let program = weft_tests::weft_bin().display();
    let home = cluster.storage().parent().expect("it is in a directory").display().to_string();
    let run = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(&dir).env("HOME", &home).env_remove("XDG_CONFIG_HOME");
        command.output().expect("bash can be run")
    };
    expect_success("cp -", &run(&format!("cat numbers | {program} cp - {there}")));
    expect_success("cp", &run(&format!("{program} cp {there} - | cmp - numbers")));
    expect_success(
        "cp -",
        &run(&format!(
            "head -c 10 numbers | {program} cp - {there} && {program} cp {there} - | cmp - <(head -c 10 numbers)"
        )),
    );
    assert!(!run(&format!("{program} cp -r - {there}")).status.success());
    assert!(!run(&format!("{program} cp - local")).status.success());
    // A reader that goes away, and a directory for standard input.
    assert!(!run(&format!("{program} cp - {there}2 < /")).status.success());
    let names = cluster.weft(&["ls", "-a", cluster.url()]);
    assert_eq!(names.trim(), "stream");
    wait_until("the writer ends with its reader", Duration::from_secs(20), || {
        run(&format!("{program} cp {there} - | head -c 1 > /dev/null; true")).status.success()
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_failures_are_told() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(&source, "mkdir d; echo x > d/f; mkfifo d/pipe; echo y > file");
    let there = format!("{}t", cluster.url());
    let fails = |arguments: &[&str], why: &str| {
        let output = weft(&cluster, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
    };
    let (d, file) = (source.join("d").display().to_string(), source.join("file").display().to_string());
    fails(&["sync", &d, &file], "both local");
    fails(&["sync", &format!("{d}/missing"), &there], "missing");
    let output = weft(&cluster, &["sync", &d, &there]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("left out"));
    fails(&["sync", &there, &format!("{there}/inside")], "within each other");
    cluster.weft(&["sync", &file, &there]);
    assert_eq!(cluster.weft(&["cat", &format!("{there}/file")]), "y\n");
    fails(&["sync", &d, &there, "--exclude", "a["], "not a pattern");
    // A file where a directory is to be, and the other way round.
    cluster.weft(&["sync", &file, &format!("{}one", cluster.url())]);
    sh_in(&source, "rm -r d/f && mkdir d/f && echo deep > d/f/g");
    cluster.weft(&["sync", &d, &there]);
    sh_in(&source, "rm -r d/f && echo flat > d/f");
    fails(&["sync", &d, &there], "--delete");
    cluster.weft(&["sync", "--delete", &d, &there]);
    assert_eq!(cluster.weft(&["cat", &format!("{there}/f")]), "flat\n");
    let owned = weft(&cluster, &["sync", "--owner", "--jobs", "2", "--strip-bytes", "64K", &d, &there]);
    expect_success("weft sync --owner", &owned);
}
