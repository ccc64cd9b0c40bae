"""Every error that jqueue raises, under one base class.

What matters to a caller is what happened to the operation, so that is what the classes say:

* certainly not done: `InvalidJobError`, `DuplicateJobError`, `JobStateError`, `QueueFullError`,
  `ClaimLostError`, `JobNotFoundError`, `DeadlineExceededError`, `CASConflictError`;
* a result that is not to be had: `JobFailedError`, `ResultNotKeptError`, `ResultTimeoutError`;
* perhaps done, at most once: `UnknownOutcomeError`, which can be asked later;
* the store or its content is at fault: `StorageError` and its other subclasses.

No message carries a payload.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

SHOWN = 80
"""So much of a value is shown in an error."""


def shown(value: object) -> str:
    """A value as an error may show it: printable, and not long."""
    try:
        text = repr(value)
    except Exception:  # a number of more than 4300 digits, or somebody's own class
        return f"<{type(value).__name__}>"
    text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return text if text.isprintable() else ascii(text)


class JQueueError(Exception):
    """Base class of every error that jqueue raises."""


class InvalidJobError(JQueueError, ValueError):
    """An argument was refused before anything was sent. Nothing changed."""


class InvalidURLError(JQueueError, ValueError):
    """The URL of a queue is wrong. The message says what about it, and shows a right one, but nothing of it."""


class MissingFolderError(InvalidURLError):
    """The URL or path names a file in a folder that does not exist. The message names the folder, and what to do.

    Attributes:
        folder: its path.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"the folder {folder!r} does not exist: correct the path, or create the folder. The first job creates "
            "it if that is asked for, by create=True in Python, ?create=true in a URL, or --create on the command line"
        )
        self.folder = folder


class QueueFullError(JQueueError):
    """The blob, or the buffer before it, has no room for another job. Nothing changed."""


class QueueClosedError(JQueueError):
    """The queue is not open: not entered yet, or left already. Nothing changed."""


class DuplicateJobError(JQueueError):
    """The unique key is taken. Nothing changed.

    Attributes:
        unique_key: the key that is taken.
        job_id: the id of the job that holds it. If the very call that failed enqueued it, it is undone.
    """

    def __init__(self, unique_key: str, job_id: str, reason: str = "a live job holds it") -> None:
        super().__init__(f"Unique key {unique_key!r} is taken by job {job_id!r}: {reason}")
        self.unique_key = unique_key
        self.job_id = job_id


class JobNotFoundError(JQueueError):
    """No such job in the queue.

    Attributes:
        job_id: the id that was asked for.
    """

    def __init__(self, job_id: str, message: str | None = None) -> None:
        super().__init__(message or f"Job {job_id!r} not found in queue state")
        self.job_id = job_id


class JobStateError(JQueueError):
    """The job is there, but not in a state in which this can be done to it. Nothing changed.

    Attributes:
        job_id: the job that was meant.
        status: the status that it has.
    """

    def __init__(self, job_id: str, status: str, reason: str) -> None:
        super().__init__(f"Job {job_id!r} is {status}: {reason}")
        self.job_id = job_id
        self.status = status


class ClaimLostError(JobNotFoundError):
    """The caller does not hold the job's current claim. Nothing changed.

    Attributes:
        job_id: the job that was meant.
        attempt: the attempt of the claim that was presented; None when a bare id matched no claim.
        ended_here: True when this very claim was ended through the same queue object, by an ack or a nack.
    """

    def __init__(self, job_id: str, attempt: int | None = None, reason: str = "", *, ended_here: bool = False) -> None:
        claim = f"job {job_id!r}" if attempt is None else f"job {job_id!r}, attempt {attempt}"
        super().__init__(job_id, f"No current claim on {claim}" + (f": {reason}" if reason else ""))
        self.attempt = attempt
        self.ended_here = ended_here


class JobCancelledError(ClaimLostError):
    """The job was cancelled while it was in progress: stop the work, and nack, which removes it.

    The claim is still the caller's. An ack would finish the job as if nobody had cancelled it.
    """

    def __init__(self, job_id: str, attempt: int | None = None) -> None:
        super().__init__(job_id, attempt)
        self.args = (f"Job {job_id!r} was cancelled: stop working on it, and nack it",)


class JobFailedError(JQueueError):
    """A result was waited for, and the job is dead.

    Attributes:
        job_id: the job.
        error: the last error that was recorded with it, if any.
    """

    def __init__(self, job_id: str, error: str | None, dropped: int = 0) -> None:
        cut = f" ({dropped} bytes of its error were not kept: the queue had no room for them)" if dropped else ""
        super().__init__(f"Job {job_id!r} is dead" + (f": {error}" if error else "") + cut)
        self.job_id = job_id
        self.error = error


class ResultNotKeptError(JQueueError):
    """A result was asked for, of a job that has finished and left none. `enqueue(keep_result=...)` keeps it.

    Attributes:
        job_id: the job.
        dropped: bytes of a result for which the queue had no room; 0 if it was not to be kept, or not any more.
    """

    def __init__(self, job_id: str, dropped: int = 0) -> None:
        reason = "its result was not kept: enqueue it with keep_result"
        if dropped:
            reason = (
                f"its result of {dropped} bytes was not kept: the queue had no room for it. Keep results for a shorter "
                "time, return the address of what is stored elsewhere, or raise configure(blob_bytes=...)"
            )
        super().__init__(f"Job {job_id!r} has finished, and {reason}")
        self.job_id = job_id
        self.dropped = dropped


class ResultTimeoutError(JQueueError, TimeoutError):
    """A result was waited for, and the job has not finished in time. It goes on.

    Attributes:
        job_id: the job.
    """

    def __init__(self, job_id: str, seconds: float) -> None:
        super().__init__(f"Job {job_id!r} has not finished within {seconds:g} s")
        self.job_id = job_id


class CASConflictError(JQueueError):
    """A conditional write was refused: the object is not what the caller last read.

    Storage adapters raise it; the queues retry it, and let it out only when `max_retries` was set and used up.
    """


class StorageError(JQueueError):
    """The store failed, or what it holds cannot be used.

    An adapter that raises this class itself says no more than "it failed": the queues retry it until the deadline.

    Attributes:
        cause: the exception underneath, if there was one.
        nothing_written: True if an adapter is certain that the write it was asked for did not happen and cannot happen
            later. The operation is then not done, and its outcome is never unknown.
    """

    nothing_written = False

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
    """The object was there and is gone. That is never taken for an empty queue."""


class DeadlineExceededError(StorageError, TimeoutError):
    """The deadline passed, and the operation was certainly not done."""


class UnknownOutcomeError(StorageError):
    """The operation was sent, and it cannot be said yet whether it took effect: at most once, in any case.

    Attributes:
        job_ids: the jobs that the operation was about (for an enqueue, the ids that the jobs have if it landed).
    """

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
        self._convert: Callable[[Any], Any] = lambda results: results

    async def resolve(self, timeout: timedelta | float | None = None) -> Any:
        """Find out what became of the operation, and return its result if it took effect.

        Args:
            timeout: how long to try, in seconds or as a timedelta; the queue's deadline by default.

        Returns:
            What the operation would have returned. A dequeue's claims were handed back meanwhile: an empty list.

        Raises:
            DeadlineExceededError: it certainly did not take effect, and never will.
            UnknownOutcomeError: it still cannot be said (this error again).
        """
        if self._resolver is None:
            raise self
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        try:
            return self._convert(await self._resolver(seconds))
        except UnknownOutcomeError as error:
            raise self from error.__cause__

    def returning(self, convert: Callable[[Any], Any]) -> UnknownOutcomeError:
        """The same error, whose resolution is turned by a function into what the call returns."""
        self._convert = convert
        return self
