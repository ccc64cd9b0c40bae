"""`jqueue spark archive URL LAKE`: the events that a lake lacks, from the histories of queues."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from jqueue.cli.on_queue import AsJSON
from jqueue.cli.printing import show_json
from jqueue.cli.spark.progress import tasks_shown
from jqueue.cli.spark.session import Conf, Log, Master, SparkLog, SparkTarget, absolute, queues_here, spark_session
from jqueue.cli.spark.snapshot import FleetURL


def archive(
    url: FleetURL,
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="Folder or URL of the lake, such as s3://bucket/lake.")],
    master: Master = "local[*]",
    conf: Conf = None,
    spark_log: Log = SparkLog.OFF,
    as_json: AsJSON = False,
) -> None:
    """Add new events of the history to LAKE, a folder of Parquet files by day and entrypoint.

    An event is added once, however often this command runs or is interrupted.
    """
    with spark_session(SparkTarget(master, tuple(conf or ()), spark_log, as_json)) as session:
        from jqueue.spark import lake as archiving

        with tasks_shown(session, "archiving"):
            done = archiving.archive(session, queues_here(url), absolute(lake))
    if as_json:
        show_json({**asdict(done), "seconds": round(done.seconds, 3)})
    else:
        typer.echo(f"{done}")
