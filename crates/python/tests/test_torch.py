"""Checkpoints, safetensors files and samples, compared with what torch and safetensors make of the same."""

import copy
import io
import os
import pathlib
import pickle
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import weftfs
import weftfs.torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils.data import DataLoader
from weftfs import _slots, _tensors

RANK = pathlib.Path(__file__).with_name("torch_ranks.py")


def on_ranks(what, ranks, path, tmp_path):
    common = tmp_path / f"{what}-{ranks}"
    url = os.environ["WEFT_URL"].rstrip("/") + path
    each = [[sys.executable, "-W", "ignore", RANK, what, url, common, str(rank), str(ranks)] for rank in range(ranks)]
    running = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in each]
    said = [one.communicate(timeout=300)[0] for one in running]
    assert [one.returncode for one in running] == [0] * ranks, "\n".join(said)


@pytest.fixture
def operations(monkeypatch):
    """Names of the operations of files of arrays, as they happen."""
    seen = []
    for name in "readinto_arrays", "write_arrays", "read_ranges", "append":
        real = getattr(weftfs.File, name)
        monkeypatch.setattr(weftfs.File, name, lambda *given, real=real, name=name: (seen.append(name), real(*given))[1])
    return seen


def download(weft, path, tmp_path):
    local = tmp_path / "downloaded.safetensors"
    local.write_bytes(weft.read_bytes(path))
    return local


class TestCheckpoints:
    def test_four_ranks_write_and_others_read(self, weft, top, tmp_path):
        on_ranks("save", 4, f"{top}/step", tmp_path)
        assert weft.listdir(f"{top}/step") == ["model.safetensors"]
        for ranks in 1, 2, 3:
            on_ranks("load", ranks, f"{top}/step", tmp_path)
        # Others read it as what it is.
        others = safetensors.torch.load_file(download(weft, f"{top}/step/model.safetensors", tmp_path))
        sys.path.insert(0, str(RANK.parent))
        from torch_ranks import contents

        assert torch.equal(others["model.rows"], contents("rows", (37, 64), 3))
        assert torch.equal(others["model.columns"], contents("columns", (48, 50), 3))
        assert others["model.scalar"].shape == ()

    def test_in_the_background(self, top, tmp_path):
        for what in "thread", "process":
            on_ranks(what, 2, f"{top}/{what}", tmp_path)
            on_ranks("load", 1, f"{top}/{what}", tmp_path)

    def test_plans_that_the_planner_has_cached(self, top, tmp_path):
        on_ranks("cached", 2, f"{top}/step", tmp_path)

    def test_one_operation_each(self, weft, top, operations):
        state = {f"layer{at}": torch.randn(8, 100 + at) for at in range(50)} | {"step": 7}
        dcp.save(state, storage_writer=weftfs.torch.StorageWriter(f"{top}/c", fs=weft), no_dist=True)
        assert operations == ["write_arrays", "append"]
        del operations[:]
        loaded = {name: torch.zeros_like(one) for name, one in state.items() if name != "step"} | {"step": 0}
        memory = {name: one.data_ptr() for name, one in loaded.items() if name != "step"}
        dcp.load(loaded, storage_reader=weftfs.torch.StorageReader(f"{top}/c", fs=weft), no_dist=True)
        assert operations == ["read_ranges", "readinto_arrays"]
        assert loaded["step"] == 7 and all(torch.equal(loaded[name], state[name]) for name in memory)
        assert all(loaded[name].data_ptr() == address for name, address in memory.items())

    def test_a_save_that_ends_early_leaves_the_one_before(self, weft, top, monkeypatch):
        writer = weftfs.torch.StorageWriter(f"{top}/c.safetensors", fs=weft)
        dcp.save({"x": torch.ones(1000)}, storage_writer=writer, no_dist=True)
        with monkeypatch.context() as patched, pytest.raises(CheckpointException, match="on purpose"):
            patched.setattr(writer, "finish", lambda *_, **__: (_ for _ in ()).throw(OSError("on purpose")))
            dcp.save({"x": torch.zeros(1000), "y": torch.zeros(5)}, storage_writer=writer, no_dist=True)
        loaded = {"x": torch.zeros(1000)}
        dcp.load(loaded, storage_reader=weftfs.torch.StorageReader(f"{top}/c.safetensors", fs=weft), no_dist=True)
        assert loaded["x"].sum() == 1000
        dcp.save({"x": torch.full((10,), 2.0)}, storage_writer=writer, no_dist=True)
        assert weft.listdir(top) == ["c.safetensors"]
        assert weftfs.torch.load_file(f"{top}/c.safetensors", fs=weft)["x"].sum() == 20
        kept = weftfs.torch.StorageWriter(f"{top}/c.safetensors", fs=weft, overwrite=False)
        with pytest.raises(CheckpointException, match="overwrite is False"):
            dcp.save({"x": torch.zeros(3)}, storage_writer=kept, no_dist=True)

    def test_tensors_of_any_strides_and_kinds(self, weft, top, monkeypatch):
        base = torch.randn(20, 30, 4)
        state = {
            "transposed": base.permute(2, 0, 1), "steps": base[::3, ::2], "conjugated": torch.randn(5, dtype=torch.complex64).conj(),
            "expanded": torch.randn(1, 6).expand(4, 6), "f8": torch.randn(9).to(torch.float8_e4m3fn), "flags": base[0] > 0,
            "parameter": torch.nn.Parameter(torch.randn(3, 3)), "u16": torch.arange(9).to(torch.uint16),
        }
        path = f"{top}/c"
        dcp.save(state, storage_writer=weftfs.torch.StorageWriter(path, fs=weft), no_dist=True)
        for nbytes in 256 << 20, 40:
            # What is staged goes a few at a time.
            monkeypatch.setattr(_tensors, "STAGED_BYTES", nbytes)
            loaded = {name: torch.zeros_like(one) for name, one in state.items()}
            loaded["steps"] = torch.zeros(20, 30, 4)[::3, ::2]
            loaded["f8"] = torch.zeros(9)
            loaded["conjugated"] = torch.zeros(5, dtype=torch.complex64).conj()
            dcp.load(loaded, storage_reader=weftfs.torch.StorageReader(path, fs=weft), no_dist=True)
            assert all(torch.equal(loaded[name], one.to(loaded[name].dtype)) for name, one in state.items())

    def test_what_cannot_be(self, weft, top):
        writer = weftfs.torch.StorageWriter(f"{top}/c", fs=weft)
        with pytest.raises(CheckpointException, match="only dense tensors"):
            dcp.save({"x": torch.eye(3).to_sparse()}, storage_writer=writer, no_dist=True)
        with pytest.raises(ValueError, match="use_collectives"):
            dcp.save({"x": torch.eye(3)}, storage_writer=writer, no_dist=True, use_collectives=False)
        with pytest.raises(CheckpointException, match="no name for a tensor"):
            dcp.save({"__metadata__": torch.eye(3)}, storage_writer=writer, no_dist=True)
        with pytest.raises(CheckpointException, match="where"):
            dcp.save({"x": torch.eye(3)}, storage_writer=weftfs.torch.StorageWriter(fs=weft), no_dist=True)
        with pytest.raises(TypeError, match="weftfs.connect"):
            weftfs.torch.StorageReader(f"{top}/c", fs="weft://nowhere")
        with pytest.raises(CheckpointException, match="No such file|not there|nothing"):
            dcp.load({"x": torch.eye(3)}, storage_reader=weftfs.torch.StorageReader(f"{top}/nothing", fs=weft), no_dist=True)
        weft.mkdir(f"{top}/empty")
        with pytest.raises(CheckpointException, match="there is no checkpoint"):
            dcp.load({"x": torch.eye(3)}, storage_reader=weftfs.torch.StorageReader(f"{top}/empty", fs=weft), no_dist=True)

    def test_models_of_others_in_several_files(self, weft, top, tmp_path):
        parts = {"a.safetensors": {"x": torch.randn(40, 3)}, "b.safetensors": {"y": torch.randn(7), "z": torch.randn(2)}}
        for name, tensors in parts.items():
            safetensors.torch.save_file(tensors, tmp_path / name)
            weft.write_bytes(f"{top}/{name}", (tmp_path / name).read_bytes())
        everything = parts["a.safetensors"] | parts["b.safetensors"]
        for has_index in False, True:
            if has_index:
                weft.write_bytes(f"{top}/unfinished.safetensors", b"123")
                index = '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}'
                weft.write_bytes(f"{top}/model.safetensors.index.json", index.encode())
            loaded = {name: torch.zeros_like(tensor) for name, tensor in everything.items()}
            dcp.load(loaded, storage_reader=weftfs.torch.StorageReader(top, fs=weft), no_dist=True)
            assert all(torch.equal(loaded[name], tensor) for name, tensor in everything.items())

    def test_without_knowing_what_is_there(self, weft, top):
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

        state = {"model": {"a": torch.randn(3), "b": [torch.randn(2), 5]}, "steps": 4}
        dcp.save(state, storage_writer=weftfs.torch.StorageWriter(f"{top}/c", fs=weft), no_dist=True)
        found = _load_state_dict_from_keys(storage_reader=weftfs.torch.StorageReader(f"{top}/c", fs=weft))
        assert torch.equal(found["model"]["a"], state["model"]["a"]) and found["steps"] == 4
        assert torch.equal(found["model"]["b"][0], state["model"]["b"][0]) and found["model"]["b"][1] == 5


class TestSafetensors:
    def test_both_ways_with_others(self, weft, top, tmp_path):
        tensors = {
            "a": torch.randn(3, 5), "b": torch.arange(7, dtype=torch.int8), "c": torch.randn(4, 4, dtype=torch.float64).to(torch.bfloat16),
            "d": torch.tensor(True), "e": torch.empty(0, 3), "f": torch.randn(6, dtype=torch.complex64),
        }
        weftfs.torch.save_file(tensors, f"{top}/ours.safetensors", fs=weft, metadata={"said": "by us"})
        local = download(weft, f"{top}/ours.safetensors", tmp_path)
        others = safetensors.torch.load_file(local)
        assert others.keys() == tensors.keys() and all(torch.equal(others[name], tensors[name]) for name in tensors)
        with safetensors.safe_open(local, "pt") as opened:
            assert opened.metadata() == {"said": "by us"}
        safetensors.torch.save_file(tensors, tmp_path / "theirs", metadata={"said": "by them"})
        weft.write_bytes(f"{top}/theirs", (tmp_path / "theirs").read_bytes())
        with weftfs.torch.SafeTensors(f"{top}/theirs", weft) as file:
            assert file.metadata == {"said": "by them"} and set(file) == set(tensors) and len(file) == 6 and "a" in file
            assert file.shape("a") == (3, 5) and file.dtype("c") == torch.bfloat16
            loaded = file.load()
        assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)

    def test_a_file_that_cannot_be_written_leaves_the_one_before(self, weft, top, monkeypatch):
        weftfs.torch.save_file({"x": torch.ones(3)}, f"{top}/x", fs=weft)
        with monkeypatch.context() as patched, pytest.raises(OSError, match="on purpose"):
            patched.setattr(weftfs.File, "write_arrays", lambda *_: (_ for _ in ()).throw(OSError("on purpose")))
            weftfs.torch.save_file({"x": torch.zeros(3)}, f"{top}/x", fs=weft)
        assert weftfs.torch.load_file(f"{top}/x", fs=weft)["x"].sum() == 3
        weftfs.torch.save_file({"x": torch.zeros(3)}, f"{top}/x", fs=weft)
        assert weft.listdir(top) == ["x"]

    def test_one_operation_into_memory_that_is_there(self, weft, top, operations):
        tensors = {f"t{at}": torch.randn(100, 10) for at in range(20)}
        weftfs.torch.save_file(tensors, f"{top}/x", fs=weft)
        assert operations == ["write_arrays"]
        into = {name: torch.empty(10, 100).T for name in tensors}
        loaded = weftfs.torch.load_file(f"{top}/x", fs=weft, into=into)
        assert operations == ["write_arrays", "readinto_arrays"]
        assert all(loaded[name] is into[name] and torch.equal(into[name], tensors[name]) for name in tensors)
        with pytest.raises(IndexError, match="integers and slices"):
            weftfs.torch.load_file(f"{top}/x", fs=weft, slices={"t3": [1, 2]})
        with pytest.raises(ValueError, match=r"shape \(100, 10\)"):
            weftfs.torch.load_file(f"{top}/x", fs=weft, into={"t3": torch.empty(1000)})
        halves = weftfs.torch.load_file(f"{top}/x", fs=weft, into={"t3": torch.empty(100, 10, dtype=torch.float16)})
        assert torch.equal(halves["t3"], tensors["t3"].half())

    @hypothesis.given(data=st.data(), shape=st.lists(st.integers(1, 6), max_size=4))
    @hypothesis.settings(deadline=None, max_examples=60, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
    def test_slices_are_those_of_torch(self, weft, top, data, shape):
        tensor = torch.randn(shape)
        weftfs.torch.save_file({"before": torch.randn(3), "x": tensor}, f"{top}/x", fs=weft)
        index = st.integers(-7, 7)
        # Torch has no negative steps; NumPy has the same rules.
        one = st.one_of(st.builds(slice, index | st.none(), index | st.none(), st.integers(-3, 3).filter(bool) | st.none()), index)
        key = tuple(data.draw(st.lists(one, max_size=len(shape))))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(key)))
            key = key[:at] + (...,) + key[at:]
        try:
            expected = torch.tensor(tensor.numpy()[key].copy())
        except IndexError:
            with pytest.raises(IndexError):
                weftfs.torch.load_file(f"{top}/x", fs=weft, slices={"x": key})
            return
        assert torch.equal(weftfs.torch.load_file(f"{top}/x", fs=weft, slices={"x": key})["x"], expected)

    @pytest.mark.parametrize(
        "header",
        [
            b"", b"[]", b"{", b'{"x": 1}', b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
            b'{"x": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}',
            b'{"x": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
            b'{"x": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]}}',
            b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
            b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "__metadata__": {"weft.types": "{\\"x\\": \\"nn\\"}"}}',
            b'{"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "__metadata__": {"weft.types": "[]"}}',
            b'{"x": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}',
            b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [1000, 1004]}}',
        ],
    )
    def test_headers_that_lie(self, weft, top, header):
        weft.write_bytes(f"{top}/x", len(header).to_bytes(8, "little") + header + bytes(100))
        with pytest.raises(ValueError, match="nothing of use|cut off"):
            weftfs.torch.load_file(f"{top}/x", fs=weft)

    def test_files_that_are_none(self, weft, top):
        for data in b"", b"1234", b"\xff" * 8, (10**12).to_bytes(8, "little") + b"{}":
            weft.write_bytes(f"{top}/x", data)
            with pytest.raises(ValueError, match="not a safetensors file"):
                weftfs.torch.SafeTensors(f"{top}/x", weft)
        weftfs.torch.save_file({"x": torch.randn(1000)}, f"{top}/x", fs=weft)
        with weftfs.torch.SafeTensors(f"{top}/x", weft) as file:
            weft.truncate(f"{top}/x", 5000)
            with pytest.raises(EOFError, match="cut off"):
                file.load()

    def test_a_header_that_is_longer_than_most(self, weft, top):
        tensors = {f"name{'x' * 100}{at}": torch.tensor([at]) for at in range(1500)}
        weftfs.torch.save_file(tensors, f"{top}/x", fs=weft)
        loaded = weftfs.torch.load_file(f"{top}/x", fs=weft)
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def numbered(weft, path, count=1000, width=24):
    samples = torch.arange(count * width, dtype=torch.float32).reshape(count, width)
    weft.write_bytes(path, b"head" + samples.numpy().tobytes())
    return samples


class Made(torch.utils.data.Dataset):
    """What is made of batches of samples."""

    def __init__(self, samples, of_batch):
        self.samples, self.of_batch = samples, of_batch

    def __getitem__(self, indices):
        batch = self.samples[indices]
        return batch if self.of_batch is None else self.of_batch(batch)


def ten_of(batch):
    same = []
    for _ in range(10):
        same.append(batch.as_subclass(_slots.Batch))
        same[-1].slot = batch.slot
    return same


def kept(batch):
    """What is kept of a batch is not a slot: others get that."""
    same = torch.load(io.BytesIO(pickled(batch)), weights_only=True), pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch), batch.clone()
    assert all(type(one) is torch.Tensor and torch.equal(one, batch) for one in same)
    return batch


def pickled(batch):
    saved = io.BytesIO()
    torch.save(batch, saved)
    return saved.getvalue()


def twice(batch):
    return batch * 2


def in_parts(batch):
    return batch[:20], batch[20:]


def in_place(batch):
    batch *= 2
    return batch


class TestSamples:
    def test_batches_are_one_operation(self, weft, top, monkeypatch):
        there = numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        calls = []
        real = samples.start
        monkeypatch.setattr(samples, "start", lambda indices: (calls.append(len(indices)), real(indices))[1])
        assert len(samples) == 1000
        got = torch.cat(list(DataLoader(samples, 100, shuffle=True)))
        assert calls == [100] * 10
        assert torch.equal(got[got[:, 0].argsort()], there)
        assert torch.equal(samples[7], there[7]) and torch.equal(samples[-1], there[-1])
        assert torch.equal(samples[[3, 1, 3]], there[[3, 1, 3]]) and torch.equal(samples[990:], there[990:])
        assert torch.equal(samples[torch.tensor([5])], there[[5]]) and samples[[]].shape == (0, 24)
        for wrong in [1000], [-1001], [0, 5000]:
            with pytest.raises(IndexError, match="1000 samples"):
                samples[wrong]
        doubled = weftfs.torch.Samples(f"{top}/x", shape=(4, 6), dtype=torch.float32, offset=4, fs=weft, transform=lambda one: one.sum() * 2)
        assert doubled[3] == there[3].sum() * 2 and len(doubled[0:4]) == 4

    def test_samples_of_any_length(self, weft, top):
        lengths = [at * 7 % 50 for at in range(300)]
        offsets = [sum(lengths[:at]) for at in range(300)]
        data = os.urandom(sum(lengths))
        weft.write_bytes(f"{top}/x", data)
        samples = weftfs.torch.Samples(f"{top}/x", index=(offsets, torch.tensor(lengths)), fs=weft)
        for at, sample in zip([5, 0, 299, 50], samples[[5, 0, 299, 50]]):
            assert bytes(sample.numpy()) == data[offsets[at] : offsets[at] + lengths[at]]
        loader = DataLoader(samples, 32, collate_fn=list)
        assert b"".join(bytes(sample.numpy()) for batch in loader for sample in batch) == data
        with pytest.raises(ValueError, match="index is"):
            weftfs.torch.Samples(f"{top}/x", index=([0, 1], [3]), fs=weft)
        with pytest.raises(ValueError, match="either"):
            weftfs.torch.Samples(f"{top}/x", fs=weft)

    @pytest.mark.parametrize("how", ["fork", "spawn"])
    def test_workers(self, weft, top, how):
        there = numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        assert torch.equal(samples[0], there[0])
        loader = DataLoader(samples, 50, shuffle=True, num_workers=2, multiprocessing_context=how)
        for _ in range(2):
            got = torch.cat(list(loader))
            assert torch.equal(got[got[:, 0].argsort()], there)
        stream = weftfs.torch.SampleStream(samples, 30, shuffle=True)
        got = torch.cat(list(DataLoader(stream, None, num_workers=3, multiprocessing_context=how)))
        assert torch.equal(got[got[:, 0].argsort()], there) and not torch.equal(got, there)

    def test_streams_of_several_ranks(self, weft, top):
        there = numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        assert torch.equal(torch.cat(list(weftfs.torch.SampleStream(samples, 64))), there)
        for drop_last in False, True:
            streams = [weftfs.torch.SampleStream(samples, 64, shuffle=True, drop_last=drop_last, rank=rank, ranks=3) for rank in range(3)]
            got = [list(stream) for stream in streams]
            assert [len(batches) for batches in got] == [len(stream) for stream in streams] == ([5, 5, 5] if drop_last else [6, 5, 5])
            seen = torch.cat([batch for batches in got for batch in batches])[:, 0]
            assert len(seen.unique()) == len(seen) == (960 if drop_last else 1000)
            streams[0].set_epoch(1)
            assert not torch.equal(next(iter(streams[0])), got[0][0])
        for alone in {"rank": 0}, {"ranks": 2}:
            with pytest.raises(ValueError, match="together"):
                weftfs.torch.SampleStream(samples, 1, **alone)
        for wrong in {"batch_size": 0}, {"batch_size": 1, "ahead": -1}:
            with pytest.raises(ValueError, match="at least"):
                weftfs.torch.SampleStream(samples, **wrong)

    @pytest.mark.parametrize("how", ["fork", "spawn"])
    def test_batches_of_workers_come_in_shared_memory(self, weft, top, how):
        there = numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        loader = DataLoader(
            samples, 20, shuffle=True, num_workers=2, collate_fn=weftfs.torch.collate, multiprocessing_context=how, persistent_workers=True
        )
        addresses = set()
        for _ in range(3):
            got = []
            for batch in loader:
                assert type(batch) is torch.Tensor and batch.shape == (20, 24)
                addresses.add(batch.data_ptr())
                got.append(batch.clone())
            got = torch.cat(got)
            assert torch.equal(got[got[:, 0].argsort()], there)
        # 150 batches in the memory of few; each end of an epoch leaves some in the queue for a moment.
        assert len(addresses) <= 2 * _slots.SLOTS
        # Who keeps all of them gets memory for each, and so does who keeps a part.
        kept = [batch[3] for batch in loader]
        assert sorted(int(sample[0]) for sample in kept) == sorted({int(sample[0]) for sample in kept})
        assert all(torch.equal(sample, there[int(sample[0]) // 24]) for sample in kept)
        for number, _ in zip(range(3), loader):
            pass
        assert sum(len(batch) for batch in loader) == 1000

    def test_batches_that_workers_work_on(self, weft, top):
        there = numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        for of_batch in twice, in_parts, in_place:
            loader = DataLoader(Made(samples, of_batch), None, sampler=[range(at, at + 50) for at in range(0, 1000, 50)], num_workers=2)
            got = torch.cat([part for batch in loader for part in (batch if isinstance(batch, list) else [batch])])
            assert torch.equal(got, there if of_batch is in_parts else there * 2)
        loader = DataLoader(Made(samples, kept), None, sampler=[range(at, at + 50) for at in range(0, 1000, 50)], num_workers=1)
        assert torch.equal(torch.cat(list(loader)), there)
        # Batches that get larger.
        loader = DataLoader(Made(samples, None), None, sampler=[range(0, 1 << at) for at in range(9)], num_workers=1)
        assert all(torch.equal(batch, there[: len(batch)]) for batch in loader)
        # Batches that are sent more often than once, and than a slot has holders.
        for batches in DataLoader(Made(samples, ten_of), None, sampler=[[1, 2], [3, 4], [5, 6]] * 5, num_workers=1):
            assert all(torch.equal(batch, batches[0]) for batch in batches)

    def test_a_file_that_was_cut_off(self, weft, top):
        numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        weft.truncate(f"{top}/x", 5000)
        with pytest.raises(EOFError, match="ends before"):
            samples[900]

    def test_files(self, weft, top):
        weft.mkdir(f"{top}/d")
        for at in range(30):
            weft.write_bytes(f"{top}/d/{at:03}", bytes([at]) * at)
        files = weftfs.torch.SampleFiles(f"{top}/d", fs=weft)
        assert len(files) == 30 and [len(files[at]) for at in range(30)] == list(range(30))
        chosen = weftfs.torch.SampleFiles([f"{top}/d/007", f"{top}/d/001"], fs=weft, transform=lambda one: int(one.sum()))
        assert list(DataLoader(chosen, None, num_workers=2)) == [49, 1]

    def test_pickled(self, weft, top):
        numbered(weft, f"{top}/x")
        samples = weftfs.torch.Samples(f"{top}/x", shape=24, dtype=torch.float32, offset=4, fs=weft)
        assert torch.equal(pickle.loads(pickle.dumps(samples))[5], samples[5])
