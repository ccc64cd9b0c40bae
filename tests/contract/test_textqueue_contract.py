"""A TextQueue keeps the contract of queues, as far as it can."""

import pytest

from jqueue.adapters.formats.textqueue import TextQueueFile
from jqueue.core.store_queue import StoreQueue
from jqueue.testing.queue_contract import QueueContract


class TestTextQueue(QueueContract):
    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(TextQueueFile(tmp_path / "queue.tq", fsync=False), **options)

        return make


@pytest.mark.full
class TestTextQueueThatHides(QueueContract):
    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(TextQueueFile(tmp_path / "queue.tq", fsync=False, hide=True), **options)

        return make
