"""Runs mpi4py's own tests of files and of reading and writing, with names of the caller's choice.

    mpirun -n 4 python mpi4py_io.py TESTS PREFIX [--all]

TESTS is the directory `test` of mpi4py's source package. Where the tests ask for a temporary file, they get PREFIX and
a number. --all also runs what mpi4py skips because an MPI library is known to fail. Names of tests in
$WEFT_MPI_TEST_SKIP are left out.
"""

import faulthandler
import itertools
import os
import sys
import tempfile
import unittest

faulthandler.dump_traceback_later(int(os.environ.get("WEFT_MPI_TEST_SECONDS", "60")), exit=True)
tests, prefix = sys.argv[1:3]
sys.path.insert(0, tests)

from mpi4py import MPI  # noqa: E402

rank = MPI.COMM_WORLD.Get_rank()
numbers = itertools.count()


def mkstemp():
    """A descriptor that may be closed, and the name of a file that is not there yet."""
    name = f"{prefix}{rank}-{os.getpid()}-{next(numbers)}"
    MPI.File.Open(MPI.COMM_SELF, name, MPI.MODE_CREATE | MPI.MODE_RDWR).Close()
    return os.open(os.devnull, os.O_RDWR), name


tempfile.mkstemp = lambda *_, **__: mkstemp()

import mpiunittest  # noqa: E402

if "--all" in sys.argv:
    mpiunittest.skipMPI = lambda *_, **__: lambda thing: thing

import test_file  # noqa: E402
import test_io  # noqa: E402


def every(suite):
    for test in suite:
        yield from every(test) if isinstance(test, unittest.TestSuite) else [test]


loaded = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(m) for m in (test_file, test_io))
left_out = os.environ.get("WEFT_MPI_TEST_SKIP", "").split()
chosen = [test for test in every(loaded) if not any(name in test.id() for name in left_out)]
stream = sys.stderr if rank == 0 else open(os.devnull, "w")
result = unittest.TextTestRunner(stream=stream, verbosity=0).run(unittest.TestSuite(chosen))
for test, text in result.failures + result.errors:
    print(f"rank {rank}: {test.id()}\n{text}", file=sys.stderr, flush=True)
failed = MPI.COMM_WORLD.allreduce(len(result.failures) + len(result.errors))
faulthandler.cancel_dump_traceback_later()
if failed:
    MPI.COMM_WORLD.Abort(1)
if rank == 0:
    print(f"{result.testsRun} tests, {len(result.skipped)} skipped")
    print("ok")
