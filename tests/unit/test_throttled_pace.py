"""A store that takes one write a second: calls share commits, few writes are refused, and no call waits too long."""

import asyncio
import math
import random

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.group_commit import BATCH_LIMIT
from jqueue.core.pacing.pace import BATCH_WHILE_PACED, LONGEST_INTERVAL, WritePace
from jqueue.domain.errors import DeadlineExceededError, JQueueError, StorageThrottledError
from jqueue.domain.models import CommitRecord
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.simulation.workload import SeededEntropy
from tests.virtual_world import in_virtual_time, now

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


class ThrottledStorage:
    """A store in memory that takes one write in `every` seconds, refuses the others, and counts its requests.

    A write that comes in time lands or meets a conflict. Only a write that lands delays the next one.
    """

    def __init__(self, every=1.0, latency=0.02):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.every = every
        self.latency = latency
        self.last = -math.inf
        self.forget()

    def forget(self):
        self.reads = self.writes = self.refused = self.landed = 0

    @property
    def share_refused(self):
        return self.refused / self.writes

    async def read(self):
        self.reads += 1
        await asyncio.sleep(self.latency)
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.writes += 1
        await asyncio.sleep(self.latency / 2)
        if now() < self.last + self.every:
            self.refused += 1
            await asyncio.sleep(self.latency / 2)
            raise StorageThrottledError("slow down")
        etag = await self.memory.write(content, if_match)
        self.last = now()
        self.landed += 1
        await asyncio.sleep(self.latency / 2)
        return etag


def open_queue(kind, storage, seed=1, **options):
    entropy = SeededEntropy(random.Random(seed), f"queue {seed}")
    return kind(storage, clock=VirtualClock(), entropy=entropy, **options)


async def enqueue_without_end(queue, seconds):
    """Enqueue one job after the other for `seconds`; return the commits and the seconds of the longest call."""
    until, longest, commits = now() + seconds, 0.0, queue._engine.commits
    while now() < until:
        began = now()
        await queue.enqueue("work", b"payload")
        longest = max(longest, now() - began)
        if queue._engine.commits % 50 == 0:
            await queue.purge()  # or the blob would grow, and with it the work
    return queue._engine.commits - commits, longest


async def enqueue_by_three(queue, seconds):
    """Do the same with three callers at once."""
    found = await asyncio.gather(*(enqueue_without_end(queue, seconds) for _ in range(3)))
    return max(commits for commits, _ in found), max(longest for _, longest in found)


async def held_back(queue, storage):
    """Let a queue wait as long as possible for its next turn, while the store would take its writes again."""
    await queue.enqueue("first", b"payload")
    storage.every = math.inf
    refused = asyncio.create_task(queue.enqueue("first", b"payload", deadline=600))
    await asyncio.sleep(120)
    storage.every, began = 0.0, now()
    await refused
    assert now() - began < LONGEST_INTERVAL / 2 + 1, "it waits no longer than that before a retry"
    storage.forget()
    assert LONGEST_INTERVAL - 1 < queue._engine.pacing.pace.pause() <= LONGEST_INTERVAL


# Many calls, few commits


@both
@in_virtual_time
async def test_two_hundred_calls_at_once_are_done_in_four_writes(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await queue.enqueue("work", b"payload")
        began = now()
        jobs = await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(200)))
        took, seen = now() - began, await queue.read_state()
    assert {job.id for job in jobs} < {job.id for job in seen.queued_jobs()}
    assert took < 3, "the deadline would be 30"
    assert (storage.writes, storage.refused) == ((4, 1) if kind is DirectQueue else (3, 1))


@both
@in_virtual_time
async def test_calls_that_come_while_the_queue_waits_for_its_turn_share_the_commit(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        calls = []
        for _ in range(50):
            await asyncio.sleep(0.1)
            calls.append(asyncio.create_task(queue.enqueue("work", b"payload")))
        await asyncio.gather(*calls)
        assert (1, 0) == (storage.landed, storage.refused)


@both
@pytest.mark.parametrize("latency", [0.02, 0.2])
@in_virtual_time
async def test_a_queue_that_never_rests_commits_almost_as_often_as_the_store_lets_it(kind, latency):
    storage = ThrottledStorage(latency=latency)
    async with open_queue(kind, storage) as queue:
        commits, longest = await enqueue_by_three(queue, 60)
    print(f"{commits} commits; {storage.refused} of {storage.writes} writes refused; longest call {longest:.1f} s")
    assert commits >= 45
    assert storage.share_refused < 0.2
    assert longest < 5
    assert storage.reads <= 2 + storage.refused, "it reads after a refusal, and otherwise never"


@pytest.mark.parametrize("every", [0.1, 0.5, 2, 5])
@in_virtual_time
async def test_any_pace_of_a_store_is_learned(every):
    storage = ThrottledStorage(every, latency=0.01)
    async with open_queue(BrokerQueue, storage) as queue:
        await enqueue_by_three(queue, 30 * every + 30)
        storage.forget()
        commits, _ = await enqueue_by_three(queue, 60 * every)
    print(f"{commits} commits of 60 possible; {storage.refused} of {storage.writes} writes refused")
    assert commits >= 45
    assert storage.share_refused < 0.2


# As fast as before


@both
@in_virtual_time
async def test_a_store_that_refuses_nothing_is_never_waited_for(kind):
    storage = ThrottledStorage(every=0.0, latency=0.0)
    async with open_queue(kind, storage) as queue:
        for _ in range(200):
            await queue.enqueue("work", b"payload")
        assert 0 == now()
        assert 200 == storage.writes


class StoppedClock(VirtualClock):
    """A clock that must not be read."""

    def monotonic(self):
        raise AssertionError("the clock was read")


def test_the_pace_reads_no_clock_while_no_write_is_refused():
    pace = WritePace(StoppedClock(), SeededEntropy(random.Random(1), "us"))
    for version in range(1, 10):
        pace.moved()
        pace.landed("we", {"we": CommitRecord(version, version, 0.0, 0.0)})
        assert 0.0 == pace.pause()


@both
@in_virtual_time
async def test_only_a_refusal_sets_a_pace_and_only_that_of_a_write(kind):
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()), error=lambda: StorageThrottledError("slow down"))
    async with open_queue(kind, storage) as queue:
        storage.on_read(*[Fault.LOST_REQUEST] * 3)
        await queue.enqueue("work", b"payload")
        for fault in (Fault.RESENT, Fault.LOST_REQUEST, Fault.LOST_ANSWER):
            assert 0.0 == queue._engine.pacing.pace.interval
            storage.error = TimeoutError
            storage.on_write(fault)
            await queue.enqueue("work", b"payload")
        assert 0.0 == queue._engine.pacing.pace.interval
        storage.error = lambda: StorageThrottledError("slow down")
        storage.on_write(Fault.LOST_REQUEST)
        await queue.enqueue("work", b"payload")
        assert queue._engine.pacing.pace.interval > 0.0


@both
@in_virtual_time
async def test_a_queue_is_at_full_speed_sixty_commits_after_the_last_refusal(kind):
    storage = ThrottledStorage(latency=0.001)
    async with open_queue(kind, storage) as queue:
        await enqueue_by_three(queue, 30)
        storage.every, began = 0.0, now()
        for _ in range(60):
            await queue.enqueue("work", b"payload")
        assert now() - began < 40
        storage.forget()
        began = now()
        for _ in range(100):
            await queue.enqueue("work", b"payload")
        assert now() - began < 0.2
        storage.forget()
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(10)))
        assert storage.writes == (10 if kind is DirectQueue else 1), "a direct queue commits call by call again"


# Leaving, deadlines and waiting


@both
@in_virtual_time
async def test_leaving_a_queue_does_not_wait_for_its_turn(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        last = asyncio.create_task(queue.enqueue("last", b"payload"))
        await asyncio.sleep(1)
        assert not last.done()
        began = now()
    assert now() - began < 0.1
    assert "last" == (await last).entrypoint


@both
@in_virtual_time
async def test_leaving_a_queue_whose_callers_have_gone_takes_no_time(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        gone = asyncio.create_task(queue.enqueue("last", b"payload"))
        await asyncio.sleep(1)
        gone.cancel()
        await asyncio.sleep(1)
        began = now()
    assert now() - began < 0.001
    assert 0 == storage.writes


@both
@in_virtual_time
async def test_a_call_whose_deadline_passes_before_its_turn_is_not_done(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        began = now()
        with pytest.raises(DeadlineExceededError, match="nothing was done"):
            await queue.enqueue("work", b"payload", deadline=2)
        assert now() - began == pytest.approx(2)
        await queue.enqueue("next", b"payload")
        assert [] == [job for job in (await queue.read_state()).queued_jobs() if job.entrypoint == "work"]


@both
@in_virtual_time
async def test_a_waiting_consumer_of_a_paced_queue_polls_as_usual_and_claims_at_once(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        await asyncio.sleep(LONGEST_INTERVAL)
        assert [] == await queue.dequeue("work", wait=60)
        assert 55 <= storage.reads <= 80
        assert 0 == storage.writes
        await queue.enqueue("other", b"payload")
        assert queue._engine.pacing.pace.pause() > 2, "it is not the turn of this queue"
        waiting = asyncio.create_task(queue.dequeue("work", wait=60))
        await asyncio.sleep(LONGEST_INTERVAL)
        await queue.enqueue("other", b"payload")
        job = await open_queue(DirectQueue, storage, seed=2).enqueue("work", b"payload")
        began = now()
        assert [job.id] == [job.id for job in await waiting]
        assert now() - began < 1.2


@both
@in_virtual_time
async def test_a_wait_ends_in_time_although_calls_are_held_back(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await held_back(queue, storage)
        await asyncio.sleep(LONGEST_INTERVAL)
        waiting = asyncio.create_task(queue.dequeue("work", wait=3))
        await asyncio.sleep(0.1)
        await queue.enqueue("other", b"payload")
        held = asyncio.create_task(queue.enqueue("other", b"payload"))
        began = now()
        assert [] == await waiting
        assert now() - began < 3
        assert not held.done()
        await held


# Several writers


@both
@pytest.mark.parametrize("latency", [0.02, 0.2])
@pytest.mark.parametrize(("writers", "fewest", "longest_call", "refused"), [(2, 35, 10, 0.35), (4, 15, 25, 0.65)])
@in_virtual_time
async def test_writers_of_one_throttled_object_all_make_progress(kind, latency, writers, fewest, longest_call, refused):
    storage = ThrottledStorage(latency=latency)
    queues = [open_queue(kind, storage, seed) for seed in range(writers)]
    for queue in queues:
        await queue.__aenter__()
    found = await asyncio.gather(*(enqueue_by_three(queue, 120) for queue in queues))
    for queue in queues:
        await queue.__aexit__(None, None, None)
    print(f"commits and longest call of each: {found}; {storage.refused} of {storage.writes} writes refused")
    assert min(commits for commits, _ in found) >= fewest
    assert max(longest for _, longest in found) <= longest_call
    assert storage.landed >= 70
    assert storage.share_refused < refused
    lost_races = storage.writes - storage.refused - storage.landed
    assert lost_races <= storage.landed / 4, "a writer that takes turns reads before it writes"


@in_virtual_time
async def test_eight_writers_that_take_turns_get_few_refusals():
    """Without `WritePace.wait_after_read`, 10 are refused for each that lands at first, and 2.6 later."""
    storage = ThrottledStorage(latency=0.05)
    queues = [open_queue(DirectQueue, storage, seed, deadline=60) for seed in range(8)]
    for seconds, most in ((30, 7.0), (30, 0.7)):
        storage.forget()
        found = await asyncio.gather(*(enqueue_without_end(queue, seconds) for queue in queues))
        print(f"{storage.landed} landed, {storage.refused} refused; commits and longest call of each: {found}")
        assert storage.refused <= most * storage.landed
        assert storage.landed >= 20
        assert max(commits for commits, _ in found) <= 2 * min(commits for commits, _ in found)


@in_virtual_time
async def test_an_absent_writer_is_left_at_most_one_turn():
    storage = ThrottledStorage(latency=0.05)
    queue, gone = (open_queue(DirectQueue, storage, seed) for seed in range(2))
    await asyncio.gather(enqueue_without_end(queue, 15), enqueue_without_end(gone, 15))
    storage.forget()
    assert (await enqueue_without_end(queue, 20))[0] >= 14


@in_virtual_time
async def test_one_refusal_among_many_writers_of_a_quick_store_is_soon_forgotten():
    """The others' commits in the table show that the store takes more writes than the refusal suggested."""
    storage = ThrottledStorage(every=0.0)
    queues = [open_queue(DirectQueue, storage, seed) for seed in range(1, 4)]
    others = [asyncio.create_task(enqueue_without_end(queue, 60)) for queue in queues]
    ours = FaultyStorage(storage, error=lambda: StorageThrottledError("slow down"))
    queue = open_queue(DirectQueue, ours, seed=4)
    await enqueue_without_end(queue, 5)
    ours.on_write(Fault.LOST_REQUEST)
    await queue.enqueue("work", b"payload")
    assert queue._engine.pacing.pace.interval > 0.1
    commits = queue._engine.commits
    while queue._engine.pacing.pace.interval > 0.1:
        await queue.enqueue("work", b"payload")
    assert queue._engine.commits - commits <= 8
    for task in others:
        task.cancel()
    for error in await asyncio.gather(*others, return_exceptions=True):
        assert not isinstance(error, JQueueError), error


@in_virtual_time
async def test_a_refusal_that_anothers_commit_explains_slows_the_pace_only_a_little():
    def table(version):
        return {"we": CommitRecord(1, version, 0.0, 0.0)}

    paces = []
    for another in (False, True):
        pace = WritePace(VirtualClock(), SeededEntropy(random.Random(1), "us"))
        pace.sent = now()
        pace.refused()
        pace.landed("we", table(1))
        await asyncio.sleep(pace.pause())
        pace.sent = now()
        assert pace.refused() < 1
        if another:
            pace.moved()
        paces.append(pace.interval)
    assert [1.25, 1.05] == paces


def test_a_paced_direct_queue_shares_commits_as_a_broker_does():
    assert BATCH_LIMIT == BATCH_WHILE_PACED
