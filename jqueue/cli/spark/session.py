"""Spark for one command: started with what its options say, ended with it; what goes wrong is one line.

Only here, and inside the commands, is pyspark imported: `jqueue --help` shall not wait for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer

from jqueue.cli.printing import refusal
from jqueue.domain.errors import JQueueError
from jqueue.spark.errors import one_line
from jqueue.spark.noise import java_options, quiet_java, quiet_python
from jqueue.spark.session import INSTALL, java_problem, spark_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED = 130
"""What a command exits with that was stopped by Ctrl-C."""

_SIGNS = re.compile(r"[,*?\[]")
_SETTING = re.compile(r"(spark\.[^\s=]+)=(.*)", re.DOTALL)


class SparkLog(StrEnum):
    """How much Spark itself logs."""

    OFF = "OFF"
    ERROR = "ERROR"
    WARN = "WARN"
    INFO = "INFO"


Master = Annotated[
    str, typer.Option(metavar="URL", help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://…")
]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark's; may be given many times.", show_default=False),
]
Log = Annotated[SparkLog, typer.Option(case_sensitive=False, help="What Spark itself logs, to the standard error.")]


@dataclass(frozen=True)
class Place:
    """Where a command has Spark run, and how.

    Attributes:
        master: Spark's name for the place.
        conf: settings, as KEY=VALUE.
        log: how much Spark logs.
        as_json: whether an error is printed as JSON.
    """

    master: str
    conf: Sequence[str]
    log: SparkLog
    as_json: bool = False

    @property
    def is_here(self) -> bool:
        """Whether executors are on this machine, and a path without a scheme means a file on it."""
        return self.master.startswith("local")

    def file(self, path: str) -> str:
        """A path of files as Spark understands it, whose own folder need not be this one."""
        return os.path.abspath(path) if self.is_here and "://" not in path else path


def absolute(url: str) -> str:
    """A URL, or a path as Spark's processes understand it, whose folder need not be this one."""
    return url if "://" in url else os.path.abspath(url)


def queues_here(urls: str) -> str:
    """The same for several, with commas between them and wildcards in them."""
    if _SIGNS.search(os.getcwd()):  # which would then mean something
        return urls
    found = [url.strip() for url in urls.split(",")]
    return ",".join(absolute(url) if url else "" for url in found)


@contextmanager
def spark_session(place: Place) -> Iterator[SparkSession]:
    """A session for what a command does inside. What that raises is told in one line, and ends the command.

    Raises:
        typer.Exit: something went wrong; it was said.
    """
    settings = _settings(place)
    _check_installed(place)
    try:
        session = _start(place, settings)
        try:
            yield session
        finally:
            with suppress(Exception):  # what went wrong before tells more
                session.stop()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        typer.echo("jqueue: stopped before its end", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not _is_for_users(error):
            raise
        raise refusal(one_line(error), as_json=place.as_json) from None


def pairs(option: str, texts: Sequence[str] | None, as_json: bool = False) -> dict[str, str]:
    """What an option says that takes KEY=VALUE and may be given many times."""
    taken = {}
    for text in texts or ():
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise refusal(f"{option} takes KEY=VALUE", as_json=as_json)
        taken[name.strip()] = value
    return taken


def _is_for_users(error: Exception) -> bool:
    """Whether an exception says what a user can do something about. Others are bugs of ours, and keep their frames."""
    return isinstance(error, JQueueError | ImportError | OSError | RuntimeError | ValueError) or (
        type(error).__module__.startswith(("py4j.", "pyspark."))
    )


def _settings(place: Place) -> dict[str, str]:
    settings = {}
    for text in place.conf:
        found = _SETTING.fullmatch(text)
        if found is None:
            raise refusal(
                "--conf takes a setting of Spark's as KEY=VALUE: --conf spark.driver.memory=4g", as_json=place.as_json
            )
        settings[found[1]] = found[2]
    extra = "spark.driver.extraJavaOptions"
    settings[extra] = f"{java_options(place.log.value)} {settings.get(extra, '')}".strip()
    return settings


def _check_installed(place: Place) -> None:
    try:
        found = version("pyspark")
        version("pyarrow")
    except PackageNotFoundError:
        raise refusal(f"this needs Spark: {INSTALL}", as_json=place.as_json) from None
    problem = spark_problem(found) or java_problem()
    if problem is not None:
        raise refusal(problem, as_json=place.as_json)


def _start(place: Place, settings: dict[str, str]) -> SparkSession:
    quiet_python()
    with quiet_java("starting Spark"):
        from jqueue.spark.session import local_session

        return local_session("jqueue spark", place.master, **settings)
