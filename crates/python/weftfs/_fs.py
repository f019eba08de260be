"""File systems: connections, names and attributes."""

from __future__ import annotations

import io
import os
import posixpath
import stat as _stat
import urllib.parse
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from ._file import File
from ._weftfs import Client
from .errors import ExistsError, NotFoundError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_LayoutLike = tuple[int, ...]

# What a buffered file reads at least: some hundred microseconds of a network, and not much more than a random access takes.
BUFFER_BYTES = 128 << 10


class Layout(NamedTuple):
    """How a file is striped. 0 servers: all; first server -1: any."""

    strip_bytes: int
    servers: int
    first_server: int


class Stat(NamedTuple):
    """Attributes of an inode: the words of os.stat_result, times in nanoseconds since 1970, and the layout."""

    st_ino: int
    st_mode: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_birthtime_ns: int
    layout: Layout | None

    @property
    def st_mtime(self) -> float:
        """Last change of contents, in seconds since 1970."""
        return self.st_mtime_ns / 1e9

    @property
    def st_atime(self) -> float:
        """Last access, in seconds since 1970."""
        return self.st_atime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Last change of attributes, in seconds since 1970."""
        return self.st_ctime_ns / 1e9

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return _stat.S_ISDIR(self.st_mode)

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return _stat.S_ISREG(self.st_mode)

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return _stat.S_ISLNK(self.st_mode)


def _stat_of(raw):
    layout = raw[10]
    return Stat(*raw[:10], None if layout is None else Layout(*layout))


class DirEntry(NamedTuple):
    """A name in a directory."""

    name: str
    path: str
    stat: Stat | None


class Space(NamedTuple):
    """Space of all I/O servers together, in bytes, and inodes in use."""

    space_bytes: int
    free_bytes: int
    available_bytes: int
    files: int


def _wish(layout):
    if layout is None:
        return None
    strip_bytes, servers, first_server = (tuple(layout) + (0, 0, -1)[len(tuple(layout)) :])[:3]
    return strip_bytes, servers, first_server


def _kind_of(mode):
    """One of r, w, a, x; whether it is both read and written; whether it is text."""
    if not isinstance(mode, str):
        raise TypeError(f"mode is a string, not {type(mode).__name__}")
    kinds = [one for one in mode if one in "rwax"]
    if len(set(mode)) < len(mode) or set(mode) - set("rwaxbt+") or len(kinds) != 1 or "b" in mode and "t" in mode:
        raise ValueError(f"invalid mode: {mode!r}")
    return kinds[0], "+" in mode, "b" not in mode


class FileSystem(Client):
    """A connection to a file system, made by :func:`connect`.

    Paths begin at its root; what does not begin with a slash is below the path of its URL. It may be used by any number of threads,
    and goes on in forked children. It is pickled as its URL and options.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._options = options
        self._below = posixpath.join("/", urllib.parse.unquote(urllib.parse.urlsplit(url).path, errors="surrogateescape"))

    def __reduce__(self):
        return _again, (self.url, self._options)

    def __repr__(self):
        return f"<weftfs.FileSystem {self.url!r}>"

    def _at(self, path: _Path) -> str:
        at = os.fsdecode(path)
        return at if at.startswith("/") else posixpath.join(self._below, at)

    def open(
        self,
        path: _Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **how: Any,
    ) -> IO[Any]:
        """Opens a file as Python's ``open`` does; ``buffering=0`` gives a :class:`File`. ``how`` is as for :meth:`open_raw`."""
        is_text = _kind_of(mode)[2]
        if not isinstance(buffering, int):
            raise TypeError(f"buffering is an integer, not {type(buffering).__name__}")
        if is_text and buffering == 0:
            raise ValueError("text is always buffered")
        of_text = {"encoding": encoding, "errors": errors, "newline": newline}
        for name, value in of_text.items():
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} is a string or None, not {type(value).__name__}")
            if value is not None and not is_text:
                raise ValueError(f"binary mode has no {name}")
        if not is_text and buffering == 1:
            warnings.warn("line buffering is for text; the usual buffer is used", RuntimeWarning, stacklevel=2)
        raw: Any = self.open_raw(path, mode.replace("t", ""), **how)
        if buffering == 0:
            return raw
        try:
            kind: Any = io.BufferedRandom
            if "+" not in mode:
                kind = io.BufferedReader if raw.readable() else io.BufferedWriter
            buffered = kind(raw, buffering if buffering > 1 else BUFFER_BYTES)
            if not is_text:
                return buffered
            text: Any = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
            text.mode = mode
            return text
        except BaseException:
            raw.close()
            raise

    def open_raw(
        self,
        path: _Path,
        mode: str = "rb",
        *,
        layout: _LayoutLike | None = None,
        striped: bool = False,
        permissions: int = 0o666,
    ) -> File:
        """Opens a :class:`File`, without a buffer.

        ``mode`` is one of r, w, a, x, with + for both ways. ``layout`` is ``(strip_bytes, servers, first_server)`` for a new file.
        ``striped`` has a new file striped from the beginning, where it is known not to be small.
        """
        kind, both, _ = _kind_of(mode)
        native = self.open_native(
            self._at(path),
            read=kind == "r" or both,
            write=kind != "r" or both,
            create=kind in "wa",
            exclusive=kind == "x",
            truncate=kind == "w",
            append=kind == "a",
            striped=striped or layout is not None,
            mode=permissions,
            layout=_wish(layout),
        )
        return File(native, kind + ("+" if both else ""), self)

    def reopen(self, path: _Path, kind: str, both: bool) -> File:
        """Opens a file once more that was opened with a mode of ``kind`` (r, w, a, x), and ``both`` for one with +.

        What is in it stays, and it is not made. Files that were pickled are opened like this.
        """
        native = self.open_native(
            self._at(path),
            read=kind == "r" or both,
            write=kind != "r" or both,
            create=False,
            exclusive=False,
            truncate=False,
            append=kind == "a",
            striped=False,
            mode=0,
            layout=None,
        )
        return File(native, kind + ("+" if both else ""), self)

    def stat(self, path: _Path, *, follow_symlinks: bool = True) -> Stat:
        """Attributes of what has this name: a :class:`Stat`."""
        return _stat_of(self.stat_raw(self._at(path), follow_symlinks))

    def _find(self, path):
        try:
            return self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: _Path) -> bool:
        """Whether there is something with this name."""
        return self._find(path) is not None

    def isdir(self, path: _Path) -> bool:
        """Whether it is a directory."""
        found = self._find(path)
        return found is not None and found.is_dir()

    def isfile(self, path: _Path) -> bool:
        """Whether it is a regular file."""
        found = self._find(path)
        return found is not None and found.is_file()

    def scandir(self, path: _Path = ".") -> list[DirEntry]:
        """A list of :class:`DirEntry`, in the order of their making; one request for some hundred entries."""
        at = self._at("" if path == "." else path)
        entries = ((os.fsdecode(name), raw) for name, raw in self.list_raw(at))
        return [DirEntry(name, posixpath.join(at, name), _stat_of(raw) if raw else None) for name, raw in entries]

    def listdir(self, path: _Path = ".") -> list[str]:
        """Names in a directory."""
        return [entry.name for entry in self.scandir(path)]

    def walk(self, top: _Path = ".") -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk, from the top down: ``(path, names of directories, names of others)``."""
        entries = self.scandir(top)
        directories = [entry for entry in entries if entry.stat and entry.stat.is_dir()]
        others = [entry.name for entry in entries if not (entry.stat and entry.stat.is_dir())]
        names = [entry.name for entry in directories]
        at = self._at("" if top == "." else top)
        yield at, names, others
        for name in names:
            yield from self.walk(posixpath.join(at, name))

    def mkdir(self, path: _Path, mode: int = 0o777, *, layout: _LayoutLike | None = None) -> None:
        """Makes a directory. ``layout`` is that of new files in it."""
        self.mkdir_raw(self._at(path), mode, _wish(layout))

    def makedirs(self, path: _Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        at = self._at(path)
        try:
            self.mkdir(at, mode)
        except NotFoundError:
            self.makedirs(posixpath.dirname(at.rstrip("/")), mode, exist_ok=True)
            self.makedirs(at, mode, exist_ok)
        except ExistsError:
            if not exist_ok or not self.isdir(at):
                raise

    def set_layout(self, path: _Path, layout: _LayoutLike | None) -> None:
        """The layout of new files in a directory, ``(strip_bytes, servers, first_server)``; None: that of the cluster."""
        self.set_layout_raw(self._at(path), _wish(layout))

    def unlink(self, path: _Path) -> None:
        """Removes a file."""
        super().unlink(self._at(path))

    remove = unlink

    def rmdir(self, path: _Path) -> None:
        """Removes a directory with nothing in it."""
        super().rmdir(self._at(path))

    def symlink(self, target: _Path, path: _Path) -> None:
        """Makes a symbolic link ``path`` that contains ``target``."""
        super().symlink(os.fsdecode(target), self._at(path))

    def link(self, source: _Path, path: _Path) -> None:
        """Gives a file another name."""
        super().link(self._at(source), self._at(path))

    def readlink(self, path: _Path) -> str:
        """What a symbolic link contains."""
        return super().readlink(self._at(path))

    def truncate(self, path: _Path, nbytes: int) -> None:
        """Sets the size of a file."""
        super().truncate(self._at(path), nbytes)

    def getxattr(self, path: _Path, name: str) -> bytes:
        """The value of an extended attribute."""
        return super().getxattr(self._at(path), name)

    def setxattr(self, path: _Path, name: str, value: bytes) -> None:
        """Sets an extended attribute."""
        super().setxattr(self._at(path), name, value)

    def removexattr(self, path: _Path, name: str) -> None:
        """Removes an extended attribute."""
        super().removexattr(self._at(path), name)

    def listxattr(self, path: _Path) -> list[str]:
        """Names of extended attributes."""
        return super().listxattr(self._at(path))

    def rmtree(self, path: _Path) -> None:
        """Removes a directory and all below it."""
        path = self._at(path)
        for entry in self.scandir(path):
            if entry.stat and entry.stat.is_dir():
                self.rmtree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)

    def rename(self, source: _Path, target: _Path, *, replace: bool = True) -> None:
        """Renames; what has the name ``target`` is replaced, or with ``replace=False`` in the way."""
        self.rename_raw(self._at(source), self._at(target), not replace)

    replace = rename

    def chmod(self, path: _Path, mode: int) -> None:
        """Sets permissions."""
        self.set_attributes(self._at(path), mode=mode)

    def chown(self, path: _Path, uid: int, gid: int) -> None:
        """Sets owner and group; -1 leaves one."""
        of = lambda number: None if number == -1 else number
        self.set_attributes(self._at(path), uid=of(uid), gid=of(gid))

    def utime(self, path: _Path, *, ns: tuple[int, int]) -> None:
        """Sets the times ``(atime_ns, mtime_ns)``."""
        self.set_attributes(self._at(path), times_ns=ns)

    def copy(self, source: _Path, target: _Path) -> None:
        """Copies a file's contents; the servers do it by themselves."""
        with self.open_raw(source) as reads:
            nbytes = reads.size()
            with self.open_raw(target, "wb", striped=nbytes > 1 << 16) as writes:
                self.copy_range(reads._native, 0, writes._native, 0, nbytes)
                if writes.size() < nbytes:
                    writes.truncate(nbytes)

    def statfs(self) -> Space:
        """Space and files of all: a :class:`Space`."""
        return Space(*self.statfs_raw())

    def read_bytes(self, path: _Path) -> bytes:
        """All bytes of a file."""
        with self.open_raw(path) as file:
            return file.readall()

    def write_bytes(self, path: _Path, data: Any) -> None:
        """Makes a file with these bytes, or gives one these."""
        with self.open_raw(path, "wb", striped=memoryview(data).nbytes > 1 << 16) as file:
            file.write(data)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = float, order: Literal["C", "F"] = "C") -> NDArray[Any]:
        """A NumPy array in memory that servers on this host read and write without a copy. It is zeros."""
        import numpy

        dtype = numpy.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for one in shape:
            count *= one
        memory: Any = self.alloc(max(1, count * dtype.itemsize))
        return numpy.frombuffer(memory, dtype, count).reshape(shape, order=order)


_connected: dict[str | None, FileSystem] = {}


def locate(path: _Path, fs: FileSystem | None = None) -> tuple[FileSystem, str]:
    """``(fs, path)`` of a path, or of a URL ``weft://HOST:PORT/PATH``. Without ``fs`` a path is below ``$WEFT_URL``.

    What was connected to once is used again.
    """
    at, url = os.fsdecode(path), None
    if at.startswith("weft://"):
        parts = urllib.parse.urlsplit(at)
        url = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "/", parts.query, ""))
        at = urllib.parse.unquote(parts.path, errors="surrogateescape") or "/"
    if fs is None:
        url = url or os.environ.get("WEFT_URL")
        fs = _connected.get(url)
        if fs is None:
            fs = _connected[url] = connect(url)
    return fs, fs._at(at)


# Of this process, by URL and options: many files that are unpickled share a connection.
_unpickled: weakref.WeakValueDictionary[Any, FileSystem] = weakref.WeakValueDictionary()


def _again(url, options):
    key = url, *sorted((name, str(value)) for name, value in options.items())
    fs = _unpickled.get(key)
    if fs is None:
        fs = _unpickled[key] = FileSystem(url, **options)
    return fs


def connect(
    url: str | None = None,
    *,
    transport: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
    timeout_ms: int | None = None,
) -> FileSystem:
    """Connects to a file system: a :class:`FileSystem`.

    ``url`` is ``weft://HOST:PORT/PATH``; without it ``$WEFT_URL``. ``transport`` is auto, tcp, shm or rdma. Without ``key_file`` the
    key is found as ``weft help keys`` says. ``timeout_ms`` is how long an operation waits for servers that do not answer.
    """
    url = url or os.environ.get("WEFT_URL")
    if not url:
        raise ValueError("no URL: give one (weft://HOST:PORT/), or set WEFT_URL")
    return FileSystem(url, transport=transport, key_file=key_file, timeout_ms=timeout_ms)
