"""The commands about a queue as a whole: its figures, settings and limits, pauses of its entrypoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from msgspec import structs

from jqueue.cli.columns import Cell, Column, Layout, Terminal, write_lines
from jqueue.cli.help import RefusedError
from jqueue.cli.live import Interval, live
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.options import duration, past, with_unit
from jqueue.cli.options import size as size_of
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import age, instant, length, moment, note, show_json, size, tell
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.json_views import stats_values
from jqueue.core.view import QueueView
from jqueue.domain.counters import EventCounters, Totals
from jqueue.domain.errors import HistoryDamagedError, WorkerNotFoundError
from jqueue.domain.header import WorkerRecord
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import CreateQueue
from jqueue.domain.operations.rules import Pause, Reset, Resume, SetLimits
from jqueue.domain.printable import counted, printable
from jqueue.domain.rules import SETTINGS, EntrypointRules, QueueSettings
from jqueue.domain.stats import EntrypointStats, QueueStats, sum_of

LISTED = 20
"""Largest number of workers that are listed for people."""

COUNTS = ("ready", "scheduled", "waiting", "in_progress", "dead", "completed")
RATES = ("rate", "per", "key_rate", "key_per")
RATED = ("enqueued", "claimed", "done", "failed")
ORDERS = (*COUNTS, *RATED)
WINDOWS = {"last_minute": 60, "last_hour": 3600, "last_day": 86400}
TEXTS = ("entrypoint", "entrypoints", "when")
"""The titles of columns that are not for numbers. Nor is the first of a table."""

Figures = Mapping[str, Any]
"""The values of a `ShownStats`, or of a part of it."""


def stats(
    url: URL,
    watch: Annotated[bool, typer.Option("--watch", help="Show the figures live, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    since: Annotated[
        str | None, option("TIME", "Count jobs and times since then: 1h, or 2026-11-23 in UTC. By default all.")
    ] = None,
    sort: Annotated[
        str | None, option("COLUMN", f"Order of the entrypoints: {', '.join(ORDERS)}. By default their names.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Show the figures of a queue: jobs by entrypoint, rates, times, workers, limits, cron entries, bytes.

    Jobs wait from the moment they are ready until they are claimed, and run until they are acked or nacked. The median
    and the 95% are rounded up to a power of two, in milliseconds.

    With --since, claims, failures and times are those of that time. They come from the history, if the queue keeps one:
    `jqueue configure URL --history 30d`. Without it, --since takes 1m, 1h or 1d, and there are no times.

    If ready jobs wait because of a pause, a limit or a missing worker, a line says so.

    A worker commits at least once a minute, and removes itself when it ends. One that was not seen for two minutes is
    shown as lost, for an hour: it has died, or cannot reach the store. Behind a broker, and among more than eight
    workers on a store that refuses writes, both times are five times as long. The jobs of a lost worker are claimed
    again when its claims time out. The column "jobs" has its jobs in progress, and the number that it can run at once.

    This command only reads, and shows no payloads.

    Exits with 2 if the queue does not exist or cannot be read.
    """
    if sort is not None and sort not in ORDERS:
        raise RefusedError(f"--sort takes {', '.join(ORDERS)}")
    if since is not None and watch:
        raise RefusedError("--since looks through the history: give it without --watch")

    async def read(opened: OpenedQueue) -> Figures:
        await opened.view.list_segments()
        one_object, now, figures = opened.queue.capabilities.size_limit, opened.now(), await opened.stats()
        first = past("--since", since, now)
        if first is not None:
            figures = await _since(opened, figures, first, now)
        values = stats_values(opened.name, opened.view, figures, now, one_object=one_object)
        values |= {"since": instant(first), "bytes": opened.view.bytes_by_part(now) if one_object else {}}
        if sort is not None:
            values["entrypoints"] = dict(sorted(values["entrypoints"].items(), key=lambda row: _order(row[1], sort)))
        return values

    async def draw(opened: OpenedQueue, terminal: Terminal, _: int) -> list[str]:
        return [f"{opened.now().astimezone(UTC):%H:%M:%S} UTC", *_page(await read(opened), opened.now(), terminal)]

    async def write(opened: OpenedQueue) -> None:
        values = await read(opened)
        if as_json:
            show_json(values)
        else:
            write_lines(_page(values, opened.now(), Terminal.of_stdout()))

    if watch:
        live(url, draw, interval, instead="jqueue stats", as_json=as_json)
    else:
        on_queue(url, write)


async def _since(opened: OpenedQueue, figures: QueueStats, first: datetime, now: datetime) -> QueueStats:
    """Return figures whose totals and times are those since a time. The rates stay.

    Raises:
        RefusedError: the queue keeps no history, and its counters do not tell.
    """
    stats_by_name = figures.entrypoints or {}
    if isinstance(opened.queue, BlobQueue) and opened.view.header.history is not None:
        totals_by_name = await _events_since(opened.queue, opened.view, first, now)
    else:
        seconds = round((now - first).total_seconds())
        if seconds not in WINDOWS.values():
            raise RefusedError(
                "--since takes 1m, 1h or 1d, as this queue keeps no history: `jqueue configure URL --history 30d`"
            )
        [window] = [name for name, length in WINDOWS.items() if length == seconds]
        rates = {name: getattr(each.totals or Totals(), window) for name, each in stats_by_name.items()}
        totals_by_name = {
            name: Totals(**{kind: round(getattr(each, kind) * seconds) for kind in RATED})
            for name, each in rates.items()
        }
    rows = dict[str, EntrypointStats]()
    for name in sorted({*stats_by_name, *totals_by_name}):
        row = stats_by_name.get(name, EntrypointStats())
        window_rates = {window: getattr(row.totals or Totals(), window) for window in WINDOWS}
        rows[name] = replace(row, totals=structs.replace(totals_by_name.get(name, Totals()), **window_rates))
    return replace(figures, entrypoints=rows, totals=sum([each.totals or Totals() for each in rows.values()], Totals()))


async def _events_since(queue: BlobQueue, view: QueueView, first: datetime, now: datetime) -> dict[str, Totals]:
    """Return the totals of the events since a time, by entrypoint. A note says if some are missing."""
    counters, last = EventCounters(), None
    try:
        async for event in queue.history_of(view, since=first):
            counters.add(event)
            last = event
    except HistoryDamagedError as error:
        note(str(error))
    if last is not None and view.header.history is not None and last.number == view.header.history.removed + 1:
        note(f"the history begins at {moment(last.at)} UTC: what happened before is not counted")
    return counters.totals(now)


def _order(figures: Figures, column: str) -> float:
    """Return the place of an entrypoint: the largest number of a column is first."""
    totals: Figures = figures["totals"] or {}
    return -float(totals.get(column, 0) if column in RATED else figures[column])


def _page(values: Figures, now: datetime, terminal: Terminal) -> Iterator[str]:
    """Yield the lines of the figures for people."""
    entrypoints: Mapping[str, Figures] = values["entrypoints"]
    claimed = {name: each for name, each in entrypoints.items() if (each["totals"] or {}).get("claimed")}
    tables: Sequence[tuple[Sequence[str], Iterable[Row]]] = (
        (("jobs", *RATED), _rates(values)),
        (
            ("entrypoint", "claimed", "failed", "median wait", "95% wait", "median run", "95% run"),
            _with_all(claimed, values, _times),
        ),
        (("worker", "jobs", "oldest", "seen", "entrypoints"), _workers(values["workers_seen"], now)),
        (("limits", "in progress", "claims"), _limits(entrypoints)),
        (("cron entry", "entrypoint", "when", "next (UTC)", "in"), _schedules(values["schedules"], now)),
        (("the object", "bytes"), ([part, size(each)] for part, each in values["bytes"].items())),
    )
    waits = [
        f"{printable(name)}: {counted(each['ready'], 'ready job waits', 'ready jobs wait')}: {each['why_waiting']}"
        for name, each in entrypoints.items()
        if each["why_waiting"]
    ]
    retention, limit = values["dead_retention"], values["blob_bytes"]
    settings = [] if retention is None else [f"dead jobs are removed after {length(retention)}"]
    settings += [] if limit is None else [f"the queue's own size limit: {size(limit)}"]
    yield terminal.styled(printable(values["queue"]), "bold")
    yield from _extent(values)
    for lines in (
        _jobs(entrypoints, values, terminal),
        [terminal.styled(line, "yellow") for line in waits],
        *(_table(titles, rows, terminal) for titles, rows in tables),
        settings,
        [terminal.styled(f"warning: {printable(each)}", "yellow") for each in values["warnings"]],
    ):
        yield from ("", *lines) if lines else ()


def _extent(values: Figures) -> Iterator[str]:
    """Yield the size of the queue. In the format of an older queue, only payloads count, and there are no versions."""
    if values["version"] is None:
        yield f"{size(values['size'])} of payloads"
        return
    yield f"{size(values['size'])} of {size(values['size_limit'])}, version {values['version']}"
    if values["segments"]:
        jobs, segments = counted(values["segment_jobs"], "waiting job"), counted(values["segments"], "segment")
        yield f"{jobs} in {segments} beside it, {size(values['segment_bytes'])}"
    if values["broker"] is not None:
        yield f"served at {printable(values['broker'])}"


Row = Sequence[Cell | str | int]


def _table(titles: Sequence[str], rows: Iterable[Row], terminal: Terminal) -> list[str]:
    """Return the lines of a table; none without rows."""
    cells = [[_cell(value) for value in row] for row in rows]
    texts = [number == 0 or title in TEXTS for number, title in enumerate(titles)]
    columns = [Column(title, right=not text, cut=text) for title, text in zip(titles, texts, strict=True)]
    return Layout(columns, terminal).lines(cells) if cells else []


def _cell(value: Cell | str | int) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell(value) if isinstance(value, str) else Cell(f"{value:,}", "" if value else "dim")


def _red(number: int) -> Cell | int:
    return Cell(f"{number:,}", "red") if number else 0


def _with_all(parts: Mapping[str, Figures], whole: Figures, row: Callable[[Figures], Row]) -> Iterator[Row]:
    """Yield a row for each entrypoint, and one for all if there are several."""
    for name, each in parts.items():
        yield [Cell(f"{name} (paused)", "yellow") if each["paused"] else name, *row(each)]
    if len(parts) > 1:
        yield [Cell("all", "bold"), *row(whole)]


def _jobs(entrypoints: Mapping[str, Figures], values: Figures, terminal: Terminal) -> list[str]:
    shown = {
        name: each
        for name, each in entrypoints.items()
        if any(each[kind] for kind in (*COUNTS, "paused", "max_running", "rate"))
    }

    counts = [kind for kind in COUNTS if kind != "waiting" or values["waiting"]]

    def row(each: Figures) -> Row:
        oldest = each["oldest_ready_seconds"]
        numbers = [_red(each[kind]) if kind == "dead" else each[kind] for kind in counts]
        return [*numbers, "" if oldest is None else length(oldest)]

    titles = ("entrypoint", *(kind.replace("_", " ") for kind in counts), "oldest")
    return _table(titles, _with_all(shown, values, row), terminal) or ["no jobs"]


def _rates(values: Figures) -> Iterator[Row]:
    """Yield the numbers of jobs of the last minute, hour and day, and of all; nothing if nothing has happened."""
    totals = values["totals"]
    if not totals or not totals["enqueued"]:
        return
    name = "in all" if values["since"] is None else f"since {moment(datetime.fromisoformat(values['since']))}"
    rows: dict[str | Cell, Figures] = {
        window.replace("_", " "): {kind: round(values["rates"][window][kind] * seconds) for kind in RATED}
        for window, seconds in WINDOWS.items()
    }
    for title, numbers in (rows | {Cell(name, "bold"): totals}).items():
        yield [title, *(_red(numbers[kind]) if kind == "failed" else numbers[kind] for kind in RATED)]


def _times(figures: Figures) -> Row:
    times = [figures[kind][share] for kind in ("wait_seconds", "run_seconds") for share in ("median", "p95")]
    totals = figures["totals"]
    return [totals["claimed"], _red(totals["failed"]), *("" if each is None else length(each) for each in times)]


def _workers(workers: Sequence[Figures], now: datetime) -> Iterator[Row]:
    for each in workers[:LISTED]:
        oldest = each["oldest_claim_at"]
        claimed = "" if oldest is None else age(now - datetime.fromisoformat(oldest))
        if not each["worker"]:
            yield [each["holder"], each["jobs"], claimed, "", Cell("(no record of a worker)", "dim")]
            continue
        seen = f"{age(each['last_commit_seconds'])} ago"
        seen = f"stopping, {seen}" if each["stopping"] else seen
        last = Cell(f"lost, {seen}", "red") if each["lost"] else seen
        yield [each["holder"], f"{each['jobs']} of {each['slots']}", claimed, last, ", ".join(each["entrypoints"])]
    if len(workers) > LISTED:
        yield [Cell(f"{len(workers) - LISTED:,} more: see --json", "dim"), "", "", "", ""]


def _limits(entrypoints: Mapping[str, Figures]) -> Iterator[Row]:
    for name, each in entrypoints.items():
        if each["max_running"] or each["rate"] or each["key_rate"] or each["by_operator"]:
            running = f"{each['in_progress']} of {each['max_running']}" if each["max_running"] else "no limit"
            claims = f"{each['rate']} in {each['per']:g} s" if each["rate"] else "no limit"
            claims += f"; {each['key_rate']} in {each['key_per']:g} s by key" if each["key_rate"] else ""
            yield [name, running, f"{claims}, set by an operator" if each["by_operator"] else claims]


def _schedules(schedules: Sequence[Figures], now: datetime) -> Iterator[Row]:
    for each in schedules:
        when = datetime.fromisoformat(each["next_at"])
        cron = f"{each['cron']} {each['timezone']}{', set by an operator' if each['by_operator'] else ''}"
        yield [each["name"], each["entrypoint"], cron, moment(when), "paused" if each["paused"] else age(when - now)]


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
        await opened.apply(CreateQueue())
        return opened.name

    name = on_queue(url, make, create=True)
    tell({"queue": name, "created": True}, f"created an empty queue at {name}", as_json=as_json)


Entrypoint = Annotated[str, argument("ENTRYPOINT", "Name of the entrypoint.")]
Chosen = Annotated[str | None, argument("ENTRYPOINT", "Name of the entrypoint.")]
EveryEntrypoint = Annotated[bool, typer.Option("--all", help="All entrypoints that the queue knows.")]


def pause(url: URL, entrypoint: Chosen = None, every: EveryEntrypoint = False, as_json: AsJSON = False) -> None:
    """Pause an entrypoint, or --all: workers claim none of its jobs until `jqueue resume`.

    Jobs in progress continue, and new jobs can be enqueued. An entrypoint can be paused before it has jobs. --all
    pauses the entrypoints that now have jobs, limits, cron entries or workers.
    """
    _set_paused(url, entrypoint, every, as_json, Pause)


def resume(url: URL, entrypoint: Chosen = None, every: EveryEntrypoint = False, as_json: AsJSON = False) -> None:
    """End the pause of an entrypoint, or of --all: workers claim its jobs again.

    --all ends every pause, those of single entrypoints too.
    """
    _set_paused(url, entrypoint, every, as_json, Resume)


async def _known(opened: OpenedQueue, entrypoint: str | None) -> set[str]:
    """Return the entrypoints that have jobs, limits, cron entries or workers. A note says if a named one has none."""
    stats, header = await opened.stats(), opened.view.header
    names = {*(stats.entrypoints or {}), *header.entrypoints, *(each.entrypoint for each in header.schedules.values())}
    names = names.union(*(worker.entrypoints for worker in stats.workers))
    if entrypoint and entrypoint not in names:
        note("no job, worker or cron entry has this entrypoint yet: check its name")
    return names


def _set_paused(url: str, entrypoint: str | None, every: bool, as_json: bool, order: type[Pause | Resume]) -> None:
    """Pause or resume entrypoints in one commit, and tell what was done, in words or as JSON.

    Raises:
        RefusedError: none was chosen, or it could not be done.
    """
    if (entrypoint is not None) == every:
        raise RefusedError("give the name of one entrypoint, or --all")

    async def change(opened: OpenedQueue) -> dict[str, EntrypointStats]:
        opened.queue.capabilities.require("limits")
        figures, all_names = (await opened.stats()).entrypoints or {}, await _known(opened, entrypoint)
        names = sorted(all_names) if entrypoint is None else [entrypoint]
        if names:
            await certain(opened.queue.apply(*map(order, names)))
        return {name: figures.get(name, EntrypointStats()) for name in names}

    figures, paused = on_queue(url, change), order is Pause  # the figures are from before
    changed, whole = sum(each.paused != paused for each in figures.values()), sum_of(list(figures.values()))
    sentence = f"resumed: {counted(whole.ready, 'job is', 'jobs are')} ready"
    if paused:
        waiting = counted(whole.ready + whole.scheduled + whole.waiting, "job waits", "jobs wait")
        running = counted(whole.in_progress, "job in progress continues", "jobs in progress continue")
        sentence = f"paused until `jqueue resume`: {waiting}, {running}"
    if entrypoint is not None:
        outcome: dict[str, Any] = {"paused": paused, "entrypoint": entrypoint, "changed": bool(changed)}
        already = f"this entrypoint was {'already' if paused else 'not'} paused"
        return tell(outcome, sentence if changed else already, as_json=as_json)
    names = f" ({', '.join(map(printable, figures))})" if figures else ""
    outcome = {"paused": paused, "entrypoints": list(figures), "changed": changed}
    tell(outcome, f"{counted(len(figures), 'entrypoint')}{names}: {sentence}", as_json=as_json)


def stop(
    url: URL,
    worker: Annotated[str, argument("WORKER", "Its name, for all workers of this name, or its name@host:pid.")],
    as_json: AsJSON = False,
) -> None:
    """Tell a worker to stop, on whatever machine: it finishes its jobs or hands them back, and ends.

    It stops as after SIGTERM, once it learns of the order: within seconds mostly, and within a minute, or five if a
    broker on another machine commits its calls. Until it has left, `jqueue stats` shows it as stopping. A
    service manager that restarts it after SIGTERM restarts it after this order, too.
    """

    async def order(opened: OpenedQueue) -> list[WorkerRecord]:
        try:
            return await certain(opened.queue.stop_worker(worker))
        except WorkerNotFoundError as error:
            there = ", ".join(printable(each.holder) for each in (await opened.stats()).workers[:LISTED])
            raise RefusedError(f"{error}. Its workers: {there or 'none'}") from None

    records = on_queue(url, order)
    words = [f"{printable(each.holder)} stops within {length(each.beat)}, or is lost" for each in records]
    tell({"stopping": [each.holder for each in records]}, *words, as_json=as_json)


def limit(
    url: URL,
    entrypoint: Entrypoint,
    running: Annotated[
        int | None, option("NUMBER", "Most jobs in progress at once. By default as it is.", min=1)
    ] = None,
    rate: Annotated[int | None, option("NUMBER", "Most claims within any --per. By default as it is.", min=1)] = None,
    per: Annotated[str | None, option("DURATION", "Period of --rate: 60, 90s, 15m, 12h.")] = None,
    key_rate: Annotated[
        int | None, option("NUMBER", "Most claims of one key within any --key-per. By default as it is.", min=1)
    ] = None,
    key_per: Annotated[str | None, option("DURATION", "Period of --key-rate.")] = None,
    no_running: Annotated[bool, typer.Option("--no-running", help="Remove the limit on jobs in progress.")] = False,
    no_rate: Annotated[bool, typer.Option("--no-rate", help="Remove the limit on claims.")] = False,
    no_key_rate: Annotated[bool, typer.Option("--no-key-rate", help="Remove the limit on claims by key.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Take the limits that the program declares.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Set the limits of an entrypoint; without options, show its limits.

    They hold for all workers of the queue together. A limit that is not named stays as it is. Jobs in progress
    continue. Limits that are set here stay when a worker starts whose program declares others, until --reset.
    """
    seconds = None if per is None else duration("--per", per)
    key_seconds = None if key_per is None else duration("--key-per", key_per)
    asked: list[tuple[str, Any, bool]] = [("running", running, no_running), ("rate", rate, no_rate)]
    asked += [("per", seconds, no_rate), ("key_rate", key_rate, no_key_rate), ("key_per", key_seconds, no_key_rate)]
    changes = {name: value for name, value, is_unset in asked if is_unset or value is not None}
    if reset and changes:
        raise RefusedError("give --reset alone")
    if (rate is None) != (per is None) or (key_rate is None) != (key_per is None):
        raise RefusedError("give --rate and --per together: --rate 100 --per 60 means 100 claims a minute")
    if any(is_unset and value is not None for _, value, is_unset in asked):
        raise RefusedError("give a limit, or the option that removes it, not both")

    async def change(opened: OpenedQueue) -> tuple[EntrypointRules, bool]:
        opened.queue.capabilities.require("limits")
        await _known(opened, entrypoint)
        before = opened.view.header.entrypoints.get(entrypoint, EntrypointRules())
        if reset:
            await opened.apply(Reset(entrypoint))
        elif changes:
            old_limits = {"running": before.max_running} | {name: getattr(before, name) for name in RATES}
            limits = SetLimits(entrypoint, **(old_limits | changes), by="operator")
            await opened.apply(Guarded(limits, entrypoint=entrypoint, rules=before))
        rules = (await opened.queue.view()).header.entrypoints.get(entrypoint, EntrypointRules())
        return rules, rules != before

    rules, changed = on_queue(url, change)
    by_operator = rules.declared is not None
    values = {"running": rules.max_running, "paused": rules.paused} | {name: getattr(rules, name) for name in RATES}
    most = "no limit" if rules.max_running is None else f"at most {rules.max_running}"
    claims = "no limit" if rules.rate is None or rules.per is None else f"at most {rules.rate} in {length(rules.per)}"
    if rules.key_rate is not None and rules.key_per is not None:
        claims += f"; by key: at most {rules.key_rate} in {length(rules.key_per)}"
    words = f"in progress: {most}; claims: {claims}{'; set by an operator' if by_operator else ''}"
    words += "; this entrypoint is paused" if rules.paused else ""
    tell({"entrypoint": entrypoint, **values, "by_operator": by_operator, "changed": changed}, words, as_json=as_json)


def configure(
    url: URL,
    history: Annotated[
        str | None, option("DURATION", "Keep the events of jobs for this time. A new queue keeps none.")
    ] = None,
    no_history: Annotated[bool, typer.Option("--no-history", help="Keep no events.")] = False,
    dead_retention: Annotated[
        str | None,
        option("DURATION", "Remove dead jobs after this time. A new queue keeps them until they are purged."),
    ] = None,
    no_dead_retention: Annotated[
        bool, typer.Option("--no-dead-retention", help="Keep dead jobs until they are purged.")
    ] = False,
    blob_bytes: Annotated[
        str | None,
        option(
            "SIZE",
            "Size limit of the queue's object, for every program: 32MiB. By default each program has its own, of 64 "
            "MiB.",
        ),
    ] = None,
    no_blob_bytes: Annotated[
        bool, typer.Option("--no-blob-bytes", help="Each program uses its own size limit.")
    ] = False,
    history_payloads: Annotated[
        bool | None,
        typer.Option(
            "--history-payloads/--no-history-payloads",
            help="Keep payloads with the events. A new queue does not.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Change the settings of a queue; without options, show them.

    A setting that is not named stays as it is. A DURATION has a unit: 90s, 15m, 12h, 30d.

    Once a history was kept, versions of jqueue that know no history refuse the queue.
    """
    changes: dict[str, Any] = {} if history_payloads is None else {"history_payloads": history_payloads}
    for name, text, is_unset, read in (
        ("history", history, no_history, with_unit),
        ("dead-retention", dead_retention, no_dead_retention, with_unit),
        ("blob-bytes", blob_bytes, no_blob_bytes, size_of),
    ):
        if is_unset and text is not None:
            raise RefusedError(f"give --{name} or --no-{name}, not both")
        if is_unset or text is not None:
            changes[name.replace("-", "_")] = None if text is None else read(f"--{name}", text)
    settings: QueueSettings = on_queue(url, lambda opened: certain(opened.queue.configure(**changes)))
    history_span, retention, limit = settings.history, settings.dead_retention, settings.blob_bytes
    words = {
        "dead_retention": "until they are purged" if retention is None else length(retention),
        "blob_bytes": "each program uses its own limit" if limit is None else size(limit),
        "history": "not kept" if history_span is None else length(history_span),
        "history_payloads": "kept" if settings.history_payloads else "not kept",
    }
    values = {name: getattr(settings, name) for name in SETTINGS}
    tell(values, *(f"{name.replace('_', '-'):17} {words[name]}" for name in SETTINGS), as_json=as_json)
