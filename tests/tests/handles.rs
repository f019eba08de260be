//! Files by handle: name_to_handle_at(2) and open_by_handle_at(2) on a mount, as user-space servers and backup programs use them.

use std::fs;
use weft_test_needs::Need;
use weft_tests::{Cluster, Mount, python};

/// `make TOP ''`: makes a tree and prints handles. `use TOP HANDLES`: opens them.
const HANDLES: &str = r#"
import ctypes, errno, os, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
what, top, handles = sys.argv[1:]

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

def handle_of(path):
    handle, mount = Handle(128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), path)
    return handle.kind, bytes(handle.data[: handle.bytes])

def opened(kind, data, flags=os.O_RDONLY):
    handle = Handle(len(data), kind, (ctypes.c_ubyte * 128)(*data))
    at = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    fd = libc.open_by_handle_at(at, ctypes.byref(handle), flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd

def refused(kind, data):
    try:
        opened(kind, data)
    except OSError as error:
        return error.errno
    return 0

if what == "make":
    os.makedirs(top + "/a/b")
    for name, content in ("a/b/file", b"of b"), ("a/gone", b"gone"):
        with open(f"{top}/{name}", "wb") as file:
            file.write(content)
    print({name: handle_of(f"{top}/{name}") for name in ("a", "a/b", "a/b/file", "a/gone", ".")})
    os.unlink(top + "/a/gone")
else:
    handles = eval(handles)
    fd = opened(*handles["a/b/file"], os.O_RDWR)
    assert os.read(fd, 100) == b"of b"
    os.pwrite(fd, b"OF", 0)
    os.close(fd)
    with open(top + "/a/b/file", "rb") as file:
        assert file.read() == b"OF b"
    with open(top + "/a/b/file", "r+b") as file:
        file.write(b"of")
    b = opened(*handles["a/b"])
    assert os.listdir(b) == ["file"]
    above = os.open("..", os.O_RDONLY, dir_fd=b)
    assert os.stat(above).st_ino == os.stat(top + "/a").st_ino
    assert os.readlink(f"/proc/self/fd/{b}") == top + "/a/b", os.readlink(f"/proc/self/fd/{b}")
    assert os.stat(opened(*handles["."])).st_ino == os.stat(top).st_ino
    assert refused(*handles["a/gone"]) == errno.ESTALE
    kind, data = handles["a/b/file"]
    # The number of the inode and, behind it, its generation.
    assert refused(kind, data[:8] + struct.pack("I", struct.unpack("I", data[8:12])[0] + 1)) == errno.ESTALE
    for number in 12345678, (1 << 64) - 1:
        halves = struct.pack("II", number >> 32, number & 0xffffffff)
        assert refused(kind, halves + data[8:]) == errno.ESTALE, number
"#;

#[test]
fn handles_hold_when_caches_are_dropped_and_on_another_mount() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(2);
    let run = |what: &str, top: &Mount, handles: &str| {
        python(HANDLES, &[what.as_ref(), top.path().as_os_str(), handles.as_ref()])
    };
    let first = cluster.mount();
    let handles = run("make", &first, "");
    run("use", &first, &handles);
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    run("use", &first, &handles);
    drop(first);
    let second = cluster.mount();
    run("use", &second, &handles);
}
