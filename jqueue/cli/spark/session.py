"""A Spark session for one command, and files of jobs as DataFrames.

It needs `pip install "jqueue[spark]"` and Java, which are looked for only when a command starts a session.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import AsJSON
from jqueue.cli.options import expanding
from jqueue.cli.parameters import option
from jqueue.cli.progress import jobs_counted
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.spark.errors import one_line
from jqueue.spark.session import INSTALL, java_problem, spark_problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has stopped."""

POLL_INTERVAL = 0.2
"""Seconds between two looks at the tasks of Spark."""

_SIGNS = re.compile(r"[,*?\[]")
_SETTING = re.compile(r"(spark\.[^\s=]+)=(.*)", re.DOTALL)


OPTIONS: Mapping[str, Any] = {
    "master": Annotated[
        str | None,
        option("URL", "Spark master: local[4], spark://host:7077, yarn, k8s://… By default all cores here: local[*]."),
    ],
    "conf": Annotated[
        list[str] | None, option("KEY=VALUE", "Spark setting, such as spark.driver.memory=4g; may be repeated.")
    ],
    "spark_log": Annotated[
        Literal["OFF", "ERROR", "WARN", "INFO"] | None,
        option("LEVEL", "Lowest level of Spark's own log on stderr: ERROR, WARN or INFO. By default OFF.",
               case_sensitive=False),
    ],
    "as_json": AsJSON,
}  # fmt: skip
"""The options of each command on Spark."""


@dataclass(frozen=True)
class OnSpark:
    """The place where a command runs Spark, and its settings.

    Attributes:
        master: Spark's name for the place.
        settings: of Spark.
        log: lowest level of Spark's own log.
        as_json: True if the answer or an error is printed as JSON.
    """

    master: str
    settings: Mapping[str, str]
    log: str
    as_json: bool

    @property
    def is_here(self) -> bool:
        """True if executors are on this machine, so that a path without a scheme means a file on it."""
        return self.master.startswith("local")

    def file(self, path: str) -> str:
        """Return a path of files as Spark understands it: its current folder may be another."""
        return absolute(path) if self.is_here else path

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """Start a session for the block of a command. An error in it becomes one line.

        Raises:
            RefusedError: an error occurred.
        """
        try:
            installed = version("pyspark")
            version("pyarrow")
        except PackageNotFoundError:
            raise RefusedError(f"this needs Spark: {INSTALL}") from None
        if problem := spark_problem(installed) or java_problem():
            raise RefusedError(problem)
        try:
            with Console(stderr=True).status("starting Spark"):
                from jqueue.spark.session import local_session

                session = local_session("jqueue spark", self.master, log=self.log, **self.settings)
            try:
                yield session
            finally:
                with suppress(Exception):  # an earlier error says more
                    session.stop()
        except (RefusedError, typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            typer.echo("jqueue: interrupted before the work was done", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            from_spark = type(error).__module__.startswith(("py4j.", "pyspark."))
            if not from_spark and not isinstance(
                error, JQueueError | ImportError | OSError | RuntimeError | ValueError
            ):
                raise  # a bug of ours keeps its frames
            raise RefusedError(one_line(error)) from None


def _read(given: Mapping[str, Any]) -> OnSpark:
    """Return the value of the options.

    Raises:
        RefusedError: --conf has a wrong value.
    """
    settings = [_SETTING.fullmatch(text) for text in given["conf"] or ()]
    if None in settings:
        raise RefusedError("--conf takes a Spark setting as KEY=VALUE: --conf spark.driver.memory=4g")
    chosen = {each[1]: each[2] for each in settings if each is not None}
    return OnSpark(given["master"] or "local[*]", chosen, given["spark_log"] or "OFF", bool(given["as_json"]))


on_spark: Callable[[Callable[..., None]], Callable[..., None]] = expanding("spark", OPTIONS, _read)
"""Give a command the options of Spark. Its parameter `spark` receives the `OnSpark`."""


def absolute(url: str) -> str:
    """Return a URL, or a path as Spark's processes understand it: their current folder may be another."""
    return url if "://" in url else os.path.abspath(url)


def queues_here(urls: str) -> str:
    """Do the same for several URLs, with commas between them and wildcards in them."""
    if _SIGNS.search(os.getcwd()):  # its signs would be taken for wildcards or commas
        return urls
    return ",".join(absolute(url.strip()) if url.strip() else "" for url in urls.split(","))


@contextmanager
def tasks_shown(session: SparkSession, doing: str) -> Iterator[None]:
    """Show the number of tasks that are done in the stages of Spark under way, while the block runs them.

    Args:
        session: the session that runs them.
        doing: the work in a word or two.
    """
    from jqueue.spark.tags import described

    with described(session, f"jqueue: {doing}"), jobs_counted(doing, of_what="tasks") as tell:
        tracker, over = session.sparkContext.statusTracker(), threading.Event()

        def poll() -> None:
            while not over.wait(POLL_INTERVAL):
                with suppress(Exception):  # the work does not need it
                    stages = [stage for id in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id))]
                    if stages:
                        tell(sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages))

        poller = threading.Thread(target=poll, daemon=True)
        if tell.is_shown:
            poller.start()
        try:
            yield
        finally:
            over.set()
            if tell.is_shown:
                poller.join()


# Files of jobs
#
# CSV knows only texts, and JSON no maps, no bytes and no times. Left to guess, Spark would take an order number with
# leading zeros for a number, and the headers of all jobs for one struct with the keys of all of them. So the columns
# that jobs know are read with their own types. Only the types of the others, which become the payload, are guessed.

FORMATS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".tsv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
"""Formats by the ending of a name."""

PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate")
"""Endings that may follow it, of files that Spark unpacks by itself."""

CORRUPT = "_corrupt_record"
"""The column that Spark adds for records that it cannot read."""


def format_of(source: str) -> str | None:
    """Return the format that a name tells, or the common format of the files in a folder here. None if unknown."""
    told = _by_ending(source)
    if told is None and os.path.isdir(source):
        found = {_by_ending(path.name) for path in Path(source).iterdir() if not path.name.startswith(("_", "."))}
        told = found.pop() if len(found) == 1 else None
    return told


def _by_ending(name: str) -> str | None:
    stem, ending = os.path.splitext(name.rstrip("/").lower())
    return FORMATS.get(os.path.splitext(stem)[1] if ending in PACKED else ending)


def is_missing(source: str) -> bool:
    """Return True if the source certainly does not exist. Then Spark, which takes seconds to start, is not started."""
    return "://" not in source and not re.search(r"[*?\[{]", source) and not os.path.exists(source)


def read_jobs(session: SparkSession, source: str, kind: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a file or folder, with columns as a bulk enqueue takes them.

    Args:
        session: reads it.
        source: a path, a pattern of paths, or a URL that Spark can read.
        kind: "parquet", "csv" or "json".
        options: of Spark's reader, for example `sep`.

    Raises:
        InvalidJobError: it has no columns.
    """
    if kind == "parquet":
        return session.read.options(**options).parquet(source)
    defaults: dict[str, Any] = {"mode": "FAILFAST"}
    if kind == "csv":
        sep = "\t" if ".tsv" in source.lower() else ","
        defaults |= {"header": "true", "sep": sep, "multiLine": "true", "escape": '"'}  # a quote is written twice
    elif "://" not in source and os.path.isfile(source):
        with open(source, "rb") as file:
            if file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):  # one array, and not one object a line
                defaults["multiLine"] = "true"
    settled = {**defaults, **options}  # the last one counts, whatever the case of its letters
    guessed = session.read.format(kind).options(**settled).options(mode="PERMISSIVE", inferSchema="true").load(source)
    if not set(guessed.columns) - {CORRUPT}:
        why = f"SOURCE cannot be read as {kind}" if guessed.columns else "SOURCE has no rows"
        raise InvalidJobError(f"nothing to enqueue: {why}")
    from pyspark.sql import functions
    from pyspark.sql import types as sql

    # A payload that is an object stays the text that it is in the file: it gets no keys of other rows.
    meant: dict[str, sql.DataType] = {name: sql.StringType() for name in ("entrypoint", "payload", "unique_key")}
    meant["run_at"] = sql.TimestampType()
    meant["headers"] = sql.StringType() if kind == "csv" else sql.MapType(sql.StringType(), sql.StringType())
    fields = [each for each in guessed.schema.fields if each.name != CORRUPT]
    schema = sql.StructType(
        [sql.StructField(each.name, meant.get(each.name.lower(), each.dataType)) for each in fields]
    )
    frame = session.read.format(kind).options(**settled).schema(schema).load(source)
    for name in frame.columns if kind == "csv" else ():
        if name.lower() == "headers":
            as_map = functions.from_json(functions.col(f"`{name}`"), "map<string,string>", {"mode": "FAILFAST"})
            frame = frame.withColumn(name, as_map)
    return frame
