"""Outcomes on their way to the queue, sent until the queue has answered.

Outcomes of one moment go in one call, but each can be refused alone. At most one batch is under way. Outcomes that come
meanwhile make the next one, so a slow store gets few and large commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from jqueue.core.queue_base import options_of
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
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.printable import counted
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.queue import SupportsApply
from jqueue.worker.held_jobs import HeldJob, HeldRange, Outcome
from jqueue.worker.job_log import about
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures, QueueHealth
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

MAX_BATCH = 1000
"""Largest number of outcomes in one call, unless the queue takes fewer."""

RESOLVE_TIMEOUT = 300.0
"""Seconds to find out if an outcome that must not be done twice was done, if its claim has no timeout."""


class OutcomeSender:
    """Sends the outcomes of a run.

    Args:
        queue: the queue to send them to.
        state: the state of the run, with the outcomes.
        job_runner: decides again what becomes of a job whose outcome was refused.
        entropy: draws the pauses after failures.
        health: is told of failed and answered calls.
    """

    def __init__(
        self, queue: SupportsApply, state: RunState, job_runner: JobRunner, entropy: Entropy, health: QueueHealth
    ) -> None:
        self._queue = queue
        self._state = state
        self._job_runner = job_runner
        self._batch_limit = min(MAX_BATCH, options_of(queue).limits.batch_size)
        self._failures = CallFailures("sending outcomes of jobs", entropy, health)
        self._own_tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Send outcomes as they come, until cancelled."""
        state = self._state
        try:
            while True:
                while not state.outcomes and not state.ranges.due:
                    await state.has_outcomes.wait()
                    if self._failure is not None:
                        raise self._failure
                taken = self._single(state.take_outcomes())
                try:
                    again, error = await self._send(taken)
                except BaseException:  # cancelled by a program that ends: the next call of `run` sends them again
                    self._take_back(taken)
                    raise
                if again:
                    state.put_back(again)
                for held in state.ranges.due:
                    held.ending = True
                    self._begin(self._end_range(held))
                state.wake_waiting()
                if error is None:
                    self._failures.clear()
                else:
                    await asyncio.sleep(self._failures.add(error))
        finally:
            for task in self._own_tasks:
                task.cancel()

    def _single(self, taken: list[Outcome]) -> list[Outcome]:
        """Return the outcomes of jobs that are claimed by themselves. Note the others with their ranges."""
        if not self._state.ranges:
            return taken
        single = []
        for outcome in taken:
            if outcome.held.range is None:
                single.append(outcome)
            else:
                outcome.held.range.outcomes[outcome.held.place] = outcome
        return single

    async def _end_range(self, held: HeldRange) -> None:
        """Send the end of a range until the queue has answered, or the claim is lost."""
        state, claim = self._state, held.claim
        state.ranges.added[claim.entrypoint] = len(held.companions) / claim.rows
        try:
            while held in state.ranges:
                try:
                    await self._commit_once(held, claim.held.claim_timeout)
                except QueueClosedError as error:
                    self._failure = error
                    state.has_outcomes.set()
                    return
                except JQueueError as error:
                    self._refused_end(held, error)
                else:
                    self._failures.clear()
                    self._settle_end(held)
        except asyncio.CancelledError:
            held.uncertain = True
            held.refused = held.refused or "the worker ended before the queue answered"
            raise
        finally:
            held.ending = False

    def _refused_end(self, held: HeldRange, error: JQueueError) -> None:
        """Decide how a range ends whose end the queue refused: the jobs that it may be for are given back."""
        if held not in self._state.ranges:
            return
        is_lost = isinstance(error, JobNotFoundError) and error.job_id == held.claim.id
        if not is_lost and held.companions:
            held.refused = f"{type(error).__name__}: {error}"
        elif isinstance(error, SegmentDamagedError) and not held.spoiled:
            held.spoiled = True
        elif not isinstance(error, UnknownOutcomeError):
            jobs = counted(held.claim.rows, "job")
            logger.warning("%s of %s are no longer claimed here: %s", jobs, held.claim.entrypoint, error)
            self._job_runner.lose_range(held)

    def _settle_end(self, held: HeldRange) -> None:
        """Note that the queue has done the end of a range."""
        state = self._state
        if held in state.ranges:
            for outcome in held.outcomes.values():
                is_back = held.spoiled or (held.refused is not None and outcome.companions)
                state.finish(outcome.held, "handed_back" if is_back else outcome.kind)
            state.sending -= len(held.outcomes)
            state.ranges.remove(held)
        state.wake_waiting()

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
        self._begin(self._send_until_answered(outcome))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="jqueue-worker-outcome")
        self._own_tasks.add(task)
        task.add_done_callback(self._own_tasks.discard)

    async def _send_until_answered(self, outcome: Outcome) -> None:
        state = self._state
        try:
            dropped = await self._commit_once(outcome, outcome.held.job.claim_timeout)
        except QueueClosedError as error:
            self._failure = error
            state.has_outcomes.set()
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

    async def _commit_once(self, outcome: Outcome | HeldRange, claim_timeout: float | None) -> object:
        """Have an outcome and its companions done in one commit, and not twice. Return the answer to the outcome.

        Raises:
            UnknownOutcomeError: it cannot be found out if they were done, and sent again they could be done twice. The
                caller sends a nack instead, which finds the claim lost if they were done.
            JQueueError: the queue refused them.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (claim_timeout or RESOLVE_TIMEOUT)
        unknown: UnknownOutcomeError | None = None
        while True:
            last_error: Exception
            try:
                if unknown is None:
                    results = await self._queue.apply(*outcome.companions, outcome.operation)
                else:
                    results = await unknown.resolve()
                return results[-1]
            except UnknownOutcomeError as error:
                outcome.uncertain = True
                if loop.time() >= until:
                    raise
                last_error = unknown = error
            except RETRIED_ERRORS as error:  # it was certainly not done
                last_error, unknown = error, None
            await asyncio.sleep(self._failures.add(last_error))

    async def _send_each(self, outcomes: list[Outcome]) -> tuple[list[Outcome], Exception | None]:
        """Send outcomes without companions in one call. Return the ones to send again, and the reason."""
        try:
            results = await self._queue.apply_each(*[outcome.operation for outcome in outcomes])
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
