"""The queue contract: tests that every queue must pass on every store, to be inherited by a user's own test suite.

Any storage that keeps the storage contract can carry the queues. These tests show that it does, verb by verb. Use
pytest and pytest-asyncio in either mode, and the same fixture as for `StorageContract`:

    class TestBrokerOnMyStorage(QueueContract):
        kind = BrokerQueue

        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

`make_storage` returns a function, plain or async, that opens one more handle on the object of this test. The object
does not exist at first. Each queue object of a test gets a handle of its own, as if it were in another process.

A queue that is not made from a storage has a fixture `make_queue` instead: a function, plain or async, that makes one
more queue object on the queue of this test. Tests pass it options by name (`limits`, `clock`), and it may ignore an
option that it does not support. A queue declares in its `capabilities` what it cannot do. Tests that need a missing
capability are skipped.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    InvalidBlobError,
    InvalidJobError,
    JobNotFoundError,
    StorageError,
)
from jqueue.domain.events import HistoryEvent
from jqueue.domain.history import EVENTS_PER_OBJECT
from jqueue.domain.job import Claim, JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack, Heartbeat, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Cancel
from jqueue.ports.queue import JobQueue, SupportsHistory
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects
from jqueue.runtime.system import SystemClock
from jqueue.testing._storage_handles import cancel_at, rewrite
from jqueue.testing.storage_contract import StorageFactory

QueueFactory = Callable[..., JobQueue | Awaitable[JobQueue]]
"""Makes one more queue object on the queue of a test; takes `limits` and `clock` by name, as the queues do."""


def ids(jobs: Iterable[Job]) -> list[str]:
    """Return the ids of jobs, in their order."""
    return [job.id for job in jobs]


class SlowClock(SystemClock):
    """The clock of a machine that is an hour behind."""

    def now(self) -> datetime:
        """Return the time of an hour ago."""
        return super().now() - timedelta(hours=1)


HOUR = timedelta(hours=1)


Reference = Callable[[Job], Job | Claim | str]


REFERENCES: dict[str, Reference] = {"job": lambda job: job, "claim": lambda job: job.claim, "id": lambda job: job.id}


VERBS: dict[str, Callable[[JobQueue, Job | Claim | str], Awaitable[None]]] = {
    "ack": lambda queue, job: queue.ack(job),
    "nack": lambda queue, job: queue.nack(job),
    "heartbeat": lambda queue, job: queue.heartbeat(job),
}


by_every_reference: pytest.MarkDecorator = pytest.mark.parametrize("refer", REFERENCES.values(), ids=REFERENCES)


by_every_verb: pytest.MarkDecorator = pytest.mark.parametrize("verb", VERBS)


HISTORY_NEEDS = ("history", "transactions", "errors")


async def events_of(queue: JobQueue, **wanted: Any) -> list[HistoryEvent]:
    """Return the events of a queue, the oldest first."""
    assert isinstance(queue, SupportsHistory)
    return [event async for event in queue.history(**wanted)][::-1]


PAYLOAD = b"the-secret-of-this-payload"


Change = Callable[[bytes], bytes]


def _replaced(content: bytes, text: bytes, other: bytes) -> bytes:
    """Replace a text in the lines of the jobs; the header may have it too."""
    header, newline, jobs = content.partition(b"\n")
    return header + newline + jobs.replace(text, other, 1)


def in_a_line(text: bytes, other: bytes) -> Change:
    """Return a change of one job's line that keeps the layout."""
    return lambda content: _replaced(content, text, other)


def in_another_layout(text: bytes, other: bytes) -> Change:
    """Return a change by an editor that rewrites the whole layout."""
    return lambda content: json.dumps(json.loads(_replaced(content, text, other)), indent=4).encode()


SPOKEN = ("secret-of-this", base64.b64encode(PAYLOAD).decode()[4:24], PAYLOAD.hex()[8:32])


@pytest.mark.asyncio
class QueueContractBase:
    """Settings of the contract that a user's class may change, and helpers for its tests.

    Attributes:
        kind: class of the queue that the default `make_queue` makes from a storage.
        moment: seconds that are long for the store and short for people: used for delays and timeouts that must pass.
        patience: seconds after which a test counts as hung.
        cancellations: number of moments at which a call is cancelled.
        in_order: number of jobs whose order is checked.
    """

    kind: Callable[..., Any] = DirectQueue
    moment: float = 0.25
    patience: float = 60.0
    cancellations = 30
    in_order = 12

    @pytest.fixture
    def make_storage(self) -> StorageFactory:
        raise NotImplementedError(
            "give the subclass a fixture `make_storage`, as for StorageContract, or a fixture `make_queue`"
        )

    @pytest.fixture
    def make_queue(self, make_storage: StorageFactory) -> QueueFactory:
        kind = type(self).kind

        async def open_queue(**options: Any) -> JobQueue:
            made = make_storage()
            queue: JobQueue = kind(await made if inspect.isawaitable(made) else made, **options)
            return queue

        return open_queue

    @asynccontextmanager
    async def queues(
        self, make_queue: QueueFactory, count: int = 1, needs: Iterable[str] = (), **options: Any
    ) -> AsyncIterator[list[JobQueue]]:
        """Open `count` queue objects on the queue of this test, and allow `patience` seconds to use them.

        Args:
            make_queue: the fixture.
            count: number of queue objects.
            needs: capabilities that the test needs; without them it is skipped.
            options: options for `make_queue`.
        """
        async with asyncio.timeout(self.patience), AsyncExitStack() as closing:
            opened = []
            for _ in range(count):
                made = make_queue(**options)
                queue = await made if inspect.isawaitable(made) else made
                missing = sorted(set(needs) & set(queue.capabilities.missing))
                if missing:
                    pytest.skip(f"this queue does not support {', '.join(missing)}")
                if isinstance(queue, AbstractAsyncContextManager):
                    await closing.enter_async_context(queue)
                opened.append(queue)
            yield opened

    def storage_of(self, queue: JobQueue) -> ObjectStoragePort:
        """Return the storage of the blob, or skip the test if the queue does not have one."""
        storage = getattr(queue, "storage", None)
        if not isinstance(storage, ObjectStoragePort):
            pytest.skip("this queue is not one object in a store")
        return storage

    async def fingerprint(self, queue: JobQueue) -> object:
        """Return a value that changes with every write: the object with its etag, or else the state."""
        storage = getattr(queue, "storage", None)
        return await storage.read() if isinstance(storage, ObjectStoragePort) else await queue.read_state()

    async def rewrite(self, queue: JobQueue, change: Callable[[bytes], bytes]) -> None:
        """Change the blob by hand, beside the queue."""

        def edited(content: bytes) -> bytes:
            changed = change(content)
            assert changed != content, "the edit must change the blob"
            return changed

        await rewrite(self.storage_of(queue), edited)

    async def until(self, condition: Callable[[], Awaitable[object]]) -> None:
        """Check a condition again and again until it holds. The test's time limit ends the wait otherwise."""
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in the store
            await asyncio.sleep(self.moment / 10)

    async def one_job(self, queue: JobQueue, entrypoint: str = "work", **arguments: Any) -> Job:
        """Enqueue and claim one job."""
        await queue.enqueue(entrypoint, b"payload", **arguments)
        [job] = await queue.dequeue(entrypoint)
        return job

    async def time(self, queue: JobQueue) -> datetime:
        """Return the time by the queue's clock."""
        return (await queue.enqueue("clock", b"")).created_at

    async def lost_claim(self, queue: JobQueue, operator: JobQueue, **arguments: Any) -> Job:
        """Return a job with a revoked claim, as its former holder knows it. No worker holds it now."""
        job = await self.one_job(queue, **arguments)
        assert await operator.requeue_stale(0) == 1
        return job

    async def find(self, queue: JobQueue, job: Job | Claim | str) -> Job | None:
        """Return the job as the queue holds it now; None if it has left."""
        job_id = job if isinstance(job, str) else job.id if isinstance(job, Job) else job.job_id
        return (await queue.read_state()).find(job_id)

    async def held(self, queue: JobQueue, job: Job | Claim | str) -> Job:
        """Return the job as the queue holds it now, and fail if it has left."""
        current = await self.find(queue, job)
        assert current is not None, "the job is no longer in the queue"
        return current

    async def dead_job(self, queue: JobQueue, entrypoint: str = "work", **arguments: Any) -> Job:
        """Enqueue a job, make it dead, and return it."""
        job = await self.one_job(queue, entrypoint, **arguments)
        await queue.nack(job, dead=True)
        return await self.held(queue, job)

    async def several(self, queue: JobQueue, count: int, entrypoint: str = "work") -> list[str]:
        """Enqueue `count` jobs, and return their ids."""
        return [(await queue.enqueue(entrypoint, b"%d" % number)).id for number in range(count)]

    async def until_moved(self, queue: JobQueue, count: int) -> None:
        """Wait until there are this many objects of the history."""
        storage = self.storage_of(queue)
        assert isinstance(storage, SupportsObjects)

        async def are_there() -> bool:
            return len(await storage.list_beside(".history/")) >= count

        await self.until(are_there)

    def assert_private(self, text: str) -> None:
        """Fail if any part of the payload is in the text."""
        assert [spoken for spoken in SPOKEN if spoken in text] == [], text

    def verb(self, name: str) -> tuple[Callable[[JobQueue, Job | Claim | str], Awaitable[None]], list[str]]:
        """Return a verb for claims, and the capabilities that its test needs."""
        return VERBS[name], ["fencing", *(["heartbeat"] if name == "heartbeat" else [])]


class QueueContract(QueueContractBase):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture: see `QueueContractBase` for its settings.

    It has a test of each verb, of races, of time and waiting, of the history, and of the content of the store.
    """

    async def test_a_job_is_claimed_once_and_gone_when_acked(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload")
            assert enqueued.status is JobStatus.QUEUED
            [job] = await other.dequeue("work")
            assert (enqueued.id, "work", b"payload") == (job.id, job.entrypoint, job.payload)
            assert (job.status, job.failures) == (JobStatus.IN_PROGRESS, 1)
            assert await queue.dequeue("work") == [], "a claimed job was served again"
            await other.ack(job)
            assert await queue.dequeue("work") == []
            assert (await queue.read_state()).jobs == ()

    async def test_what_a_verb_returns_is_what_the_queue_holds(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["fencing"]) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload")
            assert enqueued == await self.find(other, enqueued)
            [job] = await queue.dequeue("work")
            assert job == await self.find(other, job)

    async def test_commit_order_holds_across_enqueuers_whatever_their_clocks_say(
        self, make_queue: QueueFactory
    ) -> None:
        async with (
            self.queues(make_queue, 2) as [punctual, worker],
            self.queues(make_queue, 1, clock=SlowClock()) as [late],
        ):
            enqueued = [
                (await queue.enqueue("work", b"%d" % number)).id
                for number in range(self.in_order // 2)
                for queue in (punctual, late)
            ]
            assert enqueued == ids(await worker.dequeue("work", batch_size=self.in_order))

    async def test_calls_of_one_task_group_are_all_done(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3) as queues:
            enqueued = await asyncio.gather(
                *(queue.enqueue("work", b"%d" % number) for number in range(self.in_order) for queue in queues)
            )
            claimed = await asyncio.gather(*(queue.dequeue("work", batch_size=self.in_order) for queue in queues))
            served = [job.id for jobs in claimed for job in jobs]
            assert sorted(served) == sorted(ids(enqueued)), "a job was lost, or claimed twice"

    async def test_headers_and_names_may_hold_any_text(self, make_queue: QueueFactory) -> None:
        headers = {"trace id": "0123", "Ünïcödé": "日本語 \n\t\0 \u2028", "empty": ""}
        async with self.queues(make_queue, 2, ["headers", "job_ids"]) as [queue, other]:
            await queue.enqueue("größe/日本", b"payload", headers=headers, job_id='an "id" \\ 日本')
            [job] = await other.dequeue("größe/日本")
            assert headers == dict(job.headers)
            assert job.id == 'an "id" \\ 日本'
            await other.ack(job)

    async def test_a_job_id_makes_an_enqueue_idempotent(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["job_ids"]) as [queue, other]:
            first = await queue.enqueue("work", b"first", job_id="the-id")
            again = await other.enqueue("other", b"second", job_id="the-id")
            assert first == again, "the repeated enqueue must return the job that is there"
            [job] = await queue.dequeue()
            assert (job.id, job.payload) == ("the-id", b"first")
            assert job == await other.enqueue("work", b"third", job_id="the-id")
            assert len((await queue.read_state()).jobs) == 1

    async def test_a_delayed_job_is_served_when_its_time_has_come(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["delay", "wait"]) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload", delay=self.moment)
            for consumer in (queue, other):
                [job] = await consumer.dequeue("work", wait=self.patience)
                assert enqueued.id == job.id
                assert job.run_at is not None
                assert job.heartbeat_at is not None
                assert job.heartbeat_at >= job.run_at, "the job was claimed before its time"
                await consumer.nack(job, delay=self.moment)

    async def test_a_job_not_claimed_by_its_expiry_is_removed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["expiry"]) as [queue]:
            began = await self.time(queue)
            await queue.enqueue("work", b"too late", expires_at=began - HOUR)
            lasting_job = await queue.enqueue("work", b"in time", expires_at=began + HOUR)
            soon = await queue.enqueue("soon", b"soon too late", expires_at=began + timedelta(seconds=self.moment))
            assert ids([lasting_job]) == ids(await queue.dequeue("work", batch_size=9))

            async def has_left() -> bool:
                await queue.dequeue("nobody")
                return await self.find(queue, soon) is None

            await self.until(has_left)
            assert await queue.dequeue("soon") == []
            assert sorted(job.entrypoint for job in (await queue.read_state()).jobs) == ["clock", "work"]

    async def test_a_waiting_dequeue_is_answered_by_an_enqueue_from_elsewhere(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["wait"]) as [queue, other]:
            for number in range(3):
                waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
                await asyncio.sleep(self.moment * number / 2)
                enqueued = await other.enqueue("work", b"payload")
                assert ids([enqueued]) == ids(await waiting)

    async def test_a_claim_that_nobody_confirms_within_its_timeout_is_served_again(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait"]) as [queue, other]:
            await queue.enqueue("work", b"payload")
            [first] = await queue.dequeue("work", claim_timeout=timedelta(seconds=self.moment))
            assert first.claim_timeout == self.moment
            [second] = await other.dequeue("work", wait=self.patience)
            assert (first.id, first.attempt + 1) == (second.id, second.attempt)
            assert second.claim_timeout != self.moment, "the timeout of a claim must not pass on to the next claim"

    @by_every_verb
    @pytest.mark.parametrize("refer", [REFERENCES["job"], REFERENCES["claim"]], ids=["job", "claim"])
    async def test_a_claim_may_be_used_through_another_queue_object(
        self, make_queue: QueueFactory, verb: str, refer: Reference
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            await call(other, refer(await self.one_job(queue)))

    @by_every_verb
    @by_every_reference
    async def test_a_revoked_claim_is_refused_and_changes_nothing(
        self, make_queue: QueueFactory, verb: str, refer: Reference
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            job = await self.lost_claim(queue, other)
            for again in (False, True):
                if again:
                    assert ids([job]) == ids(await other.dequeue()), "another consumer must get the job"
                before = await self.fingerprint(queue)
                with pytest.raises(ClaimLostError, match=job.id) as raised:
                    await call(queue, refer(job))
                assert raised.value.job_id == job.id
                assert raised.value.ended_here is False
                assert before == await self.fingerprint(queue)

    async def test_an_ack_repeated_with_the_same_job_succeeds(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["fencing"]) as [queue, other]:
            job = await self.one_job(queue)
            for again in (queue, queue, other):
                await again.ack(job)
                await again.ack(job.claim)

    @pytest.mark.parametrize("verb", ["ack_many", "nack_many", "heartbeat_many"])
    async def test_of_many_claims_each_stands_for_itself(self, make_queue: QueueFactory, verb: str) -> None:
        async with self.queues(make_queue, 2, ["fencing", "heartbeat"]) as [queue, other]:
            lost = await self.lost_claim(queue, other)
            [taken] = await other.dequeue()
            held = [await self.one_job(queue) for _ in range(2)]
            many = getattr(queue, verb)
            before = (await queue.read_state()).version
            errors = await many([held[0], lost, held[1].id])
            assert [type(error) for error in errors] == [ClaimLostError]
            assert errors[0].job_id == lost.id
            state = await queue.read_state()
            assert state.version == before + 1, "all claims must be in one commit"
            assert taken == state.find(taken.id), "the claim of another consumer was changed"
            assert all(job != state.find(job.id) for job in held), "a valid claim was skipped"

    @pytest.mark.parametrize("attempts", [1, 3])
    async def test_a_job_is_dead_when_its_attempts_are_used_up(self, make_queue: QueueFactory, attempts: int) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "errors"]) as [queue]:
            enqueued = await queue.enqueue("work", b"payload", max_attempts=attempts)
            for number in range(1, attempts + 1):
                assert (await self.held(queue, enqueued)).status is JobStatus.QUEUED
                [job] = await queue.dequeue()
                assert job.failures == number
                await queue.nack(job, delay=0, error="it failed")
            dead = await self.held(queue, enqueued)
            assert (dead.status, dead.error, dead.heartbeat_at) == (JobStatus.DEAD, "it failed", None)
            assert dead.dead_at is not None
            assert await queue.dequeue() == []
            assert ids((await queue.read_state()).dead_jobs()) == [enqueued.id]

    async def test_dead_jobs_are_redriven_by_entrypoint_or_all_in_their_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            dead = [await self.dead_job(queue, name) for name in ("a", "b", "a", "c")]
            assert await queue.redrive(entrypoint="a") == 2
            assert [dead[0].id, dead[2].id] == ids(await queue.dequeue(batch_size=9))
            assert await queue.redrive(entrypoint="nobody") == 0
            assert await queue.redrive() == 2
            assert [dead[1].id, dead[3].id] == ids(await queue.dequeue(batch_size=9))
            assert await queue.redrive() == 0

    async def test_purge_removes_dead_jobs_and_no_others(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            for name in ("a", "b", "a"):
                await self.dead_job(queue, name)
            claimed = await self.one_job(queue)
            queued = await queue.enqueue("work", b"payload")
            assert await queue.purge(entrypoint="a") == 2
            assert await queue.purge(older_than=HOUR) == 0
            assert await queue.purge() == 1
            assert await queue.purge() == 0
            assert {claimed.id, queued.id} == set(ids((await queue.read_state()).jobs))
            assert await queue.purge(status=JobStatus.QUEUED, entrypoint="other") == 0
            assert await queue.purge(status=JobStatus.QUEUED) == 1
            await queue.ack(claimed)

    async def test_a_job_that_nobody_claimed_can_be_cancelled(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["delay"]) as [queue, operator]:
            enqueued = [await queue.enqueue("work", b"payload"), await queue.enqueue("work", b"payload", delay=HOUR)]
            for job in enqueued:
                assert job == await operator.cancel(job.id)
            assert (await queue.read_state()).jobs == ()
            assert await queue.dequeue() == []

    async def test_stats_count_what_is_there(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["delay", "dead_letters"]) as [queue, operator]:
            dead = await self.dead_job(queue, "a")
            for _ in range(3):
                await queue.enqueue("a", b"payload")
            await queue.enqueue("b", b"payload", delay=HOUR)
            [claimed] = await queue.dequeue("a")
            stats = await operator.stats()
            assert stats.depth == stats.ready  # the earlier name
            assert (stats.ready, stats.scheduled, stats.in_progress, stats.dead) == (2, 1, 1, 1)
            assert stats.oldest_ready_age is not None
            assert timedelta() <= stats.oldest_ready_age < HOUR
            assert stats.entrypoints is not None
            assert set(stats.entrypoints) == {"a", "b"}
            a, b = stats.entrypoints["a"], stats.entrypoints["b"]
            assert (a.ready, a.scheduled, a.in_progress, a.dead) == (2, 0, 1, 1)
            assert (b.ready, b.scheduled, b.in_progress, b.dead, b.oldest_ready_age) == (0, 1, 0, 0, None)
            await queue.ack(claimed)
            await queue.purge()
            after = await operator.stats()
            assert (after.ready, after.in_progress, after.dead) == (2, 0, 0)
            assert await self.find(queue, dead) is None

    async def test_of_racing_enqueues_one_gets_the_key(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, ["unique_keys"]) as queues:
            enqueued = await asyncio.gather(
                *(queue.enqueue("work", b"payload", unique_key="the-key") for queue in queues for _ in range(3))
            )
            assert len(set(ids(enqueued))) == 1
            assert len((await queues[0].read_state()).jobs) == 1

    async def test_enqueue_many_adds_all_or_none(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions", "unique_keys"]) as [queue]:
            await queue.enqueue("work", b"payload", unique_key="the-key")
            before = await self.fingerprint(queue)
            good, taken = Enqueue("work", b"good"), Enqueue("work", b"a", unique_key="the-key", on_conflict="raise")
            with pytest.raises(DuplicateJobError):
                await queue.enqueue_many([good, taken, good])
            with pytest.raises(InvalidJobError):
                await queue.enqueue_many([good, Enqueue("work", b"bad", priority=2**40)])
            assert before == await self.fingerprint(queue)

    async def test_apply_does_several_things_in_one_commit_with_results_in_order(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["transactions", "heartbeat", "errors"]) as [queue, other]:
            acked, given_back, alive = [await self.one_job(queue) for _ in range(3)]
            unwanted = await queue.enqueue("work", b"unwanted")
            before = (await queue.read_state()).version
            results = await queue.apply(
                Enqueue("next", b"first"),
                Ack(acked),
                Nack(given_back, error="later"),
                Enqueue("next", b"second"),
                Heartbeat((alive,)),
                Cancel(unwanted.id),
            )
            state = await other.read_state()
            assert state.version == before + 1
            assert [results[0], results[3]] == list(state.queued_jobs("next"))
            assert [results[0].payload, results[3].payload] == [b"first", b"second"]
            assert [results[1], results[2], results[4], results[5].id] == [None, None, [], unwanted.id]
            assert state.find(acked.id) is None
            assert state.find(unwanted.id) is None
            assert (await self.held(queue, given_back)).status is JobStatus.QUEUED

    @pytest.mark.parametrize("place", [0, 1, 2])
    async def test_one_refusal_undoes_all_of_an_apply(self, make_queue: QueueFactory, place: int) -> None:
        async with self.queues(make_queue, 2, ["transactions", "fencing"]) as [queue, operator]:
            lost = await self.lost_claim(queue, operator)
            assert len(await operator.dequeue()) == 1
            job = await self.one_job(queue)
            before = await self.fingerprint(queue)
            for refused, error in ((Ack(lost), ClaimLostError), (Cancel("no-such-job"), JobNotFoundError)):
                operations: list[Operation] = [Ack(job), Enqueue("next", b"payload")]
                operations.insert(place, refused)
                with pytest.raises(error):
                    await queue.apply(*operations)
            assert before == await self.fingerprint(queue)

    async def test_a_dequeue_cancelled_at_any_moment_leaves_no_job_claimed_by_nobody(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["wait", "uncharged"]) as [queue, other]:
            loop = asyncio.get_running_loop()
            enqueued = await queue.enqueue("work", b"payload")
            began = loop.time()
            await queue.nack((await queue.dequeue())[0], charge=False)
            duration = loop.time() - began
            for number in range(self.cancellations):
                wait = self.patience if number % 3 else None
                call = asyncio.create_task(queue.dequeue("work", wait=wait))
                await cancel_at(call, number, self.cancellations, duration)
                jobs = [] if call.cancelled() else call.result()
                jobs = jobs or await other.dequeue("work", wait=self.patience / 2)
                assert ids(jobs) == [enqueued.id], f"cancelled at moment {number}, the job stayed claimed"
                assert jobs[0].failures == 1, "a claim that no caller received was counted as a failure"
                await other.nack(jobs[0], charge=False)

    async def test_an_enqueue_cancelled_at_any_moment_is_done_once_or_not_at_all(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await queue.enqueue("work", b"payload")
            duration = loop.time() - began
            for number in range(self.cancellations):
                call = asyncio.create_task(queue.enqueue("work", b"%d" % number))
                await cancel_at(call, number, self.cancellations, duration)
            await queue.enqueue("work", b"the last")  # cancelled writes have landed by now, or never will
            payloads = [job.payload for job in (await other.read_state()).jobs]
            assert len(payloads) == len(set(payloads)), "a cancelled enqueue was done twice"

    async def test_a_ceiling_is_exact_for_queue_objects_that_claim_at_once(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as queues:
            await queues[0].limit("work", running=3)
            enqueued = await self.several(queues[0], 12)
            done: list[str] = []
            while len(done) < len(enqueued):
                calls = [queue.dequeue(name, batch_size=2) for queue in queues for name in ("work", None)]
                claimed = [job for jobs in await asyncio.gather(*calls) for job in jobs]
                assert len(claimed) == min(3, len(enqueued) - len(done)), (
                    "the number of claimed jobs is not what the limit allows"
                )
                done += ids(claimed)
                ways = zip(claimed, [*queues, queues[0]], strict=False)
                await asyncio.gather(*(queue.ack(job) for job, queue in ways))
            assert sorted(done) == sorted(enqueued)

    async def test_limits_outlast_the_queue_object_that_set_them(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [first]:
            await first.limit("work", running=1)
            await first.limit("rated", rate=1, per=HOUR)
            await first.pause("paused")
            for name in ("work", "rated", "paused"):
                await self.several(first, 3, name)
            assert len(await first.dequeue("rated")) == 1
        async with self.queues(make_queue, 1) as [second]:
            assert [job.entrypoint for job in await second.dequeue(batch_size=9)] == ["work"]
            rules = (await second.read_state()).entrypoints
            assert (rules["work"].max_running, rules["rated"].rate, rules["paused"].paused) == (1, 1, True)

    async def test_whoever_waits_gets_the_result_when_it_is_there(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await queue.enqueue("work", b"payload", keep_result=HOUR)
            waiting = [asyncio.create_task(asked.result(job)) for asked in (queue, other, queue)]
            await asyncio.wait(waiting, timeout=self.moment)
            [job] = await other.dequeue("work")
            await asyncio.wait(waiting, timeout=self.moment)
            assert not any(each.done() for each in waiting)
            await other.ack(job, result={"sum": 3})
            assert await asyncio.gather(*waiting) == [{"sum": 3}] * 3

    async def test_events_are_the_same_after_they_were_moved(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, HISTORY_NEEDS) as [queue, other]:
            await queue.configure(history=3600)
            lot = [Enqueue("work", b"") for _ in range(EVENTS_PER_OBJECT + 1)]
            jobs = await queue.enqueue_many(lot)
            await self.until_moved(queue, 1)
            last = await other.enqueue("work", b"")
            await queue.enqueue("work", b"")
            history = (await queue.read_state()).history
            assert history is not None
            assert (history.first, history.last) == (EVENTS_PER_OBJECT + 3, EVENTS_PER_OBJECT + 4)
            events = await events_of(other)
            assert [event.number for event in events] == list(range(1, EVENTS_PER_OBJECT + 5))
            assert [event.job_id for event in events[1:-1]] == [*(job.id for job in jobs), last.id]

    async def test_polling_a_queue_with_nothing_ready_never_writes(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["delay", "dead_letters"]) as queues:
            queue = queues[0]
            await queue.nack(await self.one_job(queue), dead=True)
            claimed = await self.one_job(queue)
            await queue.enqueue("work", b"later", delay=3600)
            before = await self.fingerprint(queue)
            for asked in queues:
                assert await asked.dequeue() == []
                if asked.capabilities.wait:
                    assert await asked.dequeue("work", wait=self.moment) == []
                assert await asked.requeue_stale(3600) == 0
                assert await asked.purge(entrypoint="nobody") == 0
                assert await asked.redrive(entrypoint="nobody") == 0
                assert (await asked.stats()).in_progress == 1
            assert before == await self.fingerprint(queue)
            await queue.ack(claimed)
            acked = await self.fingerprint(queue)
            await queue.ack(claimed)
            assert acked == await self.fingerprint(queue), "a repeated ack must not write"

    @pytest.mark.parametrize(
        ("layout", "broken"),
        [(in_a_line, b"[5]"), (in_a_line, b"broken"), (in_another_layout, b"[5]")],
        ids=["a wrong value", "no JSON", "another layout"],
    )
    async def test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended(
        self, make_queue: QueueFactory, layout: Callable[[bytes, bytes], Change], broken: bytes
    ) -> None:
        async with self.queues(make_queue) as [queue]:
            names = ["first", "broken", "last"]
            enqueued = [await queue.enqueue(name, PAYLOAD) for name in names]
            await self.rewrite(queue, layout(b'"broken"', broken))
            async with self.queues(make_queue, 1) as [other]:
                assert [job.entrypoint for job in await queue.dequeue()] == ["first"]
                assert [job.entrypoint for job in await other.dequeue(batch_size=9)] == ["last"]
                await other.enqueue("later", b"payload")
                state = await other.read_state()
                assert [aside.key for aside in state.set_aside] in ([enqueued[1].id], [""])
                assert (await other.stats()).unreadable == 1
                await self.rewrite(queue, in_a_line(b'"entrypoint":' + broken, b'"entrypoint":"broken"'))
                served = await queue.dequeue(batch_size=9)
                assert {job.entrypoint: job.payload for job in served} == {"later": b"payload", "broken": PAYLOAD}
                assert (await other.read_state()).set_aside == ()

    @pytest.mark.parametrize("kept", [0, 1, 40, -2, -40], ids=lambda kept: f"cut at {kept}")
    async def test_a_blob_that_is_cut_off_is_refused_and_left_alone(self, make_queue: QueueFactory, kept: int) -> None:
        async with self.queues(make_queue) as [queue]:
            await queue.enqueue("work", PAYLOAD)
            await self.rewrite(queue, lambda content: content.rstrip()[:kept])
            before = await self.fingerprint(queue)
            async with self.queues(make_queue, 1) as [other]:
                for asked in (queue, other):
                    enqueue = functools.partial(asked.enqueue, "work", b"payload")
                    for call in (asked.dequeue, asked.read_state, asked.stats, enqueue):
                        with pytest.raises(StorageError, match="the queue's object") as raised:
                            await call()
                        # A queue with a cached state sends its write, and a refused write proves nothing here.
                        assert isinstance(raised.value, InvalidBlobError) or (asked, call) == (queue, asked.dequeue)
                        self.assert_private("".join(traceback.format_exception(raised.value)))
            assert before == await self.fingerprint(queue)
