"""fsspec's own tests of file systems, all of them."""

import os

import pytest
from fsspec.implementations.local import make_path_posix
from fsspec.tests import abstract
from weftfs.spec import WeftFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return WeftFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs_path(self, top):
        return top

    @pytest.fixture
    def fs_sanitize_path(self):
        return make_path_posix


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass
