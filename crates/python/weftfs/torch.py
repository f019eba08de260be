"""PyTorch: checkpoints of any number of ranks, safetensors files, and samples for DataLoader, straight from the servers.

    >>> import torch.distributed.checkpoint as dcp, weftfs.torch
    >>> dcp.save(state_dict, storage_writer=weftfs.torch.StorageWriter("weft://node1:7400/run/step-100"))
    >>> dcp.load(state_dict, storage_reader=weftfs.torch.StorageReader("weft://node1:7400/run/step-100"))
    >>> weights = weftfs.torch.load_file("/models/m.safetensors", slices={"embedding": slice(0, 1000)})
    >>> loader = torch.utils.data.DataLoader(weftfs.torch.Samples("/train.bin", shape=(3, 64, 64)), 256, num_workers=4)

Tensors of the CPU are read into and written from directly, with any strides. Those of GPUs are staged in pinned memory.
"""

from ._checkpoint import StorageReader, StorageWriter
from ._safetensors import SafeTensors, load_file, save_file
from ._samples import SampleFiles, Samples, SampleStream, collate

__all__ = [
    "SafeTensors", "SampleFiles", "SampleStream", "Samples", "StorageReader", "StorageWriter", "collate", "load_file", "save_file",
]
