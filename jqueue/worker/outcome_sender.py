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
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.worker.claims import Claims
from jqueue.worker.held_jobs import HeldJob, Outcome
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
                    if state.failure is not None:
                        raise state.failure
                taken = [outcome for outcome in state.take_outcomes() if not self._claims.collect(outcome)]
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

    def _take_back(self, taken: Sequence[Outcome]) -> None:
        """Take back outcomes that were on their way. It is unknown if they have arrived."""
        plain = [outcome for outcome in taken if not outcome.companions]
        self._state.sending -= len(plain)
        unsettled = [outcome for outcome in plain if outcome.held in self._state.held]
        for outcome in unsettled:
            outcome.uncertain = True
        self._state.put_back(unsettled)

    async def _send(self, taken: list[Outcome]) -> tuple[list[Outcome], Exception | None]:
        """Send outcomes. Return the ones to send again, and the reason."""
        plain = [outcome for outcome in taken if not outcome.companions]
        if len(plain) < len(taken):
            for outcome in taken:
                if outcome.companions:
                    self._send_apart(outcome)
        again: list[Outcome] = []
        last_error = None
        for start in range(0, len(plain), self._batch_limit):
            batch = plain[start : start + self._batch_limit]
            unsent, error = await self._send_each(batch)
            again += unsent
            last_error = error or last_error
        self._state.sending -= len(plain)
        return again, last_error

    def _send_apart(self, outcome: Outcome) -> None:
        """Send an outcome with companions in a task of its own.

        It must not be done twice, so it may take long to find out if it was done.
        """
        task = asyncio.create_task(self._send_until_answered(outcome), name="jqueue-worker-outcome")
        self._own_tasks.add(task)
        task.add_done_callback(self._own_tasks.discard)

    async def _send_until_answered(self, outcome: Outcome) -> None:
        state = self._state
        try:
            dropped = await self._claims.commit_once(outcome, outcome.held.job.claim_timeout)
        except QueueClosedError as error:
            state.fail(error)
        except JQueueError as error:
            self._refused(outcome, error)
        except asyncio.CancelledError:
            outcome.uncertain = True
            self._refused(outcome, UnknownOutcomeError("the worker ended before the queue answered"))
            raise
        except Exception as error:  # raised by an operation or a queue of a user
            self._refused(outcome, JQueueError(f"the queue raised {type(error).__name__}"))
        else:
            _log_dropped(outcome, dropped)
            state.finish(outcome.held, outcome.kind)
        finally:
            state.sending -= 1
            state.wake_waiting()

    async def _send_each(self, outcomes: list[Outcome]) -> tuple[list[Outcome], Exception | None]:
        """Send outcomes without companions in one call. Return the ones to send again, and the reason."""
        try:
            results = await self._claims.queue.apply_each(*[outcome.operation for outcome in outcomes])
        except RETRIED_ERRORS as error:
            if isinstance(error, UnknownOutcomeError):
                for outcome in outcomes:
                    outcome.uncertain = True
            return outcomes, error
        except InvalidJobError as error:
            if len(outcomes) == 1:
                self._refused(outcomes[0], error)
                return [], None
            return await self._send_singly(outcomes)
        again: list[Outcome] = []
        last_error: Exception | None = None
        for outcome, result in zip(outcomes, results, strict=True):
            if not isinstance(result, JQueueError):
                _log_dropped(outcome, result)
                self._state.finish(outcome.held, outcome.kind)
            elif isinstance(result, RETRIED_ERRORS):
                again.append(outcome)
                last_error = result
            else:
                self._refused(outcome, result)
        return again, last_error

    async def _send_singly(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], Exception | None]:
        """Send each outcome in a call of its own: an outcome that cannot be sent must not hold up the others."""
        again: list[Outcome] = []
        last_error = None
        for outcome in outcomes:
            unsent, error = await self._send_each([outcome])
            again += unsent
            last_error = error or last_error
        return again, last_error

    def _refused(self, outcome: Outcome, error: JQueueError) -> None:
        """Handle an outcome that the queue refused."""
        held = outcome.held
        if _is_lost(held, error):
            if not outcome.uncertain:
                logger.warning(
                    "job %s (%s, attempt %d) is no longer claimed here: another worker has it, or it was removed",
                    held.job.id,
                    held.job.entrypoint,
                    held.job.tries,
                    extra=about(held.job),
                )
            self._state.finish(held, outcome.kind if outcome.uncertain else "lost")
        elif isinstance(outcome.operation, Ack):
            held.sent = False
            self._job_runner.refuse(held, error, uncertain=outcome.uncertain)
        else:
            assert isinstance(outcome.operation, Nack)
            logger.error(
                "job %s (%s) cannot be handed back: %s", held.job.id, held.job.entrypoint, error, extra=about(held.job)
            )
            self._state.finish(held, "lost")


def _log_dropped(outcome: Outcome, dropped: object) -> None:
    """Log that the queue had no room for a result or for a whole error: an ack or nack returns the bytes dropped."""
    if isinstance(dropped, int) and dropped:
        job = outcome.held.job
        what = "result" if isinstance(outcome.operation, Ack) else "error"
        logger.warning(
            "job %s (%s): the queue was full and dropped %s of its %s: raise its size limit with "
            "configure(blob_bytes=...)",
            job.id,
            job.entrypoint,
            counted(dropped, "byte"),
            what,
        )


def _is_lost(held: HeldJob, error: JQueueError) -> bool:
    """True if an error says that the claim on this very job is over. Operations of `on_ack` may concern other jobs."""
    if not isinstance(error, JobNotFoundError) or isinstance(error, JobCancelledError):
        return False
    attempt = error.attempt if isinstance(error, ClaimLostError) else None
    return error.job_id == held.job.id and attempt in (None, held.job.attempt)
