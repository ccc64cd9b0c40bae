"""`jqueue spark`: jobs in and out of files and DataFrames, and work on them, with Spark."""

from __future__ import annotations

from typing import ClassVar

import typer

from jqueue.cli.help import CommandGroup, group


class SparkCommands(CommandGroup):
    """The commands of `jqueue spark`."""

    package = "jqueue.cli.spark"
    modules: ClassVar[dict[str, str]] = {
        "commands": "enqueue run snapshot",
    }


spark: typer.Typer = group(SparkCommands, name="spark")


@spark.callback()
def spark_() -> None:
    """Work on many jobs with Spark; needs pip install "jqueue[spark]" and Java."""
