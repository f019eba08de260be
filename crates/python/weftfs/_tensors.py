"""Tensors as memory: one operation for any number of them.

    direct    a tensor of the CPU, with any strides: servers' bytes go straight to its elements
    staged    all others (of a GPU, of another type than the file's, conjugated): by way of tensors of the CPU, some at a time,
              pinned where a GPU copies from or to them
"""

import math

import torch

# Bytes that are staged at a time, and stay in memory until they are moved.
STAGED_BYTES = 256 << 20

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_array(tensor):
    """A NumPy array over the memory of a direct tensor, whose elements are integers of the same size."""
    tensor = tensor.detach()
    # NumPy knows complex128, and no integers as large.
    return tensor.view(_INTEGERS.get(tensor.element_size(), tensor.dtype)).numpy()


def is_direct(tensor):
    """Whether an operation can have the memory of this tensor."""
    return tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()


def must_be_dense(tensor, name):
    """Refuses what has more than strided elements."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{name}: only dense tensors can be stored, not {tensor.layout}{' quantized' if tensor.is_quantized else ''}")


def _nbytes(tensor):
    return math.prod(tensor.shape) * tensor.element_size()


def _batches(pieces):
    """Pieces in lists of at most STAGED_BYTES, and of one at least."""
    batch, nbytes = [], 0
    for piece in pieces:
        if batch and nbytes + _nbytes(piece[0]) > STAGED_BYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(piece)
        nbytes += _nbytes(piece[0])
    if batch:
        yield batch


def write(file, pieces):
    """Writes ``(tensor, offset, strides)`` pieces; strides are in bytes, in the file. Direct ones are one operation."""
    direct, staged = _sorted(pieces)
    if direct:
        file.write_arrays([as_array(tensor) for tensor, _, _ in direct], [piece[1:] for piece in direct])
    for batch in _batches(staged):
        copies = [_on_cpu(tensor) for tensor, _, _ in batch]
        file.write_arrays([as_array(copy) for copy in copies], [piece[1:] for piece in batch])


def read(file, pieces):
    """Reads ``(tensor, offset, strides, dtype)`` pieces; ``dtype`` is that of the file. Direct ones are one operation.

    Raises EOFError where the file ends before them.
    """
    direct, staged = _sorted(pieces, lambda piece: piece[0].dtype == piece[3])
    if direct:
        _read(file, [piece[0] for piece in direct], direct)
    for batch in _batches(staged):
        is_of_gpu = any(tensor.is_cuda for tensor, *_ in batch)
        copies = [torch.empty(tensor.shape, dtype=dtype, pin_memory=is_of_gpu) for tensor, _, _, dtype in batch]
        _read(file, copies, batch)
        for copy, (tensor, *_) in zip(copies, batch):
            tensor.detach().copy_(copy)


def _read(file, tensors, pieces):
    arrays = [as_array(tensor) for tensor in tensors]
    wanted_bytes = sum(array.nbytes for array in arrays)
    there_bytes = file.readinto_arrays(arrays, [piece[1:3] for piece in pieces])
    if there_bytes < wanted_bytes:
        raise EOFError(f"{file.name} has {there_bytes} of {wanted_bytes} bytes: it was cut off")


def _sorted(pieces, also=lambda piece: True):
    direct, staged = [], []
    for piece in pieces:
        if piece[0].numel():
            (direct if is_direct(piece[0]) and also(piece) else staged).append(piece)
    return direct, staged


def _on_cpu(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.is_cuda:
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor)
