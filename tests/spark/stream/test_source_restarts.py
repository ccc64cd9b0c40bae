"""A streaming query that is killed at any step and restarted gets every job, and no batch grows.

All of it holds for jobs that are claimed one by one, and for ranges of a deep queue.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.spark.stream.deep_world import DeepWorld, filled
from tests.spark.stream.stream_world import StreamWorld

pytestmark = pytest.mark.wide

JOBS = 25
STEPS_ONCE = range(7)


def _single(folder):
    world = StreamWorld()
    world.enqueue(JOBS)
    return world


def _deep(folder):
    return filled(DeepWorld(folder))


class Kind(NamedTuple):
    """A kind of claims."""

    make: Callable[[Path], StreamWorld]
    """Makes a world with 25 jobs, given an empty folder."""
    steps: int
    """Number of the steps of a run that delivers all jobs."""
    seeds: int
    in_order: bool
    """True if the jobs are delivered in the order of their enqueue."""


KINDS = {"single": Kind(_single, 28, 12, in_order=True), "ranges": Kind(_deep, 27, 6, in_order=False)}


def each(number):
    """Parametrize a test by the kinds, and by a number that is different for each."""
    return pytest.mark.parametrize(
        ("kind", "number"), [(name, place) for name, kind in KINDS.items() for place in number(kind)]
    )


each_step, each_seed = each(lambda kind: range(kind.steps)), each(lambda kind: range(kind.seeds))


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_drains_the_queue_in_batches_and_ends(kind, tmp_path):
    world = KINDS[kind].make(tmp_path)
    assert world.live()
    world.audit_end()
    assert KINDS[kind].steps == len(world.steps)
    assert [0, 10, 10, 5] == [len(world.sink.batches[batch]) for batch in sorted(world.sink.batches)]
    assert not KINDS[kind].in_order or world.enqueued == world.sink.ids


@each_step
def test_a_query_can_be_killed_at_any_step(kind, number, tmp_path):
    world = KINDS[kind].make(tmp_path)
    assert not world.live(kill_at=number)
    assert world.live()
    world.audit_end()
    assert not KINDS[kind].in_order or world.enqueued == world.sink.ids, "delivered in a different order"


@pytest.mark.parametrize("first", [1, 2, 8])
def test_a_query_can_be_killed_twice(first, tmp_path):
    _die_twice("single", first, range(1, 12), tmp_path)


@pytest.mark.full
@each_step
def test_a_query_can_be_killed_twice_at_any_step(kind, number, tmp_path):
    _die_twice(kind, number, range(KINDS[kind].steps), tmp_path)


def _die_twice(kind, first, steps, folder):
    for second in steps:
        (folder / str(second)).mkdir()
        world = KINDS[kind].make(folder / str(second))
        assert not world.live(kill_at=first)
        world.live(kill_at=second)
        assert world.live()
        world.audit_end()


@pytest.mark.parametrize("kill_at", STEPS_ONCE)
def test_a_query_with_the_trigger_once_takes_all_jobs(kill_at, tmp_path):
    world = _single(tmp_path)
    world.live(kill_at=kill_at, trigger="once")
    if not world.checkpoint.offsets:
        world.have(lambda queue: queue.requeue_stale(0))  # the first claim of such a query may be unlogged
    for _ in range(2):
        world.live(trigger="once")
    world.audit_end()


@each_seed
def test_every_job_is_delivered_before_its_end_under_random_faults(kind, number, tmp_path):
    """Kills at random steps, other workers that revoke claims and take jobs, and jobs that come late."""
    chance = random.Random(number)
    world = KINDS[kind].make(tmp_path)

    def disturb(name):
        if chance.random() < 0.15:
            world.steal(chance.randrange(5))
        if chance.random() < 0.15:
            world.enqueue(chance.randrange(9))

    for _ in range(6):
        world.live(kill_at=chance.randrange(20), on_step=disturb)
    for _ in range(JOBS):
        assert world.live()
        if not world.jobs:
            break
        world.have(lambda queue: queue.requeue_stale(0))
    world.audit_end(once=False)


@each_seed
def test_a_repeated_batch_gains_no_jobs(kind, number, tmp_path):
    chance = random.Random(number)
    world = KINDS[kind].make(tmp_path)
    while world.jobs:
        world.live(kill_at=chance.randrange(12), on_step=lambda name: chance.random() < 0.05 and world.steal(3))
    before: dict[int, set[str]] = {}
    for batch, ids in world.sink.offered:
        assert set(ids) <= before.setdefault(batch, set(ids))
        before[batch] &= set(ids)
