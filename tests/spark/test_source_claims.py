"""The claims of a streaming query: when the store is asked, what is kept alive, what is found again, what is lost."""

import asyncio
import logging
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import StorageError
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Enqueue
from jqueue.spark.claims_of_query import ClaimsOfQuery
from jqueue.spark.offsets import Offset, holder_of
from jqueue.spark.source_options import SourceOptions
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now

BEGIN = Offset("query", 0, "")


class Store(FaultyStorage):
    def heal(self):
        self._read_faults.clear()
        self._write_faults.clear()


class Claims:
    """A queue with jobs, and processes of one query on it."""

    def __init__(self, **options):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.storage = Store(self.memory)
        self.elsewhere = DirectQueue(self.memory, clock=VirtualClock())
        self.options = SourceOptions("memory://", most_jobs=10, **options)

    def process(self, storage=None):
        """The source of the query, started (again)."""
        limits = Limits(batch_size=1000)
        queue = DirectQueue(storage or self.storage, clock=VirtualClock(), limits=limits, deadline=20)
        return ClaimsOfQuery(queue, self.options)

    async def enqueue(self, count, entrypoint="work", **fields):
        return await self.elsewhere.enqueue_many([Enqueue(entrypoint, b"payload", **fields)] * count)

    async def steal(self, job):
        """End a claim of the query, as a sweep of another process does."""
        await self.elsewhere.nack(await self.now(job))

    async def now(self, job):
        """The job as it is."""
        found = (await self.elsewhere.read_state()).find(job.id)
        assert found is not None
        return found

    @property
    def asked(self):
        return self.storage.reads, self.storage.writes

    async def age(self, job):
        """How long ago its claim was confirmed."""
        heartbeat_at = (await self.now(job)).heartbeat_at
        return (VirtualClock().now() - heartbeat_at).total_seconds()


class OnItsWay:
    """A store that takes a write, and is in no hurry."""

    def __init__(self, memory):
        self.memory = memory
        self.sent = asyncio.Event()
        self.write_sent: Any = None

    async def read(self):
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.write_sent = content, if_match
        self.sent.set()
        await asyncio.Event().wait()

    def landing_after_a_read(self):
        """The store as somebody else sees it, who has just read when the write lands."""
        return Landing(self)


class Landing:
    def __init__(self, on_its_way):
        self.on_its_way = on_its_way
        self.landed = False

    async def read(self):
        found = await self.on_its_way.memory.read()
        if not self.landed:
            self.landed = True
            await self.on_its_way.memory.write(*self.on_its_way.write_sent)
        return found

    async def write(self, content, if_match=None):
        return await self.on_its_way.memory.write(content, if_match)


async def ended(claims):
    """As after a death: no heartbeat comes any more."""
    await claims.stop()


# When the store is asked


@in_virtual_time
async def test_an_empty_queue_is_looked_at_no_more_often_than_asked():
    world = Claims(poll_interval=5.0)
    claims = world.process()
    for _ in range(10):
        assert claims.is_due
        assert BEGIN == await claims.after(BEGIN, 10)
        assert not claims.is_due
        await asyncio.sleep(4.9)
        assert not claims.is_due
        await asyncio.sleep(0.1)
    assert 0 == world.storage.writes


@in_virtual_time
async def test_a_batch_as_large_as_it_may_be_is_followed_by_the_next_at_once():
    world = Claims(poll_interval=5.0)
    await world.enqueue(15)
    claims = world.process()
    first = await claims.after(BEGIN, 10)
    assert 10 == len(await claims.jobs_of(first))
    assert claims.is_due
    second = await claims.after(first, 10)
    assert 5 == len(await claims.jobs_of(second))
    assert not claims.is_due, "there were no more"
    await ended(claims)


@in_virtual_time
async def test_one_commit_acks_a_batch_and_claims_the_next_without_a_read():
    world = Claims()
    await world.enqueue(30)
    claims = world.process()
    offset = await claims.after(BEGIN, 10)
    for _ in range(2):
        world.storage.reads = world.storage.writes = 0
        offset = await claims.after(offset, 10)
        assert 10 == len(await claims.jobs_of(offset))
        assert (0, 1) == world.asked
    assert 10 == len((await world.elsewhere.read_state()).jobs)
    await ended(claims)


@in_virtual_time
async def test_a_frozen_query_takes_what_was_there_and_nothing_that_comes_later():
    world = Claims(poll_interval=60.0)
    before = await world.enqueue(12)
    claims = world.process()
    await claims.freeze()
    await world.enqueue(5)
    await world.enqueue(5, priority=-1)
    taken, offset = [], BEGIN
    while (end := await claims.after(offset, 10)) != offset:
        assert claims.is_due, "it must not end before it has taken all"
        offset = end
        taken += [job.id for job in await claims.jobs_of(offset)]
    assert [job.id for job in before] == taken
    assert 10 == len((await world.elsewhere.read_state()).queued_jobs())
    assert [] == list((await world.elsewhere.read_state()).in_progress_jobs())


@in_virtual_time
async def test_a_frozen_query_ends_although_others_go_on_enqueueing():
    """The jobs with the highest numbers have left when the others come."""
    world = Claims()
    for job in (await world.enqueue(50))[1:]:
        await world.elsewhere.cancel(job.id)
    await world.enqueue(1, priority=-1)
    claims, offset = world.process(), BEGIN
    await claims.freeze()
    for _ in range(2):
        offset = await claims.after(offset, 1)
    for _ in range(3):
        await DirectQueue(world.memory, clock=VirtualClock()).enqueue("work", b"later")
    assert offset == await claims.after(offset, 1)
    assert 3 == len((await world.elsewhere.read_state()).queued_jobs())


@in_virtual_time
async def test_only_the_entrypoints_that_were_named_are_claimed():
    world = Claims(entrypoints=("a", "b"))
    for entrypoint in "abc":
        await world.enqueue(1, entrypoint)
    claims = world.process()
    await claims.freeze()
    end = await claims.after(BEGIN, 10)
    assert ["a", "b"] == [job.entrypoint for job in await claims.jobs_of(end)]
    await ended(claims)


# What is kept alive


@in_virtual_time
async def test_claims_are_kept_alive_while_their_batch_runs_for_long():
    world = Claims(claim_timeout=30.0)
    await world.enqueue(1)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    stale = DirectQueue(world.memory, clock=VirtualClock())
    for _ in range(200):
        await asyncio.sleep(1)
        assert [] == await stale.dequeue("work"), "somebody else got it"
    assert end == await claims.after(end, 10)
    assert () == (await world.elsewhere.read_state()).jobs


@in_virtual_time
async def test_one_heartbeat_for_all_claims_comes_at_a_third_of_their_timeout():
    world = Claims(claim_timeout=30.0)
    await world.enqueue(10)
    claims = world.process()
    await claims.after(BEGIN, 10)
    world.storage.reads = world.storage.writes = 0
    await asyncio.sleep(61)
    assert (0, 6) == world.asked
    await ended(claims)
    await asyncio.sleep(60)
    assert (0, 6) == world.asked, "it was stopped"


@in_virtual_time
async def test_a_heartbeat_that_fails_is_tried_again_before_the_claims_are_stale(caplog):
    world = Claims(claim_timeout=30.0)
    [job] = await world.enqueue(1)
    claims = world.process()
    await claims.after(BEGIN, 10)
    world.storage.on_write(*[Fault.LOST_REQUEST] * 1000)
    await asyncio.sleep(21)
    world.storage.heal()
    await asyncio.sleep(8)
    assert await world.age(job) < 8
    assert ["a heartbeat for 1 jobs failed: "] == [record.getMessage()[:31] for record in caplog.records]
    await ended(claims)


@in_virtual_time
async def test_claims_that_were_lost_are_told_in_one_line_and_acked_by_nobody(caplog):
    world = Claims(claim_timeout=30.0)
    jobs = await world.enqueue(10)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    for job in jobs[:4]:
        await world.steal(job)
    await asyncio.sleep(11)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "4 of the 10 jobs that this query had claimed went to others, as they were without a heartbeat"
    )
    await claims.after(end, 0)
    assert {job.id for job in jobs[:4]} == {job.id for job in (await world.elsewhere.read_state()).jobs}


@in_virtual_time
async def test_acks_that_are_refused_are_told_in_one_line_and_stop_nothing(caplog):
    world = Claims()
    jobs = await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    for job in jobs[:3]:
        await world.steal(job)
    assert 8 == len(await claims.jobs_of(await claims.after(end, 10))), "five that waited, and the three"
    assert ["3 of the 10 jobs of batch 1 had gone to others before it was finished: they may be worked on twice"] == [
        record.getMessage() for record in caplog.records
    ]
    await ended(claims)


@in_virtual_time
async def test_a_heartbeat_and_an_ack_of_the_same_jobs_never_meet(caplog):
    """They come at the same moment, and the store is slow."""
    world = Claims(claim_timeout=30.0)
    await world.enqueue(200)
    world.storage.latency = 0.7
    claims, offset = world.process(), BEGIN
    for tenths in range(80, 100):
        offset = await claims.after(offset, 10)
        await asyncio.sleep(tenths / 10)
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]
    await ended(claims)


@in_virtual_time
async def test_a_job_that_is_cancelled_meanwhile_is_finished_with_its_batch(caplog):
    world = Claims(claim_timeout=30.0)
    [job] = await world.enqueue(1)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    await world.elsewhere.cancel(job.id, running=True)
    await asyncio.sleep(11)
    assert end == await claims.after(end, 10)
    assert () == (await world.elsewhere.read_state()).jobs
    assert [] == caplog.records


# What is found again


@in_virtual_time
async def test_a_claim_that_nobody_heard_of_is_the_next_batch_after_a_restart():
    world = Claims()
    await world.enqueue(15)
    first = world.process()
    lost = await first.after(BEGIN, 10)
    await ended(first)
    second = world.process()
    end = await second.after(BEGIN, 10)
    assert lost == end
    assert await first.jobs_of(end) == [
        job.evolve(heartbeat_at=before.heartbeat_at)
        for job, before in zip(await second.jobs_of(end), await first.jobs_of(end), strict=True)
    ]
    assert 5 == len(await second.jobs_of(await second.after(end, 10)))
    await ended(second)


@in_virtual_time
async def test_a_batch_that_was_finished_is_acked_after_a_restart_and_not_delivered_again():
    world = Claims()
    await world.enqueue(15)
    first = world.process()
    end = await first.after(BEGIN, 10)
    await ended(first)
    second = world.process()
    following = await second.after(end, 10)
    assert 5 == len(await second.jobs_of(following))
    assert 5 == len((await world.elsewhere.read_state()).jobs)
    await ended(second)


@in_virtual_time
async def test_two_lost_claims_are_two_batches():
    """So that a batch, once it has been logged, is what one claim took, whoever made others."""
    world = Claims()
    await world.enqueue(15)
    first, other = world.process(), world.process()
    first.begin("query")
    other.begin("query")  # a process that was thought dead
    sizes = {len(await claims.jobs_of(await claims.after(BEGIN, 10))) for claims in (first, other)}
    assert {10, 5} == sizes
    await ended(first)
    await ended(other)
    restarted = world.process()
    one = await restarted.after(BEGIN, 10)
    two = await restarted.after(one, 10)
    assert (1, 2) == (one.batch, two.batch)
    assert two == await restarted.after(two, 10)
    assert () == (await world.elsewhere.read_state()).jobs


@in_virtual_time
async def test_a_batch_that_is_repeated_is_kept_alive_and_has_only_what_is_still_ours():
    world = Claims(claim_timeout=30.0)
    jobs = await world.enqueue(10)
    first = world.process()
    end = await first.after(BEGIN, 10)
    await ended(first)
    await asyncio.sleep(20)
    for job in jobs[:4]:
        await world.steal(job)
    second = world.process()
    assert [job.id for job in jobs[4:]] == [job.id for job in await second.jobs_of(end)]
    assert {job.id for job in jobs[:4]} == {job.id for job in await world.elsewhere.dequeue("work", batch_size=4)}
    stale = DirectQueue(world.memory, clock=VirtualClock())
    for _ in range(25):
        await asyncio.sleep(5)
        await stale.dequeue("none")
    assert end == await second.after(end, 0)
    assert {job.id for job in jobs[:4]} == {job.id for job in (await world.elsewhere.read_state()).jobs}


@in_virtual_time
async def test_a_claim_that_lands_when_its_process_is_gone_is_in_no_batch_until_the_next_restart():
    """Its commit is on its way while the restarted query looks for what it has claimed."""
    world = Claims()
    await world.enqueue(15)
    on_its_way = OnItsWay(world.memory)
    dead = world.process(on_its_way)
    dead.begin("query")
    dying = asyncio.create_task(dead.after(BEGIN, 10))
    await on_its_way.sent.wait()
    second = world.process(on_its_way.landing_after_a_read())
    end = await second.after(BEGIN, 10)
    held = [job.id for job in await second.jobs_of(end)]
    assert 5 == len(held)
    await ended(second)
    third = world.process()
    assert held == [job.id for job in await third.jobs_of(end)]
    assert 10 == len(await third.jobs_of(await third.after(end, 10)))
    await ended(third)
    dying.cancel()
    await asyncio.wait([dying])


@in_virtual_time
async def test_other_queries_and_other_workers_keep_what_they_hold():
    world = Claims()
    await world.enqueue(30)
    other = world.process()
    other.begin("another")
    await other.after(Offset("another", 0, ""), 10)
    await world.elsewhere.dequeue("work", batch_size=10)
    claims = world.process()
    assert 10 == len(await claims.jobs_of(await claims.after(BEGIN, 100)))
    await ended(other)
    await ended(claims)


@in_virtual_time
async def test_a_new_query_does_not_look_for_claims():
    world = Claims()
    claims = world.process()
    claims.begin("query")
    await claims.after(BEGIN, 10)
    assert (1, 0) == world.asked


# When the store fails


@in_virtual_time
async def test_a_failing_store_is_tried_until_the_deadline():
    world = Claims()
    await world.enqueue(1)
    claims = world.process()
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(StorageError):
        await claims.after(BEGIN, 10)
    assert 19 < now() < 21


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT])
@in_virtual_time
async def test_a_commit_whose_answer_is_lost_is_one_batch(fault):
    world = Claims()
    await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    world.storage.on_write(fault)
    last = await claims.after(end, 10)
    assert 5 == len(await claims.jobs_of(last))
    assert 5 == len((await world.elsewhere.read_state()).jobs)
    await ended(claims)


@in_virtual_time
async def test_after_a_failure_the_next_call_finds_what_was_claimed():
    world = Claims()
    await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    world.storage.on_write(Fault.LOST_ANSWER)
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(StorageError):
        await claims.after(end, 10)
    world.storage.heal()
    following = await claims.after(end, 10)
    assert 5 == len(await claims.jobs_of(following))
    assert following == await claims.after(following, 10)
    assert () == (await world.elsewhere.read_state()).jobs


def test_a_holder_names_the_query_and_the_claim():
    assert "spark/query/claim" == holder_of("query", "claim")
