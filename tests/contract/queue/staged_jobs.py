"""Staged jobs, encoded elsewhere: added in one commit, all or none, and once for each transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, QueueFullError
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Ack, EnqueueStaged, LastTransaction, StagedJobs, StagedReceipt
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids

NEEDS = ("staged", "transactions")


def staged(*named: str, entrypoint: str = "work", **details: Any) -> StagedJobs:
    """Return the jobs staged by one task, as the commit reads them."""
    writer = StagedWriter()
    for name in named:
        writer.add(name, entrypoint, b"payload of " + name.encode(), **details)
    return read_staged(writer.finish())


class StagedContract(QueueContractBase):
    """A caller that stages jobs and repeats failed calls adds each job once."""

    async def add(self, queue: JobQueue, *blocks: StagedJobs, **options: Any) -> StagedReceipt:
        """Add staged jobs, alone in their call, and return the receipt."""
        [receipt] = await queue.apply(EnqueueStaged(blocks, **options))
        assert isinstance(receipt, StagedReceipt)
        return receipt

    async def last(self, queue: JobQueue, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None if there is none."""
        [version] = await queue.apply(LastTransaction(app_id))
        assert version is None or isinstance(version, int)
        return version

    async def test_staged_jobs_are_added_in_one_commit_behind_all_others(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            first = await queue.enqueue("work", b"first")
            before = (await queue.read_state()).version
            receipt = await self.add(queue, staged("a", "b"), staged("c"), transaction=("app", 1))
            assert receipt == StagedReceipt(added=3)
            state = await other.read_state()
            assert state.version == before + 1
            assert state.transactions["app"].version == 1
            last = await other.enqueue("work", b"last")
            claimed = await other.dequeue("work", batch_size=9)
            assert ids(claimed) == [first.id, "a", "b", "c", last.id]
            assert claimed[1].payload == b"payload of a"

    async def test_staged_jobs_are_claimed_and_ended_by_whoever_added_them(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await self.add(queue, staged("a", "b"))
            [a, b] = await queue.dequeue(batch_size=9)
            await queue.ack(a)
            await self.add(queue, staged("c"))
            await queue.ack(b.id)
            assert ids((await queue.read_state()).jobs) == ["c"]

    async def test_staged_jobs_are_what_an_enqueue_makes(self, make_queue: QueueFactory) -> None:
        needs = (*NEEDS, "priority", "delay", "headers", "dead_letters")
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            details: dict[str, Any] = {"headers": {"a": "\x00\n\u00e9"}, "max_attempts": 3, "delay": 3600}
            made = await queue.enqueue("other", b"payload of a", -5, **details)
            await self.add(queue, staged("a", entrypoint="other", priority=-5, **details))
            found = await self.held(other, "a")
            same = ("entrypoint", "payload", "priority", "headers", "max_attempts", "status", "attempt", "failures")
            assert [getattr(found, name) for name in same] == [getattr(made, name) for name in same]
            assert found.run_at is not None
            assert made.run_at is not None
            assert found.run_at - found.created_at == made.run_at - made.created_at
            assert await other.dequeue("other", batch_size=9) == []

    async def test_a_transaction_is_added_once_whoever_repeats_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            assert await self.last(queue, "app") is None
            await self.add(queue, staged("a"), transaction=("app", 5))
            before = await self.fingerprint(queue)
            for repeating in (queue, other):
                for version in (5, 4, 0):
                    receipt = await self.add(repeating, staged("again"), transaction=("app", version))
                    assert receipt == StagedReceipt(repeated=True, version=5)
                assert await self.last(repeating, "app") == 5
            assert before == await self.fingerprint(other)
            assert await self.add(other, staged("b"), transaction=("app", 6)) == StagedReceipt(added=1, version=5)
            assert await self.add(queue, staged("c"), transaction=("other", 1)) == StagedReceipt(added=1)
            assert ids(await queue.dequeue(batch_size=9)) == ["a", "b", "c"]

    async def test_of_many_who_add_the_same_transaction_at_once_one_does(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 4, NEEDS) as queues:
            calls = [
                self.add(queue, staged(f"{n}-a", f"{n}-b"), transaction=("app", 1)) for n, queue in enumerate(queues)
            ]
            receipts = await asyncio.gather(*calls)
            assert sorted(receipt.added for receipt in receipts) == [0, 0, 0, 2]
            assert sorted(receipt.repeated for receipt in receipts) == [False, True, True, True]
            [winner] = {job.id.split("-")[0] for job in (await queues[0].read_state()).jobs}
            assert receipts[int(winner)].added == 2

    async def test_writers_that_stage_at_once_lose_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, NEEDS) as queues:
            calls = [
                self.add(queue, staged(f"{n}-{version}"), transaction=(f"app {n}", version))
                for n, queue in enumerate(queues)
                for version in range(4)
            ]
            plain = [queue.enqueue("work", b"") for queue in queues]
            await asyncio.gather(*calls, *plain)
            state = await queues[0].read_state()
            named = {job.id for job in state.jobs if "-" in job.id and len(job.id) < 8}
            assert len({job.sequence for job in state.jobs}) == len(state.jobs)
            assert {f"{n}-3" for n in range(3)} <= named
            assert {app: record.version for app, record in state.transactions.items()} == {
                f"app {n}": 3 for n in range(3)
            }

    async def test_a_key_that_is_taken_leaves_its_job_out_or_undoes_all(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "unique_keys")) as [queue]:
            await queue.enqueue("work", b"holder", unique_key="taken")
            before = await self.fingerprint(queue)
            blocks = [staged("a"), staged("b", unique_key="taken"), staged("c", unique_key="free")]
            with pytest.raises(DuplicateJobError):
                await self.add(queue, *blocks, transaction=("app", 1), on_conflict="raise")
            assert before == await self.fingerprint(queue)
            assert await self.add(queue, *blocks, transaction=("app", 1)) == StagedReceipt(added=2, taken=1)
            payloads = [job.payload for job in await queue.dequeue(batch_size=9)]
            assert payloads == [b"holder", b"payload of a", b"payload of c"]

    async def test_what_has_no_room_is_not_added_in_part(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "size_limit"), limits=Limits(blob_bytes=4000)) as [queue]:
            await queue.enqueue("work", b"there")
            before = await self.fingerprint(queue)
            many = [staged(*(f"{block}-{n}" for n in range(10))) for block in range(4)]
            with pytest.raises(QueueFullError):
                await self.add(queue, *many, transaction=("app", 1))
            assert before == await self.fingerprint(queue)
            assert (await self.add(queue, *many[:1], transaction=("app", 1))).added == 10

    async def test_what_has_no_room_may_make_the_queue_larger_for_every_writer(self, make_queue: QueueFactory) -> None:
        needs, limits = (*NEEDS, "size_limit", "unique_keys"), Limits(blob_bytes=4000)
        async with self.queues(make_queue, 2, needs, limits=limits) as [queue, other]:
            few, many = staged("a"), [staged(*(f"{block}-{n}" for n in range(10))) for block in range(4)]
            keyed = [staged(f"keyed {n}", unique_key=f"key {n}") for n in range(10)]
            await self.add(queue, few, blob_bytes=5000)
            assert (await other.configure()).blob_bytes is None
            before = await self.fingerprint(queue)
            with pytest.raises(QueueFullError, match="of the 4500 bytes"):
                await self.add(queue, *many, blob_bytes=5000)
            assert before == await self.fingerprint(queue)
            assert (await self.add(queue, *many, *keyed, blob_bytes=40_000)).added == 50
            await other.enqueue("work", b"x" * 4000)
            await self.add(queue, staged("b"), blob_bytes=8000)
            assert (await other.configure()).blob_bytes == 40_000

    async def test_an_operation_refused_beside_undoes_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, operator]:
            lost = await self.lost_claim(queue, operator)
            with pytest.raises(Exception, match=lost.id):
                await queue.apply(EnqueueStaged([staged("a")], transaction=("app", 1)), Ack(lost))
            assert ids((await operator.read_state()).jobs) == [lost.id]
            assert await self.last(operator, "app") is None

    async def test_who_waits_for_jobs_gets_staged_ones(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "wait")) as [queue, other]:
            waiting = [asyncio.create_task(each.dequeue("work", wait=self.patience)) for each in (queue, other)]
            await queue.enqueue("nobody's", b"")
            await self.add(queue, staged("a", "b"))
            found = await asyncio.gather(*waiting)
            assert sorted(job.id for [job] in found) == ["a", "b"]

    async def test_wrong_arguments_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            before = await self.fingerprint(queue)
            text: Any = "text"
            mode: Any = "ignore"
            wrong: list[Any] = [
                EnqueueStaged(text),
                EnqueueStaged([staged("a")], transaction=("", 1)),
                EnqueueStaged([staged("a")], transaction=("app", -1)),
                EnqueueStaged([staged("a")], on_conflict=mode),
                LastTransaction(""),
            ]
            for operation in wrong:
                with pytest.raises(InvalidJobError):
                    await queue.apply(operation)
            assert before == await self.fingerprint(queue)
