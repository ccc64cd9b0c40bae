"""A streaming query that is killed at any step and restarted gets every job, and no batch grows."""

import random

import pytest

from tests.spark.stream.stream_world import StreamWorld

pytestmark = pytest.mark.wide

JOBS = 25
STEPS = range(28)
"""The steps of a run that delivers all jobs."""

STEPS_ONCE = range(7)


def _filled():
    world = StreamWorld()
    world.enqueue(JOBS)
    return world


def test_a_query_drains_the_queue_in_batches_and_ends():
    world = _filled()
    assert world.live()
    world.audit_end()
    assert len(STEPS) == len(world.steps)
    assert [0, 10, 10, 5] == [len(world.sink.batches[batch]) for batch in sorted(world.sink.batches)]
    assert world.enqueued == world.sink.ids


@pytest.mark.parametrize("kill_at", STEPS)
def test_a_query_can_be_killed_at_any_step(kill_at):
    world = _filled()
    assert not world.live(kill_at=kill_at)
    assert world.live()
    world.audit_end()
    assert world.enqueued == world.sink.ids, "the jobs were delivered in a different order"


@pytest.mark.parametrize("first", [1, 2, 8])
def test_a_query_can_be_killed_twice(first):
    _die_twice(first, STEPS[1:12])


@pytest.mark.full
@pytest.mark.parametrize("first", STEPS)
def test_a_query_can_be_killed_twice_at_any_step(first):
    _die_twice(first, STEPS)


def _die_twice(first, steps):
    for second in steps:
        world = _filled()
        assert not world.live(kill_at=first)
        world.live(kill_at=second)
        assert world.live()
        world.audit_end()


@pytest.mark.parametrize("kill_at", STEPS_ONCE)
def test_a_query_with_the_trigger_once_takes_all_jobs(kill_at):
    world = _filled()
    world.live(kill_at=kill_at, trigger="once")
    if not world.checkpoint.offsets:
        world.have(lambda queue: queue.requeue_stale(0))  # the first claim of such a query may be unlogged
    for _ in range(2):
        world.live(trigger="once")
    world.audit_end()


@pytest.mark.parametrize("seed", range(12))
def test_every_job_is_delivered_before_its_ack_under_random_faults(seed):
    """Kills at random steps, other workers that revoke claims and take jobs, and jobs that come late."""
    chance = random.Random(seed)
    world = _filled()

    def disturb(name):
        if chance.random() < 0.15:
            world.steal(chance.randrange(5))
        if chance.random() < 0.15:
            world.enqueue(chance.randrange(5))

    for _ in range(6):
        world.live(kill_at=chance.randrange(20), on_step=disturb)
    for _ in range(JOBS):
        assert world.live()
        if not world.jobs:
            break
        world.have(lambda queue: queue.requeue_stale(0))
    world.audit_end(once=False)


@pytest.mark.parametrize("seed", range(12))
def test_a_repeated_batch_gains_no_jobs(seed):
    chance = random.Random(seed)
    world = _filled()
    while world.jobs:
        world.live(kill_at=chance.randrange(12), on_step=lambda name: chance.random() < 0.05 and world.steal(3))
    before: dict[int, set[str]] = {}
    for batch, ids in world.sink.offered:
        assert set(ids) <= before.setdefault(batch, set(ids))
        before[batch] &= set(ids)
