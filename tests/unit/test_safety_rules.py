"""The nine safety rules of docs/protocol.md, each by the names of what would break it.

Time is virtual, and faults come through the storage port. A test of a rule fails when that rule's code is taken out:
which line that is, docs/protocol.md says beside each rule.
"""

import asyncio
from datetime import timedelta

import pytest

from jqueue import (
    Ack,
    BlobMissingError,
    BrokerQueue,
    ClaimLostError,
    DeadlineExceededError,
    Dequeue,
    DirectQueue,
    Enqueue,
    HeartbeatManager,
    InMemoryStorage,
    InvalidJobError,
    JobNotFoundError,
    JobStatus,
    Limits,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.core import codec
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run


class World:
    """One blob, one clock, any number of processes."""

    def __init__(self):
        self.clock = VirtualClock()
        self.memory = InMemoryStorage(clock=self.clock)
        self.storage = FaultyStorage(self.memory)

    def process(self, storage=None, *, kind=DirectQueue, **options):
        return kind(storage or self.storage, **{"clock": self.clock, **options})

    def honest(self, **options):
        """Another process, whose network is fine."""
        return self.process(self.memory, **options)

    async def jobs(self):
        state = codec.decode((await self.memory.read())[0])
        return {job.id: job for job in state.jobs}


@pytest.fixture(params=[DirectQueue, BrokerQueue], ids=["direct", "broker"])
def kind(request):
    return request.param


# 1. An enqueue that returned is in every later version, until its job is acked, cancelled, expired or purged.


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.LOST_REQUEST])
def test_rule_1_what_enqueue_returned_is_in_the_blob(kind, fault):
    async def main():
        world = World()
        world.storage.on_write(fault)
        async with world.process(kind=kind) as queue:
            job = await queue.enqueue("t", b"x")
            assert {job.id} == (await world.jobs()).keys()
            assert job == (await world.jobs())[job.id]

    run(main())


def test_rule_1_two_first_writers_lose_nothing(kind):
    async def main():
        world = World()
        world.storage.latency = 0.01
        queues = [world.process(kind=kind) for _ in range(5)]
        async with asyncio.TaskGroup() as group:
            for queue in queues:
                if kind is BrokerQueue:
                    await queue.start()
                group.create_task(queue.enqueue("t", b"x"))
        assert 5 == len(await world.jobs())
        for queue in queues:
            if kind is BrokerQueue:
                await queue.stop()

    run(main())


def test_rule_1_a_reused_cache_never_writes_over_another_writers_job(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"mine")
            await world.honest().enqueue("t", b"theirs")
            await queue.enqueue("t", b"mine again")
            assert 3 == len(await world.jobs())

    run(main())


# 2. An operation takes effect in at most one version; the result returned is that of the try that landed.


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.HANGS, Fault.HANGS_AFTER])
@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "ack", "nack"])
def test_rule_2_a_lost_answer_never_makes_it_happen_twice(kind, verb, fault):
    async def main():
        world = World()
        async with world.process(kind=kind, call_timeout=2) as queue:
            await queue.enqueue("t", b"1", job_id="a")
            await queue.enqueue("t", b"2", job_id="b")
            [job] = await queue.dequeue("t") if verb in ("ack", "nack") else [None]
            world.storage.on_write(fault)
            if verb == "enqueue":
                assert (await queue.enqueue("t", b"3")).id in await world.jobs()
                assert 3 == len(await world.jobs())
            elif verb == "dequeue":
                [claimed] = await queue.dequeue("t")
                assert [claimed] == [job for job in (await world.jobs()).values() if job.status == "in_progress"]
                assert 1 == claimed.attempt
            elif verb == "ack":
                await queue.ack(job)
                assert ["b"] == list(await world.jobs())
            else:
                await queue.nack(job)
                assert 1 == (await world.jobs())["a"].failures

    run(main())


def test_rule_2_the_landing_try_is_recognised_after_many_other_commits(kind):
    """The last writer's id alone, or a short ring, would have forgotten it."""

    async def main():
        world = World()
        world.storage.on_write(Fault.LANDS_LATER)
        world.storage.delay = 0.0
        world.storage.on_read(*[Fault.LOST_REQUEST] * 6)
        async with world.process(kind=kind) as queue:
            call = asyncio.create_task(queue.enqueue("t", b"mine"))
            await asyncio.sleep(0.001)
            for _ in range(100):
                await world.honest().enqueue("other", b"theirs")
            job = await call
            assert [job.id] == [each.id for each in (await world.jobs()).values() if each.entrypoint == "t"]

    run(main())


def test_rule_2_if_the_record_was_evicted_the_outcome_is_unknown_and_nothing_is_done_twice(kind, monkeypatch):
    monkeypatch.setattr("jqueue.domain.commits.WRITERS_KEPT", 2)

    async def main():
        world = World()
        await world.honest().enqueue("other", b"")
        world.storage.on_write(Fault.LOST_ANSWER)
        world.storage.on_read(Fault.NONE, *[Fault.LOST_REQUEST] * 4)
        async with world.process(kind=kind) as queue:
            call = asyncio.create_task(queue.enqueue("t", b"mine"))
            await asyncio.sleep(0.001)
            for _ in range(5):
                await world.honest().enqueue("other", b"theirs")
            with pytest.raises(UnknownOutcomeError) as caught:
                await call
            assert 1 == sum(job.entrypoint == "t" for job in (await world.jobs()).values())
            assert 1 == len(caught.value.job_ids)
            with pytest.raises(UnknownOutcomeError):
                await caught.value.resolve(1)

    run(main())


@pytest.mark.parametrize("fault", [Fault.LANDS_LATER, Fault.LOST_REQUEST])
def test_rule_2_an_unknown_outcome_can_be_resolved(kind, fault):
    async def main():
        world = World()
        world.storage.delay = 2.0
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            world.storage.on_write(fault)
            world.storage.on_read(*[Fault.LOST_REQUEST] * 100)
            with pytest.raises(UnknownOutcomeError) as caught:
                await queue.enqueue("t", b"", job_id="mine", deadline=1)
            world.storage._read_faults.clear()
            await asyncio.sleep(2 if fault is Fault.LANDS_LATER else 0)
            if fault is Fault.LANDS_LATER:
                assert "mine" == (await caught.value.resolve()).id
                assert "mine" in await world.jobs()
            else:
                with pytest.raises(DeadlineExceededError):
                    await caught.value.resolve()
                await asyncio.sleep(1000)
                assert "mine" not in await world.jobs()

    run(main())


def test_rule_2_what_was_never_sent_says_not_done(kind):
    async def main():
        world = World()
        world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
        async with world.process(kind=kind, deadline=5) as queue:
            with pytest.raises(DeadlineExceededError):
                await queue.enqueue("t", b"")
        await asyncio.sleep(100)
        assert (b"", None) == await world.memory.read()

    run(main())


def test_rule_2_a_restored_backup_makes_calls_in_flight_unknown(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            backup, _ = await world.memory.read()
            await queue.enqueue("t", b"", job_id="b")
            world.storage.on_write(Fault.LOST_ANSWER)
            world.storage.on_read(Fault.LOST_REQUEST, Fault.LOST_REQUEST)
            call = asyncio.create_task(queue.enqueue("t", b"", job_id="c"))
            await asyncio.sleep(0.001)
            await world.memory.write(backup, (await world.memory.read())[1])
            with pytest.raises(UnknownOutcomeError):
                await call
            await queue.enqueue("t", b"", job_id="d")
            assert {"a", "d"} == (await world.jobs()).keys()

    run(main())


# 3. An answer that no commit carries comes from a read begun after the call.


def test_rule_3_an_empty_dequeue_has_looked(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            assert [] == await queue.dequeue("t")
            await world.honest().enqueue("t", b"")
            assert 1 == len(await queue.dequeue("t"))

    run(main())


def test_rule_3_not_found_and_claim_lost_have_looked(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            job = await queue.enqueue("t", b"")
            with pytest.raises(JobNotFoundError):
                await queue.cancel("later")
            await world.honest().enqueue("t", b"", job_id="later")
            assert "later" == (await queue.cancel("later")).id
            [claimed] = await world.honest().dequeue("t")
            await queue.ack(claimed)  # the cache says: queued; the store says: claimed
            assert job.id == claimed.id

    run(main())


def test_rule_3_already_there_has_looked(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            await world.honest().cancel("a")
            await queue.enqueue("t", b"", job_id="a")
            assert ["a"] == list(await world.jobs())

    run(main())


# 4. Ids are unique; a job has at most one current claim; attempts only grow.


def test_rule_4_two_consumers_never_hold_the_same_claim(kind):
    async def main():
        world = World()
        world.storage.latency = 0.01
        await world.honest().enqueue_many([Enqueue("t", b"") for _ in range(10)])
        queues = [world.process(kind=kind) for _ in range(4)]
        for queue in queues:
            if kind is BrokerQueue:
                await queue.start()
        claimed = await asyncio.gather(*(queue.dequeue("t") for queue in queues for _ in range(3)))
        ids = [job.id for jobs in claimed for job in jobs]
        assert 10 == len(ids) == len(set(ids))
        for queue in queues:
            await (queue.stop() if kind is BrokerQueue else queue.aclose())

    run(main())


def test_rule_4_attempts_grow_through_nack_and_redrive_and_a_reused_id(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a", max_attempts=3)
            seen = []
            for ending in ({}, {"charge": False}, {}, {"dead": True}):
                [job] = await queue.dequeue("t")
                seen.append(job.attempt)
                await queue.nack(job, **ending)
            await queue.redrive("a")
            [job] = await queue.dequeue("t")
            seen.append(job.attempt)
            await queue.nack(job, dead=True)
            await queue.purge()
            await queue.enqueue("t", b"", job_id="a")
            [job] = await queue.dequeue("t")
            seen.append(job.attempt)
            assert [1, 2, 3, 4, 5, 6] == seen

    run(main())


def test_rule_4_an_id_finished_a_moment_ago_is_not_enqueued_again(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            await queue.ack((await queue.dequeue("t"))[0])
            for other in (queue, world.honest()):
                assert JobStatus.COMPLETED == (await other.enqueue("t", b"", job_id="a")).status
            assert {} == await world.jobs()

    run(main())


def test_rule_4_a_reused_id_starts_above_forgotten_attempts(monkeypatch):
    """However long ago the id was used: a claim from then must never fit again."""
    monkeypatch.setattr("jqueue.domain.commits.FINISHED_KEPT", 4)
    monkeypatch.setattr("jqueue.domain.commits.FINISHED_SLACK", 0)

    async def main():
        world = World()
        queue = world.honest()
        await queue.enqueue("t", b"", job_id="daily")
        [zombie] = await queue.dequeue("t")
        await queue.nack(zombie)
        [job] = await queue.dequeue("t")
        await queue.ack(job)
        for _ in range(10):
            await queue.enqueue("t", b"")
            await queue.ack((await queue.dequeue("t"))[0])
        await queue.enqueue("t", b"", job_id="daily")
        [again] = await queue.dequeue("t")
        assert again.attempt > job.attempt
        for old in (zombie, job):
            with pytest.raises(ClaimLostError):
                await queue.ack(old)

    run(main())


# 5. ack, nack and heartbeat act only with the current claim; repeating an ack soon after succeeds.


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
def test_rule_5_a_zombie_changes_nothing(kind, verb):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            [zombie] = await queue.dequeue("t")
            await queue.requeue_stale(0)
            with pytest.raises(ClaimLostError):
                await getattr(queue, verb)(zombie)
            [owner] = await world.honest().dequeue("t")
            before = await world.memory.read()
            with pytest.raises(ClaimLostError):
                await getattr(queue, verb)(zombie)
            assert before == await world.memory.read()
            await queue.ack(owner)

    run(main())


def test_rule_5_a_bare_id_is_fenced(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            job = await queue.enqueue("t", b"")
            with pytest.raises(ClaimLostError):
                await queue.ack(job.id)  # nobody claimed it
            [lost] = await queue.dequeue("t")
            await queue.requeue_stale(0)
            [newer] = await queue.dequeue("t")
            with pytest.raises(ClaimLostError):
                await queue.ack(job.id)  # which of the two?
            with pytest.raises(ClaimLostError):
                await queue.ack(lost)
            await queue.ack(newer.id)
            with pytest.raises(JobNotFoundError):
                await queue.ack(newer.id)

    run(main())


def test_rule_5_repeating_an_ack_succeeds_and_writes_nothing(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            [job] = await queue.dequeue("t")
            await queue.ack(job)
            before = await world.memory.read()
            await queue.ack(job)
            await world.honest().ack(job)
            assert before == await world.memory.read()

    run(main())


# 6. A live worker's claim is not revoked before its own timeout, whatever other clocks and settings say.


@pytest.mark.parametrize("skew", [timedelta(), timedelta(hours=3), timedelta(hours=-3)])
def test_rule_6_a_beating_worker_keeps_its_claim(kind, skew):
    """A busy neighbour has another clock and a far shorter timeout of its own."""

    async def main():
        world = World()
        neighbour = world.process(world.storage, kind=kind, stale_timeout=1, clock=VirtualClock(skew))
        worker = world.honest(stale_timeout=300)
        await worker.enqueue("t", b"")
        [job] = await worker.dequeue("t")
        if kind is BrokerQueue:
            await neighbour.start()
        async with HeartbeatManager(worker, job):
            for _ in range(100):
                await asyncio.sleep(20)
                assert [] == await neighbour.dequeue("t")
        await worker.ack(job)
        await (neighbour.stop() if kind is BrokerQueue else neighbour.aclose())

    run(main())


def test_rule_6_a_claim_seen_to_move_is_not_judged_by_its_age(kind):
    """The worker's clock is hours behind the store's, and its storage doesn't tell the time."""

    class Bare:
        def __init__(self, storage):
            self.read, self.write = storage.read, storage.write

    async def main():
        world = World()
        async with world.process(kind=kind) as neighbour:
            worker = world.process(Bare(world.memory), clock=VirtualClock(timedelta(hours=-3)))
            await worker.enqueue("other", b"")
            assert [] == await neighbour.dequeue("t")
            await worker.enqueue("t", b"")
            [job] = await worker.dequeue("t")
            async with HeartbeatManager(worker, job):
                for _ in range(30):
                    await asyncio.sleep(20)
                    assert [] == await neighbour.dequeue("t")
            await worker.ack(job)

    run(main())


def test_rule_6_time_in_which_the_store_could_not_be_read_does_not_count(kind):
    """The worker could not beat either."""

    async def main():
        world = World()
        async with world.process(kind=kind, deadline=5) as watcher:
            worker = world.process(stale_timeout=60)
            await worker.enqueue("t", b"")
            [job] = await worker.dequeue("t")
            assert [] == await watcher.dequeue("t")
            await asyncio.sleep(50)
            assert [] == await watcher.dequeue("t")
            world.storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
            for _ in range(10):
                await asyncio.sleep(60)
                with pytest.raises(DeadlineExceededError):
                    await watcher.dequeue("t")
            world.storage._read_faults.clear()
            assert [] == await watcher.dequeue("t")
            await worker.ack(job)

    run(main())


def test_rule_6_a_fresh_process_revokes_nothing_in_its_first_moments(kind):
    async def main():
        world = World()
        worker = world.honest(stale_timeout=300)
        await worker.enqueue("t", b"")
        [job] = await worker.dequeue("t")
        await asyncio.sleep(3600)
        async with world.process(kind=kind) as fresh:
            assert [] == await fresh.dequeue("t")
            await asyncio.sleep(9)
            await worker.heartbeat(job)
            assert [] == await fresh.dequeue("t", wait=200)
            await worker.ack(job)

    run(main())


def test_rule_6_heartbeats_come_before_the_sweep_of_the_same_commit():
    async def main():
        world = World()
        async with world.process(kind=BrokerQueue, stale_timeout=60) as queue:
            await queue.enqueue("t", b"")
            [job] = await queue.dequeue("t")
            assert [] == await queue.dequeue("t")
            await asyncio.sleep(100)
            await world.honest().enqueue("other", b"")  # so that the commit has to look, and finds the claim old
            taken, _ = await asyncio.gather(queue.dequeue("t"), queue.heartbeat(job))
            assert [] == taken
            await queue.ack(job)

    run(main())


def test_a_dead_workers_job_is_claimed_again_within_its_timeout_and_a_poll(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as survivor:
            worker = world.honest(stale_timeout=30)
            await worker.enqueue("t", b"", max_attempts=2)
            await worker.dequeue("t")
            began = world.clock.monotonic()
            [job] = await survivor.dequeue("t", wait=60)
            assert 2 == job.attempt
            assert 29 <= world.clock.monotonic() - began <= 33
            await asyncio.sleep(400)
            assert [] == await survivor.dequeue("t")
            assert [JobStatus.DEAD] == [each.status for each in (await world.jobs()).values()]

    run(main())


# 7. A blob that was there and is gone is an error, never an empty queue.


@pytest.mark.parametrize("verb", ["enqueue", "dequeue", "read_state", "stats"])
def test_rule_7_a_blob_that_is_gone_is_an_error(kind, verb):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            world.storage.storage = InMemoryStorage()
            arguments = ("t", b"") if verb == "enqueue" else ()
            # What was sent before anybody knew is of unknown outcome, and says why.
            expected = UnknownOutcomeError if verb in ("enqueue", "dequeue") else BlobMissingError
            with pytest.raises(expected, match="restore it"):
                await getattr(queue, verb)(*arguments)
            assert (b"", None) == await world.storage.storage.read()

    run(main())


def test_rule_7_another_queue_in_its_place_is_an_error(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            stranger = InMemoryStorage()
            await DirectQueue(stranger).enqueue("t", b"")
            await DirectQueue(stranger).enqueue("t", b"")
            world.storage.storage = stranger
            before = await stranger.read()
            with pytest.raises(StorageError, match="another queue"):
                await queue.enqueue("t", b"")
            assert before == await stranger.read()

    run(main())


# 8. One bad operation, job or payload never fails another's.


def test_rule_8_a_refused_operation_leaves_the_others_of_its_commit_alone():
    async def main():
        world = World()
        async with world.process(kind=BrokerQueue) as queue:
            good = [await queue.enqueue("t", b"") for _ in range(2)]
            results = await asyncio.gather(
                queue.enqueue("t", b"", job_id="new"),
                queue.cancel("nobody"),
                queue.cancel(good[0].id),
                queue.ack(good[1].id),
                queue.dequeue("t"),
                return_exceptions=True,
            )
            assert [JobNotFoundError, ClaimLostError] == [type(results[1]), type(results[3])]
            assert good[0].id == results[2].id
            assert [good[1].id] == [job.id for job in results[4]]
            assert {"new", good[1].id} == (await world.jobs()).keys()

    run(main())


def test_rule_8_what_a_refused_operation_had_begun_is_undone():
    """A replacement that finds no room must not have removed what it was to replace."""

    async def main():
        world = World()
        async with world.process(kind=BrokerQueue, limits=Limits(blob_bytes=20_000)) as queue:
            await queue.enqueue("t", b"", job_id="old", unique_key="key")
            results = await asyncio.gather(
                queue.enqueue("t", b"x" * 15_000, unique_key="key", on_conflict="replace"),
                queue.enqueue("t", b"", job_id="new"),
                return_exceptions=True,
            )
            assert isinstance(results[0], QueueFullError)
            assert {"old", "new"} == (await world.jobs()).keys()

    run(main())


def test_rule_8_what_cannot_be_read_back_is_refused_before_the_commit(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"fine")
            before = await world.memory.read()
            for bad in (
                {"payload": "abcd"},
                {"priority": 10**5000},
                {"entrypoint": "a\ud800"},
                {"headers": {"name": "\ud800"}},
                {"job_id": ""},
                {"unique_key": "\n"},
            ):
                with pytest.raises(InvalidJobError):
                    await queue.enqueue(**{"entrypoint": "t", "payload": b"", **bad})
            assert before == await world.memory.read()

    run(main())


def test_rule_8_a_job_that_cannot_be_read_is_set_aside_and_kept(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="bad")
            await queue.enqueue("t", b"", job_id="good")
            data, etag = await world.memory.read()
            broken = data.replace(b'"bad": {"entrypoint": "t"', b'"bad": {"entrypoint": 7')
            await world.memory.write(broken, etag)
            [job] = await queue.dequeue(batch_size=10)
            await queue.ack(job)
            assert "good" == job.id
            assert 1 == (await queue.stats()).unreadable
            data, etag = await world.memory.read()
            await world.memory.write(data.replace(b'"entrypoint": 7', b'"entrypoint": "t"'), etag)
            assert ["bad"] == [each.id for each in await queue.dequeue(batch_size=10)]

    run(main())


# 9. apply(op, op, …) is all or nothing.


def test_rule_9_one_refused_operation_undoes_its_apply_and_nothing_else():
    async def main():
        world = World()
        async with world.process(kind=BrokerQueue) as queue:
            await queue.enqueue("t", b"", job_id="a")
            [job] = await queue.dequeue("t")
            results = await asyncio.gather(
                queue.apply(Enqueue("t", b"", job_id="half"), Ack(job), Ack("nobody")),
                queue.enqueue("t", b"", job_id="other"),
                return_exceptions=True,
            )
            assert isinstance(results[0], JobNotFoundError)
            assert {"a", "other"} == (await world.jobs()).keys()
            assert JobStatus.IN_PROGRESS == (await world.jobs())["a"].status

    run(main())


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.LOST_REQUEST])
def test_rule_9_apply_lands_whole_under_faults(kind, fault):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            [job] = await queue.dequeue("t")
            world.storage.on_write(fault)
            results = await queue.apply(Ack(job), Enqueue("t", b"", job_id="b"), Dequeue("t"))
            assert [None, "b", ["b"]] == [results[0], results[1].id, [each.id for each in results[2]]]
            assert ["b"] == list(await world.jobs())

    run(main())


# What a caller leaves behind


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("moment", [0.0, 0.005, 0.015, 0.025, 0.5])
def test_a_cancelled_dequeue_leaves_no_job_claimed_by_nobody(kind, fault, moment):
    async def main():
        world = World()
        world.storage.latency = 0.01
        async with world.process(kind=kind, call_timeout=2) as queue:
            await queue.enqueue("t", b"")
            world.storage.on_write(fault)
            call = asyncio.create_task(queue.dequeue("t"))
            await asyncio.sleep(moment)
            call.cancel()
            claimed = (await asyncio.gather(call, return_exceptions=True))[0]
            await asyncio.sleep(20)
            [job] = (await world.jobs()).values()
            if isinstance(claimed, list):
                assert JobStatus.IN_PROGRESS == job.status
            else:
                assert (JobStatus.QUEUED, 0) == (job.status, job.failures)

    run(main())


def test_a_wait_that_ends_while_its_claim_is_on_the_way_gets_the_job(kind):
    async def main():
        taken = 0
        for tenths in range(40):
            world = World()
            async with world.process(kind=kind) as queue:
                await queue.enqueue("other", b"")
                world.storage.latency = 0.5
                waiting = asyncio.create_task(queue.dequeue("t", wait=3))
                await asyncio.sleep(tenths / 10)
                await world.honest().enqueue("t", b"", job_id="a")
                jobs = await waiting
                await asyncio.sleep(10)
                taken += len(jobs)
                assert len(jobs) == (await world.jobs())["a"].attempt
        assert 0 < taken < 40

    run(main())


@pytest.mark.parametrize("wait", [None, 60])
def test_a_dequeue_cancelled_in_any_tick_leaves_no_job_claimed_by_nobody(kind, wait):
    """The result and the cancellation in one tick, and every tick before that."""

    async def main():
        delivered = 0
        for ticks in range(60):
            world = World()
            async with world.process(world.memory, kind=kind) as queue:
                await queue.enqueue("t", b"")
                call = asyncio.create_task(queue.dequeue("t", wait=wait))
                for _ in range(ticks):
                    await asyncio.sleep(0)
                call.cancel()
                claimed = (await asyncio.gather(call, return_exceptions=True))[0]
                await asyncio.sleep(1)
                [job] = (await world.jobs()).values()
                delivered += isinstance(claimed, list)
                assert (JobStatus.IN_PROGRESS if isinstance(claimed, list) else JobStatus.QUEUED) == job.status
        assert 0 < delivered < 60

    run(main())


def test_leaving_waits_for_claims_nobody_took(kind):
    async def main():
        world = World()
        world.storage.delay = 3.0
        async with world.process(kind=kind, call_timeout=2) as queue:
            await queue.enqueue("t", b"")
            world.storage.on_write(Fault.LANDS_LATER)
            world.storage.on_read(*[Fault.LOST_REQUEST] * 3)
            call = asyncio.create_task(queue.dequeue("t"))
            await asyncio.sleep(0.01)
            call.cancel()
        await asyncio.sleep(10)
        assert [JobStatus.QUEUED] == [job.status for job in (await world.jobs()).values()]

    run(main())
