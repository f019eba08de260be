"""Zarr's own tests of stores, and what this store adds."""

import asyncio
import multiprocessing
import uuid

import hypothesis.strategies as st
import numpy as np
import pytest
import weftfs
import weftfs.zarr
import zarr
from hypothesis.stateful import precondition, rule
from weftfs.zarr import WeftStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests


class TestStore(StoreTests[WeftStore, cpu.Buffer]):
    store_cls = WeftStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, weft, top):
        weft.mkdir(f"{top}/store")
        return {"fs": weft, "root": f"{top}/store"}

    async def set(self, store, key, value):
        path = f"{store.root}/{key}"
        store.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        store.fs.write_bytes(path, value.to_bytes())

    async def get(self, store, key):
        return self.buffer_cls.from_bytes(store.fs.read_bytes(f"{store.root}/{key}"))

    def test_store_repr(self, store):
        assert repr(store) == f"WeftStore('{store.fs.url.rstrip('/')}{store.root}')"

    def test_store_supports_writes(self, store):
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        assert store.supports_listing


class Hierarchy(ZarrHierarchyStateMachine):
    """Zarr's, where a directory that is deleted does not take those along whose names only begin like its own ("a/q" and "a/qA")."""

    @precondition(lambda self: bool(self.all_arrays) or bool(self.all_groups))
    @rule(data=st.data())
    def delete_dir(self, data):
        path = self.draw_directory(data)
        self._sync(self.model.delete_dir(path))
        self._sync(self.store.delete_dir(path))
        stays = lambda node: node != path and not node.startswith(path.rstrip("/") + "/")
        self.all_groups = set(filter(stays, self.all_groups))
        self.all_arrays = set(filter(stays, self.all_arrays))


@pytest.mark.parametrize("machine", [ZarrStoreStateMachine, Hierarchy])
def test_walks_of_operations(weft, top, machine):
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    def make():
        return machine(WeftStore(weft, f"{top}/{uuid.uuid4().hex}"))

    run_state_machine_as_test(
        make, settings=settings(max_examples=15, stateful_step_count=25, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    )


def test_no_directory_stays_without_values(weft, top):
    store = WeftStore(weft, top)

    async def run():
        for key in ["a/b/c/0", "a/b/c/1", "a/d"]:
            await store.set(key, cpu.Buffer.from_bytes(b"1"))
        await store.delete("a/b/c/0")
        assert [key async for key in store.list_dir("a")] == ["b", "d"]
        await store.delete("a/b/c/1")
        assert [key async for key in store.list_dir("a")] == ["d"]
        await store.delete_dir("a")
        assert [key async for key in store.list_dir("")] == []

    asyncio.run(run())


def test_parts_belong_to_the_index_that_was_read_before(weft, top):
    store, other = WeftStore(weft, top), WeftStore(weft, top)

    async def run():
        await store.set("k", cpu.Buffer.from_bytes(b"a" * 1000))
        assert (await store.get("k", byte_range=SuffixByteRequest(10))).to_bytes() == b"a" * 10
        await other.set("k", cpu.Buffer.from_bytes(b"b" * 1000))
        assert (await store.get("k", byte_range=RangeByteRequest(5, 9))).to_bytes() == b"aaaa"
        assert (await store.get("k", byte_range=SuffixByteRequest(10))).to_bytes() == b"b" * 10
        assert (await store.get("k", byte_range=RangeByteRequest(990, 2000))).to_bytes() == b"b" * 10
        await store.set("k", cpu.Buffer.from_bytes(b"c" * 1000))
        assert (await store.get("k", byte_range=RangeByteRequest(5, 9))).to_bytes() == b"cccc"
        await store.delete("k")
        assert await store.get("k", byte_range=SuffixByteRequest(10)) is None

    asyncio.run(run())


def test_parts_of_values_are_one_operation(weft, top):
    store = WeftStore(weft, top)
    data = np.random.default_rng(1).bytes(200_000)

    async def run():
        await store.set("a/b", cpu.Buffer.from_bytes(data))
        wanted = [
            ("a/b", RangeByteRequest(10, 20)), ("none", None), ("a/b", OffsetByteRequest(199_990)), ("a/b", SuffixByteRequest(7)),
            ("a/b", RangeByteRequest(199_995, 300_000)),
        ]
        parts = await store.get_partial_values(default_buffer_prototype(), wanted)
        found = [part and part.to_bytes() for part in parts]
        assert found == [data[10:20], None, data[199_990:], data[-7:], data[199_995:]]
        await store.set_range("a/b", cpu.Buffer.from_bytes(b"new"), 100)
        assert (await store.get("a/b")).to_bytes() == data[:100] + b"new" + data[103:]
        with pytest.raises(FileNotFoundError):
            await store.set_range("missing", cpu.Buffer.from_bytes(b"new"), 0)

    asyncio.run(run())


def _fill(url, root, row):
    array = zarr.open_array(WeftStore(url, root), mode="r+")
    array[row * 64 : (row + 1) * 64] = np.arange(64 * 512, dtype="i4").reshape(64, 512) + row


def test_a_sharded_array_is_written_by_several_processes(weft, top):
    store = WeftStore(weft, f"{top}/sharded")
    array = zarr.create_array(store, shape=(256, 512), chunks=(16, 64), shards=(64, 256), dtype="i4")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_fill, args=(weft.url, store.root, row)) for row in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    expected = np.concatenate([np.arange(64 * 512, dtype="i4").reshape(64, 512) + row for row in range(4)])
    assert (array[:] == expected).all()
    assert (array[10:200:7, 3:400:11] == expected[10:200:7, 3:400:11]).all()


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("compressed", [False, True])
def test_chunks_of_a_shard_are_one_operation(weft, top, tmp_path, monkeypatch, location, compressed):
    store = WeftStore(weft, f"{top}/sharded")
    how = {"shape": (120, 90), "shards": {"shape": (40, 90), "index_location": location}, "chunks": (4, 9), "dtype": "i4", "fill_value": 7}
    if not compressed:
        how["compressors"] = None
    expected = np.random.default_rng(1).integers(0, 9, (120, 90), "i4")
    expected[40:80] = 7  # a shard that is not there
    expected[80:84] = 7  # chunks that are not there
    for of in store, str(tmp_path / "local"):
        zarr.create_array(of, **how)[:] = expected
    array = zarr.open_array(store, mode="r")
    assert isinstance(array.metadata.codecs[0], weftfs.zarr.ShardingCodec)
    lists, reads = [], []
    for name, seen in ("read_ranges", lists), ("read_at", reads):
        real = getattr(weftfs.File, name)
        monkeypatch.setattr(weftfs.File, name, lambda *given, real=real, seen=seen: (seen.append(given[1]), real(*given))[1])
    assert (array[10:30, 20:50] == expected[10:30, 20:50]).all()
    assert len(lists) == 1 and len(lists[0]) == 6 * 4 and len(reads) == 1, "the index, and a list of 6 by 4 chunks"
    for key in np.s_[5:90:3, 80:], np.s_[:, :5], np.s_[41:50], np.s_[80:84], np.s_[3], np.s_[80:90, 3:50:20], np.s_[:40], np.s_[:]:
        assert (array[key] == expected[key]).all(), key
    assert (array.oindex[[3, 50, 83], [0, 88]] == expected[[[3], [50], [83]], [0, 88]]).all()
    assert (array.vindex[[3, 50, 83], [0, 88, 5]] == expected[[3, 50, 83], [0, 88, 5]]).all()
    del lists[:]
    # Zarr's own store, by the same codec, is what it was.
    local = zarr.open_array(str(tmp_path / "local"), mode="r")
    assert (local[10:30, 20:50] == expected[10:30, 20:50]).all() and not lists
    monkeypatch.undo()
    again = zarr.open_array(store, mode="r+")
    again[10:30, 20:50] = 0
    assert (array[10:30, 20:50] == 0).all() and (array[0:10] == expected[0:10]).all()
