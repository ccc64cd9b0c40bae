"""`jqueue spark run app:worker URL`: the handlers of a worker on Spark's executors, a batch of jobs at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli.on_queue import URL, AsJSON, on_queue
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import refusal, show_json
from jqueue.cli.progress import jobs_counted
from jqueue.cli.spark.files import is_missing
from jqueue.cli.spark.session import Conf, Log, Master, SparkLog, SparkTarget, absolute, spark_session
from jqueue.cli.worker import find_worker, log_to_stderr
from jqueue.domain.printable import printable

if TYPE_CHECKING:
    from jqueue.spark.batch.run import BatchReport
    from jqueue.worker import Worker

OUTCOMES = ("done", "retried", "dead", "snoozed", "cancelled")
"""Counts that show progress. If all jobs of a batch were handed back, the next batch would be the same."""


def run(
    target: Annotated[str, argument("MODULE:WORKER", "Module and name of the worker, such as app:worker.")],
    url: URL,
    entrypoint: Annotated[
        list[str] | None,
        option("NAME", "Only jobs of this entrypoint; may be repeated. By default all with a handler."),
    ] = None,
    max_jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Largest number of jobs in a batch.")] = 10_000,
    drain: Annotated[bool, typer.Option("--drain", help="Run batches until no job is ready.")] = False,
    partitions: Annotated[int | None, option("N", "Number of Spark tasks for a batch.", min=1)] = None,
    claim_timeout: Annotated[
        float | None, option("SECONDS", "Seconds until others get the jobs if this program dies.", min=1)
    ] = None,
    py_files: Annotated[
        list[str] | None, option("PATH", "Python code for the executors (.py, .zip, .whl); may be repeated.")
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Run a worker's handlers on Spark: on one batch of jobs, or with --drain on all ready jobs.

    Jobs are claimed, run on executors, and ended in one commit for the batch.
    Exits with 0 even if jobs failed, and with 2 if the batch could not be run.
    """  # fmt: skip
    with log_to_stderr("WARNING", target.partition(".")[0].partition(":")[0]):
        found = find_worker(target)
    _check_handlers(entrypoint or (), found, target, as_json)
    if missing := [path for path in py_files or () if is_missing(path)]:
        raise refusal(f"there is no file {printable(missing[0])}", as_json=as_json)
    name = on_queue(url, _name_of, as_json=as_json)
    _let_workers_import_from_here()
    reports: list[BatchReport] = []
    with (
        spark_session(SparkTarget(master, tuple(conf or ()), spark_log, as_json)) as session,
        jobs_counted("running") as tell,
    ):
        from jqueue.spark.batch.run import run_batch

        for path in py_files or ():
            session.sparkContext.addPyFile(absolute(path))
        while True:
            done = sum(report.claimed for report in reports)
            report = run_batch(
                session, absolute(url), found, entrypoint=entrypoint, max_jobs=max_jobs, partitions=partitions,
                claim_timeout=claim_timeout, progress=tell.after(done),
            )  # fmt: skip
            if not report.claimed and reports:
                break
            reports.append(report)
            if not drain or not any(getattr(report, what) for what in OUTCOMES):
                break
    _show(reports, name, as_json)


def _check_handlers(entrypoints: Sequence[str], worker: Worker, target: str, as_json: bool) -> None:
    missing = sorted(set(entrypoints) - set(worker.handlers))
    if missing:
        raise refusal(f"{target} has no handler for {', '.join(map(repr, missing))}", as_json=as_json)


async def _name_of(opened: Any) -> str:
    return str(opened.name)


def _let_workers_import_from_here() -> None:
    """Let Python processes of Spark on this machine import the program from this folder, as we did."""
    known = os.environ.get("PYTHONPATH", "")
    if os.getcwd() not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), known)))


def _show(reports: Sequence[BatchReport], name: str, as_json: bool) -> None:
    total = _total_of(reports)
    if as_json:
        show_json({"queue": name, "batches": len(reports), **_as_values(total)})
    else:
        typer.echo(f"{total}{f', in {len(reports)} batches' if len(reports) > 1 else ''}")


def _total_of(reports: Sequence[BatchReport]) -> BatchReport:
    """Return several reports as one."""
    return type(reports[0])(
        **{field.name: sum(getattr(report, field.name) for report in reports) for field in fields(reports[0])}
    )


def _as_values(report: BatchReport) -> dict[str, Any]:
    values = {field.name: getattr(report, field.name) for field in fields(report)}
    return {**values, "seconds": round(report.seconds, 3)}
