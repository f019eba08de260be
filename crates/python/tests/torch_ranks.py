"""A rank of a checkpoint test: torch_ranks.py save|load|cached|thread|process PATH COMMON RANK RANKS

It saves a state of known contents, or loads it on this number of ranks and compares.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import weftfs.torch

SHAPES = {"rows": (37, 64), "columns": (48, 50), "both": (64, 33, 3), "whole": (5, 7), "scalar": (), "none": (0, 4)}
PLACEMENTS = {"rows": [Shard(0)], "columns": [Shard(1)], "both": [Shard(0)], "whole": [Replicate()]}


def contents(name, shape, step):
    generator = torch.Generator().manual_seed(sum(name.encode()) + step)
    values = torch.randn(shape, generator=generator)
    return values.to({"rows": torch.bfloat16, "columns": torch.float64, "both": torch.complex128}.get(name, torch.float32))


def state(mesh, step, is_loading):
    """The model's tensors, sharded over the mesh, and objects. To be loaded: the same with other contents."""
    model = {}
    for name, shape in SHAPES.items():
        tensor = contents(name, shape, step)
        if is_loading:
            tensor = torch.full_like(tensor, 9)
        model[name] = distribute_tensor(tensor, mesh, PLACEMENTS[name]) if name in PLACEMENTS else tensor
    objects = {"step": 0 if is_loading else step, "words": [] if is_loading else ["a"] * 1000}
    return {"model": model, "optimizer": {"objects": objects}}


def compare(loaded, step):
    for name, shape in SHAPES.items():
        tensor = loaded["model"][name]
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        assert torch.equal(whole, contents(name, shape, step)), name
    assert loaded["optimizer"]["objects"] == {"step": step, "words": ["a"] * 1000}


def main(what, path, common, rank, ranks):
    dist.init_process_group("gloo", init_method=f"file://{common}", rank=int(rank), world_size=int(ranks))
    mesh = init_device_mesh("cpu", (int(ranks),))
    if what == "load":
        loaded = state(mesh, 3, is_loading=True)
        dcp.load(loaded, storage_reader=weftfs.torch.StorageReader(path))
        compare(loaded, 3)
    elif what == "cached":
        for step in range(4):
            # At first all ranks have plans, then none has a new one, then one has.
            extra = {"extra": torch.full((300,), float(step))} if step >= 2 and rank == "1" else {}
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            writer = weftfs.torch.StorageWriter()
            dcp.save(state(mesh, step, is_loading=False) | extra, checkpoint_id=path, storage_writer=writer, planner=planner)
            again = state(mesh, step, is_loading=True) | {name: torch.zeros(300) for name in extra}
            dcp.load(again, storage_reader=weftfs.torch.StorageReader(path))
            compare(again, step)
            assert not extra or torch.equal(again["extra"], extra["extra"])
    elif what == "save":
        dcp.save(state(mesh, 3, is_loading=False), storage_writer=weftfs.torch.StorageWriter(path))
    else:
        kind = {"thread": dcp.state_dict_saver.AsyncCheckpointerType.THREAD, "process": dcp.state_dict_saver.AsyncCheckpointerType.PROCESS}[what]
        saved = state(mesh, 3, is_loading=False)
        pending = dcp.async_save(saved, storage_writer=weftfs.torch.StorageWriter(path), async_checkpointer_type=kind)
        getattr(pending, "upload_completion", pending).result()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
