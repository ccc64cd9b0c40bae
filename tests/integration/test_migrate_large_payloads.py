"""Jobs with large payloads move with their payloads, or stay with the reason."""

import pytest

from jqueue import DirectQueue, migrate
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.ports.storage import SupportsObjects
from tests.moved_jobs import open_at
from tests.two_methods import TwoMethods

LIMITS = Limits(object_bytes=100, payload_bytes=5000)
LARGE = bytes(range(256)) * 10


async def pieces():
    for _ in range(10):
        yield LARGE


async def filled():
    queue = DirectQueue(InMemoryStorage(), limits=LIMITS)
    await queue.enqueue("dead", LARGE, max_attempts=1)
    [job] = await queue.dequeue("dead")
    await queue.nack(job, error="it failed")
    await queue.enqueue("work", b"small", job_id="small")
    await queue.enqueue("work", LARGE, job_id="large")
    await queue.enqueue("work", pieces(), job_id="huge")
    return queue


async def payloads(queue):
    found = {}
    for job in await queue.dequeue("work", batch_size=9):
        found[job.id] = b"".join([piece async for piece in queue.open_payload(job)])
    return found


@pytest.mark.parametrize("make_storage", [InMemoryStorage, LocalFileSystemStorage])
async def test_large_payloads_move_to_a_queue_that_keeps_objects(make_storage, tmp_path):
    arguments = () if make_storage is InMemoryStorage else (tmp_path / "queue.json",)
    source, dest = await filled(), DirectQueue(make_storage(*arguments), limits=LIMITS)
    predicted = await migrate(source, dest, dry_run=True)
    report = await migrate(source, dest)
    assert (4, 4, True) == (predicted.moved, report.moved, report.complete)
    assert () == (await source.read_state()).jobs
    names = [job.payload_object for job in (await dest.read_state()).jobs if job.payload_object is not None]
    assert isinstance(dest.storage, SupportsObjects)
    assert 3 == len(names) == len(await dest.storage.list_beside(".payloads/"))
    assert {"small": b"small", "large": LARGE, "huge": LARGE * 10} == await payloads(dest)
    assert 1 == await dest.redrive(entrypoint="dead")
    [job] = await dest.dequeue("dead")
    assert LARGE == job.payload


@pytest.mark.parametrize("kind", ["two methods", "vsqs"])
async def test_a_payload_too_large_for_the_other_queue_stays_with_the_reason(kind, tmp_path):
    source = await filled()
    dest = DirectQueue(TwoMethods(), limits=LIMITS) if kind == "two methods" else open_at(tmp_path, kind, "dest")
    dest.options.limits = LIMITS
    predicted = await migrate(source, dest, dry_run=True)
    report = await migrate(source, dest)
    reason = "their payloads are too large for DEST, which keeps no objects beside it"
    for each in (predicted, report):
        assert (3, ["huge"]) == (each.moved, each.refused[reason].ids)
    assert {"huge": LARGE * 10} == await payloads(source)
    moved = {job.payload for job in await dest.dequeue("work", batch_size=9)}
    assert {b"small", LARGE} == moved
    await dest.aclose()


async def test_a_job_whose_payload_is_lost_stays_and_the_others_move():
    source, dest = await filled(), DirectQueue(InMemoryStorage(), limits=LIMITS)
    for job in (await source.read_state()).jobs:
        if job.id in ("large", "huge"):
            assert job.payload_object is not None
            await source.storage.remove_object(job.payload_object.suffix)
    report = await migrate(source, dest)
    assert 2 == report.moved
    assert ["the object does not exist"] * 2 == ["the object does not exist"] * sum(
        "does not exist" in reason for reason in report.refused
    )
    left = {job.id: job.status for job in (await source.read_state()).jobs}
    assert {"large": JobStatus.QUEUED, "huge": JobStatus.QUEUED} == left
