"""Zarr (version 3 of the package): stores in a file system of Weft.

    >>> import zarr, weftfs
    >>> from weftfs.zarr import WeftStore
    >>> store = WeftStore(weftfs.connect(), "/data/run7.zarr")
    >>> array = zarr.create_array(store, shape=(4096, 4096), chunks=(64, 64), shards=(1024, 1024), dtype="f4")

Parts of a value are read by themselves, all that are asked for at once by one operation for each file. ``set_range`` writes into a
value where it is. A value that is written as a whole appears under its key when it is complete.

Zarr's codec for shards asks for one chunk after the other:

    its own           index ─► chunk ─► chunk ─► chunk ─► …             a wait for each
    ShardingCodec     index ─► list of all chunks of the selection      two waits

Arrays that are opened when there is a WeftStore have this module's codec; it changes nothing in what is stored, and does with other
stores what Zarr's does.
"""

import asyncio
import posixpath
import uuid
import weakref

import zarr.codecs
import zarr.registry
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer
from zarr.core.buffer.core import default_buffer_prototype
from zarr.core.chunk_grids import RegularChunkGrid
from zarr.core.indexing import get_indexer

from . import _fs

_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# A thread of the event loop's pool costs more than to read so many bytes.
_INLINE_BYTES = 256 << 10
# What is read for a small part of a shard.
_AHEAD_BYTES = 256 << 10


class _Version:
    """A value as it was when its index was read, for the parts that are read next: they belong to that index.

    A chunk of a shard is mostly near the one before, so that what comes after a small part is read with it.
    """

    def __init__(self, file):
        self.file = file
        self.at, self.data = 0, b""

    def read(self, start, end):
        """Bytes of the value, as far as it goes."""
        if self.at <= start and end <= self.at + len(self.data):
            return self.data[start - self.at : end - self.at]
        nbytes = max(0, end - start)
        if nbytes > _AHEAD_BYTES // 2:
            return self.file.read_at(start, nbytes)
        self.at, self.data = start, self.file.read_at(start, _AHEAD_BYTES)
        return self.data[:nbytes]

    def __del__(self):
        self.file.close()


class ShardingCodec(zarr.codecs.ShardingCodec):
    """Zarr's codec for shards, with all chunks of a selection read by one operation from a :class:`WeftStore`."""

    async def _decode_partial_single(self, byte_getter, selection, shard_spec):
        if isinstance(getattr(byte_getter, "store", None), WeftStore):
            byte_getter = await self._fetched(byte_getter, selection, shard_spec)
        return await super()._decode_partial_single(byte_getter, selection, shard_spec)

    async def _fetched(self, byte_getter, selection, shard_spec):
        """What gives the index and the chunks of the selection, which are read now; ``byte_getter`` itself where all are wanted."""
        grid = RegularChunkGrid(chunk_shape=self.chunk_shape)
        wanted = {coords for coords, *_ in get_indexer(selection, shape=shard_spec.shape, chunk_grid=grid)}
        chunks_per_shard = self._get_chunks_per_shard(shard_spec)
        if self._is_total_shard(wanted, chunks_per_shard):
            return byte_getter
        fetched = _Fetched(byte_getter)
        index = await self._load_shard_index_maybe(fetched, chunks_per_shard)
        if index is not None:
            ranges = [index.get_chunk_slice(coords) for coords in wanted]
            await fetched.read([RangeByteRequest(*one) for one in ranges if one])
        return fetched


# What it takes of Zarr's; a release without one of them goes on with its own codec.
_TAKES = ("_decode_partial_single", "_get_chunks_per_shard", "_is_total_shard", "_load_shard_index_maybe")
_ITS_OWN = "zarr.codecs.sharding.ShardingCodec"
zarr.registry.register_codec("sharding_indexed", ShardingCodec)


def _use_our_codec():
    if zarr.config.get("codecs.sharding_indexed") == _ITS_OWN and all(hasattr(zarr.codecs.ShardingCodec, name) for name in _TAKES):
        zarr.config.set({"codecs.sharding_indexed": "weftfs.zarr.ShardingCodec"})


class _Fetched:
    """Parts of a value that were read, by what is asked for."""

    def __init__(self, byte_getter):
        self._getter = byte_getter
        self._parts = {}

    async def read(self, byte_ranges):
        store, key = self._getter.store, self._getter.path
        found = await store.read_next(default_buffer_prototype(), key, byte_ranges)
        self._parts.update(zip(byte_ranges, found))

    async def get(self, prototype, byte_range=None):
        if byte_range not in self._parts:
            self._parts[byte_range] = await self._getter.get(prototype=prototype, byte_range=byte_range)
        return self._parts[byte_range]


def _again(cls, fs, root, read_only):
    return cls(fs, root, read_only=read_only)


class WeftStore(Store):
    """Values of Zarr as files below ``root``.

    Parameters: ``fs``, a :class:`weftfs.FileSystem` or a URL; None for ``$WEFT_URL``. ``root``, a directory.
    """

    supports_writes = True
    supports_deletes = True
    supports_listing = True

    def __init__(self, fs=None, root="/", *, read_only=False):
        super().__init__(read_only=read_only)
        self.fs = fs if isinstance(fs, _fs.FileSystem) else _fs.connect(fs)
        self.root = "/" + str(root).strip("/")
        # What tasks read the parts of: a key and its _Version.
        self._versions = weakref.WeakKeyDictionary()
        _use_our_codec()

    def __reduce__(self):
        return _again, (type(self), self.fs, self.root, self.read_only)

    def with_read_only(self, read_only=False):
        return type(self)(self.fs, self.root, read_only=read_only)

    async def _open(self):
        self._find_root()
        await super()._open()

    def _ensure_open_sync(self):
        if not self._is_open:
            self._find_root()
            self._is_open = True

    def _find_root(self):
        if not self.read_only:
            self.fs.makedirs(self.root, exist_ok=True)
        elif not self.fs.exists(self.root):
            raise FileNotFoundError(f"{self.root} does not exist")

    def __str__(self):
        return f"{self.fs.url.rstrip('/')}{self.root}"

    def __repr__(self):
        return f"WeftStore('{self}')"

    def __eq__(self, other):
        return isinstance(other, type(self)) and (self.fs.url, self.root) == (other.fs.url, other.root)

    def _path(self, key):
        if not isinstance(key, str):
            raise TypeError(f"a key is a string, not {type(key)}")
        return posixpath.join(self.root, key)

    def _read(self, key, prototype, byte_range):
        try:
            with self.fs.open_raw(self._path(key)) as file:
                match byte_range:
                    case None:
                        data = file.readall()
                    case RangeByteRequest(start, end):
                        data = file.read_at(start, max(0, end - start))
                    case _:
                        data = file.read_at(*_cut(byte_range, file.size()))
        except _MISSING:
            return None
        return prototype.buffer.from_bytes(data)

    def get_sync(self, key, *, prototype=None, byte_range=None):
        self._ensure_open_sync()
        return self._read(key, prototype or default_buffer_prototype(), byte_range)

    async def get(self, key, prototype=None, byte_range=None):
        if not self._is_open:
            await self._open()
        prototype = prototype or default_buffer_prototype()
        match byte_range:
            case SuffixByteRequest(suffix) if suffix <= _INLINE_BYTES:
                return self._read_index(key, prototype, suffix)
            case RangeByteRequest(start, end) if end - start <= _INLINE_BYTES:
                held, version = self._versions.get(asyncio.current_task(), (None, None))
                if held == key:
                    return prototype.buffer.from_bytes(version.read(start, end))
                return self._read(key, prototype, byte_range)
        return await asyncio.to_thread(self._read, key, prototype, byte_range)

    def _read_index(self, key, prototype, suffix):
        """The end of a value. In a shard it is the index, and the same task reads parts next."""
        self._versions.pop(asyncio.current_task(), None)
        try:
            file = self.fs.open_raw(self._path(key))
            data = file.read_at(*_cut(SuffixByteRequest(suffix), file.size()))
        except _MISSING:
            return None
        self._versions[asyncio.current_task()] = (key, _Version(file))
        return prototype.buffer.from_bytes(data)

    async def read_next(self, prototype, key, byte_ranges):
        """Parts of a value whose index this task has read: by one operation, and of the same version."""
        held, version = self._versions.get(asyncio.current_task(), (None, None))
        if held != key:
            return await self.get_partial_values(prototype, [(key, byte_range) for byte_range in byte_ranges])
        cuts = [(one.start, one.end - one.start) for one in byte_ranges]
        if sum(nbytes for _, nbytes in cuts) <= _INLINE_BYTES:
            parts = version.file.read_ranges(cuts)
        else:
            parts = await asyncio.to_thread(version.file.read_ranges, cuts)
        return [prototype.buffer.from_bytes(part) for part in parts]

    async def get_partial_values(self, prototype, key_ranges):
        if not self._is_open:
            await self._open()
        return await asyncio.to_thread(self._read_parts, prototype, list(key_ranges))

    def _read_parts(self, prototype, key_ranges):
        """All parts of a value are one operation."""
        places, found = {}, [None] * len(key_ranges)
        for at, (key, _) in enumerate(key_ranges):
            places.setdefault(key, []).append(at)
        for key, wanted in places.items():
            try:
                with self.fs.open_raw(self._path(key)) as file:
                    size = file.size()
                    cuts = file.read_ranges([_cut(key_ranges[at][1], size) for at in wanted])
            except _MISSING:
                continue
            for at, cut in zip(wanted, cuts):
                found[at] = prototype.buffer.from_bytes(cut)
        return found

    def _write(self, key, value, exclusive=False):
        self._check_writable()
        self._versions.clear()
        if not isinstance(value, Buffer):
            raise TypeError(f"WeftStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead.")
        path = self._path(key)
        if exclusive and self.fs.exists(path):
            return
        above, name = posixpath.split(path)
        apart = posixpath.join(above, f".{name}.{uuid.uuid4().hex[:12]}")
        data = value.as_buffer_like()
        file = None
        while file is None:
            try:
                file = self.fs.open_raw(apart, "xb", striped=len(value) > 1 << 16)
            except FileNotFoundError:
                # Somebody may remove it again, since nothing is in it.
                self.fs.makedirs(above, exist_ok=True)
        try:
            with file:
                file.write_at(data, 0)
            self.fs.rename(apart, path, replace=not exclusive)
        except FileExistsError:
            self.fs.unlink(apart)
        except BaseException:
            self.fs.unlink(apart)
            raise

    def set_sync(self, key, value):
        self._ensure_open_sync()
        self._write(key, value)

    async def set(self, key, value):
        if not self._is_open:
            await self._open()
        await asyncio.to_thread(self._write, key, value)

    async def set_if_not_exists(self, key, value):
        if not self._is_open:
            await self._open()
        await asyncio.to_thread(self._write, key, value, True)

    async def set_range(self, key, value, start):
        """Writes ``value`` into the value of ``key``, from byte ``start`` on; what is around it stays. The key must be there."""
        if not self._is_open:
            await self._open()
        self._check_writable()
        self._versions.clear()

        def write():
            with self.fs.open_raw(self._path(key), "r+b") as file:
                file.write_at(value.as_buffer_like(), start)

        await asyncio.to_thread(write)

    def delete_sync(self, key):
        self._ensure_open_sync()
        self._check_writable()
        self._versions.clear()
        path = self._path(key)
        try:
            self.fs.unlink(path)
        except IsADirectoryError:
            self.fs.rmtree(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        self._prune(path)

    def _prune(self, path):
        """Removes directories above that have nothing in them any more: a store has none."""
        above = posixpath.dirname(path)
        while len(above) > len(self.root):
            try:
                self.fs.rmdir(above)
            except OSError:
                return
            above = posixpath.dirname(above)

    async def delete(self, key):
        if not self._is_open:
            await self._open()
        self.delete_sync(key)

    async def delete_dir(self, prefix):
        if not self._is_open:
            await self._open()
        self._check_writable()
        self._versions.clear()
        path = self._path(prefix.rstrip("/"))
        if self.fs.isfile(path):
            raise ValueError(f"delete_dir was passed a {prefix=!r} that is a file")
        if self.fs.isdir(path):
            await asyncio.to_thread(self.fs.rmtree, path)
            self._prune(path)

    async def clear(self):
        self._check_writable()
        self._ensure_open_sync()
        for entry in self.fs.scandir(self.root):
            if entry.stat and entry.stat.is_dir():
                self.fs.rmtree(entry.path)
            else:
                self.fs.unlink(entry.path)

    async def exists(self, key):
        if not self._is_open:
            await self._open()
        return self.fs.isfile(self._path(key))

    async def getsize(self, key):
        stat = self.fs.stat(self._path(key))
        if not stat.is_file():
            raise FileNotFoundError(key)
        return stat.st_size

    async def list(self):
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix):
        if not self._is_open:
            await self._open()
        # Directories that can have such keys.
        above = self._path(posixpath.dirname(prefix))
        for key in await asyncio.to_thread(self._keys, above):
            if key.startswith(prefix):
                yield key

    def _keys(self, above):
        start = len(self.root.rstrip("/")) + 1
        try:
            walked = list(self.fs.walk(above))
        except _MISSING:
            return []
        return [posixpath.join(path, name)[start:] for path, _, names in walked for name in names if not _is_apart(name)]

    async def list_dir(self, prefix):
        if not self._is_open:
            await self._open()
        try:
            names = await asyncio.to_thread(self.fs.listdir, self._path(prefix.rstrip("/")))
        except _MISSING:
            return
        for name in names:
            if not _is_apart(name):
                yield name


def _is_apart(name):
    """Whether it is a value that is being written."""
    if not name.startswith("."):
        return False
    _, _, end = name.rpartition(".")
    return len(end) == 12 and not end.strip("0123456789abcdef") and name.count(".") > 1


def _cut(byte_range, size):
    """Offset and length of a part of a value, as far as the value goes."""
    match byte_range:
        case None:
            start, end = 0, size
        case RangeByteRequest(start, end):
            pass
        case OffsetByteRequest(start):
            end = size
        case SuffixByteRequest(suffix):
            start, end = max(0, size - suffix), size
        case _:
            raise TypeError(f"Unexpected byte_range, got {byte_range}.")
    start = min(start, size)
    return start, max(0, min(end, size) - start)
