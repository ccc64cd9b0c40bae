"""`jqueue spark`: jobs in and out of files and DataFrames, and work on them, with Spark; a file for each command.

It needs `pip install "jqueue[spark]"` and Java, which are looked for only when a command runs.
"""

from __future__ import annotations

import typer

from jqueue.cli.help import Command, CommandGroup
from jqueue.cli.spark.enqueue import enqueue
from jqueue.cli.spark.report import report
from jqueue.cli.spark.run import run
from jqueue.cli.spark.snapshot import snapshot

spark = typer.Typer(
    name="spark",
    cls=CommandGroup,
    no_args_is_help=True,
    help=r'Work on many jobs with Spark; needs pip install "jqueue\[spark]" and Java.',
)
for command in (enqueue, run, snapshot, report):
    spark.command(cls=Command)(command)
