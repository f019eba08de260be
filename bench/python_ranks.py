#!/usr/bin/env python3
"""A rank of bench/python.py's checkpoints: python_ranks.py save|load RANK RANKS RUNS URL SCRATCH LIBRARY

All ranks have parts of 32 tensors, 2 GiB together. They save or load them in turns: by weftfs.torch, by torch's files on the mount,
and by the C interface, the same bytes to and from the same places. The first one prints the seconds of each turn.
"""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import weftfs.torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

TENSORS, ROWS, COLUMNS = 32, 4096, 4096


def main(what, rank, ranks, runs, url, scratch, library):
    rank, ranks, runs = int(rank), int(ranks), int(runs)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/common-{what}-{ranks}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    parts = {f"layer{at}": torch.full((ROWS // ranks, COLUMNS), float(at * 64 + rank)) for at in range(TENSORS)}
    state = {name: DTensor.from_local(part, mesh, [Shard(0)]) for name, part in parts.items()}
    by_c = ByC(library, url, list(parts.values()), rank)

    def write_by_c():
        if rank == 0:
            by_c.begin()
        dist.barrier()
        by_c.write()

    def drop_caches():
        if rank == 0:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")

    if what == "save":
        ways = {
            "weftfs.torch": (None, lambda: dcp.save(state, storage_writer=weftfs.torch.StorageWriter(url + "checkpoint"))),
            "C": (None, write_by_c),
            "torch's on the mount": (None, lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{scratch}/mnt/checkpoint"))),
        }
    else:
        ways = {
            "weftfs.torch": (None, lambda: dcp.load(state, storage_reader=weftfs.torch.StorageReader(url + "checkpoint"))),
            "C": (None, by_c.read),
            "torch's on the mount": (drop_caches, lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(f"{scratch}/mnt/checkpoint"))),
        }
    for turn in range(runs + 1):
        order = list(ways.items())
        for name, (prepare, work) in order[turn % 3 :] + order[: turn % 3]:
            (prepare or (lambda: None))()
            dist.barrier()
            begin = time.perf_counter()
            work()
            dist.barrier()
            if turn and rank == 0:
                print(f"{name}\t{time.perf_counter() - begin}", flush=True)
    dist.destroy_process_group()


class ByC:
    """The bytes of this rank's parts by lists, as a program in C would move them: one file of whole tensors."""

    def __init__(self, library, url, parts, rank):
        self.c = ctypes.CDLL(library)
        for name in ("weft_connect", "weft_open"):
            getattr(self.c, name).restype = ctypes.c_void_p
        for name in ("weft_readv_list", "weft_writev_list"):
            getattr(self.c, name).restype = ctypes.c_ssize_t
        self.fs = ctypes.c_void_p(self.c.weft_connect(url.encode(), None))
        nbytes = [part.nbytes for part in parts]
        self.memory = [(part.data_ptr(), part.nbytes) for part in parts]
        self.places = [(4096 + at * ROWS * COLUMNS * 4 + rank * one, one) for at, one in enumerate(nbytes)]
        self.total = sum(nbytes)

    def begin(self):
        """A new file instead of the last one, as with all ways."""
        self.c.weft_unlink(self.fs, b"/by-c")
        assert self.c.weft_close(self._opened(os.O_CREAT)) == 0

    def _opened(self, also=0):
        file = self.c.weft_open(self.fs, b"/by-c", os.O_RDWR | also, 0o644)
        assert file
        return ctypes.c_void_p(file)

    def _lists(self):
        count = len(self.places)
        addresses, lengths = zip(*self.memory)
        offsets, nbytes = zip(*self.places)
        of = lambda kind, values: (kind * count)(*values)
        memory = (ctypes.c_size_t(count), of(ctypes.c_void_p, addresses), of(ctypes.c_size_t, lengths))
        return (*memory, ctypes.c_size_t(count), of(ctypes.c_int64, offsets), of(ctypes.c_int64, nbytes))

    def write(self):
        file = self._opened()
        moved = self.c.weft_writev_list(file, *self._lists())
        assert moved == self.total and self.c.weft_fsync(file) == 0 and self.c.weft_close(file) == 0, moved

    def read(self):
        file = self._opened()
        moved = self.c.weft_readv_list(file, *self._lists())
        assert moved == self.total and self.c.weft_close(file) == 0, moved


if __name__ == "__main__":
    main(*sys.argv[1:])
