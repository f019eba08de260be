"""Files, names, attributes, errors, and what happens in forked children and at signals."""

import asyncio
import errno
import io
import os
import pathlib
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
import weftfs


def test_files_are_pythons_files(weft, top):
    with weft.open(f"{top}/text", "w") as file:
        file.write("one\ntwo\nthree\n")
    with weft.open(f"{top}/text") as file:
        assert file.readlines() == ["one\n", "two\n", "three\n"]
    with weft.open(f"{top}/text", "a") as file:
        file.write("four\n")
    with weft.open(f"{top}/text", "r+b") as file:
        file.seek(4)
        file.write(b"TWO")
        file.seek(-5, io.SEEK_END)
        assert file.read() == b"four\n" and file.tell() == 19
    assert weft.read_bytes(f"{top}/text") == b"one\nTWO\nthree\nfour\n"
    with pytest.raises(FileExistsError):
        weft.open(f"{top}/text", "x")
    with weft.open(f"{top}/text", "rb", buffering=0) as file:
        assert isinstance(file, weftfs.File) and file.read(3) == b"one" and file.readall()[-5:] == b"four\n"
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
    with pytest.raises(ValueError, match="invalid mode"):
        weft.open(f"{top}/text", "q")
    with pytest.raises(ValueError):
        weft.open(f"{top}/text", "r", buffering=0)


def test_reads_and_writes_at_offsets(weft, top):
    data = os.urandom(3_000_000)
    with weft.open_raw(f"{top}/f", "w+b", layout=(4096, 0, -1)) as file:
        assert file.write_at(data, 0) == len(data) and file.size() == len(data)
        assert file.layout[0] == 4096
        assert file.read_at(100, 1_000_000) == data[100:1_000_100]
        assert file.read_at(len(data) - 3, 10) == data[-3:] and file.read_at(len(data), 10) == b""
        buffer = bytearray(5000)
        assert file.readinto_at(buffer, 7) == 5000 and buffer == data[7:5007]
        assert file.readinto_at(buffer, len(data) - 100) == 100
        assert file.append(b"end") == len(data) and file.read_at(len(data), 9) == b"end"
        assert file.truncate(10) == 10 and file.size() == 10
        file.allocate(0, 1 << 20)
        file.punch(0, 5)
        assert file.read_at(0, 10) == bytes(5) + data[5:10]
        file.sync()
        with pytest.raises(OverflowError):
            file.read_at(-1, 10)
        with pytest.raises(BufferError, match="read-only"):
            file.readinto_at(b"12345", 0)
        with pytest.raises(ValueError, match="contiguous"):
            file.write_at(memoryview(b"123456")[::2], 0)
        with pytest.raises(TypeError):
            file.write_at("text", 0)
        with pytest.raises(MemoryError):
            file.read_at(0, sys.maxsize - 100)


def test_lists_of_ranges(weft, top):
    data = os.urandom(200_000)
    weft.write_bytes(f"{top}/f", data)
    ranges = [(at * 37 % 190_000, at % 50) for at in range(500)]
    with weft.open_raw(f"{top}/f", "r+b") as file:
        assert file.read_ranges(ranges) == [data[at : at + n] for at, n in ranges]
        assert file.read_ranges([(199_990, 20), (0, 2)]) == [data[-10:] + bytes(10), data[:2]]
        parts = [bytearray(3), bytearray(7)]
        assert file.readinto_ranges(parts, [(10, 6), (100, 4)]) == 10
        assert b"".join(parts) == data[10:16] + data[100:104]
        file.write_ranges([b"ab", b"cde"], [(1, 4), (1000, 1)])
        assert file.read_at(0, 6) == data[:1] + b"abcd" + data[5:6] and file.read_at(1000, 1) == b"e"
        assert file.read_ranges([]) == []
        with pytest.raises(ValueError, match="have 5 bytes, the memory has 4"):
            file.readinto_ranges(bytearray(4), [(0, 5)])
        with pytest.raises(ValueError, match="-1 is negative"):
            file.read_ranges([(3, -1)])
        with pytest.raises(ValueError, match="-3 is negative"):
            file.readinto_ranges(bytearray(4), [(-3, 4)])


def test_operations_go_on_by_themselves(weft, top):
    data = os.urandom(1 << 20)
    with weft.open_raw(f"{top}/f", "w+b") as file:
        writes = [file.start_write(data, at << 20) for at in range(8)]
        assert [one.wait() for one in writes] == [1 << 20] * 8 and writes[0].test()
        buffers = [bytearray(1 << 20) for _ in range(8)]
        reads = [file.start_read(buffer, at << 20) for at, buffer in enumerate(buffers)]
        del reads[3]
        assert all(one.wait() == 1 << 20 for one in reads) and all(buffer == data for buffer in buffers)

        async def run():
            return await asyncio.gather(*(wait(file.start_read(buffer, 0)) for buffer in buffers))

        async def wait(pending):
            return await pending

        assert asyncio.run(run()) == [1 << 20] * 8
        pending = file.start_read(bytearray(10), 0)
        pending = file.start_read_ranges([bytearray(4)], [(0, 4)])
        assert pending.wait() == 4 and file.start_write_ranges(b"1234", [(0, 4)]).wait() == 4
    with weft.open_raw(f"{top}/f") as file, pytest.raises(OSError, match="not open"):
        file.start_write(b"x", 0).wait()


def test_names_and_attributes(weft, top):
    weft.makedirs(f"{top}/a/b/c")
    weft.makedirs(f"{top}/a/b/c", exist_ok=True)
    weft.write_bytes(f"{top}/a/f", b"12345")
    weft.symlink("f", f"{top}/a/link")
    weft.link(f"{top}/a/f", f"{top}/a/hard")
    assert weft.readlink(f"{top}/a/link") == "f"
    assert weft.stat(f"{top}/a/link").st_size == 5 and weft.stat(f"{top}/a/f").st_nlink == 2
    assert weft.stat(f"{top}/a/link", follow_symlinks=False).is_symlink()
    assert sorted(weft.listdir(f"{top}/a")) == ["b", "f", "hard", "link"]
    assert [entry.stat.is_dir() for entry in weft.scandir(f"{top}/a")] == [True, False, False, False]
    assert [(names, sorted(others)) for _, names, others in weft.walk(f"{top}/a")] == [
        (["b"], ["f", "hard", "link"]), (["c"], []), ([], []),
    ]
    weft.chmod(f"{top}/a/f", 0o640)
    weft.utime(f"{top}/a/f", ns=(5, 1_700_000_000_123_456_789))
    now = weft.stat(f"{top}/a/f")
    assert stat.S_IMODE(now.st_mode) == 0o640 and now.st_mtime_ns == 1_700_000_000_123_456_789 and now.st_atime_ns == 5
    weft.chown(f"{top}/a/f", -1, 7)
    assert (weft.stat(f"{top}/a/f").st_uid, weft.stat(f"{top}/a/f").st_gid) == (now.st_uid, 7)
    weft.setxattr(f"{top}/a/f", "user.k", b"v")
    assert weft.getxattr(f"{top}/a/f", "user.k") == b"v" and weft.listxattr(f"{top}/a/f") == ["user.k"]
    weft.removexattr(f"{top}/a/f", "user.k")
    weft.rename(f"{top}/a/f", f"{top}/a/g")
    with pytest.raises(FileExistsError):
        weft.rename(f"{top}/a/g", f"{top}/a/hard", replace=False)
    weft.copy(f"{top}/a/g", f"{top}/a/copy")
    assert weft.read_bytes(f"{top}/a/copy") == b"12345" and weft.isfile(f"{top}/a/copy")
    weft.truncate(f"{top}/a/copy", 2)
    assert weft.stat(f"{top}/a/copy").st_size == 2
    weft.mkdir(f"{top}/wide", layout=(1 << 20, 2))
    weft.write_bytes(f"{top}/wide/f", bytes(100_000))
    assert weft.stat(f"{top}/wide/f").layout[:2] == (1 << 20, 2)
    weft.set_layout(f"{top}/wide", None)
    weft.remove(f"{top}/a/copy")
    assert not weft.exists(f"{top}/a/copy") and weft.isdir(top) and not weft.isdir(f"{top}/a/g")
    space = weft.statfs()
    assert 0 < space.available_bytes <= space.space_bytes and space.files > 3
    assert weft.transports()[0][0] == "meta0"
    weft.sync()


def test_the_root_exists(weft):
    for root in "/", "//":
        with pytest.raises(FileExistsError):
            weft.mkdir(root)
        with pytest.raises(FileExistsError):
            weft.makedirs(root)
        weft.makedirs(root, exist_ok=True)
        with pytest.raises(OSError, match="busy") as refused:
            weft.rmdir(root)
        assert refused.value.errno == errno.EBUSY
    with pytest.raises(FileExistsError):
        weft.symlink("x", "/")


def test_names_without_a_slash_are_below_the_path_of_the_url(weft, top):
    below = weftfs.connect(weft.url.rstrip("/") + top + "/sub")
    below.makedirs("")
    below.mkdir("d")
    below.write_bytes(pathlib.PurePosixPath("d/f"), b"12345")
    below.truncate("d/f", 2)
    below.link("d/f", "d/hard")
    below.symlink("f", "d/l")
    below.rename("d/hard", "d/g")
    below.setxattr("d/f", "user.k", b"v")
    below.chmod("d/f", 0o600)
    assert below.listdir() == ["d"] and sorted(below.listdir("d")) == ["f", "g", "l"] and below.readlink("d/l") == "f"
    assert below.getxattr("d/f", "user.k") == b"v" and below.listxattr("d/f") == ["user.k"] and below.stat("d/f").st_size == 2
    assert weft.read_bytes(f"{top}/sub/d/f") == b"12" and below.read_bytes(f"{top}/sub/d/f") == b"12"
    below.removexattr("d/f", "user.k")
    for name in ["f", "g"]:
        below.unlink(f"d/{name}")
    below.remove("d/l")
    below.rmdir("d")
    assert below.listdir() == []


def test_new_files_and_directories_have_the_umask_applied(weft, top):
    before = os.umask(0o027)
    try:
        weft.write_bytes(f"{top}/f", b"")
        weft.mkdir(f"{top}/d")
        weft.open_raw(f"{top}/x", "xb", permissions=0o606).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(weft.stat(f"{top}/{name}").st_mode) for name in "fdx"] == [0o640, 0o750, 0o600]


def test_a_copy_is_the_servers(weft, top):
    data = os.urandom(5_000_000)
    weft.write_bytes(f"{top}/large", data)
    weft.copy(f"{top}/large", f"{top}/again")
    assert weft.read_bytes(f"{top}/again") == data


def test_errors_say_what_happened_and_where(weft, top):
    with pytest.raises(FileNotFoundError) as caught:
        weft.stat(f"{top}/none")
    error = caught.value
    assert isinstance(error, weftfs.WeftError) and isinstance(error, weftfs.errors.NotFoundError)
    assert (error.errno, error.filename) == (2, f"{top}/none") and error.server.startswith("meta0 ")
    assert "no such file" in str(error) and "meta0" in str(error)
    for kind, call in [
        (IsADirectoryError, lambda: weft.open_raw(top, "wb")),
        (NotADirectoryError, lambda: weft.listdir(f"{top}/f")),
        (FileExistsError, lambda: weft.mkdir(top)),
        (weftfs.WeftError, lambda: weft.rmdir(top)),
        (OSError, lambda: weft.getxattr(top, "user.none")),
    ]:
        weft.write_bytes(f"{top}/f", b"")
        with pytest.raises(kind):
            call()
    with pytest.raises(ValueError, match="weft://"):
        weftfs.connect("http://x/")
    with pytest.raises(ValueError, match="transport"):
        weftfs.connect(weft.url, transport="pigeon")
    with pytest.raises(weftfs.errors.UnreachableError):
        weftfs.connect("weft://127.0.0.1:9/", timeout_ms=300, key_file=os.environ.get("WEFT_KEY_FILE"))


def test_locks(weft, top):
    weft.write_bytes(f"{top}/f", b"1")
    with weft.open_raw(f"{top}/f", "r+b") as one, weft.open_raw(f"{top}/f", "r+b") as two:
        with one.locked():
            with pytest.raises(BlockingIOError):
                two.locked(wait=False).__enter__()
        with one.locked(offset=0, nbytes=10), two.locked(offset=10, nbytes=10, wait=False):
            pass
        with two.locked(exclusive=False), one.locked(exclusive=False, wait=False):
            pass


def test_the_interpreter_goes_on_while_an_operation_waits(weft, top):
    weft.write_bytes(f"{top}/f", b"1")
    with weft.open_raw(f"{top}/f", "r+b") as one, weft.open_raw(f"{top}/f", "r+b") as two:
        with one.locked():
            waiting = threading.Thread(target=lambda: two.locked().__enter__())
            waiting.start()
            begun = time.monotonic()
            assert sum(range(1000)) == 499500 and time.monotonic() - begun < 5
        waiting.join()


def test_a_signal_ends_a_wait(weft, top):
    script = """
import signal, sys, threading, os, time, weftfs
# A shell's background job, and what it starts, ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
fs = weftfs.connect()
one = fs.open_raw(sys.argv[1], "w+b"); two = fs.open_raw(sys.argv[1], "r+b")
with one.locked():
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    try:
        two.locked().__enter__()
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - begun < 10)
"""
    done = subprocess.run([sys.executable, "-c", script, f"{top}/f"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted True\n", done.stderr


def test_forked_children_use_what_they_have(weft, top):
    data = os.urandom(100_000)
    weft.write_bytes(f"{top}/f", data)
    file = weft.open_raw(f"{top}/f")
    assert file.read_at(0, 10) == data[:10]
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                fine = all(file.read_at(at, 1000) == data[at : at + 1000] for at in range(0, 90_000, 777))
                weft.write_bytes(f"{top}/child{child}", data)
                code = 0 if fine else 2
            finally:
                os._exit(code)
        children.append(pid)
    assert file.read_at(50_000, 10) == data[50_000:50_010]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert all(weft.read_bytes(f"{top}/child{child}") == data for child in range(4))


def test_threads_share_a_connection(weft, top):
    data = os.urandom(1 << 20)
    weft.write_bytes(f"{top}/f", data)
    file, wrong = weft.open_raw(f"{top}/f"), []

    def read(begin):
        for at in range(begin, 1 << 20, 65_537):
            if file.read_at(at, 4096) != data[at : at + 4096]:
                wrong.append(at)

    threads = [threading.Thread(target=read, args=(begin,)) for begin in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_it_has_no_threads_of_its_own(weft):
    weft.stat("/")
    script = "import weftfs, os; fs = weftfs.connect(); fs.statfs(); print(len(os.listdir('/proc/self/task')))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "1\n"


def test_memory_that_servers_reach(weft, top):
    memory = weftfs.empty((1 << 20,), "u1", fs=weft)
    assert memory.nbytes == 1 << 20 and not memory.any() and memory.flags.writeable
    memory[:] = 7
    with weft.open_raw(f"{top}/f", "w+b") as file:
        file.write_at(memory, 0)
        memory[:] = 0
        assert file.readinto_at(memory, 0) == 1 << 20 and (memory == 7).all()
    assert weftfs.empty(3, fs=weft).tolist() == [0, 0, 0]


def test_the_module_says_what_it_sees(weft):
    done = subprocess.run([sys.executable, "-m", "weftfs", weft.url], capture_output=True, text=True)
    assert done.returncode == 0 and "meta0 (meta)" in done.stdout and "GiB free" in done.stdout, done
    done = subprocess.run([sys.executable, "-m", "weftfs", "weft://["], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr


def test_files_are_pickled_with_their_position(weft, top):
    weft.write_bytes(f"{top}/f", b"0123456789")
    with weft.open_raw(f"{top}/f") as file:
        file.seek(4)
        again, same = pickle.loads(pickle.dumps((file, file)))
        assert again is same and again.read(3) == b"456" and file.tell() == 4 and again.mode == "rb"
        again.close()
    for mode in "wb", "xb", "ab", "r+b", "w+b":
        name = f"{top}/{mode}"
        if mode == "r+b":
            weft.write_bytes(name, b"")
        with weft.open_raw(name, mode) as file:
            file.write(b"one")
            with pickle.loads(pickle.dumps(file)) as again:
                assert again.tell() == 3 and (again.mode, again.readable(), again.writable()) == (mode[0] + "b" + mode[1:-1], file.readable(), True)
                again.write(b"two")
        assert weft.read_bytes(name) == b"onetwo", mode
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(file)
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read())"
    with weft.open_raw(f"{top}/f") as file:
        done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(file), capture_output=True)
    assert done.stdout == b"b'0123456789'\n", done.stderr


def test_names_need_not_be_utf8(weft, top):
    name = os.fsdecode(b"caf\xe9-\xff")
    for path in f"{top}/{name}", os.fsencode(f"{top}/{name}"), pathlib.PurePosixPath(top, name):
        weft.write_bytes(path, b"1")
        assert weft.listdir(top) == [name] and weft.read_bytes(path) == b"1" and weft.stat(path).st_size == 1
        weft.symlink(name, f"{top}/l")
        assert weft.readlink(f"{top}/l") == name and weft.read_bytes(f"{top}/l") == b"1"
        weft.rename(path, f"{top}/{name}2")
        weft.link(f"{top}/{name}2", path)
        weft.copy(path, f"{top}/{name}3")
        weft.setxattr(path, f"user.{name}", b"v")
        assert weft.listxattr(path) == [f"user.{name}"] and weft.getxattr(path, f"user.{name}") == b"v"
        with weft.open_raw(path) as file:
            assert file.name == f"{top}/{name}"
        for one in weft.listdir(top):
            weft.unlink(f"{top}/{one}")
    weft.makedirs(f"{top}/{name}/{name}")
    assert [path for path, _, _ in weft.walk(top)] == [top, f"{top}/{name}", f"{top}/{name}/{name}"]
    weft.rmtree(f"{top}/{name}")
    with pytest.raises(FileNotFoundError) as caught:
        weft.stat(f"{top}/{name}")
    assert caught.value.filename == f"{top}/{name}"
    fs, at = weftfs._fs.locate("weft://h:1/caf%E9", weft)
    assert at == os.fsdecode(b"/caf\xe9")


def test_the_package_lists_what_it_has():
    assert set(weftfs.__all__) <= set(dir(weftfs)) and all(hasattr(weftfs, name) for name in dir(weftfs))


def test_an_encoding_that_is_not_known_closes_the_file_again(weft, top):
    with pytest.raises(LookupError):
        weft.open(f"{top}/f", "w", encoding="none-such")
    assert weft.read_bytes(f"{top}/f") == b""
