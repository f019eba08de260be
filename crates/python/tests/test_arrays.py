"""Arrays in files, compared with NumPy's own in memory."""

import asyncio
import pickle

import numpy as np
import pytest
import weftfs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=7)


def filled(shape, dtype="i4"):
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def make(weft, top, model, order="C", offset=0, name="a"):
    array = weftfs.open_array(
        weft, f"{top}/{name}", model.shape, model.dtype, mode="w+", order=order, offset=offset, layout=(4096, 0, -1)
    )
    array[...] = model
    return array


@SETTINGS
@given(data=st.data(), shape=SHAPES, order=st.sampled_from("CF"), offset=st.integers(0, 9000))
def test_slices_are_those_of_numpy(weft, top, data, shape, order, offset):
    model = filled(shape)
    array = make(weft, top, model, order, offset)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    read = array[key]
    assert np.array_equal(read, model[key]) and np.shape(read) == np.shape(model[key])
    value = np.asarray(model[key]) * -1 - 1
    array[key] = value
    model[key] = value
    assert np.array_equal(array[...], model)
    array.close()


@SETTINGS
@given(data=st.data(), shape=SHAPES, order=st.sampled_from("CF"))
def test_indices_are_those_of_numpy(weft, top, data, shape, order):
    model = filled(shape)
    array = make(weft, top, model, order)
    kinds = [hnp.integer_array_indices(shape), hnp.arrays(bool, shape), hnp.arrays(bool, shape[:1])]
    key = data.draw(st.one_of(kinds))
    assert np.array_equal(array[key], model[key])
    value = np.arange(np.size(model[key])).reshape(np.shape(model[key]))
    array[key] = value
    model[key] = value
    assert np.array_equal(array[...], model)
    array.close()


def test_indices_and_slices_together(weft, top):
    model = filled((9, 8, 7, 3))
    array = make(weft, top, model)
    for key in [
        np.s_[[1, 5, 7]], np.s_[[1, -5, 7], :, [0, 1, 2]], np.s_[..., [1, 2]], np.s_[:, [3, 1], 2:5], np.s_[2, [3, 1]],
        np.s_[np.array([[1, 2], [3, 4]])], np.s_[:, np.arange(8) % 2 == 0, 3:5], np.s_[None, [1, 1]], np.s_[[], 2],
        np.s_[[True, False] * 4 + [True]], np.s_[-1, ..., [0, 2]],
    ]:
        assert np.array_equal(array[key], model[key]), key
        array[key] = array[key] + 1000
        model[key] = model[key] + 1000
        assert np.array_equal(array[...], model), key


def test_the_last_of_several_values_counts(weft, top):
    array = make(weft, top, filled((10,)))
    array[[3, 3, 4, 3]] = [1, 2, 3, 4]
    assert list(array[3:5]) == [4, 3]


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "<i2", ">f4", "c16", "f2", "S5", "U3", "M8[ns]", "m8[s]", [("x", "f4"), ("y", "i8", (2,))], "V7"]
)
def test_every_type_without_objects(weft, top, dtype):
    model = np.frombuffer(np.random.default_rng(2).bytes(200 * np.dtype(dtype).itemsize), "u1")
    model = (model % 2 if dtype == "?" else model % 100).view(dtype).reshape(20, 10)
    array = make(weft, top, model)
    assert array[3:, ::2].tobytes() == model[3:, ::2].tobytes()
    assert array[[5, 2]].tobytes() == model[[5, 2]].tobytes()
    assert np.asarray(array[4, 5]).tobytes() == model[4, 5].tobytes()
    with pytest.raises(TypeError, match="Python objects"):
        weftfs.open_array(weft, f"{top}/o", (3,), object, mode="w+")


def test_a_field_is_an_array_of_its_own(weft, top):
    dtype = np.dtype([("x", "f4"), ("y", "i8")])
    model = np.zeros((6, 5), dtype)
    array = make(weft, top, model)
    array["y"] = filled((6, 5), "i8")
    model["y"] = filled((6, 5), "i8")
    assert (array["y"] == model["y"]).all() and (array.sub("y")[1:, ::2] == model["y"][1:, ::2]).all()
    assert (array[...] == model).all()


def test_any_memory_is_read_into_and_written_from(weft, top):
    model = filled((6, 8, 5), "f8")
    array = make(weft, top, model)
    for out in [np.zeros((5, 8, 6)).T, np.zeros((12, 16, 5))[::2, ::-2], weftfs.empty((6, 8, 5), fs=weft), np.asfortranarray(model * 0)]:
        assert array.read(out=out) is out and (out == model).all()
        array[...] = out + 1
        assert (array[...] == model + 1).all()
        array[...] = model
    part = np.zeros((6, 5))
    array.read(np.s_[:, 3], out=part)
    assert (part == model[:, 3]).all()
    array[:, 2] = 7.5
    array[0] = np.arange(5)
    model[:, 2], model[0] = 7.5, np.arange(5)
    assert (array[...] == model).all()
    read_only = np.zeros((6, 8, 5))
    read_only.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        array.read(out=read_only)
    for wrong in [np.zeros((6, 8, 4)), np.zeros((6, 8, 5), "f4")]:
        with pytest.raises(ValueError, match="out has shape"):
            array.read(out=wrong)


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_tensors_are_buffers(weft, top):
    model = filled((6, 8), "f4")
    array = make(weft, top, model)
    out = np.zeros((6, 8), "f4")
    array.read(out=OnlyDlpack(out))
    assert (out == model).all()
    array[...] = OnlyDlpack(out + 1)
    assert (array[...] == model + 1).all()
    with weft.open_raw(f"{top}/a") as file:
        assert file.readinto_at(OnlyDlpack(out), 0) == 192 and (out == model + 1).all()


def test_a_slice_is_one_request_to_each_server(weft, top):
    array = weftfs.open_array(weft, f"{top}/large", (4096, 4096), "f4", mode="w+", layout=(65536, 0, -1))
    servers = array.file.layout[1]
    # Larger ones are cut into windows of 1 MiB, which are under way at the same time.
    for key, nbytes in [(np.s_[:, ::64], 1 << 20), (np.s_[::-3, 5], 1366 * 4), (np.s_[100:3000, 7:9], 2900 * 8)]:
        before = array.file.io_stats()
        assert array[key].nbytes == nbytes
        after = array.file.io_stats()
        assert after["requests"] - before["requests"] <= servers, key
        assert after["request_bytes"] - before["request_bytes"] < 500 * servers, key
    plans = array.explain[:, ::64]
    assert len(plans) == servers and sum(plan["bytes"] for plan in plans) == 4096 * 64 * 4
    assert all(plan["requests"] == 1 and plan["request_bytes"] < 300 and plan["methods"] for plan in plans), plans
    with pytest.raises(IndexError):
        array.explain[[1, 2]]


def test_operations_go_on_by_themselves(weft, top):
    model = filled((64, 64))
    array = make(weft, top, model)
    pending = [array.start_read(np.s_[row]) for row in range(64)]
    assert all((one.wait() == model[row]).all() for row, one in enumerate(pending))
    assert all((one.wait() == model[row]).all() for row, one in enumerate(pending)), "it can be asked again"

    async def run():
        await array.start_write(np.s_[:, 3], np.zeros(64, "i4"))
        rows = await asyncio.gather(*(wait(array.start_read(np.s_[row])) for row in range(64)))
        model[:, 3] = 0
        assert (np.array(rows) == model).all()

    async def wait(pending):
        return await pending

    asyncio.run(run())
    with pytest.raises(IndexError):
        array.start_read([1, 2])


def test_opening(weft, top):
    with pytest.raises(FileNotFoundError):
        weftfs.open_array(weft, f"{top}/none", (4,), "f8")
    with weftfs.open_array(weft, f"{top}/new", (4, 5), "f8", mode="r+") as array:
        assert (array[...] == 0).all() and array.file.size() == 160
    with pytest.raises(ValueError, match="has 160 bytes; an array of"):
        weftfs.open_array(weft, f"{top}/new", (5, 5), "f8")
    for wrong in [{"order": "K"}, {"mode": "a"}, {"shape": (-1,)}, {"offset": -8}]:
        with pytest.raises(ValueError):
            weftfs.open_array(weft, f"{top}/new", **({"shape": (4, 5), "dtype": "f8"} | wrong))
    array = weftfs.open_array(weft, f"{top}/new", dtype="i2", offset=8)
    assert array.shape == (76,) and len(array) == 76 and array.nbytes == 152
    with pytest.raises(OSError, match="not open"):
        array[3] = 1
    for wrong in [76, -77, (0, 0), np.s_[..., ...], [76]]:
        with pytest.raises(IndexError):
            array[wrong]
    assert np.asarray(array).shape == (76,)


def test_npy_files(weft, top):
    for order in "CF":
        model = np.asarray(filled((30, 20), "f4"), order=order)
        with weft.open(f"{top}/x.npy", "wb") as file:
            np.save(file, model)
        array = weftfs.open_npy(weft, f"{top}/x.npy", "r+")
        assert (array[3:20:3, ::-1] == model[3:20:3, ::-1]).all()
        array[4] = 1
        assert (np.load(weft.open(f"{top}/x.npy", "rb"))[4] == 1).all()


def test_what_is_beyond_the_end_is_zeros(weft, top):
    array = make(weft, top, filled((100, 100)))
    array.file.truncate(20_000)
    for out in [np.full((100, 100), 7, "i4"), np.full((100, 200), 7, "i4")[:, ::2]]:
        assert array.start_read(..., out=out).wait() is out and (out[50:] == 0).all() and (out[49] != 0).all()
        out[...] = 7
        assert (array.read(out=out)[50:] == 0).all()
    assert (array[50:] == 0).all() and (array[49] != 0).all() and (array[:, 3][50:] == 0).all()


def test_a_file_system_is_pickled(weft):
    again = pickle.loads(pickle.dumps(weft))
    assert again.url == weft.url and again.exists("/")


def test_several_arrays_are_one_operation(weft, top):
    with weft.open_raw(f"{top}/x", "w+b") as file:
        first = np.arange(60, dtype="i4").reshape(3, 4, 5).transpose(2, 0, 1)
        second, third = np.arange(7.0)[::-2], np.array(3, "i2")
        # The first in C order, the second with gaps of 24 bytes, and backwards.
        places = [(8, None), (8 + 240 + 100, [-32]), (4, None)]
        before = file.io_stats()["requests"]
        assert file.write_arrays([first, second, third], places) == 240 + 32 + 2
        assert file.io_stats()["requests"] - before == 1
        data = np.frombuffer(file.read_at(0, 400), "u1")
        assert np.array_equal(data[8:248].view("i4").reshape(5, 3, 4), first) and data[4:6].view("i2")[0] == 3
        assert [data[348 - at * 32 :][:8].view("f8")[0] for at in range(4)] == list(second)
        into = [np.zeros((4, 5, 3), "i4").transpose(1, 2, 0), np.zeros(4), np.zeros((), "i2")]
        assert file.start_read_arrays(into, places).wait() == 274
        assert all(np.array_equal(one, other) for one, other in zip(into, [first, second, third]))
        beyond = np.ones(4, "u1")
        assert file.readinto_arrays([into[2], beyond], [(4, None), (354, [1])]) == 4 and list(beyond[2:]) == [0, 0]
        assert file.readinto_arrays([], []) == 0
        assert file.start_write_arrays([np.zeros((0, 3))], [(0, None)]).wait() == 0
        with pytest.raises(ValueError, match="shorter|longer"):
            file.write_arrays([first], [])
        with pytest.raises(ValueError, match="dimensions"):
            file.write_arrays([second], [(0, [8, 8])])
        with pytest.raises((ValueError, weftfs.WeftError)):
            file.readinto_arrays([np.zeros(5)], [(8, [-1 << 62])])


def test_fields_that_are_not_there(weft, top):
    for dtype, refused in ("f8", IndexError), ([("a", "i4")], ValueError):
        with pytest.raises(refused):
            weftfs.open_array(weft, f"{top}/x", shape=(3,), dtype=dtype, mode="r+")["b"]
    with pytest.raises(ValueError, match="no bytes"):
        weftfs.open_array(weft, f"{top}/x", dtype="V0")


def test_arrays_are_pickled(weft, top):
    model = filled((6, 5))
    array = make(weft, top, model, offset=40)
    again = pickle.loads(pickle.dumps(array))
    assert np.array_equal(again[1:, ::2], model[1:, ::2]) and (again.shape, again.dtype) == (array.shape, array.dtype)
    again[2] = 7
    assert (array[2] == 7).all() and np.array_equal(pickle.loads(pickle.dumps(array.sub((2, ...))))[...], array[2])
