"""The decision about a job that failed, with the place of its error, and the records that the log gets of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from jqueue.domain.errors import StepError
from jqueue.domain.job import SPARED_ERROR
from jqueue.domain.limits import ERROR_BYTES, cut_error
from jqueue.domain.models import Job
from jqueue.domain.printable import counted
from jqueue.ports.log import Lines, Logger, logger_of
from jqueue.worker.handler_errors import frames_of, place_of, stack_of, tail_of, traceback_of
from jqueue.worker.handler_options import HandlerOptions
from jqueue.worker.job_log import log_about
from jqueue.worker.payloads import PayloadError
from jqueue.worker.retries import Decision, Discard, Retry, Snooze, attempts_of, decide, error_text

logger: Logger = logger_of("jqueue.worker")

WITHOUT_TRACEBACK = (Retry, Discard, PayloadError, StepError)
"""Errors whose text says everything: their traceback would add nothing."""


def fail(
    error: BaseException,
    job: Job,
    options: HandlerOptions,
    jitter: Callable[[float], float],
    *,
    shows: bool = False,
    in_full: bool = False,
) -> Decision:
    """Decide what becomes of a job that failed, and log it.

    Args:
        error: the error.
        job: the job as it was claimed.
        options: of its handler.
        jitter: see `decide`.
        shows: True if the log may have the error in full. Of several jobs that fail by one error, the first has it.
        in_full: True if its text is logged too.
    """
    decision = decide(error, job, options.max_attempts, options.backoff, jitter, options.retry)
    if decision.kind == "snoozed":
        log_about(job, logging.DEBUG, " is snoozed for %g s", decision.delay)
    else:
        attempts, stack = attempts_of(job, options.max_attempts), stack_of(error)
        place = place_of(stack)
        if place is not None and not isinstance(error, WITHOUT_TRACEBACK):
            where = f" ({place.file}:{place.line})"
            text = cut_error(f"{decision.error}".rstrip(), ERROR_BYTES - len(where.encode())) + where
            decision = replace(decision, error=text, traceback=tail_of(stack))
        log_about(
            job,
            logging.ERROR if decision.dead else logging.WARNING,
            " failed: %s%s; %s (failure %d%s)",
            type(error).__name__,
            "" if place is None else f" at {place}",
            "dead" if decision.dead else f"next try in {decision.delay:,.1f} s",
            job.failures,
            "" if attempts == math.inf else f" of {attempts}",
        )
    if shows and in_full and not isinstance(error, Snooze):
        text = error_text(error) if isinstance(error, WITHOUT_TRACEBACK) else traceback_of(error)
        log_about(job, logging.WARNING, ": %s", Lines(text))
    elif shows and error.__traceback__ is not None and logger.isEnabledFor(logging.DEBUG):
        name, frames = type(error).__name__, Lines(frames_of(error))
        log_about(job, logging.DEBUG, ": %s was raised here:\n%s", name, frames)
    return decision


def worn_out(job: Job, options: HandlerOptions) -> Decision | None:
    """Return the decision about a job that has no attempts left as it is claimed, and log it. None: it has some."""
    claims = job.failures + bool(
        job.errors and job.errors[-1].text == SPARED_ERROR
    )  # that claim was a try all the same
    if claims <= 1 or claims <= attempts_of(job, options.max_attempts):
        return None
    times = counted(claims, "time")
    error = f"the job was claimed {times}, and its workers ended without reporting an outcome"
    log_about(job, logging.ERROR, " is dead: %s", error)
    return Decision("dead", error=error, dead=True)
