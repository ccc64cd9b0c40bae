"""A folder of vsqs keeps the queue contract as far as its format allows, with any kind of notes and numbers."""

from typing import Any, ClassVar

import pytest

from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.refusals import RefusalsContract


class TestVsqs(RefusalsContract, QueueContract):
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(VsqsFolder(tmp_path / "queue", fsync=False, **self.settings), **options)

        return make


@pytest.mark.full
class TestVsqsWithNotesInFiles(TestVsqs):
    settings: ClassVar[dict[str, Any]] = {"attributes": False}


@pytest.mark.full
class TestVsqsInMilliseconds(TestVsqs):
    settings: ClassVar[dict[str, Any]] = {"unit": "ms"}
