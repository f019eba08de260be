"""Files against Python's own: one table of modes, buffers and operations, and Hypothesis beyond it.

Each sequence runs on open() of a local file and on those of Weft: raw, buffered and text, and what fsspec gives. Results, positions,
exceptions and the contents afterwards must be the same. DELIBERATE has what differs, and why.
"""

import io
import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outcomes import exception
from weftfs.spec import WeftFileSystem

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)

MODES = ["r", "w", "a", "x", "r+", "w+", "a+", "x+"]
BEGIN = b"first line\nsecond\r\nthird\rlast \xc3\xa9"

# Sequences of operations on f; the results of all are compared.
BYTES = """
f.tell() ; f.read(5) ; f.tell() ; f.read() ; f.read(3) ; f.tell()
f.tell() ; f.write(b'one') ; f.tell() ; f.write(b'two') ; f.tell() ; f.flush() ; f.tell()
f.read(2) ; f.write(b'XY') ; f.tell() ; f.read(2) ; f.tell()
f.seek(3) ; f.write(b'here') ; f.tell() ; f.seek(0) ; f.read()
f.seek(0, 2) ; f.tell() ; f.write(b'end') ; f.seek(-3, 2) ; f.read()
f.seek(0, 99) ; f.tell() ; f.seek(0, -1) ; f.seek(5, 1) ; f.seek(-2, 1) ; f.seek(-9, 1) ; f.tell()
f.seek(-1) ; f.seek(-100, 2) ; f.seek(100) ; f.read(1) ; f.tell() ; f.seek(1.5) ; f.seek('1') ; f.seek(None) ; f.seek(True)
f.seek(2**63) ; f.seek(2**40) ; f.seek(1, 1) ; f.seek(-2**63) ; f.seek(2**70) ; f.seek(0, None) ; f.seek(0, 1.0)
f.seek(100) ; f.write(b'far') ; f.tell() ; f.seek(0) ; f.read()
f.seek(0, os.SEEK_DATA) ; f.seek(2, os.SEEK_HOLE) ; f.seek(999, os.SEEK_DATA) ; f.seek(999, os.SEEK_HOLE) ; f.tell()
f.truncate() ; f.tell() ; f.seek(0) ; f.read()
f.seek(4) ; f.truncate() ; f.tell() ; f.seek(0, 2)
f.truncate(3) ; f.tell() ; f.write(b'z') ; f.tell() ; f.seek(0) ; f.read()
f.truncate(40) ; f.seek(0) ; f.read() ; f.truncate(-1) ; f.truncate(1.5) ; f.truncate('1') ; f.truncate(True) ; f.tell()
f.read(3) ; f.truncate(1) ; f.tell() ; f.read(3) ; f.tell()
f.write(b'abc') ; f.truncate(1) ; f.tell() ; f.write(b'd') ; f.seek(0) ; f.read()
f.readline() ; f.tell() ; f.readline(3) ; f.readlines() ; f.readline()
f.readlines(5) ; f.tell() ; list(f) ; next(f)
next(f) ; f.tell() ; next(f) ; f.write(b'mid') ; f.tell() ; list(f)
f.writelines([b'a', b'bc', bytearray(b'd')]) ; f.tell() ; f.writelines([]) ; f.writelines(b'xy') ; f.writelines(['s']) ; f.writelines(None)
f.write('text') ; f.write(None) ; f.write(3) ; f.write([1]) ; f.write(b'') ; f.tell() ; f.write() ; f.write(b'', 0)
f.write(memoryview(b'abcdef')[::2]) ; f.write(np.arange(4, dtype='u1')[::2]) ; f.write(np.zeros((2, 3), 'i2')) ; f.tell()
f.write(np.zeros((2, 3), 'u1', order='F')) ; f.write(np.zeros((0, 3))) ; f.write(np.zeros(2, '>i4')) ; f.write(np.zeros((), 'i4')) ; f.tell()
f.write(np.zeros(2, 'i4,f8')) ; f.write(np.zeros(2, 'M8[s]')) ; f.write(np.array(['a'], object)) ; f.write(array.array('i', [1, 2])) ; f.tell()
f.readinto(bytearray(4)) ; f.tell() ; f.readinto(bytearray(0)) ; f.readinto(b'1234') ; f.readinto(memoryview(bytearray(8))[::2]) ; f.tell()
f.readinto(np.zeros(8, 'u1')[::2]) ; f.readinto(np.zeros((2, 2), 'u1', order='F')) ; f.readinto('x') ; f.readinto(None) ; f.readinto(np.zeros(3, 'u1'))
f.readinto(array.array('i', [1, 2])) ; f.readinto(np.zeros(2, '>i2')) ; f.readinto(np.zeros((), 'u1')) ; f.readinto(np.zeros((0, 2))) ; f.tell()
f.read(-1) ; f.seek(2) ; f.read(None) ; f.seek(2) ; f.read(-5) ; f.read(0) ; f.read(1.5) ; f.read('1') ; f.seek(1) ; f.read(1) ; f.read(True)
f.readable() ; f.writable() ; f.seekable() ; f.isatty() ; f.closed ; f.close() ; f.closed ; f.close()
f.close() ; f.read() ; f.write(b'') ; f.tell() ; f.seek(0) ; f.flush() ; f.truncate() ; f.readable() ; f.writable() ; f.seekable() ; f.isatty()
f.close() ; f.readline() ; f.readlines() ; next(f) ; iter(f) ; f.__enter__() ; f.readinto(bytearray(1)) ; f.writelines([]) ; f.writelines([b'a'])
f.__enter__() ; f.write(b'in') ; f.__exit__(None, None, None) ; f.closed ; f.read(1)
raising(f) ; f.closed ; f.write(b'x')
f.fileno() ; f.detach ; f.mode.replace('w', 'r')
"""

TEXT = """
f.tell() ; f.read(5) ; f.tell() ; f.read() ; f.tell()
f.write('one\\ntwo\\r\\n') ; f.tell() ; f.flush() ; f.tell() ; f.seek(0) ; f.read()
f.readline() ; f.tell() ; f.readline() ; f.readlines() ; f.seek(0) ; list(f)
next(f) ; f.tell() ; next(f) ; f.seek(0) ; next(f)
f.seek(0, 2) ; f.write('end\\n') ; f.tell() ; f.seek(3, 1) ; f.seek(0, 1) ; f.seek(-1, 2) ; f.seek(-1) ; f.seek(0, 99)
f.truncate(4) ; f.tell() ; f.write('\\u00e9') ; f.seek(0) ; f.read() ; f.truncate() ; f.truncate(-1)
f.writelines(['a\\n', 'b']) ; f.writelines([b'c']) ; f.write(b'd') ; f.write(None) ; f.tell()
f.mode ; f.encoding ; f.errors ; f.newlines ; f.line_buffering ; f.readable() ; f.writable() ; f.seekable() ; f.isatty() ; f.closed
f.write('partial') ; f.close() ; f.write('x') ; f.read() ; f.tell() ; f.closed
raising(f) ; f.closed ; f.read()
f.reconfigure(newline='\\r\\n') ; f.write('a\\nb') ; f.seek(0) ; f.read()
"""

TEXT_OPTIONS = [
    {}, {"newline": ""}, {"newline": "\n"}, {"newline": "\r\n"}, {"newline": "\r"}, {"encoding": "utf-16"}, {"encoding": "utf-8-sig"},
    {"encoding": "ascii"}, {"encoding": "ascii", "errors": "replace"}, {"buffering": 1}, {"buffering": 7},
]

# Arguments of open() that are refused, and such that are not.
OPENS = """
('rw',) | ('rr',) | ('',) | ('+',) | ('b',) | ('r++',) | ('rbb',) | ('rtb',) | ('U',) | ('rU',) | ('Rb',) | ('br',) | ('+br',) | ('r+t',) | ('t',)
('rt', 0) | ('rb', 0) | ('rb', 1) | ('wb', 1) | ('r', 1) | ('rb', -2) | ('rb', 7) | ('rb', -1, 'utf-8') | ('rb', -1, None, 'strict')
('rb', -1, None, None, '') | ('r', -1, 'none-such') | ('r', -1, None, 'none-such') | ('r', -1, None, None, 'x') | ('w', -1, None, None, 3) | (3,)
(None,) | ('x',) | ('r', 'x') | ('r', -1, 3)
"""

# By operation: what differs on purpose, and why.
DELIBERATE = {
    "f.fileno()": "a file of Weft has no descriptor of the kernel",
}


def steps(table):
    return [[one.strip() for one in line.split(" ; ")] for line in table.strip().splitlines()]


def raising(file):
    with file:
        raise KeyError("inside")


def names():
    import array

    import numpy as np

    return {"np": np, "os": os, "io": io, "array": array, "raising": raising}


def described(value):
    return "file" if isinstance(value, io.IOBase) else "method" if callable(value) else value


def trace(opened, operations, contents):
    """What each operation did, and the contents of the file afterwards."""
    found, scope = [], names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            file = opened()
        except Exception as error:
            return [("open", exception(error))]
        for operation in operations:
            try:
                result = described(eval(operation, scope, {"f": file}))
            except Exception as error:
                result = exception(error)
            found.append((operation, result))
        try:
            file.close()
        except Exception as error:
            found.append(("close", exception(error)))
    return [*found, ("contents", contents())]


class Pair:
    """A local file and one of Weft, with the same contents."""

    def __init__(self, weft, top, tmp_path):
        self.weft, self.path, self.local = weft, f"{top}/f", str(tmp_path / "f")
        self.fsspec = WeftFileSystem()

    def begin(self, is_there):
        for remove, write in [(os.unlink, None), (self.weft.unlink, None)]:
            try:
                remove(self.local if remove is os.unlink else self.path)
            except FileNotFoundError:
                pass
        if is_there:
            with open(self.local, "wb") as file:
                file.write(BEGIN)
            self.weft.write_bytes(self.path, BEGIN)

    def compare(self, operations, is_there, *how, fsspec=False, **options):
        self.begin(is_there)
        expected = trace(lambda: open(self.local, *how, **options), operations, lambda: read(self.local))
        open_weft = self.fsspec.open if fsspec else self.weft.open
        found = trace(lambda: open_weft(self.path, *how, **options), operations, lambda: self.weft.read_bytes(self.path))
        return [
            f"open{how} {options}: {one[0]} of {' ; '.join(operations)}\n    expected {one[1]}\n    found    {other[1]}"
            for one, other in zip(expected, found)
            if one != other and one[0] not in DELIBERATE
        ][:1]


def read(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture
def pair(weft, top, tmp_path):
    return Pair(weft, top, tmp_path)


@pytest.mark.parametrize("buffering", [0, -1, 7])
@pytest.mark.parametrize("mode", MODES)
def test_bytes(pair, mode, buffering):
    different = []
    for operations in steps(BYTES):
        different += pair.compare(operations, mode[0] != "x", mode + "b", buffering)
    assert not different, "\n".join(different)


@pytest.mark.parametrize("options", TEXT_OPTIONS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_text(pair, mode, options):
    different = []
    for operations in steps(TEXT):
        different += pair.compare(operations, mode[0] != "x", mode, **options)
    assert not different, "\n".join(different)


@pytest.mark.parametrize("mode", MODES)
def test_fsspec(pair, mode):
    different = []
    for operations in steps(BYTES):
        different += pair.compare([one for one in operations if one not in ("f.detach", "f.mode.replace('w', 'r')")], mode[0] != "x", mode + "b", fsspec=True)
    assert not different, "\n".join(different)


def test_opens(pair):
    different = []
    for line in OPENS.strip().splitlines():
        for how in line.split(" | "):
            different += pair.compare(["f.readable()", "f.writable()"], True, *eval(how))
    assert not different, "\n".join(different)


def test_an_append_begins_at_the_end(weft, top):
    for _ in range(2):
        with weft.open(f"{top}/t.csv", "a", encoding="utf-16") as file:
            if file.tell() == 0:
                file.write("header\n")
            file.write("row\n")
    assert weft.read_bytes(f"{top}/t.csv").decode("utf-16") == "header\nrow\nrow\n"


@SETTINGS
@given(data=st.data(), mode=st.sampled_from(MODES), buffering=st.sampled_from([0, 5, -1]), fsspec=st.booleans())
def test_any_sequence(pair, data, mode, buffering, fsspec):
    number = st.integers(-10, 60)
    one = st.one_of(
        st.binary(max_size=20).map(lambda part: f"f.write({part!r})"), number.map(lambda n: f"f.read({n})"),
        st.tuples(number, st.sampled_from([0, 1, 2, 5])).map(lambda where: f"f.seek{where}"), st.just("f.tell()"),
        number.map(lambda n: f"f.truncate({n})"), st.sampled_from(["f.truncate()", "f.flush()", "f.readline()", "next(f)", "f.read()"]),
        st.integers(0, 20).map(lambda n: f"f.readinto(bytearray({n}))"), st.just("f.readlines()"),
    )
    operations = data.draw(st.lists(one, max_size=12))
    how = {"fsspec": True} if fsspec else {"buffering": buffering}
    different = pair.compare(operations, mode[0] != "x", mode + "b", **how)
    assert not different, different[0]
