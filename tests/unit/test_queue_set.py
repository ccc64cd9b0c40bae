"""A set of queues: whose job is next, whose claim is whose, who comes and goes, and what it costs."""

import asyncio
import os
from datetime import timedelta
from typing import Any

import pytest

from jqueue import (
    Ack,
    BrokerQueue,
    ClaimLostError,
    DirectQueue,
    Enqueue,
    Heartbeat,
    InMemoryStorage,
    InvalidJobError,
    JobNotFoundError,
    JobQueue,
    JobStatus,
    LocalFileSystemStorage,
    Nack,
    QueueClosedError,
    QueueSet,
    StorageError,
    StoreQueue,
    connect_queue,
)
from jqueue.adapters.formats.vsqs import VsqsFolder
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.virtual_world import in_virtual_time, now


def blob(storage=None, **options):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock(), **options)


def set_of(*queues):
    return QueueSet(*queues, clock=VirtualClock())


async def ids(queue):
    return [job.id for job in (await queue.read_state()).queued_jobs()]


async def all_of(queues, **options):
    """The ids of all jobs, acked one by one as they come."""
    found = []
    while jobs := await queues.dequeue(**options):
        found += [job.id for job in jobs]
        assert [] == await queues.ack_many(jobs)
    return found


async def two(*, between=1.0):
    """Two queues with two jobs each, in turn, so many seconds apart."""
    first, second = blob(), blob()
    for number, queue in enumerate([first, second, first, second]):
        await queue.enqueue("work", b"%d" % number, job_id=f"{number}")
        await asyncio.sleep(between)
    return first, second


class Plain:
    """A queue of somebody's own, which cannot be looked at but as a whole."""

    def __init__(self, queue):
        self._queue = queue
        for name in dir(JobQueue):
            if not name.startswith("_") and name != "capabilities":
                setattr(self, name, getattr(queue, name))

    @property
    def capabilities(self):
        return self._queue.capabilities


class TestOrder:
    @in_virtual_time
    async def test_the_oldest_of_all_is_next(self):
        assert ["0", "1", "2", "3"] == await all_of(set_of(*await two()))

    @in_virtual_time
    async def test_a_batch_is_in_order_over_all(self):
        first, second = await two()
        assert ["0", "1", "2", "3"] == await all_of(set_of(second, first), batch_size=9)

    @in_virtual_time
    async def test_priority_comes_before_age(self):
        first, second = await two()
        await second.enqueue("work", b"", priority=-1, job_id="urgent")
        await first.enqueue("work", b"", priority=1, job_id="any time")
        assert ["urgent", "0", "1", "2", "3", "any time"] == await all_of(set_of(first, second), batch_size=2)

    @in_virtual_time
    async def test_a_scheduled_job_is_as_old_as_its_time(self):
        first, second = await two()
        await first.enqueue("work", b"", delay=0.5, job_id="later")
        await second.enqueue("work", b"", job_id="now")
        await asyncio.sleep(1)
        assert ["0", "1", "2", "3", "now", "later"] == await all_of(set_of(first, second))

    @in_virtual_time
    async def test_among_equals_the_queues_take_turns(self):
        queues = [blob() for _ in range(3)]
        for number, queue in enumerate(queues):
            await queue.enqueue_many([Enqueue("work", b"", job_id=f"{number}{letter}") for letter in "abc"])
        found = await all_of(set_of(*queues))
        assert [{"0", "1", "2"}] * 3 == [{name[0] for name in found[place : place + 3]} for place in (0, 3, 6)]
        assert ["0a", "0b", "0c"] == [name for name in found if name[0] == "0"]

    @in_virtual_time
    async def test_a_job_that_always_fails_keeps_no_other_queue_waiting(self):
        first, second = await two()
        queues = set_of(first, second)
        seen = []
        for _ in range(4):
            [job] = await queues.dequeue()
            seen.append(job.id)
            await asyncio.sleep(0.1)
            await (queues.nack(job) if job.id == "0" else queues.ack(job))
        assert ["0", "1", "2", "3"] == seen

    @in_virtual_time
    async def test_a_job_handed_back_unharmed_keeps_its_place(self):
        first, second = await two()
        queues = set_of(first, second)
        [job] = await queues.dequeue()
        await asyncio.sleep(9)
        await queues.nack(job, charge=False)
        assert ["0", "1", "2", "3"] == await all_of(queues)

    @in_virtual_time
    async def test_only_what_is_handed_out_is_claimed(self):
        first, second = await two()
        before = await second.read_state()
        [job] = await set_of(first, second).dequeue()
        assert "0" == job.id
        assert before == await second.read_state(), "a look has changed a queue"

    @in_virtual_time
    async def test_limits_and_pauses_of_a_queue_hold(self):
        first, second = await two()
        await first.limit("work", running=1)
        await second.enqueue("other", b"", job_id="other")
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=9)
        assert ["0", "1", "3", "other"] == [job.id for job in jobs]
        await first.pause("work")
        await queues.ack_many(jobs)
        assert [] == await queues.dequeue()

    @in_virtual_time
    async def test_only_the_entrypoints_asked_for(self):
        first, second = await two()
        await second.enqueue("mail", b"", job_id="mail")
        assert ["mail"] == await all_of(set_of(first, second), entrypoint="mail")
        assert ["0", "1", "2", "3"] == await all_of(set_of(first, second), entrypoint=("work", "mail"))

    @in_virtual_time
    async def test_sets_may_be_in_sets(self):
        first, second = await two()
        third = blob()
        await third.enqueue("work", b"", job_id="4")
        assert ["0", "1", "2", "3", "4"] == await all_of(set_of(third, set_of(first, second)))

    @in_virtual_time
    async def test_a_queue_that_can_only_be_read_whole_will_do(self):
        first, second = await two()
        queues = set_of(first, Plain(second))
        assert ["0", "1", "2", "3"] == await all_of(queues)
        waiting = asyncio.create_task(queues.dequeue(wait=30))
        await asyncio.sleep(5)
        await second.enqueue("work", b"", job_id="late")
        assert ["late"] == [job.id for job in await waiting]

    @in_virtual_time
    async def test_two_sets_share_the_jobs(self):
        first, second, third = (InMemoryStorage(clock=VirtualClock()) for _ in range(3))
        for storage in (first, second, third):
            await blob(storage).enqueue_many([Enqueue("work", b"")] * 20)
        sets = [set_of(blob(first), blob(second), blob(third)) for _ in range(4)]
        found = await asyncio.gather(*(queues.dequeue(batch_size=15) for queues in sets))
        assert [15] * 4 == [len(jobs) for jobs in found]
        assert 60 == len({job.id for jobs in found for job in jobs})


class TestClaims:
    @in_virtual_time
    async def test_the_same_id_in_two_queues_finds_the_right_one(self):
        queues = [blob(), blob()]
        for queue in queues:
            await queue.enqueue("work", b"", job_id="same")
            await asyncio.sleep(1)
        both = set_of(*queues)
        one, other = await both.dequeue(batch_size=2)
        assert one.claim == other.claim
        assert [] == await both.heartbeat_many([one.claim, other.claim])
        for unclear in ("same", one.claim):
            with pytest.raises(InvalidJobError, match="several queues"):
                await both.ack(unclear)
        [error] = await both.ack_many(["same"])
        assert isinstance(error, InvalidJobError)
        await both.ack(other)
        assert [[JobStatus.IN_PROGRESS], []] == [[job.status for job in (await q.read_state()).jobs] for q in queues]
        await both.ack(other)  # again, as after a lost answer
        await both.ack("same")  # now it is clear which is meant
        assert 0 == await both.count()

    @in_virtual_time
    async def test_a_job_claimed_elsewhere_is_found(self):
        first, second = await two()
        jobs = [*await first.dequeue(batch_size=2), *await second.dequeue(batch_size=2)]
        queues = set_of(first, second)
        await queues.heartbeat(jobs[0])
        await queues.nack(jobs[0], error="no")
        assert [] == await queues.ack_many([job.claim for job in jobs[1:]])
        assert [] == await queues.ack_many(jobs[1:]), "an ack is not repeated from another object"
        assert ["0"] == await all_of(queues)

    @in_virtual_time
    async def test_what_is_lost_is_lost_and_what_is_unknown_unknown(self):
        first, second = await two()
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=4)
        assert 4 == await queues.requeue_stale(0)
        errors = await queues.heartbeat_many(jobs)
        assert {job.id for job in jobs} == {error.job_id for error in errors}
        for job in jobs:
            with pytest.raises(ClaimLostError):
                await queues.ack(job)
        with pytest.raises(JobNotFoundError):
            await queues.ack("no such job")
        with pytest.raises(JobNotFoundError):
            await queues.cancel("no such job")
        with pytest.raises(ClaimLostError):
            await queues.nack(jobs[0].evolve(id="no such job"))

    @in_virtual_time
    async def test_things_in_one_commit_are_of_one_queue(self):
        first, second = await two()
        queues = set_of(first, second)
        one, other = await queues.dequeue(batch_size=2)
        with pytest.raises(InvalidJobError, match="several queues"):
            await queues.apply(Ack(one), Ack(other))
        with pytest.raises(InvalidJobError, match="call it on that queue"):
            await queues.apply(Enqueue("next", b""))
        await queues.apply(Ack(other), Enqueue("next", b"", job_id="next"))
        assert ["3", "next"] == await ids(second)
        results = await queues.apply_each(Nack(one), Enqueue("next", b""), Heartbeat(("none",)), Ack(other))
        assert [None, InvalidJobError, JobNotFoundError, None] == [result and type(result) for result in results]

    @in_virtual_time
    async def test_a_cancelled_dequeue_claims_nothing(self):
        for steps in range(60):
            first, second = await two(between=0)
            queues = set_of(first, second)
            task = asyncio.create_task(queues.dequeue(batch_size=4))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            got = [] if task.cancelled() else task.result()
            await asyncio.sleep(1)
            await queues.aclose()
            held = [job for queue in (first, second) for job in (await queue.read_state()).in_progress_jobs()]
            assert len(got) == len(held), f"after {steps} steps"
            if not got:
                assert ([["0", "2"], ["1", "3"]]) == [await ids(first), await ids(second)]


class TestMembers:
    @in_virtual_time
    async def test_who_waits_hears_of_a_queue_that_comes(self):
        queues = set_of(blob())
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        late = blob()
        await late.enqueue("work", b"", job_id="late")
        before = now()
        await queues.add(late)
        assert ["late"] == [job.id for job in await waiting]
        assert now() - before < 0.1

    @in_virtual_time
    async def test_an_empty_set_waits_for_a_queue(self):
        queues = set_of()
        assert [] == await queues.dequeue()
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        first, _ = await two()
        await queues.add(first)
        assert ["0"] == [job.id for job in await waiting]

    @in_virtual_time
    async def test_who_waits_gets_nothing_from_a_queue_that_has_left(self):
        leaving, staying = blob(), blob()
        queues = set_of(leaving, staying)
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        queues.remove(leaving)
        await leaving.enqueue("work", b"")
        await asyncio.sleep(10)
        assert not waiting.done()
        await staying.enqueue("work", b"", job_id="staying")
        assert ["staying"] == [job.id for job in await waiting]
        assert 1 == (await leaving.stats()).depth

    @in_virtual_time
    async def test_claims_of_a_queue_that_has_left_are_ended_as_before(self):
        first, second = await two()
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=4)
        queues.remove(first)
        await queues.heartbeat(jobs[0])
        assert [] == await queues.ack_many(jobs)
        assert 0 == (await first.stats()).in_progress
        with pytest.raises(InvalidJobError, match="not in the set"):
            queues.remove(first)

    async def test_a_queue_is_there_once_however_it_is_spelled(self, tmp_path):
        path, folder = tmp_path / "queue.json", tmp_path / "folder"
        queue = connect_queue(path, DirectQueue)
        await queue.enqueue("work", b"")
        folder.mkdir()
        os.link(path, tmp_path / "linked.json")
        os.symlink(folder, tmp_path / "symlinked")
        queues = QueueSet(queue, StoreQueue(VsqsFolder(folder)))
        others = [
            queue,
            connect_queue(f"file://{tmp_path}/folder/../queue.json"),
            connect_queue(tmp_path / "linked.json"),
            connect_queue(f"vsqs://{tmp_path}/symlinked"),
        ]
        for other in others:
            with pytest.raises(InvalidJobError, match="already"):
                await queues.add(other)
            with pytest.raises(InvalidJobError, match="already"):
                QueueSet(*queues.queues, other)
        with pytest.raises(InvalidJobError, match="already"):
            storage = InMemoryStorage()
            QueueSet(DirectQueue(storage), DirectQueue(storage))
        no_queues: list[Any] = [path, LocalFileSystemStorage(path)]
        for no_queue in no_queues:
            with pytest.raises(InvalidJobError, match="made of queues"):
                QueueSet(no_queue)
        assert 2 == len(queues.queues)

    @in_virtual_time
    async def test_it_opens_what_is_closed_and_closes_what_it_opened(self):
        storages = [InMemoryStorage(clock=VirtualClock()) for _ in range(3)]
        ours, theirs, late = (BrokerQueue(storage, clock=VirtualClock()) for storage in storages)
        async with theirs:
            with pytest.raises(QueueClosedError):
                await set_of(ours, theirs).dequeue()
            async with set_of(ours, theirs) as queues:
                await queues.add(late)
                for queue in (ours, theirs, late):
                    await queue.enqueue("work", b"")
                queues.remove(late)
                assert 2 == len(await queues.dequeue(batch_size=9))
                await late.enqueue("work", b"")
            for queue in (ours, late):
                with pytest.raises(QueueClosedError):
                    await queue.enqueue("work", b"")
            await theirs.enqueue("work", b"")

    @in_virtual_time
    async def test_what_concerns_a_whole_queue_is_said_to_it(self):
        queues = set_of(*await two())
        calls = [
            lambda: queues.enqueue("work", b""),
            lambda: queues.enqueue_many([]),
            lambda: queues.pause("work"),
            lambda: queues.limit("work", running=1),
            lambda: queues.schedule("night", "0 3 * * *", "work"),
            lambda: queues.configure(aging=1),
        ]
        for call in calls:
            with pytest.raises(InvalidJobError, match="call it on that queue"):
                await call()

    async def test_it_can_do_what_all_of_its_queues_can(self, tmp_path):
        folder = StoreQueue(VsqsFolder(tmp_path / "folder"))
        capabilities = QueueSet(blob(), folder).capabilities
        assert capabilities.heartbeat
        assert capabilities.delay
        assert not capabilities.transactions
        assert not capabilities.schedules
        assert QueueSet(blob()).capabilities.transactions
        await folder.enqueue("work", b"")
        with pytest.raises(InvalidJobError, match="transactions"):
            queues = QueueSet(blob(), folder)
            await queues.apply(Ack((await queues.dequeue())[0]))


class TestLooking:
    @in_virtual_time
    async def test_figures_are_added_up(self):
        first, second = await two()
        await second.enqueue("mail", b"", delay=60)
        await first.dequeue()
        queues = set_of(first, second)
        stats = await queues.stats()
        assert (3, 1, 1, 5) == (stats.depth, stats.scheduled, stats.in_progress, await queues.count())
        assert stats.entrypoints is not None
        assert {"mail": 0, "work": 3} == {name: figures.depth for name, figures in stats.entrypoints.items()}
        assert timedelta(seconds=3) == stats.oldest_ready_age
        assert 5 == len((await queues.read_state()).jobs)

    @in_virtual_time
    async def test_all_jobs_are_gone_through_in_order_with_their_queues(self):
        first, second = await two()
        await first.dequeue()
        await second.enqueue("work", b"", priority=-1, job_id="urgent")
        found = [(job.id, queue) async for queue, job in set_of(first, second)]
        assert [("urgent", second), ("0", first), ("1", second), ("2", first), ("3", second)] == found


class TestTrouble:
    @in_virtual_time
    async def test_a_store_that_fails_leaves_the_others_at_work(self):
        healthy, _ = await two()
        ill = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill, deadline=1), healthy)
        ill.on_read(*[Fault.LOST_REQUEST] * 1000)
        assert ["0"] == [job.id for job in await queues.dequeue()]
        assert now() < 10
        await queues.dequeue()
        with pytest.raises(StorageError):
            await queues.dequeue(deadline=1)

    @in_virtual_time
    async def test_a_store_that_hangs_keeps_the_others_waiting_for_two_seconds(self):
        healthy, _ = await two()
        ill = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill), healthy)
        ill.on_read(*[Fault.HANGS] * 1000)
        before = now()
        assert ["0"] == [job.id for job in await queues.dequeue()]
        assert 2 == round(now() - before, 3)

    @in_virtual_time
    async def test_while_a_store_hangs_the_others_are_waited_for(self):
        healthy, ill = blob(), FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill), healthy)
        ill.on_read(*[Fault.HANGS] * 1000)
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(20)
        await healthy.enqueue("work", b"", job_id="here")
        before = now()
        assert ["here"] == [job.id for job in await waiting]
        assert now() - before < 5

    @in_virtual_time
    async def test_wrong_arguments_are_refused_at_once(self):
        queues = set_of(*await two())
        for wrong in ({"batch_size": -1}, {"entrypoint": 7}, {"claim_timeout": -1}, {"wait": -1}, {"deadline": "x"}):
            with pytest.raises(InvalidJobError):
                await queues.dequeue(**wrong)


class TestCost:
    @in_virtual_time
    async def test_an_idle_set_asks_no_more_of_a_store_than_its_queue_would(self):
        async def asked(make):
            storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
            await storage.write(b'{"format": 2, "version": 1, "queue": "q", "jobs": {}}')
            storage.writes = 0
            assert [] == await make(blob(storage)).dequeue(wait=30)
            return storage.reads, storage.writes

        alone = await asked(lambda queue: queue)
        assert alone[0] > 30
        assert alone == await asked(set_of)
        assert alone == await asked(lambda queue: set_of(blob(), queue, blob()))

    @in_virtual_time
    async def test_a_claim_is_a_look_at_each_and_a_write_to_one(self):
        storages = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(3)]
        members = [blob(storage) for storage in storages]
        for member in members:
            await member.enqueue("work", b"")
        for storage in storages:
            storage.reads = storage.writes = 0
        await set_of(*members).dequeue()
        assert [(1, 1), (1, 0), (1, 0)] == sorted(((s.reads, s.writes) for s in storages), reverse=True)


class TestPeek:
    @in_virtual_time
    async def test_it_shows_what_a_dequeue_would_give_and_changes_nothing(self):
        queue = blob()
        for number in range(6):
            await queue.enqueue("work", b"secret", number % 3, job_id=f"{number}", concurrency_key="one")
        await queue.enqueue("work", b"", 2, job_id="free")
        before = await queue.read_state()
        shown = await queue.peek(batch_size=9)
        assert before == await queue.read_state()
        assert ["0", "free"] == [job.id for job in shown]
        assert [b"", b""] == [job.payload for job in shown]
        assert ["0", "free"] == [job.id for job in await queue.dequeue(batch_size=9)]
        assert [] == await queue.peek()

    @in_virtual_time
    async def test_it_sees_what_others_have_done(self):
        storage = InMemoryStorage(clock=VirtualClock())
        queue, other = blob(storage), blob(storage)
        await queue.enqueue("work", b"", job_id="a")
        await other.enqueue("work", b"", priority=-1, job_id="b")
        assert ["b"] == [job.id for job in await queue.peek()]
        await other.dequeue(batch_size=2)
        assert [] == await queue.peek()

    async def test_it_sees_what_others_have_put_into_a_folder(self, tmp_path):
        queue = StoreQueue(VsqsFolder(tmp_path / "folder"))
        other = StoreQueue(VsqsFolder(tmp_path / "folder"))
        job = await other.enqueue("work", b"payload")
        assert [job.id] == [job.id for job in await queue.peek()]
        waiting = asyncio.create_task(queue.until_ready("mail", wait=30))
        await other.enqueue("mail", b"")
        assert await waiting
        await other.dequeue("work")
        assert [] == await queue.peek("work")
        assert not await queue.until_ready("work", wait=0.05)

    @in_virtual_time
    async def test_it_finds_a_job_by_its_id(self):
        queue = blob()
        await queue.enqueue("work", b"payload", job_id="here")
        found = await queue.find("here")
        assert found is not None
        assert (JobStatus.QUEUED, b"") == (found.status, found.payload)
        assert await queue.find("nowhere") is None
        [job] = await queue.dequeue()
        await queue.ack(job)
        finished = await queue.find("here")
        assert finished is not None
        assert (JobStatus.COMPLETED, 1) == (finished.status, finished.attempt)

    @in_virtual_time
    async def test_a_wait_ends_with_a_cron_entry_that_is_due(self):
        queue = blob()
        await queue.schedule("often", "* * * * *", "work")
        assert [] == await queue.peek()
        assert await queue.until_ready(wait=90)
        assert now() <= 60.1


async def test_a_worker_works_on_a_file_and_a_folder_at_once(tmp_path):
    file, folder = connect_queue(tmp_path / "queue.json"), connect_queue(f"vsqs://{tmp_path}/folder")
    async with file, folder:
        for number in range(5):
            await file.enqueue("work", b"file %d" % number)
            await folder.enqueue("work", b"folder %d" % number)
    worker, done = Worker(concurrency=3), list[bytes]()

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"file 3" and payload not in done:
            done.append(payload)
            raise RuntimeError("once more")
        done.append(payload)

    queues = QueueSet(file, folder)
    report = await worker.run(queues, drain=True, signals=False)
    assert (9, 1) == (report.succeeded, report.failed)
    assert 10 == len(set(done))
    async with queues:
        assert 1 == await queues.count(), "one job is to be tried again"
