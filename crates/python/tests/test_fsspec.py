"""What this file system does beyond fsspec's own tests."""

import asyncio
import os

import fsspec
import pytest
from weftfs.spec import WeftFileSystem


@pytest.fixture
def fs():
    return WeftFileSystem()


def test_ranges(fs, top):
    data = os.urandom(500_000)
    fs.pipe_file(f"{top}/f", data)
    fs.pipe_file(f"{top}/g", data[::-1])
    paths = [f"{top}/f", f"{top}/g", f"weft://x{top}/f", f"{top}/f", f"{top}/none", f"{top}/f", f"{top}/f"]
    starts, ends = [0, 10, None, -20, 0, 499_990, 5], [10, 20, 5, None, 4, 600_000, 3]
    found = fs.cat_ranges(paths, starts, ends)
    assert found[:4] == [data[:10], data[::-1][10:20], data[:5], data[-20:]]
    assert isinstance(found[4], FileNotFoundError) and found[5:] == [data[499_990:], b""]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, starts, ends, on_error="raise")
    with pytest.raises(ValueError):
        fs.cat_ranges([f"{top}/f"], [1, 2], [3])
    many = [at * 40 for at in range(10_000)]
    cut = fs.cat_ranges([f"{top}/f"] * 10_000, many, [at + 30 for at in many])
    assert cut == [data[at : at + 30] for at in many]
    assert fs.cat_file(f"{top}/f", -3) == data[-3:] and fs.cat_file(f"{top}/f", 5, -5) == data[5:-5]
    assert fs.tail(f"{top}/f", 9) == data[-9:] and fs.head(f"{top}/f", 9) == data[:9]


def test_a_transaction_gives_names_at_its_end(fs, top):
    with fs.transaction:
        with fs.open(f"{top}/a", "wb") as file:
            file.write(b"1")
        assert not fs.exists(f"{top}/a")
    assert fs.cat(f"{top}/a") == b"1" and fs.ls(top, detail=False) == [f"{top}/a"]
    with pytest.raises(KeyError), fs.transaction:
        with fs.open(f"{top}/b", "wb") as file:
            file.write(b"1")
        raise KeyError
    assert fs.ls(top, detail=False) == [f"{top}/a"]


def test_what_was_flushed_is_there_for_others(fs, top):
    other = WeftFileSystem(skip_instance_cache=True)
    with fs.open(f"{top}/f", "wb") as file:
        file.write(b"12345")
        file.flush()
        assert other.cat(f"{top}/f") == b"12345" and other.info(f"{top}/f")["size"] == 5


def test_urls(fs, top, weft):
    fs.pipe_file(f"{top}/f", b"hello\nthere\n")
    url = fs.unstrip_protocol(f"{top}/f")
    assert url.startswith("weft://") and url.endswith(f"{top}/f")
    fsspec.register_implementation("weft", WeftFileSystem, clobber=True)
    with fsspec.open(url, "rt") as file:
        assert file.readlines() == ["hello\n", "there\n"]
    options = WeftFileSystem._get_kwargs_from_urls(url)
    assert options["host"] and WeftFileSystem(**options).cat(url) == b"hello\nthere\n"
    assert WeftFileSystem._strip_protocol(["weft://h:1/a/", "/b", "c"]) == ["/a", "/b", "/c"]


def test_asynchronous_use(fs, top):
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    fs.pipe_file(f"{top}/f", b"12345")

    async def run():
        wrapped = AsyncFileSystemWrapper(fs, asynchronous=True)
        return await wrapped._cat_file(f"{top}/f"), await wrapped._ls(top, detail=False)

    assert asyncio.run(run()) == (b"12345", [f"{top}/f"])


def test_attributes_and_links(fs, top):
    fs.touch(f"{top}/f")
    assert fs.info(f"{top}/f")["size"] == 0 and fs.isfile(f"{top}/f")
    before = fs.modified(f"{top}/f")
    fs.touch(f"{top}/f", truncate=False)
    assert fs.modified(f"{top}/f") >= before >= fs.created(f"{top}/f")
    fs.weft.symlink("f", f"{top}/l")
    assert fs.islink(f"{top}/l") and fs.info(f"{top}/l")["destination"] == "f" and fs.info(f"{top}/l")["type"] == "file"
    fs.mv(f"{top}/f", f"{top}/g")
    assert not fs.exists(f"{top}/f") and fs.exists(f"{top}/g")
    with pytest.raises(IsADirectoryError):
        fs.rm(top)
    with pytest.raises(ValueError, match="root"):
        fs.rm("/", recursive=True)
