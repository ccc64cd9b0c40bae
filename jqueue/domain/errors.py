"""Every error that jqueue raises, under one base class.

The class tells the caller the fate of the operation:

* certainly not done: `InvalidJobError`, `DuplicateJobError`, `JobStateError`, `WorkerNotFoundError`,
  `GroupEndedError`, `ChangedMeanwhileError`, `QueueFullError`, `ClaimLostError`, `JobNotFoundError`,
  `DeadlineExceededError`, `CASConflictError`;
* no result to return: `JobFailedError`, `ResultNotKeptError`, `ResultTimeoutError`;
* perhaps done, at most once: `UnknownOutcomeError`, whose `resolve` finds out later;
* the store or its content is at fault: `StorageError` and its other subclasses.

No message carries a payload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from jqueue.domain.printable import counted, printable

__all__ = [
    "BlobMissingError",
    "CASConflictError",
    "ClaimLostError",
    "DeadlineExceededError",
    "DuplicateJobError",
    "GroupEndedError",
    "HistoryDamagedError",
    "InvalidBlobError",
    "InvalidJobError",
    "InvalidURLError",
    "JQueueError",
    "JobCancelledError",
    "JobFailedError",
    "JobNotFoundError",
    "JobStateError",
    "JobsUnreadableError",
    "MissingFolderError",
    "NotLoadedError",
    "ObjectDamagedError",
    "ObjectMissingError",
    "QueueClosedError",
    "QueueFullError",
    "QueueMissingError",
    "ResultNotKeptError",
    "ResultTimeoutError",
    "ResultWantedError",
    "SegmentDamagedError",
    "StepError",
    "StorageError",
    "StorageFatalError",
    "StorageThrottledError",
    "UnknownOutcomeError",
    "WorkerNotFoundError",
]

Answer = TypeVar("Answer")

SHOWN = 80
"""Number of characters of a value that an error shows."""


def shown(value: object) -> str:
    """Return a value as an error may show it: printable, and at most about `SHOWN` characters long."""
    try:
        text = repr(value)
    except Exception:  # a number of more than 4300 digits, or a class of the caller's
        return f"<{type(value).__name__}>"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return text if text.isprintable() else ascii(text)


class JQueueError(Exception):
    """Base class of every error that jqueue raises."""


class InvalidJobError(JQueueError, ValueError):
    """An argument was refused before anything was sent. Nothing changed."""


class InvalidURLError(JQueueError, ValueError):
    """The URL of a queue is wrong. The message says why and shows a correct one, but quotes nothing of the URL."""


class MissingFolderError(InvalidURLError):
    """The URL or path names a file in a folder that does not exist. The message names the folder and a remedy.

    Attributes:
        folder: its path.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"the folder {folder!r} does not exist: correct the path, or create the folder. To have the first "
            "job create it, give create=True in Python, ?create=true in a URL, or --create on the command line"
        )
        self.folder = folder


class QueueFullError(JQueueError):
    """The blob, or the buffer before it, has no room for another job. Nothing changed."""


class QueueClosedError(JQueueError):
    """The queue is not open: its `async with` has not begun, or has ended. Nothing changed."""


class DuplicateJobError(JQueueError):
    """The unique key or the job id is taken. Nothing changed.

    Attributes:
        unique_key: the key that is taken; None if it is the id.
        job_id: the id of the job that holds it. If the failed call itself enqueued that job, it was undone.
    """

    def __init__(self, unique_key: str | None, job_id: str, reason: str = "that job still holds it") -> None:
        holder = f"Job id {job_id!r}" if unique_key is None else f"Unique key {unique_key!r}"
        by = "" if unique_key is None else f" by job {job_id!r}"
        super().__init__(f"{holder} is taken{by}: {reason}")
        self.unique_key = unique_key
        self.job_id = job_id


class JobNotFoundError(JQueueError):
    """No job in the queue has this id.

    Attributes:
        job_id: the requested id.
    """

    def __init__(self, job_id: str, message: str | None = None) -> None:
        super().__init__(message or f"Job {job_id!r} not found in queue state")  # the text of 1.0.0
        self.job_id = job_id


class JobStateError(JQueueError):
    """The job is in the queue, but its status does not allow the operation. Nothing changed.

    Attributes:
        job_id: the id of the job.
        status: its current status.
    """

    def __init__(self, job_id: str, status: str, reason: str) -> None:
        super().__init__(f"Job {job_id!r} is {status}: {reason}")
        self.job_id = job_id
        self.status = status


class WorkerNotFoundError(JQueueError):
    """No worker with a record in the queue has this name. Nothing changed.

    Attributes:
        worker: the requested name.
    """

    def __init__(self, worker: str) -> None:
        super().__init__(
            f"No worker {shown(worker)} in the queue: give its name, or name@host:pid as `jqueue stats` shows it. A "
            "worker is there from two seconds after its start, and until an hour after its last commit"
        )
        self.worker = worker


class GroupEndedError(JQueueError):
    """The group takes no more jobs: it was closed and has ended, or the queue does not know it. Nothing changed.

    Attributes:
        group: its id.
    """

    def __init__(self, group: str, why: str) -> None:
        super().__init__(f"Group {shown(group)} {why}")
        self.group = group


class ChangedMeanwhileError(JQueueError):
    """The job or the rule is no longer as the caller has seen it. Nothing changed."""


class ClaimLostError(JobNotFoundError):
    """The caller does not hold the job's current claim. Nothing changed.

    Attributes:
        job_id: the id of the job.
        attempt: the attempt of the caller's claim; None if the caller gave a bare id that matched no claim.
        ended_here: True if the same queue object ended this claim before, by an ack or a nack.
    """

    def __init__(self, job_id: str, attempt: int | None = None, reason: str = "", *, ended_here: bool = False) -> None:
        claim = f"job {job_id!r}" if attempt is None else f"job {job_id!r}, attempt {attempt}"
        super().__init__(job_id, f"No current claim on {claim}" + (f": {reason}" if reason else ""))
        self.attempt = attempt
        self.ended_here = ended_here


class JobCancelledError(ClaimLostError):
    """The job was cancelled while it was in progress: stop the work, and nack, which removes it.

    The claim is still the caller's. An ack would finish the job as if nobody had cancelled it.

    The caller that waits for the result of a cancelled job gets this error, too.
    """

    def __init__(self, job_id: str, attempt: int | None = None) -> None:
        super().__init__(job_id, attempt)
        advice = "it has no result" if attempt is None else "stop working on it, and nack it"
        self.args: tuple[Any, ...] = (f"Job {job_id!r} was cancelled: {advice}",)


class JobFailedError(JQueueError):
    """The job whose result the caller awaited is dead.

    Attributes:
        job_id: the id of the job.
        error: the last error recorded with it, if any.
    """

    def __init__(self, job_id: str, error: str | None, dropped: int = 0) -> None:
        bytes_of_error = counted(dropped, "byte of its error was", "bytes of its error were")
        cut = f" ({bytes_of_error} not kept: the queue had no room for them)" if dropped else ""
        super().__init__(f"Job {job_id!r} is dead" + (f": {error}" if error else "") + cut)
        self.job_id = job_id
        self.error = error


class ResultWantedError(JQueueError):
    """The ack of a job withheld its result, and another job needs it: ack again with the result. Nothing changed.

    Attributes:
        job_id: the id of the job.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id!r} has children, which need its result: ack it with the result")
        self.job_id = job_id


class StepError(InvalidJobError):
    """A step of a job cannot be recorded, or what is recorded does not fit its function. The message quotes no result.

    A worker makes the job dead, as another try would do the step again.
    """


class ResultNotKeptError(JQueueError):
    """The job has finished, but its result is not in the queue. `enqueue(keep_result=...)` keeps results.

    Attributes:
        job_id: the id of the job.
        dropped: bytes of a result that the queue had no room for; 0 if it was not to be kept, could not be, or is no
            longer.
    """

    def __init__(self, job_id: str, dropped: int = 0) -> None:
        reason = (
            "its result is not in the queue: enqueue with keep_result, and fetch the result within that time. A worker "
            "that cannot keep a result logs a warning"
        )
        if dropped:
            reason = (
                f"its result of {counted(dropped, 'byte')} was not kept: the queue had no room for it. Keep results "
                "for a shorter time, store the data elsewhere and return its address, or raise the queue's limit with "
                "configure(blob_bytes=...)"
            )
        super().__init__(f"Job {job_id!r} has finished, but {reason}")
        self.job_id = job_id
        self.dropped = dropped


class ResultTimeoutError(JQueueError, TimeoutError):
    """The caller stopped waiting for a result: the job, or the group, has not finished in time. It goes on.

    Attributes:
        job_id: the id of the job or of the group.
    """

    def __init__(self, job_id: str, seconds: float, what: str = "Job") -> None:
        super().__init__(
            f"{what} {job_id!r} has not finished within {seconds:g} s: wait longer, or check that a worker takes its "
            f"entrypoint{'' if what == 'Job' else 's'}"
        )
        self.job_id = job_id


class CASConflictError(JQueueError):
    """A conditional write was refused: the object has changed since the caller read it.

    Storage adapters raise it. The queues retry, and raise it only if `max_retries` was set and is used up.
    """


class StorageError(JQueueError):
    """The store failed, or its content cannot be used.

    If an adapter raises this class itself, not a subclass, the queues retry until the deadline.

    Attributes:
        cause: the original exception, if there was one.
        nothing_written: True if an adapter is certain that its write did not happen and cannot happen later. The
            operation is then not done, and its outcome is never unknown.
        needs_user: True if it lasts until a user removes its cause, such as a full disk. It is logged at once.
    """

    nothing_written = needs_user = False
    cause: BaseException | None = None

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(f"{message}: {cause}" if cause is not None else message)
        self.cause = cause


class StorageThrottledError(StorageError):
    """The store asked for fewer requests (429, 503 SlowDown). Retried, more slowly."""


class StorageFatalError(StorageError):
    """Retrying cannot help: permission refused, bucket missing, a link where a file should be. Raised at once."""


class InvalidBlobError(StorageFatalError):
    """The object is not a queue that this version can read: truncated, foreign, or newer. It is left untouched."""


class BlobMissingError(StorageFatalError):
    """The object existed and is gone. This is never treated as an empty queue."""


class QueueMissingError(StorageError):
    """There is no queue to look at: the URL is wrong, or nothing was enqueued yet. A look does not create a queue."""

    def __init__(self, place: object) -> None:
        name = printable(place if isinstance(place, str) else repr(place))
        super().__init__(f"there is no queue at {name}: check the URL; the first enqueue creates a queue")


class ObjectMissingError(StorageFatalError):
    """An object beside the queue's does not exist. The queue and all other objects can still be used.

    Attributes:
        name: the name of the object, as users know it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: the object does not exist: it was removed, or never created. Restore it from a backup if you can"
        )
        self.name = name


class ObjectDamagedError(StorageFatalError):
    """An object beside the queue's does not have the content that was stored. The queue can still be used.

    Attributes:
        suffix: the end of the object's name, after the name of the queue's object.
    """

    def __init__(self, suffix: str, what: str) -> None:
        super().__init__(
            f"the object {suffix!r} beside the queue was changed: {what}. Restore it from a backup if you can"
        )
        self.suffix = suffix


class SegmentDamagedError(StorageFatalError):
    """A segment that the operation needs cannot be read. The jobs outside of it are not affected.

    Attributes:
        suffix: the end of the segment's name, after the name of the queue's object.
        why: the reason.
        lasts: False if the store only does not answer: an atomic call that must know then waits until its deadline.
    """

    def __init__(
        self,
        suffix: str,
        why: str = "it is missing or was changed",
        *,
        lasts: bool = True,
    ) -> None:
        super().__init__(
            f"the segment {suffix!r} beside the queue cannot be read, and its jobs wait: {why}. Make it readable, "
            "restore it from a backup, or keep what can be read of it with `jqueue repair`"
        )
        self.suffix = suffix
        self.why = why
        self.lasts = lasts


class JobsUnreadableError(StorageError):
    """Jobs in segments could not be read. It is raised at the end, after all other jobs.

    Attributes:
        segments: the end of the name of each segment that cannot be read, with the reason.
    """

    def __init__(self, segments: Mapping[str, str]) -> None:
        said = "; ".join(f"segment {suffix}: {why}" for suffix, why in segments.items())
        them = "the segment" if len(segments) == 1 else "these segments"
        super().__init__(
            f"not all jobs could be read, and all others were: {said}. Make {them} readable, restore {them} from a "
            "backup, or keep what can be read with `jqueue repair`"
        )
        self.segments: dict[str, str] = dict(segments)


class HistoryDamagedError(StorageError):
    """Events of the history are missing. It is raised at the end, after all other events.

    Attributes:
        objects: names of the objects that are missing or cannot be read, each with the reason.
        gaps: first and last number of each range of events that is missing for another reason.
        lost: number of events that were dropped because no writer could move them beside the queue.
    """

    def __init__(self, objects: Sequence[str], gaps: Sequence[tuple[int, int]], lost: int) -> None:
        said = [f"these objects cannot be read: {'; '.join(objects)}"] if objects else []
        if gaps:
            said.append(f"events {', '.join(f'{first} to {last}' for first, last in gaps)} are missing")
        if lost:
            said.append(f"{counted(lost, 'event was', 'events were')} dropped, as no writer could move them")
        super().__init__(f"the history is not complete, and all other events were read: {'; '.join(said)}")
        self.objects: tuple[str, ...] = tuple(objects)
        self.gaps: tuple[tuple[int, int], ...] = tuple(gaps)
        self.lost = lost


class DeadlineExceededError(StorageError, TimeoutError):
    """The deadline passed, and the operation was certainly not done."""


class UnknownOutcomeError(StorageError):
    """The operation was sent, and its outcome is not known yet. It takes effect at most once.

    Attributes:
        job_ids: the ids of the operation's jobs (for an enqueue, the ids that the new jobs have if it landed).
    """

    job_ids: tuple[str, ...] = ()
    _resolver: Callable[[float | None], Awaitable[Any]] | None = None
    _convert: Callable[[Any], Any] = staticmethod(lambda results: results)

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        *,
        job_ids: Sequence[str] = (),
        resolver: Callable[[float | None], Awaitable[Any]] | None = None,
    ) -> None:
        super().__init__(message, cause)
        self.job_ids = tuple(job_ids)
        self._resolver = resolver

    async def resolve(self, timeout: timedelta | float | None = None) -> Any:
        """Find out the outcome of the operation, and return its result if it took effect.

        Args:
            timeout: seconds or timedelta to keep trying; the queue's deadline by default.

        Returns:
            The operation's own result. A dequeue returns an empty list, and `claim_lease` None, as what they claimed
            has been handed back.

        Raises:
            DeadlineExceededError: it certainly did not take effect, and never will.
            UnknownOutcomeError: the outcome is still not known. This is the same error again.
        """
        if self._resolver is None:
            raise self
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            return self._convert(await self._resolver(seconds))
        except UnknownOutcomeError as error:
            raise self from error.__cause__

    def returning(self, convert: Callable[[Any], Any]) -> UnknownOutcomeError:
        """Set the function that turns the operation's results into the call's result, and return this error."""
        self._convert = convert
        return self


async def certain(call: Awaitable[Answer], seconds: float) -> Answer:
    """Return the answer of a call. If its outcome is not known at its deadline, try some seconds longer to find out.

    Raises:
        UnknownOutcomeError: the outcome is still not known.
        JQueueError: the call was certainly not carried out.
    """
    try:
        return await call
    except UnknownOutcomeError as error:
        answer: Answer = await error.resolve(seconds)
        return answer


class NotLoadedError(UnknownOutcomeError):
    """The payloads of claimed jobs could not be loaded. The claims are handed back, so `resolve` returns no jobs."""

    def __init__(self, cause: BaseException | None = None, reason: str = "could not be loaded") -> None:
        super().__init__(f"payloads of claimed jobs {reason}, and the claims are handed back", cause, resolver=_no_jobs)


async def _no_jobs(timeout: float | None) -> list[Any]:
    return []


class BatchUnknownError(UnknownOutcomeError):
    """It can no longer be known whether a batch of calls was done that one process has committed for another."""
