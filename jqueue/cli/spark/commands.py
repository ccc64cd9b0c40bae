"""The commands of `jqueue spark`: jobs in and out of files and DataFrames, and work on them."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli import options
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import IN_MEMORY, URL, Create, OpenedQueue, on_queue
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import jobs, tell
from jqueue.cli.spark.session import (
    OnSpark,
    absolute,
    format_of,
    is_missing,
    on_spark,
    queues_here,
    read_jobs,
    tasks_shown,
)
from jqueue.connect import open_storage
from jqueue.domain.errors import JQueueError
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import IN_BULK
from jqueue.domain.printable import counted, printable
from jqueue.ports.storage import describe
from jqueue.runtime.system import SystemClock

if TYPE_CHECKING:
    from jqueue.spark.batch.run import BatchReport


FleetURL = Annotated[
    str,
    argument(
        "URL", "URL or path of the queue, several with commas between, or a pattern: 'q/*.json'.", envvar="JQUEUE_URL"
    ),
]


@on_spark
def enqueue(
    source: Annotated[str, argument("SOURCE", "File, folder, pattern or URL with the rows.")],
    url: URL,
    kind: Annotated[
        Literal["parquet", "csv", "json"] | None,
        typer.Option("--format", help="Format of SOURCE. By default as its name tells.", show_default=False),
    ] = None,
    entrypoint: Annotated[
        str | None, option("NAME", "Entrypoint of all rows. By default their column entrypoint.")
    ] = None,
    txn_app_id: Annotated[
        str | None,
        option("ID", "Name of the writer, so that a repeated write adds nothing. By default it adds the rows again."),
    ] = None,
    txn_version: Annotated[
        int | None, option("N", "Number of this write, higher than of the writes before.", min=0)
    ] = None,
    on_conflict: Annotated[
        Literal["return", "raise"],
        typer.Option(help="If a unique key is taken: leave out that row, or add no rows."),
    ] = "return",
    option: Annotated[list[str] | None, option("KEY=VALUE", "Option of the jqueue sink, such as priority=5.")] = None,
    read_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of Spark's file reader, such as sep=;")
    ] = None,
    create: Create = False,
    *,
    spark: OnSpark,
) -> None:
    """Enqueue the rows of a file or folder with Spark: all of them in one commit, or none.

    The columns are entrypoint and payload, and optionally {optional}.
    Without a payload column, all other columns of a row become its payload, as one JSON object.
    """
    given = {"entrypoint": entrypoint, "txn_app_id": txn_app_id, "txn_version": txn_version, "on_conflict": on_conflict}
    settings = {name: str(value) for name, value in given.items() if value is not None}
    settings |= options.pairs("--option", option or ())
    reading = options.pairs("--read-option", read_option or ())
    if (txn_app_id is None) != (txn_version is None):
        raise RefusedError(
            "give --txn-app-id and --txn-version together: the name of the writer, and the number of its write"
        )
    try:
        storage = open_storage(url, create=create)
        if create and isinstance(storage, LocalFileSystemStorage):  # the tasks of Spark expect it
            storage.path.parent.mkdir(parents=True, exist_ok=True)
    except (ValueError, ImportError, OSError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise RefusedError(str(error)) from None
    if isinstance(storage, InMemoryStorage):
        raise RefusedError(IN_MEMORY)
    if spark.is_here and is_missing(source):
        raise RefusedError(f"there is no file or folder {printable(source)}")
    file_format = kind or format_of(source)
    if file_format is None:
        raise RefusedError(f"the format of {printable(source)} is unknown: add --format parquet, csv or json")
    with (
        spark.session() as session,
        tasks_shown(session, "enqueuing"),
        tempfile.TemporaryDirectory(prefix="jqueue-") as folder,
    ):
        rows = read_jobs(session, spark.file(source), file_format, reading)
        receipt_file, began = Path(folder) / "receipt.json", SystemClock().monotonic()
        writer = rows.write.format("jqueue").options(**settings).mode("append")
        writer.option("receipt_path", str(receipt_file)).save(absolute(url))
        receipt, seconds = json.loads(receipt_file.read_bytes()), SystemClock().monotonic() - began
    name = describe(storage)
    text = _told(receipt, name, seconds, printable(str(txn_app_id)), txn_version)
    tell({"queue": name, **receipt, "seconds": round(seconds, 3)}, text, as_json=spark.as_json)


if enqueue.__doc__ is not None:  # with python -OO it is
    enqueue.__doc__ = enqueue.__doc__.format(optional=", ".join(IN_BULK))


def _told(receipt: dict[str, Any], name: str, seconds: float, writer: str, version: int | None) -> str:
    if not receipt["repeated"]:
        text = f"{jobs(receipt['added'])} added to {name} in {seconds:.1f} s"
        taken = counted(receipt["taken"], "row was", "rows were")
        return f"{text}; {taken} left out: unique key already taken" if receipt["taken"] else text
    if receipt["left_out"]:
        rows = counted(receipt["left_out"], "row was", "rows were")
        last = f"the queue already has version {receipt['version']} of {writer}"
        return f"nothing added: {rows} not written, as {last}, later than {version}"
    return f"nothing added: version {version} of {writer} was already written"


OUTCOMES = ("succeeded", "failed", "dead", "snoozed", "cancelled")
"""Counts that show progress. If all jobs of a batch were handed back, the next batch would be the same."""


@on_spark
def run(
    target: Annotated[str, argument("MODULE:WORKER", "Module and name of the worker, such as app:worker.")],
    url: URL,
    entrypoint: Annotated[
        list[str] | None,
        option("NAME", "Only jobs of this entrypoint; may be repeated. By default all with a handler."),
    ] = None,
    max_jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Number of jobs in a batch, at most.")] = 10_000,
    drain: Annotated[bool, typer.Option("--drain", help="Run batches until no job is ready.")] = False,
    partitions: Annotated[
        int | None,
        option(
            "N",
            "Number of Spark tasks for a batch. By default two for each core, or more, for at most 1,000 jobs each.",
            min=1,
        ),
    ] = None,
    claim_timeout: Annotated[
        float | None,
        option("SECONDS", "Seconds until other workers get the jobs if this program dies. By default 30.", min=1),
    ] = None,
    py_files: Annotated[
        list[str] | None, option("PATH", "Python code for the executors (.py, .zip, .whl); may be repeated.")
    ] = None,
    *,
    spark: OnSpark,
) -> None:
    """Run a worker's handlers on Spark: on one batch of jobs, or with --drain on all ready jobs.

    Jobs are claimed, run on executors, and ended in one commit for the batch.
    Exits with 0 even if jobs failed, and with 2 if the batch could not be run.
    """  # fmt: skip
    from jqueue.cli.worker import find_worker, log_to_stderr

    with log_to_stderr("WARNING", target):
        worker = find_worker(target)
    if missing := sorted(set(entrypoint or ()) - set(worker.handlers)):
        raise RefusedError(f"{target} has no handler for {', '.join(map(repr, missing))}")
    if missing := [path for path in py_files or () if is_missing(path)]:
        raise RefusedError(f"there is no file {printable(missing[0])}")

    async def name_of(opened: OpenedQueue) -> str:
        return opened.name

    name = on_queue(url, name_of)
    known = os.environ.get("PYTHONPATH", "")
    if os.getcwd() not in known.split(os.pathsep):  # Spark's Python processes import the program from here, as we did
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), known)))
    reports: list[BatchReport] = []
    with spark.session() as session, tasks_shown(session, "running"):
        from jqueue.spark.batch.run import run_batch

        for path in py_files or ():
            session.sparkContext.addPyFile(absolute(path))
        while True:
            report = run_batch(
                session, absolute(url), worker, entrypoint=entrypoint, max_jobs=max_jobs, partitions=partitions,
                claim_timeout=claim_timeout,
            )  # fmt: skip
            reports.append(report)
            if not drain or not any(getattr(report, what) for what in OUTCOMES):
                break
    names = [field.name for field in fields(reports[0])]
    total = type(reports[0])(**{name: sum(getattr(report, name) for report in reports) for name in names})
    values = {"claimed": total.claimed, **asdict(total), "seconds": round(total.seconds, 3)}
    number = max(1, sum(report.claimed > 0 for report in reports))
    batches = f", in {number} batches" if number > 1 else ""
    tell({"queue": name, "batches": number, **values}, f"{total}{batches}", as_json=spark.as_json)


Mode = Literal["error", "append", "overwrite"]
"""The action if OUT exists."""


@on_spark
def snapshot(
    url: FleetURL,
    out: Annotated[str, argument("OUT", "Folder to write: jobs.parquet, .csv or .json.")],
    status: Annotated[
        list[JobStatus] | None, typer.Option(help="Only jobs of this status; may be repeated.", show_default=False)
    ] = None,
    entrypoint: Annotated[list[str] | None, option("NAME", "Only jobs of this entrypoint; may be repeated.")] = None,
    mode: Annotated[Mode, typer.Option(help="Action if OUT exists.")] = "error",
    *,
    spark: OnSpark,
) -> None:
    """Write the jobs of a queue to OUT, a folder of files, as Spark writes it.

    The jobs of each queue are those of one version. Parquet keeps all columns as they are.
    In CSV and JSON, payloads are base64; in CSV, headers are JSON.
    """
    if (kind := format_of(out)) is None:
        raise RefusedError("OUT must end with .parquet, .csv or .json")
    if mode == "error" and spark.is_here and os.path.exists(out):
        raise RefusedError(f"{printable(out)} already exists: add --mode append or overwrite")
    filters = {
        name: ",".join(texts) for name, texts in (("status", status), ("entrypoint", entrypoint)) if texts is not None
    }
    with spark.session() as session, tasks_shown(session, "reading"):
        from pyspark.sql import Observation, functions

        frame = session.read.format("jqueue").options(**filters).load(queues_here(url))
        observed = Observation()  # a count of its own would read another version
        frame = frame.observe(observed, functions.count(functions.lit(1)).alias("jobs"))
        if kind == "csv":
            frame = frame.withColumn("payload", functions.base64("payload"))
            frame = frame.withColumn("headers", functions.to_json("headers"))
        writer = frame.write.mode(mode).format(kind)
        (writer.options(header="true", escape='"') if kind == "csv" else writer).save(spark.file(out))
        written = int(observed.get["jobs"])
    tell({"out": out, "jobs": written}, f"{jobs(written)} written to {printable(out)}", as_json=spark.as_json)
