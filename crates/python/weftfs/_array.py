"""Arrays in files: a slice is one request to each server.

    file     a = open_array(fs, "/x", shape=(4, 5), dtype="f8")     offset 0, strides (40, 8)
    slice    a[::-1, 1:3]                                           offset 128, shape (4, 2), strides (-40, 8)
    move     that, and an array in memory of the same shape with any strides: each side becomes one pattern

Integer and boolean arrays as indices become lists of offsets.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
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
        if self.dtype.subdtype:
            # As in NumPy, arrays as elements are further dimensions.
            self.dtype, inner = self.dtype.subdtype
            self.shape += inner
            self.strides += tuple(c_strides(inner, self.dtype.itemsize))

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
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over an array without dimensions")
        return (self[at] for at in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return value in self[...]

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"the truth value of an array of {self.size} elements is ambiguous")
        return bool(self[...])

    def __int__(self) -> int:
        return int(self._only())

    def __float__(self) -> float:
        return float(self._only())

    def __complex__(self) -> complex:
        return complex(self._only())

    def __index__(self) -> int:
        return operator.index(self._only())

    def _only(self):
        """The element of an array that converts to a number."""
        if self.shape:
            raise TypeError("only arrays without dimensions can be converted to Python scalars")
        return self[...]

    def __repr__(self):
        return f"<weftfs.Array {self.file.name!r} shape={self.shape} dtype={self.dtype}>"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array in a file has to be read, which is a copy")
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def sub(self, key: Any) -> Array:
        """The part ``key`` as an Array of its own; nothing is read. ``key`` is made of integers, slices, ``...`` and None, or is
        the name of a field."""
        if isinstance(key, str):
            self._probe(key)
            dtype, shift = self._fields[key][:2]
            return Array(self.file, self.shape, dtype, self.strides, self.offset + shift)
        basic = self._basic(key)
        if basic is None:
            raise IndexError("arrays as indices have no part of the file of their own; read with a[...]")
        offset, shape, strides = basic
        return Array(self.file, shape, self.dtype, strides, offset)

    def __getitem__(self, key: Any) -> Any:
        basic = self._basic(key)
        if basic is not None:
            out = numpy.empty(basic[1], self.dtype)
            self._move(False, basic, out)
            return out[()] if _is_of_element(key, out.shape) else out
        of_fields = self._is_of_fields(key)
        self._probe(key)
        if of_fields:
            return self.sub(key)[...] if isinstance(key, str) else self[...][key]
        offsets, inner, block_bytes = self._offsets(key)
        out = numpy.empty(offsets.shape + inner, self.dtype)
        self._move_offsets(False, offsets, block_bytes, out)
        return out

    def __setitem__(self, key: Any, value: Any) -> None:
        basic = self._basic(key)
        if basic is not None:
            self._move(True, basic, self._converted(value, basic[1], _is_of_element(key, basic[1])))
            return
        of_fields = self._is_of_fields(key)
        self._probe(key)
        if of_fields:
            self._set_fields(key, value)
            return
        offsets, inner, block_bytes = self._offsets(key)
        value = self._listed(value, offsets.shape + inner, _is_mask(key, self.shape))
        offsets = offsets.ravel()
        # Of an element that is written several times, the last one counts.
        unique, last = numpy.unique(offsets[::-1], return_index=True)
        if len(unique) < len(offsets):
            value = value.reshape(len(offsets), -1)[len(offsets) - 1 - last]
            offsets = unique
        self._move_offsets(True, offsets, block_bytes, numpy.ascontiguousarray(value))

    def _is_of_fields(self, key):
        """Whether ``key`` is the name of a field, or a list of names."""
        return isinstance(key, str) or isinstance(key, list) and key != [] and all(isinstance(one, str) for one in key)

    @property
    def _fields(self) -> Mapping[str, Any]:
        return self.dtype.fields or {}

    def _set_fields(self, key, value):
        """Writes fields and nothing between them."""
        if isinstance(key, str):
            self.sub(key)[...] = value
            return
        whole = numpy.zeros(self.shape, self.dtype[key])
        whole[...] = value
        for name in key:
            self.sub(name)[...] = whole[name]

    def _probe(self, key):
        """Raises what NumPy raises for an index that is wrong. Its elements have no bytes, so that the result takes no memory."""
        if self._is_of_fields(key):
            numpy.empty((), self.dtype)[key]
        else:
            numpy.broadcast_to(numpy.empty((), "V0"), self.shape)[key]

    def _listed(self, value, shape, is_mask):
        """``value`` for an index with arrays in it. NumPy makes an array of it first."""
        value = as_buffer(value)
        if not isinstance(value, numpy.ndarray):
            value = numpy.array(value, self.dtype)
        if is_mask and value.ndim > 1:
            raise TypeError("an assignment to a mask of booleans takes a value of at most one dimension")
        return numpy.ascontiguousarray(self._converted(value, shape))

    def _converted(self, value, shape, is_element=False):
        """``value`` as an array of this dtype and of ``shape``, converted and refused as NumPy does in ``a[key] = value``."""
        value = as_buffer(value)
        of_shape = None
        if isinstance(value, numpy.ndarray):
            # Without a subclass: that of a matrix always has two dimensions.
            value = numpy.asarray(value)
            of_shape = value.shape
        if of_shape is not None and not is_element and value.dtype == self.dtype:
            while value.ndim > len(shape) and value.shape[0] == 1:
                value = value[0]
            return numpy.broadcast_to(value, shape)
        # NumPy converts into an array with as many dimensions, which has one element where the value has no dimension of its own.
        used = len(shape) if of_shape is None else len(of_shape)
        if of_shape is None and not hasattr(value, "__array__"):
            used = _depth(value, len(shape))
        small = [1] * (len(shape) - used) + list(shape[max(0, len(shape) - used) :])
        if of_shape is not None and used <= len(shape):
            first = len(shape) - used
            small[first:] = [1 if one == 1 else count for one, count in zip(of_shape, small[first:])]
        if 0 in shape:
            small = list(shape)
        # Zeros: the bytes between fields must not carry old memory into the file.
        converted = (numpy.zeros if self.dtype.names else numpy.empty)(small, self.dtype)
        converted[() if is_element else ...] = value
        return numpy.broadcast_to(converted, shape)

    def read(self, key: Any = ..., out: Any = None) -> Any:
        """Reads ``a[key]``, into ``out`` if that is given: any array of that shape and dtype, however it lies in memory."""
        if out is None:
            return self[key]
        basic = self._basic(key)
        out = as_buffer(out)
        view = out if isinstance(out, numpy.ndarray) else numpy.asarray(out)
        part = self[key] if basic is None else None
        shape, dtype = (tuple(basic[1]), self.dtype) if part is None else (part.shape, part.dtype)
        if view.shape != shape or view.dtype != dtype:
            raise ValueError(f"out has shape {view.shape} and dtype {view.dtype}, the slice {shape} and {dtype}")
        if part is None:
            self._move(False, basic, view)
        else:
            view[...] = part
        return out

    def start_read(self, key: Any = ..., out: Any = None) -> Pending:
        """Begins to read ``a[key]``: a Pending whose ``wait()`` or ``await`` gives the array. Not for arrays as indices."""
        basic = self._must_be_basic(key)
        out = numpy.empty(basic[1], self.dtype) if out is None else out
        return Pending(self.file._native.start_array(False, *_sides(basic, self.dtype, out)), out)

    def start_write(self, key: Any, value: Any) -> Pending:
        """Begins ``a[key] = value``: a Pending. Not for arrays as indices."""
        basic = self._must_be_basic(key)
        value = self._converted(value, basic[1], _is_of_element(key, basic[1]))
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
        key = key if isinstance(key, tuple) else (key,)
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
        offsets = self.offset + numpy.broadcast_to(numpy.int64(0), shape)[key]
        for at, (count, stride) in enumerate(zip(shape, self.strides)):
            along = numpy.arange(count, dtype=numpy.int64) * stride
            places = numpy.broadcast_to(along.reshape((count,) + (1,) * (axis - at - 1)), shape)
            offsets = offsets + places[key]
        return numpy.asarray(offsets, order="C"), self.shape[axis:], block_bytes

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
    if isinstance(one, slice) or hasattr(one, "__index__") and not isinstance(one, (bool, numpy.bool_, numpy.ndarray)):
        return 1
    one = numpy.asarray(one)
    return one.ndim if one.dtype.kind == "b" else 1


def _is_mask(key, shape):
    """Whether an index is one array of booleans for all dimensions, which NumPy treats by itself."""
    key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    is_array = isinstance(key, (numpy.ndarray, list, bool, numpy.bool_))
    return is_array and numpy.asarray(key).dtype == bool and numpy.ndim(key) == len(shape)


def _is_of_element(key, shape):
    """Whether ``a[key]`` is an element and no array, in NumPy's terms: only integers."""
    return not shape and key is not Ellipsis and not (isinstance(key, tuple) and any(one is Ellipsis for one in key))


def _depth(value, most):
    """Dimensions of nested sequences, at least, and no more than ``most``."""
    depth = 0
    while depth < most:
        if isinstance(value, numpy.ndarray):
            return min(most, depth + value.ndim)
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
            return depth
        depth += 1
        if not isinstance(value, (list, tuple)):
            return most
        if not value:
            return depth
        value = max(value, key=lambda one: hasattr(one, "__len__"))
    return depth


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


def _is_integer(one):
    if isinstance(one, (numpy.ndarray, numpy.generic)):
        return one.ndim == 0 and one.dtype.kind in "iu"
    return hasattr(one, "__index__") and not isinstance(one, bool)


def basic_part(key, offset, of_shape, of_strides):
    """``(offset, shape, strides)`` of a part of an array that begins at ``offset``; None if ``key`` has arrays."""
    if not isinstance(key, tuple):
        key = (key,)
    used = 0
    for one in key:
        if one is None or one is Ellipsis:
            continue
        if type(one) is not slice and not _is_integer(one):
            return None
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
    if dtype.itemsize == 0:
        raise ValueError(f"elements of {dtype} have no bytes")
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
