//! Directories that one mount has moved or removed, in the hands of programs on another: as on one local file system.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;
use weft_tests::{Cluster, Mount};

/// Of a name that was told longer ago, the kernel is told alone.
const TOLD_LATELY: Duration = Duration::from_millis(200);

fn mounts(cluster: &Cluster) -> [Mount; 2] {
    [cluster.mount(), cluster.mount()]
}

/// Looks at everything below a directory, and at a name that is missing, so that the kernel has it cached.
fn look(dir: &Path) {
    assert!(!dir.join("missing").exists());
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::metadata(entry.path()).unwrap();
        if entry.file_type().unwrap().is_dir() {
            look(&entry.path());
        }
    }
}

/// The kernel looks for both names of a rename with locks held, so that it could not move a directory to where another mount has
/// moved it. It may have dropped it from where it was by itself where that is not the root of the mount, and names were told lately.
#[test]
fn a_directory_that_another_mount_has_moved_can_be_renamed_at_once() {
    let cluster = Cluster::start(1);
    let mounts = mounts(&cluster);
    // Where the directory is, where the other mount moves it, and where to it is renamed here.
    let moves = [
        ("d", "x/d", "y/e"),
        ("y/d", "x/d", "y/d"),
        ("y/d", "x/d", "y/e"),
        ("x/d", "x/deep/d", "d"),
        ("x/deep/d", "d", "x/deep/d"),
    ];
    for (round, (here, there, at_last)) in moves.iter().cycle().take(4 * moves.len()).enumerate() {
        let top = if round % 2 == 0 { String::from(".") } else { format!("top{round}") };
        let [one, two] = mounts.each_ref().map(|mount| mount.join(&top));
        for dir in ["x/deep", "y", here] {
            fs::create_dir_all(one.join(dir)).unwrap();
        }
        fs::create_dir(one.join(here).join("sub")).unwrap();
        fs::write(one.join(here).join("file"), here).unwrap();
        look(&two);
        if round >= 2 * moves.len() {
            sleep(TOLD_LATELY);
        }
        fs::rename(one.join(here), one.join(there)).unwrap();
        let what = format!("round {round}: {here} -> {there} by the other, -> {at_last}");
        fs::rename(two.join(there), two.join(at_last)).unwrap_or_else(|error| panic!("{what}: {error}"));
        for top in [&one, &two] {
            assert_eq!(fs::read_to_string(top.join(at_last).join("file")).unwrap(), *here, "{what}");
        }
        for dir in ["x", "y", "d"] {
            let _ = fs::remove_dir_all(two.join(dir));
        }
    }
}

#[test]
fn an_empty_directory_that_another_mount_has_moved_can_be_replaced_at_once() {
    let cluster = Cluster::start(1);
    let [one, two] = mounts(&cluster);
    for name in ["x", "y", "d", "y/new"] {
        fs::create_dir(one.join(name)).unwrap();
    }
    look(two.path());
    fs::rename(one.join("d"), one.join("x/d")).unwrap();
    fs::write(one.join("y/new/file"), "new").unwrap();
    fs::rename(two.join("y/new"), two.join("x/d")).unwrap();
    assert_eq!(fs::read_to_string(one.join("x/d/file")).unwrap(), "new");
    assert_eq!(fs::read_to_string(two.join("x/d/file")).unwrap(), "new");
    assert!(!two.join("y/new").exists());
}

fn open(dir: &Path) -> OwnedFd {
    File::open(dir).unwrap().into()
}

fn errno(result: libc::c_int) -> i32 {
    if result >= 0 { 0 } else { Error::last_os_error().raw_os_error().unwrap() }
}

/// What every system call that takes a directory says of this one, in which there is `old`, or was.
fn everything_in(dir: &OwnedFd, elsewhere: &OwnedFd) -> Vec<(&'static str, i32)> {
    let fd = dir.as_raw_fd();
    let name = |name: &str| CString::new(name).unwrap();
    let [old, new, file, sub, link, fifo, there] =
        ["old", "new", "file", "sub", "link", "fifo", "there"].map(name);
    let mut buffer = [0u8; 4096];
    // SAFETY: all names end with a zero, the descriptors are open, and what is written has room.
    unsafe {
        let made = libc::openat(fd, file.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o644);
        let created = errno(made);
        if made >= 0 {
            drop(OwnedFd::from_raw_fd(made));
        }
        let again = libc::openat(fd, c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        let opened = errno(again);
        let mut listed = 0;
        if again >= 0 {
            let again = OwnedFd::from_raw_fd(again);
            let bytes =
                libc::syscall(libc::SYS_getdents64, again.as_raw_fd(), buffer.as_mut_ptr(), buffer.len());
            listed = errno(bytes as libc::c_int);
        }
        let mut attributes: libc::stat = std::mem::zeroed();
        let stat = errno(libc::fstat(fd, &mut attributes));
        let removed = attributes.st_nlink == 0;
        let there_fd = elsewhere.as_raw_fd();
        vec![
            ("creat", created),
            ("mkdir", errno(libc::mkdirat(fd, sub.as_ptr(), 0o755))),
            ("symlink", errno(libc::symlinkat(c"x".as_ptr(), fd, link.as_ptr()))),
            ("mknod", errno(libc::mknodat(fd, fifo.as_ptr(), libc::S_IFIFO | 0o644, 0))),
            ("link", errno(libc::linkat(there_fd, there.as_ptr(), fd, new.as_ptr(), 0))),
            ("stat of a name", errno(libc::fstatat(fd, old.as_ptr(), &mut attributes, 0))),
            ("access", errno(libc::faccessat(fd, old.as_ptr(), libc::R_OK, 0))),
            ("rename away", errno(libc::renameat(fd, old.as_ptr(), there_fd, new.as_ptr()))),
            ("rename into", errno(libc::renameat(there_fd, there.as_ptr(), fd, old.as_ptr()))),
            ("unlink", errno(libc::unlinkat(fd, old.as_ptr(), 0))),
            ("rmdir", errno(libc::unlinkat(fd, sub.as_ptr(), libc::AT_REMOVEDIR))),
            ("open", opened),
            ("list", listed),
            ("stat", stat),
            ("has no links", removed.into()),
        ]
    }
}

/// A directory `d` with a file `old`, and one beside it with a file `there`; `change` changes what happens to `d` after it was opened.
fn compared(change: impl Fn(&Path)) {
    let cluster = Cluster::start(1);
    let [one, two] = mounts(&cluster);
    let local = cluster.scratch("local");
    let prepare = |top: &Path| {
        for name in ["d", "x", "other"] {
            fs::create_dir(top.join(name)).unwrap();
        }
        fs::write(top.join("d/old"), "old").unwrap();
        fs::write(top.join("other/there"), "there").unwrap();
    };
    let outcome = |from: &Path, by: &Path| {
        let (dir, elsewhere) = (open(&from.join("d")), open(&from.join("other")));
        look(from);
        change(by);
        everything_in(&dir, &elsewhere)
    };
    prepare(&local);
    prepare(one.path());
    assert_eq!(outcome(two.path(), one.path()), outcome(&local, &local));
}

/// What is not as on a local file system, where it can be made: a server has no directory for it.
#[test]
fn a_file_without_a_name_is_refused_in_a_directory_that_another_mount_has_removed() {
    let cluster = Cluster::start(1);
    let [one, two] = mounts(&cluster);
    fs::create_dir(one.path().join("d")).unwrap();
    let dir = open(&two.path().join("d"));
    fs::remove_dir(one.path().join("d")).unwrap();
    // SAFETY: the name ends with a zero.
    let made = unsafe { libc::openat(dir.as_raw_fd(), c".".as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600) };
    assert_eq!(errno(made), libc::ENOENT);
}

#[test]
fn who_has_a_directory_open_that_another_mount_moves_works_on_in_it() {
    compared(|top| fs::rename(top.join("d"), top.join("x/e")).unwrap());
}

#[test]
fn who_has_a_directory_open_that_another_mount_removes_hears_what_a_local_file_system_says() {
    compared(|top| fs::remove_dir_all(top.join("d")).unwrap());
}

#[test]
fn who_has_a_directory_open_that_another_mount_replaces_hears_what_a_local_file_system_says() {
    compared(|top| {
        fs::remove_file(top.join("d/old")).unwrap();
        fs::rename(top.join("x"), top.join("d")).unwrap();
    });
}
