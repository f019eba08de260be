"""Arrays in files: a slice is one request to each server.

    file     a = open_array(fs, "/x", shape=(4, 5), dtype="f8")     offset 0, strides (40, 8)
    slice    a[::-1, 1:3]                                           offset 128, shape (4, 2), strides (-40, 8)
    move     that, and an array in memory of the same shape with any strides: each side becomes one pattern

Integer and boolean arrays as indices become lists of offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy
from numpy.typing import DTypeLike, NDArray

from ._file import File, Pending, as_buffer, c_strides
from ._fs import FileSystem, _LayoutLike, _Path

_DIRECT = frozenset("biufcSU")


class Array:
    """An n-d array in a file, made by :func:`open_array`. ``a[...]`` reads, ``a[...] = b`` writes.

    Attributes: ``shape`` in elements, ``strides`` in bytes, ``dtype``, ``offset`` of the first element in bytes.
    """

    def __init__(self, file: File, shape: Sequence[int], dtype: DTypeLike, strides: Sequence[int], offset: int) -> None:
        self.file = file
        self.shape = tuple(int(count) for count in shape)
        self.dtype = numpy.dtype(dtype)
        self.strides = tuple(int(stride) for stride in strides)
        self.offset = int(offset)
        if self.dtype.hasobject:
            raise TypeError(f"{self.dtype} has Python objects, which cannot be in a file")

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for one in self.shape:
            count *= one
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self):
        return f"<weftfs.Array {self.file.name!r} shape={self.shape} dtype={self.dtype}>"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def sub(self, key: Any) -> Array:
        """The part ``key`` as an Array of its own; nothing is read. ``key`` is made of integers, slices, ``...`` and None, or is
        the name of a field."""
        if isinstance(key, str):
            fields = self.dtype.fields
            if fields is None or key not in fields:
                raise ValueError(f"no field {key!r} in {self.dtype}")
            dtype, shift = fields[key][:2]
            return Array(self.file, self.shape, dtype, self.strides, self.offset + shift)
        basic = self._basic(key)
        if basic is None:
            raise IndexError("arrays as indices have no part of the file of their own; read with a[...]")
        offset, shape, strides = basic
        return Array(self.file, shape, self.dtype, strides, offset)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.sub(key)[...]
        basic = self._basic(key)
        if basic is None:
            offsets, inner, block_bytes = self._offsets(key)
            out = numpy.empty(offsets.shape + inner, self.dtype)
            self._move_offsets(False, offsets, block_bytes, out)
            return out
        out = numpy.empty(basic[1], self.dtype)
        self._move(False, basic, out)
        return out if basic[1] else out[()]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            self.sub(key)[...] = value
            return
        value = numpy.asarray(as_buffer(value))
        if value.dtype != self.dtype:
            value = value.astype(self.dtype)
        basic = self._basic(key)
        if basic is not None:
            self._move(True, basic, numpy.broadcast_to(value, basic[1]))
            return
        offsets, inner, block_bytes = self._offsets(key)
        value = numpy.ascontiguousarray(numpy.broadcast_to(value, offsets.shape + inner))
        offsets = offsets.ravel()
        # Of an element that is written several times, the last one counts.
        unique, last = numpy.unique(offsets[::-1], return_index=True)
        if len(unique) < len(offsets):
            value = value.reshape(len(offsets), -1)[len(offsets) - 1 - last]
            offsets = unique
        self._move_offsets(True, offsets, block_bytes, numpy.ascontiguousarray(value))

    def read(self, key: Any = ..., out: Any = None) -> Any:
        """Reads ``a[key]``, into ``out`` if that is given: any array of that shape and dtype, however it lies in memory."""
        if out is None:
            return self[key]
        basic = self._basic(key)
        out = as_buffer(out)
        view = out if isinstance(out, numpy.ndarray) else numpy.asarray(out)
        if basic is None:
            view[...] = self[key]
            return out
        if view.shape != tuple(basic[1]) or view.dtype != self.dtype:
            raise ValueError(
                f"out has shape {view.shape} and dtype {view.dtype}, the slice {tuple(basic[1])} and {self.dtype}"
            )
        self._move(False, basic, view)
        return out

    def start_read(self, key: Any = ..., out: Any = None) -> Pending:
        """Begins to read ``a[key]``: a Pending whose ``wait()`` or ``await`` gives the array. Not for arrays as indices."""
        basic = self._must_be_basic(key)
        out = numpy.empty(basic[1], self.dtype) if out is None else out
        return Pending(self.file._native.start_array(False, *_sides(basic, self.dtype, out)), out)

    def start_write(self, key: Any, value: Any) -> Pending:
        """Begins ``a[key] = value``: a Pending. Not for arrays as indices."""
        basic = self._must_be_basic(key)
        value = numpy.broadcast_to(numpy.asarray(as_buffer(value), self.dtype), basic[1])
        return Pending(self.file._native.start_array(True, *_sides(basic, self.dtype, value)))

    @property
    def explain(self) -> Any:
        """``a.explain[key]``: what each server would do to read ``a[key]``, as a list of dictionaries."""
        return _Explain(self)

    def flush(self) -> None:
        """Nothing is kept back: what was written is on the servers. Tells the metadata server the size."""
        self.file._native.flush()

    def sync(self) -> None:
        """Makes what was written durable."""
        self.file.sync()

    def close(self) -> None:
        """Closes the file."""
        self.file.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _must_be_basic(self, key):
        basic = self._basic(key)
        if basic is None:
            raise IndexError("only integers, slices, ... and None are for this")
        return basic

    def _basic(self, key):
        return basic_part(key, self.offset, self.shape, self.strides)

    def _offsets(self, key):
        """Offsets of the elements of ``a[key]`` as NumPy would have them, the shape of what each has, and its bytes."""
        key = key if type(key) is tuple else (key,)
        consumed = sum(_consumes(one) for one in key)
        block_bytes, axis = self.dtype.itemsize, len(self.shape)
        if not any(one is Ellipsis for one in key):
            # Whole elements of the last axes come together.
            while axis > consumed and self.strides[axis - 1] == block_bytes:
                axis -= 1
                block_bytes *= self.shape[axis]
        if axis > consumed and axis < len(self.shape):
            block_bytes, axis = self.dtype.itemsize, len(self.shape)
        shape = self.shape[:axis]
        offsets = numpy.int64(self.offset)
        for at, (count, stride) in enumerate(zip(shape, self.strides)):
            along = numpy.arange(count, dtype=numpy.int64) * stride
            places = numpy.broadcast_to(along.reshape((count,) + (1,) * (axis - at - 1)), shape)
            offsets = offsets + places[key]
        return numpy.ascontiguousarray(offsets), self.shape[axis:], block_bytes

    def _move(self, is_write, basic, memory):
        self.file._native.move_array(is_write, *_sides(basic, self.dtype, memory))

    def _move_offsets(self, is_write, offsets, block_bytes, memory):
        if memory.size:
            memory = memory.view(numpy.uint8) if memory.dtype.kind not in _DIRECT else memory
            self.file._native.move_offsets(is_write, offsets.ravel(), block_bytes, memory)


def _consumes(one):
    """Dimensions that an element of an index is for."""
    if one is None or one is Ellipsis:
        return 0
    kind = getattr(one, "dtype", None)
    if kind is None and isinstance(one, (list, tuple)):
        one = numpy.asarray(one)
        kind = one.dtype
    if isinstance(one, (bool, numpy.bool_)):
        return 0
    return one.ndim if kind is not None and kind.kind == "b" else 1


def _sides(basic, dtype, memory):
    offset, _, strides = basic
    if dtype.kind not in _DIRECT:
        # Not all of them have the buffer protocol; their bytes do.
        memory = memory.view(numpy.dtype((numpy.void, dtype.itemsize)))
    if not strides:
        memory, strides = memory.reshape(1), [dtype.itemsize]
    return offset, strides, dtype.itemsize, memory


class _Explain:
    def __init__(self, array):
        self._array = array

    def __getitem__(self, key):
        offset, shape, strides = self._array._must_be_basic(key)
        return self._array.file._native.explain_array(
            False, offset, shape, strides, self._array.dtype.itemsize
        )


def basic_part(key, offset, of_shape, of_strides):
    """``(offset, shape, strides)`` of a part of an array that begins at ``offset``; None if ``key`` has arrays."""
    if type(key) is not tuple:
        key = (key,)
    used = 0
    for one in key:
        if one is None or one is Ellipsis:
            continue
        if type(one) is slice:
            used += 1
        elif isinstance(one, (bool, numpy.bool_)) or not hasattr(one, "__index__") or getattr(one, "ndim", 0):
            return None
        else:
            used += 1
    if used > len(of_shape):
        raise IndexError(f"too many indices: the array has {len(of_shape)} dimensions, {used} were given")
    shape, strides, axis = [], [], 0
    seen = False
    for one in key:
        if one is None:
            shape.append(1)
            strides.append(0)
        elif one is Ellipsis:
            if seen:
                raise IndexError("an index can have only one '...'")
            seen = True
            left = len(of_shape) - used
            shape.extend(of_shape[axis : axis + left])
            strides.extend(of_strides[axis : axis + left])
            axis += left
        elif type(one) is slice:
            start, stop, step = one.indices(of_shape[axis])
            count = len(range(start, stop, step))
            if count:
                offset += start * of_strides[axis]
            shape.append(count)
            strides.append(step * of_strides[axis])
            axis += 1
        else:
            index, count = one.__index__(), of_shape[axis]
            if not -count <= index < count:
                raise IndexError(f"index {index} is out of bounds for axis {axis} with size {count}")
            offset += (index + count if index < 0 else index) * of_strides[axis]
            axis += 1
    shape.extend(of_shape[axis:])
    strides.extend(of_strides[axis:])
    return offset, shape, strides


def _strides(shape, itemsize, order):
    return c_strides(shape, itemsize) if order == "C" else c_strides(shape[::-1], itemsize)[::-1]


def open_array(
    fs: FileSystem,
    path: _Path,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike = float,
    *,
    mode: Literal["r", "r+", "w+"] = "r",
    order: Literal["C", "F"] = "C",
    offset: int = 0,
    layout: _LayoutLike | None = None,
) -> Array:
    """An array in a file: an :class:`Array`.

    ``mode`` is r, r+ (both ways; the file is made if it is not there, and extended where it is too short), or w+ (anew). ``shape``
    is in elements; None takes one dimension, as long as the file is. ``offset`` is that of the first element in bytes. ``order`` is C
    or F. ``layout`` is ``(strip_bytes, servers, first_server)`` for a new file.
    """
    if order not in ("C", "F"):
        raise ValueError(f"order is C or F, not {order!r}")
    dtype = numpy.dtype(dtype)
    if mode not in ("r", "r+", "w+"):
        raise ValueError(f"mode is r, r+ or w+, not {mode!r}")
    if mode == "r+":
        try:
            file = fs.open_raw(path, "r+b")
        except FileNotFoundError:
            file = fs.open_raw(path, "w+b", layout=layout, striped=True)
    else:
        file = fs.open_raw(path, mode + "b", layout=layout, striped=mode == "w+")
    file_bytes = file.size()
    if shape is None:
        shape = (max(0, file_bytes - offset) // dtype.itemsize,)
    shape = tuple(int(count) for count in numpy.atleast_1d(shape))
    if any(count < 0 for count in shape) or offset < 0:
        raise ValueError(f"shape {shape} and offset {offset} must not be negative")
    strides = _strides(shape, dtype.itemsize, order)
    array = Array(file, shape, dtype, strides, offset)
    end = offset + array.nbytes
    if file_bytes < end and mode == "r":
        file.close()
        raise ValueError(f"{file.name} has {file_bytes} bytes; an array of {shape} {dtype} from {offset} on ends at {end}")
    if file_bytes < end:
        file.truncate(end)
    return array


def open_npy(fs: FileSystem, path: _Path, mode: Literal["r", "r+"] = "r") -> Array:
    """The array of a .npy file, as an :class:`Array`. ``mode`` is r or r+."""
    file = fs.open_raw(path, "rb" if mode == "r" else "r+b")
    version = numpy.lib.format.read_magic(file)
    read = numpy.lib.format.read_array_header_1_0 if version == (1, 0) else numpy.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    strides = _strides(shape, dtype.itemsize, "F" if is_fortran else "C")
    return Array(file, shape, dtype, strides, file.tell())
