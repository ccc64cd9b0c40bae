"""`jqueue spark snapshot URL [OUT]`: one version of a queue, or of many queues, in files or in the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli.columns import Cell, Column, Terminal, lines_of, write_lines
from jqueue.cli.on_queue import AsJSON
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import instant, jobs, length, refusal, show, show_json
from jqueue.cli.spark.files import format_of
from jqueue.cli.spark.session import Conf, Log, Master, SparkLog, SparkTarget, queues_here, spark_session, tasks_shown
from jqueue.domain.job import JobStatus
from jqueue.domain.printable import printable
from jqueue.runtime.system import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LISTED = ("id", "entrypoint", "status", "priority", "attempt", "created_at")
"""The columns on a terminal: never the payload, nor other columns that may hold a piece of it."""

FleetURL = Annotated[
    str,
    argument(
        "URL", "URL or path of the queue, several with commas between, or a pattern: 'q/*.json'.", envvar="JQUEUE_URL"
    ),
]


class Mode(StrEnum):
    """The action if OUT exists."""

    ERROR = "error"
    APPEND = "append"
    OVERWRITE = "overwrite"


def snapshot(
    url: FleetURL,
    out: Annotated[str | None, argument("OUT", "Folder to write: jobs.parquet, .csv or .json.")] = None,
    status: Annotated[
        list[JobStatus] | None, typer.Option(help="Only jobs of this status; may be repeated.", show_default=False)
    ] = None,
    entrypoint: Annotated[list[str] | None, option("NAME", "Only jobs of this entrypoint; may be repeated.")] = None,
    rows: Annotated[int, typer.Option("--show", metavar="N", min=0, help="Number of jobs to list without OUT.")] = 20,
    mode: Annotated[Mode, typer.Option(help="Action if OUT exists.")] = Mode.ERROR,
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Write the jobs of a queue to OUT, or without OUT count and list them.

    The jobs of each queue are those of one version. The list shows no payloads.

    OUT is a folder of files, as Spark writes it. Parquet keeps all columns as they are.
    In CSV and JSON, payloads are base64; in CSV, headers are JSON.
    """
    kind = None if out is None else format_of(out)
    if out is not None and kind is None:
        raise refusal("OUT must end with .parquet, .csv or .json", as_json=as_json)
    target = SparkTarget(master, tuple(conf or ()), spark_log, as_json)
    if out is not None and mode is Mode.ERROR and target.is_here and os.path.exists(out):
        raise refusal(f"{printable(out)} already exists: add --mode append or overwrite", as_json=as_json)
    options = {
        name: ",".join(texts) for name, texts in (("status", status), ("entrypoint", entrypoint)) if texts is not None
    }
    with spark_session(target) as session, tasks_shown(session, "reading"):
        frame = session.read.format("jqueue").options(**options).load(queues_here(url))
        if out is not None:
            written = _write(frame, target.file(out), str(kind), mode)
        else:
            seen = _look(frame, rows)
    if out is not None:
        if as_json:
            show_json({"out": out, "jobs": written})
        else:
            typer.echo(f"{jobs(written)} written to {printable(out)}")
    elif as_json:
        show_json(_as_values(*seen))
    else:
        _show(*seen)


def _write(frame: DataFrame, out: str, kind: str, mode: Mode) -> int:
    """Write all rows, and count them on their way: a separate count would read another version."""
    from pyspark.sql import Observation, functions

    observed = Observation()
    counted = frame.observe(observed, functions.count(functions.lit(1)).alias("jobs"))
    if kind == "csv":
        counted = counted.withColumn("payload", functions.base64("payload"))
        counted = counted.withColumn("headers", functions.to_json("headers"))
    writer = counted.write.mode(mode.value).format(kind)
    (writer.options(header="true", escape='"') if kind == "csv" else writer).save(out)
    return int(observed.get["jobs"])


Counts = dict[tuple[str, str, str], int]


def _look(frame: DataFrame, rows: int) -> tuple[Counts, list[dict[str, Any]]]:
    """Return the number of jobs by queue, entrypoint and status, and the first jobs: both of one version."""
    from pyspark.sql import functions

    columns = [*LISTED, *(name for name in ("queue",) if name in frame.columns)]
    kept = frame.select(*columns, "sequence").cache()
    queue = functions.col("queue") if "queue" in columns else functions.lit("")
    grouped = kept.groupBy(queue.alias("queue"), "entrypoint", "status").count()
    counts = {(row[0], row[1], row[2]): int(row[3]) for row in grouped.collect()}
    order = [name for name in ("queue", "sequence") if name in kept.columns]
    listed = [row.asDict() for row in kept.orderBy(*order).limit(rows).collect()] if rows else []
    return counts, listed


def _as_values(counts: Counts, listed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "jobs": sum(counts.values()),
        "counts": [
            {**({"queue": queue} if queue else {}), "entrypoint": entrypoint, "status": status, "jobs": number}
            for (queue, entrypoint, status), number in sorted(counts.items())
        ],
        "first": [{**job, "created_at": instant(_in_utc(job["created_at"]))} for job in listed],
    }


def _in_utc(local: datetime) -> datetime:
    """Return a time of `collect` in UTC: it comes without a zone, and means this machine's."""
    return local.astimezone(UTC)


def _show(counts: Counts, listed: Sequence[dict[str, Any]]) -> None:
    if not counts:
        show("no jobs")
        return
    write_lines(_counted(counts, Terminal.of_stdout()))
    if listed:
        write_lines(chain([""], _listed(listed, Terminal.of_stdout())))
    more = sum(counts.values()) - len(listed)
    if listed and more:
        show("", f"and {more:,} more: --show N lists more, and OUT writes all")


def _counted(counts: Counts, terminal: Terminal) -> Iterator[str]:
    fleet = any(queue for queue, _, _ in counts)
    statuses = [status for status in JobStatus if any(found == status for _, _, found in counts)]
    rows = []
    for queue, entrypoint in sorted({(queue, entrypoint) for queue, entrypoint, _ in counts}):
        numbers = [counts.get((queue, entrypoint, status), 0) for status in statuses]
        names = [queue, entrypoint] if fleet else [entrypoint]
        rows.append([*map(Cell, names), *(Cell(f"{number:,}", "" if number else "dim") for number in numbers)])
    columns = [Column(name, cut=True) for name in (["queue"] if fleet else []) + ["entrypoint"]]
    columns += [Column(status.replace("_", " "), right=True) for status in statuses]
    return lines_of(columns, rows, terminal)


def _listed(listed: Sequence[dict[str, Any]], terminal: Terminal) -> Iterator[str]:
    now = SystemClock().now()
    names = ["id", *(["queue"] if "queue" in listed[0] else []), "entrypoint", "status"]
    rows = []
    for job in listed:
        age = max(timedelta(), now - _in_utc(job["created_at"]))
        texts = [str(job[name]) for name in names[:-1]]
        rows.append([*map(Cell, (*texts, job["status"].replace("_", " "), str(job["attempt"]), length(age)))])
    columns = [Column(name, cut=name in ("queue", "entrypoint")) for name in names]
    columns += [Column(name, right=True) for name in ("attempt", "age")]
    return lines_of(columns, rows, terminal)
