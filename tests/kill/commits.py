"""The commits, and one read, that are killed at each of their system calls: their start and their expected ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from jqueue import DirectQueue, Job, JobStatus, QueueState
from jqueue.operations import Ack, Enqueue
from tests.kill.folder import NAME, Folder
from tests.kill.journal import payload_of

LEFTOVER = f".{NAME}.left-by-a-killed-one.tmp"
_OLD = ("old-1", "old-2", "old-3")

Summary = dict[str, tuple[JobStatus, int]]
"""Each job with its status and attempt; a finished one as completed."""


@dataclass(frozen=True)
class Commit:
    """One call on a queue.

    Attributes:
        name: name of the call.
        call: function that makes the call, given a queue and the job that was claimed before.
        changes: the changes of the call to the summary.
        exists: True if a queue is there before, with jobs, one of them claimed, and a leftover of a killed writer.
        warm_up: call that the same process makes before.
        writes: True if the call commits.
    """

    name: str
    call: Callable[[DirectQueue, Job | None], Awaitable[Any]]
    changes: Summary
    exists: bool = True
    warm_up: Callable[[DirectQueue], Awaitable[Any]] | None = None
    writes: bool = True


def _enqueue(job_id: str) -> Callable[..., Awaitable[Any]]:
    return lambda queue, *_: queue.enqueue("t", payload_of(job_id), job_id=job_id)


def _apply(queue: DirectQueue, job: Job | None) -> Awaitable[Any]:
    assert job is not None
    return queue.apply(Ack(job), Enqueue("t", payload_of("new"), job_id="new"))


def _ack(queue: DirectQueue, job: Job | None) -> Awaitable[Any]:
    assert job is not None
    return queue.ack(job)


_NEW: Summary = {"new": (JobStatus.QUEUED, 0)}
_ACKED: Summary = {"old-1": (JobStatus.COMPLETED, 1)}

COMMITS = {
    commit.name: commit
    for commit in (
        Commit("first-enqueue", _enqueue("new"), _NEW, exists=False),
        Commit("enqueue", _enqueue("new"), _NEW),
        Commit("second-enqueue", _enqueue("new"), _NEW, warm_up=_enqueue("warm")),
        Commit("dequeue", lambda queue, _: queue.dequeue(), {"old-2": (JobStatus.IN_PROGRESS, 1)}),
        Commit("ack", _ack, _ACKED),
        Commit("apply", _apply, _NEW | _ACKED),
        Commit("look", lambda queue, _: queue.read_state(), {}, writes=False),
    )
}


async def prepare(queue: DirectQueue, folder: Folder) -> Job:
    """Enqueue some jobs, claim and return the first, and leave a temporary file as a killed writer does."""
    await queue.enqueue_many(Enqueue("t", payload_of(job_id), job_id=job_id) for job_id in _OLD)
    [job] = await queue.dequeue()
    (folder.path / LEFTOVER).write_bytes(b"half of a que")
    return job


def summary(state: QueueState | None) -> Summary:
    """Return the parts of a state that are compared."""
    if state is None:
        return {}
    finished: Summary = {job_id: (JobStatus.COMPLETED, attempt) for job_id, attempt in state.finished.items()}
    return finished | {job.id: (job.status, job.attempt) for job in state.jobs}
