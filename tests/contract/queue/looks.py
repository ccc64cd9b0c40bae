"""Looking at a queue: its state, its jobs one by one, its history; payloads stay private."""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import HistoryDamagedError, InvalidJobError, JobNotFoundError
from jqueue.domain.history import EVENTS_PER_OBJECT
from jqueue.domain.job import JobStatus, Progress
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack, Heartbeat, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.queue import JobQueue, SupportsHistory, SupportsPeek
from jqueue.ports.storage import SupportsObjects
from jqueue.testing.queue_contract import (
    PAYLOAD,
    SPOKEN,
    QueueContractBase,
    QueueFactory,
    events_of,
    ids,
    in_a_line,
)


class ContentContract(QueueContractBase):
    """The blob is plain text, mendable and private. Reading it changes nothing."""

    async def test_the_id_of_a_job_that_cannot_be_read_is_not_given_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["job_ids"]) as [queue]:
            await queue.enqueue("work", b"payload", job_id="the-id")
            await self.rewrite(queue, in_a_line(b'"work"', b"[5]"))
            before = await self.fingerprint(queue)
            with pytest.raises(InvalidJobError, match="the-id"):
                await queue.enqueue("work", b"another", job_id="the-id")
            assert before == await self.fingerprint(queue)

    async def test_no_repr_shows_a_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = await queue.enqueue("work", PAYLOAD)
            [job] = await queue.dequeue()
            await queue.enqueue("broken", PAYLOAD)
            if hasattr(queue, "storage"):
                await self.rewrite(queue, in_a_line(b'"broken"', b"[5]"))
            state = await queue.read_state()
            operations = [Enqueue("work", PAYLOAD), Ack(job), Nack(job), Heartbeat((job,))]
            for value in (queue, enqueued, job, state, state.jobs, state.set_aside, await queue.stats(), operations):
                self.assert_private(repr(value))
                self.assert_private(str(value))

    async def test_no_error_and_no_log_shows_a_payload(
        self, make_queue: QueueFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        async with self.queues(make_queue, 2, ["fencing"], limits=Limits(payload_bytes=100)) as [queue, other]:
            job, taken, lost = [await self._claimed(queue, number) for number in range(3)]
            await other.nack(lost)
            raised: list[Exception] = []
            for provoke in self._provocations(queue, job, taken, lost):
                try:
                    await provoke()
                except Exception as refusal:  # other tests check its type
                    raised.append(refusal)
            if hasattr(queue, "storage"):
                for text, other_text in ((SPOKEN[1].encode(), PAYLOAD), (b'"entrypoint":"work"', b'"entrypoint":5')):
                    await self.rewrite(queue, in_a_line(text, other_text))
                    await queue.dequeue("nobody")
                assert "set aside" in caplog.text
        for error in raised:
            self.assert_private(repr(error))
            self.assert_private("".join(traceback.format_exception(error)))
        for record in caplog.records:
            self.assert_private(f"{record.getMessage()} {record.__dict__!r}")
        self.assert_private(caplog.text)

    async def _claimed(self, queue: JobQueue, number: int) -> Job:
        await queue.enqueue("work", PAYLOAD + b"%d" % number)
        [job] = await queue.dequeue("work")
        return job

    def _provocations(self, queue: JobQueue, job: Job, taken: Job, lost: Job) -> list[Callable[[], Awaitable[object]]]:
        """Return calls that are refused, each with the payload among its arguments."""
        wrong: Any = PAYLOAD.decode()
        mistaken: Any = job
        mapping: Any = {"payload": PAYLOAD}
        unknown = Job(entrypoint="work", payload=PAYLOAD, status=JobStatus.IN_PROGRESS, attempt=1)
        good = Enqueue("work", PAYLOAD)

        async def model(**fields: Any) -> Job:
            return Job(**fields)

        return [
            lambda: queue.enqueue("work", wrong),
            lambda: queue.enqueue("work", PAYLOAD * 10),
            lambda: queue.enqueue("work", PAYLOAD, 2**40),
            lambda: queue.enqueue("work", PAYLOAD, headers={"payload": mapping}),
            lambda: queue.ack(lost),
            lambda: queue.nack(lost, error=PAYLOAD.decode()),
            lambda: queue.heartbeat(lost),
            lambda: queue.ack(unknown),
            lambda: queue.ack(mapping),
            lambda: queue.cancel(mistaken),
            lambda: queue.redrive(taken.id),
            lambda: queue.apply(good, Ack(lost)),
            lambda: queue.apply(good, mistaken),
            lambda: queue.enqueue_many([good, Enqueue("work", PAYLOAD, 2**40)]),
            lambda: model(entrypoint=5, payload=PAYLOAD),
            lambda: model(entrypoint="work", payload=[PAYLOAD]),
        ]


NUMBER = 12
"""Number of jobs that a test looks at."""


class LookingContract(QueueContractBase):
    """An iteration over jobs shows what the state shows, and changes nothing."""

    async def test_progress_is_kept_until_the_next_claim(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["steps", "dead_letters"]) as [queue, other]:
            job, idle = await self.one_job(queue), await self.one_job(queue)
            reports = Progress(3, 10, "page 3" * 100), None
            assert await queue.apply_each(Heartbeat((job, idle), tolerant=True, progress=reports)) == [[]]
            progress = (await self.held(other, job)).progress
            assert progress is not None
            assert progress[:3] == (3, 10, ("page 3" * 100)[:120])
            assert progress.at is not None
            assert progress.at >= job.created_at
            assert (await self.held(other, idle)).progress is None
            await queue.heartbeat_many([job, idle])
            assert (await self.held(other, job)).progress == progress
            for wrong in (Progress(11, 10), Progress(-1), Progress(1, -1)):
                [refused] = await queue.apply_each(Heartbeat((job,), progress=(wrong,)))
                assert isinstance(refused, InvalidJobError)
            await queue.nack(job, error="boom")
            assert (await self.held(other, job)).progress == progress, "it tells how far a failed try came"
            [job] = await other.dequeue("work")
            assert job.progress is None

    async def test_a_watch_yields_each_state_of_a_job_until_it_ends(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["steps", "dead_letters", "job_ids", "wait"]) as [queue, other]:
            assert isinstance(other, SupportsPeek)
            done, dead, gone = [await queue.enqueue("work", b"payload") for _ in range(3)]
            seen: dict[str, list[tuple[JobStatus, Progress | None]]] = {}

            async def watch(job: Job | str) -> None:
                job_id = job if isinstance(job, str) else job.id
                async for state in other.watch(job):
                    seen.setdefault(job_id, []).append((state.status, state.progress))

            async def is_seen(job: Job, count: int) -> bool:
                return len(seen.get(job.id, ())) >= count

            watches = [asyncio.create_task(watch(each)) for each in (done, dead.id, gone)]
            for job in (done, dead, gone):
                await self.until(functools.partial(is_seen, job, 1))
            claimed = await queue.dequeue("work", batch_size=3)
            for job in (done, dead, gone):
                await self.until(functools.partial(is_seen, job, 2))
            await queue.apply(Heartbeat((claimed[0],), progress=(Progress(1, 2, "half"),)))
            await self.until(functools.partial(is_seen, done, 3))
            await queue.ack(claimed[0])
            await queue.nack(claimed[1], dead=True)
            await queue.nack(claimed[2])
            await self.until(functools.partial(is_seen, gone, 3))
            await queue.cancel(gone.id)
            await asyncio.gather(*watches)
            half = seen[done.id][2][1]
            assert half is not None
            assert half[:3] == (1, 2, "half")
            states = {job_id: [status for status, _ in states] for job_id, states in seen.items()}
            begin = [JobStatus.QUEUED, JobStatus.IN_PROGRESS]
            assert states == {
                done.id: [*begin, JobStatus.IN_PROGRESS, JobStatus.COMPLETED],
                dead.id: [*begin, JobStatus.DEAD],
                gone.id: [*begin, JobStatus.QUEUED],
            }
            with pytest.raises(JobNotFoundError, match="no-such-job"):
                await watch("no-such-job")

    async def test_iterate_jobs_yields_only_jobs_that_fit_all_filters(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            for number in range(NUMBER):
                await queue.enqueue("work", b"%d" % number)
            [held, *_] = await queue.dequeue("work", batch_size=2)
            jobs = (await queue.read_state()).jobs
            name = jobs[0].entrypoint  # a format without entrypoints has a name of its own

            async def found(*statuses: JobStatus, **options: Any) -> list[str]:
                return sorted(ids([job async for job in queue.iterate_jobs(*statuses, **options)]))

            def fitting(*statuses: JobStatus) -> list[str]:
                return sorted(job.id for job in jobs if job.status in statuses)

            assert fitting(JobStatus.IN_PROGRESS) == await found(JobStatus.IN_PROGRESS)
            assert fitting(JobStatus.QUEUED) == await found(JobStatus.QUEUED, entrypoint=[name, "another"])
            assert fitting(*JobStatus) == await found(JobStatus.QUEUED, JobStatus.IN_PROGRESS, entrypoint=name)
            assert [held.id] == await found(id_prefix=held.id)
            for other in ({"entrypoint": "another"}, {"id_prefix": "no id begins like this"}):
                assert await found(**other) == []
            assert await found(JobStatus.QUEUED, id_prefix=held.id) == []

    async def test_an_iteration_shows_the_version_with_which_it_began(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            known = {(await queue.enqueue("work", b"%d" % number)).id for number in range(NUMBER)}
            async with aclosing(queue.iterate_jobs()) as jobs:
                seen = [await anext(jobs)]
                for job in await other.dequeue("work", batch_size=NUMBER):
                    await other.ack(job)
                await other.enqueue("work", b"later")
                seen += [job async for job in jobs]
            assert (NUMBER, known) == (len(seen), set(ids(seen)))
            assert {JobStatus.QUEUED} == {job.status for job in seen}


NEEDS = ("history", "transactions", "errors")


QUEUED, IN_PROGRESS, DEAD = JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.DEAD


class HistoryContract(QueueContractBase):
    """A queue that is told to keeps the history of its jobs."""

    async def test_the_history_tells_what_happened_to_a_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            await queue.enqueue("work", b"before")
            assert (await other.configure(history=timedelta(days=1))).history == 86400
            job = await queue.enqueue("mail", b"payload", max_attempts=2)
            for error in (ValueError("no address"), "refused"):
                [claimed] = await other.dequeue("mail")
                await other.heartbeat(claimed)
                await other.nack(claimed, error=error)
            await queue.redrive(job.id)
            [claimed] = await queue.dequeue("mail")
            await queue.ack(claimed)

            events = await events_of(queue)
            assert [event.number for event in events] == list(range(1, 10))
            assert [(event.verb, event.before, event.after, event.attempt) for event in events] == [
                ("start", None, None, 0),
                ("enqueue", None, JobStatus.QUEUED, 0),
                ("dequeue", JobStatus.QUEUED, JobStatus.IN_PROGRESS, 1),
                ("nack", JobStatus.IN_PROGRESS, JobStatus.QUEUED, 1),
                ("dequeue", JobStatus.QUEUED, JobStatus.IN_PROGRESS, 2),
                ("nack", JobStatus.IN_PROGRESS, JobStatus.DEAD, 2),
                ("redrive", JobStatus.DEAD, JobStatus.QUEUED, 2),
                ("dequeue", JobStatus.QUEUED, JobStatus.IN_PROGRESS, 3),
                ("ack", JobStatus.IN_PROGRESS, None, 3),
            ]
            assert {(event.job_id, event.entrypoint) for event in events[1:]} == {(job.id, "mail")}
            assert [event.error for event in events if event.error] == ["ValueError: no address", "refused"]
            assert events[-1].holder == claimed.holder
            assert events[-1].created_at == job.created_at
            waits, runs = [event.wait_seconds for event in events], [event.run_seconds for event in events]
            assert [place for place, wait in enumerate(waits) if wait is not None] == [2, 4, 7]
            assert [place for place, run in enumerate(runs) if run is not None] == [3, 5, 8]
            assert max(abs(event.at - job.created_at) for event in events) < timedelta(seconds=self.patience)

    async def test_the_history_can_be_searched(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.configure(history=3600, history_payloads=True)
            first = await queue.enqueue("mail", b"payload")
            second = await queue.enqueue("resize", b"")
            [claimed] = await queue.dequeue("mail")
            every = await events_of(queue)
            assert await events_of(queue, job_id=first.id) == [every[1], every[3]]
            assert await events_of(queue, entrypoint="resize") == [every[2]]
            time = every[2].at
            assert await events_of(queue, since=time) == [event for event in every if event.at >= time]
            assert await events_of(queue, until=time) == [event for event in every if event.at < time]
            assert await events_of(queue, job_id="unknown") == []
            assert [event.payload for event in every] == [None, b"payload", b"", None]
            assert "payload=" not in repr(every[1])
            assert (second.id, claimed.id) == (every[2].job_id, every[3].job_id)

    async def test_a_damaged_object_hides_nothing_else(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            storage = self.storage_of(queue)
            assert isinstance(storage, SupportsObjects)
            await queue.configure(history=3600)
            for count in range(1, 4):
                await queue.enqueue_many([Enqueue("work", b"") for _ in range(EVENTS_PER_OBJECT + 1)])
                await self.until_moved(queue, count)
            _, second, third = [each.suffix for each in await storage.list_beside(".history/")]
            content = await storage.read_object(second)
            await storage.remove_object(second)
            await storage.create_object(second, content[:-5])
            await storage.remove_object(third)
            await queue.enqueue("work", b"")
            found = []
            assert isinstance(queue, SupportsHistory)
            with pytest.raises(HistoryDamagedError) as refused:
                async for event in queue.history():
                    found.append(event.number)
            assert found == [3 * EVENTS_PER_OBJECT + 5, *range(EVENTS_PER_OBJECT + 2, 0, -1)]
            numbers = range(2, 3 * EVENTS_PER_OBJECT + 6, EVENTS_PER_OBJECT + 1)
            spans = [f"(events {first} to {first + EVENTS_PER_OBJECT})" for first in numbers[1:3]]
            damaged, missing = sorted(refused.value.objects)
            assert damaged.startswith(f"{second} {spans[0]}: its checksum does not match")
            assert missing == f"{third} {spans[1]}: it is missing"
