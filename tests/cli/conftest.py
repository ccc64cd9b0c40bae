"""A queue in a file, and any storage behind a URL, for the tests of commands."""

import asyncio

import pytest

from jqueue.connect.stores import STORES
from jqueue.runtime.system import SystemClock
from jqueue.testing import virtual_time
from tests.cli.commands import Blocking, run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def queue(path):
    """An empty queue in the file, whose verbs block."""
    run("init", path)
    return Blocking(path)


@pytest.fixture
def url_of(monkeypatch):
    """`url_of(storage)`: a URL that names this storage to commands."""

    def serve(storage):
        monkeypatch.setitem(STORES, "test", lambda url: storage)
        return "test://a/store"

    return serve


@pytest.fixture
def virtual(monkeypatch):
    """Commands run in virtual time."""
    clock = virtual_time.VirtualClock()
    monkeypatch.setattr(asyncio, "run", virtual_time.run)
    monkeypatch.setattr(SystemClock, "now", lambda _: clock.now())
    monkeypatch.setattr(SystemClock, "monotonic", lambda _: clock.monotonic())
