"""`jqueue doctor URL`: says whether a queue is safe in the user's store, and whether the queue there is whole."""

from __future__ import annotations

import asyncio

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import FIRST_CALL_DEADLINE, IN_MEMORY, URL, AsJSON, waiting_for
from jqueue.cli.printing import jobs, show_json, size
from jqueue.cli.probes import CHECKS, Result, Trials
from jqueue.cli.progress import jobs_counted, reading
from jqueue.connect import open_storage
from jqueue.core.direct import DirectQueue
from jqueue.core.view import QueueView
from jqueue.domain.errors import InvalidBlobError, JobsUnreadableError, JQueueError
from jqueue.domain.printable import printable
from jqueue.domain.stats import about_lines
from jqueue.ports.storage import SupportsScratch, SupportsWriteCheck, describe
from jqueue.runtime.system import SystemClock, SystemEntropy

SAFE = (
    "Safe. If several writers compete, exactly one wins and the others are told so. No acknowledged write is lost. A "
    "queue needs nothing else from a store."
)
UNSAFE = "Not safe. Do not keep a queue here: jobs would be lost, run twice, or stand still."
DAMAGED = "The store is safe, but the queue is damaged: jobs that cannot be read do not run."
ONE_MACHINE = "A file serves the processes of one machine. Keep it on a local disk, not a network drive."
ABSENT = Result(
    "noted",
    "there is no queue here",
    "If there should be a queue at this URL, check it: the name may be misspelt. The first enqueue creates a queue.",
)
MEND = "Restore the object from a backup. If there is none, `jqueue repair URL` keeps what can be read."
TAKE_OUT = "`jqueue repair URL` takes these lines out of the queue, and saves the object as it was."

STYLES = {"passed": ("ok", "green"), "failed": ("FAILED", "bold red"), "noted": ("note", "yellow")}


def doctor(url: URL, as_json: AsJSON = False) -> None:
    """Check whether a store is safe for a queue, and the queue in it whole.

    The checks create objects of their own beside the queue, and remove them. The queue itself is not written. The last
    check reads all jobs, those of segments too: a million jobs take half a minute. If the store fails a check, the
    others are left out.

    Exits with 0 if all is well, 1 if the store is not safe or the queue is damaged, 2 if the URL is wrong or the store
    cannot be used.
    """
    try:
        storage = open_storage(url)
        if isinstance(storage, InMemoryStorage):
            raise RefusedError(IN_MEMORY)
        if not isinstance(storage, SupportsScratch):
            raise RefusedError(
                f"{describe(storage)} cannot be checked without touching the queue: its storage lacks the methods "
                "`beside` and `remove`, which create and remove objects for the checks. Test it with StorageContract "
                "of jqueue.testing instead"
            )
        results = asyncio.run(_examine(storage))
    except (ValueError, ImportError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise RefusedError(f"could not find out whether this store is safe: {error}") from None
    failed = [name for name, result in results.items() if result.outcome == "failed"]
    verdict = DAMAGED if failed == ["queue"] else UNSAFE if failed else SAFE
    if results.get("queue") is ABSENT:
        verdict = f"There is no queue here. {verdict}"
    chosen = [results[name] for name in failed] or results.values()
    advice = [*dict.fromkeys(result.advice for result in chosen if result.advice)]
    if not failed and isinstance(storage, LocalFileSystemStorage):
        advice.append(ONE_MACHINE)
    if as_json:
        checks = [{"name": name, "outcome": each.outcome, "detail": each.detail} for name, each in results.items()]
        place = {"jqueue": __version__, "object": describe(storage), "safe": not failed, "status": int(bool(failed))}
        show_json({**place, "verdict": verdict, "advice": advice, "checks": checks})
    else:
        _show(describe(storage), results, verdict, advice)
    raise typer.Exit(int(bool(failed)))


async def _examine(storage: SupportsScratch) -> dict[str, Result]:
    """Make the checks one after the other, those of the store until one fails. Return their results by their names.

    Raises:
        JQueueError: the store cannot be used.
    """
    results: dict[str, Result] = {}
    async with DirectQueue(storage) as queue:
        view: QueueView | InvalidBlobError
        try:
            with waiting_for(describe(storage)):
                view = await queue.view(deadline=FIRST_CALL_DEADLINE)
        except InvalidBlobError as error:
            view = error
        if isinstance(storage, SupportsWriteCheck):
            await storage.check_writable()  # trials beside the queue's file do not show that it can be replaced
        with jobs_counted("", of_what="checks") as tell:
            async with Trials(storage, SystemClock(), SystemEntropy()) as trials:
                for number, (name, check) in enumerate(CHECKS.items()):
                    tell(number, len(CHECKS), name.replace("_", " "))
                    if (result := await check(trials)) is not None:
                        results[name] = result
                        if result.outcome == "failed":
                            return results
        results["queue"] = await _queue_in(view)
    return results


async def _queue_in(view: QueueView | InvalidBlobError) -> Result:
    """Check that the object is a queue, and all its jobs can be read."""
    if isinstance(view, InvalidBlobError):
        return Result("failed", str(view), MEND)
    if view.absent:
        return ABSENT
    if view.set_aside:
        return Result("failed", about_lines(view.set_aside), TAKE_OUT)
    number = 0
    try:
        with reading(view) as (read, _):
            async for _ in read.jobs(SystemClock().now()):
                number += 1
    except JobsUnreadableError as error:
        return Result("failed", str(error))
    return Result("passed", f"{jobs(number)} can be read; the object has {size(view.size)}")


def _show(place: str, results: dict[str, Result], verdict: str, advice: list[str]) -> None:
    console = Console(highlight=False)
    table = Table("check", "result", "details", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for name, each in results.items():
        table.add_row(name.replace("_", " "), Text(*STYLES[each.outcome]), Text(printable(each.detail)))
    console.print(Text(place, "bold"), table)
    console.print(Text(verdict, "bold green" if verdict.endswith(SAFE) else "bold red"))
    for words in advice:
        item = Table.grid(padding=(0, 1))  # its lines are aligned
        item.add_row(" -", Text(words))
        console.print(item)
