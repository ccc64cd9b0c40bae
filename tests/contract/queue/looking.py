"""Looking at the jobs of a queue one by one: each job of one version once, by filters, without a claim."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import JobStatus
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids

NUMBER = 12
"""Number of jobs that a test looks at."""


class LookingContract(QueueContractBase):
    """An iteration over jobs shows what the state shows, and changes nothing."""

    async def test_iterate_jobs_yields_each_job_once_as_the_state_has_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            for number in range(NUMBER):
                await queue.enqueue("work", b"%d" % number)
            await queue.dequeue("work")
            before = await self.fingerprint(queue)
            state = await other.read_state()
            found = [job async for job in other.iterate_jobs()]
            assert sorted(ids(state.jobs)) == sorted(ids(found))
            assert all(state.find(job.id) == job for job in found)
            assert before == await self.fingerprint(queue)

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

    @pytest.mark.parametrize(
        ("statuses", "options"),
        [(["claimed"], {}), ([], {"entrypoint": []}), ([], {"entrypoint": 7}), ([], {"id_prefix": 7})],
    )
    async def test_iterate_jobs_refuses_wrong_arguments_at_once(
        self, make_queue: QueueFactory, statuses: list[Any], options: dict[str, Any]
    ) -> None:
        async with self.queues(make_queue) as [queue]:
            with pytest.raises(InvalidJobError):
                queue.iterate_jobs(*statuses, **options)
