"""A queue in a file, with a dashboard of it for an operator, and its broker with a token of each role."""

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage
from jqueue.server import dashboard
from tests.server.served import serving, token_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
async def queue(path):
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
        yield queue


@pytest.fixture
def other(path):
    """Another program's queue object on the same file."""
    return DirectQueue(LocalFileSystemStorage(path))


@pytest.fixture
def app(queue):
    return dashboard(queue, authorize=lambda request: "operator")


@pytest.fixture
def viewer(queue):
    return dashboard(queue, authorize=lambda request: "viewer")


@pytest.fixture
async def broker(queue, tmp_path):
    async with serving(queue, token_file(tmp_path)) as served:
        yield served
