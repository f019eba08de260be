"""The tests run against the cluster of $WEFT_URL, each in a directory of its own."""

import uuid

import pytest
import weftfs


@pytest.fixture(scope="session")
def weft():
    return weftfs.connect()


@pytest.fixture
def top(weft):
    path = f"/test-{uuid.uuid4().hex[:12]}"
    weft.mkdir(path)
    yield path
    weft.rmtree(path)
