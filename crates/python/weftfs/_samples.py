"""Samples for training: a batch is one operation, wherever in the file its samples are.

    DataLoader ── indices 93 11 72 … ──► Samples.__getitems__ ──► one list read ──► views of one tensor
                                         SampleStream          ──► list reads, some batches ahead

Each process opens the file by itself, when it reads at first: DataLoader may fork its workers or start them anew.
"""

import collections
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from . import _slots
from ._file import Pending
from ._fs import FileSystem, _Path, locate


class _Opened:
    """A file that each process opens for itself."""

    def __init__(self, path, fs):
        self._fs, self.path = fs, path
        self._file = self._process = None

    def __getstate__(self):
        return {"_fs": self._fs, "path": self.path, "_file": None, "_process": None}

    def file(self):
        if self._process != os.getpid():
            fs, path = locate(self.path, self._fs)
            self._file, self._process = fs.open_raw(path), os.getpid()
        return self._file


class Samples(Dataset):
    """Samples in one file, map-style: all of one ``shape`` and ``dtype``, one after the other; or bytes, where ``index`` says.

    ``offset`` is where the first is, in bytes, and ``count`` how many there are: without it, as many as the file has. ``index`` is
    ``(offsets, nbytes)``, two arrays or tensors of integers with a number for each sample; samples are then tensors of bytes, of any
    length. ``transform`` is called for each sample. ``path`` is one of ``fs``, or a URL.

    A DataLoader gets each of its batches by one operation. ``samples[i]`` is a sample; ``samples[[3, 1, 4]]`` and ``samples[10:20]``
    are a tensor with one dimension more, without a copy for each (a list, where ``index`` or ``transform`` is given).
    """

    def __init__(
        self,
        path: _Path,
        *,
        shape: int | Sequence[int] | None = None,
        dtype: torch.dtype = torch.uint8,
        offset: int = 0,
        count: int | None = None,
        index: tuple[Any, Any] | None = None,
        fs: FileSystem | None = None,
        transform: Callable[[torch.Tensor], Any] | None = None,
    ) -> None:
        if (shape is None) == (index is None):
            raise ValueError("either shape= or index= says what the samples are")
        self.shape: tuple[int, ...]
        self._opened = _Opened(path, fs)
        self.transform = transform
        self._index = None
        if index is not None:
            self._index = tuple(torch.as_tensor(one, dtype=torch.int64).contiguous() for one in index)
            count = len(self._index[0])
            if len(self._index) != 2 or len(self._index[1]) != count:
                raise ValueError("index is (offsets, nbytes), each with a number for each sample")
            self.shape, self.dtype = (-1,), torch.uint8
        else:
            self.shape, self.dtype = (shape,) if isinstance(shape, int) else tuple(shape or ()), dtype
            self._offset, self._sample_bytes = offset, math.prod(self.shape) * dtype.itemsize
            if self._sample_bytes == 0:
                raise ValueError(f"samples of shape {self.shape} are empty")
        self._count = (self._opened.file().size() - offset) // self._sample_bytes if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            return self.__getitems__([index])[0]
        index = range(self._count)[index] if isinstance(index, slice) else index
        read = self.start(index)
        return read.wait()

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples with these indices, as a list, by one operation."""
        return _Parts(self.start(indices).wait())

    def start(self, indices: Any) -> "_Batch":
        """Begins to read the samples with these indices, by one operation. ``wait()`` on what it returns gives them."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        if len(indices) and not -self._count <= int(indices.min()) <= int(indices.max()) < self._count:
            raise IndexError(f"{int(indices.min())} to {int(indices.max())} are not all among {self._count} samples")
        indices = torch.where(indices < 0, indices + self._count, indices)
        file = self._opened.file()
        if self._index is None:
            batch = _slots.empty((len(indices), *self.shape), self.dtype)
            offsets, nbytes = indices * self._sample_bytes + self._offset, [self._sample_bytes] * len(indices)
            parts = batch
        else:
            offsets, lengths = (one[indices] for one in self._index)
            nbytes = lengths.tolist()
            batch = _slots.empty((sum(nbytes),), torch.uint8)
            parts = torch.split(batch, nbytes)
        pending = None
        if batch.numel():
            pending = Pending(file._native.start_ranges(False, offsets.tolist(), nbytes, batch.view(torch.uint8).numpy()))
        return _Batch(pending, sum(nbytes), parts, self.transform, file.name)


class _Batch:
    """Samples on their way."""

    def __init__(self, pending, nbytes, parts, transform, path):
        self._pending, self._nbytes, self._parts, self._transform, self._path = pending, nbytes, parts, transform, path

    def test(self) -> bool:
        """Moves the read on without waiting; whether it is over."""
        return self._pending is None or self._pending.test()

    def wait(self) -> Any:
        """The samples."""
        there_bytes = self._pending.wait() if self._pending else 0
        if there_bytes < self._nbytes:
            raise EOFError(f"{self._path} has {there_bytes} of {self._nbytes} bytes of these samples: it ends before them")
        return self._parts if self._transform is None else [self._transform(part) for part in self._parts]


class _Parts(list):
    """Samples, and the tensor that they are parts of."""

    def __init__(self, whole):
        super().__init__(whole)
        self.whole = whole if isinstance(whole, torch.Tensor) else None


def collate(samples: list[Any]) -> Any:
    """For ``DataLoader(samples, 64, collate_fn=weftfs.torch.collate)``: a batch is the tensor that was read, without a copy.

    All else is collated as by default.
    """
    whole = getattr(samples, "whole", None)
    return default_collate(samples) if whole is None else whole


class SampleStream(IterableDataset):
    """Batches of ``samples``, an iterable: ``DataLoader(SampleStream(samples, 256, shuffle=True), batch_size=None)``.

    ``ahead`` batches are read while the program works on one. Batches are shared out among the ``ranks`` of torch.distributed and the
    workers of the DataLoader: each goes to one of them. ``shuffle`` has them in an order of ``seed`` and of the epoch, which
    ``set_epoch`` says; it takes 8 bytes for each sample. ``drop_last`` leaves out a last batch that is not full; so that all ranks
    get as many batches, some that would go to a few of them are left out, too.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        ahead: int = 2,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        if batch_size < 1 or ahead < 0:
            raise ValueError("batch_size is 1 at least, and ahead not negative")
        self.samples, self.batch_size, self.ahead = samples, batch_size, ahead
        self._shuffle, self._seed, self._drop_last, self._epoch = shuffle, seed, drop_last, 0
        if (rank is None) != (ranks is None):
            raise ValueError("rank and ranks are given together, or neither")
        if rank is None:
            # Now, as workers that are started anew know nothing of it.
            are_many = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank, ranks = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if are_many else (0, 1)
        self.rank, self.ranks = rank, ranks

    def set_epoch(self, epoch: int) -> None:
        """Another order, the same in all ranks."""
        self._epoch = epoch

    def _batches(self):
        """Numbers of this rank's batches."""
        count = len(self.samples)
        if self._drop_last:
            return range(self.rank, count // self.batch_size // self.ranks * self.ranks, self.ranks)
        return range(self.rank, -(-count // self.batch_size), self.ranks)

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[Any]:
        ours = self._batches()
        worker = get_worker_info()
        if worker is not None:
            ours = ours[worker.id :: worker.num_workers]
        order = self._order()
        waiting: collections.deque[_Batch] = collections.deque()
        for at in ours:
            waiting.append(self.samples.start(order(at * self.batch_size, (at + 1) * self.batch_size)))
            if len(waiting) > self.ahead:
                yield waiting.popleft().wait()
        while waiting:
            yield waiting.popleft().wait()

    def _order(self):
        count = len(self.samples)
        if not self._shuffle:
            return lambda first, end: range(first, min(end, count))
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(count, generator=random)
        return lambda first, end: order[first:end]


class SampleFiles(Dataset):
    """Files, each of which is a sample, map-style: a tensor of its bytes, or what ``transform`` makes of it.

    ``paths`` are those of the files; or one of a directory, whose files are taken in the order of their names.
    """

    def __init__(
        self,
        paths: _Path | Sequence[_Path],
        *,
        fs: FileSystem | None = None,
        transform: Callable[[torch.Tensor], Any] | None = None,
    ) -> None:
        self.transform = transform
        if isinstance(paths, (str, bytes, os.PathLike)):
            self._fs, top = locate(paths, fs)
            entries = sorted((entry.name, entry.path) for entry in self._fs.scandir(top) if entry.stat and entry.stat.is_file())
            paths = [path for _, path in entries]
        else:
            self._fs = locate("", fs)[0]
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        data = self._fs.read_bytes(self.paths[index])
        sample = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return sample if self.transform is None else self.transform(sample)
