"""fsspec: `weft://HOST:PORT/path` in pandas, pyarrow, dask, xarray and whatever else opens URLs.

    >>> import fsspec
    >>> fs = fsspec.filesystem("weft", host="node1", port=7400)     # or without them: $WEFT_URL
    >>> fs.cat_ranges(["/x"] * 3, [0, 100, 200], [10, 110, 210])    # one operation
"""

import io
import os
import posixpath
import stat as _stat
import urllib.parse
import uuid

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import _fs

_KINDS = {_stat.S_IFREG: "file", _stat.S_IFDIR: "directory", _stat.S_IFLNK: "link"}
# Bytes of one operation of cat_ranges: a piece of memory of this size is made at a time.
_BATCH_BYTES = 256 << 20


class WeftFileSystem(AbstractFileSystem):
    """A file system of Weft for fsspec.

    Parameters: ``host``, ``port``; or ``url`` (``weft://HOST:PORT/``); or neither, for ``$WEFT_URL``. ``transport``, ``key_file`` and
    ``timeout_ms`` are as for :func:`weftfs.connect`. Missing directories of what is written are made, unless
    ``auto_mkdir`` is false.

    Files are written to the servers as soon as the buffer of ``block_size`` bytes is full, and by ``flush``, which costs no message
    of its own. In a transaction they get their names when it ends.
    """

    protocol = "weft"
    root_marker = "/"
    async_impl = False

    def __init__(
        self, url=None, host=None, port=None, transport=None, key_file=None, timeout_ms=None, auto_mkdir=True, **storage_options
    ):
        super().__init__(**storage_options)
        self.auto_mkdir = auto_mkdir
        if url is None and host is not None:
            address = f"[{host}]" if ":" in host else host
            url = f"weft://{address}:{port}/" if port else f"weft://{address}/"
        self.weft = _fs.connect(url, transport=transport, key_file=key_file, timeout_ms=timeout_ms)

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("weft://"):
            path = urllib.parse.urlsplit(path).path
        elif path.startswith("weft:"):
            path = path[5:]
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path):
        parts = urllib.parse.urlsplit(stringify_path(path))
        found = {"host": parts.hostname, "port": parts.port} if parts.scheme == "weft" else {}
        return {name: value for name, value in found.items() if value}

    @property
    def fsid(self):
        return f"weft_{self.weft.url}"

    def unstrip_protocol(self, name):
        parts = urllib.parse.urlsplit(self.weft.url)
        return f"weft://{parts.netloc}{self._strip_protocol(name)}"

    def _info(self, path, stat):
        kind = _KINDS.get(_stat.S_IFMT(stat.st_mode), "other")
        info = {
            "name": path,
            "size": 0 if kind == "directory" else stat.st_size,
            "type": kind,
            "created": stat.st_birthtime_ns / 1e9,
            "mtime": stat.st_mtime_ns / 1e9,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": kind == "link",
        }
        if kind == "link":
            info["destination"] = self.weft.readlink(path)
            try:
                target = self.weft.stat(path)
                info["size"] = target.st_size
                info["type"] = _KINDS.get(_stat.S_IFMT(target.st_mode), "other")
            except FileNotFoundError:
                info["size"] = 0
        return info

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._info(path, self.weft.stat(path, follow_symlinks=False))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        stat = self.weft.stat(path)
        if not stat.is_dir():
            found = [self._info(path, stat)]
        else:
            found = [self._info(entry.path, entry.stat) for entry in self.weft.scandir(path) if entry.stat]
        return found if detail else [one["name"] for one in found]

    def exists(self, path, **kwargs):
        return self.weft.exists(self._strip_protocol(path))

    def isdir(self, path):
        return self.weft.isdir(self._strip_protocol(path))

    def isfile(self, path):
        return self.weft.isfile(self._strip_protocol(path))

    def islink(self, path):
        try:
            return self.weft.stat(self._strip_protocol(path), follow_symlinks=False).is_symlink()
        except FileNotFoundError:
            return False

    def created(self, path):
        return self._time(path, "st_birthtime_ns")

    def modified(self, path):
        return self._time(path, "st_mtime_ns")

    def _time(self, path, which):
        import datetime

        ns = getattr(self.weft.stat(self._strip_protocol(path)), which)
        return datetime.datetime.fromtimestamp(ns / 1e9, tz=datetime.timezone.utc)

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if create_parents:
            self.weft.makedirs(path)
        else:
            self.weft.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.weft.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.weft.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.weft.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            stat = self.weft.stat(one, follow_symlinks=False)
            if not stat.is_dir():
                self.weft.unlink(one)
            elif not recursive:
                raise IsADirectoryError(21, "it is a directory, and recursive is not set", one)
            elif one == "/":
                raise ValueError("cannot remove the root directory")
            else:
                self.weft.rmtree(one)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if isinstance(source, str) and isinstance(target, str) and not self.weft.isdir(target):
            self._make_parent(target)
            self.weft.rename(source, target)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(target)
        if self.weft.isdir(source):
            self.weft.makedirs(target, exist_ok=True)
        else:
            self.weft.copy(source, target)

    def link(self, src, dst, **kwargs):
        self.weft.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src, dst, **kwargs):
        self.weft.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.weft.open_raw(path, "wb" if truncate else "ab").close()
        if not truncate:
            import time

            now = time.time_ns()
            self.weft.utime(path, ns=(now, now))

    def _make_parent(self, path):
        if self.auto_mkdir:
            self.weft.makedirs(posixpath.dirname(path), exist_ok=True)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if mode[0] != "r":
            self._make_parent(path)
        size = block_size if isinstance(block_size, int) and block_size > 0 else _fs.BUFFER_BYTES
        return WeftFile(self, path, mode, autocommit, size, **kwargs)

    def cat_file(self, path, start=None, end=None, **kwargs):
        with self.weft.open_raw(self._strip_protocol(path)) as file:
            if start is None and end is None:
                return file.readall()
            start, end = _bounds(start, end, file.size)
            return file.read_at(start, max(0, end - start))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        self._make_parent(path)
        with self.weft.open_raw(path, "xb" if mode == "create" else "wb", striped=len(value) > 1 << 16) as file:
            file.write(value)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Bytes of ``paths[i]`` from ``starts[i]`` to ``ends[i]``; all ranges of a file are one operation.

        None, and numbers below 0, mean what they mean in a slice. What is beyond the end of a file is left out. With
        ``on_error="return"`` an exception takes the place of what could not be read, with ``"raise"`` it is raised.
        """
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends: one of each for a range")
        places = {}
        for at, path in enumerate(paths):
            places.setdefault(path, []).append(at)
        found = [None] * len(paths)
        for path, wanted in places.items():
            try:
                self._cat_ranges_of(path, wanted, starts, ends, found)
            except Exception as error:
                if on_error == "raise":
                    raise
                for at in wanted:
                    found[at] = error if on_error == "return" else None
        return found

    def _cat_ranges_of(self, path, wanted, starts, ends, found):
        with self.weft.open_raw(self._strip_protocol(path)) as file:
            size = file.size()
            batch, batch_bytes = [], 0
            for at in wanted:
                start, end = _bounds(starts[at], ends[at], lambda: size)
                nbytes = max(0, min(end, size) - start)
                if batch_bytes + nbytes > _BATCH_BYTES and batch:
                    _read_batch(file, batch, found)
                    batch, batch_bytes = [], 0
                batch.append((at, start, nbytes))
                batch_bytes += nbytes
            _read_batch(file, batch, found)


def _read_batch(file, batch, found):
    if len(batch) == 1:
        at, start, nbytes = batch[0]
        found[at] = file.read_at(start, nbytes)
        return
    cuts = file.read_ranges([(start, nbytes) for _, start, nbytes in batch])
    for (at, _, _), cut in zip(batch, cuts):
        found[at] = cut


def _bounds(start, end, size):
    start = 0 if start is None else start
    if end is None or start < 0 or end < 0:
        nbytes = size()
        start = max(0, nbytes + start) if start < 0 else start
        end = nbytes if end is None else max(0, nbytes + end) if end < 0 else end
    return start, end


class WeftFile(io.IOBase):
    """An open file of a WeftFileSystem; one of a transaction has a name of its own until it ends."""

    def __init__(self, fs, path, mode, autocommit=True, block_size=_fs.BUFFER_BYTES, **how):
        self.fs = fs
        self.path = path
        self.mode = mode
        self.blocksize = block_size
        self.autocommit = autocommit
        self._name = path
        if not autocommit and mode[0] in "wx":
            if mode[0] == "x" and fs.weft.exists(path):
                raise FileExistsError(path)
            self._name = f"{posixpath.dirname(path)}/.{posixpath.basename(path)}.{uuid.uuid4().hex[:12]}"
        if mode[0] != "r":
            fs.invalidate_cache()
        known = {key: how[key] for key in ("layout", "striped", "permissions") if key in how}
        self.raw = fs.weft.open_raw(self._name, mode.replace("t", ""), **known)
        if "+" in mode:
            self._buffer = io.BufferedRandom(self.raw, block_size)
        else:
            kind = io.BufferedReader if self.raw.readable() else io.BufferedWriter
            self._buffer = kind(self.raw, block_size)

    @property
    def size(self):
        return self.raw.size()

    @property
    def name(self):
        return self.path

    def readable(self):
        return self._buffer.readable()

    def writable(self):
        return self._buffer.writable()

    def seekable(self):
        return self._buffer.seekable()

    def tell(self):
        return self._buffer.tell()

    def seek(self, *args):
        return self._buffer.seek(*args)

    def read(self, *args):
        return self._buffer.read(*args)

    def read1(self, *args):
        return self._buffer.read1(*args)

    def readinto(self, buffer):
        return self._buffer.readinto(buffer)

    def readline(self, *args):
        return self._buffer.readline(*args)

    def readlines(self, *args):
        return self._buffer.readlines(*args)

    def readuntil(self, char=b"\n", blocks=None):
        """Bytes up to ``char``, with it, or to the end."""
        found = bytearray()
        while part := self._buffer.peek(1):
            at = part.find(char[:1])
            if at < 0:
                found += self._buffer.read(len(part))
                continue
            found += self._buffer.read(at + 1)
            if found.endswith(char) or len(char) == 1:
                break
        return bytes(found)

    def write(self, *args):
        return self._buffer.write(*args)

    def truncate(self, *args):
        return self._buffer.truncate(*args)

    def flush(self, force=False):
        """Sends what is in the buffer to the servers: then others read it."""
        self._buffer.flush()

    def __iter__(self):
        return iter(self._buffer)

    def __next__(self):
        return next(self._buffer)

    @property
    def closed(self):
        # IOBase asks before there is a buffer, where the file could not be opened.
        return "_buffer" not in self.__dict__ or self._buffer.closed

    def close(self):
        if not self.closed:
            self._buffer.close()

    def commit(self):
        """Gives it its name."""
        self._buffer.close()
        if self._name != self.path:
            self.fs.weft.rename(self._name, self.path)
            self._name = self.path

    def discard(self):
        """Removes it."""
        self._buffer.close()
        if self._name != self.path:
            self.fs.weft.unlink(self._name)
            self._name = self.path

    def fileno(self):
        raise io.UnsupportedOperation("it has no descriptor of the kernel")
