"""Safety rules 1, 2, 3 and 7 of docs/reference/protocol.md: tests named after the ways to break them.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio
import re
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from jqueue import (
    DeadlineExceededError,
    DirectQueue,
    InMemoryStorage,
    JobNotFoundError,
    LocalFileSystemStorage,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.errors import BlobMissingError
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time


class Crash(BaseException):
    """An error that ends the writer: no adapter should raise it."""


class Crashing(FaultyStorage):
    """A storage that crashes once, after the write of a job named crash."""

    crashed = False

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match=if_match)
        if b"crash" in content and not self.crashed:
            self.crashed = True
            raise Crash
        return etag


# 1. An enqueue that returned is in every later version, until its job is acked, cancelled, expired or purged.


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST_ANSWER, Fault.LOST_REQUEST])
async def test_rule_1_a_job_that_enqueue_returned_is_in_the_blob(world, kind, fault):
    world.storage.on_write(fault)
    async with world.process(kind=kind) as queue:
        job = await queue.enqueue("t", b"x")
        assert {job.id} == (await world.jobs()).keys()
        assert job == (await world.jobs())[job.id]


async def test_rule_1_two_first_writers_lose_nothing(world, kind):
    world.storage.latency = 0.01
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(world.process(kind=kind)) for _ in range(5)]
        await asyncio.gather(*(queue.enqueue("t", b"x") for queue in queues))
        assert 5 == len(await world.jobs())


async def test_rule_1_a_reused_cache_never_writes_over_another_writers_job(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"mine")
        await world.honest().enqueue("t", b"theirs")
        await queue.enqueue("t", b"mine again")
        assert 3 == len(await world.jobs())


# 2. An operation takes effect in at most one version; the result returned is that of the try that landed.


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.HANGS_AFTER])
@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "ack", "nack"])
async def test_rule_2_a_lost_answer_never_doubles_an_operation(world, kind, verb, fault):
    async with world.process(kind=kind, call_timeout=2) as queue:
        await queue.enqueue("t", b"1", job_id="a")
        await queue.enqueue("t", b"2", job_id="b")
        [job] = await queue.dequeue("t") if verb in ("ack", "nack") else [None]
        world.storage.on_write(fault)
        if verb == "enqueue":
            assert (await queue.enqueue("t", b"3")).id in await world.jobs()
            assert 3 == len(await world.jobs())
        elif verb == "dequeue":
            [claimed] = await queue.dequeue("t")
            assert [claimed] == [job for job in (await world.jobs()).values() if job.status == "in_progress"]
            assert 1 == claimed.attempt
        elif verb == "ack":
            await queue.ack(job)
            assert ["b"] == list(await world.jobs())
        else:
            await queue.nack(job)
            assert 1 == (await world.jobs())["a"].failures


async def test_rule_2_the_write_that_landed_is_recognised_after_many_other_commits(world, kind):
    """A table with only the last writer's id, or a short ring, would have forgotten the commit."""

    world.storage.on_write(Fault.LANDS_LATER)
    world.storage.delay = 0.0
    world.storage.on_read(*[Fault.LOST_REQUEST] * 6)
    async with world.process(kind=kind) as queue:
        call = asyncio.create_task(queue.enqueue("t", b"mine"))
        await asyncio.sleep(0.001)
        for _ in range(100):
            await world.honest().enqueue("other", b"theirs")
        job = await call
        assert [job.id] == [each.id for each in (await world.jobs()).values() if each.entrypoint == "t"]


async def test_rule_2_if_the_record_was_evicted_the_outcome_is_unknown_and_nothing_is_done_twice(world, kind):
    await world.honest().enqueue("other", b"")
    world.storage.on_write(Fault.LOST_ANSWER)
    world.storage.on_read(Fault.NONE, *[Fault.LOST_REQUEST] * 4)
    async with world.process(kind=kind) as queue:
        call = asyncio.create_task(queue.enqueue("t", b"mine"))
        await asyncio.sleep(0.001)
        for _ in range(270):  # more writers than the blob remembers
            await world.honest().enqueue("other", b"theirs")
        with pytest.raises(UnknownOutcomeError) as caught:
            await call
        assert 1 == sum(job.entrypoint == "t" for job in (await world.jobs()).values())
        assert 1 == len(caught.value.job_ids)
        with pytest.raises(UnknownOutcomeError):
            await caught.value.resolve(1)


@pytest.mark.parametrize("fault", [Fault.LANDS_LATER, Fault.LOST_REQUEST])
async def test_rule_2_an_unknown_outcome_can_be_resolved(world, kind, fault):
    world.storage.delay = 2.0
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"")
        world.storage.on_write(fault)
        world.storage.down = True
        with pytest.raises(UnknownOutcomeError) as caught:
            await queue.enqueue("t", b"", job_id="mine", deadline=1)
        world.storage.down = False
        await asyncio.sleep(2 if fault is Fault.LANDS_LATER else 0)
        if fault is Fault.LANDS_LATER:
            assert "mine" == (await caught.value.resolve()).id
            assert "mine" in await world.jobs()
        else:
            with pytest.raises(DeadlineExceededError):
                await caught.value.resolve()
            await asyncio.sleep(1000)
            assert "mine" not in await world.jobs()


async def test_rule_2_an_outcome_is_found_out_although_the_writer_has_failed(world, kind):
    async with world.process(Crashing(world.memory), kind=kind) as queue:
        with pytest.raises(UnknownOutcomeError) as unknown:
            await queue.enqueue("crash", b"")
        assert "crash" == (await unknown.value.resolve()).entrypoint
        await queue.enqueue("t", b"")
    assert 2 == len(await world.jobs())


async def test_rule_2_a_call_that_was_never_sent_says_not_done(world, kind):
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    async with world.process(kind=kind, deadline=5) as queue:
        with pytest.raises(DeadlineExceededError):
            await queue.enqueue("t", b"")
    await asyncio.sleep(100)
    assert (b"", None) == await world.memory.read()


async def test_rule_2_a_refusal_is_final_although_an_earlier_write_might_have_landed(world, kind):
    """The job expires between two tries. The first try reached no answer, and would land after the refusal."""

    world.storage.delay = 25.0
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a", expires_at=world.clock.now() + timedelta(seconds=0.1))
        world.storage.on_write(Fault.LANDS_LATER)
        world.storage.on_read(*[Fault.LOST_REQUEST] * 5)
        with pytest.raises(JobNotFoundError):
            await queue.reprioritise("a", 7)
        before = await world.memory.read()
        await asyncio.sleep(60)
        assert before == await world.memory.read()


async def test_rule_2_a_restored_backup_makes_calls_in_flight_unknown(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a")
        backup, _ = await world.memory.read()
        await queue.enqueue("t", b"", job_id="b")
        world.storage.on_write(Fault.LOST_ANSWER)
        world.storage.on_read(Fault.LOST_REQUEST, Fault.LOST_REQUEST)
        call = asyncio.create_task(queue.enqueue("t", b"", job_id="c"))
        await asyncio.sleep(0.001)
        await world.memory.write(backup, (await world.memory.read())[1])
        with pytest.raises(UnknownOutcomeError):
            await call
        await queue.enqueue("t", b"", job_id="d")
        assert {"a", "d"} == (await world.jobs()).keys()


# 3. An answer that no commit carries comes from a read begun after the call.


async def test_rule_3_an_empty_dequeue_comes_from_a_new_read(world, kind):
    async with world.process(kind=kind) as queue:
        assert [] == await queue.dequeue("t")
        await world.honest().enqueue("t", b"")
        assert 1 == len(await queue.dequeue("t"))


async def test_rule_3_not_found_and_claim_lost_come_from_a_new_read(world, kind):
    async with world.process(kind=kind) as queue:
        job = await queue.enqueue("t", b"")
        with pytest.raises(JobNotFoundError):
            await queue.cancel("later")
        await world.honest().enqueue("t", b"", job_id="later")
        assert "later" == (await queue.cancel("later")).id
        [claimed] = await world.honest().dequeue("t")
        await queue.ack(claimed)  # the cache says: queued; the store says: claimed
        assert job.id == claimed.id


async def test_rule_3_already_there_comes_from_a_new_read(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a")
        await world.honest().cancel("a")
        await queue.enqueue("t", b"", job_id="a")
        assert ["a"] == list(await world.jobs())


# 7. A blob that was there and is gone is an error, never an empty queue.


@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "read_state", "stats"])
async def test_rule_7_a_missing_blob_is_an_error(world, kind, verb):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"")
        world.storage.storage = InMemoryStorage()
        arguments = ("t", b"") if verb == "enqueue" else ()
        # The outcome of a write sent before the loss was known is unknown. The error says why.
        expected = UnknownOutcomeError if verb in ("enqueue", "dequeue") else BlobMissingError
        with pytest.raises(expected, match="restore it"):
            await getattr(queue, verb)(*arguments)
        assert (b"", None) == await world.storage.storage.read()


class SlowAnswers:
    """A store that answers each read one second late."""

    def __init__(self, storage):
        self.storage, self.write = storage, storage.write

    async def read(self):
        found = await self.storage.read()
        await asyncio.sleep(1)
        return found


async def test_rule_7_a_read_that_began_before_the_first_commit_is_no_loss(world, kind):
    """The read began when the store was empty, and its answer arrives after the first commit."""

    async with world.process(SlowAnswers(world.memory), kind=kind) as queue:
        enqueue = asyncio.create_task(queue.enqueue("t", b""))
        await asyncio.sleep(0.5)
        assert () == (await queue.read_state()).jobs
        await enqueue


def test_rule_7_a_missing_or_foreign_blob_is_an_error_that_names_it_in_the_next_event_loop_too(tmp_path):
    path = tmp_path / "queue.json"
    queue = DirectQueue(LocalFileSystemStorage(path))
    asyncio.run(queue.enqueue("t", b""))
    path.unlink()
    with pytest.raises(BlobMissingError, match=re.escape(str(path))):
        asyncio.run(queue.enqueue("t", b""))
    assert not path.exists()
    asyncio.run(DirectQueue(LocalFileSystemStorage(path)).enqueue("t", b""))
    with pytest.raises(StorageError, match=f"{re.escape(str(path))} now holds another queue.* also its broker"):
        asyncio.run(queue.enqueue("t", b""))


async def test_rule_7_another_queue_in_its_place_is_an_error(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"")
        stranger = InMemoryStorage()
        await DirectQueue(stranger).enqueue("t", b"")
        await DirectQueue(stranger).enqueue("t", b"")
        world.storage.storage = stranger
        before = await stranger.read()
        with pytest.raises(StorageError, match="another queue"):
            await queue.enqueue("t", b"")
        assert before == await stranger.read()


async def test_a_clock_that_is_hours_ahead_does_not_make_others_forget_their_commits(world, kind):
    """A caller that lost a race may try again, even if another writer's clock is hours ahead."""

    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"")
        await world.honest().enqueue("t", b"")
        await world.honest(clock=VirtualClock(timedelta(hours=3))).enqueue("t", b"")
        await queue.enqueue("t", b"")
        assert 4 == len(await world.jobs())
