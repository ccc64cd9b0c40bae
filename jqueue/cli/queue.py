"""The commands about a queue as a whole: its figures, settings and limits, pauses of its entrypoints."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Annotated, Any

import typer

from jqueue.cli.columns import Cell, Column, Terminal, lines_of, write_lines
from jqueue.cli.live import Interval, live
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.options import duration
from jqueue.cli.options import size as size_of
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import (
    age,
    brief,
    instant,
    length,
    moment,
    note,
    refusal,
    show,
    show_json,
    size,
    tell,
)
from jqueue.core.shown import QueueInfo
from jqueue.core.view import QueueView
from jqueue.domain.counters import Totals
from jqueue.domain.errors import ChangedMeanwhileError, InvalidJobError
from jqueue.domain.header import WorkerRecord, by_name
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import CreateQueue
from jqueue.domain.operations.rules import SetLimits
from jqueue.domain.printable import counted, printable
from jqueue.domain.rules import SETTINGS, EntrypointRules, QueueSettings
from jqueue.domain.stats import EntrypointStats

LISTED = 20
"""Largest number of workers that are listed for people."""

COUNTS = ("ready", "scheduled", "in progress", "dead", "completed", "oldest")


def stats(
    url: URL,
    watch: Annotated[bool, typer.Option("--watch", help="Show the figures live, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    as_json: AsJSON = False,
) -> None:
    """Show the figures of a queue: jobs by entrypoint, rates, times, workers, limits, cron entries.

    Jobs wait from the moment they are ready until they are claimed, and run until they are acked or nacked. The median
    and the 95% are rounded up to a power of two, in milliseconds.

    If ready jobs wait because of a pause, a limit or a missing worker, a line says so.

    A worker commits at least once a minute, and removes itself when it ends. One that was not seen for two minutes is
    shown as lost, for an hour: it has died, or cannot reach the store. Its jobs are claimed again when its claims time
    out. The column "jobs" has its jobs in progress, and the number that it can run at once.

    This command only reads, and shows no payloads.

    Exits with 2 if the queue does not exist or cannot be read.
    """
    if watch and as_json:
        raise refusal("choose --watch or --json", as_json=True)
    if watch:
        return live(url, _draw, interval, instead="jqueue stats")
    info, holders = on_queue(url, _read, as_json=as_json)
    if as_json:
        show_json({**info.values(), "workers_seen": [_holder_values(each, info.now) for each in holders]})
    else:
        write_lines(_page(info, holders, Terminal.of_stdout()))


async def _draw(opened: OpenedQueue, terminal: Terminal, room: int) -> Iterator[str]:
    """Return the lines of the live screen."""
    info, holders = await _read(opened)
    return chain([f"{info.now.astimezone(UTC):%H:%M:%S} UTC"], _page(info, holders, terminal))


async def _read(opened: OpenedQueue) -> tuple[QueueInfo, list[Holder]]:
    now, one_object = opened.now(), opened.queue.capabilities.size_limit
    await opened.view.list_segments()
    info = QueueInfo.of(opened.name, opened.view.header, await opened.stats(), now, one_object=one_object)
    return info, _holders(opened.view)


def _page(info: QueueInfo, holders: Sequence[Holder], terminal: Terminal) -> Iterator[str]:
    """Yield the lines of the figures for people."""
    yield terminal.styled(printable(info.name), "bold")
    yield from _extent(info)
    totals = info.stats.totals
    warnings = [f"warning: {printable(each)}" for each in info.stats.warnings]
    for part in (
        _jobs(info, terminal),
        (terminal.styled(line, "yellow") for line in _reasons(info)),
        _rates(totals, terminal),
        _times(info.entrypoints, totals, terminal),
        _workers(holders, info.now, terminal),
        _limits(info, terminal),
        _schedules(info, terminal),
        _settings(info.settings),
        (terminal.styled(line, "yellow") for line in warnings),
    ):
        if lines := [*part]:
            yield from ("", *lines)


def _columns(*titles: str, numbers: Collection[str]) -> Sequence[Column]:
    return [Column(title, right=title in numbers, cut=title not in numbers) for title in titles]


def _number(number: int, style: str = "") -> Cell:
    return Cell(f"{number:,}", style if number else "dim")


def _extent(info: QueueInfo) -> Iterator[str]:
    """Yield the size of the queue. In the format of an older queue, only payloads count, and there are no versions."""
    figures = info.stats
    if not info.one_object:
        yield f"{size(figures.size)} of payloads"
        return
    yield f"{size(figures.size)} of {size(figures.size_limit)}, version {figures.version}"
    if figures.segments:
        jobs, segments = counted(figures.segment_jobs, "waiting job"), counted(figures.segments, "segment")
        yield f"{jobs} in {segments} beside it, {size(figures.segment_bytes)}"
    if info.broker is not None:
        yield f"served at {printable(info.broker)}"


def _jobs(info: QueueInfo, terminal: Terminal) -> Iterator[str]:
    shown = {name: known for name, known in info.entrypoints.items() if name in info.rules or _has_jobs(known)}
    if not shown:
        yield "no jobs"
        return
    rows = [
        (Cell(f"{name} (paused)", "yellow") if known.paused else Cell(name), *_cells(known))
        for name, known in shown.items()
    ]
    if len(shown) > 1:
        rows.append((Cell("all", "bold"), *_cells(info.stats)))
    yield from lines_of(_columns("entrypoint", *COUNTS, numbers=COUNTS), rows, terminal)


def _reasons(info: QueueInfo) -> Iterator[str]:
    """Yield a line for each entrypoint whose jobs wait for a known reason."""
    for name, reason in info.why_waiting.items():
        jobs = counted(info.entrypoints[name].ready, "ready job waits", "ready jobs wait")
        yield f"{printable(name)}: {jobs}: {reason}"


def _has_jobs(figures: EntrypointStats) -> bool:
    """Return True if there are jobs of any status. Entrypoints that had jobs once have figures, too."""
    return any((figures.ready, figures.scheduled, figures.in_progress, figures.dead, figures.completed))


def _cells(figures: EntrypointStats) -> Sequence[Cell]:
    waiting = (figures.ready, figures.scheduled, figures.in_progress)
    oldest = "" if figures.oldest_ready_age is None else length(figures.oldest_ready_age)
    return [*map(_number, waiting), _number(figures.dead, "red"), _number(figures.completed), Cell(oldest)]


def _limits(info: QueueInfo, terminal: Terminal) -> Iterator[str]:
    limited = {name: rules for name, rules in sorted(info.rules.items()) if rules.max_running or rules.rate}
    rows = []
    for name, rules in limited.items():
        running = f"{info.entrypoints[name].in_progress} of {rules.max_running}" if rules.max_running else "no limit"
        rate = f"{rules.rate} in {rules.per:g} s" if rules.rate else "no limit"
        rows.append((Cell(name), Cell(running), Cell(rate)))
    if rows:
        numbers = ("in progress", "claims")
        yield from lines_of(_columns("limits", *numbers, numbers=numbers), rows, terminal)


def _schedules(info: QueueInfo, terminal: Terminal) -> Iterator[str]:
    rows = [
        (
            Cell(each.name),
            Cell(each.entrypoint),
            Cell(f"{each.cron} {each.timezone}"),
            Cell(moment(each.next_at)),
            Cell(length(max(timedelta(), each.next_at - info.now))),
        )
        for each in info.schedules
    ]
    if rows:
        numbers = ("next (UTC)", "in")
        yield from lines_of(_columns("cron entry", "entrypoint", "when", *numbers, numbers=numbers), rows, terminal)


def _settings(settings: QueueSettings) -> Iterator[str]:
    if settings.dead_retention is not None:
        yield f"dead jobs are removed after {length(settings.dead_retention)}"
    if settings.blob_bytes is not None:
        yield f"the queue's own size limit: {size(settings.blob_bytes)}"


RATED = ("enqueued", "claimed", "done", "failed")
WINDOWS = {"last minute": 60, "last hour": 3600, "last day": 86400}


def _rates(totals: Totals | None, terminal: Terminal) -> Iterator[str]:
    """Yield a table of the jobs of the last minute, hour and day, and of all; nothing if nothing has happened."""
    if totals is None or not totals.enqueued:
        return
    rows = []
    for name, seconds in WINDOWS.items():
        known = getattr(totals, name.replace(" ", "_"))
        rows.append((Cell(name), *_rated([round(getattr(known, kind) * seconds) for kind in RATED])))
    rows.append((Cell("in all", "bold"), *_rated([getattr(totals, kind) for kind in RATED])))
    yield from lines_of(_columns("jobs", *RATED, numbers=RATED), rows, terminal)


def _rated(numbers: Sequence[int]) -> Sequence[Cell]:
    return [_number(number, "red" if kind == "failed" else "") for kind, number in zip(RATED, numbers, strict=True)]


def _times(entrypoints: Mapping[str, EntrypointStats], totals: Totals | None, terminal: Terminal) -> Iterator[str]:
    """Yield a table of the times for which jobs waited and ran, by entrypoint; nothing if none was claimed."""
    known = {name: each.totals for name, each in entrypoints.items() if each.totals and each.totals.waits.count}
    if totals is None or not known:
        return
    rows = [(Cell(name), *_time_cells(each)) for name, each in known.items()]
    if len(known) > 1:
        rows.append((Cell("all", "bold"), *_time_cells(totals)))
    titles = ("median wait", "95% wait", "median run", "95% run")
    yield from lines_of(_columns("entrypoint", *titles, numbers=titles), rows, terminal)


def _time_cells(totals: Totals) -> Sequence[Cell]:
    bounds = [each.quantile(share) for each in (totals.waits, totals.runs) for share in (0.5, 0.95)]
    return [Cell("" if bound is None else brief(bound)) for bound in bounds]


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker, or another holder of jobs.

    Attributes:
        name: name of the holder, as claims have it.
        jobs: number of its jobs in progress.
        oldest: time of its oldest claim; None without claims.
        record: its record; None if it is not a worker, or has not committed within the last hour.
    """

    name: str
    jobs: int
    oldest: datetime | None
    record: WorkerRecord | None


def _holders(view: QueueView) -> list[Holder]:
    """Return the workers of a queue by name, and the other holders of jobs after them."""
    claims, known = view.holders(), []
    for record in by_name(view.header.workers.values()):
        number, oldest = claims.get(record.holder, (0, None))
        known.append(Holder(record.holder, number, oldest, record))
    others = sorted(claims.keys() - {each.name for each in known})
    return [*known, *(Holder(name, *claims[name], None) for name in others)]


def _holder_values(holder: Holder, now: datetime) -> dict[str, Any]:
    record = holder.record
    return {
        "holder": holder.name,
        "worker": record is not None,
        "jobs": holder.jobs,
        "lost": record and record.is_lost(now.timestamp()),
        "oldest_claim_at": instant(holder.oldest),
        "name": record and record.name,
        "host": record and record.host,
        "pid": record and record.pid,
        "slots": record and record.slots,
        "last_commit_at": record and instant(record.last_seen),
        "last_commit_seconds": record and round(now.timestamp() - record.at, 3),
        "runs_seconds": record and round(now.timestamp() - record.started, 3),
        "entrypoints": record and list(record.entrypoints),
        "version": record and record.version,
    }


def _workers(holders: Sequence[Holder], now: datetime, terminal: Terminal) -> Iterator[str]:
    rows = []
    for each in holders[:LISTED]:
        oldest = Cell("" if each.oldest is None else age(now - each.oldest))
        if each.record is None:
            last = (Cell(""), Cell("(no record of a worker)", "dim"))
            rows.append((Cell(each.name), Cell(str(each.jobs)), oldest, *last))
            continue
        seen = f"{age(now.timestamp() - each.record.at)} ago"
        rows.append(
            (
                Cell(each.name),
                Cell(f"{each.jobs} of {each.record.slots}"),
                oldest,
                Cell(f"lost, {seen}", "red") if each.record.is_lost(now.timestamp()) else Cell(seen),
                Cell(", ".join(each.record.entrypoints)),
            )
        )
    if rows:
        numbers = ("jobs", "oldest", "seen")
        yield from lines_of(_columns("worker", *numbers, "entrypoints", numbers=numbers), rows, terminal)
    if len(holders) > LISTED:
        yield terminal.styled(f"{counted(len(holders) - LISTED, 'more worker')}: see --json", "dim")


def init(url: URL, as_json: AsJSON = False) -> None:
    """Create an empty queue.

    The folder of a file is created if it is missing. A queue that exists is left as it is, and is an error. Programs
    need no `jqueue init`: their first enqueue creates the queue.
    """
    from jqueue.formats.queue import StoreQueue

    async def make(opened: OpenedQueue) -> str:
        if isinstance(opened.queue, StoreQueue):
            raise RefusedError(
                "a queue in the format of an older program is created by its first job: `jqueue enqueue --create`"
            )
        if not opened.view.absent:
            raise RefusedError(f"there is a queue at {opened.name} already: it was left as it is")
        try:
            await certain(opened.queue.apply(CreateQueue()))
        except InvalidJobError as error:  # another program has just created it
            raise RefusedError(str(error)) from None
        return opened.name

    name = on_queue(url, make, as_json=as_json, create=True)
    tell({"queue": name, "created": True}, f"created an empty queue at {name}", as_json=as_json)


NOBODY_HAS_IT = "no job, worker or cron entry has this entrypoint yet: check its name"

Entrypoint = Annotated[str, argument("ENTRYPOINT", "Name of the entrypoint.")]


def pause(url: URL, entrypoint: Entrypoint, as_json: AsJSON = False) -> None:
    """Pause an entrypoint: workers claim none of its jobs until `jqueue resume`.

    Jobs in progress continue, and new jobs can be enqueued. An entrypoint can be paused before it has jobs.
    """

    async def pause_entrypoint(opened: OpenedQueue) -> tuple[EntrypointStats, bool]:
        await certain(opened.queue.pause(entrypoint))
        return await opened.figures(entrypoint), await opened.has(entrypoint)

    before, known = on_queue(url, pause_entrypoint, as_json=as_json)
    if not known:
        note(NOBODY_HAS_IT)
    if as_json:
        show_json({"entrypoint": entrypoint, "paused": True, "changed": not before.paused})
    elif before.paused:
        show("this entrypoint was already paused")
    else:
        waiting = counted(before.ready + before.scheduled, "job waits", "jobs wait")
        running = counted(before.in_progress, "job in progress continues", "jobs in progress continue")
        show(f"paused until `jqueue resume`: {waiting}, {running}")


def resume(url: URL, entrypoint: Entrypoint, as_json: AsJSON = False) -> None:
    """End the pause of an entrypoint: workers claim its jobs again."""

    async def resume_entrypoint(opened: OpenedQueue) -> EntrypointStats:
        await certain(opened.queue.resume(entrypoint))
        return await opened.figures(entrypoint)

    before = on_queue(url, resume_entrypoint, as_json=as_json)
    if as_json:
        show_json({"entrypoint": entrypoint, "paused": False, "changed": before.paused})
    elif before.paused:
        show(f"resumed: {counted(before.ready, 'job is', 'jobs are')} ready")
    else:
        show("this entrypoint was not paused")


def limit(
    url: URL,
    entrypoint: Entrypoint,
    running: Annotated[int | None, option("NUMBER", "Most jobs in progress at once.", min=1)] = None,
    rate: Annotated[int | None, option("NUMBER", "Most claims within any --per.", min=1)] = None,
    per: Annotated[str | None, option("DURATION", "Period of --rate: 60, 90s, 15m, 12h.")] = None,
    no_running: Annotated[bool, typer.Option("--no-running", help="Remove the limit on jobs in progress.")] = False,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Remove the limit on claims.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Set the limits of an entrypoint; without options, show its limits.

    They hold for all workers of the queue together. A limit that is not named stays as it is. Jobs in progress
    continue.
    """
    try:
        seconds = None if per is None else duration("--per", per)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None
    if (rate is None) != (per is None):
        raise refusal("give --rate and --per together: --rate 100 --per 60 means 100 claims a minute", as_json=as_json)
    if (running is not None and no_running) or (rate is not None and no_rate):
        raise refusal("give a limit, or the option that removes it, not both", as_json=as_json)

    async def change(opened: OpenedQueue) -> tuple[EntrypointRules, bool]:
        opened.queue.capabilities.require("limits")
        while True:
            before = (await opened.queue.view()).header.entrypoints.get(entrypoint, EntrypointRules())
            after = SetLimits(
                entrypoint,
                running=None if no_running else running or before.max_running,
                rate=None if no_rate else rate or before.rate,
                per=None if no_rate else before.per if seconds is None else seconds,
            )
            rules = before.evolve(max_running=after.running, rate=after.rate, per=after.per)
            if rules == before:
                return before, False
            try:
                await certain(opened.queue.apply(Guarded(after, entrypoint=entrypoint, rules=before)))
            except ChangedMeanwhileError:
                continue  # another operator was quicker: look again
            return rules, True

    rules, changed = on_queue(url, change, as_json=as_json)
    if as_json:
        told = {"running": rules.max_running, "rate": rules.rate, "per": rules.per, "paused": rules.paused}
        show_json({"entrypoint": entrypoint, **told, "changed": changed})
    else:
        show(_limits_in_words(rules))


def _limits_in_words(rules: EntrypointRules) -> str:
    running = "no limit" if rules.max_running is None else f"at most {rules.max_running}"
    rate = "no limit" if rules.rate is None or rules.per is None else f"at most {rules.rate} in {length(rules.per)}"
    paused = "; this entrypoint is paused" if rules.paused else ""
    return f"in progress: {running}; claims: {rate}{paused}"


def configure(
    url: URL,
    history: Annotated[str | None, option("DURATION", "Keep the events of jobs for this time.")] = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no events.")] = False,
    history_bytes: Annotated[
        str | None, option("SIZE", "Remove the oldest events above this size: 512MiB, 2GiB.")
    ] = None,
    no_history_bytes: Annotated[bool, typer.Option("--no-history-bytes", help="No limit on that size.")] = False,
    history_payloads: Annotated[
        bool | None,
        typer.Option(
            "--history-payloads/--no-history-payloads", help="Keep payloads with the events.", show_default=False
        ),
    ] = None,
    dead_retention: Annotated[str | None, option("DURATION", "Remove dead jobs after this time.")] = None,
    no_dead_retention: Annotated[
        bool, typer.Option("--no-dead-retention", help="Keep dead jobs until they are purged.")
    ] = False,
    blob_bytes: Annotated[
        str | None, option("SIZE", "Size limit of the queue's object, for every program: 64MiB.")
    ] = None,
    no_blob_bytes: Annotated[
        bool, typer.Option("--no-blob-bytes", help="Each program uses its own size limit.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Change the settings of a queue; without options, show them.

    A setting that is not named stays as it is. A DURATION is in seconds, or has a unit: 60, 90s, 15m, 12h, 30d.

    Once a history was kept, versions of jqueue that know no history refuse the queue.
    """
    changes: dict[str, Any] = {}
    for name, text, unset, read in (
        ("history", history, no_history, duration),
        ("history-bytes", history_bytes, no_history_bytes, size_of),
        ("dead-retention", dead_retention, no_dead_retention, duration),
        ("blob-bytes", blob_bytes, no_blob_bytes, size_of),
    ):
        if unset and text is not None:
            raise refusal(f"give --{name} or --no-{name}, not both", as_json=as_json)
        try:
            value = None if text is None else read(f"--{name}", text)
        except ValueError as error:
            raise refusal(str(error), as_json=as_json) from None
        if unset or text is not None:
            changes[name.replace("-", "_")] = value
    if history_payloads is not None:
        changes["history_payloads"] = history_payloads

    async def change(opened: OpenedQueue) -> QueueSettings:
        settings: QueueSettings = await certain(opened.queue.configure(**changes))
        return settings

    settings = on_queue(url, change, as_json=as_json)
    tell({name: getattr(settings, name) for name in SETTINGS}, *_setting_lines(settings), as_json=as_json)


def _setting_lines(settings: QueueSettings) -> list[str]:
    """Return the settings, a line for each."""

    def lasting(seconds: float | None, otherwise: str) -> str:
        return otherwise if seconds is None else length(seconds)

    def sized(number: int | None, otherwise: str) -> str:
        return otherwise if number is None else size(number)

    shown = {
        "history": lasting(settings.history, "not kept"),
        "history-bytes": sized(settings.history_bytes, "no limit"),
        "history-payloads": "kept" if settings.history_payloads else "not kept",
        "dead-retention": lasting(settings.dead_retention, "until they are purged"),
        "blob-bytes": sized(settings.blob_bytes, "each program uses its own limit"),
    }
    return [f"{name:17} {text}" for name, text in shown.items()]
