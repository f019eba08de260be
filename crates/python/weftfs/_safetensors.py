"""Files of tensors in the safetensors format, read and written by one operation.

    0        8                        data_offset
    │ length │ JSON: names, types,    │ tensor 0 │ tensor 1 │ …
    │        │ shapes, offsets; spaces│

The format is that of https://github.com/huggingface/safetensors. A type that it does not have is stored as bytes, with one more
dimension, and its name among the file's metadata.
"""

import json
import math
import posixpath
from collections.abc import Iterable, Iterator, KeysView, Mapping
from typing import Any, NamedTuple

import torch

from . import _tensors
from ._array import basic_part
from ._file import c_strides
from ._fs import FileSystem, _Path, locate

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16, "I32": torch.int32,
    "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

METADATA = "__metadata__"
# Among the metadata: types that the format does not have, by name of the tensor.
OTHER_TYPES = "weft.types"
# Data begins at a multiple of a page.
ALIGN_BYTES = 4096
# More is refused by other readers, too.
HEADER_BYTES_MAX = 100_000_000
# What is read of a file at first: most headers are shorter.
_HEAD_BYTES = 128 << 10


class Entry(NamedTuple):
    """A tensor of a file: where its first byte is, and what it is."""

    dtype: torch.dtype
    shape: tuple
    offset: int
    nbytes: int


class Header(NamedTuple):
    """What a file says about its tensors."""

    entries: dict
    metadata: dict


class Plan:
    """Places of tensors in a file that is to be written. Offsets are those of the data."""

    def __init__(self):
        self._wanted = {}
        self.offsets = {}
        self.data_bytes = 0

    def add(self, name, dtype, shape):
        """Another tensor."""
        if name == METADATA:
            raise ValueError(f"{name} is no name for a tensor in a safetensors file")
        self._wanted[name] = (dtype, tuple(shape))

    def place(self):
        """Gives each its place. Large elements come first, so that all are aligned."""
        at = 0
        for name, (dtype, shape) in sorted(self._wanted.items(), key=lambda item: -item[1][0].itemsize):
            self.offsets[name] = at
            at += math.prod(shape) * dtype.itemsize
        self.data_bytes = at

    def header(self, metadata, blobs=()):
        """The header in JSON. ``blobs`` are ``(name, offset, nbytes)`` of bytes behind the tensors."""
        content, others = {}, {}
        for name, (dtype, shape) in self._wanted.items():
            begin = self.offsets[name]
            if dtype not in _NAMES:
                others[name] = str(dtype).removeprefix("torch.")
                dtype, shape = torch.uint8, shape + (dtype.itemsize,)
            content[name] = _entry(_NAMES[dtype], shape, begin, math.prod(shape) * dtype.itemsize)
        for name, begin, nbytes in blobs:
            content[name] = _entry("U8", (nbytes,), begin, nbytes)
        metadata = dict(metadata, **{OTHER_TYPES: json.dumps(others)} if others else {})
        if metadata:
            content[METADATA] = metadata
        return json.dumps(content, separators=(",", ":")).encode()


def _entry(dtype, shape, begin, nbytes):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]}


def data_offset(header_bytes):
    """Where data begins, behind a header that has up to so many bytes."""
    return -(-(8 + header_bytes) // ALIGN_BYTES) * ALIGN_BYTES


def framed(header, data_at):
    """The bytes of a file before its data."""
    room_bytes = data_at - 8
    if len(header) > room_bytes or room_bytes > HEADER_BYTES_MAX:
        raise ValueError(f"the header takes {len(header)} bytes, there is room for {min(room_bytes, HEADER_BYTES_MAX)}")
    return room_bytes.to_bytes(8, "little") + header.ljust(room_bytes)


def read_header(file):
    """The Header of an open file. Raises ValueError where it is not one of safetensors, or contradicts itself."""
    head, size = file.read_at(0, _HEAD_BYTES), file.size()
    header_bytes = int.from_bytes(head[:8], "little")
    if len(head) < 8 or header_bytes > min(HEADER_BYTES_MAX, size - 8):
        raise ValueError(f"{file.name} is not a safetensors file, or is cut off: {size} bytes, header of {header_bytes}")
    if 8 + header_bytes > len(head):
        head += file.read_at(len(head), 8 + header_bytes - len(head))
    try:
        content = json.loads(head[8 : 8 + header_bytes])
        metadata = content.pop(METADATA, {})
        others = json.loads(metadata.get(OTHER_TYPES, "{}"))
        entries = {name: _parsed(said, others.get(name), 8 + header_bytes) for name, said in content.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as wrong:
        raise ValueError(f"{file.name} has a header that says nothing of use: {wrong!r}") from wrong
    for name, entry in entries.items():
        if entry.offset + entry.nbytes > size:
            raise ValueError(f"{file.name} is cut off: {name} ends at {entry.offset + entry.nbytes}, the file at {size}")
    return Header(entries, metadata)


def _parsed(said, other, data_at):
    dtype, shape = DTYPES[said["dtype"]], tuple(said["shape"])
    begin, end = said["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"a number that is none: {said}")
    if other is not None:
        dtype = getattr(torch, other)
        if not isinstance(dtype, torch.dtype) or shape[-1:] != (dtype.itemsize,):
            raise ValueError(f"{other} is not the type of {said}")
        shape = shape[:-1]
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{end - begin} bytes for {shape} of {dtype}")
    return Entry(dtype, shape, data_at + begin, end - begin)


def part_of(entry, key):
    """``(offset, shape, strides)`` of ``entry[key]`` in its file; ``key`` is made of integers, slices and ``...``."""
    part = basic_part(key, entry.offset, entry.shape, c_strides(entry.shape, entry.dtype.itemsize))
    if part is None:
        raise IndexError(f"a part is chosen by integers and slices, not by {key!r}")
    offset, shape, strides = part
    return offset, tuple(shape), strides


class SafeTensors:
    """The tensors of one ``.safetensors`` file: names, types, shapes; and reads of any parts of any of them, by one operation.

    ``path`` is one of the file system ``fs``, or a URL. Use it in a ``with`` block, or ``close()`` it.
    """

    def __init__(self, path: _Path, fs: FileSystem | None = None) -> None:
        self._fs, path = locate(path, fs)
        self._file = self._fs.open_raw(path)
        try:
            self._header = read_header(self._file)
        except BaseException:
            self._file.close()
            raise

    @property
    def metadata(self) -> dict[str, str]:
        """Text by name, of who wrote the file."""
        return dict(self._header.metadata)

    def keys(self) -> KeysView[str]:
        """Names of the tensors."""
        return self._header.entries.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._header.entries

    def __len__(self) -> int:
        return len(self._header.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.entries)

    def dtype(self, name: str) -> torch.dtype:
        """The ``torch.dtype`` of a tensor."""
        return self._header.entries[name].dtype

    def shape(self, name: str) -> torch.Size:
        """The shape of a tensor, in elements."""
        return torch.Size(self._header.entries[name].shape)

    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        slices: Mapping[str, Any] | None = None,
        into: Mapping[str, torch.Tensor] | None = None,
        device: str | torch.device = "cpu",
    ) -> dict[str, torch.Tensor]:
        """Reads tensors, all by one operation: a dictionary.

        ``names`` are those wanted; without them, those of ``slices`` and ``into``, or all. ``slices`` has for names an index of
        integers and slices, with any steps: only that part is read. ``into`` has for names tensors to be filled, of the
        right shape; one of another type gets its elements converted. Others are made on ``device``.
        """
        slices, into = slices or {}, into or {}
        if names is None:
            names = list(dict.fromkeys([*slices, *into])) or list(self.keys())
        result, pieces = {}, []
        for name in names:
            entry = self._header.entries[name]
            offset, shape, strides = part_of(entry, slices.get(name, ...))
            tensor = into[name] if name in into else torch.empty(shape, dtype=entry.dtype, device=device)
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name} has shape {shape} in {self._file.name}, not {tuple(tensor.shape)}")
            result[name] = tensor
            pieces.append((tensor, offset, strides, entry.dtype))
        _tensors.read(self._file, pieces)
        return result

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "SafeTensors":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def load_file(
    path: _Path,
    *,
    fs: FileSystem | None = None,
    into: Mapping[str, torch.Tensor] | None = None,
    slices: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> dict[str, torch.Tensor]:
    """Tensors of a ``.safetensors`` file, by name. ``into``, ``slices`` and ``device`` are as for :meth:`SafeTensors.load`."""
    with SafeTensors(path, fs) as file:
        return file.load(into=into, slices=slices, device=device)


def temporary(path):
    """The name of a file until it is whole."""
    return posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.saving")


def save_file(
    tensors: Mapping[str, torch.Tensor],
    path: _Path,
    *,
    fs: FileSystem | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Makes a ``.safetensors`` file of tensors by name. ``metadata`` is text by name. One that is there is replaced at once, when the new
    one is whole."""
    plan = Plan()
    for name, tensor in tensors.items():
        _tensors.must_be_dense(tensor, name)
        plan.add(name, tensor.dtype, tensor.shape)
    plan.place()
    header = plan.header(metadata or {})
    data_at = data_offset(len(header))
    fs, path = locate(path, fs)
    with fs.open_raw(temporary(path), "wb", striped=data_at + plan.data_bytes > 1 << 16) as file:
        pieces = [(torch.frombuffer(bytearray(framed(header, data_at)), dtype=torch.uint8), 0, None)]
        pieces += [(tensor, data_at + plan.offsets[name], None) for name, tensor in tensors.items()]
        _tensors.write(file, pieces)
    fs.rename(temporary(path), path)
