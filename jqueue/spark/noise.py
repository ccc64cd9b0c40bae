"""What Spark, its Java machine and PySpark say by themselves, kept from the terminal of who did not ask.

Left alone, each command would begin with half a dozen lines about log profiles and incubating modules, and end a user's
typing mistake with pages of stack traces. What handlers print on executors of this machine still comes through.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from rich.console import Console

PROFILE = Path(__file__).with_name("log4j2.properties")

NOISE = (b"WARNING: Using incubator modules:", b"Using Spark's default log4j profile", b"WARNING: package sun.")
"""How the lines begin that Java writes before anything can be set, and that nobody can do anything about."""

LOGGERS_OF_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j")


def java_options(level: str) -> str:
    """Options of the driver's Java that have it log from a level on."""
    return f"-Dlog4j2.configurationFile={PROFILE.as_uri()} -Djqueue.spark.log={level}"


def quiet_python() -> None:
    """Have PySpark neither log, nor warn: of versions of packages that jqueue does not need, above all."""
    for name in LOGGERS_OF_PYSPARK:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"pyspark\.")
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")


@contextmanager
def quiet_java(doing: str) -> Iterator[None]:
    """The standard error of processes that start inside, without the noise; a thread passes on everything else.

    Args:
        doing: what is said meanwhile, where a terminal is there to show it.
    """
    reading, writing = os.pipe()
    sys.stderr.flush()
    original = os.dup(2)
    under_way = threading.Event()
    under_way.set()
    os.dup2(writing, 2)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(original), under_way), daemon=True)
    passing.start()
    try:
        with os.fdopen(os.dup(original), "w") as terminal, _said(doing, terminal):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        under_way.clear()


@contextmanager
def _said(doing: str, terminal: TextIO) -> Iterator[None]:
    console = Console(file=terminal)
    if console.is_terminal:
        with console.status(doing):
            yield
    else:
        yield


def _pass_on(reading: int, original: int, under_way: threading.Event) -> None:
    """Pass on lines; as soon as `sys.stderr` leads where it did, through it, since a progress bar may stand there."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(original, "wb") as before, suppress(OSError, ValueError):
        for line in lines:
            if line.startswith(NOISE):
                continue
            if under_way.is_set():
                before.write(line)
                before.flush()
            else:
                sys.stderr.write(line.decode(errors="backslashreplace"))
                sys.stderr.flush()
