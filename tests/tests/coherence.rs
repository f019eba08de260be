//! What one mount caches, and that it never shows: two mounts of one cluster that look at each other.
//!
//! Every check has the other mount look first, so that it has something cached, and look again at once after the change.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use weft_tests::{Cluster, Mount, Served, asked, expect_success, freeze, gauge, signal, wait_until};
use weft_wire::Op;

fn two_mounts(cluster: &Cluster, arguments: &[&str]) -> [Mount; 2] {
    let mount = || cluster.mount_with(cluster.url(), arguments);
    let mounts = [mount(), mount()];
    wait_for_watches(cluster, 2);
    mounts
}

/// Only a mount that watches caches anything.
fn wait_for_watches(cluster: &Cluster, count: u64) {
    let client = cluster.client();
    wait_until("the mounts watch", Duration::from_secs(60), || gauge(&client, "watching_clients") >= count);
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    let mut value = vec![0u8; 100];
    // SAFETY: both strings end with a zero, and the buffer is as long as said.
    let bytes =
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    usize::try_from(bytes).ok().map(|bytes| value[..bytes].to_vec())
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    // SAFETY: both strings end with a zero, and the value is as long as said.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Everything that can change of a file and its names, by `here`, seen by `there`.
fn every_change_is_seen(here: &Path, there: &Path) {
    // Names that are missing, made, moved, replaced and removed.
    fs::create_dir(here.join("dir")).unwrap();
    let (mine, yours) = (|name: &str| here.join("dir").join(name), |name: &str| there.join("dir").join(name));
    for name in ["file", "sub", "link", "hard", "moved", "fifo"] {
        assert!(!yours(name).exists(), "{name}");
    }
    assert_eq!(names(&there.join("dir")), [] as [&str; 0]);
    fs::write(mine("file"), "one").unwrap();
    assert_eq!(fs::read_to_string(yours("file")).unwrap(), "one");
    fs::create_dir(mine("sub")).unwrap();
    assert!(yours("sub").is_dir());
    symlink("file", mine("link")).unwrap();
    assert_eq!(fs::read_link(yours("link")).unwrap(), Path::new("file"));
    assert_eq!(fs::metadata(yours("file")).unwrap().nlink(), 1);
    fs::hard_link(mine("file"), mine("hard")).unwrap();
    assert_eq!(fs::metadata(yours("file")).unwrap().nlink(), 2);
    assert_eq!(fs::read_to_string(yours("hard")).unwrap(), "one");
    assert_eq!(names(&there.join("dir")), ["file", "hard", "link", "sub"]);
    fs::rename(mine("hard"), mine("moved")).unwrap();
    assert!(!yours("hard").exists() && yours("moved").exists());
    fs::write(mine("other"), "other").unwrap();
    assert_eq!(fs::read_to_string(yours("other")).unwrap(), "other");
    fs::rename(mine("other"), mine("moved")).unwrap();
    assert_eq!(fs::read_to_string(yours("moved")).unwrap(), "other");
    assert_eq!(fs::metadata(yours("file")).unwrap().nlink(), 1);
    fs::remove_file(mine("link")).unwrap();
    symlink("elsewhere", mine("link")).unwrap();
    assert_eq!(fs::read_link(yours("link")).unwrap(), Path::new("elsewhere"));
    fs::remove_file(mine("moved")).unwrap();
    assert!(!yours("moved").exists());
    fs::remove_dir(mine("sub")).unwrap();
    assert!(!yours("sub").exists());
    assert_eq!(names(&there.join("dir")), ["file", "link"]);

    // Data, size, times.
    let open = File::open(yours("file")).unwrap();
    let mut seen = [0; 16];
    assert_eq!(open.read_at(&mut seen, 0).unwrap(), 3);
    for round in 0..20usize {
        let contents = format!("round {round:03} ").repeat(1 + 700 * (round % 3));
        let before = fs::metadata(yours("file")).unwrap();
        fs::write(mine("file"), &contents).unwrap();
        let after = fs::metadata(yours("file")).unwrap();
        assert_eq!(after.len(), contents.len() as u64, "{round}");
        assert!(after.modified().unwrap() > before.modified().unwrap(), "{round}");
        // Through a descriptor that has been open all the time, and a new one.
        assert_eq!(open.read_at(&mut seen, 0).unwrap(), contents.len().min(16), "{round}");
        assert_eq!(seen[..10], contents.as_bytes()[..10], "{round}");
        assert_eq!(fs::read_to_string(yours("file")).unwrap(), contents, "{round}");
    }
    // The same size, and the time of before: only the bytes differ.
    let time = fs::metadata(yours("file")).unwrap().modified().unwrap();
    let other = fs::read_to_string(yours("file")).unwrap().to_uppercase();
    fs::write(mine("file"), &other).unwrap();
    File::options().write(true).open(mine("file")).unwrap().set_modified(time).unwrap();
    assert_eq!(fs::read_to_string(yours("file")).unwrap(), other);
    assert_eq!(fs::metadata(yours("file")).unwrap().modified().unwrap(), time);
    File::options().write(true).open(mine("file")).unwrap().set_len(5).unwrap();
    assert_eq!(fs::read_to_string(yours("file")).unwrap(), other[..5]);

    // Attributes.
    let past = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    File::options().write(true).open(mine("file")).unwrap().set_modified(past).unwrap();
    assert_eq!(fs::metadata(yours("file")).unwrap().modified().unwrap(), past);
    for mode in [0o600, 0o640, 0o755] {
        fs::set_permissions(mine("file"), Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(yours("file")).unwrap().mode() & 0o7777, mode);
        fs::set_permissions(here.join("dir"), Permissions::from_mode(mode | 0o100)).unwrap();
        assert_eq!(fs::metadata(there.join("dir")).unwrap().mode() & 0o7777, mode | 0o100);
    }
    std::os::unix::fs::chown(mine("file"), Some(12), Some(34)).unwrap();
    let owner = fs::metadata(yours("file")).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (12, 34));
    assert_eq!(xattr(&yours("file"), "user.colour"), None);
    set_xattr(&mine("file"), "user.colour", b"red");
    assert_eq!(xattr(&yours("file"), "user.colour").as_deref(), Some(&b"red"[..]));
    set_xattr(&mine("file"), "user.colour", b"blue");
    assert_eq!(xattr(&yours("file"), "user.colour").as_deref(), Some(&b"blue"[..]));

    // A directory as a whole.
    fs::rename(here.join("dir"), here.join("renamed")).unwrap();
    assert!(!there.join("dir").exists());
    assert_eq!(names(&there.join("renamed")), ["file", "link"]);
    fs::remove_dir_all(here.join("renamed")).unwrap();
    assert!(!there.join("renamed").exists());
    assert_eq!(names(there), [] as [&str; 0]);
}

#[test]
fn what_one_mount_changes_another_sees_at_once() {
    let cluster = Cluster::start(2);
    let [one, two] = two_mounts(&cluster, &[]);
    every_change_is_seen(one.path(), two.path());
    every_change_is_seen(two.path(), one.path());
}

#[test]
fn it_is_seen_at_once_however_little_or_much_is_cached() {
    let cluster = Cluster::start(2);
    for arguments in
        [["--entry-timeout-ms", "0"], ["--attr-timeout-ms", "0"], ["--cache", "never"], ["--cache", "always"]]
    {
        let [one, two] = two_mounts(&cluster, &arguments);
        every_change_is_seen(one.path(), two.path());
        drop((one, two));
    }
}

#[test]
fn a_mount_is_told_of_what_programs_do_without_one() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    wait_for_watches(&cluster, 1);
    let local = cluster.scratch("local").join("file");
    let remote = format!("{}file", cluster.url());
    for round in 0..5 {
        assert!(!mount.join("file").exists());
        fs::write(&local, format!("round {round}")).unwrap();
        cluster.weft(&["cp", local.to_str().unwrap(), &remote]);
        assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), format!("round {round}"));
        fs::write(&local, "longer than it was before").unwrap();
        cluster.weft(&["cp", local.to_str().unwrap(), &remote]);
        assert_eq!(fs::metadata(mount.join("file")).unwrap().len(), 25);
        cluster.weft(&["rm", &remote]);
    }
}

#[test]
fn what_is_known_is_not_asked_for_again() {
    const ROUNDS: usize = 6;
    let cluster = Cluster::start(1);
    let [one, two] = two_mounts(&cluster, &[]);
    let client = cluster.client();
    let asked = || asked(&client, Op::Lookup) + asked(&client, Op::GetAttr);
    // A machine that stops for longer than a lease while a round runs asks again. Such rounds are few.
    let saved = (0..ROUNDS).filter(|round| {
        let dir = one.join(format!("dir-{round}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..100 {
            fs::write(dir.join(format!("file-{file}")), "x").unwrap();
            // A write changes the size and the time: these are asked for once.
            assert_eq!(fs::metadata(dir.join(format!("file-{file}"))).unwrap().len(), 1);
        }
        let before = asked();
        for file in 0..100 {
            assert_eq!(fs::metadata(dir.join(format!("file-{file}"))).unwrap().len(), 1);
            assert!(!dir.join(format!("missing-{file}")).exists());
        }
        let alone = asked() - before;
        for file in 0..100 {
            assert_eq!(fs::metadata(two.join(format!("dir-{round}/file-{file}"))).unwrap().len(), 1);
        }
        alone < 50 && asked() - before > alone + 50
    });
    let saved = saved.count();
    assert!(
        saved * 2 > ROUNDS,
        "what a mount knew was asked for again in {} of {ROUNDS} rounds",
        ROUNDS - saved
    );
}

/// A page of the listing answers for names to come.
#[test]
fn names_that_are_looked_up_as_they_were_listed_are_as_the_other_mount_left_them() {
    const NAMES: usize = 1500;
    let cluster = Cluster::start(1);
    let [one, two] = two_mounts(&cluster, &[]);
    let client = cluster.client();
    client.mkdir("/dir", 0o755).unwrap();
    for name in 0..NAMES {
        client.symlink(&*format!("/dir/{name:04}"), format!("{name}").as_bytes()).unwrap();
    }
    fs::write(one.join("file"), "new").unwrap();
    let listed: Vec<_> = fs::read_dir(two.join("dir")).unwrap().map(|entry| entry.unwrap().path()).collect();
    for (at, path) in listed.iter().enumerate() {
        let there = one.join("dir").join(path.file_name().unwrap());
        match at % 300 {
            50 => fs::remove_file(there).unwrap(),
            100 => fs::hard_link(one.join("file"), one.join("dir/new"))
                .and_then(|()| fs::rename(one.join("dir/new"), there))
                .unwrap(),
            150 => fs::hard_link(there, one.join(format!("other {at}"))).unwrap(),
            200 => {
                let other = two.join(format!("mine {at}"));
                fs::hard_link(path, &other).unwrap();
                fs::remove_file(&other).unwrap();
            }
            250 => fs::remove_file(path).unwrap(),
            _ => {}
        }
        let seen = fs::symlink_metadata(path).map(|data| (data.is_file(), data.nlink())).ok();
        match at % 300 {
            50 | 250 => assert_eq!(seen, None, "{at}"),
            100 => assert_eq!(seen, Some((true, at as u64 / 300 + 2)), "{at}"),
            150 => assert_eq!(seen, Some((false, 2)), "{at}"),
            _ => assert_eq!(seen, Some((false, 1)), "{at}"),
        }
    }
}

#[test]
fn a_mount_that_is_stopped_or_killed_holds_others_up_for_a_lease_at_most() {
    let cluster = Cluster::start(1);
    let [mount, stopped] = two_mounts(&cluster, &[]);
    let killed = cluster.mount();
    wait_for_watches(&cluster, 3);
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/file"), "before").unwrap();
    for other in [&stopped, &killed] {
        assert_eq!(fs::read_to_string(other.join("dir/file")).unwrap(), "before");
        assert!(!other.join("dir/new").exists());
    }
    let pid = stopped.pid();
    freeze(pid);
    signal(killed.pid(), libc::SIGKILL);
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::write(mount.join("dir/file"), "behind their backs").unwrap();
            fs::write(mount.join("dir/new"), "new").unwrap();
            fs::set_permissions(mount.join("dir"), Permissions::from_mode(0o700)).unwrap();
            sender.send(()).unwrap();
        });
        // Of three changes only one waits for a lease of 11 seconds: two waits would take longer than this.
        let ended = done.recv_timeout(Duration::from_secs(21));
        signal(pid, libc::SIGCONT);
        ended.expect("changes do not wait for a mount that does not answer");
    });
    assert_eq!(fs::read_to_string(stopped.join("dir/file")).unwrap(), "behind their backs");
    assert_eq!(fs::read_to_string(stopped.join("dir/new")).unwrap(), "new");
    assert_eq!(fs::metadata(stopped.join("dir")).unwrap().mode() & 0o777, 0o700);
    fs::remove_dir_all(mount.join("dir")).unwrap();
    every_change_is_seen(mount.path(), stopped.path());
}

/// A file of a mount in memory, as a program sees it by `mmap`.
struct Mapped {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapped {
    fn new(file: &File, bytes: usize) -> Mapped {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new place, of a descriptor that is open.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, read, shared, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapped { address, bytes }
    }

    /// Whether all of it has this value.
    fn is_all(&self, value: u8) -> bool {
        // SAFETY: the bytes are mapped, and other processes may change them.
        (0..self.bytes).all(|at| unsafe { self.address.cast::<u8>().add(at).read_volatile() } == value)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}

#[test]
fn pages_in_memory_are_renewed_when_somebody_looks_at_the_file() {
    const BYTES: usize = 3 * 4096;
    let cluster = Cluster::start(2);
    let [one, two] = two_mounts(&cluster, &[]);
    fs::write(one.join("file"), [1; BYTES]).unwrap();
    let file = File::open(two.join("file")).unwrap();
    let mapped = Mapped::new(&file, BYTES);
    assert!(mapped.is_all(1));
    for round in 2..10u8 {
        fs::write(one.join("file"), [round; BYTES]).unwrap();
        if round % 2 == 0 {
            assert_eq!(fs::metadata(two.join("file")).unwrap().len(), BYTES as u64);
        } else {
            assert_eq!(fs::read(two.join("file")).unwrap(), [round; BYTES]);
        }
        assert!(mapped.is_all(round), "round {round}");
    }
}

/// What was written is reported together with the time that is set.
#[test]
fn pages_in_memory_are_renewed_also_where_the_time_was_set_back_with_the_report() {
    const BYTES: usize = 3 * 4096;
    let cluster = Cluster::start(2);
    let [one, two] = two_mounts(&cluster, &[]);
    fs::write(one.join("file"), [1; BYTES]).unwrap();
    let writer = File::options().write(true).open(one.join("file")).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(5000);
    writer.set_modified(then).unwrap();
    let file = File::open(two.join("file")).unwrap();
    let mapped = Mapped::new(&file, BYTES);
    for round in 1..10u8 {
        writer.write_all_at(&[round; BYTES], 0).unwrap();
        writer.set_modified(then).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), then);
        assert!(mapped.is_all(round), "round {round}");
    }
}

/// Two mounts with four processes each that make, move, remove and look at names in one directory.
fn fight_for_names(mounts: &[Mount; 2]) {
    const ROUNDS: usize = 40;
    fs::create_dir(mounts[0].join("busy")).unwrap();
    std::thread::scope(|scope| {
        for (side, mount) in mounts.iter().enumerate() {
            for process in 0..4 {
                let dir = mount.join("busy");
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let name = |what: &str| dir.join(format!("{what}-{side}-{process}-{round}"));
                        fs::write(name("made"), "x").unwrap();
                        fs::rename(name("made"), name("moved")).unwrap();
                        fs::create_dir(name("dir")).unwrap();
                        let other = dir.join(format!("moved-{}-{process}-{round}", 1 - side));
                        let _ = fs::metadata(&other);
                        fs::remove_dir(name("dir")).unwrap();
                        if round % 2 == 0 {
                            fs::remove_file(name("moved")).unwrap();
                        }
                        let _ = names(&dir);
                        // One name that everybody fights for.
                        let _ = fs::write(dir.join("shared"), format!("{side} {process} {round}"));
                        let _ = fs::rename(dir.join("shared"), dir.join("taken"));
                    }
                });
            }
        }
    });
    let kept = 2 * 4 * ROUNDS / 2;
    for mount in mounts {
        let names = names(&mount.join("busy"));
        assert_eq!(names.iter().filter(|name| name.starts_with("moved-")).count(), kept);
        for name in &names {
            assert!(mount.join("busy").join(name).exists(), "{name}");
        }
    }
    assert_eq!(names(&mounts[0].join("busy")), names(&mounts[1].join("busy")));
    fs::remove_dir_all(mounts[0].join("busy")).unwrap();
}

#[test]
fn mounts_that_change_one_directory_at_once_do_not_block_each_other() {
    let cluster = Cluster::start(2);
    fight_for_names(&two_mounts(&cluster, &[]));
}

/// As on kernels before Linux 6.16.
#[test]
fn mounts_whose_kernels_know_no_names_do_not_block_each_other() {
    let cluster = Cluster::start(2);
    fight_for_names(&two_mounts(&cluster, &["--entry-timeout-ms", "0"]));
}

#[test]
fn a_reader_that_keeps_a_file_open_sees_every_append_of_another() {
    let cluster = Cluster::start(2);
    let [one, two] = two_mounts(&cluster, &[]);
    fs::write(one.join("log"), "").unwrap();
    let (mut reader, mut seen) = (File::open(two.join("log")).unwrap(), String::new());
    let mut expected = String::new();
    for round in 0..300 {
        let line = format!("round {round}\n");
        let mut log = File::options().append(true).open(one.join("log")).unwrap();
        log.write_all(line.as_bytes()).unwrap();
        drop(log);
        expected.push_str(&line);
        let mut new = String::new();
        reader.read_to_string(&mut new).unwrap();
        seen.push_str(&new);
        assert_eq!(seen, expected, "{round}");
        if round % 3 == 0 {
            assert_eq!(fs::metadata(two.join("log")).unwrap().len(), expected.len() as u64, "{round}");
        }
    }
}

/// The kernel looks once more for who finds the file gone that he is about to open, but only once.
/// The kernel takes the times of a reply to a change of its own without comparing them, and would keep the pages of before.
#[test]
fn a_change_of_attributes_does_not_hide_what_another_mount_wrote_before() {
    const BYTES: usize = 20_000;
    let cluster = Cluster::start(2);
    let [one, other] = two_mounts(&cluster, &[]);
    let open = |mount: &Mount| {
        File::options().read(true).write(true).create(true).truncate(false).open(mount.join("file")).unwrap()
    };
    let (here, there) = (open(&one), open(&other));
    let changes: [&dyn Fn(); 3] = [
        &|| here.set_len(BYTES as u64).unwrap(),
        &|| here.set_permissions(Permissions::from_mode(0o600)).unwrap(),
        &|| here.set_modified(SystemTime::now()).unwrap(),
    ];
    for (round, change) in changes.iter().cycle().take(9).enumerate() {
        let mut read = [0; BYTES];
        there.write_all_at(&[round as u8; BYTES], 0).unwrap();
        // The end of any descriptor tells others of what was written.
        drop(there.try_clone().unwrap());
        change();
        here.read_exact_at(&mut read, 0).unwrap();
        assert!(read == [round as u8; BYTES], "round {round}: {} is read", read[0]);
    }
}

#[test]
fn names_that_are_replaced_all_the_time_can_always_be_opened() {
    const ROUNDS: usize = 150;
    let cluster = Cluster::start(1);
    let mounts = two_mounts(&cluster, &[]);
    fs::create_dir(mounts[0].join("dir")).unwrap();
    for new in (0..2 * ROUNDS - 1).map(|number| mounts[0].join(format!("dir/{number}"))) {
        fs::write(&new, new.file_name().unwrap().to_str().unwrap().repeat(100)).unwrap();
        symlink("target", new.with_extension("link")).unwrap();
    }
    let replace = |mount: &Path, number: usize| {
        fs::rename(mount.join(format!("dir/{number}")), mount.join("dir/file")).unwrap();
        fs::rename(mount.join(format!("dir/{number}.link")), mount.join("dir/link")).unwrap();
    };
    replace(mounts[0].path(), 0);
    let done = AtomicBool::new(false);
    let open = |dir: &Path| {
        let mut opened = 0;
        while !done.load(Ordering::Relaxed) || opened == 0 {
            let mut file = File::open(dir.join("file")).unwrap_or_else(|error| panic!("{error}, {opened}"));
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let round = &text[..text.len() / 100];
            assert_eq!(text, round.repeat(100), "{opened}");
            fs::metadata(dir.join("file")).unwrap_or_else(|error| panic!("{error}, {opened}"));
            fs::read_link(dir.join("link")).unwrap_or_else(|error| panic!("{error}, {opened}"));
            opened += 1;
        }
    };
    std::thread::scope(|scope| {
        for mount in mounts.iter().cycle().take(4) {
            let (dir, open) = (mount.join("dir"), &open);
            scope.spawn(move || open(&dir));
        }
        let replaced = std::thread::scope(|scope| {
            let renaming = mounts.each_ref().map(|mount| {
                let first = if mount.path() == mounts[0].path() { 1 } else { ROUNDS };
                scope.spawn(move || {
                    (first..first + ROUNDS - 1).for_each(|number| replace(mount.path(), number))
                })
            });
            renaming.map(|thread| thread.join())
        });
        done.store(true, Ordering::Relaxed);
        replaced.into_iter().for_each(|replaced| replaced.unwrap());
    });
    let client = cluster.client();
    wait_until("the files that were replaced are gone", Duration::from_secs(60), || {
        gauge(&client, "lately_removed") == 0
    });
    assert_eq!(client.statfs().unwrap().files, 4, "the root, the directory, and what is in it");
}

#[test]
fn what_was_removed_is_kept_for_a_moment_only_where_somebody_else_has_looked() {
    let cluster = Cluster::start(1);
    let [one, two] = two_mounts(&cluster, &[]);
    let client = cluster.client();
    fs::create_dir(one.join("known")).unwrap();
    fs::create_dir(one.join("unknown")).unwrap();
    let removed = |path: &str| {
        fs::write(one.join(path), "x").unwrap();
        let ino = client.stat(&*format!("/{path}"), true).unwrap().ino;
        if path.starts_with("known") {
            assert_eq!(fs::read_to_string(two.join(path)).unwrap(), "x");
        }
        fs::remove_file(one.join(path)).unwrap();
        (ino, client.getattr(ino))
    };
    // Not seen where this process is stopped for that moment, which happens now and then.
    const ROUNDS: usize = 10;
    let mut ino = 0;
    let there = (0..ROUNDS).filter(|_| {
        let (removed, found) = removed("known/file");
        ino = removed;
        found.is_ok_and(|attr| attr.nlink == 0)
    });
    let there = there.count();
    assert!(there * 2 > ROUNDS, "it was there for a moment in {there} of {ROUNDS} rounds only");
    wait_until("it is gone", Duration::from_secs(60), || {
        client.getattr(ino).is_err_and(|error| error.errno() == libc::ESTALE)
    });
    assert_eq!(removed("unknown/file").1.unwrap_err().errno(), libc::ESTALE);
}

#[test]
fn nothing_stale_is_seen_when_the_metadata_server_was_killed() {
    let mut cluster = Served::start(1);
    let (one, two) = (cluster.mount(), cluster.mount());
    fs::create_dir(one.join("dir")).unwrap();
    for round in 0..4 {
        let text = format!("round {round}");
        fs::write(one.join("dir/file"), &text).unwrap();
        assert_eq!(fs::read_to_string(two.join("dir/file")).unwrap(), text);
        assert!(!two.join(format!("dir/new-{round}")).exists());
        cluster.crash("meta0");
        fs::write(one.join(format!("dir/new-{round}")), "new").unwrap();
        assert_eq!(fs::read_to_string(two.join(format!("dir/new-{round}"))).unwrap(), "new");
        fs::write(one.join("dir/file"), "changed").unwrap();
        assert_eq!(fs::read_to_string(two.join("dir/file")).unwrap(), "changed");
    }
}

#[test]
fn git_and_sqlite_work_over_two_mounts_in_turn() {
    let cluster = Cluster::start(2);
    let mounts = two_mounts(&cluster, &[]);
    mounts[0]
        .sh("git init -q -b main repo; cd repo; git config user.name t; git config user.email t@localhost");
    mounts[0].sh("sqlite3 base.db 'create table t (mount, round)'");
    for round in 0..6 {
        let (mount, other) = (&mounts[round % 2], &mounts[(round + 1) % 2]);
        mount.sh(&format!(
            "cd repo; mkdir -p d{round}; seq {round} 300 > d{round}/f; echo {round} >> log; git add .; git commit -q -m {round}"
        ));
        let seen = other.sh("cd repo; git status --porcelain; git log --oneline | wc -l; tail -n 1 log");
        assert_eq!(seen.split_whitespace().collect::<Vec<_>>(), [(round + 1).to_string(), round.to_string()]);
        mount.sh(&format!("sqlite3 base.db 'insert into t values ({}, {round})'", round % 2));
        let rows =
            other.sh("sqlite3 base.db 'select count(*) from t'; sqlite3 base.db 'pragma integrity_check'");
        assert_eq!(rows.split_whitespace().collect::<Vec<_>>(), [(round + 1).to_string().as_str(), "ok"]);
    }
    let fsck =
        Command::new("git").args(["fsck", "--full", "--strict"]).current_dir(mounts[1].join("repo")).output();
    expect_success("git fsck", &fsck.expect("git can be run"));
}
