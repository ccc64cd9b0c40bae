"""The hook that is called with each job that is dead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job, job_of
from jqueue.ports.log import Lines, Logger, logger_of
from jqueue.ports.observer import LandedCommit, Observer
from jqueue.worker.executions import HeldJob
from jqueue.worker.handler_errors import place_of, stack_of, traceback_of
from jqueue.worker.handler_options import OnDead
from jqueue.worker.job_log import about
from jqueue.worker.signatures import is_async
from jqueue.worker.threads import Threads

logger: Logger = logger_of("jqueue.worker")

AT_ONCE = 10
"""Number of calls of the hook at a time: many jobs may die with one worker."""


class Deaths(Observer):
    """Calls the hook for the jobs that this worker made dead, and those of lost workers that its queue object found.

    Args:
        hook: the hook.
        show_errors: True to log messages and tracebacks of its errors.
        ended: called when a call has ended.

    Attributes:
        calls: the calls of the hook that have not ended.
    """

    def __init__(self, hook: OnDead, show_errors: bool, ended: Callable[[], None]) -> None:
        self.calls: set[asyncio.Task[None]] = set()
        self._ended = ended
        self._hook = hook
        self._show_errors = show_errors
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._threads = Threads(AT_ONCE)

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        for job in commit.dead:
            self._begin(job_of(job))

    def failed_here(self, held: HeldJob) -> None:
        """Note that the last attempt of a job has failed here."""
        texts = {name: getattr(held.operation, name, None) for name in ("error", "traceback")}
        self._begin(held.job.model_copy(update={"status": JobStatus.DEAD, **texts}))

    def close(self) -> None:
        """Cancel the calls that have not ended."""
        for task in self.calls:
            logger.error("%s was cancelled, as the worker ends", task.get_name())
            task.cancel()
        self._threads.shutdown()

    def _begin(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._call(job), name=f"on_dead of job {job.id}")
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)
        task.add_done_callback(lambda _: self._ended())

    async def _call(self, job: Job) -> None:
        """Call the hook. Its errors are logged."""
        failure: BaseException | None = None
        try:
            async with self._turns:
                if is_async(self._hook):
                    value = self._hook(job)
                else:
                    value, failure = await self._threads.call(self._hook, job)
                if inspect.isawaitable(value):
                    await value
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            failure = error
        if failure is not None:
            place = place_of(stack_of(failure))
            text = f"{type(failure).__name__}{'' if place is None else f' at {place}'}"
            shown = Lines(traceback_of(failure)) if self._show_errors else text
            logger.error("on_dead failed for job %s (%s): %s", job.id, job.entrypoint, shown, extra=about(job))
