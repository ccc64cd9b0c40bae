"""The checks of `jqueue doctor`, in their order. They are made one after the other, each within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from jqueue.cli import load, probes, segment_probe
from jqueue.cli.probes import NotTriedError, ProbeContext, Result, noted
from jqueue.cli.scratch import ScratchSpace
from jqueue.domain.errors import StorageError
from jqueue.ports.clock import Clock

OVERALL = 90.0
"""Seconds for all checks together that have a limit."""


@dataclass(frozen=True)
class Check:
    """A probe, with its names.

    Attributes:
        name: its name in JSON.
        title: its name in a table.
        limit: seconds that it may take. If it takes longer, the store has not answered. None: it grows with the queue,
            and each of its calls has a limit.
        run: the probe; it returns None if it says nothing about this store.
    """

    name: str
    title: str
    limit: float | None
    run: Callable[[ProbeContext], Awaitable[Result | None]]


@dataclass(frozen=True)
class Finding:
    """A check that was made, and its result."""

    check: Check
    result: Result


CHECKS = (
    Check("create_only", "create an existing object", 20, probes.create_only),
    Check("right_etag", "write with the right etag", 20, probes.right_etag),
    Check("stale_etag", "write with a stale etag", 20, probes.stale_etag),
    Check("absent_object", "write to an absent object", 20, probes.absent_object),
    Check("etag_quoting", "etag quoting", 20, probes.etag_quoting),
    Check("round_trip", "round trip", 20, probes.round_trip),
    Check("conditional_read", "conditional read", 20, probes.conditional_read),
    Check("racing_creators", f"{probes.CREATORS} racing creators", 20, probes.racing_creators),
    Check("racing_increments", f"{load.WRITERS} x {load.INCREMENTS} racing increments", 45, load.racing_increments),
    Check("write_rate", "writes per second", 25, load.write_rate),
    Check("clock", "clock", 20, probes.clock_offset),
    Check("segments", "segments of the queue", None, segment_probe.segments),
)


async def examine(
    space: ScratchSpace,
    clock: Clock,
    findings: list[Finding],
    started: Callable[[Check, str], None] = lambda check, progress: None,
    *,
    quick: bool = False,
) -> None:
    """Make the checks, one after the other.

    Args:
        space: makes the objects to try.
        clock: measures the time, and is compared with the store's.
        findings: each finding is appended to it, as soon as it is known.
        started: called with each check before it is made, and with its progress in words during a long one.
        quick: True if no rows of segments are read.

    Raises:
        StorageError: the store refused, failed several times, or did not answer in time.
    """
    context = ProbeContext(space, clock, quick=quick)
    end = clock.monotonic() + OVERALL
    for check in CHECKS:
        started(check, "")
        context.tell = partial(started, check)
        seconds = None if check.limit is None else max(0.0, min(check.limit, end - clock.monotonic()))
        try:
            async with asyncio.timeout(seconds) as limit:
                result = await check.run(context)
        except NotTriedError as why:
            result = noted(f"not tried: {why}")
        except TimeoutError as error:
            if not limit.expired() or seconds is None:
                raise
            last = space.last_error or "the store did not answer"
            raise StorageError(f'the check "{check.title}" did not end within {seconds:.0f} s: {last}') from error
        if result is not None:
            findings.append(Finding(check, result))
