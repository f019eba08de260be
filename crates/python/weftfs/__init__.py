"""Weft from Python: files striped over many servers, and slices of arrays that are one request.

    >>> import weftfs
    >>> fs = weftfs.connect("weft://node1:7400/")
    >>> a = weftfs.open_array(fs, "/x", shape=(1000, 1000), dtype="f8", mode="r+")
    >>> a[10:20, ::3] = 1.0
    >>> column = a[:, 7]

``fs`` is like the module os, and ``fs.open`` like ``open``. With fsspec (``weft://...``), Zarr and PyTorch: docs/python.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from . import errors
from ._file import File, Pending
from ._fs import DirEntry, FileSystem, Layout, Space, Stat, connect, locate
from ._weftfs import __version__
from .errors import WeftError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from ._array import Array, open_array, open_npy

_ARRAYS = ("Array", "open_array", "open_npy")


def __getattr__(name: str) -> Any:
    # NumPy is loaded when arrays are used.
    if name in _ARRAYS:
        from . import _array

        return getattr(_array, name)
    raise AttributeError(f"module 'weftfs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ARRAYS})


def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = float,
    order: Literal["C", "F"] = "C",
    *,
    fs: FileSystem | None = None,
) -> NDArray[Any]:
    """A NumPy array, of zeros, in memory that servers on this host read and write without a copy.

    ``fs`` is the connection that will use it; without it the one of ``$WEFT_URL``.
    """
    return locate("", fs)[0].empty(shape, dtype, order)


__all__ = [
    "Array", "DirEntry", "File", "FileSystem", "Layout", "Pending", "Space", "Stat", "WeftError", "connect", "empty", "errors",
    "open_array", "open_npy", "__version__",
]
