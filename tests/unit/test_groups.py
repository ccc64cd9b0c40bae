"""Groups: exact numbers wherever the members are, bounded tables, and a job that nothing keeps from being enqueued."""

import pytest

from jqueue import (
    DirectQueue,
    InMemoryStorage,
    InvalidJobError,
    JobStatus,
    Limits,
    QueueFullError,
    migrate,
)
from jqueue.domain import groups
from jqueue.domain.operations.segments import DropRows
from jqueue.errors import GroupEndedError
from jqueue.operations import CancelGroup, CloseGroup, Enqueue, OpenGroup
from tests.tiny_segments import tiny_queue


async def numbers(group):
    status = await group.status()
    return status.added, status.done, status.gone, status.waiting


@pytest.mark.parametrize("way", ["purge", "cancel", "drop"])
async def test_members_that_leave_with_their_segments_are_gone(way):
    async with tiny_queue(InMemoryStorage()) as queue:
        async with queue.group(then=Enqueue("sum")) as group:
            await group.enqueue_many(Enqueue("work", b"%d" % number) for number in range(40))
        [running] = await queue.dequeue("work")
        if way == "purge":
            assert 39 == await queue.purge(status=JobStatus.QUEUED, entrypoint="work")
        elif way == "cancel":
            await group.cancel()
        else:
            segments = (await queue.read_state(hot=True)).segments
            await queue.apply(*(DropRows(name, ((0, each.rows),)) for name, each in segments.items()))
            await queue.purge(status=JobStatus.QUEUED, entrypoint="work")
        assert (40, 0, 39, 1) == await numbers(group)
        await queue.ack(running)
        assert (0 if way == "cancel" else 1) == len(await queue.dequeue("sum"))
        assert (await group.wait()).ended


async def test_the_job_that_follows_fits_into_a_full_queue():
    async with DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=20_000, hot_bytes=None)) as queue:
        async with queue.group(then=Enqueue("sum", b"x" * 3000, delay=0, keep_result=60)) as group:
            await group.enqueue("work")
        with pytest.raises(QueueFullError):
            for _ in range(100):
                await queue.enqueue("other", b"x" * 500)
        [job] = await queue.dequeue("work")
        await queue.ack(job)
        [summary] = await queue.dequeue("sum")
        assert (b"x" * 3000, 60.0) == (summary.payload, summary.keep_result)
        with pytest.raises(QueueFullError, match="group"):
            async with queue.group(then=Enqueue("sum", b"x" * 9000)):
                pass


async def test_groups_are_bounded_and_ended_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr("jqueue.domain.operations.groups.GROUPS_KEPT", 3)
    monkeypatch.setattr("jqueue.domain.operations.groups.ENDED_KEPT", 2)
    async with DirectQueue(InMemoryStorage()) as queue:
        for number in range(6):
            async with queue.group(f"{number}"):
                pass
        assert len((await queue.read_state()).groups) == 3
        await queue.apply(*(OpenGroup(f"open {number}") for number in range(3)))
        with pytest.raises(QueueFullError, match="3 groups have not ended"):
            await queue.apply(OpenGroup("one more"))
        await queue.apply(CloseGroup("open 0"), OpenGroup("open 1"))
        await queue.apply(OpenGroup("one more"))
        with pytest.raises(GroupEndedError, match="never opened, or ended long ago"):
            await queue.apply(CancelGroup("0"))
    assert groups.GROUPS_KEPT == 1000


async def test_a_queue_without_groups_does_not_name_them_and_one_with_them_does():
    async with DirectQueue(InMemoryStorage()) as queue:
        await queue.enqueue("work")
        assert "groups" not in (await queue.read_state()).critical
        await queue.apply(OpenGroup("a"))
        assert "groups" in (await queue.read_state()).critical


@pytest.mark.parametrize("options", [{"job_id": "a"}, {"unique_key": "a"}, {"group": "a"}, {"after": ("a",)}])
async def test_nothing_may_keep_the_job_that_follows_from_being_enqueued(options):
    async with DirectQueue(InMemoryStorage()) as queue:
        with pytest.raises(InvalidJobError, match=f"then takes no {next(iter(options))}"):
            await queue.group(then=Enqueue("sum", **options)).__aenter__()
        with pytest.raises(InvalidJobError, match="got str"):
            await queue.group(on_end="sum").__aenter__()  # type: ignore[arg-type]


async def test_a_member_does_not_move_to_a_queue_that_does_not_know_its_group():
    source, target = DirectQueue(InMemoryStorage()), DirectQueue(InMemoryStorage())
    async with source, target:
        async with source.group("parts", then=Enqueue("sum")) as group:
            await group.enqueue("work", job_id="member")
        [[reason, ids]] = (await migrate(source, target)).refused.items()
        assert "Group 'parts' is not known to the queue" in reason
        assert ["member"] == ids
        assert (1, 0, 0, 1) == await numbers(group)
        assert await source.find("member") is not None


@pytest.mark.parametrize(("on_dead", "gone", "dead"), [("cancel", 1, 1), ("run", 0, 1), (None, 0, 1)])
async def test_members_that_wait_for_members_are_counted_wherever_their_parents_take_them(on_dead, gone, dead):
    async with DirectQueue(InMemoryStorage()) as queue:
        async with queue.group(then=Enqueue("sum"), on_end=Enqueue("after")) as group:
            parent = await group.enqueue("parent")
            await group.enqueue("child", after=[parent], on_dead=on_dead)
        [job] = await queue.dequeue()
        await queue.nack(job, dead=True)
        status = await group.status()
        assert (status.gone, status.dead, status.waiting) == (gone, dead, 0 if on_dead == "cancel" else 1)
        assert status.ended == (on_dead == "cancel")
        await group.redrive()
        while jobs := await queue.dequeue(["parent", "child"]):
            await queue.ack_many(jobs)
        assert ["sum", "after"] == sorted([each.entrypoint for each in await queue.dequeue(batch_size=9)], reverse=True)
