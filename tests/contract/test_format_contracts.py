"""Queues of older programs keep the queue contract as far as their format allows."""

from functools import partial
from typing import Any

import pytest

from jqueue.formats.dirq.layout import Elements, Simple
from jqueue.formats.dirq.store import DirqStore
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.wrong_calls import MissingContract, RefusalsContract


class OnAFormat:
    """A queue on a store of jobs, which uses the clock of the machine."""

    make_store: Any

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(type(self).make_store(tmp_path / "queue"), **options)

        return make


class TestDirqSimple(OnAFormat, RefusalsContract, QueueContract):
    make_store = partial(DirqStore, layout=Simple())


class TestDirqElements(OnAFormat, MissingContract, QueueContract):
    make_store = partial(DirqStore, layout=Elements())


class TestVsqs(OnAFormat, MissingContract, QueueContract):
    make_store = VsqsFolder


class TestTextQueue(OnAFormat, MissingContract, QueueContract):
    make_store = TextQueueFile
