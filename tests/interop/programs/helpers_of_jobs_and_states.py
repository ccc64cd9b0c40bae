"""Job, JobStatus and QueueState: construction, changes, queries, comparison, and conversion to JSON and back."""

# mypy: ignore-errors

import pickle
from datetime import UTC, datetime, timedelta

from jqueue import Job, JobNotFoundError, JobStatus, QueueState

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except (JobNotFoundError, ValueError, TypeError) as error:
        return type(error).__name__


def of_statuses():
    print(
        JobStatus.QUEUED,
        JobStatus("in_progress"),
        JobStatus.DEAD == "dead",
        f"{JobStatus.DEAD}",
        repr(JobStatus.QUEUED),
    )
    print(attempt(JobStatus, "lost"), isinstance(JobStatus.QUEUED, str), JobStatus.IN_PROGRESS.value)


def of_jobs():
    job = Job.new("task", b"\x00\xff", 3)
    print(job.entrypoint, job.payload, job.priority, job.status, job.heartbeat_at, len(job.id))
    print(abs(datetime.now(UTC) - job.created_at) < timedelta(minutes=1), job.id != Job.new("task", b"").id)
    print(Job.new(entrypoint="task", payload=b"", priority=1).priority, Job.new("task", b"").priority)
    claimed = job.with_status(JobStatus.IN_PROGRESS).with_heartbeat(NOON)
    print(claimed.status, claimed.heartbeat_at, job.status, job.heartbeat_at, claimed.id == job.id)
    print(claimed.with_heartbeat(None).heartbeat_at, claimed.with_status(status=JobStatus.DEAD).status)
    print(attempt(setattr, job, "priority", 1), attempt(Job, "positional"), attempt(lambda: Job(entrypoint="task")))
    print(job == job.with_heartbeat(None), job == claimed, hash(job) == hash(job.with_heartbeat(None)))
    print(Job.model_validate(job.model_dump()) == job, Job.model_validate_json(job.model_dump_json()) == job)
    print(pickle.loads(pickle.dumps(job)) == job, job.model_copy(update={"priority": 9}).priority)
    print(Job(entrypoint="task", payload="YWJj").payload, Job(entrypoint="task", payload=b"abc").payload)
    print(attempt(lambda: Job(entrypoint="task", payload="é")), attempt(lambda: Job(entrypoint="task", payload=1)))
    named = {"id": "a", "entrypoint": "e", "payload": b"p", "created_at": NOON}
    print(Job(**named).model_dump(mode="json", include={"id", "payload", "status", "priority", "heartbeat_at"}))
    print(Job(**named).model_dump()["payload"], Job(**named, status="in_progress").status)


def of_states():
    early, late = (
        Job(id=name, entrypoint=name, payload=b"", created_at=NOON + timedelta(seconds=later))
        for name, later in (("early", 0), ("late", 1))
    )
    empty = QueueState()
    print(empty.jobs, empty.version, empty.queued_jobs(), empty.in_progress_jobs(), empty.find("a"))
    state = empty.with_job_added(late).with_job_added(job=early)
    print(state.version, [job.id for job in state.jobs], empty.version)
    print([job.id for job in state.queued_jobs()], [job.id for job in state.queued_jobs("late")])
    state = state.with_job_replaced(late.model_copy(update={"priority": -1}))
    print(state.version, [job.id for job in state.queued_jobs()], [job.id for job in state.jobs])
    state = state.with_job_replaced(updated=early.with_status(JobStatus.IN_PROGRESS).with_heartbeat(NOON))
    print([job.id for job in state.in_progress_jobs()], [job.id for job in state.queued_jobs()])
    print(state.requeue_stale(NOON) is state, state.requeue_stale(cutoff=NOON) is state)
    requeued = state.requeue_stale(NOON + timedelta(microseconds=1))
    print(requeued.version - state.version, requeued.find("early").status, requeued.find("early").heartbeat_at)
    unconfirmed = state.with_job_replaced(early.with_status(JobStatus.IN_PROGRESS))
    print(unconfirmed.requeue_stale(NOON - timedelta(days=1)).find(job_id="early").status)
    removed = requeued.with_job_removed(job_id="early")
    print([job.id for job in removed.jobs], removed.version)
    print(attempt(removed.with_job_removed, "early"), attempt(removed.with_job_replaced, early))
    print(attempt(setattr, removed, "version", 1), QueueState(jobs=(early,), version=7).version)
    print(QueueState(jobs=[early]).jobs == (early,), QueueState(jobs=(early,)) == QueueState(jobs=(early,)))
    print(QueueState.model_validate_json(state.model_dump_json()) == state, pickle.loads(pickle.dumps(state)) == state)
    print(len(removed.with_job_added(late).jobs))


of_statuses()
of_jobs()
of_states()
