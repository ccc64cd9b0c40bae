"""Jobs after jobs beside the queue contract: what people see of them, moves between queues, and older programs."""

import json

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobStatus
from jqueue.core.blob import codec
from jqueue.core.json_views import ShownLife, job_values
from jqueue.core.migration import FAMILY, migrate
from jqueue.domain.selection import Phase, Selection
from jqueue.errors import InvalidBlobError


async def test_people_see_for_whom_a_job_waits_and_the_dead_ones_first():
    async with DirectQueue(InMemoryStorage()) as queue:
        names = [f"parent-{number}" for number in range(7)]
        parents = [await queue.enqueue("parent", job_id=name) for name in names]
        child = await queue.enqueue("child", b"", after=parents)
        for _ in range(6):
            await queue.dequeue("parent")
        [last] = await queue.dequeue("parent")
        await queue.nack(last, dead=True)
        view = await queue.view()
        now = (await queue.enqueue("clock")).created_at
        reasons = await view.why_waits(child, now)
        assert reasons[0] == "waits for job parent-6, which is dead"
        assert reasons[1:6] == [
            *(f"waits for job parent-{number}, which is in progress" for number in range(4)),
            "waits for 2 more",
        ]
        assert view.children_of(parents[0]) == [child.id]
        shown = job_values(child, now, ShownLife)
        assert ("waiting", names, names, None) == tuple(
            shown[name] for name in ("status", "after", "waits_for", "on_dead")
        )
        stats = await view.stats(now)
        assert stats.entrypoints is not None
        assert (0, 1) == (stats.entrypoints["child"].ready, stats.entrypoints["child"].waiting)
        waiting = Selection(phases=frozenset({Phase.WAITING}))
        assert [child.id] == [job.id async for job in view.jobs(now, waiting, in_order=True)]


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_family_stays_where_its_results_are_when_a_queue_is_moved(dry_run):
    async with DirectQueue(InMemoryStorage()) as source, DirectQueue(InMemoryStorage()) as dest:
        ended = await source.enqueue("ended", b"")
        [job] = await source.dequeue()
        await source.ack(job)
        parent, alone = await source.enqueue("parent", b""), await source.enqueue("alone", b"")
        later = await source.enqueue("parent", b"", delay=60)
        child = await source.enqueue("child", b"", after=[parent, later])
        ready = await source.enqueue("child", b"", after=[ended])
        report = await migrate(source, dest, dry_run=dry_run)
        assert {FAMILY: sorted(job.id for job in (parent, later, child, ready))} == {
            reason: sorted(ids) for reason, ids in report.refused.items()
        }
        assert (1, False) == (report.moved, report.complete)
        moved = [] if dry_run else [alone.id]
        assert moved == [job.id for job in (await dest.read_state()).jobs]
        assert {JobStatus.QUEUED} == {job.status for job in (await source.read_state()).jobs}


async def test_a_program_that_does_not_know_parents_refuses_the_queue_and_one_without_has_no_trace(monkeypatch):
    storage = InMemoryStorage()
    async with DirectQueue(storage) as queue:
        parent = await queue.enqueue("parent", b"")
        content, _ = await storage.read()
        assert not {"critical", "after", "waits_for"} & json.loads(content)["jobs"][parent.id].keys()
        assert "critical" not in json.loads(content)
        await queue.enqueue("child", b"", after=[parent])
    monkeypatch.setattr(codec, "KNOWN_CRITICAL", codec.KNOWN_CRITICAL - {"parents"})
    async with DirectQueue(storage) as older:
        with pytest.raises(InvalidBlobError, match="parents"):
            await older.dequeue()
