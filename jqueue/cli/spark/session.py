"""Spark for one command: started with its options, and stopped with it. Errors are one line.

pyspark is imported only here, and inside the commands: `jqueue --help` must not wait for it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer

from jqueue.cli.parameters import option
from jqueue.cli.printing import refusal
from jqueue.cli.progress import Counted, jobs_counted
from jqueue.domain.errors import JQueueError
from jqueue.spark.errors import one_line
from jqueue.spark.noise import java_options, quiet_java, quiet_python
from jqueue.spark.session import INSTALL, java_problem, spark_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has stopped."""

_SIGNS = re.compile(r"[,*?\[]")
_SETTING = re.compile(r"(spark\.[^\s=]+)=(.*)", re.DOTALL)


class SparkLog(StrEnum):
    """The lowest level that Spark itself logs."""

    OFF = "OFF"
    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"


Master = Annotated[str, typer.Option(metavar="URL", help="Spark master: local[4], spark://host:7077, yarn, k8s://…")]
Conf = Annotated[list[str] | None, option("KEY=VALUE", "Spark setting; may be repeated.")]
Log = Annotated[SparkLog, typer.Option(case_sensitive=False, help="Lowest level of Spark's own log on stderr.")]


@dataclass(frozen=True)
class SparkTarget:
    """The place where a command runs Spark, and its settings.

    Attributes:
        master: Spark's name for the place.
        conf: settings, as KEY=VALUE.
        log: the lowest level that Spark logs.
        as_json: True if an error is printed as JSON.
    """

    master: str
    conf: Sequence[str]
    log: SparkLog
    as_json: bool = False

    @property
    def is_here(self) -> bool:
        """True if executors are on this machine, so that a path without a scheme means a file on it."""
        return self.master.startswith("local")

    def file(self, path: str) -> str:
        """Return a path of files as Spark understands it: its current folder may be another."""
        return os.path.abspath(path) if self.is_here and "://" not in path else path


def absolute(url: str) -> str:
    """Return a URL, or a path as Spark's processes understand it: their current folder may be another."""
    return url if "://" in url else os.path.abspath(url)


def queues_here(urls: str) -> str:
    """Do the same for several URLs, with commas between them and wildcards in them."""
    if _SIGNS.search(os.getcwd()):  # its signs would be taken for wildcards or commas
        return urls
    found = [url.strip() for url in urls.split(",")]
    return ",".join(absolute(url) if url else "" for url in found)


@contextmanager
def spark_session(target: SparkTarget) -> Iterator[SparkSession]:
    """Start a session for the block of a command. An error in it is printed in one line, and ends the command.

    Raises:
        typer.Exit: an error occurred, and has been printed.
    """
    settings = _settings(target)
    _check_installed(target)
    try:
        session = _start(target, settings)
        try:
            yield session
        finally:
            with suppress(Exception):  # an earlier error says more
                session.stop()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        typer.echo("jqueue: interrupted before the work was done", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not _is_for_users(error):
            raise
        raise refusal(one_line(error), as_json=target.as_json) from None


def pairs(option: str, texts: Sequence[str] | None, as_json: bool = False) -> dict[str, str]:
    """Return the values of an option that takes KEY=VALUE and may be given many times."""
    taken = {}
    for text in texts or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise refusal(f"{option} takes KEY=VALUE", as_json=as_json)
        taken[name.strip()] = value
    return taken


def _is_for_users(error: Exception) -> bool:
    """Return True if a user can act on an exception. Others are bugs of ours, and keep their frames."""
    return isinstance(error, JQueueError | ImportError | OSError | RuntimeError | ValueError) or (
        type(error).__module__.startswith(("py4j.", "pyspark."))
    )


def _settings(target: SparkTarget) -> dict[str, str]:
    settings = {}
    for text in target.conf:
        found = _SETTING.fullmatch(text)
        if found is None:
            raise refusal(
                "--conf takes a Spark setting as KEY=VALUE: --conf spark.driver.memory=4g", as_json=target.as_json
            )
        settings[found[1]] = found[2]
    extra = "spark.driver.extraJavaOptions"
    settings[extra] = f"{java_options(target.log.value)} {settings.get(extra, '')}".strip()
    return settings


def _check_installed(target: SparkTarget) -> None:
    try:
        found = version("pyspark")
        version("pyarrow")
    except PackageNotFoundError:
        raise refusal(f"this needs Spark: {INSTALL}", as_json=target.as_json) from None
    problem = spark_problem(found) or java_problem()
    if problem is not None:
        raise refusal(problem, as_json=target.as_json)


def _start(target: SparkTarget, settings: dict[str, str]) -> SparkSession:
    quiet_python()
    with quiet_java("starting Spark"):
        from jqueue.spark.session import local_session

        return local_session("jqueue spark", target.master, **settings)


POLL_INTERVAL = 0.2


@contextmanager
def tasks_shown(session: SparkSession, doing: str) -> Iterator[None]:
    """Show the number of Spark tasks that are done, while the block runs them.

    Args:
        session: the session that runs them.
        doing: the work in a word or two.
    """
    with jobs_counted(doing, of_what="tasks") as tell:
        if not tell.is_shown:
            yield
            return
        over = threading.Event()
        poller = threading.Thread(target=_poll_stages, args=(session, tell, over), daemon=True)
        poller.start()
        try:
            yield
        finally:
            over.set()
            poller.join()


def _poll_stages(session: SparkSession, tell: Counted, over: threading.Event) -> None:
    """Poll the stages again and again. A stage that is no longer active counts as done."""
    seen: dict[int, tuple[int, int]] = {}
    tracker = session.sparkContext.statusTracker()
    while not over.wait(POLL_INTERVAL):
        with suppress(Exception):  # the work does not need it
            for stage in tracker.getActiveStageIds():
                found = tracker.getStageInfo(stage)
                if found is not None:
                    seen[stage] = (found.numCompletedTasks, found.numTasks)
            for stage in seen.keys() - set(tracker.getActiveStageIds()):
                seen[stage] = (seen[stage][1], seen[stage][1])
        if seen:
            done, total = (sum(numbers) for numbers in zip(*seen.values(), strict=True))
            tell(done, total)
