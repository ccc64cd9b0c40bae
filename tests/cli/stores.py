"""Stores for the doctor: a correct one with network latency, and others with faults that break a queue."""

import asyncio
import copy
from datetime import timedelta

from jqueue.core.blob.codec import encode
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError
from jqueue.domain.models import QueueState
from jqueue.ports.storage import Listed
from jqueue.testing.virtual_time import VirtualClock

WAY = 0.01
"""Latency in each direction, in seconds."""


USERS = encode(QueueState(queue="the user's"))
"""The queue of the user, which no check changes."""


class Honest:
    """One object of a correct store. Each subclass overrides a method with a fault."""

    def __init__(self):
        self.name = "queue.json"
        self.objects = {"queue.json": (USERS, "0")}
        self.calls = []
        self.times = []
        self.writes = [0]
        self.clock = VirtualClock()
        self.released = []

    def __repr__(self):
        return f"a store's {self.name}"

    @property
    def left(self):
        """The names of the objects beside the user's, which is unchanged."""
        assert (USERS, "0") == self.objects["queue.json"]
        return self.objects.keys() - {"queue.json"}

    def beside(self, suffix):
        other = copy.copy(self)  # shares the lists and the dict, so it is in the same store
        other.name += suffix
        return other

    async def remove(self):
        await self.arrive("remove")
        self.objects.pop(self.name, None)

    async def release(self):
        self.released.append(True)

    async def read(self):
        await self.arrive("read")
        content = self.objects.get(self.name, (b"", None))
        await asyncio.sleep(WAY)
        return content

    async def read_if_changed(self, etag):
        content = await self.read()
        return None if content[1] == etag else content

    async def write(self, content, if_match=None):
        await self.arrive("write")
        self.check(if_match)
        etag = self.land(content)
        await asyncio.sleep(WAY)
        return etag

    def store_time(self):
        return self.clock.now()

    async def list_beside(self, prefix):
        found = sorted(name.removeprefix(self.name) for name in self.objects if name.startswith(self.name + prefix))
        return [Listed(suffix, self.clock.now(), len(self.objects[self.name + suffix][0])) for suffix in found]

    async def arrive(self, doing):
        self.calls.append((doing, self.name))
        self.times.append(self.clock.monotonic())
        await asyncio.sleep(WAY)

    def etag(self):
        return self.objects.get(self.name, (b"", None))[1]

    def check(self, if_match):
        if self.etag() != if_match:
            raise CASConflictError("the precondition failed")

    def land(self, content):
        self.writes[0] += 1
        etag = f'"{self.writes[0]}"'
        self.objects[self.name] = (content, etag)
        return etag


class IgnoresConditions(Honest):
    def check(self, if_match):
        pass


class IgnoresIfNoneMatch(Honest):
    def check(self, if_match):
        if if_match is not None:
            super().check(if_match)


class IgnoresIfMatch(Honest):
    def check(self, if_match):
        if if_match is None:
            super().check(if_match)


class MatchesNothing(Honest):
    def check(self, if_match):
        if if_match is None or self.etag() is not None:
            super().check(if_match)


class MakesEtagsWeak(Honest):
    async def read(self):
        content, etag = await super().read()
        return content, None if etag is None else f"W/{etag}"


class WritesInTwoSteps(Honest):
    async def write(self, content, if_match=None):
        await self.arrive("write")
        self.check(if_match)
        if if_match is not None:
            await asyncio.sleep(WAY)
        return self.land(content)


class ChangesBytes(Honest):
    def land(self, content):
        return super().land(content.replace(b"\r\n", b"\n").replace(b"\0", b""))


class AlwaysUnchanged(Honest):
    async def read_if_changed(self, etag):
        return None


class ListsNothing(Honest):
    async def list_beside(self, prefix):
        return []


class LivesInThePast(Honest):
    def store_time(self):
        return self.clock.now() - timedelta(minutes=10)


class Throttles(Honest):
    """Allows one write a second to each object, as some stores do."""

    def __init__(self):
        super().__init__()
        self.last = {}

    def check(self, if_match):
        now = asyncio.get_running_loop().time()
        if now < self.last.get(self.name, -1.0) + 1.0:
            raise StorageThrottledError("429: slow down")
        super().check(if_match)
        self.last[self.name] = now


class FailsNowAndThen(Honest):
    """Fails some reads, and every ninth write that has landed."""

    landed = 0

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match)
        self.landed += 1
        if self.landed % 9 == 0:
            raise StorageError("the connection was reset")
        return etag

    async def read(self):
        if len(self.calls) % 9 == 0:
            self.calls.append(("read", self.name))
            raise StorageError("the connection was reset")
        return await super().read()


class RefusesWrites(Honest):
    def check(self, if_match):
        raise StorageFatalError("to write, s3:PutObject is needed\x1b[2J\r\nSafe.")


class NeverAnswers(Honest):
    async def arrive(self, doing):
        await super().arrive(doing)
        await asyncio.sleep(1e9)


class KeepsAll(Honest):
    async def remove(self):
        await self.arrive("remove")
        raise StorageFatalError("access to the bucket 'jobs' was refused: to delete, s3:DeleteObject is needed")


class DoesAtCall(Honest):
    """Calls a function at its n-th call."""

    def __init__(self, number, happen):
        super().__init__()
        self.number, self.happen = number, happen

    async def arrive(self, doing):
        number = len(self.calls) + 1
        await super().arrive(doing)
        if number == self.number:
            self.happen()
