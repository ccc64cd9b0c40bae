"""Calls that are refused before anything is sent: wrong input, jobs beyond the size limit, missing capabilities."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from jqueue.domain.errors import InvalidJobError, QueueFullError
from jqueue.domain.job import JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import RecordStep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.lookups import LastTransaction
from jqueue.domain.operations.rules import SetLimits, SetSchedule
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory

NAIVE = datetime(2030, 1, 1)


WEST = timezone(timedelta(hours=-1))


SURROGATE = "a lone \udc80"


LONG = "x" * 600


BAD_DURATIONS: list[Any] = [-0.001, timedelta(seconds=-1), float("nan"), 1e300, "soon", True]


BAD_NAMES: list[Any] = ["", "a\nb", SURROGATE, LONG, 5, b"bytes"]


BAD_COUNTS: list[Any] = [0, -1, 1.5, True, "3", 2**64]


BAD_TIMES: list[Any] = [NAIVE, "2030-01-01T00:00:00Z", 5, datetime.max.replace(tzinfo=WEST)]


BAD_REFERENCES: list[Any] = [5, None, b"id", True, ["id"], ("id", 1, 2)]


BAD_ENQUEUES: dict[str, list[Any]] = {
    "entrypoint": [*BAD_NAMES, None, ["work"]],
    "payload": ["text", None, 5, [1, 2], {}, b"x" * 2001],
    "priority": [2**31, -(2**31) - 1, 1.5, True, "5", None, float("nan")],
    "job_id": BAD_NAMES,
    "delay": BAD_DURATIONS,
    "run_at": BAD_TIMES,
    "expires_at": BAD_TIMES,
    "max_attempts": BAD_COUNTS,
    "headers": [["a"], {"a": 1}, {1: "b"}, {"": "b"}, {SURROGATE: "b"}, {"a": "b" * 20_000}, "a text"],
    "unique_key": BAD_NAMES,
    "unique_for": [5, *BAD_DURATIONS],
    "timeout": [0, *BAD_DURATIONS],
    "on_conflict": ["ignore", "", None, 5, ["raise"]],
    "concurrency_key": BAD_NAMES,
    "concurrency_limit": [5, *BAD_COUNTS],
    "fair_weight": [5, 1.5, 0, -1, math.nan, True, "0.5"],
    "keep_result": BAD_DURATIONS,
    "after": ["job", 7, [7], [""], None, ["unknown"], [f"job-{number}" for number in range(101)]],
    "on_dead": ["ignore", "run", 7],
    "deadline": BAD_DURATIONS,
}


OF_A_KEY = {"unique_for": "unique_key", "concurrency_limit": "concurrency_key", "fair_weight": "fair_key"}
"""Options that depend on a key, each with that key: without it, even the good value 5 is refused."""


BAD_DEQUEUES: dict[str, list[Any]] = {
    "entrypoint": [b"work", 5, [], [5], ["work", None]],
    "batch_size": [-1, 1.5, True, "5", None, 10**9],
    "wait": BAD_DURATIONS,
    "claim_timeout": BAD_DURATIONS,
    "deadline": BAD_DURATIONS,
}


BAD_PURGES: dict[str, list[Any]] = {
    "status": [JobStatus.IN_PROGRESS, "nonsense", None, 5],
    "entrypoint": BAD_NAMES,
    "older_than": BAD_DURATIONS,
}


Use = Callable[[JobQueue, Job], Awaitable[object]]


async def _no_pieces() -> AsyncIterator[bytes]:
    for piece in (b"",):
        yield piece


async def _raised(answers: Awaitable[list[Any]]) -> None:
    """Raise the first error among the answers of a call."""
    for answer in await answers:
        if isinstance(answer, Exception):
            raise answer


USES: dict[str, list[Use]] = {
    "priority": [lambda queue, job: queue.enqueue("work", b"payload", 1)],
    "delay": [
        lambda queue, job: queue.enqueue("work", b"payload", delay=60),
        lambda queue, job: queue.enqueue("work", b"payload", run_at=datetime(2100, 1, 1, tzinfo=UTC)),
        lambda queue, job: queue.nack(job, delay=60),
    ],
    "expiry": [lambda queue, job: queue.enqueue("work", b"payload", expires_at=datetime(2100, 1, 1, tzinfo=UTC))],
    "headers": [lambda queue, job: queue.enqueue("work", b"payload", headers={"name": "text"})],
    "job_ids": [lambda queue, job: queue.enqueue("work", b"payload", job_id="the-id")],
    "unique_keys": [lambda queue, job: queue.enqueue("work", b"payload", unique_key="the-key")],
    "dead_letters": [
        lambda queue, job: queue.enqueue("work", b"payload", max_attempts=3),
        lambda queue, job: queue.nack(job, dead=True),
        lambda queue, job: queue.redrive(),
        lambda queue, job: queue.purge(),
    ],
    "timeouts": [lambda queue, job: queue.enqueue("work", b"payload", timeout=60)],
    "encodings": [lambda queue, job: queue.enqueue("work", b"{}", encoding="named")],
    "errors": [lambda queue, job: queue.nack(job, error="it failed")],
    "uncharged": [lambda queue, job: queue.nack(job, charge=False)],
    "heartbeat": [lambda queue, job: queue.heartbeat(job), lambda queue, job: queue.heartbeat_many([job])],
    "claim_timeout": [lambda queue, job: queue.dequeue("work", claim_timeout=60)],
    "transactions": [
        lambda queue, job: queue.apply(Enqueue("work", b"payload")),
        lambda queue, job: queue.enqueue_many([Enqueue("work", b"payload")] * 2),
    ],
    "wait": [lambda queue, job: queue.dequeue("nobody", wait=1)],
    "cancel_running": [lambda queue, job: queue.cancel(job.id, running=True)],
    "reschedule": [
        lambda queue, job: queue.reschedule(job.id, delay=60),
        lambda queue, job: queue.reprioritise(job.id, 1),
    ],
    "limits": [
        lambda queue, job: queue.pause("work"),
        lambda queue, job: queue.resume("work"),
        lambda queue, job: queue.limit("work", running=1),
        lambda queue, job: queue.limit("work", rate=1, per=60),
        lambda queue, job: queue.enqueue("work", b"payload", concurrency_key="the-key"),
    ],
    "retention": [lambda queue, job: queue.configure(dead_retention=60)],
    "size_limit": [lambda queue, job: queue.configure(blob_bytes=1 << 20)],
    "objects": [lambda queue, job: queue.enqueue("work", _no_pieces())],
    "history": [lambda queue, job: queue.configure(history=3600)],
    "groups": [
        lambda queue, job: queue.group().__aenter__(),
        lambda queue, job: queue.enqueue("work", b"", group="a-group"),
        lambda queue, job: queue.group("a-group").redrive(),
    ],
    "parents": [lambda queue, job: queue.enqueue("work", b"payload", after=[job])],
    "steps": [lambda queue, job: _raised(queue.apply_each(RecordStep(job, "charge")))],
    "leases": [],  # a queue without leases has no verbs for them, and `apply` refuses their operations
    "results": [
        lambda queue, job: queue.enqueue("work", b"payload", keep_result=60),
        lambda queue, job: queue.ack(job, result="a result"),
        lambda queue, job: queue.result(job, timeout=0),
    ],
    "schedules": [
        lambda queue, job: queue.schedule("the-name", "* * * * *", "work"),
        lambda queue, job: queue.unschedule("the-name"),
        lambda queue, job: queue.schedules(),
    ],
}
"""Calls that need each capability. Fencing is not listed: no call asks for it, so there is none to refuse."""


class MissingContract(QueueContractBase):
    """A call that needs a capability which the queue lacks is refused."""

    async def test_a_capability_that_is_missing_is_refused_by_name(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            missing = [name for name in queue.capabilities.missing if name in USES]
            if not missing:
                pytest.skip("this queue has every capability")
            job = await self.one_job(queue)
            before = await self.fingerprint(queue)
            for name in missing:
                for use in USES[name]:
                    with pytest.raises(InvalidJobError, match=name):
                        await use(queue, job)
            assert before == await self.fingerprint(queue)


class RefusalsContract(MissingContract):
    """A refused call gives a reason, and leaves every byte of the queue unchanged."""

    async def refuse(self, queue: JobQueue, calls: Iterable[tuple[str, Callable[[], Awaitable[object]]]]) -> str:
        """Return the calls that were not refused properly, one a line with its outcome; an empty text if all were."""
        problems = []
        before = await self.fingerprint(queue)
        for what, call in calls:
            try:
                await call()
            except InvalidJobError as error:
                happened = "" if str(error) else "refused without a message"
            except Exception as error:
                happened = f"{type(error).__name__}: {error}"[:120]
            else:
                happened = "accepted"
            after = await self.fingerprint(queue)
            if after != before:
                happened += ", and the queue has changed"
            if happened:
                problems.append(f"{what}: {happened}")
            before = after
        return "\n".join(problems)

    def calls(
        self, verb: Callable[..., Awaitable[object]], good: dict[str, Any], bad: dict[str, list[Any]]
    ) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        """Return a call for every bad value, with the other arguments good."""

        def call(name: str, value: object) -> Callable[[], Awaitable[object]]:
            return lambda: verb(**{**good, name: value})

        return [(f"{name}={value!r:.60}", call(name, value)) for name, values in bad.items() for value in values]

    @pytest.mark.parametrize("argument", BAD_ENQUEUES)
    async def test_an_enqueue_with_bad_input_is_refused(self, make_queue: QueueFactory, argument: str) -> None:
        limits = Limits(payload_bytes=2000)
        async with self.queues(make_queue, 1, limits=limits) as [queue]:
            await queue.enqueue("work", b"payload")
            good: dict[str, Any] = {"entrypoint": "work", "payload": b"payload"}
            bad = BAD_ENQUEUES[argument]
            if argument in OF_A_KEY:
                assert await self.refuse(queue, self.calls(queue.enqueue, good, {argument: [5]})) == ""
                good[OF_A_KEY[argument]] = "the-key"
                bad = [value for value in bad if value != 5]
            assert await self.refuse(queue, self.calls(queue.enqueue, good, {argument: bad})) == ""

    async def test_the_ends_of_every_range_are_taken(self, make_queue: QueueFactory) -> None:
        needs = ["priority", "headers", "unique_keys", "delay", "dead_letters"]
        async with self.queues(make_queue, 1, needs, limits=Limits(payload_bytes=2000)) as [queue]:
            for priority in (-(2**31), 2**31 - 1):
                await queue.enqueue(
                    "é" * 256,
                    b"x" * 2000,
                    priority,
                    job_id=f"{priority}".ljust(512, "x"),
                    unique_key=f"{priority}".ljust(512, "x"),
                    unique_for=0,
                    headers={"n" * 384: "t" * 16_000},
                    max_attempts=2**63 - 1,
                    delay=0,
                )
            assert len(await queue.dequeue("é" * 256, batch_size=10_000, wait=0, claim_timeout=timedelta(36500))) == 2

    async def test_a_dequeue_with_bad_input_is_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            await queue.enqueue("work", b"payload")
            assert await self.refuse(queue, self.calls(queue.dequeue, {}, BAD_DEQUEUES)) == ""

    async def test_bad_input_of_workers_and_operators_is_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["heartbeat", "delay", "dead_letters", "uncharged"]) as [queue]:
            await self.dead_job(queue)
            job = await self.one_job(queue)
            calls = self.calls(queue.nack, {"job_id": job}, {"delay": BAD_DURATIONS, "deadline": BAD_DURATIONS})
            calls += self.calls(queue.nack, {"job_id": job, "dead": True}, {"charge": [False]})
            for verb in (queue.ack, queue.nack, queue.heartbeat, queue.cancel):
                calls += self.calls(verb, {}, {"job_id": BAD_REFERENCES})
            no_jobs = [reference for reference in BAD_REFERENCES if reference is not None]
            calls += self.calls(queue.redrive, {}, {"job_id": no_jobs, "entrypoint": BAD_NAMES})
            calls += self.calls(queue.purge, {}, BAD_PURGES)
            calls += self.calls(queue.requeue_stale, {}, {"timeout": BAD_DURATIONS})
            assert await self.refuse(queue, calls) == ""

    async def test_apply_refuses_what_is_no_operation_and_more_than_the_limit(self, make_queue: QueueFactory) -> None:
        limits = Limits(batch_size=3, hot_bytes=None)  # a queue with segments takes any number in enqueue_many
        async with self.queues(make_queue, 1, ["transactions"], limits=limits) as [queue]:
            good = Enqueue("work", b"payload")
            bad: list[Any] = [[good, value] for value in ("ack", None, 5, Enqueue)]
            calls: list[Any] = [(f"{one!r}", lambda one=one: queue.apply(*one)) for one in [*bad, [good] * 4]]
            calls += [(f"many: {one!r}", lambda one=one: queue.enqueue_many(one)) for one in [*bad, [good] * 4]]
            many: list[Any] = [queue.ack_many, queue.nack_many, queue.heartbeat_many]
            calls += [(f"{verb}", lambda verb=verb: verb(["an-id"] * 4)) for verb in many]
            calls += [("dequeue", lambda: queue.dequeue(batch_size=4))]
            assert await self.refuse(queue, calls) == ""
            assert len(await queue.enqueue_many([good] * 3)) == 3

    async def test_the_limit_that_a_queue_has_holds_for_every_writer(self, make_queue: QueueFactory) -> None:
        needs = ["size_limit", "limits", "schedules"]  # a set of queues has no settings of its own
        async with self.queues(make_queue, 2, needs, limits=Limits(blob_bytes=20_000)) as [queue, other]:
            jobs = [Enqueue("work", b"x" * 1000)] * 30
            with pytest.raises(QueueFullError, match=r"of the 18000 bytes.*configure\(blob_bytes=\.\.\.\)"):
                await other.enqueue_many(jobs)
            with pytest.raises(QueueFullError, match="of the 18000 bytes"):
                await other.schedule("the-name", "0 0 1 1 *", "work", b"x" * 18_000)
            assert (await queue.configure(blob_bytes=80_000)).blob_bytes == 80_000
            await other.enqueue_many(jobs)
            assert (await other.stats()).size_limit == 72_000
            assert (await queue.configure(blob_bytes=10_000)).blob_bytes == 10_000
            with pytest.raises(QueueFullError, match="of the 9000 bytes"):
                await other.enqueue("work", b"")
            assert (await queue.configure(blob_bytes=None)).blob_bytes is None
            with pytest.raises(QueueFullError, match="of the 18000 bytes"):
                await other.enqueue("work", b"")


BAD_ENTRIES: dict[str, list[Any]] = {
    "name": [*BAD_NAMES, None, "x" * 449],
    "cron": ["", "* * * *", "60 * * * *", "0 0 30 2 *", "*/0 * * * *", None],
    "timezone": ["", "Europe/Nowhere", "/etc/passwd", "\0", None],
    "entrypoint": BAD_NAMES,
    "payload": BAD_ENQUEUES["payload"],
    "priority": BAD_ENQUEUES["priority"],
    "max_attempts": BAD_COUNTS,
    "headers": BAD_ENQUEUES["headers"],
    "unique_key": BAD_NAMES,
    "concurrency_key": BAD_NAMES,
    "concurrency_limit": [5],
    "fair_weight": [0.5],
    "keep_result": BAD_DURATIONS,
    "deadline": BAD_DURATIONS,
}


class RefusedRulesContract(RefusalsContract, QueueContractBase):
    """An invalid limit, setting or entry is refused, and leaves every byte of the queue unchanged."""

    async def test_bad_limits_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            await queue.enqueue("work", b"payload")
            calls = self.calls(queue.limit, {"entrypoint": "work"}, {"running": BAD_COUNTS, "rate": [5], "per": [5]})
            calls += self.calls(queue.limit, {"entrypoint": "work", "per": 5}, {"rate": [*BAD_COUNTS, None]})
            calls += self.calls(queue.limit, {"entrypoint": "work", "rate": 5}, {"per": [*BAD_DURATIONS, 0, None]})
            calls += self.calls(
                queue.limit, {"entrypoint": "work", "key_rate": 5}, {"key_per": [*BAD_DURATIONS, 0, None]}
            )
            calls += self.calls(queue.limit, {}, {"entrypoint": [*BAD_NAMES, None]})
            for verb in (queue.pause, queue.resume):
                calls += self.calls(verb, {}, {"entrypoint": [*BAD_NAMES, None]})
            assert await self.refuse(queue, calls) == ""

    async def test_bad_changes_of_jobs_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule"]) as [queue]:
            job = await queue.enqueue("work", b"payload")
            good, time = {"job_id": job.id}, datetime(2030, 1, 1, tzinfo=UTC)
            calls = self.calls(queue.reschedule, good, {"delay": [*BAD_DURATIONS, None], "run_at": [NAIVE, "now", 5]})
            calls += self.calls(queue.reschedule, {**good, "delay": 5}, {"run_at": [time]})
            calls += self.calls(queue.reprioritise, good, {"priority": BAD_ENQUEUES["priority"]})
            calls += self.calls(queue.reschedule, {"delay": 5}, {"job_id": [*BAD_NAMES, None, job]})
            calls += self.calls(queue.reprioritise, {"priority": 5}, {"job_id": [*BAD_NAMES, None, job]})
            assert await self.refuse(queue, calls) == ""
            assert job == await self.held(queue, job)

    async def test_a_bad_cron_entry_is_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["schedules"], limits=Limits(payload_bytes=2000)) as [queue]:
            await queue.enqueue("work", b"payload")
            good = {"name": "the-name", "cron": "* * * * *", "entrypoint": "work"}
            calls = self.calls(queue.schedule, good, BAD_ENTRIES)
            calls += self.calls(queue.unschedule, {}, {"name": [*BAD_NAMES, None]})
            assert await self.refuse(queue, calls) == ""
            assert await queue.schedules() == []

    async def test_bad_operations_are_refused_before_the_good_ones_are_done(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "schedules", "transactions"]) as [queue]:
            await queue.enqueue("work", b"payload")
            good, wrong = SetLimits("work", running=3), "ack"
            bad: list[Any] = [SetLimits("work", rate=5), SetSchedule("the-name", "never", "work"), wrong]
            bad += [LastTransaction("")]
            bad += [Dequeue(holder=""), Dequeue(holder="a\nb"), Dequeue(through=-1)]
            calls = self.calls(lambda operation: queue.apply(good, operation), {}, {"operation": bad})
            calls += self.calls(lambda operation: queue.apply_each(good, operation), {}, {"operation": [wrong]})
            assert await self.refuse(queue, calls) == ""
            assert (await queue.read_state()).entrypoints == {}
