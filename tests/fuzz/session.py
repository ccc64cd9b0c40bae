"""A real queue on a store in memory, and a judge beside it: after each call, what the store holds is looked at.

Virtual time: five minutes of waiting take none, and a call that never ends is noticed at once.
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
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Job, QueueState
from jqueue.testing.virtual_time import VirtualClock
from tests.fuzz import oracles
from tests.fuzz.oracles import Finding, require


class CountedEntropy:
    """Ids in order, and no jitter: the same input always gives the same run."""

    def __init__(self) -> None:
        self._count = 0

    def new_id(self) -> str:
        """The next id."""
        self._count += 1
        return f"id-{self._count:016d}"

    def jitter(self, bound: float) -> float:
        """Half of what is allowed."""
        return bound / 2


class Session:
    """One queue object on one blob, and the state that the store was seen in.

    Args:
        content: what the store holds at first.

    Attributes:
        queue: the real thing.
        storage: what it stands on.
        claimed: jobs as they were dequeued.
        contents: every content that somebody else put into the store. Until the next commit has landed, writes may meet
            it, and then be of unknown outcome; what hands back their claims may come with the next call.
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
        """A queue object that knows nothing yet."""
        return DirectQueue(self.storage, clock=self.clock, entropy=self.entropy)

    async def content(self) -> bytes:
        """What the store holds."""
        return (await self.storage.read())[0]

    async def somebody_writes(self, content: bytes) -> None:
        """Another program puts something else there."""
        _, etag = await self.storage.read()
        if content:
            await self.storage.write(content, etag)
            self.contents.append(content)
            self._disturbed = True

    async def call(self, verb: str, *arguments: Any, hurried: bool = False, **options: Any) -> Any:
        """Call a verb, and judge what it did. Returns its result, or the error that refused it.

        Args:
            verb: its name.
            arguments: what it takes.
            hurried: whether it may fail because it has a deadline of its own.
            options: what else it takes.

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
        """What the queue object sees is what the store holds."""
        content = await self.content()
        state = oracles.read(content)
        seen = await self.call("read_state")
        figures = await self.call("stats")
        if state is None:
            require(isinstance(seen, StorageFatalError), "what is no queue is seen as one")
            require(isinstance(figures, StorageFatalError), "what is no queue is counted")
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
            return  # a write met what somebody else had put there, and the commit table says no more
        if isinstance(error, DeadlineExceededError | UnknownOutcomeError) and not hurried:
            raise Finding(f"nothing was in the way of the call: {error}") from error

    def _judge_commit(self, verb: str, content: bytes, written: bytes, result: Any, *, disturbed: bool) -> None:
        before, after = oracles.read(content), oracles.read_written(written)
        if before is None:
            raise Finding("what could not be read was overwritten")
        grown = after.version - before.version
        patient = disturbed or verb == "dequeue"  # what expires or is stale meanwhile is a commit of its own
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
    """Whether jobs that left the queue could leave by this verb."""
    if verb in ("ack", "ack_many", "cancel", "purge", "apply"):
        return
    for job in missing:
        expired = job.expires_at is not None
        replaced = verb == "enqueue" and job.unique_key is not None and job.unique_key == result.unique_key
        require(expired or replaced, f"a job was lost by {verb}")


def enqueued(verb: str, result: Any) -> set[str]:
    """The ids that a verb may have added."""
    if verb not in ("enqueue", "enqueue_many", "apply"):
        return set()
    return {job.id for job in (result if isinstance(result, list) else [result]) if isinstance(job, Job)}


LONG = timedelta(days=1).total_seconds()
"""After so long, every claim is stale."""
