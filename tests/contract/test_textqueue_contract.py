"""A TextQueue keeps the queue contract as far as its format allows."""

import pytest

from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.refusals import RefusalsContract


def maker(path, **settings):
    def make(**options):
        options.pop("clock", None)
        return StoreQueue(TextQueueFile(path, fsync=False, **settings), **options)

    return make


class TestTextQueue(RefusalsContract, QueueContract):
    @pytest.fixture
    def make_queue(self, tmp_path):
        return maker(tmp_path / "queue.tq")
