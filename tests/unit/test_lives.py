"""Writers of another event loop and cancelled callers do no harm to a queue that goes on."""

import asyncio
from collections.abc import Callable

import pytest

from jqueue import BrokerQueue, ClaimLostError, DirectQueue, InMemoryStorage, UnknownOutcomeError
from jqueue.testing.faults import Fault, FaultyStorage
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Gated(InMemoryStorage):
    """Storage whose writes wait at a gate, if there is one, and then call a hook."""

    def __post_init__(self):
        super().__post_init__()
        self.hook: Callable[[], object] = lambda: None
        self.gate: asyncio.Event | None = None
        self.at_gate = self.answered = 0

    async def write(self, content, if_match=None):
        if self.gate is not None:
            self.at_gate += 1
            await self.gate.wait()
        try:
            etag = await super().write(content, if_match)
        finally:
            self.answered += 1
        self.hook()
        return etag


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


def ids(state):
    return sorted(job.id for job in state.jobs)


def test_a_writer_of_a_loop_that_runs_again_changes_nothing():
    storage = Gated()
    queue = DirectQueue(storage)
    old = asyncio.new_event_loop()
    old.run_until_complete(queue.enqueue("t", b"", job_id="first"))

    async def begin():
        storage.gate = asyncio.Event()
        task = asyncio.ensure_future(queue.enqueue("t", b"", job_id="left"))
        await until(lambda: storage.at_gate)
        return task

    task = old.run_until_complete(begin())
    gate, storage.gate = storage.gate, None
    assert gate is not None
    new = asyncio.new_event_loop()
    new.run_until_complete(queue.enqueue("t", b"", job_id="a"))
    answered = storage.answered
    gate.set()
    old.run_until_complete(until(lambda: storage.answered > answered))  # refused: the etag has moved
    for name in ("b", "c"):
        new.run_until_complete(queue.enqueue("t", b"", job_id=name))
    assert ["a", "b", "c", "first"] == ids(new.run_until_complete(queue.read_state()))
    task.cancel()
    for loop in (old, new):
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_an_ack_that_was_cancelled_as_it_landed_may_be_repeated_by_its_bare_id(kind):
    storage = Gated()
    async with kind(storage) as queue:
        await queue.enqueue("t", b"", job_id="j")
        await queue.dequeue("t")
        ack = asyncio.create_task(queue.ack("j"))
        storage.hook = lambda: asyncio.get_running_loop().call_soon(ack.cancel)
        with pytest.raises(asyncio.CancelledError):
            await ack
        storage.hook = lambda: None
        await queue.ack("j")
        assert [] == ids(await queue.read_state())


@in_virtual_time
async def test_an_ack_found_to_have_landed_has_ended_the_claim_here():
    storage = FaultyStorage(InMemoryStorage())
    async with DirectQueue(storage, call_timeout=20) as queue:
        await queue.enqueue("t", b"")
        [job] = await queue.dequeue("t")
        storage.on_write(Fault.LOST_ANSWER)
        storage.on_read(Fault.HANGS)
        with pytest.raises(UnknownOutcomeError) as unknown:
            await queue.ack(job, deadline=10)
        await unknown.value.resolve(60)
        assert queue.held_claim(job) is None
        with pytest.raises(ClaimLostError) as lost:
            await queue.heartbeat(job)
        assert lost.value.ended_here
