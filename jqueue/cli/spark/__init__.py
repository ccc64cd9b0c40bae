"""`jqueue spark`: jobs in and out of files and DataFrames, and work on them, with Spark."""

from __future__ import annotations

from jqueue.cli.help import CommandGroup, group


class SparkCommands(CommandGroup):
    """The commands of `jqueue spark`."""

    package = "jqueue.cli.spark"
    modules = {  # noqa: RUF012 - the base class says ClassVar
        "commands": {
            "enqueue": "Enqueue the rows of a file or folder with Spark: all of them in one commit, or none.",
            "run": "Run a worker's handlers on Spark: on one batch of jobs, or with --drain on all ready jobs.",
            "snapshot": "Write the jobs of a queue to OUT, or without OUT count and list them.",
            "archive": "Add new events of the history to LAKE, a folder of Parquet files by day and entrypoint.",
            "report": "Report on queues: depth, ages, attempts, failures, times; or with --lake on the past.",
        },
    }


spark = group(SparkCommands, name="spark")


@spark.callback(help='Work on many jobs with Spark; needs pip install "jqueue[spark]" and Java.')
def _spark() -> None:
    pass
