"""Open files, and operations that go on by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import operator
import os
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from . import _weftfs

_Ranges = Iterable[tuple[int, int]]
_Place = tuple[int, Sequence[int] | None]


def as_buffer(memory):
    """An object with the buffer protocol: ``memory`` itself, or a view of what has only ``__dlpack__`` (tensors)."""
    if isinstance(memory, (bytes, bytearray, memoryview)) or _is_numpys(memory):
        return memory
    return of_tensor(memory) if hasattr(memory, "__dlpack__") else memory


def _is_numpys(memory):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(memory, (numpy.ndarray, numpy.generic))


def of_tensor(memory):
    """A view of what has ``__dlpack__``, with the buffer protocol."""
    if not hasattr(memory, "__dlpack__"):
        raise TypeError(f"a buffer is needed (bytes, an array, a tensor), not {type(memory).__name__}")
    import numpy

    return numpy.from_dlpack(memory)


class Pending:
    """A read or write under way. ``wait()`` or ``await`` it; the memory belongs to it until then.

    Nothing moves it on but these calls and ``test()``: there is no thread behind it. Servers go on by themselves over shared
    memory and RDMA.
    """

    def __init__(self, native: _weftfs.Pending, value: Any = None) -> None:
        self._native = native
        self._value = value

    def test(self) -> bool:
        """Moves it on without waiting; whether it is over."""
        return self._native.test()

    def wait(self) -> Any:
        """Waits for its end. Returns the number of bytes, or for a read of an array the array."""
        moved = self._native.wait()
        return moved if self._value is None else self._value

    def __await__(self) -> Generator[Any, None, Any]:
        if self.test():
            return self.wait()
        waited = asyncio.get_running_loop().run_in_executor(None, self.wait)
        return (yield from waited.__await__())


class File(io.RawIOBase):
    """An open file, as Python's unbuffered ones, with reads and writes at offsets and of lists of ranges.

    Offsets and lengths are in bytes. Any object with the buffer protocol, or ``__dlpack__``, is a buffer.
    """

    def __init__(self, native: _weftfs.File, mode: str, fs: Any = None) -> None:
        self._native = native
        self._fs = fs
        self._kind = mode[0]
        self._both = "+" in mode
        self._reads = self._kind == "r" or self._both
        self._writes = self._kind != "r" or self._both
        # Whether the first bytes of a new file are to be written is seen from the position.
        self._position = native.size() if self._kind == "a" else 0

    def __reduce__(self):
        if self.closed or self._fs is None:
            raise TypeError(f"{self!r} cannot be pickled")
        return _again, (self._fs, self.name, self._kind, self._both, self._position)

    @property
    def name(self) -> str:
        """Its path."""
        return self._native.path

    @property
    def mode(self) -> str:
        """As it was opened."""
        return f"{self._kind}b{'+' if self._both else ''}"

    @property
    def layout(self) -> tuple[int, int, int]:
        """``(strip_bytes, servers, first_server)``."""
        return self._native.layout

    def readable(self) -> bool:
        self._must()
        return self._reads

    def writable(self) -> bool:
        self._must()
        return self._writes

    def seekable(self) -> bool:
        self._must()
        return True

    def size(self) -> int:
        """Its size now, in bytes, whoever writes to it."""
        return self._native.size()

    def io_stats(self) -> dict[str, int]:
        """What its reads and writes took so far: ``requests``, ``request_bytes`` without data, ``moved_bytes``."""
        return self._native.io_stats()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._must()
        offset, whence = _c_long(offset), operator.index(whence)
        if whence in (os.SEEK_DATA, os.SEEK_HOLE):
            found = self._native.seek_part(offset, whence == os.SEEK_DATA) if offset >= 0 else None
            if found is None:
                raise OSError(errno.ENXIO, "the offset is not in the file, or no data follows", self.name)
            self._position = found
            return found
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise OSError(errno.EINVAL, f"whence {whence} is not supported", self.name)
        base = 0 if whence == os.SEEK_SET else self._position if whence == os.SEEK_CUR else self.size()
        if not 0 <= base + offset < 1 << 63:
            raise OSError(errno.EINVAL, f"position {base + offset} is not possible", self.name)
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        self._must()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else operator.index(size)
        self._must(self._reads, "reading")
        return super().read(size) or b""

    def readinto(self, buffer: Any, /) -> int:
        buffer = as_buffer(buffer)
        # Raises what Python's files raise for what is no buffer; nothing is read.
        io.BytesIO().readinto(buffer)
        self._must(self._reads, "reading")
        try:
            count = self._native.readinto_at(buffer, self._position)
        except (BufferError, TypeError, ValueError):
            # A buffer that cannot say how it is made: its bytes are one after the other.
            data = self.read_at(self._position, len(_copied(buffer)))
            count = io.BytesIO(data).readinto(buffer)
        self._position += count
        return count

    def readall(self) -> bytes:
        self._must(self._reads, "reading")
        data = self.read_at(self._position, max(0, self.size() - self._position))
        self._position += len(data)
        return data

    def write(self, data: Any, /) -> int:
        data = as_buffer(data)
        if self.closed or not self._writes:
            _copied(data)
            self._must(self._writes, "writing")
        try:
            return self._write(data)
        except (BufferError, TypeError, ValueError):
            return self._write(_copied(data))

    def _write(self, data):
        if self._kind != "a":
            count = self._native.write_at(data, self._position)
            self._position += count
            return count
        count = memoryview(data).nbytes
        # As in the kernel: nothing is appended, so the position stays.
        if count:
            self._position = self._native.append(data) + count
        return count

    def _must(self, is_so=True, what=""):
        if self.closed:
            raise ValueError("I/O operation on a closed file")
        if not is_so:
            raise io.UnsupportedOperation(f"the file is not open for {what}")

    def truncate(self, size: int | None = None, /) -> int:
        self._must(self._writes, "writing")
        size = self._position if size is None else _c_long(size)
        if size < 0:
            raise OSError(errno.EINVAL, f"a size of {size} bytes is not possible", self.name)
        self._native.truncate(size)
        return size

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Up to ``nbytes`` bytes from ``offset`` on, as bytes; fewer only at the end of the file."""
        return self._native.read_at(offset, nbytes)

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Fills ``buffer`` from ``offset`` on. Returns the number of bytes, fewer only at the end of the file."""
        try:
            return self._native.readinto_at(buffer, offset)
        except TypeError:
            return self._native.readinto_at(of_tensor(buffer), offset)

    def write_at(self, data: Any, offset: int) -> int:
        """Writes all of ``data`` from ``offset`` on."""
        try:
            return self._native.write_at(data, offset)
        except TypeError:
            return self._native.write_at(of_tensor(data), offset)

    def append(self, data: Any) -> int:
        """Writes ``data`` at the end, and returns where that was. No two appends of anybody get the same place."""
        return self._native.append(as_buffer(data))

    def read_ranges(self, ranges: _Ranges) -> list[bytes]:
        """Reads ``(offset, nbytes)`` ranges by one operation. Returns a list of bytes, one for each.

        What is beyond the end of the file is zeros.
        """
        return self._native.read_ranges(*_columns(ranges))

    def readinto_ranges(self, buffers: Any, ranges: _Ranges) -> int:
        """Reads ``(offset, nbytes)`` ranges, end to end, into a buffer or a list of buffers, by one operation.

        Returns how many of the bytes are below the end of the file; the others are zeros.
        """
        return self._native.move_ranges(False, *_columns(ranges), _buffers(buffers))

    def write_ranges(self, buffers: Any, ranges: _Ranges) -> int:
        """Writes a buffer or a list of buffers, end to end, to ``(offset, nbytes)`` ranges, by one operation."""
        return self._native.move_ranges(True, *_columns(ranges), _buffers(buffers))

    def readinto_arrays(self, arrays: Sequence[Any], places: Sequence[_Place]) -> int:
        """Reads into several arrays, however they lie in memory, by one operation.

        ``places`` has for each ``(offset, strides)`` in bytes: where its first element is in the file, and how far one is from the
        next there, for each dimension; ``None`` for strides: the elements lie in C order without gaps. Returns how many of the
        bytes are below the end of the file; the others are zeros.
        """
        return self._native.move_arrays(False, *_places(arrays, places))

    def write_arrays(self, arrays: Sequence[Any], places: Sequence[_Place]) -> int:
        """Writes several arrays by one operation. ``places`` is as for :meth:`readinto_arrays`."""
        return self._native.move_arrays(True, *_places(arrays, places))

    def start_read_arrays(self, arrays: Sequence[Any], places: Sequence[_Place]) -> Pending:
        """Begins a ``readinto_arrays``: a Pending."""
        return Pending(self._native.start_arrays(False, *_places(arrays, places)))

    def start_write_arrays(self, arrays: Sequence[Any], places: Sequence[_Place]) -> Pending:
        """Begins a ``write_arrays``: a Pending."""
        return Pending(self._native.start_arrays(True, *_places(arrays, places)))

    def start_read(self, buffer: Any, offset: int) -> Pending:
        """Begins to fill ``buffer`` from ``offset`` on: a Pending."""
        buffer = as_buffer(buffer)
        return Pending(self._native.start_ranges(False, [offset], [memoryview(buffer).nbytes], buffer))

    def start_write(self, data: Any, offset: int) -> Pending:
        """Begins to write ``data``: a Pending."""
        data = as_buffer(data)
        return Pending(self._native.start_ranges(True, [offset], [memoryview(data).nbytes], data))

    def start_read_ranges(self, buffers: Any, ranges: _Ranges) -> Pending:
        """Begins a ``readinto_ranges``: a Pending."""
        return Pending(self._native.start_ranges(False, *_columns(ranges), _buffers(buffers)))

    def start_write_ranges(self, buffers: Any, ranges: _Ranges) -> Pending:
        """Begins a ``write_ranges``: a Pending."""
        return Pending(self._native.start_ranges(True, *_columns(ranges), _buffers(buffers)))

    def allocate(self, offset: int, nbytes: int) -> None:
        """Reserves space."""
        self._native.allocate(offset, nbytes)

    def punch(self, offset: int, nbytes: int) -> None:
        """Makes a hole, which is zeros."""
        self._native.punch(offset, nbytes)

    def sync(self) -> None:
        """Makes what was written to the file durable."""
        self._native.sync()

    @contextlib.contextmanager
    def locked(
        self,
        *,
        exclusive: bool = True,
        nbytes: int | None = None,
        offset: int = 0,
        wait: bool = True,
    ) -> Iterator[File]:
        """Holds a lock on the file, or on ``nbytes`` bytes from ``offset`` on, for a ``with`` block.

        Raises BlockingIOError if it is not free and ``wait`` is false.
        """
        where = None if nbytes is None else (offset, offset + nbytes)
        if not self._native.lock(exclusive, wait, where):
            raise BlockingIOError(11, "somebody else holds a lock", self.name)
        try:
            yield self
        finally:
            self._native.unlock(where)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()

    def __repr__(self):
        return f"<weftfs.File {self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"


def _again(fs, path, kind, both, position):
    file = fs.reopen(path, kind, both)
    file._position = position
    return file


def _c_long(number):
    number = operator.index(number)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    return number


def _copied(data):
    """The bytes of ``data``. Raises what Python's files raise for what has none."""
    copy = io.BytesIO()
    copy.write(data)
    return copy.getvalue()


def _columns(ranges: _Ranges) -> tuple[list[int], list[int]]:
    both = ranges if isinstance(ranges, Sequence) else list(ranges)
    return [offset for offset, _ in both], [nbytes for _, nbytes in both]


def _buffers(buffers):
    return [as_buffer(one) for one in buffers] if isinstance(buffers, (list, tuple)) else as_buffer(buffers)


def c_strides(shape, element_bytes):
    """The strides, in bytes, of an array in C order without gaps."""
    strides = []
    for count in reversed(shape):
        strides.append(element_bytes)
        element_bytes *= count
    return strides[::-1]


def _places(arrays, places):
    views, strides = [], []
    for array, (_, of) in zip(arrays, places, strict=True):
        view = memoryview(as_buffer(array))
        if view.ndim == 0:
            view, of = view.cast("B"), None
        views.append(view)
        strides.append(c_strides(view.shape, view.itemsize) if of is None else list(of))
    return [offset for offset, _ in places], strides, views
