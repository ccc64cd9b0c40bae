"""Fixtures of the tests of files."""

import pytest

from jqueue import LocalFileSystemStorage


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def storage(path):
    return LocalFileSystemStorage(path)
