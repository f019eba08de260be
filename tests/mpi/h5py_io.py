"""Slices of contiguous and chunked data sets of one HDF5 file, written and read by all processes.

    mpirun -n 4 python3 h5py_io.py FILE
"""

import sys

import h5py
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size
name, edge = sys.argv[1], 64
rows = [slice(r * edge // ranks, (r + 1) * edge // ranks) for r in range(ranks)]


def block(r):
    return np.arange(edge * (rows[r].stop - rows[r].start)).reshape(-1, edge) + 1000 * r


with h5py.File(name, "w", driver="mpio", comm=comm) as file:
    file.create_dataset("rows", (edge, edge), "f8")[rows[rank], :] = block(rank)  # independent
    columns = file.create_dataset("columns", (edge, edge), "i4")
    with columns.collective:
        columns[:, rank::ranks] = np.full((edge, edge // ranks), rank + 1, "i4")
    chunked = file.create_dataset("chunked", (edge, edge), "i4", chunks=(16, 16))
    with chunked.collective:
        chunked[rows[rank], :] = rank + 7
    file.attrs["answer"] = 42

with h5py.File(name, "r", driver="mpio", comm=comm) as file:
    columns = file["columns"][:]
    for r in range(ranks):
        assert (columns[:, r::ranks] == r + 1).all(), "columns"
        assert (file["rows"][rows[r], :] == block(r)).all(), "rows"
        assert (file["chunked"][rows[r], :] == r + 7).all(), "chunked"
    with file["columns"].collective:
        part = file["columns"][rank::ranks, ::2]
    assert part.shape == (edge // ranks, edge // 2) and file.attrs["answer"] == 42
if rank == 0:
    print("ok", flush=True)
