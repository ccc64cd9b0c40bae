"""Planted bugs in the objects of large payloads."""

import asyncio

from jqueue.core.calls.collection import Collector
from jqueue.core.calls.value_objects import ValueObjects
from jqueue.domain.stored_object import RESULTS, StoredObject
from tests.simulation.runner import Settings

LARGE = Settings(modern=1.0, large=1.0, segments=0.0)


def object_created_after_the_commit(patch):
    """The commit does not wait until the object of its payload is there"""

    async def hasty(self, folder, content, digest):
        suffix = self._fresh(folder)

        async def create():
            await asyncio.sleep(0.5)
            await self.storage.create_object(suffix, content)

        self.hasty = asyncio.create_task(create())
        self.hasty.add_done_callback(lambda task: task.cancelled() or task.exception())
        return StoredObject(suffix, len(content), digest)

    patch.setattr(ValueObjects, "_create", hasty)


def named_object_collected(patch):
    """A collection removes old objects without a look at the queue"""

    async def blind(self, suspects):
        return set()

    patch.setattr(Collector, "_named", blind)


def named_result_collected(patch):
    """A collection takes the results that jobs name for results that nothing names"""
    named = Collector._named

    async def forgetful(self, suspects):
        return {suffix for suffix in await named(self, suspects) if not suffix.startswith(RESULTS)}

    patch.setattr(Collector, "_named", forgetful)
