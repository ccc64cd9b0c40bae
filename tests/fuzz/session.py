"""A real queue on a store in memory, and a judge that checks the content of the store after each call.

Time is virtual: five minutes of waiting take no time, and a call that never ends is noticed at once.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import (
    CASConflictError,
    DeadlineExceededError,
    JQueueError,
    QueueMissingError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Job, QueueState
from jqueue.testing.virtual_time import VirtualClock
from tests.fuzz import oracles
from tests.fuzz.oracles import Finding, require
from tests.simulation.workload import SeededEntropy


class Session:
    """One queue object on one blob, and the last state seen in the store.

    Args:
        content: the content of the store at the beginning.

    Attributes:
        queue: the queue object.
        storage: its store.
        claimed: jobs as they were dequeued.
    """

    def __init__(self, content: bytes) -> None:
        self.clock = VirtualClock()
        self.entropy = SeededEntropy(Random(0), "fuzz")
        self.storage = InMemoryStorage(content, clock=self.clock)
        self.queue = self.another()
        self.claimed: list[Job] = []
        self._disturbed = False

    def another(self) -> DirectQueue:
        """Return a fresh queue object on the same blob."""
        return DirectQueue(self.storage, clock=self.clock, entropy=self.entropy, holder="fuzz")

    async def content(self) -> bytes:
        """Return the content of the store."""
        return (await self.storage.read())[0]

    async def another_queue_writes(self, content: bytes) -> None:
        """Put another content into the store, as another program does.

        Until the next commit has landed, writes may conflict with it and have an unknown outcome.
        """
        _, etag = await self.storage.read()
        if content:
            await self.storage.write(content, etag)
            self._disturbed = True

    async def call(self, verb: str, *arguments: Any, hurried: bool = False, **options: Any) -> Any:
        """Call a verb and judge what it did. Returns its result, or the error that refused it.

        Args:
            verb: its name.
            arguments: its positional arguments.
            hurried: True if the call may fail because of its own deadline.
            options: its keyword arguments.

        Raises:
            Finding: a promise was broken.
        """
        before = await self.content()
        try:
            async with asyncio.timeout(1e6):
                result = await getattr(self.queue, verb)(*arguments, **options)
        except JQueueError as error:
            result = error
            self._judge_error(error, hurried=hurried)
        except TimeoutError as error:
            raise Finding(f"{verb} does not end") from error
        after = await self.content()
        is_unknown = isinstance(result, UnknownOutcomeError)
        if isinstance(result, JQueueError):
            unsure = self._disturbed or (hurried and is_unknown)
            require(unsure or after == before, f"{verb} was refused, and has written")
        if after != before:
            self._disturbed = False
            _judge_commit(before, after)
        self._disturbed = self._disturbed or is_unknown
        if verb == "dequeue" and isinstance(result, list):
            self.claimed += result
            jobs = {job.id: job for job in oracles.read_written(after).jobs}
            require(all(jobs.get(job.id) == job for job in result), "a job was claimed otherwise than the store has it")
        return result

    async def judge_view(self) -> None:
        """Check that the queue object shows and would claim what the store has, as a fresh one does."""
        content = await self.content()
        state = oracles.read(content)
        seen = await self.call("read_state")
        figures = await self.call("stats")
        if state is None:
            require(isinstance(seen, StorageFatalError), "what is no queue is seen as one")
            require(isinstance(figures, StorageFatalError), "what is no queue is counted")
        elif isinstance(figures, QueueMissingError):
            require(seen == QueueState(), "what is there is seen as no queue")
        elif isinstance(seen, QueueState):
            oracles.check_same(seen, state, "the queue object's view", placed=False)
            require(figures.unreadable == len(state.set_aside), "the lines set aside are not counted")
            ready = [await queue.peek(batch_size=100) for queue in (self.queue, self.another())]
            ours, anew = ([job.id for job in jobs] for jobs in ready)
            require(ours == anew, "a fresh queue object serves in another order")

    def _judge_error(self, error: JQueueError, *, hurried: bool) -> None:
        oracles.check_message(error)
        if type(error) is JQueueError:
            raise Finding(str(error)) from error.__cause__
        if type(error) is StorageError or isinstance(error, CASConflictError):
            raise Finding(f"nothing was wrong with the store: {error}") from error
        if self._disturbed and isinstance(error, UnknownOutcomeError):
            return  # the write met another program's content, and the commit table cannot tell
        if isinstance(error, DeadlineExceededError | UnknownOutcomeError) and not hurried:
            raise Finding(f"nothing was in the way of the call: {error}") from error


def _judge_commit(content: bytes, written: bytes) -> None:
    before, after = oracles.read(content), oracles.read_written(written)
    if before is None:
        raise Finding("what could not be read was overwritten")
    require(after.version > before.version, "the version has not grown")
    require(before.queue in ("", after.queue), "the queue has another id")
    oracles.check_kept(before, after)
    oracles.check_normal(after)
    attempts = {job.id: job.attempt for job in before.jobs}
    require(all(job.attempt >= attempts.get(job.id, 0) for job in after.jobs), "an attempt has shrunk")
