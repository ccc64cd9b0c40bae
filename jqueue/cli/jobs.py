"""The commands that look at jobs: `jqueue ls` and `jqueue show`. They only read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from os.path import commonprefix
from typing import Annotated, Any

import typer

from jqueue.cli.columns import Cell, Column, Layout, Terminal, cut, write_lines
from jqueue.cli.help import RefusedError
from jqueue.cli.history import outcome
from jqueue.cli.live import Interval, live
from jqueue.cli.on_queue import URL, AsJSON, OneALine, OpenedQueue, on_queue
from jqueue.cli.options import selecting
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import age, ago, length, moment, show_json, size
from jqueue.cli.progress import DEEP, number_in_segments, reading
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.json_views import ShownLife, event_values, job_values, progress_text
from jqueue.core.verbs.operator import BEFORE
from jqueue.core.view import QueueView, in_chunks
from jqueue.domain.errors import HistoryDamagedError, InvalidJobError, JobNotFoundError, JobsUnreadableError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of, place_of, since
from jqueue.ports.queue import payload_of

NAMED = 3
"""Largest number of ids to name in an error about an id that is not clear."""


async def one_job(view: QueueView, now: datetime, job_id: str) -> Job:
    """Return the job with an id, or the only job whose id begins with it.

    Raises:
        JobNotFoundError: no id begins like this.
        JobsUnreadableError: it may be in a segment that is missing or damaged.
        InvalidJobError: several ids do, or the id is empty.
    """
    if not job_id:
        raise InvalidJobError("the id of the job is empty")
    prefix = job_id.removesuffix("…")  # of an id that was cut to fit a terminal
    if (whole := await view.find(prefix)) is not None:
        return whole
    matches: list[Job] = []
    with reading(view, "looking") as (counting_view, _):
        async with aclosing(counting_view.jobs(now, Selection(id_prefix=prefix))) as jobs:
            async for job in jobs:
                matches.append(job)
                if len(matches) > NAMED:
                    break
    if not matches:
        raise JobNotFoundError(prefix)
    if len(matches) > 1:
        several = counted(len(matches), "job") if len(matches) <= NAMED else f"more than {NAMED} jobs"
        raise InvalidJobError(
            f"{several} have ids that begin like this: give more of the id. Among them are "
            f"{', '.join(printable(job.id) for job in matches[:NAMED])}"
        )
    return matches[0]


SHORTEST = 8
"""Smallest number of characters of a short id."""

WIDE = 120
"""Width of a terminal from which on ids are shown in full."""


async def _short_ids(view: QueueView, now: datetime, terminal: Terminal) -> Callable[[str], str]:
    """Return a function that cuts an id, for a narrow terminal, to a beginning that no other id of the queue has.

    In a deep queue it cuts none: all ids would have to be read.
    """
    if terminal.width is None or terminal.width >= WIDE or number_in_segments(view) >= DEEP:
        return str
    ids: list[str] = []
    with suppress(JobsUnreadableError):  # an id of a job that cannot be read may begin like a short one
        async for job in view.jobs(now):
            ids.append(job.id)
    lengths = dict.fromkeys(ids, SHORTEST)
    for pair in pairwise(sorted(ids)):
        for job_id in pair:
            lengths[job_id] = max(lengths[job_id], len(commonprefix(pair)) + 1)  # noqa: RUF071
    return lambda job_id: job_id[: lengths.get(job_id)]


PREVIEW = 60
"""Number of bytes of a payload in a list."""

TITLES = 3
"""Number of lines beside the jobs."""

STYLES = {
    Phase.IN_PROGRESS: "green",
    Phase.DEAD: "red",
    Phase.EXPIRED: "yellow",
    Phase.SCHEDULED: "dim",
    Phase.WAITING: "dim",
    Phase.COMPLETED: "dim",
}


KEYS: Mapping[str | None, Callable[[Job, datetime], Any]] = {
    None: place_of,
    "age": lambda job, _: since(job),
    "attempts": lambda job, _: -job.tries,
    "created": lambda job, _: job.created_at,
    "due": lambda job, _: job.run_at or job.created_at,
    "entrypoint": lambda job, _: job.entrypoint,
    "id": lambda job, _: job.id,
    "priority": lambda job, _: (job.priority, job.sequence),
    "run-time": lambda job, now: job.claimed_at or now,
    "size": lambda job, _: -_size_of(job),
}
"""The place of a job in each order, at a time. None is the order without --sort."""

ORDERS = [order for order in KEYS if order is not None]


def _size_of(job: Job) -> int:
    return job.payload_object.size if job.payload_object else len(job.payload)


@dataclass
class Listing:
    """A list of jobs.

    Attributes:
        selection: chooses the jobs.
        sort: their order; None for the order in which they run, will be served, and ended.
        reverse: True to reverse the order.
        limit: maximum number of jobs; None for all.
        payloads: True if the beginnings of payloads are shown, or with JSON the payloads.
        as_json: True for a line of JSON for each job.
        more: number of jobs that fit, but are beyond the limit. It is known at the end.
        damage: the error if segments are missing or damaged: all jobs of the others are listed. Likewise.
    """

    selection: Selection
    sort: str | None
    reverse: bool
    limit: int | None
    payloads: bool
    as_json: bool
    more: int = 0
    damage: JobsUnreadableError | None = None

    async def lines(self, view: QueueView, now: datetime, terminal: Terminal) -> AsyncGenerator[list[str], None]:
        """Yield the lines of the list, some at a time. The first rows decide the widths of the columns.

        Raises:
            JobsUnreadableError: at the end, if segments are missing or damaged.
        """
        number, layout = 0, Layout(self._columns(), terminal)
        is_cut = terminal.width is not None and not self.as_json
        short = await _short_ids(view, now, terminal) if is_cut else str
        try:
            async for rows in in_chunks(self._rows(view, now, with_total=is_cut)):
                number += len(rows)
                if self.as_json:
                    yield rows
                else:
                    yield layout.lines([Cell(short(job_id.text), job_id.style), *rest] for job_id, *rest in rows)
        except JobsUnreadableError as error:  # all others were found
            self.damage = error
        if not self.as_json and not number:
            yield ["no job matches" if self.selection else "no jobs"]
        elif is_cut:
            total = counted(number + self.more, "job")
            footer = f"{total}, {self.more:,} of them not shown" if self.more else total
            yield ["", terminal.styled(footer, "dim")]
        if self.damage is not None:
            raise self.damage

    async def _rows(self, view: QueueView, now: datetime, *, with_total: bool) -> AsyncGenerator[Any, None]:
        """Yield the rows of the jobs, in order."""
        if self.sort is not None or self.reverse:  # in memory
            place = KEYS[self.sort]
            first = FirstItems[Job](self.limit, lambda job: place(job, now), reverse=self.reverse)
            try:
                async for job in view.jobs(now, self.selection):
                    first.add(job)
            except JobsUnreadableError as error:  # all others were found
                self.damage = error
            jobs = first.found()
            self.more = first.number - len(jobs)
        elif self.limit is None:
            async for job in view.jobs(now, self.selection, in_order=True):
                yield self._row(job, now)
            return
        else:
            jobs, more, unread = await view.first_jobs(self.limit, now, self.selection)
            self.damage = JobsUnreadableError(unread) if unread else None
            if more and with_total:
                self.more = await view.count(now, self.selection) - len(jobs)
        for job in jobs:
            yield self._row(job, now)

    def _columns(self) -> Sequence[Column]:
        columns = [Column("id"), Column("entrypoint", cut=True), Column("status"), Column("for", right=True)]
        columns.append(Column("attempts", right=True))
        columns += [Column("size", right=True)] if self.sort == "size" else []
        columns += [Column("payload", cut=True)] if self.payloads else []
        return [*columns, Column("holder or error", cut=True)]

    def _row(self, job: Job, now: datetime) -> str | Sequence[Cell]:
        if self.as_json:
            content = {"payload": _base64(None if job.payload_apart else job.payload)} if self.payloads else {}
            return json.dumps(job_values(job, now) | content)
        phase, seconds = phase_of(job, now), (now - since(job)).total_seconds()
        return (
            Cell(job.id, "bold"),
            Cell(job.entrypoint),
            Cell(phase.replace("_", " "), STYLES.get(phase, "")),
            Cell(f"in {age(-seconds)}" if seconds < 0 else age(seconds)),
            Cell(str(job.tries), "" if job.tries else "dim"),
            *([Cell(size(_size_of(job)))] if self.sort == "size" else []),
            *([Cell(_preview(job))] if self.payloads else []),
            Cell(_running(job)) if phase is Phase.IN_PROGRESS else Cell(job.error or "", "dim"),
        )


def _running(job: Job) -> str:
    """Return how far a job is, and who works on it."""
    return ", ".join(filter(None, (progress_text(job), job.holder))) or "?"


def _base64(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode("ascii")


def _preview(job: Job) -> str:
    if job.payload_apart:
        return f"({size(_size_of(job))} in an object)"
    return job.payload[:PREVIEW].decode("utf-8", "backslashreplace") + "…" * (len(job.payload) > PREVIEW)


@selecting()
def ls(
    url: URL,
    selection: Selection,
    sort: Annotated[
        str | None,
        option(
            "|".join(ORDERS),
            "Order of the jobs: the oldest, largest, most tried or soonest due first. By default running jobs come "
            "first, then ready ones in the order in which they will be served.",
            autocompletion=lambda: ORDERS,
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    limit: Annotated[int | None, option("N", "Number of jobs to list at most. By default all.", min=1)] = None,
    payloads: Annotated[bool, typer.Option("--payloads", help="Show the beginnings of payloads.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the list live, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    as_json: OneALine = False,
) -> None:
    """List jobs: ready, running, dead; by entrypoint, age, holder, key, error or payload.

    The column "for" has the time for which a job has had its status. On a narrow terminal, ids are cut to the
    beginnings that tell them apart, unless the queue is deep; every command that takes an id takes such a beginning.

    This command only reads, and shows payloads only with --payloads.
    """
    if sort is not None and sort not in KEYS:
        raise RefusedError(f"--sort takes {', '.join(ORDERS)}")

    def listing(most: int | None) -> Listing:
        return Listing(selection, sort, reverse, most, payloads, as_json)

    async def draw(opened: OpenedQueue, terminal: Terminal, room: int) -> list[str]:
        lines, most = list[str](), max(1, room - TITLES)
        try:
            async for some in listing(min(limit or most, most)).lines(opened.view, opened.now(), terminal):
                lines += some
        except JobsUnreadableError as error:
            lines.insert(0, terminal.styled(cut(printable(str(error)), terminal.width or WIDE), "red"))
        return lines

    async def write(opened: OpenedQueue) -> None:
        with reading(opened.view, selection=selection) as (view, progress):
            async for some in listing(limit).lines(view, opened.now(), Terminal.of_stdout()):
                with progress.away():
                    write_lines(some)

    if watch:
        return live(url, draw, interval, instead="jqueue ls", as_json=as_json)
    on_queue(url, write)


TEXT_BYTES = 64 << 10
"""Largest payload that is shown in full."""

JobID = Annotated[str, argument("ID", "Id of the job, or the beginning of it.")]


def show(
    url: URL,
    job_id: JobID,
    payload: Annotated[bool, typer.Option("--payload", help="Show its payload, and its result if it has one.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show one job with its whole life: attempts, errors, holder, times, events.

    The beginning of an id is enough if no other id begins like it. The payload and the result are hidden unless
    --payload is given; with --json, the payload is then in base64. Of the headers, only the names are shown.

    If the queue keeps a history, the events of the job are listed, too.
    """

    async def read(opened: OpenedQueue) -> tuple[Job, dict[str, Any], dict[str, str | None]]:
        now = opened.now()
        job = await one_job(opened.view, now, job_id)
        events, missing = await _events(opened, job)
        values = {
            **job_values(job, now, ShownLife),
            "headers": sorted(job.headers),
            "children": (children := opened.view.children_of(job)),
            "why_waiting": (reasons := await opened.view.why_waits(job, now)),
            "events_missing": missing,
            "events": None if events is None else [event_values(event) for event in events],
        }
        why = {"why it waits": "\n".join(reasons) or None}
        why["children"] = ", ".join(map(printable, children)) or None
        texts = {**_facts(job, now), **why, **_story(job, events or []), "missing": missing}
        if payload:
            content = b"".join([piece async for piece in payload_of(opened.queue, job)])
            result = job.result if job.result_object is None else await opened.queue.result(job.id)
            values |= {"payload": _base64(content), "result": result}
            texts["payload"] = _as_text(content)
            if job.status is JobStatus.COMPLETED:
                texts["result"] = json.dumps(result, ensure_ascii=False)
        return job, values, texts

    job, values, texts = on_queue(url, read)
    if as_json:
        show_json(values)
        return
    rows = [
        (Cell("" if number else name, "dim"), Cell(printable(line.expandtabs())))
        for name, text in texts.items()
        for number, line in enumerate((text or "").splitlines())
    ]
    write_lines(Layout((Column("id"), Column(printable(job.id))), Terminal.of_stdout()).lines(rows))


async def _events(opened: OpenedQueue, job: Job) -> tuple[list[HistoryEvent] | None, str | None]:
    """Return the events of a job, the oldest first, and why some are missing. None: the queue keeps no history."""
    if not isinstance(opened.queue, BlobQueue) or opened.view.header.history is None:
        return None, None
    wanted = job.id if job.id.isprintable() else None  # an id that was edited by hand is not searched for
    events: list[HistoryEvent] = []
    try:
        async for event in opened.queue.history_of(opened.view, job_id=wanted, since=job.created_at - BEFORE):
            if event.job_id == job.id:
                events.append(event)
    except HistoryDamagedError as error:
        return events[::-1], str(error)
    return events[::-1], None


def _facts(job: Job, now: datetime) -> dict[str, str]:
    """Return the facts about a job by name. None has several lines."""
    begun, phase, stored = since(job), phase_of(job, now), job.payload_object
    waits = job.status is JobStatus.QUEUED  # the times of other jobs no longer have an effect
    status = f"{phase.replace('_', ' ')} for {age(now - begun)}"
    lost, key = job.claim_timeout, job.concurrency_key
    facts: dict[str, str | datetime | None] = {
        "entrypoint": job.entrypoint,
        "status": f"scheduled, ready in {age(begun - now)}" if phase is Phase.SCHEDULED else status,
        "attempts": f"{job.tries}, {job.failed_tries} failed" if job.failed_tries else str(job.tries),
        "most failures": None if job.max_attempts is None else str(job.max_attempts),
        "enqueued": job.created_at,
        "holder": job.holder,
        "claimed": job.claimed_at,
        "progress": progress_text(job),
        "last heartbeat": job.heartbeat_at,
        "claim lost after": None if lost is None else f"{length(lost)} without a heartbeat",
        "requeued": job.queued_at,
        "runs at": job.run_at if waits else None,
        "expires": job.expires_at if waits else None,
        "dead": job.dead_at,
        "finished": job.finished_at,
        "priority": str(job.priority),
        "unique key": job.unique_key,
        "concurrency key": None if key is None else f"{key} (at most {job.concurrency_limit or 1} at once)",
        "fair key": job.fair_key,
        "fair weight": None if job.fair_weight is None else f"{job.fair_weight:g}",
        "group": job.group,
        "parents": ", ".join(job.after) or None,
        "headers": f"{', '.join(sorted(job.headers))} (values are hidden)" if job.headers else None,
        "cancelled": "its worker will be told to stop at its next heartbeat" if job.cancel_requested else None,
        "payload size": size(_size_of(job))
        + (", in an object of its own" if stored is not None else "")
        + (", arguments by name" if job.encoding is not None else ""),
    }
    return {
        name: ago(value, now) if isinstance(value, datetime) else printable(value)
        for name, value in facts.items()
        if value is not None
    }


def _story(job: Job, events: list[HistoryEvent]) -> dict[str, str | None]:
    """Return the steps, the errors of the attempts, the latest in full, and the events. They may have several lines."""
    earlier = [
        f"{moment(each.at)}  attempt {each.attempt} by {each.holder or 'unknown'}: {' '.join(each.text.split())}"
        for each in job.errors
        if each.text != job.error
    ]
    steps = [f"{moment(at)}  {name}{f', {occurrence}' * (occurrence > 1)}" for name, occurrence, at, *_ in job.steps]
    verbs = [f"{each.verb} {each.attempt or ''}" for each in events]
    width = max(map(len, verbs), default=0)
    happened = [f"{moment(each.at)}  {verb:{width}}  {outcome(each)}" for verb, each in zip(verbs, events, strict=True)]
    return {
        "steps (UTC)": "\n".join(map(printable, steps)),
        "earlier errors (UTC)": "\n".join(map(printable, earlier)),
        "last error": job.error,
        "": f"{size(job.error_dropped)} more were dropped: the queue had no room" if job.error_dropped else None,
        "traceback": job.traceback,
        "events (UTC)": "\n".join(printable(line.rstrip()) for line in happened),
    }


def _as_text(content: bytes) -> str:
    """Return a payload as text, with escapes for bytes that are none, and without what is too much to read."""
    more = len(content) - TEXT_BYTES
    text = content[:TEXT_BYTES].decode("utf-8", "backslashreplace")
    return text + (f"\n… {size(more)} more; --json has them all" if more > 0 else "") if content else "(empty)"
