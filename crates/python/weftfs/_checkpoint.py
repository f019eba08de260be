"""Checkpoints of torch.distributed: one file, in the safetensors format, that all ranks write at the same time.

    rank 0   w[0:512, :]   ─┐     header │ w, whole, 1024 × 4096 │ b, whole │ objects │      model.safetensors
    rank 1   w[512:1024, :] ┼──►
    rank 0   b             ─┘

Each tensor is whole in the file, however many ranks have parts of it. So a rank writes its parts as parts of arrays, all by one
operation; any number of ranks reads it back, each by one operation; and other programs read it as what it is.

Steps of a save, with what is durable at the end of each:

    coordinator  places all tensors, makes a file with a temporary name and a header     nothing
    all          read the header, write their parts, append other objects, sync          their parts
    coordinator  writes the header with the objects, syncs, renames the file             the new checkpoint, instead of the old one
"""

import errno
import io
import json
import posixpath
import uuid

import torch
from torch.distributed.checkpoint import metadata as _metadata
from torch.distributed.checkpoint import planner as _planner
from torch.distributed.checkpoint import staging, storage
from torch.futures import Future

from . import _safetensors, _tensors
from ._file import c_strides
from ._fs import FileSystem, _Path, locate
from .errors import ExistsError

_FILE_NAME = "model.safetensors"
_INDEX_NAME = "model.safetensors.index.json"
# Metadata of the file: names of objects that are stored as torch.save has them, and the planner's paths of names.
_OBJECTS = "weft.objects"
_PATHS = "weft.paths"
# What the entry of an object takes in a header, but for its name.
_OBJECT_ENTRY_BYTES = 128


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class _Place:
    """What the writer and the reader have in common: a checkpoint's id, and where it is."""

    def __init__(self, checkpoint_id, fs):
        if fs is not None and not isinstance(fs, FileSystem):
            raise TypeError(f"fs is made by weftfs.connect(), not a {type(fs).__name__}")
        self._fs = fs
        self._id = checkpoint_id

    @property
    def checkpoint_id(self):
        """Where the checkpoint is."""
        return self._id

    def _take(self, checkpoint_id):
        self._run_id = str(uuid.uuid4())
        if checkpoint_id is not None:
            self._id = checkpoint_id

    def _located(self):
        """``(fs, path)`` of the checkpoint's id."""
        if self._id is None:
            raise ValueError("where? Give the writer or reader a path, or checkpoint_id=")
        return locate(self._id, self._fs)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Whether this is the storage for such an id."""
        return str(checkpoint_id).startswith("weft://")


class StorageWriter(_Place, storage.StorageWriter, staging.BlockingAsyncStager):
    """Writes checkpoints: ``dcp.save(state_dict, storage_writer=StorageWriter("weft://node1:7400/run/step-100"))``.

    ``path`` is a directory, where it makes ``model.safetensors``, or the path of such a file; of ``fs``, or a URL. ``overwrite`` says
    whether a checkpoint that is there may be replaced, which happens at once, when the new one is whole. ``sync`` has it durable at
    the end. ``layout`` is ``(strip_bytes, servers, first_server)``. ``cache_staged_state_dict`` has ``async_save`` keep the memory
    that it copies the tensors to, for the next one.
    """

    # As the caches of planners, for all of a process.
    _last_plans: list[_planner.SavePlan] = []

    def __init__(
        self,
        path: _Path | None = None,
        *,
        fs: FileSystem | None = None,
        overwrite: bool = True,
        sync: bool = True,
        layout: tuple[int, ...] | None = None,
        cache_staged_state_dict: bool = False,
    ) -> None:
        _Place.__init__(self, path, fs)
        staging.BlockingAsyncStager.__init__(self, cache_staged_state_dict=cache_staged_state_dict)
        self._overwrite = overwrite
        self._sync = sync
        self._layout = layout
        self._take(None)

    def reset(self, checkpoint_id=None):
        """Another checkpoint begins."""
        self._take(checkpoint_id)

    def storage_meta(self):
        """Its ids."""
        return _metadata.StorageMeta(checkpoint_id=self._id, save_id=self._run_id)

    def set_up_storage_writer(self, is_coordinator, *args, use_collectives=True, **kwargs):
        """Finds the file system."""
        if not use_collectives:
            raise ValueError("use_collectives=False: a tensor is whole in the file, so ranks have to agree on where it is")
        self._here, path = self._located()
        self._path = path if path.endswith(".safetensors") else posixpath.join(path, _FILE_NAME)

    def prepare_local_plan(self, plan):
        """As it is."""
        return plan

    def prepare_global_plan(self, plans):
        """Places all tensors, and makes the file."""
        self._placed = placed = _Placed(self._whole(plans))
        if not self._overwrite and self._here.exists(self._path):
            raise ExistsError(errno.EEXIST, "there is a checkpoint, and overwrite is False", self._path)
        self._here.makedirs(posixpath.dirname(self._path), exist_ok=True)
        with self._here.open_raw(_safetensors.temporary(self._path), "wb", layout=self._layout, striped=True) as file:
            file.write_at(_safetensors.framed(placed.plan.header({}), placed.data_at), 0)
            file.truncate(placed.data_at + placed.plan.data_bytes)
        return plans

    def _whole(self, plans):
        """The plans of all ranks. A planner with a cache has empty ones of ranks without news, for which those of the last time
        hold."""
        last = type(self)._last_plans
        if len(last) != len(plans) and not all(plan.usable for plan in plans):
            raise ValueError(f"the planner has cached plans of {len(plans)} ranks, but none of them was written by {type(self).__name__}")
        type(self)._last_plans = [plan if plan.usable else before for plan, before in zip(plans, last or plans)]
        return self._last_plans

    def write_data(self, plan, planner):
        """Writes a rank's parts of tensors by one operation, and its objects by another."""
        with self._here.open_raw(_safetensors.temporary(self._path), "r+b") as file:
            results = _write_tensors(file, plan, planner) + _write_objects(file, plan, planner)
            # Not the coordinator for all: this one knows if a server has lost what was written here.
            if self._sync:
                file.sync()
        return _done(results)

    def finish(self, metadata, results):
        """Writes the header, and gives the file its name."""
        placed = self._placed
        objects = [(result.index.fqn, *result.storage_data) for of_rank in results for result in of_rank if result.storage_data]
        blobs = [(name, offset - placed.data_at, nbytes) for name, offset, nbytes in objects]
        said = {"format": "pt", _OBJECTS: json.dumps([name for name, _, _ in objects]), _PATHS: _paths(metadata.planner_data)}
        with self._here.open_raw(_safetensors.temporary(self._path), "r+b") as file:
            file.write_at(_safetensors.framed(placed.plan.header(said, blobs), placed.data_at), 0)
            if self._sync:
                file.sync()
        self._here.rename(_safetensors.temporary(self._path), self._path)
        if self._sync:
            self._here.sync_names()


def _paths(planner_data):
    if not planner_data:
        return "{}"
    try:
        return json.dumps(planner_data)
    except TypeError as wrong:
        raise TypeError(f"this planner's data is more than names and paths, and cannot be stored: {wrong}") from wrong


class _Placed:
    """Where everything of a checkpoint is in its file."""

    def __init__(self, plans):
        self.plan = _safetensors.Plan()
        objects, paths = [], {}
        for plan in plans:
            paths.update(plan.planner_data or {})
            for item in plan.items:
                if item.type == _planner.WriteItemType.BYTE_IO:
                    objects.append(item.index.fqn)
                else:
                    self.plan.add(item.index.fqn, item.tensor_data.properties.dtype, item.tensor_data.size)
        self.plan.place()
        # How long the header gets is known when the objects are; there is room for it.
        quoted = json.dumps(objects)
        said = self.plan.header({"format": "pt", _OBJECTS: quoted, _PATHS: _paths(paths)})
        self.data_at = _safetensors.data_offset(len(said) + len(quoted) + _OBJECT_ENTRY_BYTES * len(objects))


def _write_tensors(file, plan, planner):
    pieces, results = [], []
    entries = _safetensors.read_header(file).entries
    for item in plan.items:
        if item.type == _planner.WriteItemType.BYTE_IO:
            continue
        name, said = item.index.fqn, item.tensor_data
        tensor = planner.resolve_data(item)
        _tensors.must_be_dense(tensor, name)
        if tensor.dtype != said.properties.dtype or tensor.shape != said.chunk.sizes:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, but {said.properties.dtype} {tuple(said.chunk.sizes)} was planned")
        pieces.append((tensor, *_from(entries[name], said.chunk.offsets)))
        results.append(storage.WriteResult(item.index, tensor.numel() * tensor.element_size(), None))
    _tensors.write(file, pieces)
    return results


def _from(entry, indices):
    """``(offset, strides)`` of the part of a tensor that begins at these indices."""
    strides = c_strides(entry.shape, entry.dtype.itemsize)
    return entry.offset + sum(index * stride for index, stride in zip(indices, strides)), strides


def _write_objects(file, plan, planner):
    items = [item for item in plan.items if item.type == _planner.WriteItemType.BYTE_IO]
    objects = [planner.resolve_data(item).getbuffer() for item in items]
    at = file.append(b"".join(objects)) if items else 0
    results = []
    for item, data in zip(items, objects):
        results.append(storage.WriteResult(item.index, data.nbytes, (at, data.nbytes)))
        at += data.nbytes
    return results


class StorageReader(_Place, storage.StorageReader):
    """Reads checkpoints: ``dcp.load(state_dict, storage_reader=StorageReader("weft://node1:7400/run/step-100"))``.

    On any number of ranks, each reads its parts of all tensors by one operation, straight to where they belong. It reads any
    safetensors file, or directory of them, also those of others than :class:`StorageWriter`.
    """

    def __init__(self, path: _Path | None = None, *, fs: FileSystem | None = None) -> None:
        _Place.__init__(self, path, fs)
        self._take(None)

    def reset(self, checkpoint_id=None):
        """Another checkpoint begins."""
        self._take(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        """What is in the checkpoint: all tensors as wholes."""
        fs, top = self._located()
        self._where, tensors, paths = {}, {}, {}
        for path in _files_of(fs, top):
            with fs.open_raw(path) as file:
                header = _safetensors.read_header(file)
            objects = set(json.loads(header.metadata.get(_OBJECTS, "[]")))
            paths.update(json.loads(header.metadata.get(_PATHS, "{}")))
            for name, entry in header.entries.items():
                self._where[name] = (path, entry)
                tensors[name] = _metadata.BytesStorageMetadata() if name in objects else _whole(entry)
        return _metadata.Metadata(
            state_dict_metadata=tensors,
            planner_data={name: tuple(of) for name, of in paths.items()} or None,
            storage_data=self._where,
            storage_meta=_metadata.StorageMeta(checkpoint_id=self._id, load_id=self._run_id),
        )

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        """Takes what the metadata says of places."""
        self._where = metadata.storage_data

    def prepare_local_plan(self, plan):
        """As it is."""
        return plan

    def prepare_global_plan(self, plans):
        """As they are."""
        return plans

    def read_data(self, plan, planner):
        """Reads a rank's parts of tensors by one operation for each file, and its objects by another."""
        fs, by_file = self._located()[0], {}
        for item in plan.items:
            by_file.setdefault(self._where[item.storage_index.fqn][0], []).append(item)
        for path, items in by_file.items():
            with fs.open_raw(path) as file:
                self._read_objects(file, [item for item in items if item.type == _planner.LoadItemType.BYTE_IO], planner)
                self._read_tensors(file, [item for item in items if item.type != _planner.LoadItemType.BYTE_IO], planner)
        return _done(None)

    def _read_objects(self, file, items, planner):
        entries = [self._where[item.storage_index.fqn][1] for item in items]
        for item, data in zip(items, file.read_ranges([(entry.offset, entry.nbytes) for entry in entries])):
            planner.load_bytes(item, io.BytesIO(data))

    def _read_tensors(self, file, items, planner):
        pieces = []
        for item in items:
            entry = self._where[item.storage_index.fqn][1]
            tensor = planner.resolve_tensor(item)
            if tensor.shape != item.lengths:
                raise ValueError(f"{item.dest_index.fqn}: a tensor of {tuple(tensor.shape)} for {tuple(item.lengths)} elements")
            pieces.append((tensor, *_from(entry, item.storage_offsets), entry.dtype))
        _tensors.read(file, pieces)
        for item, piece in zip(items, pieces):
            planner.commit_tensor(item, piece[0])


def _whole(entry):
    size = torch.Size(entry.shape)
    chunk = _metadata.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return _metadata.TensorStorageMetadata(_metadata.TensorProperties(dtype=entry.dtype), size, [chunk])


def _files_of(fs, path):
    """Files of a checkpoint: the one that the writer makes, those that an index names, or all of a directory."""
    if not fs.isdir(path):
        return [path]
    names = sorted(name for name in fs.listdir(path) if not name.startswith("."))
    if _FILE_NAME in names:
        names = [_FILE_NAME]
    elif _INDEX_NAME in names:
        names = sorted(set(json.loads(fs.read_bytes(posixpath.join(path, _INDEX_NAME)))["weight_map"].values()))
    names = [name for name in names if name.endswith(".safetensors")]
    if not names:
        raise FileNotFoundError(errno.ENOENT, "there is no checkpoint: no file ends with .safetensors", path)
    return [posixpath.join(path, name) for name in names]
