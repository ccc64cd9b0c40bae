"""A real queue on a store in memory, and a judge that checks the content of the store after each call.

Time is virtual: five minutes of waiting take no time, and a call that never ends is noticed at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
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


class CountedEntropy:
    """Ids that count up, and constant jitter: the same input always gives the same run."""

    def __init__(self) -> None:
        self._count = 0

    def new_id(self) -> str:
        """Return the next id."""
        self._count += 1
        return f"id-{self._count:016d}"

    def jitter(self, bound: float) -> float:
        """Return half of the bound."""
        return bound / 2


class Session:
    """One queue object on one blob, and the last state seen in the store.

    Args:
        content: the content of the store at the beginning.

    Attributes:
        queue: the queue object.
        storage: its store.
        claimed: jobs as they were dequeued.
        contents: every content that another program put into the store. Until the next commit has landed, writes may
            conflict with it and have an unknown outcome. Their claims may be handed back as late as the next call.
    """

    def __init__(self, content: bytes) -> None:
        self.clock = VirtualClock()
        self.entropy = CountedEntropy()
        self.storage = InMemoryStorage(content, clock=self.clock)
        self.queue = self.another()
        self.claimed: list[Job] = []
        self.contents = [content]
        self._disturbed = False

    def another(self) -> DirectQueue:
        """Return a fresh queue object on the same blob."""
        return DirectQueue(self.storage, clock=self.clock, entropy=self.entropy)

    async def content(self) -> bytes:
        """Return the content of the store."""
        return (await self.storage.read())[0]

    async def another_queue_writes(self, content: bytes) -> None:
        """Put another content into the store, as another program does."""
        _, etag = await self.storage.read()
        if content:
            await self.storage.write(content, etag)
            self.contents.append(content)
            self._disturbed = True

    async def call(self, verb: str, *arguments: Any, hurried: bool = False, **options: Any) -> Any:
        """Call a verb and judge the result. Returns its result, or the error that refused it.

        Args:
            verb: its name.
            arguments: its positional arguments.
            hurried: True if the call may fail because of its own deadline.
            options: its keyword arguments.

        Raises:
            Finding: a promise was broken.
        """
        before = await self.content()
        disturbed = self._disturbed
        result: Any
        try:
            async with asyncio.timeout(1e6):
                result = await getattr(self.queue, verb)(*arguments, **options)
        except JQueueError as error:
            result = error
            self._judge_error(error, hurried=hurried, disturbed=disturbed)
        except TimeoutError as error:
            raise Finding(f"{verb} does not end") from error
        after = await self.content()
        if isinstance(result, JQueueError):
            unsure = disturbed or (hurried and isinstance(result, UnknownOutcomeError))
            require(unsure or after == before, f"{verb} was refused, and has written")
        if after != before:
            self._disturbed = False
            disturbed = disturbed or isinstance(result, UnknownOutcomeError)
            self._judge_commit(verb, before, after, result, disturbed=disturbed)
        self._disturbed = self._disturbed or isinstance(result, UnknownOutcomeError)
        if verb == "dequeue" and isinstance(result, list):
            self.claimed += result
        return result

    async def judge_view(self) -> None:
        """Check that the queue object shows the content of the store."""
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

    def _judge_error(self, error: JQueueError, *, hurried: bool, disturbed: bool) -> None:
        oracles.check_message(error)
        if type(error) is JQueueError:
            raise Finding(str(error)) from error.__cause__
        if type(error) is StorageError or isinstance(error, CASConflictError):
            raise Finding(f"nothing was wrong with the store: {error}") from error
        if disturbed and isinstance(error, UnknownOutcomeError):
            return  # the write met another program's content, and the commit table cannot tell
        if isinstance(error, DeadlineExceededError | UnknownOutcomeError) and not hurried:
            raise Finding(f"nothing was in the way of the call: {error}") from error

    def _judge_commit(self, verb: str, content: bytes, written: bytes, result: Any, *, disturbed: bool) -> None:
        before, after = oracles.read(content), oracles.read_written(written)
        if before is None:
            raise Finding("what could not be read was overwritten")
        grown = after.version - before.version
        patient = disturbed or verb == "dequeue"  # jobs that expire or become stale meanwhile take their own commit
        require(grown == 1 or (patient and grown > 0), f"the version has grown by {grown}")
        require(before.queue in ("", after.queue), "the queue has another id")
        oracles.check_kept(before, after)
        if not after.set_aside:
            oracles.check_json(written)
        old, new = ({job.id: job for job in state.jobs} for state in (before, after))
        missing = [old[job_id] for job_id in old.keys() - new.keys()]
        if not disturbed:
            check_gone(verb, missing, result)
            require(new.keys() <= old.keys() | enqueued(verb, result), "a job that nobody enqueued is there")
        for job_id in old.keys() & new.keys():
            require(new[job_id].attempt >= old[job_id].attempt, "an attempt has shrunk")
        if verb == "dequeue" and isinstance(result, list):
            same = all(new.get(job.id) == job for job in result)
            require(same, "a job was claimed otherwise than the store has it")


def check_gone(verb: str, missing: Sequence[Job], result: Any) -> None:
    """Check that the verb is allowed to remove the jobs that are missing."""
    if verb in ("ack", "ack_many", "cancel", "purge", "apply"):
        return
    for job in missing:
        expired = job.expires_at is not None
        replaced = verb == "enqueue" and job.unique_key is not None and job.unique_key == result.unique_key
        require(expired or replaced, f"a job was lost by {verb}")


def enqueued(verb: str, result: Any) -> set[str]:
    """Return the ids that a verb may have added."""
    if verb not in ("enqueue", "enqueue_many", "apply"):
        return set()
    return {job.id for job in (result if isinstance(result, list) else [result]) if isinstance(job, Job)}


LONG = timedelta(days=1).total_seconds()
"""Seconds after which every claim is stale."""
