"""The cost of a claim while ten thousand jobs are held back, counted. An empty dequeue writes nothing."""

from datetime import timedelta

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.operations import Ack, Pause, SetLimits
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.counted_claims import FEW, NAMES, NOW, Costs, claim, deep_draft, waiting
from tests.deep_queue import DEEP
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide

FREE = "free"
"""Entrypoint whose jobs no limit holds back; the jobs of all others come before them."""

ways = pytest.mark.parametrize(
    "names", [None, ("mail", FREE), (*NAMES, FREE)], ids=["all", "one held back and one free", "several"]
)


@pytest.fixture
def costs(monkeypatch):
    return Costs(monkeypatch)


def add_free(draft, count):
    """Add jobs that no limit holds back, behind all others."""
    last = len(draft.jobs)
    jobs = [waiting(last + number).evolve(entrypoint=FREE, priority=2000) for number in range(count)]
    draft.load(jobs)


def held_by_a_key():
    """Return a draft whose jobs share a key that one job in progress holds."""
    draft = deep_draft(concurrency_key="k")
    assert 1 == len(claim(draft, None))
    return draft


def held_by_a_pause():
    draft = deep_draft()
    for name in NAMES:
        Pause(name).change(draft, NOW)
    return draft


def held_by_a_rate():
    draft = deep_draft()
    for name in NAMES:
        SetLimits(name, rate=100, per=3600).change(draft, NOW)
        assert 100 == len(claim(draft, (name,), 1000))
    return draft


def held_by_a_ceiling():
    draft = deep_draft()
    for name in NAMES:
        SetLimits(name, running=100).change(draft, NOW)
        assert 100 == len(claim(draft, (name,), 1000))
    return draft


holds = pytest.mark.parametrize("hold", [held_by_a_key, held_by_a_pause, held_by_a_rate, held_by_a_ceiling])


@holds
@ways
def test_a_free_job_behind_ten_thousand_held_back_costs_a_few_comparisons(costs, hold, names):
    draft = hold()
    add_free(draft, 300)
    claim(draft, names)  # jobs that a key holds back are parked, each once
    costs.since()
    for _ in range(200):
        [job] = claim(draft, names)
        assert FREE == job.entrypoint
        compared, looked, checks = costs.since()
        assert compared <= FEW
        assert looked <= 12
        assert checks <= 1 + len(NAMES)


@holds
@pytest.mark.parametrize("names", [None, ("mail",), NAMES], ids=["all", "one", "several"])
def test_an_empty_dequeue_checks_no_jobs_that_are_held_back(costs, hold, names):
    draft = hold()
    claim(draft, names)
    costs.since()
    for _ in range(100):
        assert [] == claim(draft, names)
        assert (0, 0, 0) == costs.since()


@pytest.mark.parametrize("names", [None, ("mail",), NAMES], ids=["all", "one", "several"])
def test_each_slot_that_a_key_frees_costs_a_few_comparisons(costs, names):
    draft = deep_draft(concurrency_key="k", concurrency_limit=2)
    held = claim(draft, names, 10)
    assert 2 == len(held)
    assert [] == claim(draft, names)
    costs.since()
    for _ in range(300):
        Ack(held.pop(0).claim).change(draft, NOW)
        held += claim(draft, names, 10)
        assert 2 == len(held)
        compared, looked, checks = costs.since()
        assert compared <= 4 * len(NAMES) * FEW  # one parked job of each entrypoint comes back, and is parked again
        assert looked <= 40
        assert checks <= 40


def test_each_job_that_a_key_holds_back_is_checked_once(costs):
    draft = deep_draft(concurrency_key="k")
    costs.since()
    assert 1 == len(claim(draft, None, 10))
    compared, looked, checks = costs.since()
    assert looked <= 4 * DEEP
    assert checks <= 2 * DEEP
    assert compared <= 3 * DEEP * FEW


@in_virtual_time
async def test_repeating_a_setting_writes_nothing():
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    queue = DirectQueue(storage, clock=VirtualClock())

    async def decide():
        await queue.limit("mail", running=2, rate=10, per=timedelta(minutes=1))
        await queue.pause("resize")
        await queue.configure(aging=60, dead_retention=timedelta(days=7))
        await queue.schedule("nightly", "0 3 * * *", "report", b"all", timezone="Europe/Berlin", headers={"a": "b"})

    await decide()
    written = storage.writes
    await decide()
    await queue.resume("mail")
    await queue.limit("report")
    await queue.configure()
    assert not await queue.unschedule("weekly")
    assert 1 == len(await queue.schedules())
    assert written == storage.writes


@pytest.mark.parametrize("names", [None, "mail", ["mail", "resize"]])
@in_virtual_time
async def test_a_dequeue_writes_nothing_while_all_is_held_back(names):
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    queue = DirectQueue(storage, clock=VirtualClock())
    await queue.limit("mail", rate=1, per=1000)
    await queue.pause("resize")
    await queue.enqueue("mail", b"")
    assert 1 == len(await queue.dequeue())
    for name in ("mail", "mail", "resize"):
        await queue.enqueue(name, b"")
    for _ in range(2):
        await queue.enqueue("mail", b"", concurrency_key="k")
    written = storage.writes
    assert [] == await queue.dequeue(names, wait=100)
    assert [] == await queue.dequeue(names, batch_size=100)
    assert written == storage.writes
