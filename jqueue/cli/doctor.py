"""`jqueue doctor URL`: tries the user's store, and says whether a queue is safe there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, NamedTuple

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
from jqueue.cli.repair import segments
from jqueue.connect import connect_storage
from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.printable import counted, printable
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


OVERALL = 90.0
"""Seconds for all checks together that have a limit."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM. Others: 0 if the store is safe, 1 if it is not, 2 if it cannot be used."""

STYLES = {"passed": ("ok", "green"), "failed": ("FAILED", "bold red"), "noted": ("note", "yellow")}


class Check(NamedTuple):
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
    Check("listing", "listing", 20, probes.listing),
    Check("segments", "segments of the queue", None, segments),
)


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

    def judge(self, results: dict[str, Result], storage: object) -> None:
        """Set the verdict on a storage."""
        failed = {name: result for name, result in results.items() if result.outcome == "failed"}
        self.safe, self.status = not failed, int(bool(failed))
        self.harm = _once(result.harm for result in failed.values())
        self.advice = _once(text for result in (failed or results).values() for text in result.advice)
        self.verdict = UNSAFE if failed else SAFE
        if not failed:
            self.advice = (*self.advice, *(text for kind, text in PLACES.items() if isinstance(storage, kind)))
        elif failed.keys() == {"segments"}:
            self.verdict = DAMAGED
        elif failed.keys() >= {"create_only", "stale_etag"}:
            self.advice = (DEAF, *self.advice)
        elif failed.keys() <= RACES:
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
    """Check whether a store is safe for a queue.

    The checks create objects of their own beside the queue, and remove them. The queue itself is not written. If it
    has segments, the last check reads all their rows, compares them with their checksums, their index and the queue,
    and looks for objects that nothing names. A million jobs take half a minute. With --quick, it only looks whether
    all segments exist.

    Exits with 0 if the store is safe, 1 if it is not, 2 if the URL is wrong or the store cannot be used.
    """
    report = examine(url, quick=quick)
    if as_json:
        show_json({"object" if name == "place" else name: value for name, value in asdict(report).items()})
    else:
        show(report)
    raise typer.Exit(report.status)


def examine(url: str, *, quick: bool = False) -> Report:
    """Examine the store of a URL, and show the progress if a terminal can show it."""
    report, results = Report(), dict[str, Result]()
    try:
        storage = connect_storage(url)
    except (ValueError, ImportError, StorageFatalError) as error:  # messages of errors about a URL hold no secrets
        report.error = str(error)
        return report
    report.place, context = describe(storage), None
    try:
        if not isinstance(storage, SupportsScratch):
            raise StorageFatalError(
                f"{report.place} cannot be checked without touching the queue: its storage lacks the methods `beside` "
                "and `remove`, which create and remove objects for the checks. Test it with StorageContract of "
                "jqueue.testing instead"
            )
        context = ProbeContext(storage, SystemClock(), SystemEntropy(), quick=quick)
        asyncio.run(_make_checks(storage, context, results))
    except StorageError as error:
        report.error = f"could not find out whether this store is safe: {error}"
    except KeyboardInterrupt:
        report.error, report.status = "interrupted before all checks were done", INTERRUPTED
    except asyncio.CancelledError:
        report.error, report.status = "terminated before all checks were done", TERMINATED
    else:
        report.judge(results, storage)
    report.checks = [{"name": name, "outcome": each.outcome, "detail": each.detail} for name, each in results.items()]
    if context is not None:
        left = [each for each in context.objects if each.may_exist]
        report.left = [{"object": describe(each.storage), "reason": each.left} for each in left]
    return report


async def _make_checks(storage: ObjectStoragePort, context: ProbeContext, results: dict[str, Result]) -> None:
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
                for number, check in enumerate(CHECKS):

                    def shown(progress: str, number: int = number, title: str = check.title) -> None:
                        tell(number, len(CHECKS), f"{title} {progress}".rstrip())

                    shown("")
                    context.tell = shown
                    result = await _result(check, context, end - context.clock.monotonic())
                    if result is not None:
                        results[check.name] = result
                tell(len(CHECKS), len(CHECKS), "cleaning up")
    finally:
        if isinstance(storage, SupportsRelease):
            await storage.release()


async def _result(check: Check, context: ProbeContext, left: float) -> Result | None:
    """Make one check. It ends within its limit, and within the seconds that are left for all checks with a limit."""
    seconds = None if check.limit is None else max(0.0, min(check.limit, left))
    try:
        async with asyncio.timeout(seconds) as limit:
            return await check.run(context)
    except NotTriedError as why:
        return noted(f"not tried: {why}")
    except TimeoutError as error:
        if not limit.expired() or seconds is None:
            raise
        last = context.last_error or "the store did not answer"
        raise StorageError(f'the check "{check.title}" did not end within {seconds:.0f} s: {last}') from error


def show(report: Report) -> None:
    """Print a report for people: the findings to stdout, the errors to stderr."""
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    if report.checks:
        titles = {check.name: check.title for check in CHECKS}
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
