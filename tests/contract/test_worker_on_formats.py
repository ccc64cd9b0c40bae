"""A worker keeps the whole worker contract on the formats of older programs."""

from typing import Any

import pytest

from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.formats.vsqs.store import VsqsFolder
from tests.contract.worker_contract import WorkerContract


class OnAFormat(WorkerContract):
    """The contract on a store that `make_store` of a subclass makes from a path."""

    make_store: Any

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(self.make_store(tmp_path / "queue", fsync=False), **options)

        return make


class TestVsqs(OnAFormat):
    make_store = VsqsFolder


@pytest.mark.wide
class TestDirqSimple(OnAFormat):
    make_store = DirqSimple


@pytest.mark.full
class TestDirqQueue(OnAFormat):
    make_store = DirqElements


@pytest.mark.wide
class TestTextQueue(OnAFormat):
    make_store = TextQueueFile
