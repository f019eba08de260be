//! Many names: directories that are listed in pages, and kept.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;
use weft_client::Client;
use weft_tests::{Cluster, asked, gauge, python, wait_until};
use weft_wire::Op;
use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;

const PATIENCE: Duration = Duration::from_secs(60);
/// As many as take a program with debugging code a few seconds to make.
const NAMES: usize = if cfg!(debug_assertions) { 20_000 } else { 100_000 };
const THREADS: usize = 4;

/// How often the metadata server was asked for a page of a directory.
fn pages_asked(client: &Client) -> u64 {
    asked(client, Op::ReadDir)
}

#[test]
fn a_directory_of_many_names_is_listed_in_pages_through_library_and_mount() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    client.mkdir("/many", 0o755).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = client.clone();
            scope.spawn(move || {
                for name in (thread..NAMES).step_by(THREADS) {
                    client.symlink(&*format!("/many/name-{name}"), b"target").unwrap();
                }
            });
        }
    });
    assert_eq!(client.stat("/many", true).unwrap().size, NAMES as u64);
    let all: HashSet<String> = (0..NAMES).map(|name| format!("name-{name}")).collect();
    let pages = (NAMES as u64).div_ceil(DIRECTORY_PAGE_ENTRIES_MAX.into());

    let before = pages_asked(&client);
    let by_library: Vec<_> = client.read_dir("/many").unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(by_library.len(), NAMES, "each once");
    let by_library: HashSet<_> =
        by_library.into_iter().map(|name| String::from_utf8(name).unwrap()).collect();
    assert!(by_library == all);
    let asked = pages_asked(&client) - before;
    assert!(asked <= pages + 1, "{asked} questions for {pages} pages");

    let mount = cluster.mount();
    let before = pages_asked(&client);
    let by_mount: Vec<_> = fs::read_dir(mount.join("many")).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(by_mount.len(), NAMES, "each once");
    let by_mount: HashSet<_> =
        by_mount.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(by_mount == all);
    // The kernel asks for its first page with attributes and for the others without, so one page is fetched twice; and one
    // that was fetched long ago, on a slow machine, is fetched again.
    let asked = pages_asked(&client) - before;
    assert!(asked <= 3 * pages + 2, "{asked} questions for {pages} pages");
}

/// Renames every entry that it meets, and makes another: exits with 1 if there are more than there were.
const RENAMING: &str = r#"
import os, sys
top, count = sys.argv[1], int(sys.argv[2])
for met, entry in enumerate(os.scandir(top)):
    if met >= count:
        sys.exit(f"met {met + 1} of {count}: {entry.name}")
    os.rename(entry.path, entry.path + "-moved")
    os.symlink("x", f"{top}/made-{met}")
sys.exit(met + 1 != count)
"#;

#[test]
fn a_listing_ends_though_entries_are_renamed_and_made_on_the_way() {
    const COUNT: usize = 3000;
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let made = |name: &str| {
        client.mkdir(name, 0o755).unwrap();
        for at in 0..COUNT {
            client.symlink(&*format!("{name}/{at}"), b"target").unwrap();
        }
    };
    made("/library");
    let mut met = 0;
    for entry in client.read_dir("/library").unwrap() {
        let name = String::from_utf8(entry.unwrap().name).unwrap();
        client.rename(&*format!("/library/{name}"), &*format!("/library/{name}-moved"), 0).unwrap();
        client.symlink(&*format!("/library/made-{name}"), b"x").unwrap();
        met += 1;
        assert!(met <= COUNT, "{name}");
    }
    assert_eq!(met, COUNT);
    let mut again = client.read_dir("/library").unwrap();
    assert_eq!(again.by_ref().count(), 2 * COUNT);
    client.symlink("/library/last", b"x").unwrap();
    again.seek(0);
    assert_eq!(again.count(), 2 * COUNT + 1, "from the beginning it is a listing of its own");

    let count = COUNT.to_string();
    made("/mounted");
    let mount = cluster.mount();
    python(RENAMING, &[mount.join("mounted").as_os_str(), count.as_ref()]);
    made("/preloaded");
    let program = ["--", "python3", "-c", RENAMING, "/weft/preloaded", &count];
    cluster.weft(&[&["run", "--url", cluster.url()], &program[..]].concat());
}

#[test]
fn a_listing_is_kept_until_the_directory_changes() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let (mount, other) = (cluster.mount(), cluster.mount());
    fs::create_dir(mount.join("dir")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(mount.join("dir").join(name), name).unwrap();
    }
    let before = pages_asked(&client);
    assert_eq!(fs::read_dir(other.join("dir")).unwrap().count(), 3);
    assert_eq!(
        pages_asked(&client) - before,
        1,
        "what says that it is the last page is not asked for another"
    );
    let list = || {
        let entries = fs::read_dir(mount.join("dir")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names.concat()
    };
    // Not at once where the time for which attributes are cached ends in between.
    wait_until("a listing that asks nobody", PATIENCE, || {
        assert_eq!(list(), "abc");
        let before = pages_asked(&client);
        assert_eq!(list(), "abc");
        pages_asked(&client) == before
    });
    fs::remove_file(mount.join("dir/b")).unwrap();
    assert_eq!(list(), "ac", "what the mount has removed is gone");
    fs::write(mount.join("dir/d"), "d").unwrap();
    assert_eq!(list(), "acd");
    fs::rename(mount.join("dir/d"), mount.join("dir/e")).unwrap();
    assert_eq!(list(), "ace");
    fs::write(other.join("dir/f"), "f").unwrap();
    wait_until("the other mount's name", PATIENCE, || list() == "acef");
    client.unlink("/dir/a").unwrap();
    wait_until("the library's removal", PATIENCE, || list() == "cef");
}

#[test]
fn a_change_of_attributes_that_changes_nothing_asks_nobody_while_the_clock_stands() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let mount = cluster.mount();
    let path = mount.join("file");
    fs::write(&path, "text").unwrap();
    let set_mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let asked_for = |change: &dyn Fn()| {
        let before = asked(&client, Op::SetAttr);
        change();
        asked(&client, Op::SetAttr) - before
    };
    let twice = |mode| {
        move || {
            set_mode(mode);
            set_mode(mode);
        }
    };
    // Not at once where something else ran between the two.
    wait_until("a change that asks nobody", PATIENCE, || asked_for(&twice(0o640)) == 1);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(asked_for(&twice(0o4755)), 2, "who owns a program with such bits ends them by any change");
    let changed = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    set_mode(0o600);
    let before = changed(&path);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(asked_for(&|| set_mode(0o600)), 1);
    assert!(changed(&path) > before, "the time of the change is set once the clock has gone on");
    // What is written in between is seen in size and time.
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    set_mode(0o600);
    file.write_all(b" and more").unwrap();
    set_mode(0o600);
    assert_eq!(fs::metadata(&path).unwrap().len(), 13);
}

#[test]
fn files_that_are_closed_together_are_one_message() {
    const FILES: usize = 64;
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let mount = cluster.mount();
    // A request that goes by an older map is refused and repeated: not while requests are counted.
    mount.sh("touch first; rm first");
    let path = |file: usize| mount.join(format!("file{file}"));
    let counts = || [Op::Create, Op::Report, Op::SetAttr, Op::Close].map(|op| asked(&client, op));
    let one_round = || {
        let before = counts();
        let files: Vec<_> = (0..FILES).map(|file| fs::File::create_new(path(file)).unwrap()).collect();
        for file in &files {
            (&*file).write_all(b"text").unwrap();
            file.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).unwrap();
        }
        drop(files);
        wait_until("all closes", PATIENCE, || gauge(&client, "open_files") == 0);
        let after = counts();
        for file in 0..FILES {
            let metadata = fs::metadata(path(file)).unwrap();
            assert_eq!((metadata.len(), metadata.mtime()), (4, 0));
            fs::remove_file(path(file)).unwrap();
        }
        let [created, reported, changed, closed] = [0, 1, 2, 3].map(|at| (after[at] - before[at]) as usize);
        assert_eq!((created, reported, changed), (FILES, 0, FILES), "the report is in the change of times");
        closed
    };
    // Not at once where the mount's threads were kept from running in between.
    wait_until("few messages for many closes", PATIENCE, || one_round() <= FILES / 4);
}

#[test]
fn a_mount_that_is_taken_away_leaves_no_file_open() {
    let cluster = Cluster::start(1);
    let client = cluster.client();
    let mount = cluster.mount();
    for file in 0..40 {
        fs::write(mount.join(format!("file{file}")), "text").unwrap();
    }
    drop(mount);
    wait_until("all closes", PATIENCE, || gauge(&client, "open_files") == 0);
    for file in 0..40 {
        let attr = client.stat(&*format!("/file{file}"), false).unwrap();
        assert_eq!((attr.size, attr.size_live), (4, false), "closed, and not given up with the session");
    }
}
