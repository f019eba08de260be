//! What programs may do beyond their users, set-id bits and capabilities, is taken away by changes of their contents.

use std::os::unix::fs::PermissionsExt;
use weft_test_needs::Need;
use weft_tests::{Cluster, python};

/// Prints a line for each change: modes of five files after it, each with `C` where it has capabilities still.
const CHANGES: &str = r#"
import ctypes, mmap, os, struct, sys

top, libc = sys.argv[1], ctypes.CDLL(None, use_errno=True)
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
# Mode of the file, whose owner and group are 500; user and group of who changes it.
CASES = [(0o6777, 1000, 1000), (0o2666, 1000, 1000), (0o2666, 1000, 500), (0o4755, 0, 0), (0o6777, 0, 0)]

def fallocate(mode):
    def change(path):
        if libc.fallocate(os.open(path, os.O_RDWR), mode, ctypes.c_long(0), ctypes.c_long(4096)):
            raise OSError(ctypes.get_errno(), "fallocate")
    return change

def copy(path):
    assert os.copy_file_range(os.open(top + "/source", os.O_RDONLY), os.open(path, os.O_RDWR), 100, 0, 0) == 100

CHANGES = {
    "write": lambda path: os.pwrite(os.open(path, os.O_RDWR), b"x", 0),
    "append": lambda path: os.write(os.open(path, os.O_RDWR | os.O_APPEND), b"x"),
    "truncate": lambda path: os.truncate(path, 10),
    "ftruncate": lambda path: os.ftruncate(os.open(path, os.O_RDWR), 10),
    "the same size": lambda path: os.ftruncate(os.open(path, os.O_RDWR), SIZE),
    "O_TRUNC": lambda path: os.open(path, os.O_RDWR | os.O_TRUNC),
    "allocate": fallocate(0), "keep size": fallocate(1), "punch": fallocate(3), "zero": fallocate(16),
    "copy": copy,
}
with open(top + "/source", "wb") as file:
    file.write(b"y" * 8192)
os.chmod(top + "/source", 0o644)
for SIZE in 8192, 300_000:
    for name, change in CHANGES.items():
        row = []
        for mode, uid, gid in CASES:
            path = top + "/file"
            with open(path, "wb") as file:
                file.write(b"z" * SIZE)
            os.chown(path, 500, 500)
            os.chmod(path, mode)
            os.setxattr(path, "security.capability", CAPABILITY)
            child = os.fork()
            if child == 0:
                try:
                    if uid:
                        os.setgroups([]); os.setgid(gid); os.setuid(uid)
                    change(path)
                    os._exit(0)
                except OSError as error:
                    os._exit(error.errno)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            left = "C" if "security.capability" in os.listxattr(path) else ""
            row.append(f"{os.stat(path).st_mode & 0o7777:o}{left}" + (f" error {status}" if status else ""))
            os.unlink(path)
        print(name, row)
"#;

/// As ext4 has it.
const AFTERWARDS: &str = "['777', '666', '2666', '4755', '6777']";

#[test]
fn every_change_of_contents_takes_set_id_bits_and_capabilities_away() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let mount = cluster.mount_with(cluster.url(), &["-o", "suid"]);
    let top = mount.join("top");
    std::fs::create_dir(&top).unwrap();
    std::fs::set_permissions(&top, PermissionsExt::from_mode(0o777)).unwrap();
    let said = python(CHANGES, &[&top]);
    let wrong: Vec<&str> = said.lines().filter(|line| !line.ends_with(AFTERWARDS)).collect();
    assert!(wrong.is_empty() && said.lines().count() == 22, "{wrong:#?}");
}

/// Prints the mode of a file whose set-id bits one mount sets, while another user has it open on another and writes.
const SET_ELSEWHERE: &str = r#"
import os, sys

here, there = (top + "/program" for top in sys.argv[1:])
for mode in 0o6777, 0o2666:
    with open(here, "wb") as file:
        file.write(b"x" * 100)
    os.chmod(here, 0o666)
    fd = os.open(there, os.O_RDWR)
    for set_before in False, True:
        if set_before:
            os.chmod(here, mode)
        child = os.fork()
        if child == 0:
            os.setgroups([]); os.setgid(1000); os.setuid(1000)
            os._exit(os.pwrite(fd, b"y", 0) != 1)
        assert os.waitpid(child, 0)[1] == 0
    print(f"{os.stat(here).st_mode & 0o7777:o} {os.fstat(fd).st_mode & 0o7777:o}")
    os.close(fd)
    os.unlink(here)
"#;

#[test]
fn set_id_bits_that_another_mount_has_set_are_taken_away() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let mounts = [(); 2].map(|()| cluster.mount_with(cluster.url(), &["-o", "suid"]));
    assert_eq!(python(SET_ELSEWHERE, &[mounts[0].path(), mounts[1].path()]), "777 777\n666 666\n");
}

/// Sets capabilities behind writes, through the file that is open still, and says whether each file has them in the end.
const SET_LAST: &str = r#"
import os, struct, sys

CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
for size in 100, 300_000:
    for times in None, (5, 5):
        path = sys.argv[1] + "/program"
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o755)
        os.write(fd, b"x" * size)
        if times:
            os.utime(fd, times)
        os.setxattr(fd, "security.capability", CAPABILITY)
        os.close(fd)
        os.close(os.open(path, os.O_RDONLY))
        print("security.capability" in os.listxattr(path))
        os.unlink(path)
"#;

#[test]
fn capabilities_that_are_set_after_a_write_stay() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let mount = cluster.mount_with(cluster.url(), &["-o", "suid"]);
    assert_eq!(python(SET_LAST, &[mount.path()]), "True\n".repeat(4));
    let run = ["run", "--url", cluster.url(), "--", "python3", "-c", SET_LAST, "/weft"];
    assert_eq!(cluster.weft(&run), "True\n".repeat(4));
}
