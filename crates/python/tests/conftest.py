"""The tests run against the cluster of $WEFT_URL, each in a directory of its own.

Hypothesis draws from a seed that is fresh in each run. What fails prints it; WEFT_TEST_SEED=NUMBER repeats it.
"""

import os
import random
import uuid

import hypothesis.core
import pytest
import weftfs

SEED = int(os.environ.get("WEFT_TEST_SEED") or random.SystemRandom().getrandbits(32))


def pytest_configure():
    hypothesis.core.global_force_seed = SEED


def pytest_terminal_summary(terminalreporter, exitstatus):
    if exitstatus != 0:
        terminalreporter.write_line(f"repeat with WEFT_TEST_SEED={SEED}")


@pytest.fixture(scope="session")
def weft():
    return weftfs.connect()


@pytest.fixture
def top(weft):
    path = f"/test-{uuid.uuid4().hex[:12]}"
    weft.mkdir(path)
    yield path
    weft.rmtree(path)
