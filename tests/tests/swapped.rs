//! Copies into and out of trees whose owner swaps a directory for a symbolic link meanwhile: nothing behind the link is read,
//! made, changed or removed. Root copies; the user's tree is on this machine or in Weft.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_client::Client;
use weft_tests::{Cluster, expect_success, sh_in};
use weft_wire::messages::{FileKind, rename_flags};

/// Rounds of each command. Before links were refused, one of the first five hit.
const ROUNDS: usize = 12;
/// A tree of this shape is copied. `d` is swapped.
const MAKE_TREE: &str = "
    mkdir -p d/sub/deep; for i in $(seq 30); do echo public > d/f$i; echo public > d/sub/f$i; done
    echo public > d/sub/deep/f; ln -s f1 d/l; mkdir d/e
";
/// The same names, with secret contents.
const MAKE_OUTSIDE: &str = "
    mkdir -p sub/deep; for i in $(seq 30); do echo secret > f$i; echo secret > sub/f$i; done
    echo secret > sub/deep/f; echo secret > only; echo secret > sub/only; mkdir sub/empty
    find . -exec touch -d 2001-01-01 {} +; find . -type f -exec chmod 600 {} +; chmod 711 sub
";

/// All that a copy could change below a directory, and of itself.
fn state(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let kept = (meta.ino(), meta.mode(), meta.uid(), meta.gid(), meta.size(), times);
        let contents = if meta.is_file() { fs::read(&path).expect("it can be read") } else { Vec::new() };
        found.push(format!("{} {kept:?} {}", path.display(), contents.escape_ascii()));
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("one").path()));
        }
    }
    found.sort();
    found
}

/// What changed, in two lists of lines.
fn changes(before: &[String], after: &[String]) -> Vec<String> {
    let only = |one: &[String], other: &[String], sign: char| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).map(|line| format!("{sign}{line}")).collect()
    };
    [only(before, after, '-'), only(after, before, '+')].concat()
}

/// Exchanges `t/d` and a link to `outside`, as the owner of `home` could. Makes the link again if a copy has removed it.
struct Swapper<'a> {
    home: &'a Path,
    outside: &'a Path,
    old: AtomicU64,
}

impl Swapper<'_> {
    fn new<'a>(home: &'a Path, outside: &'a Path) -> Swapper<'a> {
        symlink(outside, home.join("link")).expect("it is new");
        Swapper { home, outside, old: AtomicU64::new(0) }
    }

    fn swap(&self) {
        let (dir, link) = (self.home.join("t/d"), self.home.join("link"));
        if !dir.is_symlink() && !link.is_symlink() {
            let old = self.home.join(format!("old{}", self.old.fetch_add(1, Ordering::Relaxed)));
            fs::rename(&link, old).expect("it is a directory");
            symlink(self.outside, &link).expect("it is free");
        }
        let [one, other] =
            [dir, link].map(|path| CString::new(path.as_os_str().as_bytes()).expect("no zero"));
        let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
        // SAFETY: both are C strings.
        let done = unsafe { libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), flags) };
        // A copy has just removed the link, and makes the directory.
        assert!(done == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT));
    }
}

/// Runs `copies` while `swap` is called again and again.
fn while_swapping(swap: impl Fn() + Send + Sync, copies: impl FnOnce()) {
    let (is_over, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                swap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(copies));
        is_over.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(swaps.into_inner() > 100, "hardly anything was swapped");
}

/// Whether it succeeds is a matter of luck.
fn run(cluster: &Cluster, arguments: &[&str]) {
    let output = cluster.command(arguments).output().expect("weft can be run");
    assert!(output.status.code().is_some(), "{arguments:?}: {}", output.status);
}

const COMMANDS: [&[&str]; 4] =
    [&["sync"], &["sync", "--delete", "--owner"], &["sync", "--checksum"], &["cp", "-rp"]];

#[test]
fn copies_to_this_machine_follow_no_link_that_is_swapped_in() {
    let cluster = Cluster::start(1);
    let (source, home) = (cluster.scratch("source"), cluster.scratch("home"));
    let outside = cluster.scratch("outside");
    sh_in(&source, MAKE_TREE);
    sh_in(&outside, MAKE_OUTSIDE);
    let (from, target) = (format!("{}source", cluster.url()), home.join("t"));
    cluster.weft(&["cp", "-rp", &source.display().to_string(), &from]);
    let to = target.display().to_string();
    cluster.weft(&["sync", &from, &to]);
    let swapper = Swapper::new(&home, &outside);
    let before = state(&outside);
    while_swapping(
        || swapper.swap(),
        || {
            for command in COMMANDS {
                for round in 0..ROUNDS {
                    let contents = format!("{round}");
                    for path in ["d/f1", "d/sub/f2", "d/sub/deep/f"] {
                        fs::write(source.join(path), &contents).expect("it is ours");
                    }
                    fs::write(source.join(format!("d/{}{round}", command.len())), "new").expect("it is ours");
                    let sources = source.display().to_string();
                    expect_success(
                        "sync",
                        &cluster.command(&["sync", &sources, &from]).output().expect("it runs"),
                    );
                    let last = if command[0] == "cp" { format!("{from}/.") } else { from.clone() };
                    run(&cluster, &[command, &[&last, &to]].concat());
                    assert_eq!(changes(&before, &state(&outside)), [""; 0], "{command:?}, round {round}");
                }
            }
        },
    );
}

#[test]
fn copies_from_this_machine_read_nothing_behind_a_link_that_is_swapped_in() {
    let cluster = Cluster::start(1);
    let home = cluster.scratch("home");
    let outside = cluster.scratch("outside");
    let source = cluster.scratch("home/t");
    sh_in(&source, MAKE_TREE);
    sh_in(&outside, MAKE_OUTSIDE);
    let swapper = Swapper::new(&home, &outside);
    let from = source.display().to_string();
    while_swapping(
        || swapper.swap(),
        || {
            for command in COMMANDS {
                for round in 0..ROUNDS {
                    let to = format!("{}to-{round}", cluster.url());
                    run(&cluster, &[command, &[&from, &to]].concat());
                }
            }
        },
    );
    let mount = cluster.mount();
    let secrets = mount.sh("grep -rl secret . || true; find . -name only -o -name empty");
    assert_eq!(secrets, "", "files of others were copied");
}

/// The same in Weft.
fn swap_in_weft(client: &Client, old: &AtomicU64) {
    let is_link = |path: &str| client.stat(path, false).is_ok_and(|attr| attr.kind == FileKind::Symlink);
    if !is_link("/home/t/d") && !is_link("/home/link") {
        let old = format!("/home/old{}", old.fetch_add(1, Ordering::Relaxed));
        let _ = client.rename("/home/link", &old, 0);
        client.symlink("/home/link", b"/outside").expect("it is free");
    }
    match client.rename("/home/t/d", "/home/link", rename_flags::EXCHANGE) {
        Err(error) if error.errno() != libc::ENOENT => panic!("{error}"),
        _ => {}
    }
}

#[test]
fn copies_in_weft_and_removals_follow_no_link_that_is_swapped_in() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(&source, MAKE_TREE);
    let mount = cluster.mount();
    mount.sh("mkdir home outside");
    sh_in(&mount.join("outside"), MAKE_OUTSIDE);
    let (from, to) = (source.display().to_string(), format!("{}home/t", cluster.url()));
    cluster.weft(&["sync", &from, &to]);
    let client = cluster.client();
    let old = AtomicU64::new(0);
    let before = state(&mount.join("outside"));
    while_swapping(
        || swap_in_weft(&client, &old),
        || {
            for command in COMMANDS {
                for round in 0..ROUNDS {
                    for path in ["d/f1", "d/sub/f2", "d/sub/deep/f"] {
                        fs::write(source.join(path), format!("{round}")).expect("it is ours");
                    }
                    fs::write(source.join(format!("d/{}{round}", command.len())), "new").expect("it is ours");
                    let last = if command[0] == "cp" { format!("{from}/.") } else { from.clone() };
                    run(&cluster, &[command, &[&last, &to]].concat());
                    assert_eq!(
                        changes(&before, &state(&mount.join("outside"))),
                        [""; 0],
                        "{command:?}, round {round}"
                    );
                    // And out again.
                    let back = cluster.scratch(&format!("back-{}-{round}", command.len()));
                    run(&cluster, &[command, &[&to, &back.display().to_string()]].concat());
                }
            }
            for round in 0..ROUNDS {
                run(&cluster, &["rm", "-r", "-f", &format!("{to}/d")]);
                assert_eq!(changes(&before, &state(&mount.join("outside"))), [""; 0], "rm, round {round}");
                run(&cluster, &["sync", &from, &to]);
            }
        },
    );
    let parent = source.parent().expect("it is in a directory");
    let secrets = sh_in(parent, "grep -l secret -r back-* || true; find back-* -name only -o -name empty");
    assert_eq!(secrets, "", "files of others were copied");
}

/// Links where a copy makes something: a directory or a file in a directory that was given.
#[test]
fn a_link_that_is_there_is_not_written_through_unless_it_was_given() {
    let cluster = Cluster::start(1);
    let (source, outside) = (cluster.scratch("source"), cluster.scratch("outside"));
    sh_in(&source, "mkdir d; echo new > d/f; echo new > d/g; head -c 20000 /dev/zero > d/large");
    sh_in(&outside, "echo old > f; echo old > large");
    let mount = cluster.mount();
    mount.sh("mkdir outside; echo old > outside/f; echo old > outside/large");
    cluster.weft(&["cp", "-r", &source.join("d").display().to_string(), cluster.url()]);
    let home = cluster.scratch("home");
    let weft_d = format!("{}d", cluster.url());
    let local_d = source.join("d").display().to_string();
    let links = |outside: &str| {
        format!(
            "mkdir to; for name in f large; do ln -s {outside}/$name to/$name; done; ln -s {outside}/f given"
        )
    };
    for (here, outside, from, base) in [
        (home.clone(), outside.clone(), weft_d, format!("{}/", home.display())),
        (mount.path().to_owned(), mount.join("outside"), local_d, cluster.url().to_owned()),
    ] {
        let behind = if base.starts_with('/') { outside.display().to_string() } else { "/outside".into() };
        let old = state(&outside);
        let unchanged = || changes(&old, &state(&outside)).is_empty();
        for arguments in [
            vec!["cp".to_owned(), format!("{from}/f"), format!("{base}to")],
            vec!["cp".into(), format!("{from}/f"), format!("{from}/large"), format!("{base}to/")],
            vec!["cp".into(), "-r".into(), format!("{from}/."), format!("{base}to")],
            vec!["cp".into(), "-rp".into(), from.clone(), format!("{base}to")],
        ] {
            sh_in(&here, &links(&behind));
            if arguments.contains(&"-rp".to_owned()) {
                sh_in(&here, &format!("ln -s {behind} to/d"));
            }
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let output = cluster.command(&words).output().expect("weft can be run");
            assert!(!output.status.success() && unchanged(), "{words:?}");
            sh_in(&here, "rm -r to given");
        }
        // A sync replaces links. One that is given is followed.
        sh_in(&here, &links(&behind));
        cluster.weft(&["sync", &from, &format!("{base}to")]);
        assert!(unchanged() && fs::symlink_metadata(here.join("to/f")).expect("it is there").is_file());
        cluster.weft(&["cp", &format!("{from}/f"), &format!("{base}given")]);
        assert_eq!(fs::read_to_string(outside.join("f")).expect("it is there"), "new\n");
    }
}

/// Trees that are deep and wide take few descriptors.
#[test]
fn copies_of_deep_and_wide_trees_open_few_directories() {
    let cluster = Cluster::start(1);
    let source = cluster.scratch("source");
    sh_in(
        &source,
        "for i in $(seq 100); do mkdir -p w$i/sub; echo $i > w$i/sub/f; echo $i > w$i/g$i; done; at=.; for i in $(seq 150); do at=$at/deep; done
         mkdir -p $at; echo end > $at/f",
    );
    let program = weft_tests::weft_bin().display();
    let home = cluster.storage().parent().expect("it is in a directory").display().to_string();
    let back = cluster.scratch("back");
    let there = format!("{}t", cluster.url());
    for line in [
        format!("sync {} {there}", source.display()),
        format!("sync --checksum {there} {}", back.display()),
        format!("cp -rp {there}/. {}", back.display()),
    ] {
        let script = format!("ulimit -n 64; {program} {line}");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script]).env("HOME", &home).env_remove("XDG_CONFIG_HOME");
        expect_success(&line, &command.output().expect("bash can be run"));
    }
    // Each source is in another directory.
    let script = format!("ulimit -n 64; {program} cp {}/w*/g* {there}", source.display());
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &script]).env("HOME", &home).env_remove("XDG_CONFIG_HOME");
    expect_success("cp", &command.output().expect("bash can be run"));
    let copied = cluster.weft(&["ls", &there]);
    assert_eq!(copied.lines().filter(|name| name.starts_with('g')).count(), 100);
    let all = "find . -printf '%p %y %m %T@ %l\\n' | sort; find . -type f | sort | xargs cat";
    assert_eq!(sh_in(&back, all), sh_in(&source, all));
}
