"""Monitoring: read_state from a health check before, during and after the run of a broker."""

# mypy: ignore-errors

import asyncio
from datetime import UTC, datetime

from jqueue import BrokerQueue, InMemoryStorage, JobStatus


async def collect_metrics(q: BrokerQueue) -> dict:
    state = await q.read_state()
    now = datetime.now(UTC)
    queued = state.queued_jobs()
    return {
        "queue_depth": len(queued),
        "in_progress": len(state.in_progress_jobs()),
        "version": state.version,
        "oldest_queued_age_s": ((now - min(j.created_at for j in queued)).total_seconds() if queued else 0),
    }


async def main():
    q = BrokerQueue(InMemoryStorage())
    print(await collect_metrics(q))
    async with q:
        jobs = [await q.enqueue("report", b"%d" % number, priority=-number) for number in range(3)]
        await q.enqueue("mail", b"")
        [claimed] = await q.dequeue("report")
        metrics = await collect_metrics(q)
        print(0 <= metrics.pop("oldest_queued_age_s") < 60, metrics)
    state = await q.read_state()
    print([job.payload for job in state.queued_jobs("report")], len(state.queued_jobs(entrypoint="mail")))
    print([job.id == claimed.id for job in state.in_progress_jobs()], claimed.id == jobs[2].id)
    print(state.find(jobs[0].id).status is JobStatus.QUEUED, state.find(job_id="none"), len(state.jobs))


asyncio.run(main())
