"""`jqueue doctor URL`: tries the user's store, and says whether a queue is safe there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli import probes
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import UNUSABLE, show_json
from jqueue.cli.probes import NotTriedError, ProbeContext, Result, noted
from jqueue.cli.progress import jobs_counted
from jqueue.cli.repair import ABSENT, queue_object, segments
from jqueue.connect import open_storage
from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.printable import counted, printable
from jqueue.ports.storage import SupportsRelease, SupportsScratch, SupportsWriteCheck, describe
from jqueue.runtime.system import SystemClock, SystemEntropy

SAFE = (
    "Safe. If several writers compete, exactly one wins and the others are told so. No acknowledged write is lost. A "
    "queue needs nothing else from a store."
)
NO_QUEUE = "There is no queue here."
UNSAFE = "Not safe. Do not keep a queue here: it would"
DAMAGED = "The store is safe, but the queue is damaged: workers would"
DEAF = "This store seems to ignore the conditions of writes."
TWO_STEPS = (
    "Use another store: this one checks the condition first and writes later, and another write can come between. "
    "No setting can change that."
)

PLACES: dict[type, str] = {
    LocalFileSystemStorage: "A file serves the processes of one machine. Keep it on a local disk, not a network drive.",
    InMemoryStorage: "An in-memory queue belongs to one process and ends with it: use it for tests and trials.",
}
"""Advice on places, which no probe can see."""


OVERALL = 90.0
"""Seconds for all checks together that have a limit."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM. Others: 0 if the store is safe, 1 if it is not, 2 if it cannot be used."""

STYLES = {"passed": ("ok", "green"), "failed": ("FAILED", "bold red"), "noted": ("note", "yellow")}


Probe = Callable[[ProbeContext], Awaitable[Result | None]]
"""A check; it returns None if it says nothing about this store."""

CHECKS: dict[Probe, str] = {
    probes.create_only: "create an existing object",
    probes.right_etag: "write with the right etag",
    probes.stale_etag: "write with a stale etag",
    probes.absent_object: "write to an absent object",
    probes.round_trip: "round trip",
    probes.conditional_read: "conditional read",
    probes.racing_increments: f"{probes.WRITERS} x {probes.INCREMENTS} racing increments",
    probes.clock: "clock",
    queue_object: "the queue's object",
    segments: "segments of the queue",
}
"""The checks, with their titles in a table. In JSON, they have the names of their functions."""

LIMIT = 20.0
"""Seconds that a check may take. If it takes longer, the store has not answered."""

LIMITS: dict[Probe, float | None] = {probes.racing_increments: 45.0, segments: None}
"""Other limits. The time for the segments grows with the queue, and each call to them has a limit."""


@dataclass
class Report:
    """The result of the doctor.

    Attributes:
        jqueue: version of this program.
        place: name of the object in the URL.
        safe: True if a queue may be kept there; None if there is no verdict.
        status: the exit code.
        verdict: the verdict in a sentence.
        harm: the harm that the store would do to a queue.
        advice: the steps to take.
        checks: the checks that were made: name, outcome and detail of each.
        error: the reason why there is no verdict.
        left: the objects that could not be removed, each with the reason.
    """

    jqueue: str = __version__
    place: str = ""
    safe: bool | None = None
    status: int = UNUSABLE
    verdict: str | None = None
    harm: Sequence[str] = ()
    advice: Sequence[str] = ()
    checks: list[dict[str, str]] = field(default_factory=list)
    error: str | None = None
    left: Sequence[dict[str, str]] = ()

    def judge(self, results: dict[Probe, Result], storage: object) -> None:
        """Set the verdict on a storage."""
        failed = {probe: result for probe, result in results.items() if result.outcome == "failed"}
        self.safe, self.status = not failed, int(bool(failed))
        self.harm = _once(result.harm for result in failed.values())
        self.advice = _once(text for result in (failed or results).values() for text in result.advice)
        self.verdict = UNSAFE if failed else SAFE
        if not failed and results.get(queue_object) is ABSENT:
            self.verdict = f"{NO_QUEUE} {SAFE}"
        if not failed:
            self.advice = (*self.advice, *(text for kind, text in PLACES.items() if isinstance(storage, kind)))
        elif failed.keys() <= {queue_object, segments}:
            self.verdict = DAMAGED
        elif failed.keys() >= {probes.create_only, probes.stale_etag}:
            self.advice = (DEAF, *self.advice)
        elif failed.keys() == {probes.racing_increments}:
            self.advice = (TWO_STEPS,)


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, texts)))


def doctor(
    url: URL,
    as_json: AsJSON = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do not read the rows of segments, which takes long in a deep queue.")
    ] = False,
) -> None:
    """Check whether a store is safe for a queue, and the queue in it whole.

    The checks create objects of their own beside the queue, and remove them. The queue itself is not written. If it
    has segments, the last check reads all their rows, compares them with their checksums, their index and the queue,
    and looks for objects that nothing names. A million jobs take half a minute. With --quick, it only looks whether
    all segments exist.

    Exits with 0 if all is well, 1 if the store is not safe or the queue is damaged, 2 if the URL is wrong or the store
    cannot be used.
    """
    report = _examine(url, quick=quick)
    if as_json:
        show_json({"object" if name == "place" else name: value for name, value in asdict(report).items()})
    else:
        _show(report)
    raise typer.Exit(report.status)


def _examine(url: str, *, quick: bool) -> Report:
    """Examine the store of a URL, and show the progress if a terminal can show it."""
    report, results, context = Report(), dict[Probe, Result](), None
    try:
        storage = open_storage(url)
    except (ValueError, ImportError, StorageFatalError) as error:  # messages of errors about a URL hold no secrets
        report.error = str(error)
        return report
    report.place = describe(storage)
    try:
        if not isinstance(storage, SupportsScratch):
            raise StorageFatalError(
                f"{report.place} cannot be checked without touching the queue: its storage lacks the methods `beside` "
                "and `remove`, which create and remove objects for the checks. Test it with StorageContract of "
                "jqueue.testing instead"
            )
        context = ProbeContext(storage, SystemClock(), SystemEntropy(), quick=quick)
        asyncio.run(_make_checks(storage, context, results))
        report.judge(results, storage)
    except StorageError as error:
        report.error = f"could not find out whether this store is safe: {error}"
    except KeyboardInterrupt:
        report.error, report.status = "interrupted before all checks were done", INTERRUPTED
    except asyncio.CancelledError:
        report.error, report.status = "terminated before all checks were done", TERMINATED
    report.checks = [
        {"name": probe.__name__, "outcome": each.outcome, "detail": each.detail} for probe, each in results.items()
    ]
    if context is not None:
        left = [each for each in context.objects if each.may_exist]
        report.left = [{"object": describe(each.storage), "reason": each.left} for each in left]
    return report


async def _make_checks(storage: SupportsScratch, context: ProbeContext, results: dict[Probe, Result]) -> None:
    """Make the checks, one after the other, and remove their objects. Each result is added as soon as it is known.

    Raises:
        StorageError: the store refused, failed several times, or did not answer in time.
    """
    task, end = asyncio.current_task(), context.clock.monotonic() + OVERALL
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; or not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        if isinstance(storage, SupportsWriteCheck):
            await storage.check_writable()  # trials beside the queue's file do not show that it can be replaced
        with jobs_counted("", of_what="checks") as tell:
            async with context:
                for number, (probe, title) in enumerate(CHECKS.items()):
                    tell(number, len(CHECKS), title)
                    context.tell = partial(tell, number, len(CHECKS))
                    result = await _result(probe, context, end - context.clock.monotonic())
                    if result is not None:
                        results[probe] = result
                tell(len(CHECKS), len(CHECKS), "cleaning up")
    finally:
        if isinstance(storage, SupportsRelease):
            await storage.release()


async def _result(probe: Probe, context: ProbeContext, left: float) -> Result | None:
    """Make one check. It ends within its limit, and within the seconds that are left for all checks with a limit."""
    limit = LIMITS.get(probe, LIMIT)
    seconds = None if limit is None else max(0.0, min(limit, left))
    try:
        async with asyncio.timeout(seconds):
            return await probe(context)
    except NotTriedError as why:
        return noted(f"not tried: {why}")
    except TimeoutError as error:
        last = context.last_error or "the store did not answer"
        raise StorageError(f'the check "{CHECKS[probe]}" did not end within {seconds or 0:.0f} s: {last}') from error


def _show(report: Report) -> None:
    """Print a report for people: the findings to stdout, the errors to stderr."""
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    if report.checks:
        titles = {probe.__name__: title for probe, title in CHECKS.items()}
        table = Table("check", "result", "details", box=box.SIMPLE_HEAD, pad_edge=False)
        table.columns[0].no_wrap = table.columns[1].no_wrap = True
        for each in report.checks:
            table.add_row(titles[each["name"]], Text(*STYLES[each["outcome"]]), Text(printable(each["detail"])))
        console.print(Text(report.place, "bold"), table)
    if report.verdict is not None:
        console.print(Text(report.verdict, "bold green" if report.safe else "bold red"))
        for harm in report.harm:
            console.print(_item(harm))
        if report.advice:
            console.print(Text("\nWorth knowing:" if report.safe else "\nWhat to do:"))
        for advice in report.advice:
            console.print(_item(advice))
    if report.error:
        errors.print(Text(f"jqueue doctor: {printable(report.error)}"))
    if report.left:
        left = counted(len(report.left), "object")
        errors.print(Text(f"jqueue doctor: {left} of the checks may be left behind. Please remove by hand:"))
        for each in report.left:
            errors.print(Text(f"  {each['object']}"))
    for reason in _once(each["reason"] for each in report.left):
        errors.print(Text(f"  reason: {printable(reason)}"))


def _item(text: str) -> Table:
    """Return a text as an item of a list, with its lines aligned."""
    item = Table.grid(padding=(0, 1))
    item.add_row(" -", Text(text))
    return item
