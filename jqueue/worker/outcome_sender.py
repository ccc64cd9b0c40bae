"""Outcomes on their way to the queue, sent until the queue has answered.

Outcomes of one moment go in one call, but each can be refused alone. At most one batch is under way. Outcomes that come
meanwhile make the next one, so a slow store gets few and large commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    JQueueError,
    QueueClosedError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.worker.claims import Claims
from jqueue.worker.executions import HeldJob
from jqueue.worker.job_log import about
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

MAX_BATCH = 1000
"""Largest number of outcomes in one call, unless the queue takes fewer."""


class OutcomeSender:
    """Sends the outcomes of a run.

    Args:
        claims: the claims that they end.
        state: the state of the run, with the outcomes.
        job_runner: decides again what becomes of a job whose outcome was refused.
        failures: the failed calls that send outcomes.
    """

    def __init__(self, claims: Claims, state: RunState, job_runner: JobRunner, failures: CallFailures) -> None:
        self._claims = claims
        self._state = state
        self._job_runner = job_runner
        self._batch_limit = min(MAX_BATCH, claims.limit)
        self._failures = failures
        self._own_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send outcomes as they come, until cancelled."""
        state = self._state
        try:
            while True:
                while not state.outcomes:
                    await state.has_outcomes.wait()
                    if isinstance(state.failure, QueueClosedError):
                        raise state.failure
                taken = [held for held in state.take_outcomes() if not self._claims.collect(held)]
                try:
                    again, error = await self._send(taken)
                except BaseException:  # cancelled by a program that ends: the next call of `run` sends them again
                    self._take_back(taken)
                    raise
                if again:
                    state.put_back(again)
                state.wake_waiting()
                if error is None:
                    self._failures.clear()
                else:
                    await asyncio.sleep(self._failures.add(error))
        finally:
            for task in self._own_tasks:
                task.cancel()

    def _take_back(self, taken: Sequence[HeldJob]) -> None:
        """Take back outcomes that were on their way. It is unknown if they have arrived."""
        plain = [held for held in taken if not held.companions]
        self._state.sending -= len(plain)
        unsettled = [held for held in plain if held in self._state.held]
        for held in unsettled:
            held.uncertain = True
        self._state.put_back(unsettled)

    async def _send(self, taken: list[HeldJob]) -> tuple[list[HeldJob], Exception | None]:
        """Send outcomes. Return the ones to send again, and the reason."""
        plain = [held for held in taken if not held.companions]
        if len(plain) < len(taken):
            for held in taken:
                if held.companions:
                    self._send_apart(held)
        again, error = await self._send_by(self._batch_limit, plain)
        self._state.sending -= len(plain)
        return again, error

    def _send_apart(self, held: HeldJob) -> None:
        """Send an outcome with companions in a task of its own.

        It must not be done twice, so it may take long to find out if it was done.
        """
        task = asyncio.create_task(self._send_until_answered(held), name="jqueue-worker-outcome")
        self._own_tasks.add(task)
        task.add_done_callback(self._own_tasks.discard)

    async def _send_until_answered(self, held: HeldJob) -> None:
        state = self._state
        try:
            dropped = await self._claims.commit_once(held, held.job.claim_timeout)
        except QueueClosedError as error:
            state.fail(error)
        except JQueueError as error:
            self._refused(held, error)
        except asyncio.CancelledError as error:  # by a program that ends
            held.uncertain = True
            self._job_runner.refuse(held, error)
            raise
        except Exception as error:  # raised by an operation or a queue of a user
            self._refused(held, JQueueError(f"the queue raised {type(error).__name__}"))
        else:
            self._done(held, dropped)
        finally:
            state.sending -= 1
            state.wake_waiting()

    async def _send_by(self, size: int, outcomes: Sequence[HeldJob]) -> tuple[list[HeldJob], Exception | None]:
        """Send outcomes without companions, `size` in a call. Return the ones to send again, and the reason."""
        again: list[HeldJob] = []
        last_error = None
        for start in range(0, len(outcomes), size):
            unsent, error = await self._send_each(outcomes[start : start + size])
            again += unsent
            last_error = error or last_error
        return again, last_error

    async def _send_each(self, outcomes: Sequence[HeldJob]) -> tuple[Sequence[HeldJob], Exception | None]:
        """Send outcomes without companions in one call. Return the ones to send again, and the reason."""
        try:
            results = await self._claims.queue.apply_each(*[held.operation for held in outcomes])
        except RETRIED_ERRORS as error:
            if isinstance(error, UnknownOutcomeError):
                for held in outcomes:
                    held.uncertain = True
            return outcomes, error
        except InvalidJobError as error:
            if len(outcomes) > 1:  # an outcome that cannot be sent must not hold up the others
                return await self._send_by(1, outcomes)
            results = [error]
        again: list[HeldJob] = []
        last_error: Exception | None = None
        for held, result in zip(outcomes, results, strict=True):
            if not isinstance(result, JQueueError):
                self._done(held, result)
            elif isinstance(result, RETRIED_ERRORS):
                again.append(held)
                last_error = result
            else:
                self._refused(held, result)
        return again, last_error

    def _done(self, held: HeldJob, dropped: object) -> None:
        """Note that an outcome is in the queue, which answers with the number of bytes that it had no room for."""
        if isinstance(dropped, int) and dropped:
            logger.warning(
                "job %s (%s): the queue was full and dropped %s of its %s: raise its size limit with "
                "configure(blob_bytes=...)",
                held.job.id,
                held.job.entrypoint,
                counted(dropped, "byte"),
                "result" if isinstance(held.operation, Ack) else "error",
                extra=about(held.job),
            )
        self._state.finish(held, is_certain=True)

    def _refused(self, held: HeldJob, error: JQueueError) -> None:
        """Handle an outcome that the queue refused."""
        job = held.job
        if _is_lost(job, error):
            if not held.uncertain:
                logger.warning(
                    "job %s (%s, attempt %d) is no longer claimed here: another worker has it, or it was removed",
                    job.id,
                    job.entrypoint,
                    job.tries,
                    extra=about(job),
                )
                held.outcome = "lost"
            self._state.finish(held)
        elif isinstance(held.operation, Ack):
            self._job_runner.refuse(held, error)
        else:
            logger.error("job %s (%s) cannot be handed back: %s", job.id, job.entrypoint, error, extra=about(job))
            held.outcome = "lost"
            self._state.finish(held)


def _is_lost(job: Job, error: JQueueError) -> bool:
    """True if an error says that the claim on this very job is over. Operations of `on_ack` may concern other jobs."""
    if not isinstance(error, JobNotFoundError) or isinstance(error, JobCancelledError):
        return False
    attempt = error.attempt if isinstance(error, ClaimLostError) else None
    return error.job_id == job.id and attempt in (None, job.attempt)
