"""Queues of older programs keep the queue contract as far as their format allows."""

from typing import Any, ClassVar

import pytest

from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.wrong_calls import RefusalsContract


class OnAFormat:
    """A queue on a store of jobs, which uses the clock of the machine."""

    make_store: Any
    unsynced: ClassVar[dict[str, bool]] = {"fsync": False}

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(self.make_store(tmp_path / "queue", **self.unsynced), **options)

        return make


class TestDirqSimple(OnAFormat, RefusalsContract, QueueContract):
    make_store = DirqSimple


class TestDirqElements(OnAFormat, RefusalsContract, QueueContract):
    make_store = DirqElements


class TestVsqs(OnAFormat, RefusalsContract, QueueContract):
    make_store = VsqsFolder
    unsynced: ClassVar[dict[str, bool]] = {}


class TestTextQueue(OnAFormat, RefusalsContract, QueueContract):
    make_store = TextQueueFile
    unsynced: ClassVar[dict[str, bool]] = {}
