"""The data pipeline on Spark, from end to end, on the files of a folder.

    make pipeline                                  # the files of Python's standard library
    make pipeline ARGS="/usr/share/doc --out out"  # any folder; what is made is kept in out/

One job for each file is enqueued by Spark, in one commit. Most are done by a worker's handlers on Spark's executors:
`run_batch`. The rest goes through a streaming query, into a table of Parquet. Another query puts what came out of it
back into the queue, as new jobs. A snapshot shows what is there in the end. The history of the queue is archived as a
table of Parquet, a few queries of it show how it went, and at last a plain loop over the files says whether all of it
is true. Two jobs cannot go well, so that there is something to see: one names a file that is not there, and one
kills the Python process that runs it.

The functions from `enqueue` to `keep` are what a program of your own would look like; the rest is the show around it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jqueue import SyncQueue, Worker
from jqueue.spark import HISTORY_SCHEMA
from jqueue.spark.session import java_problem, local_session

try:
    from matplotlib.figure import Figure
    from pyspark.sql import functions as F
    from rich.console import Console
    from rich.text import Text
except ImportError:
    sys.exit('This example needs more than jqueue: pip install "jqueue[cli,spark]" matplotlib, or use `make pipeline`')

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT_OUT = {"__pycache__", "build", "dist", "dist-packages", "node_modules", "site-packages"}
MOST_FILES = 50_000  # of one commit, and of one batch
SHARE_STREAMED = 4  # 1 in this many files is left for the streaming query
BATCHES = 3  # into which that query cuts them
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # of Java, which here works for a minute only
KEEP_RESULTS = 3600  # seconds
TOOK = "«took»"  # stands in a line for how long its step took
FILE = "path string, size long"
SUMMARY = "sha256 string, lines long, size long"


class Summary(NamedTuple):
    sha256: str
    lines: int
    size: int


def summary(path: str) -> Summary:
    sha256, lines, size = hashlib.sha256(), 0, 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
            lines += block.count(b"\n")
            size += len(block)
    return Summary(sha256.hexdigest(), lines, size)


worker = Worker()


@worker.handler("summary", max_attempts=1)
def summarise(file: dict[str, Any]) -> dict[str, Any]:
    return {"path": file["path"], **summary(file["path"])._asdict()}


@worker.handler("poison", max_attempts=1)
def poison() -> None:
    os._exit(1)


def enqueue(spark: SparkSession, url: str, files: list[tuple[str, int]], entrypoint: str, version: int) -> None:
    """One job for each file, in one commit: `path` and `size` become the payload, as JSON."""
    (
        spark.createDataFrame(files, FILE)
        .write.format("jqueue")
        .mode("append")
        .option("entrypoint", entrypoint)
        .option("keep_result", KEEP_RESULTS)
        .option("txn_app_id", "pipeline")
        .option("txn_version", version)
        .save(url)
    )


def stream_out(spark: SparkSession, url: str, out: Path, jobs_per_batch: int) -> list[int]:
    """The jobs that are left as a stream, their files summed up on the way, into a table. Returns the rows by batch."""
    jobs = spark.readStream.format("jqueue").option("max_jobs_per_trigger", jobs_per_batch).load(url)
    files = jobs.select("id", F.from_json(jobs.payload.cast("string"), FILE).alias("file"))
    summed = files.select("id", "file.path", F.udf(summary, SUMMARY)("file.path").alias("summary"))
    rows = summed.select("id", "path", "summary.*")
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoints" / "out"))
        .trigger(availableNow=True)
        .start(str(out / "summaries"))
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def stream_in(spark: SparkSession, url: str, out: Path) -> None:
    """The rows of the table as a stream, back into the queue: a job for each, for whoever keeps an index of files."""
    rows = spark.readStream.schema(f"id string, path string, {SUMMARY}").parquet(str(out / "summaries"))
    query = (
        rows.drop("id")
        .writeStream.format("jqueue")
        .option("entrypoint", "index")
        .option("checkpointLocation", str(out / "checkpoints" / "in"))
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()


def look(spark: SparkSession, url: str, out: Path) -> DataFrame:
    """The jobs of one moment, kept as a table."""
    spark.read.format("jqueue").load(url).write.mode("overwrite").parquet(str(out / "snapshot"))
    return spark.read.parquet(str(out / "snapshot"))


def keep(spark: SparkSession, url: str, out: Path) -> DataFrame:
    """The events of the queue's history, archived as a table. Another run adds only the events that are new."""
    query = (
        spark.readStream.schema(HISTORY_SCHEMA)
        .json(f"{url}.history")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoints" / "events"))
        .trigger(availableNow=True)
        .start(str(out / "events"))
    )
    query.awaitTermination()
    return spark.read.parquet(str(out / "events"))


# The show


class Show:
    """Output of the steps: the results of each, and its duration."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds = 0.0

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Yield a list; its items are printed as the lines of the step."""
        lines: list[str] = []
        began = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(name):
                yield lines
        else:
            yield lines
        self.seconds = time.monotonic() - began
        for number, line in enumerate(lines):
            label = Text(f"{'' if number else name:10}", "bold")
            self.console.print(label.append(line.replace(TOOK, f"{self.seconds:.1f} s"), "not bold"))


def find_files(folder: Path) -> list[tuple[str, int]]:
    """The files of a folder that can be read, and their sizes; without what is hidden, built or installed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("."))
        paths = (Path(parent, name) for name in sorted(names))
        found += [(str(path), path.stat().st_size) for path in paths if is_wanted(path)]
    return found[:MOST_FILES]


def is_wanted(path: Path) -> bool:
    is_text = str(path).encode(errors="ignore") == os.fsencode(path)  # a column of Spark's holds nothing else
    return is_text and path.is_file() and not path.is_symlink() and os.access(path, os.R_OK)


def tell(spark: SparkSession, files: list[tuple[str, int]], out: Path, console: Console) -> list[str]:
    """Run all steps. Returns a description of each problem."""
    from jqueue.spark import run_batch

    show, url = Show(console), str(out / "queue.json")
    nowhere = str(out / "a file that is not there")
    with SyncQueue(url) as queue:
        queue.configure(history=timedelta(days=30))
    enqueue(spark, url, [("", 0)], "poison", version=1)
    with show.step("enqueue") as said:
        enqueue(spark, url, [(nowhere, 0), *files], "summary", version=2)
        said.append(f"{len(files) + 1:,} jobs from a DataFrame, in one commit, in {TOOK}")
    with show.step("again") as said:
        enqueue(spark, url, [(nowhere, 0), *files], "summary", version=2)
        queued = spark.read.format("jqueue").load(url).count()
        said.append(f"the same write repeated, as after a crash: still {queued:,} jobs")
    left = len(files) // SHARE_STREAMED
    with show.step("run_batch") as said:
        batch = run_batch(spark, url, worker, max_jobs=len(files) - left + 2)
        said.append(f"{batch}")
    with show.step("stream") as said:
        by_batch = stream_out(spark, url, out, max(1, -(-left // BATCHES)))
        said.append(f"{sum(by_batch):,} more jobs by a streaming query, in batches of {by_batch}, in {TOOK}")
    with show.step("and back") as said:
        stream_in(spark, url, out)
        said.append("its results streamed back into the queue, one job for each row, in " + TOOK)
    with show.step("snapshot") as said:
        snapshot = look(spark, url, out)
        counts = snapshot.groupBy("entrypoint", "status").count().orderBy("entrypoint", "status").collect()
        said.extend(f"{count:,} {entrypoint} {status.replace('_', ' ')}" for entrypoint, status, count in counts)
    with show.step("archive") as said:
        with SyncQueue(url) as queue:
            queue.configure(history=None)  # moves the latest events beside the queue, too
        events = keep(spark, url, out)
        said.append(f"{events.count():,} events of the history, as a table of Parquet, in {TOOK}")
    with show.step("the past") as said:
        past = Past(events)
        said.extend(past.told())
        said.append(f"the jobs that were done, second by second: {past.drawn(out / 'done.png')}")
    with show.step("check") as said:
        problems = check(spark, files, snapshot, out)
        problems += past.wrong(len(files), sum(row[2] for row in counts))
        said.append(f"a plain loop over the {len(files):,} files agrees: {not problems}")
    return problems


def check(spark: SparkSession, files: list[tuple[str, int]], snapshot: DataFrame, out: Path) -> list[str]:
    """Return a description of each problem."""
    results = snapshot.where("entrypoint = 'summary' AND result IS NOT NULL").select("result").collect()
    worked = [json.loads(row.result) for row in results]
    streamed = [row.asDict() for row in spark.read.parquet(str(out / "summaries")).drop("id").collect()]
    indexed = snapshot.where("entrypoint = 'index'").select(snapshot.payload.cast("string")).collect()
    problems = []
    if wrong := wrong_files(files, [*worked, *streamed]):
        problems.append(f"{len(wrong)} of {len(files)} files lack one correct summary, for example {wrong[0]!r}")
    if sorted(row["path"] for row in streamed) != sorted(json.loads(row[0])["path"] for row in indexed):
        problems.append(f"{len(streamed)} rows became {len(indexed)} jobs, or other ones")
    dead = sorted(row.entrypoint for row in snapshot.where("status = 'dead'").collect())
    if dead != ["poison", "summary"]:
        problems.append(f"exactly two jobs must be dead, 'poison' and 'summary', but these are: {dead}")
    return problems


class Past:
    """The figures that the example prints, made of the events of the history."""

    def __init__(self, events: DataFrame) -> None:
        self.events = events
        by_verb = events.where("entrypoint is not null").groupBy("verb").agg(F.sum("jobs")).collect()
        self.jobs: dict[str, int] = dict(map(tuple, by_verb))
        self.dead: int = events.where("before = 'in_progress' and after = 'dead'").count()

    def told(self) -> Iterator[str]:
        """Yield a line for the throughput, the waits, the failures and the holders."""
        events = self.events
        done = events.where("verb = 'ack'")
        first, last, jobs = done.agg(F.min("at"), F.max("at"), F.sum("jobs")).collect()[0]
        seconds = max(1e-3, (last - first).total_seconds())
        yield f"{jobs:,} jobs done in {seconds:.1f} s, {jobs / seconds:,.0f} a second"
        half, most = events.where("verb = 'dequeue'").agg(F.percentile("wait_seconds", [0.5, 0.95])).collect()[0][0]
        yield f"a job waited for {half:.1f} s at the median, {most:.1f} s at the 95th percentile"
        error = F.substring_index("error", ":", 1).alias("error")
        failed = events.where("verb in ('nack', 'revoke')").groupBy("entrypoint", error).agg(F.sum("jobs")).collect()
        yield "; ".join(f"{number} failed {entrypoint}: {why}" for entrypoint, why, number in sorted(failed))
        holders = done.groupBy("holder").count().count()
        yield f"{holders} {'holder' if holders == 1 else 'holders'} of claims"

    def drawn(self, path: Path) -> Path:
        """Draw the number of jobs that were done in each second."""
        seconds = self.events.where("verb = 'ack'").groupBy(F.date_trunc("second", "at").alias("at")).agg(F.sum("jobs"))
        figure = Figure(figsize=(8, 3))
        figure.subplots().step(*zip(*map(tuple, seconds.orderBy("at").collect()), strict=True))
        figure.savefig(path)
        return path

    def wrong(self, files: int, jobs: int) -> list[str]:
        """Return what the history says otherwise than the jobs."""
        told = self.jobs.get("enqueue"), self.jobs.get("ack"), self.dead
        return [] if told == (jobs, files, 2) else [f"the history has {told}, and not {(jobs, files, 2)}"]


def wrong_files(files: list[tuple[str, int]], told: list[dict[str, Any]]) -> list[str]:
    """Return the files whose results are missing, repeated, or differ from those of a plain loop."""
    by_path: dict[str, list[Summary]] = {}
    for row in told:
        by_path.setdefault(row["path"], []).append(Summary(row["sha256"], row["lines"], row["size"]))
    return [path for path, _ in files if by_path.get(path) != [summary(path)]]


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the data pipeline on Spark, on the files of a folder.")
    stdlib = Path(sysconfig.get_path("stdlib"))
    parser.add_argument(
        "folder", type=Path, nargs="?", default=stdlib, help="folder of the files (default: Python's standard library)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="new folder for the queue and tables (default: one in the temporary folder)",
    )
    parser.add_argument("--limit", type=int, default=MOST_FILES, help="largest number of files to take")
    parser.add_argument("--master", default="local[*]", help="Spark master: local[2] uses two cores of this machine")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{str(options.folder)!r} is not a folder")
    if options.out is not None and options.out.exists():
        parser.error(f"{str(options.out)!r} already exists: give a new path")
    if options.limit < SHARE_STREAMED:
        parser.error(f"--limit must be at least {SHARE_STREAMED}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = read_options(arguments)
    problem = java_problem()
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    files = find_files(options.folder.absolute())[: options.limit]
    if len(files) < SHARE_STREAMED:
        print(
            f"{str(options.folder)!r} needs at least {SHARE_STREAMED} files, and has {len(files)}: give another folder",
            file=sys.stderr,
        )
        return 2
    console.print(f"{len(files):,} files in {str(options.folder.absolute())!r}")
    out = (options.out or Path(tempfile.mkdtemp(prefix="jqueue-pipeline-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with console.status("starting Spark"):
            settings = {"spark.driver.extraJavaOptions": QUICK_START}
            spark = local_session("jqueue pipeline", options.master, **settings)
        try:
            problems = tell(spark, files, out, console)
        finally:
            spark.stop()
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130
    for line in problems:
        console.print(line)
    console.print(f"The queue and the tables are in {str(out)!r}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
