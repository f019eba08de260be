#!/usr/bin/env python3
"""The package for Python, beside the C interface, the mount, and tmpfs: medians of turns in one run.

    bench/python.py [--runs N] [--only PART]

It starts a cluster of four I/O servers on /dev/shm and a mount, and takes target/release/{weft,libweft.so,lib_weftfs.so} and the
environment of scripts/torch-env.sh (it starts itself anew in that).
"""

import argparse
import ctypes
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILT = ROOT / "target/release"
MIB = 1 << 20
PARTS = ["contiguous", "slices", "small", "ranges", "zarr", "checkpoints", "loaders"]

C_READS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <weft.h>
int main(int count, char **arguments)
{
    static char buffer[4096];
    struct timespec begin, end;
    weft_file *file = weft_open(weft_connect(arguments[1], NULL), arguments[2], O_RDONLY, 0);
    int turn, turns = 20000;
    for (turn = -1000; turn < turns; turn++) {
        if (turn == 0)
            clock_gettime(CLOCK_MONOTONIC, &begin);
        if (!file || weft_pread(file, buffer, 4096, (turn + 1000) % 1000 * 4096) != 4096)
            return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%f\n", ((end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec)) / 1e3 / turns);
    return count != 3;
}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="turns of each measurement [5]")
    parser.add_argument("--only", choices=PARTS, help="one part of it")
    arguments = parser.parse_args()
    python = ROOT / "target/torch/bin/python"
    if pathlib.Path(sys.prefix).resolve() != python.parents[1].resolve():
        subprocess.run([ROOT / "scripts/torch-env.sh", ROOT / "target/torch", ROOT / "target/python"], check=True)
        os.execv(python, [python, *sys.argv])
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="weft-python.", dir="/dev/shm"))
    os.environ["HOME"] = str(scratch)
    weft = str(BUILT / "weft")
    try:
        shutil.copytree(ROOT / "crates/python/weftfs", scratch / "package/weftfs")
        shutil.copy(BUILT / "lib_weftfs.so", scratch / "package/weftfs/_weftfs.abi3.so")
        sys.path.insert(0, str(scratch / "package"))
        up = subprocess.run([weft, "up", "--dir", scratch / "cluster", "--io", "4", "--detach"], check=True, capture_output=True, text=True)
        url = up.stdout.strip()
        (scratch / "mnt").mkdir()
        subprocess.run([weft, "mount", url, scratch / "mnt"], check=True)
        bench = Bench(url, scratch, arguments.runs)
        for part in [arguments.only] if arguments.only else PARTS:
            getattr(bench, part)()
    finally:
        subprocess.run([weft, "umount", scratch / "mnt"], capture_output=True)
        subprocess.run([weft, "down", "--dir", scratch / "cluster"], capture_output=True)
        shutil.rmtree(scratch, ignore_errors=True)


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


class Bench:
    def __init__(self, url, scratch, runs):
        import numpy
        import weftfs

        self.np, self.weftfs = numpy, weftfs
        self.url, self.scratch, self.runs = url, scratch, runs
        self.mount = scratch / "mnt"
        self.fs = weftfs.connect(url)
        self.c = ctypes.CDLL(str(BUILT / "libweft.so"))
        for name in ("weft_connect", "weft_open", "weft_type_bytes", "weft_type_hvector", "weft_type_contiguous"):
            getattr(self.c, name).restype = ctypes.c_void_p
        for name in ("weft_pread", "weft_pwrite", "weft_read_typed"):
            getattr(self.c, name).restype = ctypes.c_ssize_t
        self.c_fs = ctypes.c_void_p(self.c.weft_connect(url.encode(), None))

    def turns(self, title, ways, amount_bytes=None):
        """Times each way in turns, and prints medians; the ratios are to the first."""
        times = {name: [] for name in ways}
        for turn in range(self.runs + 1):
            order = list(ways.items())
            for name, (prepare, work) in order[turn % len(order) :] + order[: turn % len(order)]:
                # What the one before left in caches is not to matter.
                (prepare or work)()
                took = seconds(work)
                if turn:
                    times[name].append(took)
        self.print_medians(title, times, amount_bytes)

    def print_medians(self, title, times, amount_bytes=None):
        medians = {name: statistics.median(all_of) for name, all_of in times.items()}
        first = next(iter(medians.values()))
        for name, median in medians.items():
            rate = f"{amount_bytes / MIB / median:9.0f} MiB/s" if amount_bytes else " " * 15
            print(f"{title:28} {name:22} {median * 1e3:10.2f} ms {rate}   {median / first:6.2f} times the first's", flush=True)

    def open_c(self, path):
        file = self.c.weft_open(self.c_fs, path.encode(), os.O_RDWR, 0)
        assert file, path
        return ctypes.c_void_p(file)

    def contiguous(self):
        np, nbytes = self.np, 256 * MIB
        array = np.ones(nbytes, "u1")
        arena = self.weftfs.empty(nbytes, "u1", fs=self.fs)
        arena[:] = 1
        self.fs.write_bytes("/large", array)
        file, c_file = self.fs.open_raw("/large", "r+b"), self.open_c("/large")
        address = array.ctypes.data_as(ctypes.c_void_p)
        local = open(self.scratch / "local", "w+b", buffering=0)
        local.write(array)
        mounted = open(self.mount / "large", "r+b", buffering=0)

        def system(file, name):
            def work():
                file.seek(0)
                assert getattr(file, name)(array) == nbytes

            return work

        self.turns("read 256 MiB", {
            "weftfs": (None, lambda: file.readinto_at(array, 0)),
            "weftfs.empty": (None, lambda: file.readinto_at(arena, 0)),
            "C": (None, lambda: self.c.weft_pread(c_file, address, nbytes, ctypes.c_int64(0))),
            "mount, uncached": (drop_caches, system(mounted, "readinto")),
            "tmpfs": (None, system(local, "readinto")),
        }, nbytes)
        self.turns("write 256 MiB", {
            "weftfs": (None, lambda: file.write_at(array, 0)),
            "weftfs.empty": (None, lambda: file.write_at(arena, 0)),
            "C": (None, lambda: self.c.weft_pwrite(c_file, address, nbytes, ctypes.c_int64(0))),
            "mount": (None, system(mounted, "write")),
            "tmpfs": (None, system(local, "write")),
        }, nbytes)
        self.fs.remove("/large")

    def slices(self):
        np, rows, row_bytes = self.np, 32768, 65536
        array = self.weftfs.open_array(self.fs, "/array", (rows, row_bytes), "u1", mode="w+")
        stripe = np.arange(row_bytes * 256, dtype="u4").view("u1").reshape(-1, row_bytes)[:256]
        for row in range(0, rows, 256):
            array[row : row + 256] = stripe
        c_file = self.open_c("/array")

        def of_c(offset, count, block_bytes, stride_bytes):
            element = ctypes.c_void_p(self.c.weft_type_bytes(ctypes.c_uint64(1)))
            of_file = ctypes.c_void_p(
                self.c.weft_type_hvector(ctypes.c_uint64(count), ctypes.c_uint64(block_bytes), ctypes.c_int64(stride_bytes), element)
            )
            out = np.empty(count * block_bytes, "u1")
            of_memory = ctypes.c_void_p(self.c.weft_type_contiguous(ctypes.c_uint64(out.nbytes), element))

            def work():
                moved = self.c.weft_read_typed(
                    c_file, out.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(1), of_memory, ctypes.c_int64(offset),
                    ctypes.c_uint64(1), of_file,
                )
                assert moved == out.nbytes, moved

            return work

        cases = {
            "columns of 4 KiB": (np.s_[:, 8192:12288], "u1", (8192, rows, 4096, row_bytes)),
            "columns of 64 B": (np.s_[:, 8192:8256], "u1", (8192, rows, 64, row_bytes)),
            "columns of 8 B": (np.s_[:, 1024], "f8", (8192, rows, 8, row_bytes)),
            "every 512th 8 B of rows": (np.s_[:64, ::512], "f8", (0, 64 * 16, 8, 4096)),
            "256 rows": (np.s_[512:768], "u1", (512 * row_bytes, 256, row_bytes, row_bytes)),
            "block of 1024 x 1 KiB": (np.s_[5000:6024, 4096:5120], "u1", (5000 * row_bytes + 4096, 1024, 1024, row_bytes)),
        }
        for title, (key, dtype, described) in cases.items():
            view = array if dtype == "u1" else self.weftfs.open_array(self.fs, "/array", (rows, row_bytes // 8), dtype)
            # A map that is there keeps pages.
            mapped = lambda: np.memmap(self.mount / "array", dtype, "r", shape=view.shape)
            assert np.array_equal(view[key], np.array(mapped()[key]))
            out = np.empty(view[key].shape, dtype)
            self.turns(title, {
                "weftfs": (None, lambda: view.read(key, out=out)),
                "weftfs, a new array": (None, lambda: view[key]),
                "C, typed": (None, of_c(*described)),
                "memmap on the mount": (drop_caches, lambda: np.copyto(out, mapped()[key])),
            }, out.nbytes)
        self.fs.remove("/array")

    def small(self):
        np = self.np
        self.fs.write_bytes("/small-reads", bytes(4 * MIB))
        source, program = self.scratch / "reads.c", self.scratch / "reads"
        source.write_text(C_READS)
        library = self.scratch / "lib"
        library.mkdir()
        for name in ("libweft.so", "libweft.so.0"):
            shutil.copy(BUILT / "libweft.so", library / name)
        subprocess.run(
            ["cc", "-O2", "-o", program, source, f"-I{ROOT}/crates/capi/include", f"-L{library}", "-lweft", f"-Wl,-rpath,{library}"],
            check=True,
        )
        file, buffer = self.fs.open_raw("/small-reads"), np.empty(4096, "u1")

        def python():
            read = file.readinto_at
            begin = time.perf_counter()
            for turn in range(20_000):
                read(buffer, turn % 1000 * 4096)
            return (time.perf_counter() - begin) / 20_000 * 1e6

        def nothing():
            read, none = file.readinto_at, buffer[:0]
            begin = time.perf_counter()
            for _ in range(100_000):
                read(none, 0)
            return (time.perf_counter() - begin) / 100_000 * 1e6

        times = {"weftfs": [], "C": []}
        for _ in range(self.runs):
            times["weftfs"].append(python())
            times["C"].append(float(subprocess.run([program, self.url, "/small-reads"], check=True, capture_output=True).stdout))
        ours, theirs = (statistics.median(times[name]) for name in ("weftfs", "C"))
        print(f"read of 4 KiB                weftfs {ours:.2f} us, C {theirs:.2f} us: {ours - theirs:+.2f} us; a read of nothing {nothing():.2f} us")

    def ranges(self):
        from weftfs.spec import WeftFileSystem

        fs = WeftFileSystem(self.url)
        fs.pipe_file("/ranges", bytes(64 * MIB))
        starts = [at * 7919 % 16_000 * 4096 for at in range(10_000)]
        ends = [start + 4096 for start in starts]
        file = fs.open("/ranges", "rb")

        def one_by_one():
            for start, end in zip(starts, ends):
                fs.cat_file("/ranges", start, end)

        def of_open_file():
            for start in starts:
                file.seek(start)
                file.read(4096)

        self.turns("10,000 ranges of 4 KiB", {
            "cat_ranges": (None, lambda: fs.cat_ranges(["/ranges"] * 10_000, starts, ends)),
            "cat_file, each": (None, one_by_one),
            "seek and read, each": (None, of_open_file),
        }, 10_000 * 4096)
        fs.rm("/ranges")

    def zarr(self):
        import zarr
        from weftfs.zarr import WeftStore
        from zarr.storage import LocalStore

        np = self.np
        stores = {"WeftStore": WeftStore(self.fs, "/run.zarr"), "LocalStore on the mount": LocalStore(str(self.mount / "run.zarr"))}
        array = zarr.create_array(
            stores["WeftStore"], shape=(256, 256, 256), chunks=(16, 16, 16), shards=(128, 128, 128), dtype="f4", compressors=None
        )
        array[:] = np.random.default_rng(1).random((256, 256, 256), "f4")
        opened = {name: zarr.open_array(store, mode="r") for name, store in stores.items()}
        region = np.s_[60:110, 5:200, 100:140]
        self.turns("Zarr, a region of 3-d", {
            name: (None if name == "WeftStore" else drop_caches, lambda array=array: array[region]) for name, array in opened.items()
        }, 50 * 195 * 40 * 4)
        whole = np.s_[:]
        self.turns("Zarr, all of it", {
            name: (None if name == "WeftStore" else drop_caches, lambda array=array: array[whole]) for name, array in opened.items()
        }, 256**3 * 4)

    def checkpoints(self):
        # Memory that a virtual machine has never touched costs ten times as much: touch enough of it first.
        with open(self.scratch / "touched", "wb") as file:
            for _ in range(18 << 10):
                file.write(bytes(MIB))
        os.remove(self.scratch / "touched")
        for what, ranks in ("save", 4), ("load", 2), ("load", 8):
            arguments = [str(ranks), str(self.runs), self.url, str(self.scratch), str(BUILT / "libweft.so")]
            program = [sys.executable, "-W", "ignore", ROOT / "bench/python_ranks.py", what]
            environment = os.environ | {"PYTHONPATH": str(self.scratch / "package")}
            running = [
                subprocess.Popen([*program, str(rank), *arguments], stdout=subprocess.PIPE, text=True, env=environment) for rank in range(ranks)
            ]
            said = [one.communicate()[0] for one in running][0]
            assert all(one.returncode == 0 for one in running)
            times = {}
            for line in said.splitlines():
                name, took = line.split("\t")
                times.setdefault(name, []).append(float(took))
            self.print_medians(f"{what} 2 GiB on {ranks} ranks", {name: times[name] for name in sorted(times, key=lambda name: name != "weftfs.torch")}, 2048 * MIB)
        self.fs.rmtree("/checkpoint")
        self.fs.remove("/by-c")

    def loaders(self):
        import warnings

        import torch
        import weftfs.torch
        from torch.utils.data import DataLoader, Dataset

        count, sample_bytes, scratch = 100_000, 16384, self.scratch
        with self.fs.open_raw("/samples", "wb", striped=True) as file:
            for _ in range(count // 1000):
                file.write(os.urandom(sample_bytes * 1000))
        path = self.mount / "samples"

        class OfMount(Dataset):
            def __len__(self):
                return count

            def __getitem__(self, index):
                if not hasattr(self, "file"):
                    self.file = os.open(path, os.O_RDONLY)
                return torch.frombuffer(bytearray(os.pread(self.file, sample_bytes, index * sample_bytes)), dtype=torch.uint8)

        class Nothing(Dataset):
            """Batches of the same size, of nowhere."""

            def __len__(self):
                return count

            def __getitems__(self, indices):
                return list(torch.empty((len(indices), sample_bytes), dtype=torch.uint8))

        class Measured(Dataset):
            """Notes a worker's own memory."""

            def __init__(self, of):
                self.of, self.batches = of, 0

            def __len__(self):
                return count

            def __getitems__(self, indices):
                batch = self.of.__getitems__(indices)
                self.batches += 1
                if self.batches % 50 == 0:
                    lines = open("/proc/self/smaps_rollup").read().splitlines()
                    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
                    with open(scratch / "memory", "a") as file:
                        file.write(f"{private}\n")
                return batch

        warnings.filterwarnings("ignore", "This DataLoader will create")
        samples = weftfs.torch.Samples("/samples", shape=sample_bytes, fs=self.fs)
        stream = weftfs.torch.SampleStream(samples, 64, shuffle=True)

        def epoch(dataset, **how):
            def work():
                seen = sum(len(batch) for batch in DataLoader(dataset, num_workers=4, multiprocessing_context="fork", **how))
                assert seen == count

            return work

        def once(work):
            """No turn to warm up where it is read once."""
            return (drop_caches, work)

        self.turns("100,000 samples of 16 KiB", {
            "Samples, collate": once(epoch(samples, batch_size=64, shuffle=True, collate_fn=weftfs.torch.collate)),
            "Samples": once(epoch(samples, batch_size=64, shuffle=True)),
            "SampleStream": once(epoch(stream, batch_size=None)),
            "nothing": once(epoch(Nothing(), batch_size=64, shuffle=True)),
            "pread on the mount": once(epoch(OfMount(), batch_size=64, shuffle=True)),
        }, count * sample_bytes)
        kib = {}
        for name, dataset, how in ("nothing", Nothing(), {}), ("Samples", samples, {"collate_fn": weftfs.torch.collate}):
            (scratch / "memory").unlink(missing_ok=True)
            epoch(Measured(dataset), batch_size=64, shuffle=True, **how)()
            kib[name] = max(int(line) for line in (scratch / "memory").read_text().split())
        print(f"memory of a worker           {kib['Samples'] / 1024:.1f} MiB of its own, {kib['nothing'] / 1024:.1f} with samples of nowhere")
        self.fs.remove("/samples")


if __name__ == "__main__":
    main()
