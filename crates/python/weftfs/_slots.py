"""Batches from a worker of a DataLoader to the program, without a copy and without new memory for each.

    worker    memfd  │ holders │ slot 0 │ slot 1 │ …        reads a batch into a slot, and sends (pid, fd, slot)
    program   the same memory, mapped once                  a tensor over the slot; when it goes, the slot is free again

A slot has a byte for each holder: the worker, and each message with it, until what was received of it is gone. It is free when all are
zero, so nobody has to count.

PyTorch's own way takes a file of shared memory for each tensor: made, filled with zeros page by page, sent, mapped and unmapped.
"""

import mmap
import os
import weakref
from multiprocessing.reduction import ForkingPickler

import numpy
import torch
from torch.utils.data import get_worker_info

# More than a DataLoader has of one worker at a time, by default: 2 that wait, 1 that is read, and some that the program works on.
SLOTS = 8
_HOLDERS = 8
_PAGE_BYTES = 4096


class _Ring:
    """Slots of one size."""

    def __init__(self, fd, slot_bytes):
        self.memory = mmap.mmap(fd, _PAGE_BYTES + SLOTS * slot_bytes)
        self.slot_bytes = slot_bytes

    def take(self):
        """A slot that is free, with the worker as its holder; None if there is none."""
        for number in range(SLOTS):
            if self.memory.find(b"\1", number * _HOLDERS, (number + 1) * _HOLDERS) < 0:
                self.memory[number * _HOLDERS] = 1
                return number
        return None

    def also_held(self, number):
        """Another holder of a slot; None if it has as many as it can have."""
        holder = self.memory.find(b"\0", number * _HOLDERS, (number + 1) * _HOLDERS)
        if holder < 0:
            return None
        self.memory[holder] = 1
        return holder

    def tensor(self, number, holder, shape, dtype):
        """The batch in a slot. The holder is gone when nobody uses its memory any more."""
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        array = numpy.frombuffer(self.memory, "u1", nbytes, _PAGE_BYTES + number * self.slot_bytes)
        weakref.finalize(array, self._let_go, holder).atexit = False
        return torch.from_numpy(array).view(dtype).view(shape)

    def _let_go(self, holder):
        self.memory[holder] = 0


class Batch(torch.Tensor):
    """A tensor in a slot. It is sent to another process as the slot; what is made of it is an ordinary tensor, copies too."""

    slot: tuple[tuple[int, int, int], _Ring, int]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __reduce_ex__(self, protocol):
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        return self.as_subclass(torch.Tensor).clone()


def _sent(batch):
    key, ring, number = batch.slot
    holder = ring.also_held(number)
    if holder is None:
        return torch.clone, (batch.as_subclass(torch.Tensor),)
    return _received, (key, ring.slot_bytes, number, holder, tuple(batch.shape), batch.dtype)


# What queues between processes use, and nothing that lasts longer.
ForkingPickler.register(Batch, _sent)


# Of this process, as a worker: (pid, fd, inode) and its ring.
_ours = None
# Of others, by what they send.
_rings: dict[tuple[int, int, int], _Ring] = {}


def empty(shape, dtype):
    """A tensor without contents: in a slot, in a worker of a DataLoader."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if get_worker_info() is None or nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    key, ring = _ring_for(nbytes)
    number = ring.take()
    if number is None:
        return torch.empty(shape, dtype=dtype)
    batch = ring.tensor(number, number * _HOLDERS, shape, dtype).as_subclass(Batch)
    batch.slot = key, ring, number
    return batch


def _ring_for(nbytes):
    global _ours
    if _ours is None or _ours[0][0] != os.getpid() or _ours[1].slot_bytes < nbytes:
        # Sizes are powers of two, so those that were too small take no more than the last one; they may still be sent.
        slot_bytes = max(_PAGE_BYTES, 1 << (nbytes - 1).bit_length())
        fd = os.memfd_create("weftfs-batches", os.MFD_CLOEXEC)
        os.ftruncate(fd, _PAGE_BYTES + SLOTS * slot_bytes)
        _ours = (os.getpid(), fd, os.fstat(fd).st_ino), _Ring(fd, slot_bytes)
    return _ours


def _received(key, slot_bytes, number, holder, shape, dtype):
    ring = _rings.get(key)
    if ring is None:
        # Of workers that are gone no more batches come.
        for gone in [one for one in _rings if not os.path.exists(f"/proc/{one[0]}")]:
            del _rings[gone]
        fd = os.open(f"/proc/{key[0]}/fd/{key[1]}", os.O_RDWR | os.O_CLOEXEC)
        try:
            ring = _rings[key] = _Ring(fd, slot_bytes)
        finally:
            os.close(fd)
    return ring.tensor(number, holder, shape, dtype)
