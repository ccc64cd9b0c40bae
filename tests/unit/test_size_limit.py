"""Results, errors and rules stay within the size limit of the queue's object, and whoever gives them is told."""

import asyncio
import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits
from jqueue.domain import header
from jqueue.domain.errors import JobFailedError, QueueFullError, ResultNotKeptError
from jqueue.domain.header import Table
from jqueue.domain.limits import ENTRYPOINTS_KEPT
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.rules import Pause, Resume
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments, spilled, tiny_queue
from tests.virtual_world import in_virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


async def size_of(storage):
    data, _ = await storage.read()
    return len(data)


@both
async def test_results_of_60_kb_stay_within_the_limit_and_acks_say_which_were_dropped(kind):
    storage = InMemoryStorage()
    async with kind(storage) as queue:
        await queue.configure(blob_bytes=1_000_000)
        await queue.enqueue_many([Enqueue("t", b"", job_id=f"{n}", keep_result=3600) for n in range(40)])
        jobs = await queue.dequeue(batch_size=40)
        dropped = [await queue.apply(Ack(job, "x" * 60_000)) for job in jobs[:20]]
        dropped += [[result] for result in await queue.apply_each(*[Ack(job, "x" * 60_000) for job in jobs[20:]])]
        assert await size_of(storage) <= 1_000_000
        kept = [job for job, [lost] in zip(jobs, dropped, strict=True) if lost is None]
        assert 13 <= len(kept) <= 16
        assert "x" * 60_000 == await queue.result(kept[0])
        with pytest.raises(
            ResultNotKeptError, match=r"its result of 60,002 bytes was not kept: the queue had no room"
        ) as found:
            await queue.result(jobs[-1], timeout=0)
        assert 60_002 == found.value.dropped
        assert [60_002] == await queue.apply(Ack(jobs[-1], "x" * 60_000)), "an ack that is repeated says the same"
        stats = await queue.stats()
        assert (40, 40 - len(kept)) == (stats.completed, stats.results_dropped)
        assert f"{40 - len(kept)} results were dropped because the queue had no room" in stats.warnings[-1]


@both
async def test_long_errors_stay_within_the_limit_shortened_first_and_then_dropped(kind):
    storage = InMemoryStorage()
    async with kind(storage, limits=Limits(blob_bytes=100_000)) as queue:
        await queue.enqueue_many([Enqueue("t", b"x" * 160, job_id=f"{n}") for n in range(180)])
        jobs = await queue.dequeue(batch_size=180)
        for start in range(0, 180, 30):
            nacks = [Nack(job, error=f"{start} " + "é" * 2000, dead=True) for job in jobs[start : start + 30]]
            assert not [result for result in await queue.apply_each(*nacks) if isinstance(result, Exception)]
        assert await size_of(storage) <= 100_000
        state = {job.id: job for job in (await queue.read_state()).dead_jobs()}
        sizes = [len((state[job.id].error or "").encode()) for job in jobs]
        whole, short, gone = (
            [size for size in sizes if low <= size <= high] for low, high in ((2000, 2048), (100, 120), (0, 0))
        )
        assert (180, True, True, True) == (len(whole) + len(short) + len(gone), bool(whole), bool(short), bool(gone))
        last = state[jobs[-1].id]
        assert (None, True) == (last.error, last.error_dropped > 2000)
        with pytest.raises(JobFailedError, match=r"is dead .*bytes of its error were not kept"):
            await queue.result(last)
        assert len(short) + len(gone) == (await queue.stats()).errors_dropped


async def test_a_full_queue_drops_the_traceback_of_an_error_before_the_error():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=4000))
    await queue.enqueue("t", b"x" * 1500)
    for frames, kept in (("mail.py:17 in send\n" * 10, True), ("mail.py:17 in send\n" * 50, False)):
        [job] = await queue.dequeue()
        await queue.apply(Nack(job, error="no such address " * 40, traceback=frames))
        [job] = (await queue.read_state()).jobs
        assert ("no such address " * 40, 0) == (job.error, job.error_dropped)
        assert job.traceback == (frames if kept else None)


async def test_a_result_no_larger_than_the_payload_that_it_replaces_always_fits():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=100_000))
    await queue.enqueue_many([Enqueue("t", b"x" * 8000, keep_result=60)] * 8)
    await queue.configure(blob_bytes=1)
    jobs = await queue.dequeue(batch_size=8)
    assert [None] * 8 == await queue.apply_each(*[Ack(job, "y" * 10_000) for job in jobs])


async def test_a_thousand_entrypoints_have_limits_and_one_more_is_refused():
    queue = DirectQueue(InMemoryStorage())
    await queue.apply(*[Pause(f"{n}") for n in range(ENTRYPOINTS_KEPT)])
    for call in (queue.pause("one more"), queue.limit("one more", running=1)):
        with pytest.raises(QueueFullError, match="1000 entrypoints have limits or pauses"):
            await call
    await queue.limit("7", running=1)
    await queue.apply(Resume("8"), Pause("one more"))


# Tables of the header


@in_virtual_time
async def test_ids_of_ended_jobs_take_a_32nd_of_the_limit_and_the_oldest_leave():
    queue: Any = tiny_queue(InMemoryStorage(), Limits(blob_bytes=600_000), most_rows=500)
    await queue.enqueue("single", b"", job_id="acked")
    [single] = await queue.dequeue("single")
    await queue.ack(single)
    for number in range(3):
        ids = [f"range {number} {each}" for each in range(400)]
        await queue.enqueue_many([Enqueue("t", job_id=job_id) for job_id in ids])
        await spilled(queue)
        await queue.end_lease(await queue.claim_lease("t", 400))
        finished = (await queue.read_state()).finished
        assert ids == [job_id for job_id in finished if job_id in ids]
        assert number == 2 or "acked" in finished
    await queue.pause("t")
    finished = (await queue.read_state()).finished
    assert "acked" not in finished
    assert 10_000 < len(json.dumps(dict(finished), separators=(",", ":"))) <= 18_750


@pytest.mark.parametrize("kind", ["hot", "spilled", "bulk"])
@in_virtual_time
async def test_keys_kept_after_their_jobs_have_a_limit_of_their_own(kind):
    """It counts those that waiting jobs will leave, wherever the jobs are. No ack is refused."""
    storage = InMemoryStorage(clock=VirtualClock())
    queue: Any = in_segments(
        DirectQueue(storage, clock=VirtualClock(), limits=Limits(blob_bytes=200_000)),
        hot_bytes=10**9 if kind == "hot" else 0,
        bulk_jobs=0 if kind == "bulk" else 10**9,
    )
    added = 0
    with pytest.raises(QueueFullError, match="kept keys take 0 of the 22500 bytes that they may use"):
        for number in range(0, 1000, 20):
            numbers = range(number, number + 20)
            await queue.enqueue_many([Enqueue("t", unique_key=f"key {each}", unique_for=600) for each in numbers])
            added += 20
            if kind == "spilled":
                await spilled(queue)
    assert 300 == added
    await queue.enqueue("u", b"", unique_key="not kept")
    while jobs := await queue.dequeue("t", batch_size=20):
        assert [] == await queue.ack_many(jobs)
    stats = await queue.stats()
    assert added == stats.kept_keys
    assert 18_000 < stats.kept_key_bytes <= 22_500
    assert f"{added} unique keys of done jobs, kept by unique_for, take" in stats.warnings[-1]
    with pytest.raises(QueueFullError, match=f"{added} kept keys take {stats.kept_key_bytes} of the 22500 bytes"):
        await queue.enqueue_many([Enqueue("t", unique_key=f"more {each}", unique_for=600) for each in range(60)])
    await asyncio.sleep(601)
    await queue.pause("t")
    await queue.enqueue_many([Enqueue("t", unique_key=f"more {each}", unique_for=600) for each in range(60)])
    stats = await queue.stats()
    assert (0, 0) == (stats.kept_keys, stats.kept_key_bytes)


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 3))))
def test_the_text_of_a_large_table_is_that_of_its_entries(changes):
    with patch.object(header, "FRESH_KEPT", 3):
        table = Table({"a": 1, "z": 2})
        for key, value in changes:
            if value:
                table[key] = value
            elif key in table:
                assert table[key] == table.pop(key)
            assert json.dumps(dict(table), separators=(",", ":")).encode() == b"".join(table.text())
