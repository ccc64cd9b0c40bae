"""`jqueue doctor URL`: tries the user's store, and says whether a queue is safe there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli import probes, segment_probe
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import show_json
from jqueue.cli.probes import NotTriedError, Outcome, ProbeContext, Result, noted
from jqueue.cli.progress import jobs_counted
from jqueue.cli.scratch import ScratchObject, ScratchSpace
from jqueue.connect import connect_storage
from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.printable import counted, printable
from jqueue.ports.clock import Clock
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease, SupportsScratch, SupportsWriteCheck, describe
from jqueue.runtime.system import SystemClock, SystemEntropy

SAFE = (
    "Safe. If several writers compete, exactly one wins and the others are told so. No acknowledged write is lost. A "
    "queue needs nothing else from a store."
)
UNSAFE = "Not safe. Do not keep a queue here: it would"
DAMAGED = "The store is safe, but the queue is damaged: workers would"
DEAF = "This store seems to ignore the conditions of writes."
TWO_STEPS = (
    "Use another store: this one checks the condition first and writes later, and another write can come between. "
    "No setting can change that."
)
RACES = {"racing_creators", "racing_increments"}

PLACES: dict[type, str] = {
    LocalFileSystemStorage: "A file serves the processes of one machine. Keep it on a local disk, not a network drive.",
    InMemoryStorage: "An in-memory queue belongs to one process and ends with it: use it for tests and trials.",
}
"""Advice on places, which no probe can see."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a storage.

    Attributes:
        safe: True if a queue may be kept there.
        text: the verdict in a sentence.
        harm: the harm that the store would do to a queue.
        advice: the steps to take.
    """

    safe: bool
    text: str
    harm: tuple[str, ...]
    advice: tuple[str, ...]


def judge(findings: Iterable[Finding], storage: object) -> Verdict:
    """Return the verdict on a storage."""
    results = {finding.check.name: finding.result for finding in findings}
    failed = {name: result for name, result in results.items() if result.outcome is Outcome.FAILED}
    advice = _once(text for result in (failed or results).values() for text in result.advice)
    if not failed:
        place = tuple(text for kind, text in PLACES.items() if isinstance(storage, kind))
        return Verdict(True, SAFE, (), advice + place)
    if failed.keys() == {"segments"}:
        return Verdict(False, DAMAGED, _once(result.harm for result in failed.values()), advice)
    if failed.keys() >= {"create_only", "stale_etag"}:
        advice = (DEAF, *advice)
    if failed.keys() <= RACES:
        advice = (TWO_STEPS,)
    return Verdict(False, UNSAFE, _once(result.harm for result in failed.values()), advice)


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))


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
    Check(
        "racing_increments", f"{probes.WRITERS} x {probes.INCREMENTS} racing increments", 45, probes.racing_increments
    ),
    Check("write_rate", "writes per second", 25, probes.write_rate),
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


SHOWN = {
    Outcome.PASSED: Text("ok", "green"),
    Outcome.FAILED: Text("FAILED", "bold red"),
    Outcome.NOTED: Text("note", "yellow"),
}


class Status(IntEnum):
    """Exit codes of the command."""

    SAFE = 0
    UNSAFE = 1
    UNUSABLE = 2
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass
class Examination:
    """One run of the doctor.

    Attributes:
        name: the name of the object in the URL.
        findings: the checks made, with their results.
        space: the objects tried; None if nothing was tried.
        verdict: the verdict; None if there is none.
        error: the reason why there is no verdict.
        status: the exit code.
    """

    name: str = ""
    findings: list[Finding] = field(default_factory=list)
    space: ScratchSpace | None = None
    verdict: Verdict | None = None
    error: str = ""
    status: Status = Status.UNUSABLE

    @property
    def left(self) -> list[ScratchObject]:
        """The objects that could not be removed."""
        return self.space.left if self.space else []


def doctor(
    url: URL,
    as_json: AsJSON = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read the rows of segments, which takes long in a deep queue.")
    ] = False,
) -> None:
    """Check whether a store is safe for a queue.

    The checks create objects of their own beside the queue, and remove them. The queue itself is not written. If it
    has segments, the last check reads all their rows, compares them with their checksums, their index and the queue,
    and looks for objects that nothing names. A million jobs take half a minute. With --quick, it only looks whether
    all segments exist.

    Exits with 0 if the store is safe, 1 if it is not, 2 if the URL is wrong or the store cannot be used.
    """
    examination = run(url, quick=quick)
    if as_json:
        show_json(as_values(examination))
    else:
        show(examination)
    raise typer.Exit(examination.status)


def run(url: str, *, quick: bool = False) -> Examination:
    """Examine the store of a URL, and show the progress if a terminal can show it."""
    examination = Examination()
    try:
        storage = connect_storage(url)
    except (ValueError, ImportError, StorageFatalError) as error:  # messages of errors about a URL hold no secrets
        examination.error = str(error)
        return examination
    examination.name = describe(storage)
    try:
        asyncio.run(_examine(storage, examination, quick=quick))
    except StorageError as error:
        examination.error = f"could not find out whether this store is safe: {error}"
    except KeyboardInterrupt:
        examination.error, examination.status = "interrupted before all checks were done", Status.INTERRUPTED
    except asyncio.CancelledError:
        examination.error, examination.status = "terminated before all checks were done", Status.TERMINATED
    else:
        examination.verdict = judge(examination.findings, storage)
        examination.status = Status.SAFE if examination.verdict.safe else Status.UNSAFE
    return examination


async def _examine(storage: ObjectStoragePort, examination: Examination, *, quick: bool) -> None:
    if not isinstance(storage, SupportsScratch):
        raise StorageFatalError(
            f"{examination.name} cannot be checked without touching the queue: its storage lacks the methods `beside` "
            "and `remove`, which create and remove objects for the checks. Test it with StorageContract of "
            "jqueue.testing instead"
        )
    _end_on_sigterm()
    try:
        if isinstance(storage, SupportsWriteCheck):
            await storage.check_writable()  # trials beside the queue's file do not show that it can be replaced
        with jobs_counted("", of_what="checks") as tell:

            def started(check: Check, progress: str) -> None:
                tell(CHECKS.index(check), len(CHECKS), f"{check.title} {progress}".rstrip())

            examination.space = ScratchSpace(storage, SystemEntropy())
            async with examination.space:
                await examine(examination.space, SystemClock(), examination.findings, started, quick=quick)
                tell(len(CHECKS), len(CHECKS), "cleaning up")
    finally:
        if isinstance(storage, SupportsRelease):
            await storage.release()


def _end_on_sigterm() -> None:
    """Remove the objects before the process ends, even if SIGTERM ends it."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; or not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def as_values(examination: Examination) -> dict[str, Any]:
    """Return an examination as JSON values."""
    verdict = examination.verdict
    return {
        "jqueue": __version__,
        "object": examination.name,
        "safe": verdict.safe if verdict else None,
        "status": int(examination.status),
        "verdict": verdict.text if verdict else None,
        "harm": verdict.harm if verdict else (),
        "advice": verdict.advice if verdict else (),
        "checks": [
            {"name": found.check.name, "outcome": found.result.outcome.value, "detail": found.result.detail}
            for found in examination.findings
        ],
        "error": examination.error or None,
        "left": [{"object": describe(made.storage), "reason": made.left} for made in examination.left],
    }


def show(examination: Examination) -> None:
    """Print an examination for people: the findings to stdout, the errors to stderr."""
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    if examination.findings:
        console.print(Text(examination.name, "bold"), _table(examination.findings))
    verdict = examination.verdict
    if verdict is not None:
        console.print(Text(verdict.text, "bold green" if verdict.safe else "bold red"))
        for harm in verdict.harm:
            console.print(_item(harm))
        if verdict.advice:
            console.print(Text("\nWhat to do:" if not verdict.safe else "\nWorth knowing:"))
        for advice in verdict.advice:
            console.print(_item(advice))
    if examination.error:
        errors.print(Text(f"jqueue doctor: {printable(examination.error)}"))
    if examination.left:
        left = counted(len(examination.left), "object")
        errors.print(Text(f"jqueue doctor: {left} of the checks may be left behind. Please remove by hand:"))
    for made in examination.left:
        errors.print(Text(f"  {describe(made.storage)}"))
    for reason in dict.fromkeys(made.left for made in examination.left if made.left):
        errors.print(Text(f"  reason: {printable(reason)}"))


def _table(findings: list[Finding]) -> Table:
    table = Table("check", "result", "details", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for found in findings:
        table.add_row(found.check.title, SHOWN[found.result.outcome], Text(printable(found.result.detail)))
    return table


def _item(text: str) -> Table:
    """Return a text as an item of a list, with its lines aligned."""
    item = Table.grid(padding=(0, 1))
    item.add_row(" -", Text(text))
    return item
