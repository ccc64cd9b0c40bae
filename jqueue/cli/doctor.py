"""`jqueue doctor URL`: tries the user's store, and says whether a queue is safe there."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from jqueue._version import __version__
from jqueue.cli.checks import CHECKS, Finding, examine
from jqueue.cli.probes import Outcome
from jqueue.cli.scratch import ScratchObject, ScratchSpace
from jqueue.cli.verdict import Verdict, judge
from jqueue.connect import connect_storage
from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.printable import counted, printable
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease, SupportsScratch, SupportsWriteCheck, describe
from jqueue.runtime.system import SystemClock, SystemEntropy

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
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="URL of the queue, such as s3://bucket/queue.json, or a path.", show_default=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
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
        typer.echo(json.dumps(as_values(examination), indent=2))
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
        with _progress() as report:
            examination.space = ScratchSpace(storage, SystemEntropy())
            async with examination.space:
                await examine(
                    examination.space,
                    SystemClock(),
                    examination.findings,
                    lambda check, progress: report(f"{check.title} {progress}".rstrip(), CHECKS.index(check)),
                    quick=quick,
                )
                report("cleaning up", len(CHECKS))
    finally:
        if isinstance(storage, SupportsRelease):
            await storage.release()


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Show the current check and the number of checks done, if a terminal can show them."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda doing, done: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(CHECKS))
        yield lambda doing, done: progress.update(task, description=doing, completed=done)


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
