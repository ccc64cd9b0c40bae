"""A folder of dirq, of both kinds, keeps the queue contract as far as its format allows."""

from typing import Any, ClassVar

import pytest

from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.names import Schema
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue
from jqueue.testing.queue_contract import QueueContract
from tests.contract.queue.refusals import RefusalsContract


class Dirq(RefusalsContract, QueueContract):
    """Names are times, so jobs are in the order of the clocks; every queue uses the clock of the machine."""

    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(**options):
            options.pop("clock", None)
            return StoreQueue(self.kind(tmp_path / "queue", fsync=False, **self.settings), **options)

        return make


class TestSimple(Dirq):
    kind = DirqSimple


@pytest.mark.wide
class TestSimpleWithoutAttributes(Dirq):
    kind = DirqSimple
    settings: ClassVar[dict[str, Any]] = {"attributes": False}


class TestElements(Dirq):
    kind = DirqElements


@pytest.mark.wide
class TestElementsWithoutHeaders(Dirq):
    kind = DirqElements
    settings: ClassVar[dict[str, Any]] = {"schema": Schema.parse("body:binary", "body", None), "maxelts": 3}


@pytest.mark.wide
class TestElementsWithoutAttributes(Dirq):
    kind = DirqElements
    settings: ClassVar[dict[str, Any]] = {"attributes": False}
