"""Outcomes on their way to the queue, sent until the queue has answered.

Outcomes of one moment go in one call, but each can be refused alone. At most one batch is under way. Outcomes that come
meanwhile make the next one, so a slow store gets few and large commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    JQueueError,
    QueueClosedError,
    SegmentDamagedError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack
from jqueue.domain.printable import counted
from jqueue.worker.executions import HeldJob
from jqueue.worker.job_log import log_about
from jqueue.worker.queue_health import RETRIED_ERRORS
from jqueue.worker.run_state import RunState

MAX_BATCH = 1000
"""Largest number of outcomes in one call, unless the queue takes fewer."""

RESOLVE_TIMEOUT = 300.0
"""Seconds to find out if an outcome that must not be done twice was done, if its claim has no timeout."""

CALLS = "sending outcomes of jobs"


class OutcomeSender:
    """Sends the outcomes of a run.

    Args:
        state: the jobs of the run, with the outcomes.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._own_tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send outcomes as they come, until cancelled."""
        state = self._state
        try:
            while True:
                while not state.unsent:
                    await state.has_outcomes.wait()
                    if isinstance(state.slots.failure, QueueClosedError):
                        raise state.slots.failure
                plain = self._take()
                try:
                    failure = await self._send(plain)
                except BaseException:  # cancelled by a program that ends: the next call of `run` sends them again
                    for held in plain:
                        held.uncertain = True
                    raise
                finally:
                    unsent = set(state.unsent)  # a refused one has a new outcome there
                    state.unsent[:0] = [held for held in plain if held in state.held and held not in unsent]
                    state.wake_waiting()
                if failure is not None:
                    await asyncio.sleep(state.health.failed(CALLS, failure))
                elif plain:
                    state.health.answered(CALLS)
        finally:
            for task in self._own_tasks:
                task.cancel()

    def _take(self) -> list[HeldJob]:
        """Take all outcomes, which frees slots. Return those to send together; begin to send each other one alone."""
        plain: list[HeldJob] = []
        taken, self._state.unsent = self._state.unsent, []
        self._state.slots.wake()
        for held in taken:
            if not held.companions:
                plain.append(held)
                continue
            task = asyncio.create_task(self._send_once(held), name="jqueue-worker-outcome")
            self._own_tasks.add(task)
            task.add_done_callback(self._own_tasks.discard)
        return plain

    async def _send_once(self, end: HeldJob) -> None:
        """Send an outcome with companions. It may take long to find out if it was done."""
        state = self._state
        try:
            answer = await self._commit_once(end)
        except QueueClosedError as error:
            state.slots.fail(error)
        except asyncio.CancelledError as error:  # by a program that ends
            end.uncertain = True
            self._refused(end, error)
            raise
        except Exception as error:
            is_known = isinstance(error, JQueueError)  # others are raised by an operation or a queue of a user
            self._refused(end, error if is_known else JQueueError(f"the queue raised {type(error).__name__}"))
        else:
            state.health.answered(CALLS)
            self._done(end, answer)
        finally:
            state.wake_waiting()

    async def _commit_once(self, end: HeldJob) -> object:
        """Have an end and its companions done in one commit, and not twice. Return the answer to the end.

        Raises:
            UnknownOutcomeError: it cannot be found out if they were done, and sent again they could be done twice. The
                caller sends a nack instead, which finds the claim lost if they were done.
            JQueueError: the queue refused them.
        """
        loop = self._state.loop
        until = loop.time() + (end.job.claim_timeout or RESOLVE_TIMEOUT)
        unknown: UnknownOutcomeError | None = None
        while True:
            last_error: Exception
            try:
                if unknown is None:
                    results = await self._state.queue.apply(*end.companions, end.operation)
                else:
                    results = await unknown.resolve()
                return results[-1]
            except UnknownOutcomeError as error:
                end.uncertain = True
                if loop.time() >= until:
                    raise
                last_error = unknown = error
            except RETRIED_ERRORS as error:  # it was certainly not done
                if isinstance(error, SegmentDamagedError) and error.lasts:
                    raise
                last_error, unknown = error, None
            await asyncio.sleep(self._state.health.failed(CALLS, last_error))

    async def _send(self, outcomes: Sequence[HeldJob]) -> Exception | None:
        """Send outcomes without companions. Return an error that may pass: some outcomes must be sent again."""
        failure: Exception | None = None
        size = min(MAX_BATCH, self._state.call_limit)
        for start in range(0, len(outcomes), size):
            several = outcomes[start : start + size]
            for held, answer in zip(several, await self._answers(several), strict=True):
                if isinstance(answer, RETRIED_ERRORS):
                    failure = answer
                elif isinstance(answer, JQueueError):
                    self._refused(held, answer)
                else:
                    self._done(held, answer)
        return failure

    async def _answers(self, several: Sequence[HeldJob]) -> Sequence[object]:
        """Send outcomes in one call, and return the answers. One that cannot be sent must not hold up the others."""
        try:
            reports = self._state.reports.take(self._state.call_limit - len(several))
            answers = await self._state.queue.apply_each(*reports, *[held.operation for held in several])
            return answers[len(reports) :]
        except RETRIED_ERRORS as error:
            for held in several:
                held.uncertain = held.uncertain or isinstance(error, UnknownOutcomeError)
            return [error] * len(several)
        except InvalidJobError as error:
            if len(several) == 1:
                return [error]
            return [answer for held in several for answer in await self._answers([held])]

    def _done(self, end: HeldJob, dropped: object) -> None:
        """Note that an outcome is in the queue, which answers with the number of bytes that it had no room for."""
        if isinstance(dropped, int) and dropped:
            log_about(
                end.job,
                logging.WARNING,
                ": the queue was full and dropped %s of its %s: raise its size limit with configure(blob_bytes=...)",
                counted(dropped, "byte"),
                "result" if isinstance(end.operation, Ack) else "error",
            )
        self._state.finish(end, is_certain=True)

    def _refused(self, end: HeldJob, error: BaseException) -> None:
        """Handle an outcome that the queue refused, or whose sending was cancelled."""
        if isinstance(error, JQueueError) and _is_lost(end.job, error):
            if not end.uncertain:
                text = " is no longer claimed here: another worker has it, or it was removed"
                log_about(end.job, logging.WARNING, text)
                end.outcome = "lost"
            self._state.finish(end)
        elif isinstance(end.operation, Ack):
            self._state.refuse(end, error)
        else:
            log_about(end.job, logging.ERROR, " cannot be handed back: %s", error)
            end.outcome = "lost"
            self._state.finish(end)


def _is_lost(job: Job, error: JQueueError) -> bool:
    """True if an error says that the claim on this very job is over. Operations of `on_ack` may concern other jobs."""
    if not isinstance(error, JobNotFoundError) or isinstance(error, JobCancelledError):
        return False
    attempt = error.attempt if isinstance(error, ClaimLostError) else None
    return error.job_id == job.id and attempt in (None, job.attempt)
