"""Programs of others that read and write weft://… by fsspec or the store of Zarr."""

import os

import fsspec
import numpy as np
import pandas as pd
import pytest
import weftfs.spec
import zarr
from weftfs.zarr import WeftStore

fsspec.register_implementation("weft", weftfs.spec.WeftFileSystem, clobber=True)


@pytest.fixture
def url(top):
    return os.environ["WEFT_URL"].rstrip("/") + top


@pytest.fixture
def table():
    random = np.random.default_rng(1)
    return pd.DataFrame({"at": np.arange(10_000), "of": random.choice(["a", "b", "c"], 10_000), "value": random.random(10_000)})


def test_pandas(weft, top, url, table):
    for kind in "csv", "parquet", "json":
        getattr(table, f"to_{kind}")(f"{url}/t.{kind}", **({} if kind == "json" else {"index": False}))
        again = getattr(pd, f"read_{kind}")(f"{url}/t.{kind}")
        pd.testing.assert_frame_equal(again, table, check_dtype=False)
    assert len(pd.read_parquet(f"{url}/t.parquet", columns=["value"], filters=[("of", "==", "b")])) == (table["of"] == "b").sum()
    table.to_csv(f"{url}/t.csv.gz", index=False)
    assert len(pd.read_csv(f"{url}/t.csv.gz")) == 10_000


def test_pyarrow(weft, top, url, table):
    import pyarrow
    import pyarrow.dataset

    fs = fsspec.filesystem("weft")
    pyarrow.dataset.write_dataset(
        pyarrow.Table.from_pandas(table), f"{top}/parts", format="parquet", filesystem=fs,
        partitioning=pyarrow.dataset.partitioning(pyarrow.schema([("of", pyarrow.string())]), flavor="hive"),
    )
    assert sorted(weft.listdir(f"{top}/parts")) == ["of=a", "of=b", "of=c"]
    parts = pyarrow.dataset.dataset(f"{top}/parts", filesystem=fs, partitioning="hive")
    found = parts.to_table(filter=pyarrow.dataset.field("of") == "c").to_pandas()
    assert found["value"].sum() == pytest.approx(table[table["of"] == "c"]["value"].sum())


def test_dask(weft, url, table):
    import dask
    import dask.array
    import dask.dataframe

    with dask.config.set(scheduler="threads"):
        dask.dataframe.from_pandas(table, npartitions=4).to_parquet(f"{url}/parts")
        parts = dask.dataframe.read_parquet(f"{url}/parts")
        assert parts.npartitions == 4 and parts["value"].sum().compute() == pytest.approx(table["value"].sum())
        dask.dataframe.from_pandas(table, npartitions=3).to_csv(f"{url}/t-*.csv", index=False)
        assert len(dask.dataframe.read_csv(f"{url}/t-*.csv")) == 10_000


def test_arrays_of_dask_and_xarray(weft, top):
    import dask
    import dask.array
    import xarray

    values = np.random.default_rng(1).random((60, 80))
    with dask.config.set(scheduler="threads"):
        store = WeftStore(weft, f"{top}/a")
        zarr.create_array(store, shape=values.shape, chunks=(10, 20), shards=(30, 40), dtype="f8")
        dask.array.from_array(values, chunks=(30, 40)).to_zarr(zarr.open_array(store))
        assert dask.array.from_zarr(zarr.open_array(store))[::7, 3:50].sum().compute() == pytest.approx(values[::7, 3:50].sum())
        data = xarray.Dataset({"heat": (("x", "y"), values)}, coords={"x": np.arange(60)})
        data.to_zarr(WeftStore(weft, f"{top}/x"), mode="w")
        again = xarray.open_zarr(WeftStore(weft, f"{top}/x", read_only=True))
        assert float(again["heat"].sel(x=slice(10, 20)).sum()) == pytest.approx(values[10:21].sum())


def test_zarr_and_xarray_by_a_url_alone(url):
    import xarray

    values = np.random.default_rng(1).random((60, 80))
    group = zarr.open_group(f"{url}/deep/below/g.zarr", mode="w")
    group.create_array("a/b", data=values, chunks=(10, 20))
    assert np.array_equal(zarr.open_group(f"{url}/deep/below/g.zarr", mode="r")["a/b"][5:50], values[5:50])
    xarray.Dataset({"heat": (("x", "y"), values)}).to_zarr(f"{url}/other/x.zarr")
    assert np.array_equal(xarray.open_zarr(f"{url}/other/x.zarr")["heat"].values, values)


def test_directories_are_made_unless_refused(weft, top):
    weftfs.spec.WeftFileSystem().pipe_file(f"{top}/a/b/f", b"1")
    assert weft.read_bytes(f"{top}/a/b/f") == b"1"
    with pytest.raises(FileNotFoundError):
        weftfs.spec.WeftFileSystem(auto_mkdir=False).pipe_file(f"{top}/c/d/f", b"1")


def test_datasets(weft, url, table, tmp_path):
    import datasets

    table.to_json(f"{url}/t.jsonl", orient="records", lines=True)
    loaded = datasets.load_dataset("json", data_files=f"{url}/t.jsonl", split="train", cache_dir=str(tmp_path))
    assert len(loaded) == 10_000 and loaded[77]["at"] == 77
    loaded.save_to_disk(f"{url}/saved")
    assert datasets.load_from_disk(f"{url}/saved")[5000]["at"] == 5000
