//! The rules of POSIX for file systems, case by case (`tests/posix`): on file systems of this machine, which proves the cases, on
//! the mount, and under `weft run`, but for exceptions that docs/semantics.md and docs/preload.md give reasons for.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use weft_tests::suite::{ACCESS_TIMES, ON_THE_MOUNT, all_hold, all_hold_by, weft_posix};
use weft_tests::{Cluster, temporary_dir};

const OF_THE_KERNEL: &str =
    "what passes through fifos, sockets and devices is the kernel's, which knows nothing of these names";
const COPIES: &str = "a mapping is a copy: there are no pages that reads, writes and other processes share";

/// What is otherwise under `weft run`. Each reason is in docs/preload.md.
const UNDER_WEFT_RUN: &[(&str, &str)] = &[
    ACCESS_TIMES,
    ("fsync: fsync fails with EINVAL for a Char", OF_THE_KERNEL),
    ("fsync: fsync fails with EINVAL for a Fifo", OF_THE_KERNEL),
    ("lseek: ESPIPE on a fifo", OF_THE_KERNEL),
    ("mknod: a fifo passes bytes between processes", OF_THE_KERNEL),
    ("mknod: a socket is bound to a name, and others connect to it", OF_THE_KERNEL),
    ("mmap: shared: another process sees what is stored", COPIES),
    ("mmap: shared: what is stored is read from the file", COPIES),
    ("mmap: shared: what is written to the file later is seen", COPIES),
    (
        "open: a program runs, but not while it is open to write",
        "a program is executed from a copy in memory, which nobody can write",
    ),
    (
        "rmdir: an open directory that was removed has its time of change still, and no names",
        "the servers have forgotten it, and a descriptor holds no attributes",
    ),
    (
        "rmdir: attributes of an open directory that was removed can be changed",
        "the servers have forgotten it, and a descriptor holds no attributes",
    ),
];

/// Whether files in `dir` can have the attribute; kernels differ in what their file systems offer.
fn has_attribute(dir: &Path, name: &str, value: &[u8]) -> bool {
    let path = CString::new(dir.as_os_str().as_bytes()).expect("no zero in a path");
    let name = CString::new(name).expect("no zero in a name");
    // SAFETY: path and name end with zero, and the length is the value's.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) == 0 }
}

/// Groups of cases that the kernel of this machine cannot run in `dir`.
fn not_offered(dir: &Path) -> Vec<(&'static str, &'static str)> {
    // A list that says what mode 0755 says: version 2, then owner, group and others.
    let acl =
        [[2, 0, 0, 0], [1, 0, 7, 0], [255; 4], [4, 0, 5, 0], [255; 4], [32, 0, 5, 0], [255; 4]].concat();
    let mut without = Vec::new();
    if !has_attribute(dir, "user.probe", b"1") {
        without.push(("xattr", "this kernel's file system has no attributes of users"));
    }
    if !has_attribute(dir, "system.posix_acl_access", &acl) {
        without.push(("acl", "this kernel's file system has no access control lists"));
    }
    without
}

#[test]
fn the_cases_hold_in_memory() {
    let dir = temporary_dir();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    all_hold(dir.path(), &[], &not_offered(dir.path()));
}

#[test]
fn the_cases_hold_on_the_disk() {
    let dir = tempfile::tempdir().expect("a directory on the disk");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    all_hold(dir.path(), &[], &not_offered(dir.path()));
}

#[test]
fn the_cases_hold_on_the_mount() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    all_hold(mount.path(), ON_THE_MOUNT, &[]);
}

#[test]
fn the_cases_hold_under_weft_run() {
    let cluster = Cluster::start(3);
    weft_tests::preload_library();
    let mut command = cluster.command(&["run", "--url", cluster.url(), "--"]);
    command.env("WEFT_KEY", std::fs::read_to_string(cluster.key_file()).expect("weft up wrote it").trim());
    command.arg(weft_posix());
    all_hold_by(command, Path::new("/weft"), UNDER_WEFT_RUN, &[]);
}

#[test]
fn a_file_has_up_to_the_largest_offset() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh(r#"
        truncate -s 9223372036854775807 f; test $(stat -c %s f) = 9223372036854775807
        printf end | dd of=f bs=1 seek=9223372036854775804 conv=notrunc status=none
        test "$(tail -c 3 f)" = end; test $(stat -c %s f) = 9223372036854775807
        test "$(dd if=f bs=1 skip=4611686018427387904 count=2 status=none | od -An -tx1)" = " 00 00"
        "#);
}
